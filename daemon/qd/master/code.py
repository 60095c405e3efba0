"""What the master and its children receive, and the imports of the app.

    MasterPlan              the options of `qd work` and the bodies of the children, which the master runs in forks
    ChildContext            given to every child
    Assignment              given to a worker or scheduler: its slot
    AppImport, AppImports   one import of the app; the serving one and the coming one

A reload forks a new template next to the old one. Once it has imported the app, workers are replaced one by one, new
before old. If it fails or hangs, it is killed and nothing changes. Without preload a template only checks that the new
code imports, and each new worker imports it itself.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from qd.log import Log
from qd.options.tables import WorkOptions
from qd.process import fork
from qd.process.channels import MessageSender, OrderPipe, Waker
from qd.process.scoreboard import Role, Scoreboard


@dataclass(frozen=True, slots=True)
class Assignment:
    """The slot of a worker or scheduler, its generation there, its role, and whether it starts paused."""

    slot: int
    generation: int
    paused: bool
    role: Role = Role.WORKER


@dataclass(frozen=True, slots=True)
class ChildContext:
    """Given to every child. master: the master's pid. waker: wakes the keeper."""

    board: Scoreboard
    sender: MessageSender
    token: str
    master: int
    log: Log
    code: int = 0  # which import of the app this child runs, without preload
    waker: Waker | None = None  # None: no keeper takes back what a worker holds, so it holds nothing


SILENCE = 10.0  # seconds without a heartbeat that a worker between two jobs is allowed, at least
ANSWER = 10.0  # seconds that a connection and a reply of the server may take together


@dataclass(frozen=True, slots=True)
class MasterPlan:
    work: WorkOptions
    template: Callable[[ChildContext, Any], int]  # the stream of its orders
    fresh: Callable[[ChildContext, Assignment], int]  # a worker or scheduler that imports the app itself
    keeper: Callable[[ChildContext, Any, str, tuple[str, ...]], int]  # stream, settings, queues of earlier settings

    @property
    def preload(self) -> bool:
        """Whether a template imports the app once, before the workers fork."""
        return not self.work.no_preload and sys.platform == "linux"

    @property
    def silence(self) -> float:
        """Seconds without a heartbeat that a worker between two jobs is allowed."""
        return max(SILENCE, 3 * self.work.sleep + self.work.rest + ANSWER)

    @property
    def leads(self) -> Role:
        """The role whose boot makes this program ready."""
        return Role.WORKER if self.work.workers else Role.SCHEDULER

    def schedulers(self, entries: int) -> int:
        """How many schedulers run for so many entries. Without workers a scheduler always runs."""
        return int(self.work.runs_schedule and (entries > 0 or not self.work.workers))


PATIENCE = 10.0  # seconds a reload's import may take; five times the first import if that is more


@dataclass(slots=True)
class AppImport:
    """One import of the app, under one configuration. pid 0: no template; workers import by themselves or it has died."""

    number: int
    plan: MasterPlan
    preload: bool  # workers are forked from its template
    settings: str | None = None  # resolved by the import; None until it is reported
    pid: int = 0
    orders: OrderPipe | None = None
    imported: bool = False
    error: str = ""  # why its import failed, if it has told
    entries: int = 0  # of the schedule
    forked_at: float = field(default_factory=time.monotonic)
    forked_ns: int = field(default_factory=time.monotonic_ns)
    took: float = 0.0
    unanswered: int = 0  # rounds of orders after which no worker was born
    reported_slow: bool = False


class AppImports:
    def __init__(self) -> None:
        self.serving: AppImport | None = None
        self.coming: AppImport | None = None
        self.count = 0
        self.patience = PATIENCE
        self.leaving = set[int]()  # pids of templates that were killed and are not reaped yet

    def both(self) -> list[AppImport]:
        return [code for code in (self.serving, self.coming) if code is not None]

    def by_number(self, number: int) -> AppImport | None:
        return next((code for code in self.both() if code.number == number), None)

    def hangs(self) -> bool:
        """A reload's import takes too long. The first import may take as long as the supervisor allows."""
        coming = self.coming
        if coming is None or coming.imported or self.serving is None:
            return False
        return time.monotonic() - coming.forked_at > self.patience

    def slow(self, now: float) -> AppImport | None:
        """The first import, once, if it takes longer than PATIENCE: until it ends, the log has no line at all."""
        coming = self.coming
        if coming is None or coming.imported or self.serving is not None or coming.reported_slow or not coming.pid:
            return None
        coming.reported_slow = now - coming.forked_at > PATIENCE
        return coming if coming.reported_slow else None

    def give_up(self) -> None:
        if self.coming is not None:
            self._dismiss(self.coming)
            self.coming = None

    def promote(self) -> None:
        """The coming code has replaced every worker of the old."""
        if self.serving is not None:
            self._dismiss(self.serving)
        self.serving, self.coming = self.coming, None

    def without_template(self, code: AppImport) -> None:
        """The app imports; from here on its workers import it by themselves."""
        self._dismiss(code)
        code.preload, code.pid = False, 0

    def _dismiss(self, code: AppImport) -> None:
        if code.orders is not None:
            code.orders.close()
            code.orders = None
        if code.pid:
            self.leaving.add(code.pid)
            fork.kill_group(code.pid)

    def end(self) -> None:
        for code in self.both():
            self._dismiss(code)
        self.serving = self.coming = None
