"""The master: starts, reaps, kills on time, keeps the number, tells systemd. Nothing here can block it.

    signal -> mailbox -> wait -> act          TERM stop, USR2 pause, CONT resume, HUP new code, TTIN / TTOU number, USR1 dump
    child ends -> CHLD -> reaping.py -> keeper told -> the slot is free again once the keeper has moved its jobs
    news (Ear) -> news.py: imported, born, ready, restart asked for, lease lost, job cancelled
    clock -> late.py: jobs over their deadline, silent workers; hung imports, silent keeper; ending.py: the stop deadline
    and at each look spawning.py keeps the number

Called by daemon.py with a Plan; knows neither app nor Redis.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from qd.errors import ConfigError
from qd.log import Log
from qd.master.boots import Boots
from qd.master.children import Children
from qd.master.code import Codes
from qd.master.emptiness import Emptiness
from qd.master.ending import Ending
from qd.master.forking import Forking
from qd.master.keeping import Keeping
from qd.master.late import Late
from qd.master.liveness import Liveness
from qd.master.mending import Mending
from qd.master.news import News
from qd.master.plan import Plan
from qd.master.reaping import Reaping
from qd.master.rolling import Rolling
from qd.master.spawning import Spawning
from qd.master.stopping import Stopping
from qd.master.telling import Face, counted, dump
from qd.process import signals, systemd, vitals
from qd.process.exits import Exit
from qd.process.scoreboard import H, Role, Scoreboard, Verdict, now
from qd.process.talk import Ear, Message

MOST = 200  # of the 256 places; the rest are for those who come while others leave
WATCH = 0.3  # seconds between two looks at the scoreboard; less than the grace of a job over its deadline
QUICK = 0.03  # the same while something is about to end
SIGNALS = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGCHLD,
    signal.SIGWINCH,
    signal.SIGALRM,
)
ALIKE = frozenset({signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT, signal.SIGCHLD})


def as_one(numbers: list[int]) -> list[int]:
    """Signals that came in one look: many of a kind are one, or a burst would keep the master from its children."""
    return [*{number for number in numbers if number in ALIKE}, *(number for number in numbers if number not in ALIKE)]


class Master:
    def __init__(
        self,
        plan: Plan,
        *,
        token: str,
        log: Log,
        notifier: systemd.Notifier,
        title: Callable[[str], None],
        replan: Callable[[], Plan],
        announce: Callable[[Message], None],
    ) -> None:
        """title: sets the process title. replan: reads the configuration again, may raise ConfigError.
        announce: told what the app's first import reported, to say the first line."""
        self.plan, self.token, self.log, self.notifier = plan, token, log, notifier
        self.announce, self._replan = announce, replan
        self.board = Scoreboard()
        self.children = Children(self.board)
        self.codes = Codes()
        self.mailbox = signals.Mailbox()
        self.ear = Ear()
        self.keeping = Keeping(self.board, log)
        self.wanted = plan.workers
        self.paused = False
        self.stopping: Stopping | None = None
        self.handed_back = self.jobs = 0
        self.forking = Forking(token, self.board, self.ear, self.mailbox, self.codes, self.keeping, log)
        self.rolling = Rolling(self.codes, self.children, self.board, self.forking, notifier, log, os.environ)
        self._face = Face(title, notifier)
        self.liveness = Liveness(plan.pool, log, os.environ)
        self.boots, self.emptiness = {role: Boots() for role in Role}, Emptiness()
        self.late, self.mending = Late(self.children, log), Mending(self.board, self.children, log)
        self.news, self.reaping, self.spawning, self.ending = News(self), Reaping(self), Spawning(self), Ending(self)

    # -- the loop

    def run(self) -> int:
        self._started = time.monotonic()
        # Asked before a HUP comes: when it does, the kernel has already taken a closed terminal away. nohup ignores HUP.
        self._in_terminal = has_terminal() and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
        vitals.set_subreaper()
        self.mailbox.open(SIGNALS)
        try:
            self.rolling.begin(self.plan, self.spawning.spawn)
            while self.stopping is None or not self.stopping.over:
                # Two signals pending at once run their handlers in no order: in one look, CONT comes after USR2.
                for number in sorted(as_one(self.mailbox.wait(self._pause(), self.ear.fileno()))):
                    self._signal(number)
                self._turn()
            return int(self.stopping.code)
        finally:
            self._close()

    def _turn(self) -> None:
        self.board.set_header(H.MASTER_AT, now())
        self.board.set_header(H.SCHEDULER, self.wants()[Role.SCHEDULER])
        self.news.hear()
        forked_at = self.codes.serving.forked_ns if self.codes.serving is not None else None
        mended = self.mending.look(paused=self.paused, stopping=self.stopping is not None, forked_at=forked_at)
        self.keeping.tell_again(mended)
        self.children.oom.look()
        self.reaping.reap()
        self.late.end(self.plan.memory_hard, self.plan.silence)
        if self.stopping is None:
            if self.rolling.look_after(self.spawning.spawn):
                self._take_over()
            self.spawning.look_after_template()
            self.spawning.keep_number()
            empty = self.children.all_found_nothing()
            at_once, seconds = self.plan.stop_when_empty, self.plan.stop_when_empty_for
            reason = self.emptiness.reason(empty, self.jobs_done, at_once, seconds)
            if reason is not None:
                self.stop(reason, Exit.OK)
        else:
            self.ending.go_on(self.stopping)
        self.keeping.want(self.rolling.settings())
        self.keeping.watch(lambda *what: self.forking.keeper(self.plan, *what), self.children.dead)
        self._show()

    def wants(self) -> dict[Role, int]:
        """How many of each are to serve."""
        code = self.codes.serving
        return {
            Role.WORKER: self.wanted,
            Role.SCHEDULER: self.plan.schedulers(code.entries) if code is not None else 0,
        }

    def _pause(self) -> float:
        waits = [WATCH]
        if self.stopping is not None or self.codes.coming is not None or self.plan.stop_when_empty or self.plan.once:
            waits.append(QUICK)
        deadline = self.late.next()
        if deadline is not None:
            waits.append(deadline)
        if self.notifier.watchdog_interval:
            waits.append(self.notifier.watchdog_interval / 2)
        return min(waits)

    def _close(self) -> None:
        for worker in list(self.children.workers.values()):
            self.children.kill(worker, Verdict.HAND_BACK)
        self.codes.end()
        self.keeping.kill()
        deadline = time.monotonic() + 2.0  # what SIGKILL does not end by then is the kernel's
        while (self.codes.leaving or self.children.workers) and time.monotonic() < deadline:
            if self.reaping.one() is None:
                self.mailbox.wait(QUICK)
        self.mailbox.leave()
        self.liveness.end()

    # -- signals

    def _signal(self, number: int) -> None:
        if number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            self._asked_to_stop(signal.Signals(number).name)
        elif number == signal.SIGHUP:
            if not self._in_terminal or has_terminal():
                self.reload("SIGHUP")
            elif self.stopping is None:  # the shell and the kernel may send one each: a second is no second request
                self._asked_to_stop("SIGHUP")
        elif number == signal.SIGUSR2 and self.stopping is None:
            self._set_paused(True)
        elif number == signal.SIGCONT and self.stopping is None:
            self._set_paused(False)
        elif number == signal.SIGTTIN:
            self._resize(self.wanted + 1)
        elif number == signal.SIGTTOU:
            self._resize(self.wanted - 1)
        elif number == signal.SIGUSR1:
            dump(self.log, self.children, self.wanted, self.paused)

    def _asked_to_stop(self, name: str) -> None:
        if self.stopping is None:
            self.stop(f"signal {name}", Exit.OK, by_signal=True)
        elif self.stopping.again():
            self.log.warning("master.stopping", reason=f"{name} again", running=len(self.children))

    def _set_paused(self, paused: bool) -> None:
        if paused != self.paused:
            self.log.info("master.paused" if paused else "master.resumed")
        self.paused = paused
        self.board.set_header(H.PAUSED, int(paused))
        for worker in self.children.workers.values():
            worker.send(signal.SIGUSR2 if paused else signal.SIGCONT)

    def _resize(self, number: int) -> None:
        self.wanted = min(max(1, number), MOST) if self.plan.workers else 0
        self.log.info("master.resized", workers=self.wanted)

    # -- code

    def reload(self, why: str) -> None:
        """New code, new before old. The configuration is read again; a bad one changes nothing."""
        if self.stopping is not None:
            return
        self.rolling.enter()
        try:
            plan = self._replan()
        except (ConfigError, OSError) as error:  # OSError: the folder it was started in is gone
            self.log.error("master.reload_refused", reason=str(error))
            return
        self.log.info("master.reloading", why=why)
        self.notifier.reloading()
        self.rolling.begin(plan, self.spawning.spawn)

    def _take_over(self) -> None:
        """The new code serves: its configuration is ours."""
        assert self.codes.serving is not None
        self.plan = self.codes.serving.plan
        self.wanted = self.plan.workers
        self.spawning.new_code()
        self.log.tune(self.plan.log_format, self.plan.log_level)

    # -- the end

    def stop(self, reason: str, code: Exit, *, by_signal: bool = False) -> None:
        """Begin to stop: drain the workers, hand back what still runs at the deadline, let the keeper settle, leave."""
        deadline = self.plan.stop_timeout or None
        fate = "handed back" if any(worker.has_job for worker in self.children.workers.values()) else "ended"
        running = self.busy
        hint = f"what still runs then is {fate}; a second signal ends it now" if running and deadline else None
        linger = 0.0 if by_signal else self._started + self.plan.min_uptime
        self.stopping = Stopping(code, self.plan.stop_timeout, linger, by_signal)
        self.notifier.stopping()
        if self.codes.coming is not None and not self.codes.coming.imported:
            self.codes.give_up()
        self.board.set_header(
            H.STOP_AT, self.stopping.deadline_ns
        )  # first: whoever is told to leave reads how long it has
        for worker in self.children.workers.values():
            worker.drain()
        # Behind that: who reads it may rely on it that no worker takes another job.
        self.log.info("master.stopping", reason=reason, running=running, deadline=deadline, hint=hint)

    @property
    def jobs_done(self) -> int:
        return self.jobs + self.children.jobs_done

    def _show(self) -> None:
        state = (
            "stopping" if self.stopping else "paused" if self.paused else "down" if self.board.header(H.DOWN) else ""
        )
        self._face.show(counted(self.children, only_schedule=not self.plan.workers), state)
        workers, leads = len(self.children.of(Role.WORKER)), self.plan.leads
        if self._face.ready(self.children.serving(role=leads), max(1, self.wants()[leads])):
            self.log.info("master.ready", workers=workers)
        self.liveness.tell(workers, self._face.is_ready, self.keeping.silent_for)

    @property
    def busy(self) -> int:
        return sum(worker.busy for worker in self.children.workers.values())


def has_terminal() -> bool:
    """Whether this process has a controlling terminal that is open."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
