"""What every child is given when it is forked: the shared memory, a voice, who its master is, its place.

What the master is given: the options of `qd work`, and the bodies of its children. It calls the bodies in forks and never
looks inside.

The code that serves: templates, each one import of the app, and the rolling change from one to the next.

A new template is forked beside the old one, which goes on. When the new one has imported the app, workers are replaced one
by one, new before old; when it fails or hangs, it is killed, and nothing has happened. Without preload a template only
tries whether the new code imports: the workers of the new number import it by themselves.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from qd.log import Log
from qd.options.tables import WorkOptions
from qd.process import fork
from qd.process.channels import MessageSender, OrderPipe
from qd.process.scoreboard import Role, Scoreboard


@dataclass(frozen=True, slots=True)
class Assignment:
    """A child's place: which slot, which life of it, whether it starts paused, and what it is for."""

    slot: int
    generation: int
    paused: bool
    role: Role = Role.WORKER


@dataclass(frozen=True, slots=True)
class ChildContext:
    """What every child is given: the shared memory, a voice to the master, the master's token and pid, a log."""

    board: Scoreboard
    sender: MessageSender
    token: str
    master: int
    log: Log
    code: int = 0  # which import of the app this child runs, without preload


SILENCE = 10.0  # seconds for which a worker between two jobs may be silent, at least
ANSWER = 10.0  # seconds that a connection and an answer of Redis may take together


@dataclass(frozen=True, slots=True)
class MasterPlan:
    """One configuration as the master sees it."""

    work: WorkOptions
    template: Callable[[ChildContext, Any], int]  # context, the stream its orders come on
    fresh: Callable[[ChildContext, Assignment], int]  # a worker or scheduler that imports the app by itself
    # context, stream, what the app's import has resolved, queues of earlier settings
    keeper: Callable[[ChildContext, Any, str, tuple[str, ...]], int]

    @property
    def preload(self) -> bool:
        """Whether a template imports the app once, before the workers fork."""
        return not self.work.no_preload and sys.platform == "linux"

    @property
    def silence(self) -> float:
        """Seconds for which a worker between two jobs may be silent."""
        return max(SILENCE, 3 * self.work.sleep + self.work.rest + ANSWER)

    @property
    def leads(self) -> Role:
        """Whose boot makes this program ready."""
        return Role.WORKER if self.work.workers else Role.SCHEDULER

    def schedulers(self, entries: int) -> int:
        """How many run with so many entries. Without workers only a scheduler runs here, whatever the import finds."""
        return int(self.work.runs_schedule and (entries > 0 or not self.work.workers))


PATIENCE = 10.0  # seconds a reload's import may take at least; five times the first import when that was slower


@dataclass(slots=True)
class AppImport:
    """One import of the app, under one configuration. pid 0: no template, because workers import by themselves or because
    it has died."""

    number: int
    plan: MasterPlan
    preload: bool  # workers are forked from its template
    settings: str | None = None  # what the import has resolved; None until it is told
    pid: int = 0
    orders: OrderPipe | None = None
    imported: bool = False
    entries: int = 0  # of the schedule, as the import found them
    forked_at: float = field(default_factory=time.monotonic)
    forked_ns: int = field(default_factory=time.monotonic_ns)
    took: float = 0.0
    unanswered: int = 0  # rounds of orders after which no worker was seen

    def end(self) -> None:
        if self.orders is not None:
            self.orders.close()
            self.orders = None
        if self.pid:
            fork.kill_group(self.pid)


class AppImports:
    """The code that serves, and the one that is on its way in."""

    def __init__(self) -> None:
        self.serving: AppImport | None = None
        self.coming: AppImport | None = None
        self.count = 0
        self.patience = PATIENCE
        self.leaving: dict[int, AppImport] = {}  # templates that were told to go, by pid

    def make(self, plan: MasterPlan) -> AppImport:
        self.count += 1
        self.coming = AppImport(self.count, plan, plan.preload)
        return self.coming

    def by_number(self, number: int) -> AppImport | None:
        return next((c for c in (self.serving, self.coming) if c is not None and c.number == number), None)

    def by_pid(self, pid: int) -> AppImport | None:
        return next((c for c in (self.serving, self.coming) if c is not None and c.pid == pid), None)

    def hangs(self) -> bool:
        """A reload's import takes too long. The first import may take as long as its supervisor lets it."""
        coming = self.coming
        if coming is None or coming.imported or self.serving is None:
            return False
        return time.monotonic() - coming.forked_at > self.patience

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
        """It imports; from here on its workers do so by themselves."""
        self._dismiss(code)
        code.preload, code.pid = False, 0

    def _dismiss(self, code: AppImport) -> None:
        if code.pid:
            self.leaving[code.pid] = code
        code.end()

    def end(self) -> None:
        for code in (self.serving, self.coming):
            if code is not None:
                self._dismiss(code)
        self.serving = self.coming = None


def by_name(environ: Mapping[str, str]) -> str:
    """The folder this program was started in, as its starter called it: $PWD where that is the same folder, so that a
    `current` link stays a link. (A starter that sets no PWD is better given --config with such a path.)"""
    name = environ.get("PWD", "")
    try:
        return name if os.path.samefile(name, ".") else os.getcwd()
    except OSError:
        return os.getcwd()


def enter(folder: str) -> None:
    """Enter the start folder by its name: behind a `current` link stands the new release now."""
    with contextlib.suppress(OSError):  # the import will say what is missing
        os.chdir(folder)
