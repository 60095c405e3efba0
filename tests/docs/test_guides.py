"""The guides, executed: failed jobs, Django, recipes, and the samples of each page. The tutorial: test_tutorial.py."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url

from qd.payload.format import read
from tests.contrib.conftest import FrameworkProject
from tests.contrib.test_django import MANAGE, manage
from tests.support import warm
from tests.support.pages import PAGES, ROOT, sample_program
from tests.support.payloads import failed, push
from tests.support.project import MakeProject, Project
from tests.support.redis import FAILED, Client
from tests.support.servers.postgres import Postgres
from tests.support.servers.redis import Server
from tests.support.witness import Witness

# --- failed.md


PAGE_FAILED = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "failed.md").read_text()
CONSOLE = re.search(r"^```console\n(.*?)^```$", PAGE_FAILED, re.DOTALL | re.MULTILINE)
TASKS = re.findall(r"^\|[^|]*\| `(qd failed [^`]*)`", PAGE_FAILED.partition("\n## ")[0], re.MULTILINE)


@pytest.fixture
def shop(project: MakeProject, redis: Client) -> Project:
    found = project(jobs=sample_program(PAGE_FAILED))
    push(redis, "mail.welcome", to="nobody@example.org")
    found.work_off()
    return found


@pytest.mark.usefixtures("clean_redis")
@FAILED
def test_the_console_block_shows_the_output_of_the_commands(shop: Project, redis: Client) -> None:
    assert CONSOLE
    listing, head, row, show = CONSOLE[1].splitlines()
    ((_, raw),) = failed(redis)
    done = shop.qd(*shlex.split(listing)[2:])
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == head.split()
    # Everything except the ID and the time, which differ from the page.
    id = lines[1].split()[0]
    assert (len(id), len(row.split()[0])) == (32, 32)
    assert read(raw).id == id
    assert lines[1].split()[1:7] == row.split()[1:7]
    assert row.split()[7:8] == ["3"] == lines[1].split()[7:8]
    assert lines[1].endswith((" ago", "just now"))
    *words, short = shlex.split(show)[2:]
    assert len(short) == 4
    done = shop.qd(*words, id[:4])
    assert done.returncode == 0, done.stderr
    assert "ValueError: no such user" in done.stdout
    assert "nobody@example.org" in done.stdout


@pytest.mark.usefixtures("clean_redis")
@FAILED
def test_each_command_of_the_tasks_runs(shop: Project, redis: Client) -> None:
    assert len(TASKS) == 7
    for command in TASKS:
        ((_, raw),) = failed(redis)
        done = shop.qd(*[read(raw).id or "" if word == "ID" else word for word in shlex.split(command)[1:]])
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        if command == "qd failed retry ID":
            assert not failed(redis)
            shop.work_off()


# --- django.md


PAGE_DJANGO = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "django.md").read_text()
FILES = re.findall(r"^```py\n# (\S+)\.py\n(.*?)^```$", PAGE_DJANGO, re.DOTALL | re.MULTILINE)


@pytest.fixture
def django_shop(framed: Callable[..., FrameworkProject], postgres: Postgres) -> Iterator[FrameworkProject]:
    url = make_url(postgres.fresh_database())
    files: dict[str, str] = {}
    for name, text in FILES:  # a file that is named again is continued
        path = name.replace("/", "__")
        files[path] = files.get(path, "") + text
    at = {"NAME": url.database, "USER": url.username, "PASSWORD": "", "PORT": url.port}
    files["shop__settings"] += f'DATABASES["default"] |= {at}\n'
    found = framed(manage=MANAGE, shop____init__="", **files)
    for words in (("migrate", "--run-syncdb", "-v", "0"), ("qd", "migrate")):
        done = manage(found, *words)
        assert done.returncode == 0, done.stderr
    yield found
    postgres.drop(url.render_as_string())


def test_the_django_project_of_the_page_works(django_shop: FrameworkProject):
    django_shop.python(
        """
        import asyncio, django
        django.setup()
        from django.test import RequestFactory
        from shop import tasks, views
        request = RequestFactory().get("/")
        assert views.buy(request).status_code == 201
        views.order_by_mail("bob@example.org")
        asyncio.run(views.counted(request))
        assert tasks.remind.enqueue(7).id
        """,
        DJANGO_SETTINGS_MODULE="shop.settings",
    )
    work = django_shop.start("manage.py", "qd", "work", "default", "mail", "-w", "1", "--stop-when-empty")
    work.ends_clean()
    assert work.output == ["order 1 of ada@example.org is confirmed", "order 2 of bob@example.org is confirmed"]
    assert len(work.matches("job.done")) == 4


ADMIN = """
INSTALLED_APPS = ["qd.contrib.django", "django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes",
    "django.contrib.sessions", "django.contrib.messages", "shop"]
MIDDLEWARE = ["django.contrib.sessions.middleware.SessionMiddleware", "django.contrib.messages.middleware.MessageMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware"]
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True, "OPTIONS": {
    "context_processors": ["django.template.context_processors.request", "django.contrib.auth.context_processors.auth",
    "django.contrib.messages.context_processors.messages"]}}]
ROOT_URLCONF = "shop.urls"
ALLOWED_HOSTS = ["*"]
STATIC_URL = "static/"
"""
VISITS = """
import asyncio, httpx
from shop.asgi import application
from django.contrib.auth.models import User
from django.test import Client

def visit(name, **more):
    client = Client()
    client.force_login(User.objects.create_user(name, **more))
    session = client.cookies["sessionid"].value

    async def pages():
        transport, cookies = httpx.ASGITransport(application), {"sessionid": session}
        async with httpx.AsyncClient(transport=transport, base_url="http://shop", cookies=cookies) as browser:
            return [await browser.get(path) for path in ("/admin/", "/qd/", "/qd/queues")]

    return asyncio.run(pages())

index, overview, queues = visit("boss", is_staff=True, is_superuser=True)
assert index.status_code == 200 and '<a href="/qd/">Background jobs</a>' in index.text, index.text
assert overview.status_code == 200 and "boss" in overview.text, overview.text
assert queues.status_code == 200
index, overview, queues = visit("guest")
assert index.status_code == 302
assert overview.status_code == queues.status_code == 403
"""


def test_staff_reach_the_dashboard_from_the_admin(django_shop: FrameworkProject):
    path = django_shop.root / "shop" / "settings.py"
    path.write_text(path.read_text() + ADMIN)
    assert manage(django_shop, "migrate", "-v", "0").returncode == 0
    django_shop.python(VISITS)


TESTS = """
from django.core.management import call_command
from django.test import TestCase, TransactionTestCase
from shop.jobs import confirm
from shop.models import Order
from shop.qd import app

class Sending(TestCase):
    def test_it_sends_a_job(self):
        confirm.dispatch(Order.objects.create(email="a@b.c"))
        self.assertEqual(app.queue("mail").size(), 1)

    def test_and_each_test_begins_without_one(self):
        self.assertEqual(app.queue("mail").size(), 0)

class Working(TransactionTestCase):
    def test_a_worker_runs_the_job(self):
        confirm.dispatch(Order.objects.create(email="a@b.c"))
        call_command("qd", "work", "--stop-when-empty", "mail")
        self.assertEqual(app.queue("mail").size(), 0)
"""


def test_a_test_case_rolls_its_jobs_back_and_a_worker_runs_in_a_transaction_test_case(django_shop: FrameworkProject):
    page = (django_shop.root / "shop" / "tests.py").read_text()
    django_shop.write(shop__tests=page + TESTS)
    done = manage(django_shop, "test", "shop", "--noinput")
    assert done.returncode == 0, done.stderr
    assert "Ran 4 tests" in done.stderr


# --- fastapi.md


VISIT = """
import os, sys
from fastapi.testclient import TestClient
from jobs import web

with TestClient(web) as browser:
    if sys.argv[1:] == ["down"]:
        answer = browser.post("/users/ada@example.org")
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    elif sys.argv[1:]:
        assert browser.get(f"/builds/{sys.argv[1]}").json() == {
            "status": "done", "progress": 100.0, "result": {"month": 7, "pages": 12}
        }
    else:
        id = browser.post("/builds/7").json()["job"]
        assert browser.get(f"/builds/{id}").json() == {"status": "ready", "progress": None}
        assert browser.get("/builds/nowhere").status_code == 404
        print(id)
"""


@pytest.mark.leaves("qd:job:*")  # the result
@pytest.mark.usefixtures("clean_redis")
def test_the_status_endpoint_and_the_503_of_the_page_work(project: MakeProject):
    shop = project(jobs=sample_program((ROOT / "docs" / "how-to" / "fastapi.md").read_text()))

    def visit(*words: str, url: str = shop.url) -> str:
        return shop.python(f"import sys\nsys.argv = {['visit', *words]!r}\n{VISIT}", QD_REDIS_URL=url).stdout

    id = visit().strip()
    shop.work_off()
    visit(id)
    visit("down", url="redis://127.0.0.1:1/0")


FROZEN = """
import os, signal
from fastapi.testclient import TestClient
from jobs import app, web

with TestClient(web) as browser:
    assert browser.post("/users/1@example.org").status_code == 200  # opens the connection
    os.kill(int(os.environ["SERVER"]), signal.SIGSTOP)
    try:
        for path in ("/hurried/2@example.org", "/users/3@example.org"):
            answer = browser.post(path)
            assert answer.status_code == 503 and "Retry-After" not in answer.headers, (path, answer.headers)
    finally:
        os.kill(int(os.environ["SERVER"]), signal.SIGCONT)
    assert app.queue("default").size() == 3  # both were taken
"""


def test_a_503_of_the_page_says_retry_only_if_the_job_was_not_sent(project: MakeProject):
    shop = project(jobs=sample_program((ROOT / "docs" / "how-to" / "fastapi.md").read_text()))
    with Server() as frozen:
        assert frozen.process
        shop.python(FROZEN, QD_REDIS_URL=frozen.url, SERVER=str(frozen.process.pid))


# --- chains.md


@pytest.mark.leaves("queues:slow*", "qd:*slow*")  # the sample with a delay
@pytest.mark.usefixtures("clean_redis")
@FAILED
def test_the_chain_that_the_page_cancels_stops_and_sends_its_catch(project: MakeProject):
    shop = project(jobs=sample_program((ROOT / "docs" / "how-to" / "chains.md").read_text()))
    shop.python("import jobs")  # dispatches the chain, and cancels it, as the worker does
    work = shop.work_off("default", "heavy", "slow")
    assert work.matches(r"job\.failed .*job=film\.fetch .*the film was cancelled"), work.tail()
    assert work.matches(r"job\.done .*job=film\.clean_up"), work.tail()
    assert not work.matches(r"job=film\.publish"), work.tail()


# --- recipes.md


PAGE_RECIPES = sample_program((ROOT / "docs" / "how-to" / "recipes.md").read_text())


@pytest.fixture
def recipes_shop(project: MakeProject) -> Project:
    return project(jobs=PAGE_RECIPES)


@pytest.mark.usefixtures("clean_redis")
@FAILED
def test_slow_sql_is_logged_with_its_job(recipes_shop: Project):
    recipes_shop.allowed.add("witness")
    path = recipes_shop.root / "jobs.py"
    path.write_text(path.read_text().replace("SLOW = 0.1", "SLOW = 0.0"))
    recipes_shop.python("from jobs import *; add_up.dispatch()")
    work = recipes_shop.work_off()
    assert work.matches(r"s in reports\.sum: SELECT 40 \+ 2.* job=reports\.sum"), work.tail()
    assert work.matches(r"reports\.sum took .* of CPU"), work.tail()


@pytest.mark.usefixtures("clean_redis")
@pytest.mark.parametrize("flags", [(), ("--concurrency", "2"), ("--log-format", "json")], ids=" ".join)
def test_a_job_logs_the_id_of_the_request_that_dispatched_it(recipes_shop: Project, flags: tuple[str, ...]):
    recipes_shop.python("from jobs import *; pack.dispatch(6); buy(7, 'req-7'); buy(8, 'req-8')")
    work = recipes_shop.work_off(*flags)
    for order in (7, 8):
        assert work.matches(rf"order {order} is packed.*request_id\W+req-{order}\b"), work.tail()
    (without,) = work.matches(r"order 6 is packed.*")
    assert "request_id" not in without[0]


SPANS = """
from opentelemetry import trace

@app.job("see")
def see() -> None:
    here = trace.get_current_span().get_span_context()
    with open("witness", "a") as file:
        print(f"{here.trace_id:032x}", file=file)
"""
SENDS = """
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
from jobs import see, trace

context = SpanContext(int("ab" * 16, 16), int("cd" * 8, 16), is_remote=False, trace_flags=TraceFlags(1))
with trace.use_span(NonRecordingSpan(context)):
    see.dispatch()
see.dispatch()
"""


@pytest.mark.usefixtures("clean_redis")
@FAILED
def test_a_trace_continues_in_the_worker(project: MakeProject, redis: Client):
    shop = project(jobs=PAGE_RECIPES + SPANS)
    witness = Witness(shop)
    shop.python(SENDS)
    first = json.loads(redis.call("LINDEX", "queues:default", 0))
    assert first["traceparent"] == f"00-{'ab' * 16}-{'cd' * 8}-01"
    shop.work_off()
    assert witness.lines == ["ab" * 16, "0" * 32]


# --- samples of all pages


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_samples_of_a_page_run(page: Path, server: Server, tmp_path: Path):
    (tmp_path / "page.py").write_text(sample_program(page.read_text()))
    ours = {key: value for key, value in os.environ.items() if not key.startswith("QD_")}
    done = warm.run(
        [sys.executable, "-c", "import warnings; warnings.simplefilter('error'); import page"],
        cwd=tmp_path,
        env={**ours, "PYTHONPATH": str(ROOT / "daemon"), "QD_REDIS_URL": server.url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.replace(str(tmp_path / "page.py"), str(page))
    assert done.stderr == ""


def test_the_pages_with_samples_are_found():
    assert "jobs.md" in [page.name for page in PAGES]
