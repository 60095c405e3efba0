"""The fixture `qd_worker`: an app pointed at a scratch server, and the real `qd work` on it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from qd.config import Settings
from qd.config.table import CONNECTION, LARAVEL, environ_name
from qd.connectors.manager import open_memory
from qd.errors import QdError
from qd.pytest_plugin.places import settings_of
from qd.pytest_plugin.scratch import DATABASES, LOOK_AGAIN, START_WAIT, Held, Server, clean
from qd.store.failed import FailedStore, Record
from qd.store.hosts import queues_found
from qd.store.keyspace import KeyspaceStore

if TYPE_CHECKING:
    from qd.app import Qd

SHOWN = 60  # lines of the log that an error shows


class Worker:
    """Runs the jobs of an app, in processes of their own, as in production.

    Jobs are those that the app's module declares when it is imported: what a test declares or patches is not there.
    """

    def __init__(self, name: str, settings: Settings, app: Qd, folder: Path) -> None:
        """name: the app as MODULE:ATTRIBUTE. settings: of the scratch server. folder: for its log."""
        self._name, self._settings, self._app = name, settings, app
        self._log, self._output = folder / "worker.log", folder / "worker.out"
        self._running: list[Held] = []

    @property
    def log(self) -> str:
        """What `qd work` has written to its log until now."""
        return text_of(self._log)

    @property
    def output(self) -> str:
        """What jobs have printed until now."""
        return text_of(self._output)

    @property
    def failed(self) -> list[Record]:
        """The jobs that have failed for good, with `job`, `error`, `reason`, `attempts` and more; the first one first."""
        found = []
        for name in self._settings.connections:
            with store_of(self._settings, name) as store:
                kept = FailedStore(store)
                found += list(kept.records(kept.queues(), newest=False))
        return sorted(found, key=lambda record: record.failed_at)

    def run_until_empty(self, *arguments: str, seconds: float = 60.0) -> None:
        """Run what is ready, and what becomes ready by that, in all queues. arguments: more flags of `qd work`.

        What is delayed stays where it is. Raises AssertionError with the log when it takes longer than `seconds`, or when
        `qd work` does not end with 0; a job that fails is no such thing.
        """
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
                self._expect(code)

    def start(self, *queues_and_flags: str) -> None:
        """Start `qd work` beside the test, and return when it takes jobs; stop() ends it, at the latest the fixture."""
        told = len(self.log)
        held = self._work(*queues_and_flags)
        deadline = time.monotonic() + START_WAIT
        while " master.ready " not in self.log[told:]:
            if not held.running() or time.monotonic() > deadline:
                self.end()
                raise AssertionError(f"`qd work` does not start\n{self._tail()}")
            time.sleep(LOOK_AGAIN)

    def stop(self) -> None:
        """Let the jobs in hand finish, and end every `qd work` that start() began. Raises AssertionError: one did not
        end with 0."""
        codes = [held.stop() for held in self._running]
        self._running.clear()
        for code in codes:
            self._expect(code)

    def end(self) -> None:
        """As stop(), and whatever their exit codes are."""
        for held in self._running:
            held.stop()
        self._running.clear()

    def _work(self, *arguments: str) -> Held:
        alone = ["-w", "1", "--no-schedule"]  # what the clock says is no part of a test
        command = [sys.executable, "-m", "qd", "work", "--app", self._name, *alone, *arguments]
        if self._settings.file is not None:
            command += ["--config", str(self._settings.file)]
        env = {**clean(os.environ), **environ_of(self._settings), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        held = Held(command, log=self._log, output=self._output, cwd=self._settings.root, env=env)
        self._running.append(held)
        return held

    def _ready(self) -> dict[str, list[str]]:
        """Connection -> its queues with ready jobs."""
        found = {name: ready_queues(self._app, self._settings, name) for name in self._settings.connections}
        return {name: queues for name, queues in found.items() if queues}

    def _expect(self, code: int) -> None:
        if code != 0:
            raise AssertionError(f"`qd work` ended with {code}\n{self._tail()}")

    def _tail(self) -> str:
        return "\n".join(self.log.splitlines()[-SHOWN:])


def text_of(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def ready_queues(app: Qd, settings: Settings, connection: str) -> list[str]:
    with store_of(settings, connection) as store:
        names = queues_found(store)
    return [name for name in names if app.connections.get(connection).sizes(name).ready]


@contextmanager
def store_of(settings: Settings, connection: str) -> Iterator[KeyspaceStore]:
    space, prefix = open_memory(settings, connection)
    try:
        yield KeyspaceStore(space, prefix)
    finally:
        space.close()


@contextmanager
def worked(app: Qd, server: Server, root: Path, folder: Path) -> Iterator[Worker]:
    """In the block all connections of the app lead to databases of `server`. root: the project's folder. folder: takes
    the log."""
    server.empty()
    settings = moved(settings_of(root, code=app._code_settings), server)
    worker = Worker(name_of(app, settings.app), settings, app, folder)
    with app._services.using(settings):
        try:
            yield worker
            worker.stop()
        finally:
            worker.end()
            app.connections.close()


def moved(settings: Settings, server: Server) -> Settings:
    """Each connection in a database of its own, of the scratch server, in place of where it is."""
    connections = {
        name: replace(found, url=server.url(number))
        for number, (name, found) in enumerate(settings.connections.items())
    }
    laravel = settings.laravel and replace(settings.laravel, cache_url=server.url(DATABASES - 1))
    return replace(settings, connections=connections, laravel=laravel)


def environ_of(settings: Settings) -> dict[str, str]:
    """The same for the process of `qd work`: what the environment says beats the file."""
    urls = {(CONNECTION["url"], name): found.url for name, found in settings.connections.items()}
    if settings.laravel is not None:
        urls[LARAVEL["cache_url"], ""] = settings.laravel.cache_url
    return {environ_name(option, name): url for (option, name), url in urls.items() if url is not None}


def name_of(app: Qd, said: str) -> str:
    """The app as MODULE:ATTRIBUTE. said: what the configuration names. Raises QdError: it stands in no module."""
    module, _, attribute = said.partition(":")
    if getattr(sys.modules.get(module), attribute or "app", None) is app:
        return said
    for name, module_found in sys.modules.copy().items():
        for attribute, value in vars(module_found).copy().items():
            if value is app and name != "__main__":
                return f"{name}:{attribute}"
    raise QdError("qd_worker runs apps of modules that it can import: this one is in none (write `app = Qd()` in one)")
