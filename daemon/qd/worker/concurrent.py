"""A worker that runs up to `concurrency` jobs at once. They share what a job alone would have for itself: a process.

    main thread     the event loop: async jobs as tasks
    qd-job-N        threads: sync jobs, and what is sync around an async one (middleware, listeners, failed())
    qd-io           owns the connection: turns, answers, checkpoints; reasons to stop
    qd-watch        signals and deadlines: they do not wait for the server either
    qd-wait         waits for a token over a connection of its own, so that answers never wait

    turn: ack what has finished + reserve up to a quarter of the free lanes -> start all -> turn again, until there is none
    finished -> acked with the next turn, 10 ms later at most; with effects at once

If the server is away, jobs continue, and their answers wait in order. An exclusive job waits for the others and then runs in
the main thread, the loop stopped, as in a worker with one job; so does a suspect (a job that may have killed a worker), in a
worker that leaves afterwards.
"""

from __future__ import annotations

import asyncio
import errno
import heapq
import logging
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from qd import events
from qd.config.settings import Settings
from qd.drivers.base import Connector, LaneConnector
from qd.drivers.keyspace import keys
from qd.drivers.types import LaneAnswer, LaneTurn, Reserved
from qd.errors import ConnectionLost
from qd.jobs.context import current_job
from qd.payload.reservation import unstarted
from qd.process import proc
from qd.process.descriptors import ready_of
from qd.process.exit_codes import Exit, StopReason
from qd.process.scoreboard import ALIVE, H, L, LaneState, Role, Scoreboard, Slot, SlotState, W, Why, now
from qd.worker.connection import AWAY, WorkerConnection
from qd.worker.lanes import JobPool, LaneRun, waited
from qd.worker.outcome import Attempt, Back
from qd.worker.settle import Settlement, log_fields, short
from qd.worker.steps import Steps
from qd.worker.timeout import Alarm
from qd.worker.worker import BOOTING, IDLE, Worker, note_sigterm

if TYPE_CHECKING:
    from qd.app import Qd
    from qd.log import Log
    from qd.master.code import Assignment, ChildContext
    from qd.worker.queues import Rota

T = TypeVar("T")
FAR = 2**63
ACK_NS = 10_000_000  # until the ack of a finished job is sent, at the latest
EXCLUSIVE_NS = 10_000_000_000  # for which an exclusive job waits for the others; then it goes back
SUSPECTS_NS = 10_000_000_000  # between two looks for suspects; a worker that runs some leaves after as long
SUSPECTS_SOON_NS = 1_000_000_000  # the same if it has looked for a job in vain
WAKE = 0  # the byte in the mailbox that is no signal
BROKEN = 0.5  # seconds until a broken wait for a token is tried again


class MainAlarm(Alarm):
    """For a job alone in the main thread. rang: called by the handler of SIGALRM, which the master sends for all jobs."""

    rang: Callable[[], None]

    def _ring(self, number: int, frame: FrameType | None) -> None:
        self.rang()
        super()._ring(number, frame)


class LaneAnswers(WorkerConnection):
    """finished: to ack with the next turn; since: when the first of them had finished."""

    def __init__(
        self, queue: Connector, rota: Rota, log: Log, rest: Callable[[float], None], board: Scoreboard, slot: Slot
    ) -> None:
        super().__init__(queue, rota, log, rest)
        self.board, self.slot = board, slot
        self.finished, self.since = list[Reserved](), 0

    def finish(self, job: Reserved) -> None:
        self.since = self.since or now()
        self.finished.append(job)
        proof = self.board.proof_of(job.turn)
        if job.lane:
            self.board.lane(self.slot.number, job.lane)[L.PROOF] = proof
        else:
            self.slot[W.PROOF] = proof

    @property
    def owes(self) -> bool:
        return bool(self.finished)

    @property
    def settled(self) -> bool:
        return not (self.unsure or self.finished)

    def flush(self, give_back: Callable[[Reserved], bool], ack: Callable[[Any], None]) -> None:
        """Acks go with the next turn anyway."""


class LaneSettlement(Settlement):
    """attempts: of the lane whose outcome it settles."""

    pool: JobPool

    def _lost(self, job: Reserved, *, notified: bool = False) -> None:
        self.settler.log.error("job.lease_lost", **log_fields(job))
        if self.slot[W.LOST_TURN] != job.turn:
            self.slot[W.LOST] += 1
        if not notified and self._has_listeners:
            self.pool.submit(partial(self.attempts.notify_lost, job))


class TokenWait:
    """Waits for tokens in a thread of its own. came: called there when a job may be ready."""

    def __init__(self, queue: Connector, came: Callable[[], None]) -> None:
        self.queue, self._came = queue, came
        self.waits = False
        self.in_vain = True  # the last wait ended without a token
        self._begin = threading.Event()
        self._wake, self._stop = os.pipe()
        self._what: tuple[list[str], float] = ([], 0.0)

    def start(self, queues: list[str], seconds: float) -> None:
        self._what, self.waits = (queues, seconds), True
        self._begin.set()

    def stop(self) -> None:
        """End the wait: no job is wanted. A token that comes meanwhile is for another worker."""
        if self.waits:
            os.write(self._stop, b"!")

    def serve(self) -> None:
        while self._begin.wait():
            self._begin.clear()
            until = time.monotonic() + self._what[1]
            try:
                self.queue.wait(*self._what, self._wake)
            except AWAY:
                time.sleep(BROKEN)
            os.set_blocking(self._wake, False)
            with suppress(BlockingIOError):
                os.read(self._wake, 64)
            self.waits, self.in_vain = False, time.monotonic() >= until
            self._came()


class ConcurrentWorker(Worker):
    def __init__(
        self,
        app: Qd,
        settings: Settings,
        queue: LaneConnector,
        waiting: Connector,
        context: ChildContext,
        assignment: Assignment,
        between: Callable[[], None] | None = None,
    ) -> None:
        """waiting: a second connection, for waits."""
        settings = replace(settings, work=replace(settings.work, prefetch=1))
        super().__init__(app, settings, queue, context, assignment, between, MainAlarm)
        self.alarm.rang = partial(self.mailbox.post, signal.SIGALRM)
        self.lanes = queue
        self.most = min(settings.work.concurrency, self.board.lanes)  # the master has the lanes of its start
        rota = self.connection.rota
        self.answers = LaneAnswers(queue, rota, self.log, self._rest_while_away, self.board, self.slot)
        self.connection = self.answers
        self.settlement = LaneSettlement(self.settlement.settler, self.connection, self.attempts, self.slot)
        self.pool = self.settlement.pool = JobPool(self.most)
        self.steps = Steps(self.slot, self._blocked)
        self.tokens = TokenWait(waiting, self._token_came)
        self._runs = dict[int, LaneRun]()
        self._busy = dict[int, LaneRun]()
        self._free = list(range(1, self.most + 1))  # a heap
        self._asked: list[int] = []  # lanes of a turn whose reply is lost
        self._ended = deque[LaneRun]()
        self._calls = deque[tuple[Future[Any] | None, Callable[[], Any], float]]()
        self._woken, self._more, self._look_at = False, True, 0
        self._deadline, self._deadline_lock = FAR, threading.Lock()
        self._wakes_at = 0
        self._reason: StopReason | None = None
        self._exclusive = deque[LaneRun]()  # jobs that wait until the others have ended,
        self._exclusive_until = 0  # for so long
        self._alone: Reserved | None = None  # for the main thread
        self._alone_done = threading.Event()
        self._over, self._broken = False, None
        self._signals = deque[int]()
        self._io_wakes, self._io_wake = os.pipe()
        for end in (self._io_wakes, self._io_wake):
            os.set_blocking(end, False)
        self._suspects_at = 0
        self._soon = 0 if self.work.stop_when_empty or self.work.stop_when_empty_for else SUSPECTS_SOON_NS
        self._ran = self._found_nothing = False  # it has run something; since then it has looked for a job in vain
        self._io = 0  # the thread that owns the connection
        self._warned = set[str]()
        self.loop: asyncio.AbstractEventLoop

    alarm: MainAlarm
    _broken: BaseException | None

    # -- the main thread

    def run(self, ready: Callable[[], None] = lambda: None) -> int:
        self.slot[W.SEVERAL] = 1
        self._open()
        self.mailbox.heard = self._heard
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        self.steps.install(self.loop, self.most)
        os.register_at_fork(after_in_child=self._copied)
        self.app.connections.used = self._warn_blocking
        self._base = copy_context()
        watching = threading.Thread(target=self._watch, name="qd-watch", daemon=True)
        watching.start()
        begins = threading.Event()
        serves = partial(self._serve, begins)
        for act, name in ((self.tokens.serve, "qd-wait"), (serves, "qd-io")):
            threading.Thread(target=act, name=name, daemon=True).start()
        self.pool.submit(lambda: None)  # starts the first: it is ready once it needs no more threads to run a job
        self._show(looks=True)
        ready()
        begins.set()
        try:
            while not self._over:
                try:
                    self.loop.run_forever()
                except BaseException:  # sys.exit() in a callback that belongs to no job
                    logging.getLogger("qd.worker").exception("a callback on the event loop raised")
                if self._alone is not None:
                    self._do(self._alone)
                    asyncio.set_event_loop(self.loop)
                    self._alone = None
                    self._alone_done.set()
            if self._broken is not None:
                raise self._broken
            assert self._reason is not None
            return int(self._reason.code)
        finally:
            self._over = True
            self.mailbox.post(WAKE)
            watching.join(1.0)
            self._close()

    def _heard(self, number: int) -> None:
        """A signal's handler. Another kind of event loop has its own wakeup descriptor in place of the mailbox."""
        note_sigterm(number)
        self._signals.append(number)
        self.wake()

    def _copied(self) -> None:
        self.steps.copied = True

    def _blocked(self, ns: int, turn: int) -> None:
        """A step of this turn has blocked the loop: the time is not that of the other jobs."""
        for run in list(self._busy.values()):
            if run.turn != turn:
                run.alarm.moved(ns)

    def _warn_blocking(self) -> None:
        """A connection is used. On the loop, that makes every other job wait."""
        if asyncio._get_running_loop() is not self.loop:
            return
        name = current_job().name
        if name not in self._warned:
            self._warned.add(name)
            hint = "use adispatch, aresult and the other async calls, or asyncio.to_thread"
            self.log.warning("loop.blocking_call", job=name, hint=hint)

    # -- called from other threads

    def wake(self) -> None:
        """Let qd-io look at what has changed."""
        if not self._woken:
            self._woken = True
            with suppress(BlockingIOError):
                os.write(self._io_wake, b"!")

    def finished(self, run: LaneRun) -> None:
        self._ended.append(run)
        self.wake()

    def expects(self, deadline: int) -> None:
        """Something with this deadline has begun."""
        with self._deadline_lock:
            self._deadline = min(self._deadline, deadline)
        if deadline < self._wakes_at:
            with suppress(BlockingIOError):
                self.mailbox.post(WAKE)

    def calls(self, act: Callable[[], T], seconds: float) -> T:
        """Call `act` in the thread that owns the connection."""
        if threading.get_ident() == self._io:
            with self.queue.within(seconds):
                return act()
        future = Future[T]()
        self._calls.append((future, act, seconds))
        self.wake()
        return waited(future, seconds)

    def posts(self, act: Callable[[], None]) -> None:
        """The same, without waiting for it."""
        self._calls.append((None, act, 0.0))
        self.wake()

    def _token_came(self) -> None:
        self._more = True
        self.wake()

    # -- the thread qd-io

    def _serve(self, begins: threading.Event) -> None:
        self._io = threading.get_ident()
        begins.wait()
        try:
            self._work()
        except BaseException as error:
            if isinstance(error, OSError) and error.errno == errno.EBADF:
                self._leave_without_descriptors()
            self._broken = error
        finally:
            self._over = True
            self.loop.call_soon_threadsafe(self.loop.stop)

    def _leave_without_descriptors(self) -> None:
        """Nothing can be answered from here: the keeper does it. Jobs that were running are suspects."""
        reason = "a job closed this worker's file descriptors; the worker is being replaced"
        self.log.error("worker.descriptors_closed", reason=reason)
        os._exit(int(Exit.RAISED))

    def _work(self) -> None:
        while True:
            self._attend()
            self._settle_ended()
            if self._reason is None and (reason := self._reason_to_stop()) is not None:
                self._reason = reason
                self.slot[W.LEAVES] = 1
            if self._reason is not None and not self._busy and not self._ended and self._leave(self._reason):
                return
            may_look = False
            if self._exclusive:
                self._wait_alone()
            elif self._reason is None:
                may_look = self._may_look()
                if may_look and self._turns():
                    continue
            if self.answers.owes and now() - self.answers.since >= ACK_NS:
                self._exchange(0)
            self._rest_here(may_look)

    def _turns(self) -> bool:
        """Make a turn if jobs may be ready. False: it has nothing to do now."""
        if self._suspects_due():
            self._found_nothing = False
            self._run_suspects()
        if self._look_at and now() >= self._look_at:
            self._more = True
        if not self._more or not self._free or self._reason is not None:
            return False
        most = max(1, len(self._free) // 4)
        if self.work.max_jobs:
            most = min(most, self.exit_conditions.jobs_left(self.jobs) - len(self._busy))
        if most < 1:
            return False
        self._more, self._look_at = False, 0
        self._exchange(most)
        new = not self._soon or self._found_nothing or self._ran or not self.tokens.in_vain
        self._found_nothing = new and not self._more
        self._ran = self._ran and not self._found_nothing
        return not self.connection.away and (self._more or (self._found_nothing and not self._busy))

    def _exchange(self, most: int) -> None:
        """Ack what has finished and reserve up to `most` jobs."""
        connection, slot = self.answers, self.slot
        self._looked = now()
        if most:
            self.events.emit(events.JobPopping, *self.serves)
        try:
            if connection.unsure:
                self._query_held()
            lanes = [heapq.heappop(self._free) for _ in range(min(most, len(self._free)))]
            self._asked = lanes
            for lane in lanes:
                self.board.lane(slot.number, lane).set(0, LaneState.ASKED)
            if lanes:
                slot[W.LANES] = max(slot[W.LANES] if self._busy or connection.owes else 0, lanes[-1])
            done, order = connection.finished, connection.rota.order
            single = lanes[0] if lanes else 0
            shut = self.shut_queues.shut if lanes else self.work.queues
            reply = self.lanes.turn_lanes(
                LaneTurn(order, done=done, lanes=lanes, single=single, shut=shut, diverts=True)
            )
        except AWAY as error:
            connection.broke(error)
            self._more = True
            if not connection.unsure:
                self._release_asked()
            return
        connection._away_since = 0.0
        connection.finished, connection.since = [], 0
        for job in done:
            self._release(job.lane)
        if lanes:
            self._took(reply)
            self._more = bool(reply.jobs)
        for job in reply.jobs:
            connection.rota.took(job.queue, time.monotonic())
        self._asked = [lane for lane in lanes if lane not in {job.lane for job in reply.jobs}]
        self._release_asked()
        self._start(reply.jobs)
        if reply.lost:
            self.settlement.lost(reply.lost)

    def _release(self, lane: int) -> None:
        if 0 < lane <= self.most:
            self.board.lane(self.slot.number, lane).set(0, LaneState.EMPTY)
            heapq.heappush(self._free, lane)

    def _query_held(self) -> None:
        """After a broken turn: what it acked is gone, and what it reserved starts now."""
        known = {run.job.mark for run in self._busy.values() if run.job is not None}
        done = {job.mark for job in self.answers.finished}
        lanes = sorted({*self._asked, *self._busy, *(job.lane for job in self.answers.finished)})
        held = self.lanes.held_lanes(self.work.queues, lanes)
        self.answers.unsure = False
        there = {job.mark for job in held}
        for job in self.answers.finished:
            if job.mark not in there:
                self._release(job.lane)
        self.answers.finished = [job for job in held if job.mark in done]
        found = [job for job in held if job.mark not in known | done]
        for job in found:
            if not job.lane:  # a suspect: it must not run beside others
                text = unstarted(job.member, job.mark)
                self.lanes.settle_lanes(job.queue, [LaneAnswer(job.owner, job.member, text, suspect=True)])
        new = [job for job in found if job.lane]
        self._asked = [lane for lane in self._asked if lane not in {job.lane for job in new}]
        self._release_asked()
        self._start(new)

    def _release_asked(self) -> None:
        for lane in self._asked:
            self._release(lane)
        self._asked = []

    def _start(self, jobs: Any) -> None:
        slot, tasks = self.slot, list[Callable[[], None]]()
        if jobs and not self._busy:
            slot[W.JOB_AT], self._ran = now(), True
        for job in jobs:
            lane = job.lane
            run = self._runs.get(lane) or self._runs.setdefault(lane, LaneRun(self, lane))
            self._busy[lane] = run
            attempt = run.take(job)
            slot[W.STATE], slot[W.TURN] = SlotState.BUSY, job.turn
            if not isinstance(attempt, Attempt):
                run.finish(attempt)
            elif attempt.declared.options.exclusive:
                self._exclusive.append(run)
                self._exclusive_until = now() + EXCLUSIVE_NS
            elif (call := run.attempts.coroutine(attempt)) is not None:
                run.words.set(run.turn, LaneState.STARTED)
                tasks.append(partial(run.as_task, attempt, call, self._base))
            else:
                run.words.set(run.turn, LaneState.STARTED)
                self.pool.submit(partial(run.in_thread, self._base))
        if jobs:
            slot.describe(run.name, jobs[-1].queue.encode())
        if tasks:
            self.loop.call_soon_threadsafe(lambda: [start() for start in tasks])

    def _settle_ended(self) -> None:
        while self._ended:
            run = self._ended.popleft()
            self._settle(run)

    def _settle(self, run: LaneRun) -> None:
        assert run.held is not None
        assert run.outcome is not None
        job, outcome = run.held.job, run.outcome
        self.jobs += 1
        self.slot[W.JOBS] = self.jobs
        if run.attempts.recycle is not None:
            self.attempts.recycle = run.attempts.recycle
        self.alarm.raised = self.alarm.raised or run.alarm.raised
        self.settlement.attempts = run.attempts
        before = len(self.answers.finished)
        self.settlement.settle(run.held, outcome, (now() - run.began) / 1e9)
        del self._busy[run.number]
        run.task = run.attempt = None
        if len(self.answers.finished) == before:  # it is answered
            self._release(job.lane)
        if not self._busy:
            self.slot[W.JOB_AT], self.slot[W.STATE] = 0, SlotState.LOOKING
        if self._free and not self.tokens.waits:
            self._more = True

    # -- the thread qd-watch

    def _watch(self) -> None:
        while not self._over:
            self._wakes_at = now() + 1_000_000_000  # before the deadline is read: an earlier one wakes this thread
            self.mailbox.peek(min(1.0, max(0.0, (self._deadline - now()) / 1e9)))
            came = self.mailbox.read()
            if signal.SIGALRM in came:
                self._end_some()
            if others := [number for number in came if number not in (WAKE, signal.SIGALRM)]:
                self._signals += others
                self.wake()
            if now() >= self._deadline:
                self._expire()

    def _end_some(self) -> None:
        """The master has noted in lanes why their jobs are to end."""
        for run in list(self._busy.values()):
            why = run.words[L.WHY]
            if why and why >> 8 == run.turn & 0xFFFFFFFF:
                run.words[L.WHY] = 0
                run.alarm.end(Why(why & 0xFF))

    # -- more of qd-io

    def _read_signals(self) -> None:
        came = set[int]()
        while self._signals:
            came.add(self._signals.popleft())
        self._handle(came)

    def _peek(self, seconds: float) -> None:
        """Sleep until something has changed."""
        if not self._woken:
            ready_of((self._io_wakes,), seconds)
        with suppress(BlockingIOError):
            os.read(self._io_wakes, 4096)
        self._woken = False

    def _attend(self, *, away: bool = False) -> None:
        """Handle signals and the calls of jobs. away: the server is."""
        self._read_signals()
        while self._calls and not (away and self._calls[0][0] is None):
            future, act, seconds = self._calls.popleft()
            if future is None:
                act()
            elif future.set_running_or_notify_cancel():
                try:
                    if away:
                        raise ConnectionLost("the server is unreachable")
                    with self.queue.within(seconds):
                        future.set_result(act())
                except BaseException as error:
                    future.set_exception(error)

    def _expire(self) -> None:
        with self._deadline_lock:
            self._deadline = FAR
        at, nearest = now(), FAR
        for run in list(self._busy.values()):
            if deadline := run.alarm.deadline:
                if deadline <= at:
                    run.expire()
                    deadline = at + 100_000_000
                nearest = min(nearest, deadline)
        with self._deadline_lock:
            self._deadline = min(self._deadline, nearest)

    def _rest_while_away(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._peek(left)
            self._attend(away=True)
            self._beat()

    def _rest_here(self, looks: bool) -> None:
        """Sleep until something has changed. looks: it may take jobs."""
        if self._ended or self._calls:
            return
        if self.connection.away:
            return self.connection.pause()
        seconds = IDLE if self.between or self.work.stop_when_empty or not looks else 1.0
        if not self.board.header(H.KEEPER_CONTACT) and now() - self._opened < BOOTING:
            seconds = 0.003
        if looks and self._free:
            self._wait_for_tokens()
        else:
            self.tokens.stop()
        if self.answers.owes:
            seconds = min(seconds, max(0.0, (self.answers.since + ACK_NS - now()) / 1e9))
        if self._look_at:
            seconds = min(seconds, max(0.0, (self._look_at - now()) / 1e9))
        if not self._busy:
            self.slot[W.LOOKED] = self._looked if looks else now()
            held = self.shut_queues.holds and not self.paused
            if not ((looks and (self._more or self._found_nothing)) or self.answers.owes):
                self.slot[W.STATE] = SlotState.WAITING if looks or held else SlotState.IDLE
        self._show(looks)
        self._peek(seconds)
        if os.getppid() != self.context.master:
            os._exit(1)
        self._beat()
        if self.between is not None:
            self.between()

    def _wait_for_tokens(self) -> None:
        if self.tokens.waits or self._more or self._look_at:
            return
        if not self._busy:
            self.events.emit(events.WorkerIdle, *self.serves)
        queues = [queue for queue in self.work.queues if queue not in self._paused_queues]
        longest = min(self.work.sleep, IDLE) if self.between or self.work.stop_when_empty else self.work.sleep
        seconds = longest if self._next_due is None else min(longest, self._next_due)
        if queues:
            self.tokens.start(queues, min(seconds, 1.0) if self._paused_queues else seconds)
        else:
            self._look_at = now() + int(min(seconds, 1.0) * 1e9)

    def _show(self, looks: bool) -> None:
        count = len(self._busy)
        if count:
            self.titles.idle(f"runs {count} {'job' if count == 1 else 'jobs'}")
        else:
            idle = "paused" if self.paused else "down" if self.board.header(H.DOWN) else "idle"
            self.titles.idle("waiting on " + ",".join(self.work.queues) if looks else idle)

    # -- alone in the main thread

    def _wait_alone(self) -> None:
        """Run the exclusive jobs, one by one, once the others have ended."""
        if len(self._busy) == len(self._exclusive) and not self._ended:
            run = self._exclusive.popleft()
            assert run.job is not None
            run.words.set(run.turn, LaneState.STARTED)
            self.slot[W.STARTED] = run.turn  # nothing runs beside it: it is to blame for the worker's death
            before = len(self.answers.finished)
            self._run_alone(run.job)
            self.slot[W.STARTED] = 0
            run.checkpoints.end()
            del self._busy[run.number]
            if len(self.answers.finished) == before:  # it is answered
                self._release(run.number)
            self._more = True
        elif now() >= self._exclusive_until or self._reason is not None:
            while self._exclusive:
                self._exclusive.popleft().finish(Back(1.0, "an exclusive job: others run for too long", spends=False))

    def _run_alone(self, job: Reserved) -> None:
        """Run it in the main thread while this one waits, so that the connection is the job's."""
        self.settlement.attempts = self.attempts
        self._alone_done.clear()
        self._alone = job
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._alone_done.wait()

    def _suspects_due(self) -> bool:
        """Whether to look for suspects: a new worker, one that has found no job, and each now and then; not if enough others
        run some. A busy worker leaves for them: the next one is new."""
        since = now() - self._suspects_at if self._suspects_at else FAR
        if self.answers.owes or since < (self._soon if self._found_nothing and not self._busy else SUSPECTS_NS):
            return False
        workers = [slot for slot in self.board if slot[W.STATE] in ALIVE and slot[W.ROLE] == Role.WORKER]
        left_at = self.board.header(H.SUSPECTS_AT)  # after a turn of suspects, a single worker runs other jobs
        if len(workers) == 1 and left_at and now() - left_at < SUSPECTS_NS and not self._found_nothing:
            return False
        others = sum(slot[W.SUSPECTS] or (slot[W.LEAVES] if self._busy else 0) for slot in workers)
        if others >= max(1, len(workers) // 4):
            return False
        if not self._busy:
            return True
        self._suspects_at = now()
        space, prefix = self.queue.kept
        with suppress(*AWAY):
            if any(space.call("EXISTS", prefix + keys.suspects(queue)) for queue in self.work.queues):
                self._reason, self.slot[W.LEAVES] = StopReason.MAX_JOBS, 1
        return False

    def _run_suspects(self) -> None:
        """Run suspects one at a time, then leave: the next worker of this slot has no traces of them."""
        self._suspects_at = began = now()
        while not self._reason_to_stop() and self._may_look():
            self._attend()
            try:
                if self.answers.unsure:
                    self._query_held()
                shut, done = self.shut_queues.shut, self.answers.finished
                reply = self.lanes.turn_lanes(
                    LaneTurn(self.work.queues, done=done, lanes=(0,), shut=shut, suspects=True)
                )
            except AWAY as error:
                return self.connection.broke(error)
            self.answers.finished, self.answers.since = [], 0
            if not reply.jobs:
                break
            self.slot[W.SUSPECTS] = self.slot[W.LEAVES] = 1
            self._reason = StopReason.MAX_JOBS
            self._run_alone(reply.jobs[0])
            if now() - began > SUSPECTS_NS:
                break
        if self.slot[W.SUSPECTS]:
            self.board.set_header(H.SUSPECTS_AT, now())

    # -- the end

    def _leave(self, reason: StopReason) -> bool:
        """False: a turn that had broken had reserved jobs."""
        self.tokens.stop()
        while self.connection.unsure or self.answers.owes:
            self._exchange(0)
            if self._busy:
                return False
            if self.connection.away:
                self.connection.pause()
        if reason is StopReason.RECYCLE and self.attempts.recycle is not None:
            self.log.warning("worker.recycled", reason=short(self.attempts.recycle))
        memory = proc.rss_of(os.getpid()) or 0
        self.events.emit(events.WorkerStopping, reason.word, int(reason.code), *self.serves, self.jobs, memory)
        self.log.debug("worker.stopping", reason=reason.word, jobs=self.jobs)
        with suppress(*AWAY):
            self.lanes.leave_lanes()
        self.slot[W.STATE] = SlotState.IDLE
        return True
