"""qd.contrib.django with the real Django: manage.py, settings, the jobs of installed apps, database connections."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from qd.contrib.django.database import alias_of
from tests.contrib.conftest import BECOME, PYTHON, FrameworkProject
from tests.support import warm
from tests.support.payloads import failed
from tests.support.processes import waiting
from tests.support.redis import FAILED, Client
from tests.support.servers.redis import Server
from tests.support.witness import Witness

pytestmark = pytest.mark.usefixtures("clean_redis")

MANAGE = """
import os, sys
from django.core.management import execute_from_command_line
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
execute_from_command_line(sys.argv)
"""
SETTINGS = """
SECRET_KEY = "not one"
USE_TZ = True
INSTALLED_APPS = ["qd.contrib.django", "shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.sqlite3", "CONN_MAX_AGE": <age>}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
QD = {"url": "<url>"}
"""
MODELS = """
from django.db import models

class Visible(models.Manager):
    def get_queryset(self):
        return super().get_queryset().exclude(email="hidden")

class Order(models.Model):
    email = models.CharField(max_length=100)
    paid = models.BooleanField(default=False)
    objects = Visible()
"""
JOBS = """
from qd import Job
from asgiref.sync import sync_to_async
from django.db import connection
from noted import note
from shop.models import Order
from shop.qd import app

@app.job("pay")
def pay(order_id: int) -> None:
    note("opened before", connection.connection is not None)
    Order.objects.filter(pk=order_id).update(paid=True)
    note("paid", order_id, Order.objects.get(pk=order_id).paid)

@app.job("apay")
async def apay(order_id: int) -> None:
    note("aopened before", await sync_to_async(lambda: connection.connection is not None)())
    order = await Order.objects.aget(pk=order_id)
    note("apaid", order.email)

@app.job("ship")
def ship(order: Order, others: list[Order] = []) -> None:
    note("ship", order.pk, order.email, [other.pk for other in others])

@app.job("quiet", delete_when_missing=True)
def quiet(order: Order) -> None:
    note("quiet", order.pk)

@app.job("hooked")
class Hooked(Job[None]):
    def handle(self) -> None:
        raise ValueError("hooked")

    def failed(self, error: BaseException) -> None:
        note("failed", Order.objects.count())

@app.job("fails")
def fails(order_id: int) -> None:
    Order.objects.get(pk=order_id)
    raise ValueError("fails")
"""


def settings(url: str, age: str = "0") -> str:
    return SETTINGS.replace("<url>", url).replace("<age>", age)


@pytest.fixture
def shop(framed: Callable[..., FrameworkProject], server) -> FrameworkProject:
    found = framed(
        manage=MANAGE,
        shop____init__="",
        shop__settings=settings(server.url),
        shop__models=MODELS,
        shop__qd="import qd.contrib.django\n\napp = qd.contrib.django.app()\n",
        shop__jobs=JOBS,
    )
    found.allowed.add("shop.sqlite3")
    done = manage(found, "migrate", "--run-syncdb", "-v", "0")
    assert done.returncode == 0, done.stderr
    return found


@pytest.fixture
def witness(shop: FrameworkProject) -> Witness:
    return Witness(shop)


def manage(shop: FrameworkProject, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return warm.run(
        [PYTHON, "manage.py", *words],
        cwd=shop.root,
        env=shop.env(**env),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def django(shop: FrameworkProject, code: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a new process with Django set up and Order 1 created."""
    first = "import django\ndjango.setup()\nfrom shop.jobs import *\nOrder.objects.get_or_create(pk=1, email='a@b.c')\n"
    return shop.python(first + code, DJANGO_SETTINGS_MODULE="shop.settings")


def work_off(shop: FrameworkProject, **env: str) -> None:
    work = shop.work_off(**BECOME | env)
    assert not work.matches("preload"), work.tail()


def test_manage_qd_work_needs_only_the_settings(shop: FrameworkProject, witness: Witness):
    django(shop, "pay.dispatch(1); pay.dispatch(1)")
    work = shop.start("manage.py", "qd", "work", "-w", "1", "--stop-when-empty")
    work.ends_clean()
    assert not work.matches("preload"), work.tail()
    assert witness.lines == ["opened before False", "paid 1 True"] * 2


def test_qd_work_finds_the_project_by_its_module(shop: FrameworkProject, witness: Witness):
    django(shop, "pay.dispatch(1)")
    (shop.root / "qd.toml").write_text('[qd]\napp = "shop.qd:app"\n')
    work = shop.work_off(DJANGO_SETTINGS_MODULE="shop.settings")
    assert work.matches("jobs=6")
    assert witness.starting("paid") == ["paid 1 True"]


def test_the_error_for_missing_settings_names_the_fix(shop: FrameworkProject):
    done = shop.qd("declared", "--app", "shop.qd:app")
    assert done.returncode == 78
    assert "DJANGO_SETTINGS_MODULE is not set: set it, use `manage.py qd`" in done.stderr


def test_arguments_and_exit_codes_are_those_of_qd(shop: FrameworkProject):
    jobs = manage(shop, "qd", "declared", "--settings", "shop.settings")
    assert (jobs.returncode, "apay" in jobs.stdout) == (0, True), jobs.stderr
    assert manage(shop, "qd", "declared", "--nonsense").returncode == 2
    assert manage(shop, "qd", "run", "fails", "order_id=0").returncode == 1
    assert manage(shop, "qd", "size-of-all").returncode == 2
    assert manage(shop, "qd", "status", QD_REDIS_URL="redis://127.0.0.1:1").returncode == 69
    assert "qd work" in manage(shop, "qd", "work", "--help").stdout


def test_manage_can_be_called_from_another_folder(shop: FrameworkProject):
    words = [PYTHON, str(shop.root / "manage.py"), "qd", "declared"]
    done = warm.run(words, cwd="/", env=shop.env(), capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, "apay" in done.stdout) == (0, True), done.stderr


def test_call_command_stays_in_the_process(shop: FrameworkProject, witness: Witness):
    django(
        shop,
        """
import io
from django.core.management import CommandError, call_command
call_command("qd", "run", "pay", "order_id=1")
call_command("qd", "declared", "--json")  # Django takes no option of it for one of its own
call_command("qd", "declared", "--", "--json")
try:
    call_command("qd", "run", "fails", "order_id=1")
except CommandError as error:
    assert (error.returncode, "ended with 1: " in str(error)) == (1, True), error
else:
    raise SystemExit("no error")
try:
    call_command("qd", "run", "nothing", stderr=(said := io.StringIO()))
except CommandError as error:
    assert "no job is called 'nothing'" in said.getvalue(), said.getvalue()
    assert str(error).endswith(said.getvalue().splitlines()[-1]), error
call_command("qd", "status", stdout=(shown := io.StringIO()))
assert "no master reports" in shown.getvalue(), shown.getvalue()
""",
    )
    assert witness.starting("paid") == ["paid 1 True"]


def test_what_was_printed_before_call_command_forks_is_printed_once(shop: FrameworkProject):
    """Into a pipe Python writes when its buffer is full; each child of the master had a copy of that buffer."""
    call = 'call_command("qd", "work", "--stop-when-empty")'
    code = f'from django.core.management import call_command; print("ONCE ONLY"); {call}; print("AFTER")'
    done = subprocess.run(
        [PYTHON, "-c", f"import django; django.setup(); {code}"],
        cwd=shop.root,
        env=shop.env(DJANGO_SETTINGS_MODULE="shop.settings", PYTHONUNBUFFERED=""),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "ONCE ONLY\nAFTER\n"), done.stderr


def test_an_unknown_key_is_rejected_by_name(shop: FrameworkProject):
    path = shop.root / "shop" / "settings.py"
    path.write_text(path.read_text().replace('{"url":', '{"urls":'))
    done = manage(shop, "qd", "declared")
    assert done.returncode == 78
    assert done.stderr.startswith("qd: unknown key 'urls' in QD of the Django settings (did you mean 'url'?)")


@pytest.mark.parametrize("value", ['"django://default"', "None", '["url"]'])
def test_settings_that_are_no_dict_are_rejected_with_the_form_to_write(shop: FrameworkProject, value: str):
    path = shop.root / "shop" / "settings.py"
    path.write_text(f"{path.read_text()}\nQD = {value}\n")
    done = manage(shop, "qd", "declared")
    assert (done.returncode, done.stderr) == (
        78,
        'qd: QD of the Django settings is not a dict: write QD = {"url": "..."}\n',
    )


def test_the_url_of_djangos_database_may_have_one_slash():
    assert [alias_of(url) for url in ("django://default", "django:/default", "redis://x")] == ["default", "default", ""]


def test_qd_dev_prints_the_command_that_reaches_the_app(shop: FrameworkProject):
    dev = shop.start("manage.py", "qd", "dev", "-w", "1")
    dev.wait_line("master.ready", 60)
    dev.stop()
    qd = "python manage.py qd"
    assert (
        f"first job  {qd} dispatch JOB KEY=VALUE... in another terminal; `{qd} declared` lists the jobs" in dev.output
    )


def test_a_broken_jobs_module_is_reported_with_its_line(shop: FrameworkProject):
    (shop.root / "shop" / "jobs.py").write_text("import nowhere_at_all\n")
    done = manage(shop, "qd", "declared")
    assert done.returncode == 78
    assert "No module named 'nowhere_at_all'" in done.stderr
    assert "shop/jobs.py:1" in done.stderr


def test_settings_that_raise_are_reported_with_their_line(shop: FrameworkProject):
    shop.write(shop__settings="import os\nSECRET = os.environ['NOT_SET']\n")
    for command in (["status"], ["failed", "list"]):
        done = shop.qd(*command, DJANGO_SETTINGS_MODULE="shop.settings", QD_APP="shop.qd:app")
        assert done.returncode == 78
        assert "the Django settings 'shop.settings' do not import: KeyError: 'NOT_SET' (" in done.stderr
        assert "settings.py:2)" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("age", "kept"), [("0", False), ("600", True)])
def test_connections_are_kept_from_job_to_job_for_conn_max_age(
    shop: FrameworkProject, witness: Witness, server: Server, age: str, kept: bool
):
    (shop.root / "shop" / "settings.py").write_text(settings(server.url, age))
    django(shop, "pay.dispatch(1); pay.dispatch(1); apay.dispatch(1); apay.dispatch(1)")
    work_off(shop)
    assert witness.starting("opened") == ["opened before False", f"opened before {kept}"]
    assert witness.starting("aopened") == ["aopened before False", f"aopened before {kept}"]


TOGETHER = """
import time
from pathlib import Path

def meet(*words):
    Order.objects.count()
    note(*words)
    until = time.monotonic() + 20
    while Path("witness").read_text().count(words[0]) < 4 and time.monotonic() < until:
        time.sleep(0.01)

@app.job("meets")
def meets() -> None:
    meet("meet")

@app.job("ameets")
async def ameets() -> None:
    await sync_to_async(meet)("meet")
    note("met", await Order.objects.acount())
"""


def test_jobs_of_one_worker_have_connections_of_their_own(shop: FrameworkProject, witness: Witness):
    path = shop.root / "shop" / "jobs.py"
    path.write_text(path.read_text() + TOGETHER)
    django(shop, "[(meets.dispatch(), ameets.dispatch()) for _ in range(2)]")
    work = shop.work("-w", "1", "--concurrency", "8", **BECOME)
    work.wait_line("job.done", count=4)
    assert len(witness.starting("meet")) == 4
    assert witness.starting("met ") == ["met 1", "met 1"]
    (worker,) = waiting(work, seconds=20)
    assert [file.path for file in worker.open_files() if "sqlite" in file.path] == []
    work.stop()


def test_a_connection_opened_during_import_is_not_inherited_by_workers(
    shop: FrameworkProject, witness: Witness, server: Server
):
    (shop.root / "shop" / "settings.py").write_text(settings(server.url, "600"))
    path = shop.root / "shop" / "jobs.py"
    path.write_text(path.read_text() + "\nOrder.objects.count()\n")
    django(shop, "pay.dispatch(1)")
    work_off(shop)
    assert witness.starting("opened") == ["opened before False"]


@FAILED
def test_a_connection_opened_by_failed_is_closed(shop: FrameworkProject, witness: Witness):
    django(shop, "Hooked().dispatch()")
    work = shop.work("-w", "1", **BECOME)
    work.wait_line("job.failed")
    assert witness.lines == ["failed 1"]
    (worker,) = waiting(work, seconds=20)
    assert [file.path for file in worker.open_files() if "sqlite" in file.path] == []
    work.stop()


def test_run_in_a_view_does_not_end_the_transaction(shop: FrameworkProject, witness: Witness):
    django(
        shop,
        """
from django.db import transaction
with transaction.atomic():
    Order.objects.create(pk=2, email="b@b.c")
    pay.run(2)
    assert connection.in_atomic_block
    transaction.set_rollback(True)
assert not Order.objects.filter(pk=2).exists()
""",
    )
    assert witness.lines == ["opened before True", "paid 2 True"]


def test_run_of_an_async_job_in_a_loop_raises_with_a_hint(shop: FrameworkProject):
    django(
        shop,
        """
import asyncio, warnings
warnings.simplefilter("error")
async def main():
    apay.run(1)
try:
    asyncio.run(main())
except RuntimeError as error:
    assert "await the plain call instead" in str(error), error
else:
    raise SystemExit("it ran")
""",
    )


AFTER = """
from django.db import transaction
queue = app.queue("default")
later = pay.using(after_commit=True)
class Stop(Exception): ...

with transaction.atomic():
    handle = later.dispatch(1)
    with transaction.atomic():
        later.dispatch(2)
    assert queue.size() == 0
assert queue.size() == 2, queue.size()

try:
    with transaction.atomic():
        later.dispatch(3)
        app.dispatch(later.bind(4), later.bind(5))
        app.chain(pay.bind(6), pay.bind(7)).using(after_commit=True).dispatch()
        app.batch(pay.bind(6), pay.bind(7), then=pay.bind(8)).using(after_commit=True).dispatch()
        app.batch(then=pay.bind(8)).using(after_commit=True).dispatch()
        app.batch(finally_=later.bind(8)).dispatch()
        app.chain(pay.bind(6), catch=later.bind(7)).dispatch()
        later.using(key="order:1").dispatch(8)
        later.using(unique="order:{order_id}").dispatch(8)
        raise Stop
except Stop:
    pass
assert queue.size() == 2, queue.size()

with transaction.atomic():
    try:
        with transaction.atomic():
            later.dispatch(8)
            raise Stop
    except Stop:
        pass
    app.dispatch(later.bind(9), pay.bind(10))
    assert queue.size() == 3, queue.size()
assert queue.size() == 4, queue.size()

later.dispatch(11)
assert queue.size() == 5
transaction.set_autocommit(False)
try:
    later.dispatch(12)
except transaction.TransactionManagementError:
    pass
else:
    raise SystemExit("it was sent although the commit is unknown")
assert queue.size() == 5
queue.clear()
"""


def test_after_commit_waits_for_the_atomic_block_and_a_rollback_drops_it(shop: FrameworkProject):
    django(shop, AFTER)


@pytest.mark.leaves("qd:ticks", "qd:schedule:last")
@pytest.mark.parametrize("format", ["text", "json"])
def test_each_log_line_has_the_offset_of_its_process(shop: FrameworkProject, witness: Witness, format: str):
    """The master uses the time zone of the machine, the workers that of Django."""
    path = shop.root / "shop" / "settings.py"
    path.write_text(path.read_text() + 'TIME_ZONE = "Asia/Kolkata"\n')
    path = shop.root / "shop" / "jobs.py"
    path.write_text(path.read_text() + "\napp.schedule(lambda: note('tick'), name='tick').every(0.2)\n")
    (shop.root / "qd.toml").write_text('[qd]\napp = "shop.qd:app"\n')
    begun = time.time()
    django(shop, "pay.dispatch(1)")
    env = {"TZ": "America/New_York", "DJANGO_SETTINGS_MODULE": "shop.settings"}
    work = shop.work("-w", "1", "--log-level", "debug", "--log-format", format, **env)
    witness.wait("paid")
    witness.wait("tick")
    work.wait_line("schedule.done")
    work.stop()
    times_by_role: dict[str, list[str]] = {}
    for line in work.lines:
        if format == "json":
            one = json.loads(line)
            times_by_role.setdefault(one["role"], []).append(one["time"])
        elif not line.startswith("    "):
            date, clock, _, role, *_ = line.split()
            times_by_role.setdefault(role.partition("[")[0], []).append(f"{date} {clock}")
    assert set(times_by_role) >= {"master", "worker", "scheduler"}, times_by_role
    for at in [datetime.fromisoformat(text) for times in times_by_role.values() for text in times]:
        assert at.utcoffset() is not None
        assert begun - 1 <= at.timestamp() <= time.time()
    if format == "text":
        assert times_by_role["master"][0].endswith(("-05:00", "-04:00"))
        assert times_by_role["worker"][0].endswith("+05:30")


OWN = """
import qd.contrib.django
from qd import Qd

app = Qd("<url>")
"""


def own_app(shop: FrameworkProject, server: Server, more: str = "") -> None:
    """Let the project create its own Qd."""
    (shop.root / "shop" / "qd.py").write_text(OWN.replace("<url>", server.url) + more)
    path = shop.root / "shop" / "settings.py"
    path.write_text(path.read_text() + 'QD = {"app": "shop.qd:app"}\n')


def test_install_adds_the_django_features_to_a_custom_app(shop: FrameworkProject, witness: Witness, server: Server):
    own_app(shop, server, "qd.contrib.django.install(app)\nqd.contrib.django.install(app)  # twice is once\n")
    (shop.root / "shop" / "settings.py").write_text(settings(server.url, "600") + 'QD = {"app": "shop.qd:app"}\n')
    django(shop, AFTER)
    django(shop, "pay.dispatch(1); ship.dispatch(Order.objects.get(pk=1))")
    path = shop.root / "shop" / "jobs.py"
    path.write_text(path.read_text() + "\nOrder.objects.count()\n")  # opens a connection in the template
    work_off(shop, QD_APP="shop.qd:app")
    assert witness.lines == ["opened before False", "paid 1 True", "ship 1 a@b.c []"]


def test_after_commit_is_rejected_by_an_app_without_install(shop: FrameworkProject, server: Server):
    own_app(shop, server)
    path = shop.root / "shop" / "jobs.py"
    path.write_text(path.read_text().partition('@app.job("ship")')[0])  # without a model as an argument
    django(
        shop,
        """
from django.db import transaction
from qd import DeclarationError
with transaction.atomic():
    try:
        pay.using(after_commit=True).dispatch(1)
    except DeclarationError as error:
        assert "call qd.contrib.django.install(app)" in str(error), error
    else:
        raise SystemExit("sent")
assert app.queue("default").size() == 0
""",
    )


def test_after_commit_waits_for_both_of_two_databases(shop: FrameworkProject, server: Server):
    path = shop.root / "shop" / "settings.py"
    path.write_text(path.read_text() + "DATABASES['other'] = {**DATABASES['default'], 'NAME': 'other.sqlite3'}\n")
    shop.allowed.add("other.sqlite3")
    django(
        shop,
        """
from django.db import transaction
queue = app.queue("default")
for first, second in (("default", "other"), ("other", "default")):
    with transaction.atomic(using=first):
        with transaction.atomic(using=second):
            pay.using(after_commit=True).dispatch(1)
        assert queue.size() == 0, (first, second)
    assert queue.size() == 1
    queue.clear()
""",
    )


def test_in_a_test_case_jobs_are_sent_when_the_commit_callbacks_run(shop: FrameworkProject):
    """The outer transaction of the test case stays open, and is not waited for."""
    django(
        shop,
        """
import unittest
from django.db import transaction
from django.test import TestCase
queue = app.queue("default")

class Paid(TestCase):
    def test_it(self):
        with self.captureOnCommitCallbacks(execute=True) as callbacks:
            with transaction.atomic():
                pay.using(after_commit=True).dispatch(1)
            assert queue.size() == 0
        assert (queue.size(), len(callbacks)) == (1, 1)

assert unittest.TextTestRunner(verbosity=0).run(Paid("test_it")).wasSuccessful()
queue.clear()
""",
    )


def test_models_are_sent_as_their_key_and_loaded_by_the_worker(shop: FrameworkProject, witness: Witness, redis: Client):
    django(
        shop,
        """
from django.utils.functional import SimpleLazyObject
one, two = Order.objects.get(pk=1), Order.objects.create(pk=2, email="b@b.c")
ship.dispatch(one, [one, two])
ship.dispatch(SimpleLazyObject(lambda: two))
quiet.dispatch(one)
ship.dispatch(Order.objects.create(pk=3, email="hidden"))
Order.objects.filter(pk=1).update(email="new@b.c")
""",
    )
    payload = json.loads(redis.call("LINDEX", "queues:default", 0))
    assert payload["data"]["order"] == {"model": "shop.Order", "key": 1}
    work_off(shop)
    assert witness.lines == ["ship 1 new@b.c [1, 2]", "ship 2 b@b.c []", "quiet 1", "ship 3 hidden []"]


@FAILED
def test_a_deleted_row_fails_the_job(shop: FrameworkProject, witness: Witness, redis: Client):
    django(shop, "one = Order.objects.get(pk=1); ship.dispatch(one); one.delete()")
    work_off(shop)
    assert witness.lines == []
    ((record, _),) = failed(redis)
    assert "argument 'order': shop.Order 1 is gone" in record["reason"]


def test_an_unsaved_object_is_rejected_at_dispatch(shop: FrameworkProject):
    django(
        shop,
        """
from qd import ArgumentError
try:
    ship.dispatch(Order(email="c@b.c"))
except ArgumentError as error:
    assert "shop.Order has no key yet" in str(error), error
else:
    raise SystemExit("sent")
""",
    )


ROUTERS = """
class Second:
    def db_for_read(self, model, **hints):
        return "second"
"""
SECOND = """
DATABASES["second"] = {**DATABASES["default"], "NAME": "second.sqlite3"}
DATABASES["replica"] = {**DATABASES["default"], "TEST": {"MIRROR": "default"}}
"""


def of_two_databases(shop: FrameworkProject) -> Path:
    """Returns the path of the settings."""
    shop.write(shop__routers=ROUTERS)
    path = shop.root / "shop" / "settings.py"
    path.write_text(path.read_text() + SECOND)
    shop.allowed.add("second.sqlite3")
    done = manage(shop, "migrate", "--run-syncdb", "-v", "0", "--database", "second")
    assert done.returncode == 0, done.stderr
    return path


def test_an_object_of_another_database_is_rejected_at_dispatch(shop: FrameworkProject):
    """Without the check the worker would load the row of `default` with the same key."""
    of_two_databases(shop)
    django(
        shop,
        """
from django.utils.functional import SimpleLazyObject
from qd import ArgumentError
Order.objects.using("second").create(pk=1, email="second")
theirs = Order.objects.using("second").get(pk=1)
for send in (
    lambda: ship.dispatch(theirs),
    lambda: ship.dispatch(SimpleLazyObject(lambda: theirs)),
    lambda: ship.dispatch(Order.objects.get(pk=1), [theirs]),
):
    try:
        send()
    except ArgumentError as error:
        assert "from the database 'default', and shop.Order 1 is in 'second': send its key, and load" in str(error), error
    else:
        raise SystemExit("sent")
ship.dispatch(Order.objects.using("replica").get(pk=1))
ship.dispatch(Order(pk=1, email="not from a database"))
from django.test import override_settings
with override_settings(DATABASE_ROUTERS=["shop.routers.Second"]):
    ship.dispatch(theirs)
queue = app.queue("default")
assert queue.size() == 3
queue.clear()
""",
    )


def test_a_router_decides_where_the_worker_loads_an_object(shop: FrameworkProject, witness: Witness):
    path = of_two_databases(shop)
    path.write_text(path.read_text() + 'DATABASE_ROUTERS = ["shop.routers.Second"]\n')
    django(
        shop,
        """
Order.objects.using("second").create(pk=2, email="second")
ship.dispatch(Order.objects.get(pk=2))
""",
    )
    work_off(shop)
    assert witness.lines == ["ship 2 second []"]
