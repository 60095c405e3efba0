"""The runs of functions and commands that a scheduler has forked: started, watched, reaped and reported.

    start -> schedule.started -> (runner.py, in the run) -> reap -> schedule.done | schedule.failed

Nothing here blocks on a run. Runs stay in the scheduler's process group and die with it.

Overlaps: which without_overlapping() entries run now, and where: a lease for each, held as long as the run lives.

    qd:overlap:NAME -> JSON {host, pid, at, owner}     renewed at a third of the lease; freed when the run has ended

pid is the scheduler's until the run has one. The beginning and end of a run do not query the server: they are noted, and
the next call of `renew` does the rest.
"""

from __future__ import annotations

import json
import math
import os
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from qd.drivers.keyspace import keys
from qd.errors import QdError, ServerBusy, ServerRefused
from qd.log import Log
from qd.master.postmortem import OomKills
from qd.process import fork
from qd.process.exit_codes import ending
from qd.schedule.entry import Entry
from qd.scheduler.runner import Outcome, RunContext, Runner, RunRecord, Stage, end_trees, waited
from qd.store.base import Store
from qd.store.locks import Lease

HOOK_SECONDS = 60.0  # that the hooks and listeners before a function may take together; the same after it
GONE_WITHIN = 2.0  # seconds in which killed runs must have ended


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that has ended. tick: unix seconds. runtime: seconds. code: exit code, below 0 a signal, None for functions.
    error: why it failed, or ""."""

    entry: Entry
    tick: float
    runtime: float
    code: int | None
    error: str
    pid: int


@dataclass(slots=True)
class Run:
    """aftermath: a second process, which only reports how the first one ended. ended_for: why we killed it. held: the lease
    of a without_overlapping() entry."""

    entry: Entry
    tick: float
    owner: str
    record: RunRecord
    aftermath: bool = False
    began: int = field(default_factory=time.monotonic_ns)
    ended_for: str = ""
    held: HeldOverlap | None = None


class Runs:
    """store: on the scheduler's own control connection. Call `overlaps.renew` after `reap`."""

    def __init__(self, context: RunContext, store: Store, host: str = "", hook_seconds: float = HOOK_SECONDS) -> None:
        self.context, self.log, self._hook_seconds = context, context.log, hook_seconds
        self.overlaps = Overlaps(store, host or socket.gethostname(), context.settings.schedule.lease, context.log)
        self._runs: dict[int, Run] = {}
        self._failed_starts: list[Ended] = []
        self._count = 0
        self._ending = False
        self._oom = OomKills()

    # -- called by the scheduler

    def blocked_by(self, entry: Entry) -> str | None:
        """None if the entry may run now, else why not. Takes the lease of a without_overlapping() entry: `start`
        must follow. Raises ConnectionLost."""
        return self.overlaps.take(entry) if entry.alone else None

    def start(self, entry: Entry, tick: float) -> None:
        """Fork a run and return. If fork fails, the run counts as failed."""
        self._count += 1
        run = Run(entry, tick, f"{self.context.token}/run-{os.getpid()}-{self._count}", RunRecord())
        try:
            pid = self._fork(run, Runner.run)
        except OSError as error:
            run.record.close()
            self.overlaps.forgo(entry.name)
            reason = f"no process could be started for it: {error.strerror}"
            self.log.error("schedule.failed", entry=entry.name, at=moment(tick), error=reason)
            self._failed_starts.append(Ended(entry, tick, 0.0, None, reason, 0))
            return
        run.held = self.overlaps.begun(entry.name, pid)
        self.log.info("schedule.started", entry=entry.name, at=moment(tick), pid=pid)

    def reap(self) -> list[Ended]:
        """Collect ended runs, and kill those over their limit. Call at each SIGCHLD, and after `due_in` seconds. Does not
        query the server."""
        self._end_overdue()
        ended, self._failed_starts = self._failed_starts, []
        reaped = [self._reap(pid, run) for pid, run in list(self._runs.items())]
        return [*ended, *(each for each in reaped if each is not None)]

    @property
    def alive(self) -> int:
        """Number of processes, including aftermaths."""
        return len(self._runs)

    @property
    def running(self) -> list[tuple[str, int]]:
        """The running entries and since when (monotonic ns), the oldest first."""
        return [(run.entry.name, run.began) for run in self._runs.values() if not run.aftermath]

    @property
    def due_in(self) -> float:
        """Seconds until `reap` or `overlaps.renew` must be called; inf if SIGCHLD is enough."""
        at = time.monotonic_ns()
        timers = [max(0.0, (deadline - at) / 1e9) for run in self._runs.values() if (deadline := self._deadline(run))]
        return min([self.overlaps.due_in, *timers])

    def end(self) -> list[Ended]:
        """Kill and collect all runs. Their hooks and listeners are not called."""
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
            fork.kill_left_by_runs(self.context.token, os.getpid(), lambda: None)
        with suppress(QdError):
            self.overlaps.renew()
        return ended

    def run_here(self, entry: Entry, tick: float) -> Ended:
        """Run one to its end, including hooks and listeners (`qd schedule test`), without a lease. No other runs may be
        alive. An exception, such as KeyboardInterrupt, ends the run."""
        ended = list[Ended]()
        try:
            self.start(entry, tick)
            while not ended or self._runs:
                ended += self.reap()
                time.sleep(min(self.due_in, 0.01))
        finally:
            self.end()
        return ended[0]

    # -- starting

    def _fork(self, run: Run, body: Callable[[Runner], int]) -> int:
        runner = Runner(self.context, run.entry, run.tick, run.record, run.owner)
        pid = fork.fork(lambda: body(runner), own_group=False)
        self._runs[pid] = run
        return pid

    # -- watching

    def _deadline(self, run: Run) -> int:
        """Monotonic ns, 0 for none."""
        if run.ended_for:
            return 0
        seconds = run.entry.timeout if run.record.stage == Stage.BODY else self._hook_seconds
        return run.record.since + int(seconds * 1e9) if seconds else 0

    def _end_overdue(self) -> None:
        at = time.monotonic_ns()
        for pid, run in self._runs.items():
            deadline = self._deadline(run)
            if deadline and at >= deadline:
                if run.record.stage == Stage.BODY:
                    run.ended_for = f"ran longer than its timeout ({run.entry.timeout:g}s)"
                else:
                    run.ended_for = f"its hooks or listeners took more than {self._hook_seconds:g}s"
                end_trees([pid])

    # -- reaping

    def _reap(self, pid: int, run: Run) -> Ended | None:
        if (status := waited(pid)) is None:
            return None
        del self._runs[pid]
        if os.WIFSIGNALED(status) and not self._ending:
            fork.kill_left_by_job(run.owner, run.began, lambda: None)  # whatever their parent is now
        ended = None if run.aftermath else self._over(pid, run, status)
        if run.record.stage == Stage.AFTER:
            how = run.ended_for or ending(status)
            self.log.warning("schedule.hooks_cut", entry=run.entry.name, at=moment(run.tick), pid=pid, reason=how)
        run.record.close()
        return ended

    def _over(self, pid: int, run: Run, status: int) -> Ended:
        entry = run.entry
        self.overlaps.end(run.held)
        outcome = run.record.outcome
        if outcome is None:
            outcome = self._died(run, status)
            self._fork_aftermath(run, outcome)
        fields: dict[str, Any] = {"entry": entry.name, "at": moment(run.tick), "took": outcome.runtime, "pid": pid}
        if outcome.error:
            fields |= {"code": outcome.code, "error": outcome.error, "trace": outcome.trace}
            self.log.error("schedule.failed", **fields)
        else:
            self.log.info("schedule.done", **fields)
        return Ended(entry, run.tick, outcome.runtime, outcome.code, outcome.error, pid)

    def _died(self, run: Run, status: int) -> Outcome:
        """The process ended without an outcome on its record."""
        runtime = (time.monotonic_ns() - run.record.since) / 1e9 if run.record.stage == Stage.BODY else 0.0
        code = os.waitstatus_to_exitcode(status)
        reason = f"left with exit code {code} before it returned (os._exit)"
        if code < 0:
            reason = ending(status, oom=self._oom.killed(status))
        return Outcome(runtime, code, run.ended_for or reason)

    def _fork_aftermath(self, run: Run, outcome: Outcome) -> None:
        """Call hooks and listeners in a separate process: none of them runs in the scheduler."""
        if self._ending:
            return
        aftermath = Run(run.entry, run.tick, run.owner, RunRecord(), aftermath=True)
        with suppress(OSError):
            self._fork(aftermath, lambda runner: runner.aftermath(outcome))


@lru_cache(maxsize=16)  # many entries share a tick
def moment(tick: float) -> str:
    """As written in log lines: UTC, with milliseconds if the tick has any."""
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(tick))
    fraction = f"{tick % 1:.3f}"[1:]
    return f"{text}{fraction if fraction != '.000' else ''}Z"


AGAIN = 0.5  # seconds until the next attempt, if the server is unreachable


@dataclass(slots=True, eq=False)
class HeldOverlap:
    """note: as stored. pid: to be stored next, 0: no change. renewed: monotonic seconds. again_at: the earliest next attempt
    after a refusal."""

    name: str
    lease: Lease
    note: dict[str, Any]
    renewed: float
    pid: int = 0
    again_at: float = 0.0


class Overlaps:
    """Each run has its own lease: an entry may have several, if an operator has cleared that of the first run. seconds: how
    long a lease holds."""

    def __init__(self, store: Store, host: str, seconds: float, log: Log) -> None:
        self.store, self.host, self.seconds, self._log = store, host, seconds, log
        self._taken: dict[str, HeldOverlap] = {}
        self._held: list[HeldOverlap] = []
        self._ended: list[Lease] = []
        self._again_at = 0.0
        self._refused: set[str] = set()  # entries whose lease the server refuses, and this was logged

    def take(self, entry: Entry) -> str | None:
        """None if the entry may run: `begun` or `forgo` must follow. Else where it runs, or why that is unknown. Raises
        ConnectionLost."""
        note = {"host": self.host, "pid": os.getpid(), "at": round(time.time(), 3), "owner": uuid.uuid4().hex}
        lease, at = Lease(key_of(entry, self.host), json.dumps(note), self.seconds), time.monotonic()
        try:
            self._free_ended()
            taken = lease.take(self.store)
        except ServerRefused as error:
            return self._refuse(entry.name, lease, error)
        self._refused.discard(entry.name)
        if taken is not None:
            return f"still running on {holder_text(taken)}"
        self._taken[entry.name] = HeldOverlap(entry.name, lease, note, at)
        return None

    def begun(self, name: str, pid: int) -> HeldOverlap | None:
        """Its run has this pid. Returns None if no lease was taken for it."""
        if (held := self._taken.pop(name, None)) is not None:
            held.pid = pid
            self._held.append(held)
        return held

    def forgo(self, name: str) -> None:
        """The run was not started."""
        self.end(self._taken.pop(name, None))

    def end(self, held: HeldOverlap | None) -> None:
        if held is None:
            return
        self._held = [each for each in self._held if each is not held]
        self._ended.append(held.lease)
        if held.pid:  # a lost reply: it may be stored already
            self._ended.append(self._named(held))

    def renew(self) -> None:
        """Free ended leases, and renew the others when it is time. If it raises ConnectionLost, the next call continues.
        A refusal of one lease does not stop the others."""
        self._again_at = time.monotonic() + AGAIN
        busy: ServerBusy | None = None
        self._free_ended()
        for held in list(self._held):
            if time.monotonic() >= self._due(held):
                try:
                    self._renew(held)
                except ServerRefused as error:
                    self._postpone(held)
                    self._refuse(held.name, held.lease, error)
                except ServerBusy as error:
                    self._postpone(held)
                    busy = error
        self._again_at = 0.0
        if busy is not None:
            raise busy

    def postpone(self) -> None:
        """The server is unreachable: `due_in` waits for a while."""
        self._again_at = time.monotonic() + AGAIN

    @property
    def due_in(self) -> float:
        """Seconds until `renew` must be called; inf if nothing is held."""
        due = 0.0 if self._ended else min(map(self._due, self._held), default=math.inf)
        return max(0.0, max(due, self._again_at) - time.monotonic())

    def _due(self, held: HeldOverlap) -> float:
        return max(held.again_at, 0.0 if held.pid else held.renewed + self.seconds / 3)

    def _postpone(self, held: HeldOverlap) -> None:
        held.again_at = time.monotonic() + self.seconds / 3

    def _refuse(self, name: str, lease: Lease, error: ServerRefused) -> str:
        why = f"its lease {lease.key} is refused by the server: {error}"
        if name not in self._refused:
            self._refused.add(name)
            self._log.error("schedule.refused", entry=name, error=why)
        return why

    def _renew(self, held: HeldOverlap) -> None:
        at, next_one = time.monotonic(), self._named(held)
        if held.lease.pass_to(self.store, next_one.owner) is not None:
            held.lease, held.renewed, held.pid = next_one, at, 0
            self._refused.discard(held.name)
            return
        cleared = at < held.renewed + self.seconds
        taken = "it was cleared by an operator" if cleared else held.lease.take(self.store)
        if taken is None:  # it expired while the server was unreachable
            held.renewed, reason = at, "it expired, and was taken again"
        else:
            self._held.remove(held)
            reason = taken if cleared else f"it expired, and {holder_text(taken)} runs it too"
        self._log.error("schedule.lease_lost", entry=held.name, reason=reason)

    def _named(self, held: HeldOverlap) -> Lease:
        if held.pid:
            held.note["pid"] = held.pid
        return Lease(held.lease.key, json.dumps(held.note), self.seconds)

    def _free_ended(self) -> None:
        while self._ended:
            with suppress(ServerRefused):  # the key holds something else by now
                self._ended[-1].free(self.store)
            self._ended.pop()


def key_of(entry: Entry, host: str) -> str:
    """One key for all hosts; one per host for an on_every_host() entry."""
    return keys.overlap(keys.of_host(host, entry.name) if entry.every_host else entry.name)


def holder_text(note: str) -> str:
    """The holder of a lease: "web1 (pid 412) since 12:00:01"."""
    try:
        found = json.loads(note)
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(found["at"])))
        return f"{found['host']} (pid {found['pid']}) since {clock}"
    except (ValueError, KeyError, TypeError, OverflowError, OSError):
        return "another host"
