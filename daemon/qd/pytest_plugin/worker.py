"""The fixture `qd_worker`: an app that uses a scratch server, and the real `qd work` on it.

Server and worker live for one test, and end with the process that started them even if it is killed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from dataclasses import replace
from pathlib import Path

from qd import config
from qd.app import Qd
from qd.config.settings import CONNECTION, SECTIONS, ConnectionSettings, Settings, environ_name
from qd.drivers.connections import open_memory
from qd.drivers.embedded import Address, ask, server_binary
from qd.errors import ConfigError, QdError
from qd.options.drivers import BARE
from qd.store.base import KeyspaceStore
from qd.store.failed import FailedStore, Record
from qd.store.masters import queues_found
from qd.worker.boot import load_app


def find_app(named: str, root: Path) -> Qd:
    """named: `qd_app` of pytest's configuration, MODULE:ATTRIBUTE or "". root: pytest's rootdir. Raises ConfigError."""
    settings = settings_of(root, named)
    if not settings.app:
        way = (
            'write qd_app = "shop.queue:app" into [tool.pytest.ini_options], or a fixture qd_app that returns your app'
        )
        raise ConfigError(f"no app is named for the fixtures of qd: {way} into conftest.py")
    return load_app(settings)


def settings_of(root: Path, app: str = "", code: dict[str, object] | None = None) -> Settings:
    """The configuration of the project in the folder `root`, wherever pytest was started. code: the arguments of Qd(...)."""
    named = os.environ.get("QD_CONFIG")
    path = Path(named).absolute() if named else None
    with chdir(root):
        return config.load(path, flags={"app": app or None}, code=code)


# Ends the program when stdin is closed, which the kernel does if the parent is killed; then deletes the folder given as the
# first argument, unless that is empty.
HELD = """
folder=$1; shift
exec 3<&0
"$@" 3<&- </dev/null & child=$!
{ read -r _; kill "$child"; } <&3 >/dev/null 2>&1 & reader=$!
exec 3<&-
wait "$child"; code=$?
kill "$reader" 2>/dev/null
[ -z "$folder" ] || rm -rf "$folder"
exit "$code"
"""
NOT_INHERITED = ("QD_OWNER", "NOTIFY_SOCKET", "WATCHDOG_", "INVOCATION_ID", "SUPERVISOR_", "SYSTEMD_EXEC_PID")
POLL = 0.02  # seconds between two checks
START_WAIT = 20.0  # seconds
STOP_WAIT = 40.0  # seconds: longer than the --stop-timeout of qd work (25)
DATABASES = 64


class Held:
    """A program that runs until it ends, `stop()` is called, or this process is gone. log takes its stderr, output its
    stdout; folder is deleted at its end."""

    def __init__(
        self, arguments: Sequence[str], *, log: Path, output: Path, cwd: Path, env: dict[str, str], folder: str = ""
    ) -> None:
        command = ["/bin/sh", "-c", HELD, "sh", folder, *arguments]
        with log.open("ab") as errors, output.open("ab") as out:
            # A session of its own: Ctrl-C is for pytest.
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=out, stderr=errors, cwd=cwd, env=env, start_new_session=True
            )

    def running(self) -> bool:
        return self.process.poll() is None

    def wait(self, seconds: float) -> int:
        """Wait for its end and return its exit code. Raises subprocess.TimeoutExpired."""
        self.process.wait(seconds)
        return self.stop()

    def stop(self) -> int:
        """Send SIGTERM, wait, and return its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(STOP_WAIT)


class Server:
    """A private Valkey or Redis without a port, in a folder below /tmp that is deleted at its end."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="qd-scratch-"))
        self.socket = self.folder / "s"
        self._held: Held | None = None

    def url(self, database: int = 0) -> str:
        return f"unix://{self.socket}?db={database}"

    def start(self) -> Server:
        """Start it and wait until it answers. Raises ConfigError without a server binary, QdError if it ends."""
        log = self.folder / "log"
        command = [str(server_binary()), "--dir", str(self.folder), "--port", "0", "--unixsocket", str(self.socket)]
        command += ["--unixsocketperm", "700", "--save", "", "--appendonly", "no", "--databases", str(DATABASES)]
        self._held = Held(command, log=log, output=log, cwd=self.folder, env=clean(os.environ), folder=str(self.folder))
        deadline = time.monotonic() + START_WAIT
        while ask(Address(self.socket), "PING") != b"+PONG\r\n":
            if not self._held.running() or time.monotonic() > deadline:
                last = log.read_text(errors="replace").strip().rpartition("\n")[2]
                raise QdError(f"the scratch server does not start: {last or 'its log is empty'}")
            time.sleep(POLL)
        return self

    def empty(self) -> None:
        ask(Address(self.socket), "FLUSHALL")

    def stop(self) -> None:
        if self._held is not None:
            self._held.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def clean(environ: Mapping[str, str]) -> dict[str, str]:
    """Without the variables that a supervisor or worker has set for this process."""
    return {name: value for name, value in environ.items() if not name.startswith(NOT_INHERITED)}


SHOWN = 60  # lines of the log that an error shows


class Worker:
    """Runs the jobs of an app in separate processes, as in production. They import the app's module: jobs that a test
    declares, and its patches, do not exist there."""

    def __init__(self, name: str, settings: Settings, app: Qd, folder: Path, environ: Mapping[str, str]) -> None:
        """name: the app as MODULE:ATTRIBUTE. settings: of the scratch server. folder: for its log. environ: the app's own
        variables."""
        self._name, self._settings, self._app, self._environ = name, settings, app, environ
        self._log, self._output = folder / "worker.log", folder / "worker.out"
        self._running: list[Held] = []

    @property
    def log(self) -> str:
        """The log of `qd work` so far."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    @property
    def output(self) -> str:
        """The output of jobs so far."""
        return self._output.read_text(errors="replace") if self._output.exists() else ""

    @property
    def failed(self) -> list[Record]:
        """The jobs that have failed permanently, oldest first, with `job`, `error`, `reason`, `attempts` and more."""
        found = []
        for name in self._settings.connections:
            with store_of(self._settings, name) as store:
                kept = FailedStore(store)
                found += list(kept.records(kept.queues(), newest=False))
        return sorted(found, key=lambda record: record.failed_at)

    def run_until_empty(self, *arguments: str, seconds: float = 60.0) -> None:
        """Run all ready jobs, and those that they dispatch, in all queues. arguments: more flags of `qd work`. Delayed
        jobs stay where they are. Raises AssertionError with the log if it takes longer than `seconds`, or if `qd work`
        does not exit with 0. A job that fails does not raise."""
        deadline = time.monotonic() + seconds
        while ready := self._ready():
            for connection, queues in ready.items():
                held = self._work("--stop-when-empty", "-c", connection, *arguments, *queues)
                try:
                    code = held.wait(max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    self.end()
                    raise AssertionError(f"there is still work after {seconds:g} s\n{self._tail()}") from None
                self._running.remove(held)
                self._check(code)

    def start(self, *queues_and_flags: str) -> None:
        """Start `qd work` in the background, and return when it takes jobs. stop() ends it, or the end of the test."""
        before = len(self.log)
        held = self._work(*queues_and_flags)
        deadline = time.monotonic() + START_WAIT
        while " master.ready " not in self.log[before:]:
            if not held.running() or time.monotonic() > deadline:
                self.end()
                raise AssertionError(f"`qd work` does not start\n{self._tail()}")
            time.sleep(POLL)

    def stop(self) -> None:
        """Let running jobs finish, and stop each `qd work` of start(). Raises AssertionError if one does not exit with 0."""
        for code in self.end():
            self._check(code)

    def end(self) -> list[int]:
        """As stop(), but with any exit codes, which it returns."""
        codes = [held.stop() for held in self._running]
        self._running.clear()
        return codes

    def _work(self, *arguments: str) -> Held:
        alone = ["-w", "1", "--no-schedule"]  # a test must not depend on the time of day
        command = [sys.executable, "-m", "qd", "work", "--app", self._name, *alone, *arguments]
        if self._settings.file is not None:
            command += ["--config", str(self._settings.file)]
        paths = os.pathsep.join(filter(None, sys.path))
        env = {**clean(os.environ), **self._environ, **environ_of(self._settings), "PYTHONPATH": paths}
        held = Held(command, log=self._log, output=self._output, cwd=self._settings.root, env=env)
        self._running.append(held)
        return held

    def _ready(self) -> dict[str, list[str]]:
        """Connection -> its queues with ready jobs."""
        found = dict[str, list[str]]()
        for connection in self._settings.connections:
            with store_of(self._settings, connection) as store:
                names = queues_found(store)
            sizes = self._app.connections.get(connection).sizes
            if ready := [name for name in names if sizes(name).ready]:
                found[connection] = ready
        return found

    def _check(self, code: int) -> None:
        if code != 0:
            raise AssertionError(f"`qd work` exited with {code}\n{self._tail()}")

    def _tail(self) -> str:
        return "\n".join(self.log.splitlines()[-SHOWN:])


@contextmanager
def store_of(settings: Settings, connection: str) -> Iterator[KeyspaceStore]:
    space, prefix = open_memory(settings, connection)
    try:
        yield KeyspaceStore(space, prefix)
    finally:
        space.close()


@contextmanager
def worked(app: Qd, server: Server, root: Path, folder: Path) -> Iterator[Worker]:
    """In the block all connections of the app use databases of `server`. root: the project's folder. folder: for the log."""
    server.empty()
    environ = {name: value for give in app._in_tests for name, value in give().items()}
    if app.connections.used is not None:
        app.connections.used()  # settings from before Django's test runner replaced its databases are not restored below
    settings = moved(settings_of(root, code=app._code_settings), server)
    worker = Worker(name_of(app, settings.app), settings, app, folder, environ)
    with app._services.using(settings):
        try:
            yield worker
            worker.stop()
        finally:
            worker.end()
            app.connections.close()


def moved(settings: Settings, server: Server) -> Settings:
    """These settings, with each connection in its own database of the scratch server."""
    connections = dict[str, ConnectionSettings]()
    for number, (name, found) in enumerate(settings.connections.items()):
        driver = found.driver if found.driver in BARE else "redis"
        connections[name] = replace(found, driver=driver, url=server.url(number))
    laravel = settings.laravel and replace(settings.laravel, cache_url=server.url(DATABASES - 1))
    return replace(settings, connections=connections, laravel=laravel)


def environ_of(settings: Settings) -> dict[str, str]:
    """The same for the process of `qd work`, where the environment overrides the file."""
    urls = {(CONNECTION["url"], name): found.url for name, found in settings.connections.items()}
    urls |= {(CONNECTION["driver"], name): found.driver for name, found in settings.connections.items()}
    if settings.laravel is not None:
        urls[SECTIONS["laravel"]["cache_url"], ""] = settings.laravel.cache_url
    given = {environ_name(option, name): url for (option, name), url in urls.items() if url is not None}
    return {**given, **dict.fromkeys((f"{name}_FILE" for name in given), "")}  # empty: not set


def name_of(app: Qd, named: str) -> str:
    """The app as MODULE:ATTRIBUTE. named: the app of the configuration. Raises QdError if no module has it."""
    module, _, attribute = named.partition(":")
    if getattr(sys.modules.get(module), attribute or "app", None) is app:
        return named
    for name, module_found in sys.modules.copy().items():
        for attribute, value in vars(module_found).copy().items():
            if value is app and name != "__main__":
                return f"{name}:{attribute}"
    raise QdError("qd_worker needs an app that it can import: write `app = Qd()` at the top level of a module")
