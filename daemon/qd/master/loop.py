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
from dataclasses import replace

from qd.errors import ConfigError
from qd.log import Log, to_stderr
from qd.master.children import Children, Death, Worker
from qd.master.code import PATIENCE, Code, Codes, by_name, enter
from qd.master.keeping import Keeping
from qd.master.plan import Hands, Plan, Seat
from qd.master.stopping import Stopping
from qd.process import child, signals, systemd, vitals
from qd.process.exits import Exit, told
from qd.process.scoreboard import H, Scoreboard, State, Verdict, W, Why
from qd.process.talk import Ear, Message, Orders

WATCH = 0.3  # seconds between two looks at the scoreboard; less than the grace of a job over its deadline
QUICK = 0.03  # the same while something is about to end
BOOT_DEATHS = 5
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
        self._title, self._replan, self._announce = title, replan, announce
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
        self._boot_deaths, self._ever_ready, self._announced_ready = 0, False, False
        self._retry_at = 0.0
        self._empty_since: float | None = None
        self._folder = by_name(os.environ)
        self._said = ""

    # -- the loop

    def run(self) -> int:
        self._started = time.monotonic()
        self.board.set_header(H.MASTER, os.getpid())
        vitals.set_subreaper()
        self.mailbox.open(SIGNALS)
        try:
            self._new_code()
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
        self._look_after_code()
        if self.stopping is None:
            self._keep_number()
            self._look_for_empty()
        else:
            self._go_on_stopping(self.stopping)
        self.keeping.watch(self._fork_keeper)
        self._tell()

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
        while child.any_left() and time.monotonic() < deadline:
            if self._reap_one() is None:
                self.mailbox.wait(QUICK)
        self.mailbox.close()

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
            self._dump()

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
        self.wanted = max(1, number)
        self.log.info("master.resized", workers=self.wanted)

    def _dump(self) -> None:
        for worker in self.children.workers.values():
            slot = worker.slot
            state = State(slot[W.STATE]).name.lower() if slot[W.STATE] in list(State) else "?"
            job = {"job": slot.job, "queue": slot.queue} if worker.busy else {}
            self.log.info("worker.state", slot=slot.number, pid=worker.pid, state=state, jobs=slot[W.JOBS], **job)
            worker.send(signal.SIGUSR1)
        self.log.info("master.state", workers=len(self.children), wanted=self.wanted, paused=self.paused)

    # -- news

    def _hear(self) -> None:
        for message, fd in self.ear.read():
            act = getattr(self, f"_on_{message.get('kind')}", None)
            if act is not None:
                act(message, fd)

    def _on_imported(self, message: Message, fd: int | None) -> None:
        code = self.codes.by_number(message["code"])
        if code is None or code.imported:
            return
        code.imported, code.took = True, time.monotonic() - code.forked_at
        if not message["preload"] and self.plan.preload:
            self.plan = replace(self.plan, preload=False)
            code.end()
        for line in message.get("warnings", ()):
            self.log.warning("app.imported", warning=line)
        self.keeping.settings = message["settings"]
        if self.codes.serving is None:
            self.codes.patience = max(PATIENCE, 5 * code.took)
            self._announce(message)
            self._promote()

    def _on_born(self, message: Message, fd: int | None) -> None:
        self.children.born(message["slot"], message["generation"], message["pid"])
        if self.stopping is not None and (worker := self.children.found(message["slot"], message["generation"])):
            worker.send(signal.SIGTERM)

    def _on_ready(self, message: Message, fd: int | None) -> None:
        worker = self.children.found(message["slot"], message["generation"])
        if worker is None:
            if fd is not None:
                os.close(fd)
            return
        worker.ready, worker.stack_fd = True, fd
        self._boot_deaths, self._retry_at, self._ever_ready = 0, 0.0, True
        if worker.draining or self.stopping is not None:
            worker.send(signal.SIGTERM)
        elif self.paused:
            worker.send(signal.SIGUSR2)

    def _on_restart(self, message: Message, fd: int | None) -> None:
        if message.get("rolling"):
            self.reload("qd restart --rolling")
        elif self.stopping is None:
            self.stop("qd restart", Exit.OK)

    def _on_lost(self, message: Message, fd: int | None) -> None:
        worker = self.children.found(message["slot"], message["generation"])
        if worker is not None and worker.busy:
            self.children.alarm(worker, Why.LEASE, message["turn"])

    def _on_changed(self, message: Message, fd: int | None) -> None:
        if self.codes.coming is None:
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
        if death.verdict is not None:
            self._tell_death(death)
            self.keeping.tell_dead(death)
        elif death.at_boot and not worker.draining and self.stopping is None:
            self._died_at_boot(death)
        else:
            self.log.debug("worker.left", slot=slot, pid=worker.pid, how=told(death.status))
        if self.stopping is None and not worker.draining and not death.at_boot:
            self._judge_leave(death)

    def _tell_death(self, death: Death) -> None:
        told_as = {
            Verdict.CRASH: ("error", "worker.died"),
            Verdict.HAND_BACK: ("warning", "worker.ended"),
            Verdict.TIMEOUT: ("error", "job.killed"),
            Verdict.MEMORY: ("error", "job.killed"),
        }
        level, event = told_as[death.verdict or Verdict.CRASH]
        why = {Verdict.TIMEOUT: "timeout", Verdict.MEMORY: "memory", Verdict.HAND_BACK: "stop deadline"}
        killed = os.WIFSIGNALED(death.status) and os.WTERMSIG(death.status) == signal.SIGKILL
        reason = why.get(death.verdict or Verdict.CRASH, "out of memory?" if killed else None)
        fields = {"job": death.job or None, "queue": death.queue or None, "took": death.took or None}
        peak = f"{death.peak // 1_000_000}M"
        how = told(death.status)
        pid, slot = death.worker.pid, death.worker.slot.number
        told_fields = {"slot": slot, "pid": pid, "how": how, "reason": reason, "peak": peak, **fields}
        self.log.line(level, event, {**told_fields, "trace": death.stack or None})

    def _died_at_boot(self, death: Death) -> None:
        self._boot_deaths += 1
        delay = min(30.0, 0.1 * 2 ** (self._boot_deaths - 1))
        self._retry_at = time.monotonic() + delay
        self.log.error("worker.boot_failed", how=told(death.status), deaths=self._boot_deaths, retry_in=delay)
        coming = self.codes.coming
        if coming is not None and self.codes.serving is not None and death.worker.code == coming.number:
            self._refuse_code("its workers do not boot")
        elif not self._ever_ready and (self._boot_deaths >= BOOT_DEATHS or death.code in (Exit.IMPORT, Exit.CONFIG)):
            code = Exit(death.code) if death.code in (Exit.IMPORT, Exit.CONFIG) else Exit.IMPORT
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
        try:
            plan = self._replan()
        except ConfigError as error:
            self.log.error("master.reload_refused", reason=str(error))
            return
        self.log.info("master.reloading", why=why)
        self.notifier.reloading()
        if self.codes.coming is not None:
            self._undo_coming()
        self.plan, self.wanted = plan, plan.workers
        self._new_code()

    def _new_code(self) -> None:
        enter(self._folder)
        code = self.codes.make()
        if self.codes.serving is None:
            self.board.set_header(H.FORKED_AT, code.forked_ns)
        if self.plan.preload:
            self._fork_template(code)
        else:
            code.imported = self.codes.serving is not None  # the first worker's import reports
            if self.codes.serving is None:
                self._spawn(code)

    def _fork_template(self, code: Code) -> None:
        orders, plan, number = Orders(), self.plan, code.number

        def body() -> int:
            signals.deaf(signal.SIGTERM)
            return plan.template(self._hands("template"), (orders.child_end, number))

        code.pid = child.fork(self._in_child(body))
        orders.child_end.close()
        code.orders = orders

    def _promote(self) -> None:
        self.codes.promote()
        assert self.codes.serving is not None
        self.board.set_header(H.FORKED_AT, self.codes.serving.forked_ns)

    def _template_died(self, code: Code, status: int) -> None:
        code.pid = 0
        exit_code = os.waitstatus_to_exitcode(status)
        if code is self.codes.coming and self.codes.serving is not None:
            self._refuse_code(f"its import ended with {told(status)}")
        elif self.stopping is None and not code.imported:
            known = exit_code in (Exit.IMPORT, Exit.CONFIG, Exit.USAGE)
            self.stop(
                f"the app's import ended with {told(status)}", Exit(exit_code) if known else Exit.IMPORT, by_signal=True
            )
        elif self.stopping is None:
            self.log.error("template.died", how=told(status))
            self.reload("the template died")

    def _refuse_code(self, why: str) -> None:
        self.log.error("master.reload_refused", reason=f"the new code does not serve: {why}; the old code goes on")
        self._undo_coming()
        self.notifier.ready("")

    def _undo_coming(self) -> None:
        if self.codes.coming is not None:
            for worker in self.children.serving(self.codes.coming.number):
                self._drain(worker)
        self.codes.give_up()

    def _look_after_code(self) -> None:
        if self.codes.hangs():
            self._refuse_code(f"its import takes longer than {self.codes.patience:.0f} s")
        coming, serving = self.codes.coming, self.codes.serving
        if coming is None or serving is None or not coming.imported or self.stopping is not None:
            return
        new, old = self.children.serving(coming.number), self.children.serving(serving.number)
        if not all(worker.ready for worker in new):
            return
        if len(new) >= self.wanted and old:
            for worker in old:
                self._drain(worker)
        elif len(new) < self.wanted and len(new) + len(old) > self.wanted:
            self._drain(old[0])
        elif len(new) < self.wanted:
            self._spawn(coming)
        else:
            self._promote()
            self.keeping.renew_settings()
            self.log.info("master.reloaded", workers=len(new))
            self.notifier.ready("")

    # -- workers

    def _keep_number(self) -> None:
        for worker in self.children.never_born(time.monotonic()):
            self.log.error("worker.never_born", slot=worker.slot.number)
        code = self.codes.serving
        if code is None or self.codes.coming is not None or self.stopping is not None:
            return
        serving = self.children.serving()
        for worker in serving[self.wanted :]:
            self._drain(worker)
        if time.monotonic() >= self._retry_at:
            for _ in range(self.wanted - len(serving)):
                self._spawn(code)

    def _spawn(self, code: Code) -> None:
        number = self.children.free_slot()
        if number is None:
            return
        worker = self.children.take(number, code.number, time.monotonic())
        seat = Seat(number, worker.generation, self.paused)
        if self.plan.preload:
            if code.orders is None or not code.orders.give(slot=number, generation=seat.generation, paused=seat.paused):
                self.children.forget(worker)
            return
        plan = self.plan
        try:
            pid = child.fork(self._in_child(lambda: plan.worker(self._hands("worker", code.number), seat)))
        except OSError as error:
            self.children.forget(worker)
            self._retry_at = time.monotonic() + 1.0
            self.log.error("worker.fork_failed", error=str(error), retry_in=1.0)
            return
        self.children.born(number, worker.generation, pid)

    def _drain(self, worker: Worker) -> None:
        worker.draining = True
        worker.send(signal.SIGTERM)

    def _fork_keeper(self, orders: Orders, settings: str) -> int:
        plan = self.plan

        def body() -> int:
            signals.deaf(signal.SIGTERM)
            return plan.keeper(self._hands("keeper"), orders.child_end, settings)

        return child.fork(self._in_child(body))

    def _hands(self, role: str, code: int = 0) -> Hands:
        return Hands(self.board, self.ear.voice, self.token, os.getppid(), self.log.of(role, to_stderr), code)

    def _in_child(self, body: Callable[[], int]) -> Callable[[], int]:
        """What a child of the master forgets before its own work: the master's ends of every line, systemd's variables."""

        def run() -> int:
            systemd.strip(os.environ)
            self.ear.sock.close()
            for orders in (self.keeping.orders, *(c.orders for c in (self.codes.serving, self.codes.coming) if c)):
                if orders is not None:
                    orders.close()
            self.mailbox.forget()
            return body()

        return run

    # -- the end

    def stop(self, reason: str, code: Exit, *, by_signal: bool = False) -> None:
        """Begin to stop: drain the workers, hand back what still runs at the deadline, let the keeper settle, leave."""
        self.log.info("master.stopping", reason=reason, running=sum(w.busy for w in self.children.workers.values()))
        linger = 0.0 if by_signal else self._started + self.plan.min_uptime
        self.stopping = Stopping(code, self.plan.stop_timeout, linger)
        self.notifier.stopping()
        self.codes.give_up()
        for worker in self.children.workers.values():
            self._drain(worker)

    def _go_on_stopping(self, stopping: Stopping) -> None:
        self.board.set_header(H.STOP_AT, stopping.deadline_ns)
        for worker in self.children.workers.values():
            if stopping.ends_now():
                self.children.kill(worker, Verdict.HAND_BACK)
            elif stopping.interrupts() and worker.busy and not worker.interrupted:
                worker.interrupted = True
                self.children.alarm(worker, Why.INTERRUPT)
        if any(worker.busy for worker in self.children.workers.values()) and stopping.extend_due():
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

    def _look_for_empty(self) -> None:
        if not self.plan.stop_when_empty and not self.plan.stop_when_empty_for:
            return
        at = time.monotonic()
        if not self.children.all_found_nothing():
            self._empty_since = None
        elif self._empty_since is None:
            self._empty_since = at
        if self._empty_since is None:
            return
        if self.plan.stop_when_empty:
            self.stop("the queues are empty", Exit.OK)
        elif at - self._empty_since >= self.plan.stop_when_empty_for:
            self.stop(f"the queues were empty for {self.plan.stop_when_empty_for:g} s", Exit.OK)

    # -- telling

    def _tell(self) -> None:
        workers = self.children.workers.values()
        busy = sum(worker.busy for worker in workers)
        state = (
            "stopping" if self.stopping else "paused" if self.paused else "down" if self.board.header(H.DOWN) else ""
        )
        text = f"{len(workers)} workers, {busy} busy" + (f", {state}" if state else "")
        if text != self._said:
            self._said = text
            self._title(text)
            self.notifier.status(text)
        self.notifier.watchdog()
        serving = self.children.serving()
        if not self._announced_ready and len(serving) >= self.wanted and all(w.ready for w in serving):
            self._announced_ready = True
            self.notifier.ready(text)
            self.log.info("master.ready", workers=len(serving))


def has_terminal() -> bool:
    """A controlling terminal: then HUP says that it is gone."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
