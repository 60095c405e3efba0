"""The worker: reserve a job, run it, settle it, until there is a reason to stop.

    turn (ack the previous job + reserve) -> attempt -> ack with the next turn | release | bury
    short jobs: a turn reserves several, which start one after another (prefetch.py)
    nothing ready -> wait for a token, the next due moment or a signal
    connection broke -> query which job this worker holds -> continue (connection.py)

One job at a time, in a process of its own. Its exit code reports why it left (process/exit_codes.py).
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from functools import lru_cache, partial
from typing import cast

from setproctitle import setproctitle

from qd import events
from qd.app import Qd
from qd.drivers.base import Connector, with_lanes
from qd.drivers.types import LaneReply, Reserved, Turn
from qd.jobs.context import set_stopping
from qd.jobs.policy import JobLimits, backoff, fails_when_killed
from qd.master.code import Assignment, ChildContext
from qd.options.tables import PREFETCHED, WorkOptions
from qd.payload.format import NOTHING, Payload
from qd.payload.reservation import Ending, ending_of
from qd.process import proc
from qd.process.exit_codes import StopReason
from qd.process.scoreboard import H, Slot, SlotState, W, now
from qd.process.signals import Mailbox
from qd.worker.attempt import Attempts, Coroutines
from qd.worker.connection import AWAY, Checkpoints, RetryingConnection, WorkerConnection
from qd.worker.emitter import Emitter
from qd.worker.outcome import LUCK
from qd.worker.prefetch import PrefetchConnection
from qd.worker.queues import Rota, ShutQueues, WeightedRota
from qd.worker.settle import Settlement, short
from qd.worker.timeout import Alarm

HEARD = (signal.SIGTERM, signal.SIGUSR2, signal.SIGCONT)
IDLE = 0.5  # seconds between two checks of what keeps this worker from taking jobs
LISTENERS = 60.0  # seconds that listeners may take between two jobs before the master counts this worker as silent
BOOTING = 2_000_000_000  # ns after the start in which it checks more often
DESCRIPTORS_CLOSED = "a job closed this worker's file descriptors; the worker is being replaced"
LOOKING, BUSY = SlotState.LOOKING, SlotState.BUSY  # read once: see W
CANCELLED = Ending.CANCELLED
MONTH = 30 * 86400.0
Between = Callable[[], None] | None  # called after each wait for a job, which then lasts IDLE seconds at most


class BaseWorker:
    """What a worker does whether it runs one job at a time or several."""

    alarm_type = Alarm

    def __init__(
        self, app: Qd, queue: Connector, context: ChildContext, assignment: Assignment, between: Between = None
    ) -> None:
        settings = app.settings
        self.app, self.work, self.queue, self.context = app, settings.work, queue, context
        self.board, self.slot = context.board, context.board.slot(assignment.slot)
        self.log = context.log
        self.mailbox = Mailbox()
        self.alarm = self.alarm_type(self.slot)
        self.coroutines = Coroutines()
        self.emitter = Emitter(partial(app.connections.get, self.work.connection), self.log)
        self.checkpoints = Checkpoints(queue, self.alarm, self.log, self.emitter)
        self.attempts = Attempts(app, self.alarm, self.coroutines.run, self.checkpoints, self.board)
        self.exit_conditions = ExitConditions(self.work, self.slot)
        stays: int = getattr(queue, "stays", 1) if self.work.in_turn else 0  # optional in an app's own driver
        rota = Rota(self.work.queues, stays=stays, begin=assignment.slot)
        if self.work.weights:
            rota = WeightedRota(self.work.queues, self.work.weights, begin=assignment.slot)
        self.ahead: PrefetchConnection | None = None
        self.connection = self._connect(rota)
        self.counters = self.board.counters.slot(assignment.slot)
        self.settlement = Settlement(self.connection, self.attempts, self.slot, self.counters)
        self.hears = app._listeners.has
        self.serves = (self.work.connection, self.work.queues)  # fields of most events
        self.titles = Titles(assignment.slot, self.work.pool)
        self.shut_queues = ShutQueues(self.board, self.work.queues, self.work.force)
        self.lease_ns = int(settings.connection(self.work.connection).retry_after * 1e9)
        self.between = between
        self.paused = assignment.paused
        self.stop_requested = self.descriptors_lost = False
        self._once_until, self.once_over = 0.0, False  # --once has ended without a job
        self.jobs = self._began = self._opened = self._looked = 0
        self._next_due: float | None = None
        self._paused_queues: tuple[str, ...] = ()

    def _connect(self, rota: Rota) -> RetryingConnection:
        raise NotImplementedError

    def _open(self) -> None:
        self._opened = now()
        self.mailbox.heard = note_sigterm
        self.mailbox.open(HEARD)
        self.alarm.open()
        self.exit_conditions.open()
        self.queue.beats(self._beat)
        self._emit(events.WorkerStarting, *self.serves)

    def _close(self) -> None:
        if not self.descriptors_lost:  # else its descriptors' numbers may belong to other files now
            self.coroutines.close()
        self.queue.close()
        self.mailbox.close()

    def _beat(self, seconds: float = 0.0) -> None:
        """Write a heartbeat for the master; the next one may take `seconds`."""
        self.slot.words[W.BEAT] = now() + int(seconds * 1e9)

    def _emit(self, event: Callable[..., events.Event], *facts: object) -> bool:
        """Emit `event` if it has listeners. Returns False if one of them vetoed."""
        if not self.hears(event):  # type: ignore[arg-type]
            return True
        self._beat(LISTENERS)
        agreed = self.app._listeners.emit(event(*facts))
        self._beat(0.0)
        return agreed

    def _reason_to_stop(self) -> StopReason | None:
        self.slot.words[W.BEAT] = at = now()
        if self.mailbox.arrived:
            self._read_signals()
        if self.stop_requested:
            return StopReason.SIGNAL
        if self.alarm.raised or self.descriptors_lost:
            return StopReason.RAISED
        if self.attempts.recycle is not None:
            return StopReason.RECYCLE
        return self.exit_conditions.reason(at, self.jobs, self.once_over)

    def _read_signals(self) -> None:
        self._handle(set(self.mailbox.read()))

    def _handle(self, came: set[int]) -> None:
        if signal.SIGTERM in came and not self.stop_requested:
            self.stop_requested = True
            self._emit(events.WorkerInterrupted)
        paused = self.paused
        if came >= {signal.SIGUSR2, signal.SIGCONT}:
            paused = bool(self.board.header(H.PAUSED))  # their order is unknown: the master's state counts
        elif came & {signal.SIGUSR2, signal.SIGCONT}:
            paused = signal.SIGUSR2 in came
        if paused != self.paused:
            self.paused = paused
            self._emit(events.WorkerPausing if paused else events.WorkerResuming)

    def _note_leaving(self, reason: StopReason) -> None:
        if reason is StopReason.RECYCLE and self.attempts.recycle is not None:
            self.log.warning("worker.recycled", reason=short(self.attempts.recycle))
        memory = proc.rss_of(os.getpid()) or 0
        self._emit(events.WorkerStopping, reason.word, int(reason.code), *self.serves, self.jobs, memory)
        self.log.debug("worker.stopping", reason=reason.word, jobs=self.slot[W.DONE])

    # -- check whether it may take a job

    def _may_look(self) -> bool:
        # Read before the shut queues: a new keeper writes these first, then its contact.
        contact = self.board.header(H.KEEPER_CONTACT)
        if not self.shut_queues.look() or self.paused or self.board.header(H.HELD):
            return False
        # Without a keeper no lease is renewed.
        if not contact or now() - contact > self.lease_ns // 2:
            return False
        if not self.hears(events.Looping):
            return True
        self.settlement.flush()  # listeners may be slow
        return self._emit(events.Looping, *self.serves)

    def _took(self, turn: Turn | LaneReply) -> None:
        self._next_due, self._paused_queues = turn.next_due, turn.paused
        for queue, id, reason in turn.malformed:
            kept = None if self.settlement.keeps else "no"
            self.log.error("job.malformed", queue=queue, id=id, kept=kept, error=f"Malformed: {reason}")

    # -- run it

    def _count_start(self, attempts: Attempts, job: Reserved, payload: Payload) -> None:
        """Count the start of an attempt, unless it only drops a job whose attempt was counted as cancelled."""
        if b'"rsv":' not in job.before or ending_of(job.before) is not CANCELLED:
            attempts.row = self.counters.started(job.queue, payload.job, waited_us(payload))

    def _do(self, job: Reserved) -> None:
        self._job, self._turn = job, job.turn if self.ahead is None else self.ahead.started
        self.checkpoints.begin(job)
        outcome = self.attempts.run(job, self._begin, lambda: self.settlement.death_before(job))
        held = self.checkpoints.end()
        words = self.slot.words
        words[W.STATE], words[W.JOB_AT] = LOOKING, 0
        if self.mailbox.renew():
            # Answer the job over a new connection. The stack file, an event loop and the app's own connections cannot be
            # restored in this process.
            self.descriptors_lost = True
            self.queue.close()
            self.log.warning("worker.descriptors_closed", reason=DESCRIPTORS_CLOSED)
        if self.mailbox.repair() and self.board.header(H.STOP_AT):
            self.stop_requested = True  # the signal may have been lost
        self.jobs += 1
        words[W.JOBS] = self.jobs
        took = (now() - self._began) / 1e9
        if self.ahead is not None:
            self.ahead.estimate.ran(job, took)
        self.settlement.settle(held, outcome, took)
        if self.work.rest:
            self._rest()

    def _rest(self) -> None:
        """Sleep for --rest seconds and handle signals; only one that stops the worker ends the sleep early."""
        self.settlement.flush()
        until = time.monotonic() + self.work.rest
        while not self.stop_requested and (left := until - time.monotonic()) > 0:
            self.mailbox.peek(left)
            self._after_wait()

    def _begin(self, payload: Payload, limits: JobLimits) -> None:
        words = self.slot.words
        fails = fails_when_killed(limits, payload)
        words[W.FAILS] = fails
        # For the keeper, if this attempt is killed for its timeout.
        words[W.BACKOFF_MS] = 0 if fails else round(backoff(limits, payload.attempts, LUCK.random()) * 1000)
        words[W.TURN] = self._turn  # after FAILS, which belongs to TURN
        words[W.JOB_AT] = self._began = now()
        self._count_start(self.attempts, self._job, payload)
        self.titles.job(self.slot, payload.job, self._job.queue)
        words[W.STATE] = BUSY

    # -- wait

    def _why_idle(self) -> str:
        return "paused" if self.paused or self.board.header(H.HELD) else "down" if self.board.header(H.DOWN) else "idle"

    def _booting(self) -> bool:
        """Whether the keeper's first contact may be near."""
        return not self.board.header(H.KEEPER_CONTACT) and now() - self._opened < BOOTING

    def _to_wait_for(self) -> tuple[list[str], float]:
        """The queues whose tokens end a wait, none if all are paused; and the seconds it lasts at most."""
        queues = [queue for queue in self.work.queues if queue not in self._paused_queues]
        # With --stop-when-empty the master waits until this worker finds nothing.
        often = self.between is not None or self.work.stop_when_empty
        longest = min(self.work.sleep, IDLE) if often else self.work.sleep
        seconds = longest if self._next_due is None else min(longest, self._next_due)
        return queues, min(seconds, 1.0) if self._paused_queues else seconds

    def _after_wait(self) -> None:
        if os.getppid() != self.context.master:  # for macOS, which has no PR_SET_PDEATHSIG
            os._exit(1)
        self._beat()
        self._read_signals()
        if self.between is not None:
            self.between()


class Worker(BaseWorker):
    """Runs one job at a time."""

    def _connect(self, rota: Rota) -> RetryingConnection:
        lanes, prefetch, waker = with_lanes(self.queue), self.work.prefetch, self.context.waker  # 0: auto
        if waker is None or (lanes is not None and not prefetch and not lanes.fetches_ahead):
            prefetch = 1
        rest = self.log, self._rest_while_away
        if lanes is None or prefetch == 1 or self.work.once or self.work.rest:
            return WorkerConnection(self.queue, rota, *rest)
        self.ahead = PrefetchConnection(lanes, rota, *rest, self.board, self.slot, prefetch=prefetch, wake=waker)
        self.ahead.lost = lambda jobs: self.settlement.lost(jobs)
        return self.ahead

    def run(self, ready: Callable[[], None] = lambda: None) -> int:
        """Work until there is a reason to leave. `ready` is called once it handles signals. Returns the exit code."""
        self._open()
        ready()
        try:
            while (reason := self._reason_to_stop()) is None:
                if not self._may_look():
                    if not (self.shut_queues.holds and self._once_is_over()):
                        self._idle()
                elif (job := self._take()) is not None:
                    self._do(job)
                elif not self._once_is_over():
                    self._wait()
            self.settlement.flush()
            self._note_leaving(reason)
            if self.ahead is not None:
                self.ahead.leave()
            # IDLE means that this worker holds no job.
            self.slot[W.STATE] = SlotState.IDLE if self.connection.settled else SlotState.LOOKING
            return int(reason.code)
        finally:
            self._close()

    def _once_is_over(self) -> bool:
        """--once waits --sleep for its job, in maintenance too: a supervisor must not restart it in a tight loop."""
        if self.work.once and not self.jobs:
            self._once_until = self._once_until or time.monotonic() + self.work.sleep
            self.once_over = time.monotonic() >= self._once_until
        return self.once_over

    def _idle(self) -> None:
        """Wait without looking for jobs: paused, in maintenance, without a keeper, or vetoed by a listener."""
        self.settlement.flush()
        self.slot[W.LOOKED] = now()
        down = self.shut_queues.holds and self._why_idle() != "paused"
        self.slot[W.STATE] = SlotState.WAITING if down else SlotState.IDLE
        self.titles.idle(self._why_idle())
        self.mailbox.peek(0.003 if self._booting() else IDLE)
        self._after_wait()

    # -- reserve a job

    def _take(self) -> Reserved | None:
        """Reserve the next job; the same call acks the previous one. None: there is none, or the call broke."""
        if self.ahead is not None:
            return self._take_ahead(self.ahead)
        connection = cast(WorkerConnection, self.connection)
        self._look()
        try:
            if connection.unsure and (mine := connection.query_held()) is not None:
                return mine
            done = connection.done
            turn = connection.turn(self.shut_queues.shut)
        except AWAY as error:
            connection.broke(error)
            return None
        self._took(turn)
        if turn.acked is False and done is not None:
            return self.settlement.lost_before(done, turn.reserved)
        return turn.reserved

    def _take_ahead(self, connection: PrefetchConnection) -> Reserved | None:
        """The next job that was fetched, else a turn."""
        if (job := connection.next_held()) is not None:
            return job
        self._look()
        try:
            if connection.unsure:
                connection.query_held()
            reply = connection.fill(self._most(), self.shut_queues.shut)
        except AWAY as error:
            connection.broke(error)
            return None
        self._took(reply)
        if reply.lost:
            self.settlement.lost(connection.lost_of(reply))
        return connection.next_held()

    def _look(self) -> None:
        """A turn begins."""
        self.slot.words[W.STATE], self._looked = LOOKING, now()
        if self.hears(events.JobPopping):
            self.settlement.flush()
            self._emit(events.JobPopping, *self.serves)

    def _most(self) -> int:
        """Jobs that a turn may fetch."""
        if self.hears(events.Looping) or self.hears(events.JobPopping) or self.exit_conditions.near:
            return 1
        return self.exit_conditions.jobs_left(self.jobs)

    def _rest_while_away(self, seconds: float) -> None:
        self.slot[W.STATE] = SlotState.BUSY if self.connection.finished else SlotState.IDLE
        self.mailbox.peek(seconds)
        self._after_wait()

    # -- wait

    def _wait(self) -> None:
        """Wait until a token arrives, a job is due, a signal arrives, or --sleep has passed."""
        # The last call broke: jobs may be ready whose tokens are used up, and `done` must be acked.
        if self.connection.away:
            self.connection.pause()
            return
        self._emit(events.WorkerIdle, *self.serves)
        queues, seconds = self._to_wait_for()
        self.slot[W.LOOKED], self.slot[W.STATE] = self._looked, SlotState.WAITING
        self.titles.idle("waiting on " + ",".join(queues if self.shut_queues.shut else self.work.queues))
        signal.pthread_sigmask(signal.SIG_SETMASK, [])  # a job may have blocked the signals that end this wait
        try:
            if queues:
                self.queue.wait(queues, seconds, self.mailbox.fd)
            else:
                self.mailbox.peek(seconds)
        except AWAY as error:
            self.connection.log_broken(error)
            self.connection.pause()
        self._after_wait()


@lru_cache(1000)
def printable(name: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in name)


class Titles:
    """`qd: worker 3 [mail] mail.welcome since 12:00:01` for `ps`, and the same on the scoreboard."""

    def __init__(self, number: int, pool: str) -> None:
        self._head = f"qd: worker {number}" + (f" [{pool}]" if pool else "")
        self._shown = self._queue = ""
        self._second, self._clock = 0, ""

    def idle(self, what: str) -> None:
        if what != self._shown:
            self._shown = what
            setproctitle(f"{self._head} {what}")

    def job(self, slot: Slot, name: str, queue: str) -> None:
        second = int(time.time())
        if second == self._second and name == self._shown and queue == self._queue:
            return
        self._queue = queue
        if second != self._second:
            self._second, self._clock = second, time.strftime("%H:%M:%S", time.localtime(second))
        shown = printable(name)
        slot.describe(shown.encode("utf-8", "replace"), queue.encode())
        self._shown = name
        setproctitle(f"{self._head} {shown} since {self._clock}")


def waited_us(payload: Payload) -> int | None:
    """How long the job has waited since it was due. A payload of PHP has only `createdAt`: then in whole seconds, with its
    delay. None: unknown, or it has been started before."""
    if payload.attempts > 1 or payload.failures is not NOTHING:
        return None
    due = payload.due_ms
    if isinstance(due, int):
        return int(min(max(time.time() - due / 1000, 0.0), MONTH) * 1_000_000)
    created = payload.createdAt
    if created is None:
        return None
    waited = time.time() - created
    return 0 if waited < 1.0 else int(min(waited, MONTH)) * 1_000_000


def note_sigterm(number: int) -> None:
    """On SIGTERM, let the current job see that its worker is stopping."""
    if number == signal.SIGTERM:
        set_stopping()


MEASURE_NS = 5_000_000  # between two measurements of the memory
JITTER = 0.2  # how much --max-jobs and --max-time differ between workers, so that they do not leave together


class ExitConditions:
    """Why a worker leaves after a job, without a request: memory, number of jobs, age (Laravel 13, Worker.php)."""

    def __init__(self, work: WorkOptions, slot: Slot) -> None:
        self.work, self.slot = work, slot
        self._max_jobs, self._leave_at, self._anon, self._measured_at = 0, 0.0, 0, 0
        self._over_memory = False  # at the last measurement

    def open(self) -> None:
        """Start to measure."""
        work = self.work
        jitter = random.uniform(1 - JITTER, 1 + JITTER) if work.workers > 1 else 1.0
        self._max_jobs = max(1, round(work.max_jobs * jitter)) if work.max_jobs else 0
        self._leave_at = time.monotonic() + work.max_time * jitter if work.max_time else 0.0
        self._anon = proc.own_anon_bytes()

    @property
    def near(self) -> bool:
        """Whether the worker may soon leave for its memory or age."""
        work = self.work
        old = self._leave_at and time.monotonic() + 1.0 >= self._leave_at
        return bool(old) or (work.memory > 0 and self.slot[W.GROWN] > work.memory * 0.9)

    def jobs_left(self, jobs: int) -> int:
        return self._max_jobs - jobs if self._max_jobs else PREFETCHED

    def reason(self, at: int, jobs: int, once_over: bool = False) -> StopReason | None:
        """at: this moment."""
        work = self.work
        if work.memory and at - self._measured_at > MEASURE_NS:
            self._measured_at = at  # at most every 5 ms: very short jobs leak little in between
            self.slot[W.GROWN] = grown = max(0, proc.own_anon_bytes() - self._anon)
            self._over_memory = grown > work.memory
        if self._over_memory:
            return StopReason.MEMORY
        if work.once and (jobs or once_over):
            return StopReason.ONCE
        if self._leave_at and time.monotonic() >= self._leave_at:
            return StopReason.MAX_TIME
        if self._max_jobs and jobs >= self._max_jobs:
            return StopReason.MAX_JOBS
        return None
