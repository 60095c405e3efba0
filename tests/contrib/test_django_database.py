"""Jobs in Django's own database (`QD = {"url": "django://default"}`): a job is part of the transaction that sends it."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from qd.contrib.django.database import url_of
from tests.contrib.conftest import BECOME, FrameworkProject
from tests.contrib.test_django import MANAGE, manage
from tests.support.servers.mariadb import MariaDb
from tests.support.servers.postgres import Postgres
from tests.support.witness import Witness

KINDS = {"postgres": "postgresql", "mariadb": "mysql", "sqlite": "sqlite3"}
SETTINGS = """
import pymysql
pymysql.install_as_MySQLdb()
SECRET_KEY = "not one"
USE_TZ = True
INSTALLED_APPS = ["qd.contrib.django", "shop"]
DATABASES = {"default": <database>}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
QD = {"url": "django://default"}
"""
MODELS = """
from django.db import models

class Order(models.Model):
    email = models.CharField(max_length=100)
"""
JOBS = '''
import threading
from django.db import connection, transaction
from noted import note
from shop.models import Order
from shop.qd import app

@app.job("pay")
def pay(order_id: int) -> None:
    note("paid", order_id, Order.objects.get(pk=order_id).email)

@app.job("mark")
def mark() -> None:
    note("marked")

class Stop(Exception): ...

def elsewhere(act):
    """Call it in another thread, which is in no transaction."""
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()

def seen():
    """Jobs that another connection sees."""
    found = []
    elsewhere(lambda: found.append(app.queue("default").size()))
    return found[0]
'''


def settings_of(url: str) -> dict[str, Any]:
    """The url of a test's database as an entry of DATABASES."""
    at = make_url(url)
    engine = {"postgresql": "postgresql", "mysql": "mysql", "sqlite": "sqlite3"}[at.get_backend_name()]
    found: dict[str, Any] = {"ENGINE": f"django.db.backends.{engine}", "NAME": at.database}
    if engine == "sqlite3":
        return found
    return found | {"USER": at.username, "HOST": at.host, "PORT": at.port}


@pytest.fixture
def witness(shop: FrameworkProject) -> Witness:
    return Witness(shop)


@pytest.fixture(params=list(KINDS))
def url(request: pytest.FixtureRequest, tmp_path: Path):
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/framed/shop.sqlite3"
        return
    server: Postgres | MariaDb = request.getfixturevalue(request.param)
    made = server.fresh_database()
    yield made
    server.drop(made)


@pytest.fixture
def shop(framed: Callable[..., FrameworkProject], url: str) -> FrameworkProject:
    found = framed(
        manage=MANAGE,
        shop____init__="",
        shop__settings=SETTINGS.replace("<database>", repr(settings_of(url))),
        shop__models=MODELS,
        shop__qd="import qd.contrib.django\n\napp = qd.contrib.django.app()\n",
        shop__jobs=JOBS,
    )
    found.allowed |= {"shop.sqlite3", "shop.sqlite3-wal", "shop.sqlite3-shm"}
    for done in (manage(found, "migrate", "--run-syncdb", "-v", "0"), found.qd("migrate", **BECOME)):
        assert done.returncode == 0, done.stderr
    return found


def django(shop: FrameworkProject, code: str) -> None:
    """Run `code` in a new process with Django set up."""
    shop.python(
        "import django\ndjango.setup()\nfrom shop.jobs import *\n" + code, DJANGO_SETTINGS_MODULE="shop.settings"
    )


TOGETHER = """
with transaction.atomic():
    order = Order.objects.create(email="a@b.c")
    pay.dispatch(order.pk)
    if connection.vendor != "sqlite":  # there a reader waits for the writer, but for the WAL that qd sets
        assert seen() == 0
assert seen() == 1, seen()

try:
    with transaction.atomic():
        Order.objects.create(email="gone")
        try:
            pay.bind(0).call(timeout=1)
        except TypeError as error:
            assert "is part of the open transaction" in str(error), error
        else:
            raise SystemExit("called")
        pay.dispatch(0)
        app.dispatch(pay.bind(1), pay.bind(2))
        app.chain(pay.bind(1), pay.bind(2)).dispatch()
        app.batch(pay.bind(1), pay.bind(2), then=pay.bind(3)).dispatch()
        pay.using(key="order:1", delay=60).dispatch(3)
        pay.using(unique="order:{order_id}").dispatch(4)
        raise Stop
except Stop:
    pass
assert seen() == 1, seen()
pay.using(unique="order:{order_id}").dispatch(4)  # the rollback has freed the lock
assert seen() == 2, seen()

with transaction.atomic():
    try:
        with transaction.atomic():
            pay.dispatch(0)
            raise Stop
    except Stop:
        pass
    with transaction.atomic():
        pay.dispatch(5)
    pay.using(after_commit=True).dispatch(6)
    pay.using(key="order:7").dispatch(7)
    assert app.keyed(pay, "order:7").cancel()  # in the transaction, too; its worker skips it
assert seen() == 5, seen()

pay.dispatch(7)
assert seen() == 6, seen()
transaction.set_autocommit(False)
pay.dispatch(8)
transaction.rollback()
assert seen() == 6, seen()
pay.dispatch(8)
transaction.commit()
assert seen() == 7, seen()
transaction.set_autocommit(True)
connection.close()
with transaction.atomic():
    pay.dispatch(9)
assert seen() == 8, seen()
app.queue("default").clear()
"""


def test_a_job_is_part_of_the_transaction_that_sends_it(shop: FrameworkProject):
    django(shop, TOGETHER)


OWN_APP = """
from qd import Qd
from qd.errors import ConfigError, ServerBusy
from django.db import connections

own = Qd(app.settings.connection(None).url)

@own.job("own")
def own_job(n: int) -> None: ...

def refused(about, enter):
    try:
        with enter:
            pass
    except ConfigError as error:
        assert about in str(error) and "\\n" not in str(error), error
    else:
        raise SystemExit(f"accepted: {about}")

for given in (connection, connections["default"]):
    before = seen()
    with transaction.atomic():
        Order.objects.create(email="a@b.c")
        with own.transaction(given):
            own_job.dispatch(1)
            own_job.using(after_commit=True).dispatch(2)  # part of the transaction, too
    assert seen() == before + 2, seen()
    try:
        with transaction.atomic():
            with own.transaction(given):
                own_job.dispatch(3)
            raise Stop
    except Stop:
        pass
    assert seen() == before + 2, seen()

refused("no transaction is open on Django's connection 'default'", own.transaction(connection))
with transaction.atomic():
    refused("nor Django's connection", own.transaction(connection.connection))
other = Qd("sqlite:///other.sqlite3")
with transaction.atomic():
    refused("a transaction covers one database only", other.transaction(connection))
with transaction.atomic():
    refused("connection 'redis' is not a database", Qd("redis://127.0.0.1:1/0").transaction(connection))

before = seen()
with connection.cursor() as cursor:
    cursor.execute("ALTER TABLE jobs RENAME TO away")
try:
    with transaction.atomic():
        Order.objects.create(email="lost")
        try:
            pay.dispatch(1)
        except ServerBusy:
            pass  # swallowed: Django must not commit the order without its job
except Exception as error:
    print(type(error))
with connection.cursor() as cursor:
    cursor.execute("ALTER TABLE away RENAME TO jobs")
assert not Order.objects.filter(email="lost").exists()
app.queue("default").clear()
"""


def test_app_transaction_takes_djangos_connection_for_any_app(shop: FrameworkProject):
    shop.allowed |= {"other.sqlite3", "other.sqlite3-wal", "other.sqlite3-shm"}
    django(shop, OWN_APP)


def test_a_worker_sees_the_job_after_the_commit(shop: FrameworkProject, witness: Witness):
    work = shop.work("-w", "1", **BECOME)
    work.wait_line("ready")
    django(
        shop,
        """
import time
from pathlib import Path
notes = Path("witness")
with transaction.atomic():
    order = Order.objects.create(email="a@b.c")
    pay.dispatch(order.pk)
    if connection.vendor != "sqlite":  # it has one writer at a time
        elsewhere(mark.dispatch)
        while not notes.exists() or "marked" not in notes.read_text():
            time.sleep(0.02)
    assert not notes.exists() or "paid" not in notes.read_text()
""",
    )
    witness.wait("paid 1 a@b.c")
    work.stop()


TESTS = """
import threading
from django.db import connection
from django.test import TestCase, TransactionTestCase
from shop.jobs import app, pay

class Committed(TransactionTestCase):
    def test_first(self):
        queue = app.queue("default")
        self.assertEqual(queue.size(), 0)
        pay.using(unique="order:{order_id}").dispatch(1)
        self.assertEqual(queue.size(), 1)
        self.assertIn(connection.settings_dict["NAME"], app.settings.connection(None).url)
        self.assertTrue(app.lock("kept", ttl=3600).acquire())
        thread = threading.Thread(target=lambda: app.queue("mail").size())
        thread.start()
        thread.join()

    test_second = test_first

class CommittedToo(Committed): ...

class RolledBack(TestCase):
    def test_first(self):
        self.assertEqual(app.queue("default").size(), 0)
        pay.dispatch(1)
        self.assertEqual(app.queue("default").size(), 1)

    test_second = test_first
"""
IN_A_FILE = 'DATABASES["default"]["TEST"] = {"NAME": "test.sqlite3"}\n'


@pytest.mark.parametrize("words", [(), ("--parallel", "2")], ids=["one process", "parallel"])
def test_djangos_tests_find_empty_tables_and_drop_the_database(
    shop: FrameworkProject, url: str, words: tuple[str, ...]
):
    """Its own runner, as a user calls it; the tables of the project itself stay as they are."""
    if url.startswith("mysql"):
        words = ()  # Django clones its databases with mysqldump, which need not be here
    if url.startswith("sqlite"):
        path = shop.root / "shop" / "settings.py"
        path.write_text(path.read_text() + IN_A_FILE)
    django(shop, "mark.dispatch()")
    shop.write(shop__tests=TESTS)
    done = manage(shop, "test", "shop.tests", "--noinput", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Ran 6 tests" in done.stderr
    django(shop, "assert seen() == 1\napp.queue('default').clear()")


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_test_database_in_memory_is_refused_with_the_fix(shop: FrameworkProject):
    shop.write(shop__tests=TESTS)
    done = manage(shop, "test", "shop.tests", "--noinput")
    assert done.returncode == 1
    assert "only Django's own connection sees it: set DATABASES['default']['TEST'] = {'NAME': " in done.stderr


NOWHERE = "redis://nowhere.invalid:1/0"
# What the fixture django_db_setup of pytest-django does for tests that use `default` only.
CONFTEST = """
import django, pytest
from django.test.utils import setup_databases, setup_test_environment, teardown_databases

@pytest.fixture(scope="session")
def databases():
    django.setup()
    setup_test_environment()
    found = setup_databases(verbosity=0, interactive=False, aliases={"default"})
    yield
    teardown_databases(found, verbosity=0)
"""
WORKED = """
import django
django.setup()
from django.db import transaction
from shop.jobs import app, pay, second
from shop.models import Order

def test_the_worker_has_the_rows_of_the_test(databases, qd_worker):
    with transaction.atomic():  # which a job on another server does not join
        pay.dispatch(Order.objects.create(email="test").pk)
    assert app.queue("default").size() == 1
    qd_worker.run_until_empty()
    assert qd_worker.failed == []

def test_the_worker_cannot_open_a_real_database(databases, qd_worker):
    second.dispatch()
    qd_worker.run_until_empty()
    (failed,) = qd_worker.failed
    assert "the test has set up no test database for DATABASES['second']: name it in" in failed.reason
"""
SECOND = """
@app.job("second")
def second() -> None:
    note("second", Order.objects.using("second").count())
"""
OPEN = """
import django, pytest
django.setup()
from django.db import transaction

@pytest.fixture
def opened(databases):
    with transaction.atomic():
        yield

def test_it(opened, qd_worker): ...
"""


def pytest_in(shop: FrameworkProject, tests: str) -> subprocess.CompletedProcess[str]:
    shop.write(conftest=CONFTEST, test_shop=tests)
    options = ("-p", "no:cacheprovider", "-p", "qd.pytest_plugin", "-o", "qd_app=shop.qd:app", "-o", "pythonpath=.")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", ".", *options, "test_shop.py"],
        cwd=shop.root,
        env=shop.env(DJANGO_SETTINGS_MODULE="shop.settings", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", PYTEST_ADDOPTS=""),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def add(shop: FrameworkProject, name: str, text: str) -> None:
    with (shop.root / "shop" / name).open("a") as file:
        file.write(text)


@pytest.mark.parametrize(
    ("url", "stored"), [*((kind, "django://default") for kind in KINDS), ("sqlite", NOWHERE)], indirect=["url"]
)
def test_the_worker_of_the_fixture_uses_the_test_databases_only(
    shop: FrameworkProject, url: str, stored: str, witness: Witness
):
    """Order 1 of the settings' database has another email, and the jobs of its table stay where they are."""
    add(shop, "jobs.py", SECOND)
    django(shop, "Order.objects.create(email='real')\nmark.dispatch()")
    more = f"DATABASES['second'] = {{**DATABASES['default']}}\nQD = {{'url': {stored!r}}}\n"
    add(shop, "settings.py", (IN_A_FILE if url.startswith("sqlite") else "") + more)
    done = pytest_in(shop, WORKED)
    assert done.returncode == 0, done.stdout + done.stderr
    assert witness.lines == ["paid 1 test"]
    add(shop, "settings.py", 'QD = {"url": "django://default"}\n')
    django(shop, "assert seen() == 1 == Order.objects.count()\napp.queue('default').clear()")


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_the_fixture_refuses_databases_that_its_worker_cannot_share(shop: FrameworkProject):
    add(shop, "jobs.py", SECOND)
    add(shop, "settings.py", f"QD = {{'url': {NOWHERE!r}}}\n")
    done = pytest_in(shop, WORKED)
    assert "ConfigError: DATABASES['default'] is in memory in tests" in done.stdout, done.stdout
    add(shop, "settings.py", IN_A_FILE)
    done = pytest_in(shop, OPEN)
    fact = "a transaction is open on Django's connection 'default': the worker cannot see its rows; mark the test with"
    assert f"ConfigError: {fact}" in done.stdout, done.stdout


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_flush_outside_of_tests_keeps_the_jobs(shop: FrameworkProject):
    django(shop, "mark.dispatch()")
    assert manage(shop, "flush", "--noinput").returncode == 0
    django(shop, "assert seen() == 1\napp.queue('default').clear()")


POINTS = {"saved": (0, 0), "sent": (0, 0), "committed": (1, 1)}


@pytest.mark.fault(
    "70",
    "kill -9 of a Django process that saves a row and sends its job in one transaction",
    "both exist, or neither does",
)
@pytest.mark.parametrize("point", list(POINTS))
def test_a_kill_leaves_both_the_row_and_its_job_or_neither(shop: FrameworkProject, point: str):
    """Killed after the row is saved, after the job is sent, and after the commit."""
    killed = shop.start(
        "-c",
        f"""
import os, signal, django
django.setup()
from shop.jobs import *

def reach(name):
    if name == {point!r}:
        os.kill(os.getpid(), signal.SIGKILL)

with transaction.atomic():
    order = Order.objects.create(email="a@b.c")
    reach("saved")
    pay.dispatch(order.pk)
    reach("sent")
reach("committed")
""",
        DJANGO_SETTINGS_MODULE="shop.settings",
    )
    assert killed.process.wait(30) == -signal.SIGKILL
    django(
        shop,
        f"found = Order.objects.count(), seen()\nassert found == {POINTS[point]}, found\napp.queue('default').clear()",
    )


REFUSED = {
    "oracle": ({"ENGINE": "django.db.backends.oracle", "NAME": "x"}, "ENGINE 'django.db.backends.oracle'"),
    "memory": ({"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}, "name a file"),
    "role": (
        {"ENGINE": "django.db.backends.postgresql", "NAME": "x", "OPTIONS": {"assume_role": "y"}},
        "'assume_role'",
    ),
}


@pytest.mark.parametrize("case", list(REFUSED))
def test_a_database_that_qd_cannot_use_is_rejected_by_name(framed: Callable[..., FrameworkProject], case: str):
    database, about = REFUSED[case]
    shop = framed(manage=MANAGE, shop____init__="", shop__settings=SETTINGS.replace("<database>", repr(database)))
    done = manage(shop, "qd", "status")
    assert done.returncode == 78, done.stderr
    assert about in done.stderr
    assert "DATABASES['default']" in done.stderr
    assert done.stderr.count("\n") == 1


WITHOUT = """
import os, sys

class Without:
    \"\"\"A finder of sys.meta_path that does not find one library.\"\"\"
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        hidden = name.partition(".")[0] == os.environ.get("HIDDEN")
        return None if hidden else self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = map(Without, sys.meta_path)
"""


@pytest.mark.parametrize(
    ("library", "url", "installs"),
    [
        ("lupa", "sqlite:///jobs.sqlite3", "'lupa>="),
        ("psycopg", "postgresql://127.0.0.1:1/x", "'psycopg[binary]>="),
        ("pymysql", "mysql://127.0.0.1:1/x", "'PyMySQL>="),
    ],
)
def test_manage_check_names_the_command_that_installs_a_missing_library(
    framed: Callable[..., FrameworkProject], library: str, url: str, installs: str
):
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.sqlite3"}
    settings = SETTINGS.replace("import pymysql", "").replace("pymysql.install_as_MySQLdb()", "")
    settings = settings.replace("<database>", repr(database)).replace("django://default", url)
    shop = framed(manage=WITHOUT + MANAGE, shop____init__="", shop__settings=settings)
    assert manage(shop, "check").returncode == 0
    check = [sys.executable, "manage.py", "check"]  # a new interpreter: a fork has the library already
    done = subprocess.run(
        check, cwd=shop.root, env=shop.env(HIDDEN=library), capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 1
    assert f"(qd.E001) the library '{library}' is not installed: pip install " in done.stderr
    assert installs in done.stderr


def test_without_qd_in_the_settings_the_error_names_djangos_database(framed: Callable[..., FrameworkProject]):
    settings = SETTINGS.replace("<database>", repr(REFUSED["role"][0]))
    shop = framed(manage=MANAGE, shop____init__="", shop__settings=settings.replace("QD = ", "OTHER = "))
    done = manage(shop, "check")
    assert done.returncode == 1
    assert "has no url: set QD_REDIS_URL, write QD = {" in done.stderr
    assert 'QD = {"url": "django://default"} into the settings of Django' in done.stderr


@pytest.mark.parametrize(
    ("url", "about"),
    [
        ("djnago://default", "unknown kind of url 'djnago:' (did you mean 'django'?)"),
        ("other://x", "and django in Django's settings)"),
    ],
)
def test_django_is_among_the_known_kinds_of_urls(framed: Callable[..., FrameworkProject], url: str, about: str):
    settings = SETTINGS.replace("<database>", repr(REFUSED["role"][0])).replace("django://default", url)
    done = manage(framed(manage=MANAGE, shop____init__="", shop__settings=settings), "qd", "status")
    assert done.returncode == 78
    assert about in done.stderr


def test_a_url_of_django_outside_of_its_settings_is_refused_with_the_place(away: FrameworkProject):
    done = manage(away, "qd", "status", QD_REDIS_URL="django://default")
    assert done.returncode == 78
    assert "a url of kind 'django:' is for Django's settings only" in done.stderr


def test_a_table_of_another_program_is_refused_with_the_fix(shop: FrameworkProject, url: str):
    """The project has a table `jobs` of its own. One database is enough for the slow `qd doctor`."""
    django(
        shop,
        """
with connection.cursor() as cursor:
    cursor.execute("DROP TABLE jobs")
    cursor.execute("CREATE TABLE jobs (id integer PRIMARY KEY, title varchar(100))")
""",
    )
    commands = {
        "migrate": 1,
        "migrate --dry-run": 1,
        "work": 78,
        **({"doctor": 78} if url.startswith("sqlite") else {}),
    }
    for command, code in commands.items():
        done = manage(shop, "qd", *command.split())
        assert done.returncode == code, done.stderr
        said = done.stdout + done.stderr
        assert "is not qd's (" in said
        assert "[connections.database] in qd.toml, and run `qd migrate`" in said
        assert "GRANT" not in said
    (shop.root / "qd.toml").write_text('[connections.database]\ntable = "qd_jobs"\n')
    for words in (["migrate"], ["dispatch", "mark"]):
        assert manage(shop, "qd", *words).returncode == 0


def test_the_project_may_have_a_table_of_failed_jobs(shop: FrameworkProject):
    model = OWN_TABLE.replace("class Job", "class FailedJob").replace('"jobs"', '"failed_jobs"')
    (shop.root / "shop" / "models.py").write_text(MODELS + model)
    done = manage(shop, "migrate", "--run-syncdb", "-v", "0")  # after `qd migrate`
    assert done.returncode == 0, done.stderr
    django(shop, "from shop.models import FailedJob\nFailedJob.objects.create(title='one')")


def test_doctor_uses_the_url_of_django_and_shows_the_error_if_the_jobs_do_not_import(shop: FrameworkProject, url: str):
    """`qd status` uses the url too: only the jobs do not import. One database is enough for the slow `qd doctor`."""
    if not url.startswith("sqlite"):
        return
    with (shop.root / "shop" / "jobs.py").open("a") as file:
        file.write("def broken(:\n")
    assert manage(shop, "qd", "status").returncode == 0
    done = manage(shop, "qd", "doctor")
    failed = [line for line in done.stdout.splitlines() if line.startswith("fail")]
    command = "manage.py shell -c 'import shop.jobs'"
    assert len(failed) == 1, done.stdout
    assert f"`python {command}` shows the same error" in failed[0]
    assert "ok    database.tables:" in done.stdout
    assert "SyntaxError" in manage(shop, *shlex.split(command)[1:]).stderr


OWN_TABLE = """
class Job(models.Model):
    title = models.CharField(max_length=100)

    class Meta:
        db_table = "jobs"
"""


def test_the_system_check_names_a_model_with_the_table_of_jobs(away: FrameworkProject):
    assert manage(away, "check").returncode == 0
    models = away.root / "shop" / "models.py"
    models.write_text(MODELS + OWN_TABLE)
    done = manage(away, "check")
    assert done.returncode == 1
    assert "(qd.E001) shop.Job has the table 'jobs', in which qd stores jobs" in done.stderr
    (away.root / "qd.toml").write_text('[connections.database]\ntable = "qd_jobs"\n')
    assert manage(away, "check").returncode == 0


def test_the_system_check_warns_of_a_url_of_djangos_database(away: FrameworkProject):
    path = away.root / "shop" / "settings.py"
    text = path.read_text()
    for url, same in {"postgresql://a@127.0.0.1:1/shop": True, "postgresql://127.0.0.1:1/other": False}.items():
        path.write_text(text.replace("django://default", url))
        done = manage(away, "check")
        assert done.returncode == 0, done.stderr
        assert ("(qd.W002) the url of the jobs is that of DATABASES['default']" in done.stderr) == same, done.stderr
        assert ('QD = {"url": "django://default"}' in done.stderr) == same


IN_A_TEST_CASE = """
from django.core.management import call_command
from django.test import TestCase
from shop.jobs import app, pay

class Worked(TestCase):
    def test_work(self):
        pay.dispatch(1)
        call_command("qd", "work", "--stop-when-empty")
"""


@pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)
def test_a_worker_in_an_open_transaction_is_refused_with_the_fix(shop: FrameworkProject, url: str):
    if url.startswith("sqlite"):
        path = shop.root / "shop" / "settings.py"
        path.write_text(path.read_text() + IN_A_FILE)
    shop.write(shop__tests=IN_A_TEST_CASE)
    done = manage(shop, "test", "shop.tests", "--noinput")
    assert done.returncode == 1
    assert "CommandError: a transaction is open on Django's connection 'default': the worker cannot see" in done.stderr
    assert "use TransactionTestCase" in done.stderr
    assert "app.imported" not in done.stdout + done.stderr


def test_an_unknown_alias_is_rejected_with_the_known_ones(framed: Callable[..., FrameworkProject]):
    settings = SETTINGS.replace("django://default", "django://defualt").replace("<database>", repr(REFUSED["role"][0]))
    done = manage(framed(manage=MANAGE, shop____init__="", shop__settings=settings), "qd", "status")
    assert done.returncode == 78
    assert "DATABASES has no 'defualt' (did you mean 'default'?)" in done.stderr


AWAY: dict[str, Any] = {
    "ENGINE": "django.db.backends.postgresql",
    "NAME": "shop",
    "HOST": "127.0.0.1",
    "PORT": 1,
    "USER": "a b",
    "PASSWORD": "p@:/w",
}


@pytest.fixture
def away(framed: Callable[..., FrameworkProject]) -> FrameworkProject:
    """A project whose database does not answer."""
    return framed(manage=MANAGE, shop____init__="", shop__settings=SETTINGS.replace("<database>", repr(AWAY)))


def test_manage_check_reports_mistakes_and_contacts_no_server(away: FrameworkProject):
    done = manage(away, "check")
    assert (done.returncode, done.stdout) == (0, "System check identified no issues (0 silenced).\n"), done.stderr
    done = manage(away, "check", QD_TIMOUT="3")
    assert done.returncode == 0
    assert "(qd.W001) QD_TIMOUT in the environment is not used by qd (did you mean 'QD_TIMEOUT'?)" in done.stderr
    (away.root / "qd.toml").write_text("[worker]\ntries = -1\n")
    done = manage(away, "check")
    assert done.returncode == 1
    assert "(qd.E001)" in done.stderr
    assert "qd.toml:2" in done.stderr
    (away.root / "qd.toml").write_text("")
    path = away.root / "shop" / "settings.py"
    path.write_text(path.read_text().replace("QD = {", "QD = {'pools': 2, "))
    assert "(qd.E001) unknown key 'pools' in QD of the Django settings" in manage(away, "check").stderr


def test_the_password_of_the_database_is_not_shown(away: FrameworkProject):
    found = manage(away, "qd", "config", "show")
    assert "p@" not in found.stdout + found.stderr
    assert "p%40" not in found.stdout + found.stderr
    assert "postgresql://a%20b:***@127.0.0.1:1/shop" in found.stdout


URLS: dict[str, tuple[dict[str, Any], str]] = {
    "plain": ({}, "postgresql://127.0.0.1:1/shop"),
    "login": ({"USER": "a b", "PASSWORD": "p@:/w"}, "postgresql://a%20b:p%40%3A%2Fw@127.0.0.1:1/shop"),
    "socket": ({"HOST": "/run/pg", "PORT": ""}, "postgresql:///shop?host=%2Frun%2Fpg"),
    "several hosts": ({"HOST": "a,b", "PORT": "1,2"}, "postgresql:///shop?host=a%2Cb&port=1%2C2"),
    "options": (
        {"OPTIONS": {"sslmode": "require", "pool": True, "isolation_level": 3}},
        "postgresql://127.0.0.1:1/shop?sslmode=require",
    ),
    "service": ({"NAME": "", "HOST": "", "PORT": "", "OPTIONS": {"service": "shop"}}, "postgresql:///?service=shop"),
    "postgis": ({"ENGINE": "django.contrib.gis.db.backends.postgis"}, "postgresql://127.0.0.1:1/shop"),
    "mysql": ({"ENGINE": "django.db.backends.mysql", "HOST": "", "PORT": ""}, "mysql://localhost/shop"),
    "mysql socket": (
        {"ENGINE": "django.db.backends.mysql", "HOST": "/run/my.sock", "PORT": ""},
        "mysql://localhost/shop?unix_socket=%2Frun%2Fmy.sock",
    ),
    "mysql tls": (
        {"ENGINE": "django.db.backends.mysql", "OPTIONS": {"ssl": {"ca": "/ca.pem"}, "init_command": "SET x = 1"}},
        "mysql://127.0.0.1:1/shop?ssl_ca=%2Fca.pem",
    ),
    "sqlite": ({"ENGINE": "django.db.backends.sqlite3", "NAME": Path("/srv/a.db")}, "sqlite:////srv/a.db"),
}


@pytest.mark.parametrize("case", list(URLS))
def test_djangos_settings_become_the_url_of_the_driver(case: str):
    more, url = URLS[case]
    found = {**AWAY, "USER": "", "PASSWORD": "", **more}
    assert url_of("default", {"default": found}) == url
