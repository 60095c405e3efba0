"""`qd top`: a live screen of the fleet.

Reader      reads the servers -> View, and does what keys ask for, in one thread: connections belong to a thread. The state
            is read with each call, statistics and events every few seconds.
view.py     View -> lines of (text, style), without Textual
screen.py   the Textual app: keys, focus, and the drawing of lines that have changed
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import click
from msgspec import structs

from qd.cli import context, control, job
from qd.cli.diagnosis import HealthThresholds, reasons, warnings
from qd.cli.failed import NEWEST, Group, grouped
from qd.cli.state import QueueLine, State, read_state, running, server_memory
from qd.config.settings import Settings
from qd.drivers.connections import gaps_of
from qd.drivers.keyspace.base import Keyspace
from qd.errors import ConfigError, QdError
from qd.options.extras import to_install
from qd.payload.format import Payload
from qd.store import audit
from qd.store.failed import FailedStore
from qd.store.masters import MasterReport, WorkerReport
from qd.store.statistics import NOTHING, History, Name, Numbers, Place, Point, Rate

T = TypeVar("T")
SPAN = 3 * 3600  # seconds of the charts
RECENT = 300  # seconds of the rates
SLOWLY = 5.0  # seconds between two reads of statistics and events
PATIENCE = 2.0  # seconds for a connection, and for each reply


@dataclass(frozen=True)
class Trend:
    """What is read every few seconds. depths: ready jobs of each queue, minute by minute. recent: of the last minutes."""

    rates: Mapping[Place, Rate]
    points: list[Point]
    depths: Mapping[Place, list[int]]
    recent: Numbers
    by_name: Mapping[Name, Numbers]
    minutes: float
    events: list[audit.Entry]
    memory: str


@dataclass(frozen=True)
class View:
    """One read. latency: seconds of a call. read_at: unix seconds by this host's clock."""

    state: State
    trend: Trend
    problems: list[str]
    warnings: list[str]
    latency: float
    read_at: float


class Reader:
    def __init__(self, found: Settings) -> None:
        self.found = found
        context.given().kept, context.given().patience = {}, PATIENCE
        self._context = click.Context(click.Command("top"), parent=click.get_current_context())
        self._thread = ThreadPoolExecutor(1, "qd-top")
        self._history: History | None = None
        self._trend = Trend({}, [], {}, NOTHING, {}, 1.0, [], "")
        self._slow_at, self._no_memory = 0.0, False

    def call(self, function: Callable[..., T], *args: Any) -> Future[T]:
        """Call it in the thread, with the context of the command."""

        def run() -> T:
            with self._context.scope(cleanup=False):
                context.given().only_looks = True
                return function(*args)

        return self._thread.submit(run)

    def close(self) -> None:
        self._thread.submit(self._context.close)
        self._thread.shutdown()

    def read(self) -> View:
        state = read_state(self.found)
        store = context.store(self.found, self.found.control)
        began = time.perf_counter()
        store.now()
        latency = time.perf_counter() - began
        if time.monotonic() - self._slow_at >= SLOWLY:
            self._slow_at, self._trend = time.monotonic(), self._read_trend(state.now)
        found, rates = [*reasons(state, HealthThresholds())], self._trend.rates
        problems = [reason.text for reason in found] + [f"connection {at}: {why}" for at, why in state.away.items()]
        warned = [f"{fact}; {way}" for fact, way in warnings(state, rates)]
        return View(state, self._trend, problems, warned, latency, time.time())

    def _read_trend(self, now: float) -> Trend:
        store = context.store(self.found, self.found.control)
        if self._history is None:
            self._history = History(store, SPAN)
        history = self._history.refresh()
        since, depths = now - RECENT, dict[Place, list[int]]()
        for _, of_queues in history.minutes.values():
            for name, depth in of_queues.items():
                depths.setdefault((name.connection, name.queue), []).append(depth.ready)
        return Trend(
            *(history.rates(), history.points(now - SPAN), depths, history.total(since), history.by_name(since)),
            minutes=max(1.0, (now - since // 60 * 60) / 60),
            events=audit.read(store, since=now - 86400, most=20),
            memory=self._memory(store.space),
        )

    def _memory(self, space: Keyspace) -> str:
        """`412M/1G`; "" on a cluster, in a database, and for a user that may not call INFO, which is tried once."""
        found = None if self._no_memory else server_memory(space)
        self._no_memory = found is None
        return "/".join(size(bytes_) for bytes_ in found or () if bytes_)

    # -- for keys

    def pause(self, line: QueueLine, reason: str) -> str:
        control.pause_queues(self.found, [line.connection], (line.name,), seconds=None, reason=reason)
        return f"{line.name}: paused until `r` or `qd resume`"

    def resume(self, line: QueueLine) -> str:
        was = control.resume_queues(self.found, [line.connection], (line.name,))[0]["was_paused"]
        return f"{line.name}: {'resumed' if was else 'was not paused'}"

    def cancel(self, found: Payload, queue: str) -> str:
        _, was = job.cancel_id(self.found, found.id or "", queue)
        return f"nothing to cancel: {found.id} has ended" if was is None else f"cancelled {found.display} {found.id}"

    def running(self, master: MasterReport, worker: WorkerReport) -> list[Payload]:
        """The jobs that this worker has reserved, the one that began first at the top. Raises Refused."""
        at = master.connection
        if why := gaps_of(self.found, at, context.own_drivers(self.found, at)).get("find"):
            raise context.Refused(f"connection '{at}' cannot list its jobs: {why}")
        reserved = running(self.found, [structs.replace(master, workers=[worker])])
        return reserved.get((master.token, worker.slot), [])

    def failed(self, queues: list[QueueLine]) -> list[Group]:
        """The failed jobs of these queues by name and exception, of each connection the newest."""
        records, named = list[Any](), dict[str, list[str]]()
        for line in queues:
            named.setdefault(line.connection, []).append(line.name)
        for at, names in named.items():
            records += islice(FailedStore(context.store(self.found, at)).records(names), NEWEST)
        return grouped(records)[0]


def size(count: float) -> str:
    """412M, 1.5G: at most three digits and a letter."""
    for letter in "BKMG":
        if count < 1024 or letter == "G":
            break
        count /= 1024
    return f"{count:.1f}{letter}" if count < 10 and count % 1 > 0.05 else f"{count:.0f}{letter}"


ERRORS = (QdError, click.ClickException)  # what a call may raise


def on_terminal() -> bool:
    """Textual reads stdin and writes to stderr; stdout decides as for every command."""
    return all(stream is not None and stream.isatty() for stream in (sys.__stdin__, sys.__stdout__, sys.__stderr__))


@click.command("top")
@context.options
def command() -> None:
    """Watch queues and workers on a live screen, and act on them.

    Keys are shown at the bottom; `?` explains them. Needs a terminal, and the library Textual (the extra `top`).
    """
    if context.given().json:
        raise click.UsageError("a live screen has no --json; use `qd status --json` and `qd queues --json`")
    if not on_terminal():
        raise context.Refused("stdin, stdout and stderr must be a terminal; elsewhere use `qd status` and `qd queues`")
    try:
        from qd.cli.top.screen import Top
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        raise ConfigError(f"the library 'textual' is not installed: {to_install('top')}") from None
    reader = Reader(context.settings())
    try:
        Top(reader, reader.call(reader.read).result()).show()
    finally:
        reader.close()
