"""Reads the servers for all viewers of this process: at most every 2 s, and only while somebody looks.

    Poller.current() -> Snapshot      what most pages show
    Poller.ask(read) -> T             one read for one page, such as the jobs of a queue

Every read is in a thread, with the connections of a command (cli/context.py), which are closed after it. If the servers do
not answer, pages get the last snapshot, with the error, and reading continues in the background.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from itertools import islice
from threading import Lock
from typing import Any, TypeVar

import click

from qd.cli import context
from qd.cli.diagnosis import HealthThresholds, Reason, reasons
from qd.cli.failed import NEWEST, Group, Source, source
from qd.cli.main import command
from qd.cli.state import State, read_state, server_memory
from qd.errors import QdError
from qd.store import audit
from qd.store.failed import Record, Wanted
from qd.store.statistics import History, Place, Rate

T = TypeVar("T")
FRESH = 2.0  # seconds for which a snapshot is shared
OLD = 6.0  # seconds after which a page waits for a new one; pages in a browser are loaded again before
PATIENCE = 2.0  # seconds to connect and for each reply
WAIT = 0.7  # seconds that a page waits for a new snapshot if there is an older one
HOURS = 3.0  # of charts
EVENTS = 300


@dataclass(frozen=True)
class Snapshot:
    """read_at: unix seconds of this host. error: why a newer one could not be read; "" while all is well."""

    number: int
    read_at: float
    state: State
    findings: list[Reason]
    history: History
    rates: Mapping[Place, Rate]
    events: list[audit.Entry]
    latency: float  # seconds of one call
    memory: tuple[int, int] | None  # bytes used, and the limit or 0; None: unknown
    error: str = ""


@dataclass
class Failures:
    """The newest failed jobs of a connection by name and exception. seen: the records that were counted."""

    groups: dict[tuple[str | None, str], Group] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    total: int = 0
    lock: Lock = field(default_factory=Lock)

    def read(self, at: Source) -> None:
        """Read only what is new, unless failed jobs have gone."""
        with self.lock:
            total, new, known = at.store.count(at.queues), list[Record](), False
            for record in islice(at.store.records(at.queues, Wanted(None, None, None, None, at.now)), NEWEST):
                if known := record.id in self.seen:
                    break
                new.append(record)
            if not known or total != self.total + len(new):
                self.groups, self.seen = {}, set()
                new = [*islice(at.store.records(at.queues), NEWEST)] if known else new
            for record in new:
                self.seen.add(record.id)
                kind = record.job, record.error
                group = self.groups.setdefault(kind, Group(*kind, record.failed_at, record.failed_at))
                group.add(record)
            self.total = total

    def ranked(self) -> list[Group]:
        return sorted(self.groups.values(), key=lambda group: (-group.count, -group.last))


class Poller:
    def __init__(self, given: context.Given) -> None:
        self.given = replace(given, only_looks=True, patience=PATIENCE)
        self.snapshot: Snapshot | None = None
        self.failures = dict[str, Failures]()
        self.looks = dict[tuple[str, str, str], tuple[float, dict[str, Any]]]()  # of pages that SCAN (lookup.py)
        self._history: History | None = None
        self._hours: History | None = None
        self._hours_lock = Lock()
        self._reader, self._lock = ThreadPoolExecutor(1, "qd dashboard"), Lock()
        self._read: Future[None] | None = None
        self._at = 0.0

    async def current(self) -> Snapshot:
        """Raises QdError if the servers have never answered."""
        with self._lock:
            if self._read is None or (self._read.done() and time.monotonic() - self._at > FRESH):
                self._read = self._reader.submit(self._refresh)
            reading = self._read
        if self.snapshot is None:
            await asyncio.to_thread(reading.result)
        elif not self.snapshot.error and time.monotonic() - self._at > OLD:
            await asyncio.to_thread(wait, [reading], WAIT)
        assert self.snapshot is not None
        return self.snapshot

    async def ask(self, read: Callable[[], T], connection: str | None = None) -> T:
        """What `read` returns, called in a thread in which the functions of cli/context.py work. Raises QdError."""
        return await asyncio.to_thread(self._within, read, connection)

    async def failed(self, connection: str) -> Failures:
        found = self.failures.setdefault(connection, Failures())
        await self.ask(lambda: found.read(source((), changes=False)), connection)
        return found

    async def hours(self, seconds: float) -> History:
        """The statistics of the hours of the last `seconds`; the first read of many takes a second."""

        def read() -> History:
            with self._hours_lock:
                found = context.settings()
                store = context.store(found, found.control)
                if self._hours is None or self._hours.seconds < seconds:
                    self._hours = History(store, seconds, 3600)
                self._hours.store = store
                return self._hours.refresh()

        return await self.ask(read)

    def _refresh(self) -> None:
        try:
            self.snapshot = self._within(self._look, None)
        except QdError as error:
            if self.snapshot is None:
                raise
            self.snapshot = replace(self.snapshot, error=str(error), number=self.snapshot.number + 1)
        finally:
            self._at = time.monotonic()

    def _within(self, read: Callable[[], T], connection: str | None) -> T:
        given = self.given if connection is None else replace(self.given, connection=connection)
        with click.Context(command, obj=given):
            return read()

    def _look(self) -> Snapshot:
        found = context.settings()
        store = context.store(found, found.control)
        store.now()  # connects
        began = time.perf_counter()
        store.now()
        latency = time.perf_counter() - began
        state = read_state(found)
        if self._history is None:
            self._history = History(store, HOURS * 3600)
        self._history.store = store
        history = self._history.refresh()
        findings = [*reasons(state, HealthThresholds())]
        events = audit.read(store, most=EVENTS)
        number = self.snapshot.number + 1 if self.snapshot else 1
        told = self.snapshot is None or self.snapshot.memory is not None  # each refused call is a line in ACL LOG
        facts = history.rates(), events, latency, server_memory(store.space) if told else None
        return Snapshot(number, time.time(), state, findings, history, *facts)
