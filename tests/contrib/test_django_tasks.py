"""qd.contrib.django.tasks with the real package of Django's Tasks: enqueue, run by the real `qd work`, results."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.contrib.conftest import BECOME, FrameworkProject
from tests.contrib.test_django import MANAGE, MODELS, manage, settings
from tests.support.processes import Procs
from tests.support.redis import FAILED, Client
from tests.support.servers.redis import Server
from tests.support.witness import Witness

pytestmark = [pytest.mark.usefixtures("clean_redis"), FAILED, pytest.mark.leaves("qd:job:*")]

TASKS = """
TASKS = {"default": {"BACKEND": "qd.contrib.django.tasks.QdBackend", "QUEUES": ["default", "mail"], "OPTIONS": {<options>}}}
"""
DECLARED = """
import os, time
from django_tasks import TaskContext, task
from django_tasks.signals import task_enqueued, task_finished, task_started
from noted import note

class Broken(Exception): ...

@task
def add(a, b=2):
    note("add", a, b)
    return {"sum": a + b, "parts": (a, b)}

@task(queue_name="mail")
async def aadd(a, b):
    note("aadd", a, b)
    return a + b

@task(takes_context=True)
def context(context, word):
    note("context", context.attempt, context.task_result.id, context.task_result.status, word)
    return context.attempt

@task
def waits():
    note("waits")
    while not os.path.exists("go"):
        time.sleep(0.01)

@task
def fails(how):
    note("fails")
    if how == "raises":
        raise Broken("it is broken")
    return object()

for name, signal in (("enqueued", task_enqueued), ("started", task_started), ("finished", task_finished)):
    def hear(sender, task_result, name=name, **more):
        note("signal", name, sender.__name__, task_result.task.name, task_result.status)
    signal.connect(hear, weak=False)
"""
SETUP = """
import django
django.setup()
from django_tasks import default_task_backend, TaskResultStatus
from django_tasks.exceptions import *
from shop.tasks import *
"""


@pytest.fixture
def shop_with(framed: Callable[..., FrameworkProject], server: Server) -> Callable[[str], FrameworkProject]:
    def make(options: str = "") -> FrameworkProject:
        found = framed(
            manage=MANAGE,
            shop____init__="",
            shop__settings=settings(server.url) + TASKS.replace("<options>", options),
            shop__models=MODELS,
            shop__tasks=DECLARED,
        )
        found.allowed.add("shop.sqlite3")
        done = manage(found, "migrate", "--run-syncdb", "-v", "0")
        assert done.returncode == 0, done.stderr
        return found

    return make


@pytest.fixture
def shop(shop_with: Callable[[str], FrameworkProject]) -> FrameworkProject:
    return shop_with("")


@pytest.fixture
def witness(shop: FrameworkProject) -> Witness:
    return Witness(shop)


def printed(shop: FrameworkProject, code: str) -> list[str]:
    """The words that `code` prints, in a process with Django set up and the tasks imported."""
    return shop.python(SETUP + code, DJANGO_SETTINGS_MODULE="shop.settings").stdout.split()


def work_off(shop: FrameworkProject, *words: str) -> Procs:
    work = shop.work("default", "mail", "-w", "1", "--stop-when-empty", *words, **BECOME)
    work.ends_clean()
    return work


def test_a_task_is_enqueued_and_run_and_its_result_found(shop: FrameworkProject, witness: Witness, redis: Client):
    first, second, third = printed(
        shop,
        "print(add.enqueue(1).id, aadd.enqueue(a=3, b=4).id, add.using(queue_name='mail').enqueue(5).id)",
    )
    assert (redis.call("LLEN", "queues:default"), redis.call("LLEN", "queues:mail")) == (1, 2)
    payload = json.loads(redis.call("LINDEX", "queues:default", 0))
    assert (payload["job"], payload["data"]["args"], payload["data"]["kwargs"]) == ("shop.tasks.add", [1], {})
    work_off(shop)
    assert witness.starting("add") == ["add 1 2", "add 5 2"]
    assert witness.starting("aadd") == ["aadd 3 4"]
    printed(
        shop,
        f"""
r = default_task_backend.get_result("{first}")
assert r.status == TaskResultStatus.SUCCESSFUL and r.is_finished
assert r.return_value == {{"sum": 3, "parts": [1, 2]}}, r.return_value
assert (r.task.func, r.args, r.kwargs, r.backend, r.attempts) == (add.func, [1], {{}}, "default", 1)
assert r.enqueued_at <= r.started_at <= r.finished_at
assert len(r.worker_ids) == 1 and r.worker_ids[0].endswith("/0"), r.worker_ids
r = aadd.get_result("{second}")
assert (r.return_value, r.kwargs, r.task.queue_name) == (7, {{"a": 3, "b": 4}}, "mail")
assert add.get_result("{third}").task.queue_name == "mail"
try:
    add.get_result("{second}")
except TaskResultMismatch:
    pass
else:
    raise SystemExit("a result of another task")
""",
    )


def test_refresh_updates_a_result_from_ready_to_its_end(shop: FrameworkProject, witness: Witness):
    (id,) = printed(
        shop,
        """
r = add.enqueue(5, b=6)
assert r.status == TaskResultStatus.READY and not r.is_finished
r.refresh()
assert r.status == TaskResultStatus.READY and r.enqueued_at is not None
print(r.id)
""",
    )
    work_off(shop)
    assert printed(shop, f"r = add.get_result('{id}'); r.refresh(); print(r.return_value['sum'])") == ["11"]


def test_a_running_task_has_the_status_running(shop: FrameworkProject, witness: Witness):
    shop.allowed.add("go")
    (id,) = printed(shop, "print(waits.enqueue().id)")
    work = shop.work("-w", "1", **BECOME)
    witness.wait("waits")
    assert printed(shop, f"r = waits.get_result('{id}'); print(r.status, r.attempts)") == ["RUNNING", "1"]
    (shop.root / "go").touch()
    work.wait_line("job.done")
    work.stop()


def test_a_failed_task_has_its_exception_class_and_traceback(shop: FrameworkProject, witness: Witness):
    first, second = printed(shop, "print(fails.enqueue('raises').id, fails.enqueue('returns').id)")
    work = work_off(shop)
    # Django's log line has the traceback, and so has that of the job, which starts in the task's code.
    assert len(work.matches("shop.tasks.Broken: it is broken")) == 2
    assert not work.matches("NoneType: None")
    lines = work.lines[work.lines.index(work.matches("job.failed .*Broken")[0].string) :]
    assert "shop/tasks.py" in lines[2]
    printed(
        shop,
        f"""
r = fails.get_result("{first}")
assert r.status == TaskResultStatus.FAILED and r.is_finished and r.finished_at is not None
(error,) = r.errors
assert error.exception_class is Broken, error
assert "it is broken" in error.traceback and "shop/tasks.py" in error.traceback
assert (r.args, r.attempts) == (["raises"], 1)
r = fails.get_result("{second}")
assert r.errors[0].exception_class is TypeError, r.errors
assert "Unsupported type" in r.errors[0].traceback
""",
    )


def test_job_options_are_options_of_the_backend(shop_with, redis: Client):
    shop = shop_with('"tries": 3, "result_ttl": 60')
    witness = Witness(shop)
    (id,) = printed(shop, "print(fails.enqueue('raises').id)")
    work_off(shop)
    assert len(witness.starting("fails")) == 3
    assert printed(shop, f"print(fails.get_result('{id}').attempts)") == ["3"]
    assert 0 < redis.call("TTL", f"qd:job:{id}") <= 60


def test_qd_declared_lists_a_task_with_its_options(shop_with, redis: Client):
    done = manage(shop := shop_with('"tries": 3'), "qd", "declared", "--json")
    found = {job["name"]: job for job in json.loads(done.stdout)["jobs"]}["shop.tasks.aadd"]
    line = DECLARED.splitlines().index('@task(queue_name="mail")') + 1
    assert found["declared_at"] == f"{shop.root}/shop/tasks.py:{line}"
    assert {name: found["options"][name] for name in ("queue", "tries", "result_ttl")} == {
        "queue": "mail", "tries": 3, "result_ttl": 86400.0,
    }  # fmt: skip


def test_options_that_carry_code_are_refused_where_the_task_is_declared(shop_with):
    shop = shop_with()
    settings = shop.root / "shop" / "settings.py"
    text = settings.read_text()
    for option in ("retry_on", "fail_on", "middleware", "upgrade"):
        settings.write_text(text.replace('"OPTIONS": {}', f'"OPTIONS": {{"{option}": (OSError,)}}'))
        done = manage(shop, "qd", "declared")
        assert done.returncode != 0
        assert f"OPTIONS of task backend 'default' cannot have {option} (a payload carries no code; use" in done.stderr
        assert f"@app.job({option}=...) in place of @task" in done.stderr


def test_the_context_has_the_attempt_and_the_result(shop: FrameworkProject, witness: Witness):
    (id,) = printed(shop, "print(context.enqueue('word').id)")
    work_off(shop)
    assert witness.starting("context") == [f"context 1 {id} RUNNING word"]
    assert printed(shop, f"print(context.get_result('{id}').return_value)") == ["1"]


def test_signals_are_sent_in_the_process_of_the_event(shop: FrameworkProject, witness: Witness):
    printed(shop, "add.enqueue(1); fails.enqueue('raises')")
    work_off(shop)
    assert witness.starting("signal") == [
        "signal enqueued QdBackend add READY",
        "signal enqueued QdBackend fails READY",
        "signal started QdBackend add RUNNING",
        "signal finished QdBackend add SUCCESSFUL",
        "signal started QdBackend fails RUNNING",
        "signal finished QdBackend fails FAILED",
    ]


def test_run_after_delays_and_aenqueue_sends(shop: FrameworkProject, witness: Witness, redis: Client):
    printed(
        shop,
        """
import asyncio
from datetime import timedelta
from django.utils import timezone
r = add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1)
assert add.get_result(r.id).status == TaskResultStatus.READY
print(asyncio.run(add.aenqueue(2)).id)
asyncio.run(r.arefresh())
""",
    )
    assert redis.call("ZCARD", "queues:default:delayed") == 1
    assert redis.call("LLEN", "queues:default") == 1
    redis.call("DEL", "queues:default:delayed", "queues:default", "queues:default:notify")


def test_after_commit_of_the_backend_waits_for_the_commit(shop_with):
    shop = shop_with('"after_commit": True')
    shop.allowed.add("witness")
    printed(
        shop,
        """
from django.db import transaction
with transaction.atomic():
    r = add.enqueue(1)
    assert r.id
    try:
        add.get_result(r.id)
    except TaskResultDoesNotExist:
        pass
    else:
        raise SystemExit("it was sent")
    transaction.set_rollback(True)
with transaction.atomic():
    r = add.enqueue(1)
assert add.get_result(r.id).status == TaskResultStatus.READY
""",
    )
    work_off(shop)


def test_unsupported_features_are_rejected_at_declaration(shop: FrameworkProject, witness: Witness):
    printed(
        shop,
        """
b = default_task_backend
assert (b.supports_defer, b.supports_async_task, b.supports_get_result, b.supports_priority) == (True, True, True, False)
for make in (
    lambda: add.using(priority=5), lambda: add.using(queue_name="nowhere"), lambda: task(lambda: 1),
):
    try:
        make()
    except InvalidTaskError:
        pass
    else:
        raise SystemExit("accepted")
try:
    add.enqueue(object())
except TypeError:
    pass
try:
    b.get_result("nothing")
except TaskResultDoesNotExist:
    pass
else:
    raise SystemExit("found")
""",
    )
    assert witness.lines == []


def test_without_result_ttl_there_are_no_results(shop_with, redis: Client):
    shop = shop_with('"result_ttl": 0')
    shop.allowed.add("witness")
    printed(
        shop,
        """
assert not default_task_backend.supports_get_result
r = add.enqueue(1)
try:
    r.refresh()
except NotImplementedError:
    pass
""",
    )
    work_off(shop)
    assert redis.text("KEYS", "qd:job:*") == []
