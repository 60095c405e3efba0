"""The master: starts, reaps, kills on time, keeps the number, tells systemd. Nothing here can block it.

    signal -> mailbox -> wait -> act          TERM stop, USR2 pause, CONT resume, HUP new code, TTIN / TTOU number, USR1 dump
    child ends -> CHLD -> reap -> keeper told -> the slot is free again once the keeper has moved its jobs
    news (Ear) -> imported, born, ready, restart asked for, lease lost
    clock -> jobs over their deadline, hung imports, silent keeper, the stop deadline

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
from qd.master.children import Children, Death
from qd.master.code import Code, Codes
from qd.master.forking import Forking
from qd.master.keeping import Keeping
from qd.master.liveness import Liveness
from qd.master.plan import Plan, Seat
from qd.master.rolling import Rolling
from qd.master.stopping import Emptiness, Stopping
from qd.master.telling import Face, dump, tell_death
from qd.process import child, signals, systemd, vitals
from qd.process.exits import Exit, told
from qd.process.scoreboard import H, Scoreboard, Verdict, Why
from qd.process.talk import Ear, Message

MOST = 200  # of the 256 places; the rest are for those who come while others leave
WATCH = 0.3  # seconds between two looks at the scoreboard; less than the grace of a job over its deadline
QUICK = 0.03  # the same while something is about to end
REVIVE = (1.0, 60.0)  # seconds between two tries to replace a template that died, while the code is bad
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
        self._replan, self._announce = replan, announce
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
        self.boots, self.emptiness = Boots(), Emptiness()
        self._revive_at, self._revive_in = 0.0, REVIVE[0]

    # -- the loop

    def run(self) -> int:
        self._started = time.monotonic()
        vitals.set_subreaper()
        self.mailbox.open(SIGNALS)
        try:
            self.rolling.begin(self.plan, self._spawn)
            while self.stopping is None or not self.stopping.over:
                # Two signals pending at once run their handlers in no order: in one look, CONT comes after USR2.
                for number in sorted(self.mailbox.wait(self._pause(), self.ear.fileno())):
                    self._signal(number)
                self._turn()
            return int(self.stopping.code)
        finally:
            self._close()

    def _turn(self) -> None:
        self._hear()
        self._reap()
        self.children.end_late(self.plan.memory_hard)
        if self.stopping is None:
            if self.rolling.look_after(self._spawn):
                self._take_over()
            self._look_after_template()
            self._keep_number()
            empty = self.children.all_found_nothing()
            at_once, seconds = self.plan.stop_when_empty, self.plan.stop_when_empty_for
            reason = self.emptiness.reason(empty, self.jobs_done, at_once, seconds)
            if reason is not None:
                self.stop(reason, Exit.OK)
        else:
            self._go_on_stopping(self.stopping)
        self.keeping.want(self.rolling.settings())
        self.keeping.watch(lambda *what: self.forking.keeper(self.plan, *what))
        self._show()

    def _pause(self) -> float:
        waits = [WATCH]
        if self.stopping is not None or self.codes.coming is not None or self.plan.stop_when_empty or self.plan.once:
            waits.append(QUICK)
        deadline = self.children.next_deadline()
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
            if self._reap_one() is None:
                self.mailbox.wait(QUICK)
        self.mailbox.leave()
        self.liveness.end()

    # -- signals

    def _signal(self, number: int) -> None:
        if number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            self._asked_to_stop(signal.Signals(number).name)
        elif number == signal.SIGHUP:
            if has_terminal():
                self._asked_to_stop("SIGHUP")
            else:
                self.reload("SIGHUP")
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
        self.wanted = min(max(1, number), MOST)
        self.log.info("master.resized", workers=self.wanted)

    # -- news

    def _hear(self) -> None:
        for message, fd in self.ear.read():
            act = getattr(self, f"_on_{message.get('kind')}", None)
            if act is None:
                continue
            try:
                act(message, fd)
            except (KeyError, TypeError, ValueError, AttributeError) as error:  # a job can write to this socket too
                self.log.warning("master.news_refused", news=message.get("kind"), error=repr(error))

    def _on_imported(self, message: Message, fd: int | None) -> None:
        code = self.codes.by_number(message["code"])
        if code is None or code.imported:
            return
        code.settings = message["settings"]
        if not (code.preload and message["preload"]):
            self.codes.without_template(code)
        for line in message["warnings"]:
            self.log.warning("app.imported", warning=line)
        if self.rolling.imported(code):
            self._announce(message)

    def _on_born(self, message: Message, fd: int | None) -> None:
        self.children.born(message["slot"], message["generation"], message["pid"])
        worker = self.children.found(message["slot"], message["generation"])
        if worker is None:  # given up before it was born
            child.kill_group(message["pid"])
        elif worker.draining or self.stopping is not None:
            worker.send(signal.SIGTERM)

    def _on_ready(self, message: Message, fd: int | None) -> None:
        worker = self.children.found(message["slot"], message["generation"])
        if worker is None:
            if fd is not None:
                os.close(fd)
            return
        worker.ready, worker.stack_fd = True, fd
        self.boots.ready()
        if worker.draining or self.stopping is not None:
            worker.send(signal.SIGTERM)
        else:  # it may have been told the other word before it could hear
            worker.send(signal.SIGUSR2 if self.paused else signal.SIGCONT)

    def _on_restart(self, message: Message, fd: int | None) -> None:
        newest = self.codes.coming or self.codes.serving
        if message.get("rolling") and newest is not None and newest.forked_ns > message.get("at", 0):
            return  # this code is newer than the stamp: a new keeper has read it again
        if message.get("rolling"):
            self.reload("qd restart --rolling")
        elif self.stopping is None:
            self.stop("qd restart", Exit.OK)

    def _on_lost(self, message: Message, fd: int | None) -> None:
        worker = self.children.found(message["slot"], message["generation"])
        if worker is not None and worker.busy:
            self.children.alarm(worker, Why.LEASE, message["turn"])

    def _on_changed(self, message: Message, fd: int | None) -> None:
        coming = self.codes.coming
        code = coming if coming is not None and coming.imported else self.codes.serving
        if code is not None and code.number == message["code"]:
            self.reload(f"changed: {message['file']}")

    # -- the dead

    def _reap(self) -> None:
        while (death := self._reap_one()) is not None:
            if isinstance(death, Death):
                self._took_leave(death)

    def _reap_one(self) -> Death | int | None:
        """The next ended child: a worker's Death, or the pid of another; None when none has ended."""
        pid = child.ended()
        if pid is None:
            return None
        self._hear()  # its birth stands before its death
        code = self.codes.by_pid(pid)
        if code is not None:
            status, _ = child.reap(pid)
            self._template_died(code, status)
        elif self.codes.leaving.pop(pid, None) is not None:
            child.reap(pid)
        elif pid == self.keeping.pid:
            status, _ = child.reap(pid)
            self.keeping.died(status, expected=self.stopping is not None and self.stopping.keeper_told)
        else:
            return self.children.reap(pid) or pid
        return pid

    def _took_leave(self, death: Death) -> None:
        worker, slot = death.worker, death.worker.slot.number
        self.jobs += death.jobs
        self.handed_back += death.handed_back + (death.verdict is Verdict.HAND_BACK and bool(death.job))
        if death.is_crash and self.stopping is None:
            self.board.note_crash()
        if death.verdict is not None:
            tell_death(self.log, death, death.verdict)
            self.keeping.tell_dead(death)
        elif death.at_boot and not worker.draining and self.stopping is None:
            self._died_at_boot(death)
        else:
            self.log.debug("worker.left", slot=slot, pid=worker.pid, how=told(death.status))
        if self.stopping is None and not worker.draining and not death.at_boot:
            self._judge_leave(death)

    def _died_at_boot(self, death: Death) -> None:
        delay = self.boots.died()
        self.log.error("worker.boot_failed", how=told(death.status), deaths=self.boots.deaths, retry_in=delay)
        coming = self.codes.coming
        if coming is not None and self.codes.serving is not None and death.worker.code == coming.number:
            self.rolling.refuse("its workers do not boot")
        elif (code := self.boots.hopeless(death.code)) is not None:
            self.stop("no worker could boot", code, by_signal=True)

    def _judge_leave(self, death: Death) -> None:
        """A worker left by itself: with --once that is all, with --no-respawn it drains the rest."""
        if self.plan.once:
            self.stop("once", Exit.OK)
        elif not self.plan.respawn:
            code = Exit.MEMORY if death.code == Exit.MEMORY else Exit.BUG if death.verdict else Exit.OK
            self.stop(f"no respawn: a worker left with {told(death.status)}", code)

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
        self.rolling.begin(plan, self._spawn)

    def _take_over(self) -> None:
        """The new code serves: its configuration is ours."""
        assert self.codes.serving is not None
        self.plan = self.codes.serving.plan
        self.wanted, self._revive_in = self.plan.workers, REVIVE[0]
        self.log.tune(self.plan.log_format, self.plan.log_level)

    def _look_after_template(self) -> None:
        """One that died is replaced, with new workers: theirs is gone. While the code is bad: tried ever more slowly."""
        code, at = self.codes.serving, time.monotonic()
        if code is None or not code.preload or code.pid or self.codes.coming is not None or at < self._revive_at:
            return
        self._revive_at, self._revive_in = at + self._revive_in, min(REVIVE[1], self._revive_in * 2)
        self.reload("the template died")

    def _template_died(self, code: Code, status: int) -> None:
        code.pid = 0
        exit_code = os.waitstatus_to_exitcode(status)
        if code is self.codes.coming and self.codes.serving is not None:
            self.rolling.refuse(f"its import ended with {told(status)}")
        elif self.stopping is None and not code.imported:
            known = exit_code in (Exit.IMPORT, Exit.CONFIG, Exit.USAGE)
            code_of_exit = Exit(exit_code) if known else Exit.IMPORT
            self.stop(f"the app's import ended with {told(status)}", code_of_exit, by_signal=True)
        elif self.stopping is None:
            self.log.error("template.died", how=told(status))

    # -- workers

    def _keep_number(self) -> None:
        for worker in self.children.never_born(time.monotonic()):
            self.log.error("worker.never_born", slot=worker.slot.number)
        code, coming = self.codes.serving, self.codes.coming
        if code is None or (coming is not None and coming.imported) or self.stopping is not None:
            return
        serving = self.children.serving()
        for worker in serving[self.wanted :]:
            worker.drain()
        for _ in range(self.wanted - len(serving) if self.boots.may_spawn else 0):
            self._spawn(code)

    def _spawn(self, code: Code) -> None:
        number = self.children.free_slot()
        if number is None:
            return
        worker = self.children.take(number, code.number, time.monotonic())
        seat = Seat(number, worker.generation, self.paused)
        if code.preload:
            if code.orders is None or not code.orders.give(slot=number, generation=seat.generation, paused=seat.paused):
                self.children.forget(worker)
            return
        try:
            pid = self.forking.worker(code, seat)
        except OSError as error:
            self.children.forget(worker)
            self.boots.wait(1.0)
            self.log.error("worker.fork_failed", error=str(error), retry_in=1.0)
            return
        self.children.born(number, worker.generation, pid)

    # -- the end

    def stop(self, reason: str, code: Exit, *, by_signal: bool = False) -> None:
        """Begin to stop: drain the workers, hand back what still runs at the deadline, let the keeper settle, leave."""
        deadline = self.plan.stop_timeout or None
        hint = "what still runs then is handed back; a second signal ends it now" if self.busy and deadline else None
        self.log.info("master.stopping", reason=reason, running=self.busy, deadline=deadline, hint=hint)
        linger = 0.0 if by_signal else self._started + self.plan.min_uptime
        self.stopping = Stopping(code, self.plan.stop_timeout, linger, by_signal)
        self.notifier.stopping()
        if self.codes.coming is not None and not self.codes.coming.imported:
            self.codes.give_up()
        for worker in self.children.workers.values():
            worker.drain()

    def _go_on_stopping(self, stopping: Stopping) -> None:
        self.board.set_header(H.STOP_AT, stopping.deadline_ns)
        for worker in self.children.workers.values():
            if stopping.ends_now():
                self.children.kill(worker, Verdict.HAND_BACK)
            elif stopping.interrupts() and worker.busy and not worker.interrupted:
                worker.interrupted = True
                self.children.alarm(worker, Why.INTERRUPT)
        if self.busy and stopping.extend_due():
            self.notifier.extend(10.0)
        self.children.never_born(time.monotonic() + 1e9 if stopping.ends_now() else time.monotonic())
        if not self.children.workers:
            self._last_steps(stopping)

    def _last_steps(self, stopping: Stopping) -> None:
        """The workers are gone: let the keeper move their jobs and leave, then the template, then linger."""
        if not stopping.keeper_told:
            stopping.keeper_told = True
            self.keeping.leave()
            self.codes.end()
        if self.keeping.pid and not stopping.keeper_late():
            return
        self.keeping.kill()
        if time.monotonic() >= stopping.linger and not stopping.over:
            stopping.over = True
            self.log.info("master.stopped", jobs=self.jobs_done, handed_back=self.handed_back, exit=int(stopping.code))

    @property
    def jobs_done(self) -> int:
        return self.jobs + self.children.jobs_done

    def _show(self) -> None:
        workers, busy = self.children.workers.values(), self.busy
        state = (
            "stopping" if self.stopping else "paused" if self.paused else "down" if self.board.header(H.DOWN) else ""
        )
        self._face.show(len(workers), busy, state)
        if self._face.ready(self.children.serving(), self.wanted):
            self.log.info("master.ready", workers=len(workers))
        self.liveness.tell(len(workers), self._face.is_ready, self.keeping.silent_for)

    @property
    def busy(self) -> int:
        return sum(worker.busy for worker in self.children.workers.values())


def has_terminal() -> bool:
    """A controlling terminal: then HUP says that it is gone."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
