"""The runs of functions and commands that a scheduler has forked: starting, watching, reaping, and telling how they went.

start -> schedule.started -> (runner.py, in the run) -> reap -> schedule.done | schedule.failed

Nothing here waits for a run. Runs stay in the scheduler's process group and die with it.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from qd.app import Qd
from qd.config.settings import Settings
from qd.errors import QdError
from qd.log import Log
from qd.master.postmortem import OomKills
from qd.process import fork
from qd.process.exit_codes import told
from qd.schedule.entry import Entry
from qd.scheduler.overlaps import HeldOverlap, Overlaps
from qd.scheduler.runner import Outcome, Runner, RunRecord, Stage, end_all_marked, end_marked, end_trees
from qd.store.base import Store

HOOK_SECONDS = 60.0  # what hooks and listeners before the function, and those after it, may take together
GONE_WITHIN = 2.0  # seconds that killed runs have to be gone


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that is over. tick: unix seconds; runtime: seconds of the function or command; code: its exit code, below 0 a
    signal, None where there is none; error: in words, "" when it ended well."""

    entry: Entry
    tick: float
    runtime: float
    code: int | None
    error: str
    pid: int


@dataclass(slots=True)
class Run:
    """ended_for: why we have killed it. telling: a process that only tells how another one ended. held: its lease, of an
    entry without_overlapping."""

    entry: Entry
    tick: float
    owner: str
    record: RunRecord
    telling: bool = False
    began: int = field(default_factory=time.monotonic_ns)
    ended_for: str = ""
    held: HeldOverlap | None = None


class Runs:
    """store: on the control connection, of the scheduler's own. forked: called first in each run, to close there what is the
    scheduler's. hook_seconds: see HOOK_SECONDS."""

    def __init__(
        self,
        app: Qd,
        settings: Settings,
        log: Log,
        store: Store,
        *,
        host: str = "",
        forked: Callable[[], object] = bool,
        hook_seconds: float = HOOK_SECONDS,
    ) -> None:
        self.app, self.settings, self.log = app, settings, log
        self._forked, self._hook_seconds = forked, hook_seconds
        self._overlaps = Overlaps(
            store, host or socket.gethostname(), settings.schedule.lease, self._lease_lost, self._lease_refused
        )
        self._runs: dict[int, Run] = {}
        self._unborn: list[Ended] = []
        self._count = 0
        self._token = ""
        self._ending = False
        self._oom = OomKills()

    # -- what the scheduler's loop calls

    def waits(self, entry: Entry) -> str | None:
        """None: the entry may run now; of one without_overlapping the lease is taken, and `start` or `forgo` is to follow.
        Else why not: who runs it. Raises ConnectionLost."""
        return self._overlaps.take(entry) if entry.alone else None

    def forgo(self, entry: Entry) -> None:
        """It was not started after all."""
        self._overlaps.forgo(entry.name)

    def start(self, entry: Entry, tick: float, owner: str) -> None:
        """Fork a run of it, and return. owner: the master's token (or a word of its own where there is none): what the run
        starts is known by it. A process that cannot be had is a failed run."""
        self._count += 1
        self._token = owner.partition("/")[0]
        run = Run(entry, tick, f"{self._token}/run-{os.getpid()}-{self._count}", RunRecord())
        runner = self._runner(run)
        try:
            pid = self._fork(run, runner.run)
        except OSError as error:
            run.record.close()
            self._not_started(entry, tick, error)
            return
        run.held = self._overlaps.begun(entry.name, pid)
        self.log.info("schedule.started", entry=entry.name, at=moment(tick), pid=pid)

    def reap(self) -> list[Ended]:
        """Take the runs that have ended, and end those whose time is over. To be called at each SIGCHLD, and when `wants`
        is over. Asks no server."""
        self._end_overdue()
        unborn, self._unborn = self._unborn, []
        reaped = [self._reap(pid, run) for pid, run in list(self._runs.items())]
        return [*unborn, *(ended for ended in reaped if ended is not None)]

    def renew(self) -> None:
        """Free the leases of runs that have ended, renew those of the others when it is time. After each `reap`. Raises
        ConnectionLost; the next call goes on then."""
        self._overlaps.renew()

    def later(self) -> None:
        """Instead of `renew`, while the server is away: `wants` lets it rest."""
        self._overlaps.later()

    @property
    def alive(self) -> int:
        """Processes that still run, those that only tell how another ended among them."""
        return len(self._runs)

    @property
    def running(self) -> list[tuple[str, int]]:
        """The entries that run and since when (monotonic ns), the first one first."""
        return [(run.entry.name, run.began) for run in self._runs.values() if not run.telling]

    @property
    def wants(self) -> float:
        """Seconds until `reap` or `renew` has something to do by the clock; inf: nothing."""
        at = time.monotonic_ns()
        timers = [max(0.0, (deadline - at) / 1e9) for run in self._runs.values() if (deadline := self._deadline(run))]
        return min([self._overlaps.wants, *timers])

    def end(self) -> list[Ended]:
        """Kill all that still run, and take them. Their hooks and listeners are not called any more."""
        self._ending = True
        for run in self._runs.values():
            run.ended_for = run.ended_for or "ended: its scheduler stops"
        if self._runs:
            end_trees(self._runs)
        ended, until = list[Ended](), time.monotonic() + GONE_WITHIN
        while self._runs and time.monotonic() < until:
            ended += self.reap()
            time.sleep(0.002)
        if ended:
            end_all_marked(self._token)
        with suppress(QdError):
            self._overlaps.renew()
        return ended

    def run_here(self, entry: Entry, tick: float, owner: str) -> Ended:
        """Run one to its end and wait for it, hooks and listeners too: `qd schedule test`. Nothing else may run by these
        Runs. No lease is asked for. An exception that comes meanwhile (Ctrl-C) ends the run."""
        ended = list[Ended]()
        try:
            self.start(entry, tick, owner)
            while not ended or self._runs:
                ended += self.reap()
                time.sleep(min(self.wants, 0.01))
        finally:
            self.end()
        return ended[0]

    # -- beginning

    def _runner(self, run: Run) -> Runner:
        return Runner(self.app, self.settings, self.log, run.entry, run.tick, run.record, run.owner)

    def _fork(self, run: Run, body: Callable[[], int]) -> int:
        def in_run() -> int:
            self._forked()
            return body()

        pid = fork.fork(in_run, own_group=False)
        self._runs[pid] = run
        return pid

    def _not_started(self, entry: Entry, tick: float, error: OSError) -> None:
        self._overlaps.forgo(entry.name)
        words = f"no process could be started for it: {error.strerror}"
        self.log.error("schedule.failed", entry=entry.name, at=moment(tick), error=words)
        self._unborn.append(Ended(entry, tick, 0.0, None, words, 0))

    # -- watching

    def _deadline(self, run: Run) -> int:
        """Monotonic ns, 0: none."""
        if run.ended_for:
            return 0
        seconds = run.entry.timeout if run.record.stage == Stage.BODY else self._hook_seconds
        return run.record.since + int(seconds * 1e9) if seconds else 0

    def _end_overdue(self) -> None:
        at = time.monotonic_ns()
        for pid, run in self._runs.items():
            deadline = self._deadline(run)
            if deadline and at >= deadline:
                body = run.record.stage == Stage.BODY
                what = f"ran longer than its timeout ({run.entry.timeout:g}s)"
                self._kill(pid, run, what if body else f"its hooks or listeners took more than {self._hook_seconds:g}s")

    def _kill(self, pid: int, run: Run, why: str) -> None:
        run.ended_for = why
        end_trees([pid])

    # -- reaping

    def _reap(self, pid: int, run: Run) -> Ended | None:
        try:
            found, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:  # somebody else has waited for it: foreign code in this process
            found, status = pid, 0
        if not found:
            return None
        del self._runs[pid]
        if os.WIFSIGNALED(status) and not self._ending:
            end_marked(run.owner, run.began)
        ended = None if run.telling else self._over(pid, run, status)
        if run.record.stage == Stage.AFTER:
            how = run.ended_for or told(status)
            self.log.warning("schedule.hooks_cut", entry=run.entry.name, at=moment(run.tick), pid=pid, reason=how)
        run.record.close()
        return ended

    def _over(self, pid: int, run: Run, status: int) -> Ended:
        entry = run.entry
        self._overlaps.end(run.held)
        outcome = run.record.outcome
        if outcome is None:
            outcome = self._died(run, status)
            self._tell_later(run, outcome)
        fields = {"entry": entry.name, "at": moment(run.tick), "took": outcome.runtime, "pid": pid}
        if outcome.error:
            more = {"code": outcome.code, "error": outcome.error, "trace": outcome.trace}
            self.log.error("schedule.failed", **fields, **more)
        else:
            self.log.info("schedule.done", **fields)
        return Ended(entry, run.tick, outcome.runtime, outcome.code, outcome.error, pid)

    def _died(self, run: Run, status: int) -> Outcome:
        """It has ended without a word."""
        runtime = (time.monotonic_ns() - run.record.since) / 1e9 if run.record.stage == Stage.BODY else 0.0
        code = os.waitstatus_to_exitcode(status)
        oom = ", out of memory (the kernel)" if self._oom.killed(status) else ""
        words = f"left with exit code {code} before it returned (os._exit)" if code >= 0 else told(status) + oom
        return Outcome(runtime, code, run.ended_for or words)

    def _tell_later(self, run: Run, outcome: Outcome) -> None:
        """Hooks and listeners hear of it from a process of its own: nothing of theirs runs in the scheduler."""
        if self._ending:
            return
        telling = Run(run.entry, run.tick, run.owner, RunRecord(), telling=True)
        runner = self._runner(telling)
        with suppress(OSError):
            self._fork(telling, lambda: runner.aftermath(outcome))

    def _lease_lost(self, name: str, reason: str) -> None:
        self.log.error("schedule.lease_lost", entry=name, reason=reason)

    def _lease_refused(self, name: str, error: str) -> None:
        self.log.error("schedule.refused", entry=name, error=error)


def moment(tick: float) -> str:
    """As lines of the log say it: UTC, with a fraction where the tick has one."""
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(tick))
    fraction = f"{tick % 1:.3f}"[1:]
    return f"{text}{fraction if fraction != '.000' else ''}Z"
