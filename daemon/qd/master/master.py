"""The master: starts, reaps and kills children, keeps their number, notifies systemd. Nothing here may block.

    signal -> mailbox -> wait -> act    TERM stop, USR2 pause, CONT resume, HUP reload, TTIN / TTOU number, USR1 dump
    child ends -> CHLD -> reports.py -> report to the keeper -> the slot is free once the keeper has moved its jobs
    message -> reports.py               imported, born, ready, restart requested, lease lost, job cancelled
    clock -> watchdog.py: jobs over their deadline, silent workers; hung imports, silent keeper; state.py: a stop
    at each turn spawn.py keeps the number of children

daemon.py calls it with a MasterPlan. It knows neither the app nor a server.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from qd.log import Log
from qd.master.code import MasterPlan
from qd.master.reload import Reload
from qd.master.reports import Reports
from qd.master.spawn import Forker, Spawner
from qd.master.state import State
from qd.master.status import Status, dump
from qd.master.watchdog import LaneWatch, Watchdog
from qd.options.tables import WorkOptions
from qd.process import proc, systemd
from qd.process.channels import Imported
from qd.process.exit_codes import Exit
from qd.process.scoreboard import H, Role, Verdict, now

WATCH = 0.3  # seconds between two turns; less than the grace of a job over its deadline
QUICK = 0.03  # the same while something is about to end
MERGED = frozenset({signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT, signal.SIGCHLD})
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
SIGNALS = (*MERGED, *STOPS, signal.SIGTTIN, signal.SIGTTOU, signal.SIGWINCH, signal.SIGALRM)


def merged(numbers: list[int]) -> list[int]:
    """Handle several MERGED signals of one kind as one, or a burst would keep the master from its children."""
    return [*MERGED.intersection(numbers), *(number for number in numbers if number not in MERGED)]


class Master:
    def __init__(
        self,
        plan: MasterPlan,
        *,
        token: str,
        log: Log,
        notifier: systemd.Notifier,
        title: Callable[[str], None],
        replan: Callable[[], MasterPlan],
        announce: Callable[[Imported], None],
        prepare: Callable[[], None],
    ) -> None:
        """title: sets the process title. replan: reads the configuration again, may raise ConfigError.
        announce: called with the report of the app's first import, to log the first line.
        prepare: called before the first fork."""
        self._prepare = prepare
        self.state = state = State(plan, log, notifier)
        self.forker = Forker(state, token)
        self.spawner = Spawner(state, self.forker)
        self.reload = Reload(state, self.spawner, replan)
        self.reports = Reports(state, self.spawner, self.reload, announce)
        self.watchdog = Watchdog(state.children, log)
        self.lane_watch = LaneWatch(state.children, log)
        self.emptiness = Emptiness()
        self.status = Status(state, title, os.environ)

    # -- the loop

    def run(self) -> int:
        state = self.state
        state.started_at = time.monotonic()
        # Checked before any HUP: when one arrives, the kernel has already detached a closed terminal. nohup ignores HUP.
        self._in_terminal = has_terminal() and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
        proc.set_subreaper()
        state.mailbox.open(SIGNALS)
        try:
            self._prepare()
            self.reload.begin(state.plan)
            self.reload.own.remember()  # while the template imports
            while state.stopping is None or not state.stopping.over:
                # Handlers of signals pending at the same time run in no fixed order: here CONT comes after USR2.
                for number in sorted(merged(state.mailbox.wait(self._pause(), state.receiver.fileno()))):
                    self._signal(number)
                self._turn()
            return int(state.stopping.code)
        finally:
            self._close()

    def _turn(self) -> None:
        state = self.state
        state.board.set_header(H.MASTER_AT, now())
        state.board.set_header(H.WANTED, state.wanted)
        state.board.set_header(H.SCHEDULER, state.wants()[Role.SCHEDULER])
        self.reports.handle()
        state.children.free_settled()
        state.children.oom.look()
        self.reports.reap()
        self.watchdog.check(state.plan.work.memory_hard, state.plan.silence)
        self.lane_watch.check(state.plan.work)
        if state.stopping is None:
            self.reload.go_on()
            self.spawner.keep_number()
            self._stop_when_empty()
        else:
            state.go_on_stopping(state.stopping)
        state.keeper.want(self.reload.settings())
        state.keeper.watch(lambda *what: self.forker.keeper(state.plan, *what), state.children.dead)
        self.status.show()

    def _stop_when_empty(self) -> None:
        state, plan = self.state, self.state.plan
        empty = state.children.all_found_nothing()
        held = state.board.header(H.DOWN) != 0 and not plan.work.force
        reason = self.emptiness.reason(empty, state.jobs_run, plan.work, held=held)
        if reason is not None:
            state.begin_stop(reason, Exit.OK)

    def _pause(self) -> float:
        state, work = self.state, self.state.plan.work
        quick = state.stopping or state.codes.coming or work.stop_when_empty or work.once
        watched = self.watchdog.next(), self.lane_watch.next
        waits = (QUICK if quick else WATCH, *watched, (state.notifier.watchdog_interval or 0.0) / 2)
        return min(wait for wait in waits if wait)

    def _close(self) -> None:
        children, codes = self.state.children, self.state.codes
        for worker in list(children.workers.values()):
            children.kill(worker, Verdict.HAND_BACK)
        codes.end()
        self.state.keeper.kill()
        deadline = time.monotonic() + 2.0  # a process that SIGKILL has not ended by then hangs in the kernel
        while (codes.leaving or children.workers) and time.monotonic() < deadline:
            if self.reports.reap_one() is None:
                self.state.mailbox.wait(QUICK)
        self.state.mailbox.leave()
        self.status.remove_liveness()

    # -- signals

    def _signal(self, number: int) -> None:
        state = self.state
        if number in STOPS:
            self._stop(signal.Signals(number).name)
        elif number == signal.SIGHUP:
            if not self._in_terminal or has_terminal():
                self.reload.request("SIGHUP")
            elif state.stopping is None:  # the shell and the kernel may both send one: the second means nothing more
                self._stop("SIGHUP")
        elif number == signal.SIGUSR2 and state.stopping is None:
            self._set_paused(True)
        elif number == signal.SIGCONT and state.stopping is None:
            self._set_paused(False)
        elif number == signal.SIGTTIN:
            state.resize(state.wanted + 1)
        elif number == signal.SIGTTOU:
            state.resize(state.wanted - 1)
        elif number == signal.SIGUSR1:
            dump(state)

    def _stop(self, name: str) -> None:
        state = self.state
        if state.stopping is None:
            state.begin_stop(f"signal {name}", Exit.OK, by_signal=True)
        elif state.stopping.again():
            state.log.warning("master.stopping", reason=f"{name} again", running=len(state.children.workers))

    def _set_paused(self, paused: bool) -> None:
        state = self.state
        if paused != state.paused:
            state.log.info("master.paused" if paused else "master.resumed")
        state.paused = paused
        state.board.set_header(H.PAUSED, int(paused))
        for worker in state.children.workers.values():
            worker.send(signal.SIGUSR2 if paused else signal.SIGCONT)


def has_terminal() -> bool:
    """Whether this process has a controlling terminal that is open."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


class Emptiness:
    """Since when every worker has found no job: for --stop-when-empty and --stop-when-empty-for."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._jobs = 0

    def reason(self, empty: bool, jobs: int, work: WorkOptions, *, held: bool) -> str | None:
        """Why to stop now, or None. empty: no worker finds a job now. jobs: the number done so far; a job may have been
        done between two calls. held: maintenance mode shuts queues."""
        now, at_once, seconds = time.monotonic(), work.stop_when_empty, work.stop_when_empty_for
        if jobs != self._jobs:
            self._jobs, self._since = jobs, None
        self._since = (self._since or now) if empty else None
        if self._since is None or not (at_once or seconds):
            return None
        empty_or_held = "empty or held by maintenance mode" if held else "empty"
        if at_once:
            return f"the queues are {empty_or_held}"
        return f"the queues were {empty_or_held} for {seconds:g} s" if now - self._since >= seconds else None
