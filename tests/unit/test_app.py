"""The Qd class: lazy settings, listeners, connections, and the cost of importing it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import textwrap
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import qd
from qd import Call, DeclarationError, Qd
from qd.config.settings import ConnectionSettings
from qd.drivers.connections import Connections, open_queue
from qd.errors import ConfigError, UnknownJob, UnknownParameters, WrongType
from qd.events import Event, JobFailed, JobProcessing, Listeners, Looping, WorkerStopping
from tests.support.fakes import FakeQd, FakeQueue, settings

SOURCE = Path(qd.__file__).parents[1]


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """An empty current folder, and no variables of qd in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in ("QD_REDIS_URL", "REDIS_URL", "QD_CONFIG", "QD_APP", "QD_CONNECTION", "QD_IMPORTS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


# -- lazy


def test_an_app_can_be_created_without_configuration(elsewhere):
    app = Qd(imports=["no.such.module"])

    @app.job("mail.welcome")
    def welcome(to: str) -> str:
        return to

    assert welcome("you") == "you"
    assert welcome.run("you") == "you"
    with pytest.raises(ConfigError, match=r"QD_REDIS_URL.*embedded:"):
        welcome.dispatch("you")


def test_a_broken_file_is_read_when_it_is_needed(elsewhere):
    (elsewhere / "qd.toml").write_text("[qd\n")
    app = Qd()
    with pytest.raises(ConfigError, match=r"qd\.toml"):
        _ = app.settings


def test_the_url_in_code_overrides_the_file_and_not_the_environment(elsewhere, monkeypatch):
    (elsewhere / "qd.toml").write_text('[connections.redis]\nurl = "redis://file/0"\n')
    assert Qd().settings.connection().url == "redis://file/0"
    assert Qd("redis://code/0").settings.connection().url == "redis://code/0"
    monkeypatch.setenv("QD_REDIS_URL", "redis://environment/0")
    assert Qd("redis://code/0").settings.connection().url == "redis://environment/0"


def test_settings_are_read_once(elsewhere):
    app = Qd("redis://code/0")
    assert app.settings is app.settings


def test_load_imports_the_modules_that_declare_jobs(elsewhere):
    (elsewhere / "qd.toml").write_text('[connections.redis]\nurl = "redis://file/0"\n')
    (elsewhere / "loaded_by_test_app.py").write_text("import builtins\nbuiltins.loaded_by_test_app = 1\n")
    app, path = Qd(imports=["loaded_by_test_app"]), list(sys.path)
    try:
        app._load()
        assert sys.modules.pop("loaded_by_test_app")
        assert sys.path[0] == str(elsewhere)
    finally:
        sys.path[:] = path


def test_load_raises_the_error_of_an_import(elsewhere):
    app, path = Qd("redis://code/0", imports=["no_such_module_here"]), list(sys.path)
    try:
        with pytest.raises(ModuleNotFoundError, match="no_such_module_here"):
            app._load()
    finally:
        sys.path[:] = path


# -- calls by name


def test_an_unknown_name_suggests_a_similar_one(app: FakeQd):
    app.job("mail.welcome")(lambda_free)
    with pytest.raises(UnknownJob, match=r"'mail\.wellcome'.*did you mean 'mail\.welcome'"):
        app.call("mail.wellcome", b"{}")


def test_a_call_by_name_is_checked_before_it_is_sent(app: FakeQd):
    app.job("number")(number_of)
    assert isinstance(app.call("number", b'{"number":1}'), Call)
    with pytest.raises(UnknownParameters):
        app.call("number", b"{}")
    with pytest.raises(WrongType):
        app.call("number", b'{"number":"x"}')


def lambda_free() -> None: ...


def number_of(number: int) -> int:
    return number


# -- listeners


def test_listeners_are_called_in_order(app: FakeQd):
    heard: list[str] = []
    app.on(WorkerStopping)(lambda event: heard.append(f"first {event.reason}"))
    app.on(WorkerStopping)(lambda event: heard.append(f"second {event.code}"))
    app.on(JobFailed)(lambda event: heard.append("never"))
    assert app._listeners.emit(WorkerStopping("memory", 12))
    assert heard == ["first memory", "second 12"]


def test_has_reports_whether_an_event_has_listeners():
    listeners = Listeners()
    assert not listeners.has(JobFailed)
    listeners.add(JobFailed, print)
    assert listeners.has(JobFailed)
    assert not listeners.has(JobProcessing)
    listeners.add(Event, print)
    assert listeners.has(JobProcessing)


def test_on_returns_the_function(app: FakeQd):
    def listener(event: JobFailed) -> None: ...

    assert app.on(JobFailed)(listener) is listener


def test_a_looping_listener_that_returns_false_is_reported(app: FakeQd):
    heard: list[int] = []
    app.on(Looping)(lambda event: False)
    app.on(Looping)(lambda event: heard.append(1))
    assert app._listeners.emit(Looping("redis", ("default",))) is False
    assert heard == [1]


def test_a_looping_listener_that_returns_none_consents(app: FakeQd):
    app.on(Looping)(lambda event: None)
    assert app._listeners.emit(Looping("redis", ("default",))) is True


def test_events_are_frozen():
    event: Any = WorkerStopping("memory", 12)
    with pytest.raises(AttributeError):
        event.code = 0
    assert event == WorkerStopping("memory", 12)


def test_an_async_listener_is_refused(app: FakeQd):
    async def listener(event: JobFailed) -> None: ...

    with pytest.raises(DeclarationError, match="async"):
        app.on(JobFailed)(listener)  # type: ignore[arg-type]


def test_only_events_can_have_listeners(app: FakeQd):
    with pytest.raises(DeclarationError, match="not an event"):
        app.on(ValueError)(print)  # type: ignore[arg-type]


# -- connections


def test_each_thread_keeps_its_own_connection(app: FakeQd):
    job = app.job("number")(number_of)

    def twice() -> None:
        job.dispatch(1)
        job.dispatch(2)

    twice()
    thread = threading.Thread(target=twice)
    thread.start()
    thread.join()
    assert [queue.trips for queue in app.opened] == [2, 2]
    assert len({queue.made_by for queue in app.opened}) == 2


def test_the_connection_of_a_thread_that_ended_is_closed(app: FakeQd):
    job = app.job("number")(number_of)
    job.dispatch(1)
    thread = threading.Thread(target=job.dispatch, args=(1,))
    thread.start()
    thread.join()
    assert [queue.closed for queue in app.opened] == [False, True]


def test_another_process_has_its_own_connection(app: FakeQd, monkeypatch):
    job = app.job("number")(number_of)
    job.dispatch(1)
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    job.dispatch(2)
    job.dispatch(3)
    assert [queue.trips for queue in app.opened] == [1, 2]


def test_close_closes_and_the_next_use_opens_anew(app: FakeQd):
    job = app.job("number")(number_of)
    job.dispatch(1)
    app.connections.close()
    job.dispatch(2)
    assert [queue.closed for queue in app.opened] == [True, False]
    Connections(settings, open_queue).close()


def test_opening_does_not_connect():
    queue: Any = open_queue(settings(), None, token="T", slot=3, title="qd")
    assert queue.settings.url == "redis://nowhere.invalid"
    queue.close()


def test_an_unknown_driver_is_named():
    odd = settings(sqs=ConnectionSettings(name="sqs", driver="sqss", url="x://"))
    with pytest.raises(ConfigError, match="'sqss'"):
        open_queue(odd, "sqs")


def test_an_embedded_url_starts_the_projects_server(monkeypatch, tmp_path):
    from qd.drivers import embedded

    monkeypatch.setattr(embedded, "resolve", lambda url, root: f"unix://{root}/s?{url}")
    given = settings(tmp_path, redis=ConnectionSettings(name="redis", url="embedded:"))
    queue: Any = open_queue(given, None)
    assert queue.settings.url == f"unix://{tmp_path}/s?embedded:"


def test_the_fake_is_a_queue():
    """So the tests above prove something about the class that the app really uses."""
    from qd.drivers.redis.queue import RedisQueue

    used = {name for name in vars(FakeQueue) if not name.startswith("_")}
    assert used <= {*dir(RedisQueue), "kept"}  # which its constructor sets


# -- what a producer loads


def loaded(code: str, folder: Path) -> set[str]:
    """The modules in a fresh interpreter after `code`, run in `folder`."""
    program = f"{textwrap.dedent(code)}\nimport sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={"PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def test_a_producer_loads_no_daemon_and_no_command_line(tmp_path):
    modules = loaded(
        """
        from pathlib import Path
        from qd import Qd, Job, current_job
        app = Qd("redis://nowhere.invalid")
        @app.job("mail.welcome")
        def welcome(to: str, folder: Path | None = None) -> None: ...
        welcome.bind("a@b.c", Path("a")).run()
        app.connections.get(None)
        """,
        tmp_path,
    )
    heavy = {
        "click",
        "rich",
        "psutil",
        "asyncio",
        "redis",
        "logging",
        "tomllib",
        "setproctitle",
        "pydantic",
        "attr",
        "attrs",
    }
    assert not heavy & modules
    ours = {name for name in modules if name.startswith("qd.")}
    assert not {name for name in ours if name.split(".")[1] in ("cli", "master", "worker", "keeper", "store")}


def test_import_qd_alone_loads_nothing(tmp_path):
    assert not {
        name for name in loaded("import qd", tmp_path) if name.startswith("qd.") or name in ("msgspec", "dataclasses")
    }


def test_every_public_name_loads_and_type_checkers_see_the_same():
    stub = ast.parse(Path(qd.__file__).with_suffix(".pyi").read_text())
    homes = {name.name: node.module for node in stub.body if isinstance(node, ast.ImportFrom) for name in node.names}
    assert {*homes, "__version__"} == set(dir(qd))
    for name, module in homes.items():
        assert getattr(qd, name) is getattr(import_module(str(module)), name)
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = getattr(qd, "nothing_like_it")  # noqa: B009
