"""The pytest plugin as its users see it: a project of their own, a pytest of its own, a real server and `qd work`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import psutil
import pytest

from tests.support.waiting import eventually

SOURCE = Path(__file__).resolve().parents[3] / "daemon"
QUEUE = """
from pathlib import Path
from qd import Qd, current_job

app = Qd()


@app.job("mail.welcome", queue="mail", tries=2)
def welcome(to: str) -> str:
    Path("sent.txt").open("a").write(f"{to} {current_job().attempt}\\n")
    print(f"printed {to}")
    if to == "nobody":
        raise ValueError("nobody is there")
    if to == "chain":
        after.dispatch()
    return to


@app.job("after")
def after() -> None:
    Path("sent.txt").open("a").write("after\\n")


app.schedule(after.bind(), every=0.1)
"""
ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # the plugins of this environment cost each pytest a second
BY_PYTEST = '[tool.pytest.ini_options]\nqd_app = "shop.queue:app"\n'
BY_QD = '[tool.qd]\napp = "shop.queue:app"\n'


class UserProject:
    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "shop").mkdir()
        (root / "shop" / "__init__.py").write_text("")
        (root / "shop" / "queue.py").write_text(QUEUE)
        (root / "tests").mkdir()

    def pyproject(self, text: str) -> None:
        (self.root / "pyproject.toml").write_text(text)

    def test(self, source: str, name: str = "test_shop.py") -> None:
        (self.root / "tests" / name).write_text(textwrap.dedent(source))

    def command(self, *arguments: str) -> list[str]:
        plugins = ["-p", "no:cacheprovider", "-p", "qd.pytest_plugin"]
        return [sys.executable, "-m", "pytest", *plugins, "-q", *arguments]

    @property
    def env(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("QD_", "REDIS_URL", "PYTEST_"))}
        return {**kept, **ALONE, "PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"}

    def pytest(self, *arguments: str, cwd: str = ".") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            cwd=self.root / cwd,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def passes(self, count: int, *arguments: str, cwd: str = ".") -> None:
        done = self.pytest(*arguments, cwd=cwd)
        assert done.returncode == 0, done.stdout + done.stderr
        assert re.search(rf"\b{count} passed", done.stdout), done.stdout

    @property
    def sent(self) -> list[str]:
        path = self.root / "sent.txt"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def shop(tmp_path: Path) -> UserProject:
    return UserProject(tmp_path)


FAKED = """
from shop.queue import after, welcome

def test_it_is_sent(qd_fake):
    welcome.dispatch("a@b.c")
    assert [sent.arguments for sent in qd_fake.dispatched(welcome)] == [{"to": "a@b.c"}]
    assert qd_fake.dispatched(after) == []

def test_each_test_has_its_own(qd_fake, qd_app):
    assert qd_fake.all() == []
    assert qd_app is welcome._sender or qd_app._registry.get("after")
"""


@pytest.mark.parametrize("text", [BY_PYTEST, BY_QD], ids=["by pytest's configuration", "by qd's configuration"])
def test_the_app_is_found_and_faked(shop: UserProject, text: str):
    shop.pyproject(text)
    shop.test(FAKED)
    shop.passes(2)
    assert shop.sent == []


def test_the_app_is_found_from_another_folder_too(shop: UserProject):
    shop.pyproject(BY_QD + '[tool.pytest.ini_options]\npythonpath = "."\n')
    shop.test(FAKED)
    shop.passes(2, cwd="tests")


def test_a_fixture_of_the_users_says_which_app_it_is(shop: UserProject):
    shop.pyproject('[tool.pytest.ini_options]\npythonpath = "."\n')
    shop.test(FAKED)
    shop.test(
        """
        import pytest

        @pytest.fixture
        def qd_app():
            from shop.queue import app
            return app
        """,
        "conftest.py",
    )
    shop.passes(2)


def test_without_an_app_the_fixture_says_what_to_write(shop: UserProject):
    shop.pyproject('[tool.pytest.ini_options]\npythonpath = "."\n')
    shop.test(FAKED)
    done = shop.pytest()
    assert done.returncode == 1
    assert 'ConfigError: no app is named for the fixtures of qd: write qd_app = "shop.queue:app"' in done.stdout


def test_no_module_of_qd_is_loaded_before_a_test_requests_a_fixture(shop: UserProject):
    shop.pyproject("")
    shop.test(
        """
        import sys

        def test_nothing():
            assert sorted(name for name in sys.modules if name.split(".")[0] == "qd") == ["qd", "qd.pytest_plugin"]
            assert not {"msgspec", "hiredis", "click", "rich", "psutil"} & set(sys.modules)
        """
    )
    shop.passes(1)


INLINED = """
from pathlib import Path
from shop.queue import welcome

def test_it_runs(qd_inline):
    welcome.dispatch("chain")
    assert Path("sent.txt").read_text().splitlines() == ["chain 1", "after"]
    assert [sent.name for sent in qd_inline.all()] == ["mail.welcome", "after"]
"""


def test_jobs_run_inline(shop: UserProject):
    shop.pyproject(BY_PYTEST)
    shop.test(INLINED)
    shop.passes(1)


WORKED = """
import pytest
from shop.queue import after, app, welcome

def test_a_real_worker_runs_what_is_sent(qd_worker):
    welcome.dispatch("a@b.c")
    welcome.dispatch("chain")
    qd_worker.run_until_empty()
    assert "printed a@b.c" in qd_worker.output
    assert "job.done" in qd_worker.log
    assert app.queue("mail").size() == app.queue("default").size() == 0

def test_the_next_test_finds_an_empty_server(qd_worker):
    assert qd_worker.log == ""
    welcome.using(delay=3600).dispatch("later")
    qd_worker.run_until_empty()
    assert app.queue("mail").size() == 1
    assert qd_worker.log == ""
    assert qd_worker.failed == []

def test_a_job_that_fails_is_not_an_error_of_the_worker(qd_worker):
    welcome.dispatch("nobody")
    qd_worker.run_until_empty()
    assert "job.failed" in qd_worker.log
    (failed,) = qd_worker.failed
    assert (failed.job, failed.queue, failed.error, failed.reason, failed.attempts) == (
        "mail.welcome", "mail", "ValueError", "nobody is there", 2
    )

def test_a_worker_beside_the_test(qd_worker):
    qd_worker.start("mail")
    welcome.dispatch("beside")
    while "printed beside" not in qd_worker.output:
        pass
    qd_worker.stop()
    assert "master.stopped" in qd_worker.log
    assert "schedule=" not in qd_worker.log  # nothing runs because its time has come

def test_one_that_is_not_stopped_is_stopped_by_the_fixture(qd_worker):
    qd_worker.start()

def test_work_that_does_not_end_fails_the_test(qd_worker):
    after.dispatch()
    with pytest.raises(AssertionError, match="there is still work after 0.1 s"):
        qd_worker.run_until_empty("--rest", "20", seconds=0.1)
"""


def test_a_real_worker_on_a_scratch_server(shop: UserProject):
    shop.pyproject(BY_PYTEST)
    shop.test(WORKED)
    shop.passes(6)
    assert shop.sent[:5] == ["a@b.c 1", "chain 1", "after", "nobody 1", "nobody 2"]
    assert not list(shop.root.glob(".qd"))


def test_the_worker_and_the_test_keep_off_the_real_server(shop: UserProject, redis, server):
    """Whatever the configuration and the environment say of where it is."""
    shop.pyproject(
        BY_QD
        + f'[tool.qd.connections.redis]\nurl = "{server.url}"\n[tool.qd.connections.other]\nurl = "{server.url}"\n'
    )
    shop.test(
        """
        from shop.queue import app, welcome

        def test_all_connections(qd_worker, monkeypatch):
            welcome.dispatch("one")
            welcome.using(connection="other").dispatch("two")
            assert app.queue("mail").size() == app.queue("mail", "other").size() == 1
            qd_worker.run_until_empty()
            assert "printed one" in qd_worker.output and "printed two" in qd_worker.output
        """
    )
    done = subprocess.run(
        shop.command(),
        cwd=shop.root,
        env={**shop.env, "QD_REDIS_URL": server.url, "REDIS_URL": server.url},
        check=False,
    )
    assert done.returncode == 0
    assert redis.text("KEYS", "*") == []


def test_a_pytest_that_is_killed_leaves_no_server_and_no_worker(shop: UserProject, tmp_path: Path):
    shop.pyproject(BY_PYTEST)
    shop.test(
        """
        import time

        def test_it_is_killed(qd_worker, qd_server):
            qd_worker.start()
            open("folder.txt", "w").write(str(qd_server.folder))
            open("ready.txt", "w").close()
            time.sleep(60)
        """
    )
    pytest_run = subprocess.Popen(
        shop.command(), cwd=shop.root, env=shop.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    try:
        eventually((shop.root / "ready.txt").exists, 60, what="a worker while the test runs")
        children = psutil.Process(pytest_run.pid).children(recursive=True)
        assert len(children) >= 6  # two shells, two readers, the server, the master and its own
    finally:
        pytest_run.send_signal(signal.SIGKILL)
        pytest_run.wait(10)
    eventually(lambda: not [each for each in children if each.is_running()], 20, what="nothing left running")
    folder = Path((shop.root / "folder.txt").read_text())
    eventually(lambda: not folder.exists(), 20, what="its folder taken away")


def test_the_plugin_is_found_by_its_entry_point(shop: UserProject, tmp_path_factory):
    """As pip installs it: pytest asks what each distribution brings."""
    points = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    site = tmp_path_factory.mktemp("site")
    installed = site / "qd_worker-0.9.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: qd-worker\nVersion: 0.9.0\n")
    lines = [f"{name} = {module}\n" for name, module in points.items()]
    (installed / "entry_points.txt").write_text("[pytest11]\n" + "".join(lines))
    shop.pyproject(BY_PYTEST)
    shop.test(FAKED)
    env = {key: value for key, value in shop.env.items() if key not in ALONE}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:valkey", "-q"],
        cwd=shop.root,
        env={**env, "PYTHONPATH": os.pathsep.join([str(site), str(SOURCE)])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr


# -- tracebacks

WRONG = """
import unittest
import qd.arguments.signature
from shop.queue import welcome, app

def test_of_a_wrong_argument(qd_fake):
    welcome.dispatch(3)

def test_of_a_job_that_raises(qd_inline):
    welcome.dispatch("nobody")

class Case(unittest.TestCase):
    def test_of_unittest(self):
        with app.fake():
            welcome.dispatch(3)

def test_of_an_error_in_qd(qd_fake, monkeypatch):
    monkeypatch.setattr(qd.arguments.signature.Signature, "bind", lambda *a: 3)
    welcome.dispatch("a")
"""


def test_a_traceback_ends_at_the_users_line(shop: UserProject):
    shop.pyproject(BY_PYTEST)
    shop.test(WRONG)

    def frames(*arguments: str) -> list[str]:
        done = shop.pytest("--tb=short", *arguments)
        return re.findall(r"^(\S+\.py):\d+: ", done.stdout, re.MULTILINE)

    ours = ["tests/test_shop.py"]
    assert frames("-k", "wrong or unittest") == ours * 2
    assert frames("-k", "raises") == [*ours, "shop/queue.py"]
    assert "jobs/job.py" in str(frames("-k", "wrong", "--full-trace"))
    assert "jobs/job.py" in str(frames("-k", "error_in_qd"))


# -- the page

PAGE = (SOURCE.parent / "docs" / "how-to" / "testing.md").read_text()
OF_THE_PAGE = """
import smtplib
from qd import Qd

app = Qd()


class Order:
    done: list[int] = []

    @classmethod
    def shipped(cls) -> list[int]:
        return cls.done


@app.job("mail.welcome", queue="mail", tries=3)
def welcome(to: str, subject: str = "Hello") -> None:
    if to.startswith("nobody"):
        raise smtplib.SMTPRecipientsRefused({})


def sign_up(to: str) -> None:
    welcome.dispatch(to)
    welcome.using(delay=259200).dispatch(to, subject="Still there?")


@app.job("orders.import")
def load(orders: list[int]) -> None:
    for order in orders:
        ship.dispatch(order)


@app.job("orders.ship")
def ship(order: int) -> None:
    Order.done.append(order)


@app.job("orders.pay", tries=3, backoff=[60, 300])
def pay(order: int) -> None:
    raise ConnectionError
"""


def test_the_tests_of_the_page_pass_in_a_project_as_it_supposes_one(shop: UserProject):
    samples = re.findall(r"^```py\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    (settings,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    (shop.root / "shop" / "queue.py").write_text(OF_THE_PAGE)
    shop.pyproject(settings)
    shop.test("from shop.queue import Order, load, pay, sign_up, welcome\n\n" + "\n".join(samples))
    shop.passes(4)
