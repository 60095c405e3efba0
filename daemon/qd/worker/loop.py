"""The worker: may I, take one, do it, settle it, why stop.

    turn (ack the job before + reserve) -> attempt -> ack with the next turn | release | bury
    nothing ready -> wait for a token, the next due moment or a signal
    connection broke -> ask what is mine -> go on

One job at a time, in a process of its own. It leaves for one of the reasons in process/exits.py, and says so in its exit
code; while it waits it can be told anything by a signal.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from qd import events
from qd.app import Qd
from qd.bus import running
from qd.config import Settings
from qd.connectors.base import Queue, Reserved, Turn
from qd.errors import ConnectionLost, ServerBusy, ServerRefused, Unreachable, WrongPassword
from qd.limits import Limits
from qd.master.plan import Hands, Seat
from qd.payload import Payload
from qd.process import vitals
from qd.process.exits import StopReason
from qd.process.scoreboard import H, State, W, now
from qd.process.signals import Mailbox, nothing
from qd.worker.alarm import Alarm
from qd.worker.attempt import DONE, Attempts, Back, Failed, Lost, Outcome
from qd.worker.coroutines import Coroutines
from qd.worker.settle import Settler
from qd.worker.titles import Titles

T = TypeVar("T")
HEARD = (signal.SIGTERM, signal.SIGUSR2, signal.SIGCONT)
IDLE = 0.5  # seconds between two looks at what keeps this worker from working
AGAIN = 1.0  # most seconds between two tries to reach the server
NOTHING_DONE = (Unreachable, ServerBusy, WrongPassword)  # the server has not run, or not even got, what was sent
UNTOUCHED = Back(0.0, "reserved by a call whose reply was lost", spends=False, head=True)
MEASURE_NS = 5_000_000
JITTER = 0.2  # how much --max-jobs and --max-time differ between workers, so that they do not leave together


class Worker:
    def __init__(
        self,
        app: Qd,
        settings: Settings,
        queue: Queue,
        hands: Hands,
        seat: Seat,
        between: Callable[[], None] | None = None,
    ) -> None:
        """between: called after each wait for a job, which then lasts IDLE seconds at most."""
        self.app, self.work, self.queue, self.hands = app, settings.work, queue, hands
        self.board, self.slot = hands.board, hands.board.slot(seat.slot)
        self.log = hands.log
        self.mailbox = Mailbox()
        self.alarm = Alarm(self.slot)
        self.coroutines = Coroutines()
        self.attempts = Attempts(app, self.work, self.alarm, self.coroutines)
        self.settler = Settler(queue, self.work.queues, self.log)
        self.titles = Titles(seat.slot, self.work.pool)
        self.lease_ns = int(settings.connection(self.work.connection).retry_after * 1e9)
        self.done: Reserved | None = None  # finished, not acked yet
        self.between = between
        self.paused = seat.paused
        self.asked_to_stop = False
        self.jobs = 0
        self._measured_at = 0
        self._next_due: float | None = None
        self._paused_queues: tuple[str, ...] = ()
        self._away_since = 0.0
        self._unsure = False  # what the last turn did; then the server is asked before the next one

    # -- the loop

    def run(self, ready: Callable[[], None] = lambda: None) -> int:
        """Until there is a reason to leave. `ready` is called once it hears signals. Returns the exit code."""
        self._open()
        ready()
        try:
            while (why := self._reason_to_stop()) is None:
                if not self._may_look():
                    self._idle()
                elif (job := self._take()) is not None:
                    self._do(job)
                elif not self.work.once or self.jobs:
                    self._wait()
                else:
                    self._wait_once()
            self._flush()
            self._emit(events.WorkerStopping(why.word, int(why.code)))
            self.log.debug("worker.stopping", reason=why.word, jobs=self.jobs)
            # It leaves by itself: at IDLE whoever reaps it knows that no job was in hand.
            self.slot[W.STATE] = State.LOOKING if self._unsure else State.IDLE
            return int(why.code)
        finally:
            self._close()

    def _open(self) -> None:
        self.mailbox.heard = tell_job
        self.mailbox.open(HEARD)
        self.alarm.open()
        jitter = random.uniform(1 - JITTER, 1 + JITTER) if self.work.workers > 1 else 1.0
        self._max_jobs = max(1, round(self.work.max_jobs * jitter)) if self.work.max_jobs else 0
        self._leave_at = time.monotonic() + self.work.max_time * jitter if self.work.max_time else 0.0
        self._anon = vitals.own_anon_bytes()
        self._emit(events.WorkerStarting())

    def _close(self) -> None:
        self.coroutines.close()
        self.queue.close()
        self.mailbox.close()

    def _reason_to_stop(self) -> StopReason | None:
        if self.mailbox.arrived:
            self._hear()
        if self.asked_to_stop:
            return StopReason.SIGNAL
        if self.alarm.raised:
            return StopReason.RAISED
        if self.work.memory and self._over_memory():
            return StopReason.MEMORY
        if self.work.once and self.jobs:
            return StopReason.ONCE
        if self._leave_at and time.monotonic() >= self._leave_at:
            return StopReason.MAX_TIME
        if self._max_jobs and self.jobs >= self._max_jobs:
            return StopReason.MAX_JOBS
        return None

    def _hear(self) -> None:
        came = set(self.mailbox.read())
        self.asked_to_stop = self.asked_to_stop or signal.SIGTERM in came
        paused = self.paused
        if came >= {signal.SIGUSR2, signal.SIGCONT}:
            paused = bool(self.board.header(H.PAUSED))  # which came last nobody can tell: the master's word counts
        elif came & {signal.SIGUSR2, signal.SIGCONT}:
            paused = signal.SIGUSR2 in came
        if paused != self.paused:
            self.paused = paused
            self._emit(events.WorkerPausing() if paused else events.WorkerResuming())

    def _over_memory(self) -> bool:
        """Asked after every job, looked up every 5 ms: what very short jobs leak in between is little."""
        at = now()
        if at - self._measured_at > MEASURE_NS:
            self._measured_at = at
            self.slot[W.GROWN] = max(0, vitals.own_anon_bytes() - self._anon)
        return self.slot[W.GROWN] > self.work.memory

    # -- may I

    def _may_look(self) -> bool:
        if self.paused or (self.board.header(H.DOWN) and not self.work.force):
            return False
        contact = self.board.header(H.KEEPER_CONTACT)  # nobody renews without a keeper
        if not contact or now() - contact > self.lease_ns // 2:
            return False
        looping = events.Looping
        if not self.app.listeners.has(looping):
            return True
        self._flush()  # a listener may take its time
        return self.app.listeners.emit(looping(self.work.connection, self.work.queues))

    def _idle(self) -> None:
        """Not looking: paused, in maintenance, without a keeper, or because a listener said so."""
        self._flush()
        self.slot[W.STATE] = State.IDLE
        booting = not self.board.header(H.KEEPER_CONTACT)
        self.titles.idle("paused" if self.paused else "down" if self.board.header(H.DOWN) else "idle")
        self.mailbox.peek(0.003 if booting else IDLE)
        self._after_wait()

    # -- take one

    def _take(self) -> Reserved | None:
        """The next job, the ack of the one before going with the same call. None: nothing is in hand, or nobody knows."""
        self.slot[W.STATE] = State.LOOKING
        try:
            if self._unsure and (mine := self._ask()) is not None:
                return mine
            turn = self.queue.turn(self.done, self.work.queues)
        except (ConnectionLost, ServerRefused) as error:
            self._broke(error)
            return None
        return self._took(turn)

    def _took(self, turn: Turn) -> Reserved | None:
        if turn.acked is False and self.done is not None:
            self.settler.lease_was_lost(self.done)
        self.done, self._away_since = None, 0.0
        self._next_due, self._paused_queues = turn.next_due, turn.paused
        if turn.malformed:
            self.log.error("job.malformed", count=turn.malformed, kept="failed store")
        return turn.reserved

    def _broke(self, error: Exception) -> None:
        self._say_broken(error)
        self._away_since = self._away_since or time.monotonic()
        self._unsure = self._unsure or not isinstance(error, NOTHING_DONE)

    def _ask(self) -> Reserved | None:
        """A broken turn may have acked, and may have reserved: no other before this is known. The job it reserved."""
        mine = self.queue.held(self.work.queues)
        self._unsure = False
        if mine is not None and self.done is not None and mine.mark == self.done.mark:
            return None  # neither acked nor reserved
        self.done = None
        return mine

    def _say_broken(self, error: Exception) -> None:
        """A server that is away is told of by the keeper, once for all; one that refuses this worker, here, once."""
        if isinstance(error, ServerRefused) and not self._away_since:
            self.log.warning("redis.refused", error=str(error))
        else:
            self.log.debug("redis.broken", error=str(error))

    def _pause_before_retry(self) -> None:
        at = time.monotonic()
        self._away_since = self._away_since or at
        delay = min(AGAIN, 0.02 + (at - self._away_since)) * random.uniform(0.5, 1.0)
        self.slot[W.STATE] = State.IDLE if self.done is None else State.BUSY
        self.mailbox.peek(delay)
        self._after_wait()

    # -- do it

    def _do(self, job: Reserved) -> None:
        self._queue, self._turn = job.queue, int(job.mark.split(".")[2])
        outcome = self.attempts.run(job, self._begin, lambda: self.settler.death_before(job))
        self.slot[W.STATE], self.slot[W.JOB_AT] = State.LOOKING, 0
        if self.mailbox.mend() and self.board.header(H.STOP_AT):
            self.asked_to_stop = True  # and nobody heard it
        self.jobs += 1
        self.slot[W.JOBS] = self.jobs
        self._settle(job, outcome)
        if self.work.rest:
            self._flush()
            self.mailbox.peek(self.work.rest)
            self._after_wait()

    def _begin(self, payload: Payload, limits: Limits) -> None:
        slot = self.slot
        slot[W.TURN] = self._turn
        self._began = now()
        slot[W.JOB_AT] = self._began
        last = limits.tries and payload.attempts >= limits.tries
        backoff = limits.backoff[min(payload.attempts, len(limits.backoff)) - 1] if limits.backoff and not last else 0.0
        slot[W.BACKOFF_MS] = int(backoff * 1000)
        slot[W.FAILS] = int(
            last or limits.fail_on_timeout or payload.exceptions + 1 >= (limits.max_exceptions or 1 << 30)
        )
        self.titles.job(slot, payload.job, self._queue)
        slot[W.STATE] = State.BUSY

    # -- settle it

    def _settle(self, job: Reserved, outcome: Outcome) -> None:
        if outcome is DONE:
            self.done = job
            if self.log.informs:
                self.settler.tell_done(job, (now() - self._began) / 1e9)
        elif isinstance(outcome, Back):
            self.slot[W.HANDED_BACK] += int(outcome.head)
            self._surely(job, lambda: self.settler.give_back(job, outcome))
        elif isinstance(outcome, Failed):
            self._surely(job, lambda: self.settler.bury(job, outcome))
        elif isinstance(outcome, Lost):
            self._surely(job, lambda: self.queue.ack(job))  # nothing is there to ack, but our name is still on it
            self.settler.lease_was_lost(job)

    def _flush(self) -> None:
        """Send the ack that waits for a next turn."""
        if self._unsure:
            self._untake()
        if (done := self.done) is not None:
            self.done = None
            if self._surely(done, lambda: self.queue.ack(done)) is False:
                self.settler.lease_was_lost(done)

    def _untake(self) -> None:
        """Give back what a broken turn has reserved. With no ack to send it is tried once: it is asked for again."""
        while self._unsure:
            try:
                mine = self._ask()
            except (ConnectionLost, ServerRefused) as error:
                self._broke(error)
                if self.done is None:
                    return
                self._pause_before_retry()
                continue
            if mine is not None:
                self._surely(mine, partial(self.settler.give_back, mine, UNTOUCHED))

    def _surely(self, job: Reserved, answer: Callable[[], T]) -> T | None:
        """Until the server has it. None: it was done by a call whose reply was lost."""
        while True:
            try:
                answered = answer()
                self._away_since = 0.0
                return answered
            except (ConnectionLost, ServerRefused) as error:
                self._say_broken(error)
            self._pause_before_retry()
            try:
                mine = self.queue.held((job.queue,))
            except (ConnectionLost, ServerRefused):
                continue
            if mine is None or mine.mark != job.mark:
                return None

    # -- wait

    def _wait(self) -> None:
        """Nothing is ready. A token, a due moment, a signal or --sleep ends it."""
        if self._away_since:  # nobody has looked: jobs may be ready whose tokens are used up, and `done` is to be acked
            self._pause_before_retry()
            return
        queues = [queue for queue in self.work.queues if queue not in self._paused_queues]
        longest = min(self.work.sleep, IDLE) if self.between is not None else self.work.sleep
        seconds = longest if self._next_due is None else min(longest, self._next_due)
        self.slot[W.STATE] = State.WAITING
        self.titles.idle("waiting on " + ",".join(self.work.queues))
        signal.pthread_sigmask(signal.SIG_SETMASK, [])  # a job may have blocked what is to end this wait
        try:
            if queues:
                self.queue.wait(queues, min(seconds, 1.0) if self._paused_queues else seconds, self.mailbox.fd)
            else:
                self.mailbox.peek(min(seconds, 1.0))
        except (ConnectionLost, ServerRefused) as error:
            self._say_broken(error)
            self._pause_before_retry()
        self._after_wait()

    def _wait_once(self) -> None:
        """--once waits for its one job --sleep at most; a token without a job is not the end of it."""
        until, job = time.monotonic() + self.work.sleep, None
        while job is None and not self.asked_to_stop and time.monotonic() < until:
            self._wait()
            job = self._take()
        if job is not None:
            self._do(job)
        self.jobs = self.jobs or -1

    def _after_wait(self) -> None:
        if os.getppid() != self.hands.master:  # where the kernel does not tell (macOS)
            os._exit(1)
        self._hear()
        if self.between is not None:
            self.between()

    def _emit(self, event: events.Event) -> None:
        if self.app.listeners.has(type(event)):
            self.app.listeners.emit(event)


def tell_job(number: int) -> None:
    if number == signal.SIGTERM:
        running.tell_stopping()


def install_quiet() -> None:
    """Signals that steer masters mean nothing to a worker."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGQUIT, signal.SIGWINCH):
        signal.signal(number, nothing)
