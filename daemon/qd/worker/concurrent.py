"""A worker that runs up to `concurrency` jobs at once. They share what a job alone would have for itself: a process.

    main thread     the event loop: async jobs as tasks
    qd-job_N        threads: sync jobs, and what is sync around an async one (middleware, listeners, failed())
    qd-io           owns the connection: turns, answers, checkpoints; reasons to stop
    qd-watch        signals and deadlines
    qd-wait         waits for a token

    turn: ack what has finished + reserve up to a quarter of the free lanes -> start all -> turn again, until there is none
    finished -> acked with the next turn, 10 ms later at most; with effects at once

If the server is away, jobs continue, and their answers wait in order. An exclusive job waits for the others and then runs in
the main thread, the loop stopped, as in a worker with one job; so does a suspect.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from math import isqrt
from types import FrameType

from qd import events
from qd.app import Qd
from qd.drivers.base import Connector, LaneConnector
from qd.drivers.keyspace import keys
from qd.drivers.types import Reserved
from qd.jobs.context import current_job
from qd.master.code import Assignment, ChildContext
from qd.options.tables import WorkOptions
from qd.process.exit_codes import Exit, StopReason
from qd.process.scoreboard import ALIVE, H, LaneState, Role, Scoreboard, Slot, SlotState, W, now
from qd.traces import calling_line
from qd.worker.connection import AWAY, LaneTurns
from qd.worker.lanes import LaneRun, Steps
from qd.worker.outcome import Attempt, Back
from qd.worker.queues import Rota
from qd.worker.settle import log_fields
from qd.worker.threads import Deadlines, Inbox, JobPool, TokenWait, started
from qd.worker.timeout import Alarm
from qd.worker.worker import DESCRIPTORS_CLOSED, IDLE, BaseWorker, Between, note_sigterm

ACK_NS = 10_000_000  # until the ack of a finished job is sent, at the latest
LOOK_NS = 10_000_000_000  # between two looks for suspects; a worker that runs some leaves after as long
LOOK_SOON_NS = 1_000_000_000  # the same if it has looked for a job in vain
EXCLUSIVE_NS = 10_000_000_000  # for which an exclusive job waits for the others; then it goes back


class MainAlarm(Alarm):
    """For a job alone in the main thread. rang: called by the handler of SIGALRM, which the master sends for all jobs."""

    rang: Callable[[], None]

    def _ring(self, number: int, frame: FrameType | None) -> None:
        self.rang()
        super()._ring(number, frame)


class ConcurrentWorker(BaseWorker):
    alarm_type = MainAlarm
    alarm: MainAlarm
    queue: LaneConnector
    connection: LaneTurns
    loop: asyncio.AbstractEventLoop

    def __init__(
        self,
        app: Qd,
        queue: LaneConnector,
        waiting: Connector,
        context: ChildContext,
        assignment: Assignment,
        between: Between,
    ) -> None:
        """waiting: a second connection, for waits."""
        super().__init__(app, queue, context, assignment, between)
        self.alarm.rang = partial(self.mailbox.post, signal.SIGALRM)
        self.settlement.notify = lambda job: self.pool.submit(partial(self.settlement.attempts.notify_lost, job))
        self.steps = Steps(self.slot, self._blocked)
        self.suspects = Suspects(self.board, self.slot, self.work)
        self.inbox = Inbox(queue)
        self.tokens = TokenWait(waiting, self._token_came)
        self._busy = dict[int, LaneRun]()
        self.deadlines = Deadlines(self.mailbox, self._busy, self._signalled)
        self._runs = dict[int, LaneRun]()
        self._ended = deque[LaneRun]()
        self._signals = deque[int]()
        self._more, self._look_at = True, 0  # whether jobs may be ready; when they may be again
        self._reason: StopReason | None = None
        self._exclusive = deque[LaneRun]()  # jobs that wait until the others have ended,
        self._exclusive_until = 0  # for so long
        self._alone: Reserved | None = None  # for the main thread
        self._alone_done = threading.Event()
        self._over = False
        self._broken: BaseException | None = None
        self._warned = set[str]()

    def _connect(self, rota: Rota) -> LaneTurns:
        most = min(self.work.concurrency, self.board.lanes)  # the master has the lanes of its start
        return LaneTurns(self.queue, rota, self.log, self._rest_while_away, self.board, self.slot, most=most)

    # -- the main thread

    def run(self, ready: Callable[[], None] = lambda: None) -> int:
        self.slot[W.SEVERAL] = 1
        self._open()
        self.mailbox.heard = self._heard
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        self.steps.install(self.loop, self.connection.most)
        os.register_at_fork(after_in_child=partial(setattr, self.steps, "copied", True))
        self.app.connections.used = self._warn_blocking
        self._base = copy_context()
        begins = threading.Event()
        watching = started("qd-watch", self.deadlines.serve)
        started("qd-wait", self.tokens.serve)
        started("qd-io", partial(self._serve, begins))
        self.pool = JobPool(self.connection.most)  # ready once it needs no more threads to run a job
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
            self.deadlines.stop()
            watching.join(1.0)
            self._close()

    def _heard(self, number: int) -> None:
        """A signal's handler. Some event loops replace the mailbox by a wakeup descriptor of their own."""
        note_sigterm(number)
        self._signals.append(number)
        self.inbox.wake()

    def _blocked(self, ns: int, turn: int) -> None:
        """A step of this turn has blocked the loop for so long: move the deadlines of the other jobs."""
        for run in list(self._busy.values()):
            if run.turn != turn:
                run.alarm.moved(ns)

    def _warn_blocking(self) -> None:
        """A connection is used. On the event loop, the call makes every other job wait."""
        if asyncio._get_running_loop() is not self.loop:
            return
        name = current_job().name
        if name not in self._warned:
            self._warned.add(name)
            hint = "use adispatch, aresult and the other async calls, or asyncio.to_thread; see `qd help async`"
            self.log.warning("loop.blocking_call", job=name, at=calling_line(), hint=hint)

    # -- called from other threads

    def finished(self, run: LaneRun) -> None:
        self._ended.append(run)
        self.inbox.wake()

    def _signalled(self, numbers: list[int]) -> None:
        self._signals += numbers
        self.inbox.wake()

    def _token_came(self) -> None:
        self._more = True
        self.inbox.wake()

    # -- the thread qd-io

    def _serve(self, begins: threading.Event) -> None:
        self.inbox.thread = threading.get_ident()
        begins.wait()
        try:
            self._work()
        except BaseException as error:
            if isinstance(error, OSError) and error.errno == errno.EBADF:
                # The keeper answers the jobs, because this worker cannot. Those that were running are suspects.
                self.log.error("worker.descriptors_closed", reason=DESCRIPTORS_CLOSED)
                os._exit(int(Exit.RAISED))
            self._broken = error
        finally:
            self._over = True
            self.loop.call_soon_threadsafe(self.loop.stop)

    def _work(self) -> None:
        while True:
            self._attend()
            while self._ended:
                self._settle(self._ended.popleft())
            if self._reason is None and (reason := self._reason_to_stop()) is not None:
                self._reason = reason
                self.slot[W.LEAVES] = 1
            if self._reason is not None and not self._busy and not self._ended and self._leave(self._reason):
                return
            may_look = False
            if self._exclusive:
                if self._run_exclusive():
                    continue
            elif self._reason is None:
                may_look = self._may_look()
                if may_look and self._turns():
                    continue
            if self.connection.finished and now() - self.connection.since >= ACK_NS:
                self._exchange(0)
            self._wait(may_look)

    def _attend(self, *, away: bool = False) -> None:
        """Handle signals and the calls of jobs. away: the server is."""
        self._read_signals()
        self.inbox.serve(away=away)

    def _read_signals(self) -> None:
        came = set[int]()
        while self._signals:
            came.add(self._signals.popleft())
        self._handle(came)

    # -- turns

    def _turns(self) -> bool:
        """Make a turn if jobs may be ready. False: it has nothing to do now."""
        connection, suspects = self.connection, self.suspects
        if not connection.finished and not connection.unsure and suspects.due(busy=bool(self._busy)):
            if not self._busy:
                self._run_suspects()
            elif suspects.wait_in(self.queue, self.work.queues):
                self._reason, self.slot[W.LEAVES] = StopReason.MAX_JOBS, 1
        if self._look_at and now() >= self._look_at:
            self._more = True
        if not self._more or not connection.free or self._reason is not None:
            return False
        most = max(1, len(connection.free) // 4)
        if self.work.max_jobs:
            most = min(most, self.exit_conditions.jobs_left(self.jobs) - len(self._busy))
        if most < 1:
            return False
        self._more, self._look_at = False, 0
        self._exchange(most)
        suspects.note_turn(self._more, in_vain=self.tokens.in_vain)
        return not connection.away and (self._more or (suspects.found_nothing and not self._busy))

    def _exchange(self, most: int) -> None:
        """Ack what has finished, reserve up to `most` jobs and start them."""
        connection = self.connection
        self._looked = now()
        if most:
            self._emit(events.JobPopping, *self.serves)
        try:
            if connection.unsure:
                marks = {lane: run.job.mark for lane, run in self._busy.items() if run.job is not None}
                self._start(connection.query_held(marks))
            reply = connection.take(most, self.shut_queues.shut, busy=bool(self._busy))
        except AWAY as error:
            connection.broke(error)
            self._more = True
            return
        if most:
            self._took(reply)
            self._more = bool(reply.jobs)
        self._start(reply.jobs)
        if reply.lost:
            self.settlement.lost(reply.lost)

    def _start(self, jobs: Sequence[Reserved]) -> None:
        if not jobs:
            return
        slot, tasks = self.slot, list[Callable[[], None]]()
        if not self._busy:
            slot[W.JOB_AT], self.suspects.ran = now(), True
        for job in jobs:
            lane = job.lane
            run = self._busy[lane] = self._runs.get(lane) or self._runs.setdefault(lane, LaneRun(self, lane))
            attempt = run.take(job)
            slot[W.STATE], slot[W.TURN] = SlotState.BUSY, run.turn
            if not isinstance(attempt, Attempt):
                run.finish(attempt)
            elif attempt.declared.options.exclusive:
                self._exclusive.append(run)
                if others := len(self._busy) - len(self._exclusive):
                    self.log.info("job.waits", **log_fields(job), reason="it runs alone in its worker", running=others)
                self._exclusive_until = now() + EXCLUSIVE_NS
            else:
                run.words.set(run.turn, LaneState.STARTED)
                self._count_start(run.attempts, job, attempt.payload)
                if (call := run.attempts.coroutine(attempt)) is not None:
                    tasks.append(partial(run.as_task, attempt, call, self._base))
                else:
                    self.pool.submit(partial(run.in_thread, self._base))
        slot.describe(run.name, jobs[-1].queue.encode())
        if tasks:
            self.loop.call_soon_threadsafe(lambda: [start() for start in tasks])

    def _settle(self, run: LaneRun) -> None:
        assert run.held is not None
        assert run.outcome is not None
        self.jobs += 1
        self.slot[W.JOBS] = self.jobs
        if run.attempts.recycle is not None:
            self.attempts.recycle = run.attempts.recycle
        self.alarm.raised = self.alarm.raised or run.alarm.raised
        self.settlement.attempts = run.attempts
        acks = len(self.connection.finished)
        self.settlement.settle(run.held, run.outcome, (now() - run.began) / 1e9)
        self._forget(run, acks)
        if not self._busy:
            self.slot[W.JOB_AT], self.slot[W.STATE] = 0, SlotState.LOOKING
        if self.connection.free and not self.tokens.waits:
            self._more = True

    def _forget(self, run: LaneRun, acks: int) -> None:
        """Its job is settled. acks: how many waited for a turn before that."""
        del self._busy[run.number]
        run.task = run.attempt = None
        if len(self.connection.finished) == acks:  # it is answered
            self.connection.release(run.number)

    # -- wait

    def _rest_while_away(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.inbox.sleep(left)
            self._attend(away=True)
            self._beat()

    def _wait(self, looks: bool) -> None:
        """Sleep until something has changed. looks: it may take jobs."""
        connection = self.connection
        if self._ended or self.inbox.filled:
            return
        if connection.away:
            return connection.pause()
        seconds = IDLE if self.between or self.work.stop_when_empty or not looks else 1.0
        if self._booting():
            seconds = 0.003
        if looks and connection.free:
            self._wait_for_tokens()
        else:
            self.tokens.stop()
        ack_at = connection.since + ACK_NS if connection.finished else 0
        for moment in (ack_at, self._look_at):
            if moment:
                seconds = min(seconds, max(0.0, (moment - now()) / 1e9))
        if not self._busy:
            self.slot[W.LOOKED] = self._looked if looks else now()
            held = self.shut_queues.holds and self._why_idle() != "paused"
            if not ((looks and (self._more or self.suspects.found_nothing)) or connection.finished):
                self.slot[W.STATE] = SlotState.WAITING if looks or held else SlotState.IDLE
        self._show(looks)
        self.inbox.sleep(seconds)
        self._after_wait()

    def _wait_for_tokens(self) -> None:
        if self.tokens.waits or self._more or self._look_at:
            return
        if not self._busy:
            self._emit(events.WorkerIdle, *self.serves)
        queues, seconds = self._to_wait_for()
        if queues:
            self.tokens.start(queues, seconds)
        else:
            self._look_at = now() + int(seconds * 1e9)

    def _show(self, looks: bool) -> None:
        if count := len(self._busy):
            self.titles.idle(f"runs {count} {'job' if count == 1 else 'jobs'}")
        else:
            self.titles.idle("waiting on " + ",".join(self.work.queues) if looks else self._why_idle())

    # -- alone in the main thread

    def _run_alone(self, job: Reserved) -> None:
        """Run it in the main thread. This thread waits, so that the job may use the connection."""
        self.settlement.attempts = self.attempts
        self._alone_done.clear()
        self._alone = job
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._alone_done.wait()

    def _run_exclusive(self) -> bool:
        """Run the first of the exclusive jobs if the others have ended. False: it waits for them."""
        if len(self._busy) == len(self._exclusive) and not self._ended:
            run = self._exclusive.popleft()
            assert run.job is not None
            run.words.set(run.turn, LaneState.STARTED)
            self.slot[W.STARTED] = run.turn  # it runs alone: if the worker dies now, it is to blame
            acks = len(self.connection.finished)
            self._run_alone(run.job)
            self.slot[W.STARTED] = 0
            run.checkpoints.end()
            self._forget(run, acks)
            self._more = True
            return True
        if now() >= self._exclusive_until or self._reason is not None:
            while self._exclusive:
                self._exclusive.popleft().finish(Back(1.0, "an exclusive job: others run for too long", spends=False))
        return False

    def _run_suspects(self) -> None:
        """Run suspects, then leave, because they may have damaged the process. Those that may run together only start here;
        others run one after another."""
        self.suspects.found_nothing = False
        began = self.suspects.look()
        while not self._reason_to_stop() and self._may_look():
            self._attend()
            try:
                few = isqrt(self.connection.most)
                reply = self.connection.take(few, self.shut_queues.shut, busy=False, suspects=True)
            except AWAY as error:
                return self.connection.broke(error)
            if not reply.jobs:
                break
            self.slot[W.SUSPECTS] = self.slot[W.LEAVES] = 1
            self._reason = StopReason.MAX_JOBS
            if reply.jobs[0].lane:
                return self._start(reply.jobs)
            self._run_alone(reply.jobs[0])
            if now() - began > LOOK_NS:
                break

    # -- the end

    def _leave(self, reason: StopReason) -> bool:
        """False: a broken turn had reserved jobs, which have to run first."""
        self.tokens.stop()
        while self.connection.unsure or self.connection.finished:
            self._exchange(0)
            if self._busy:
                return False
            if self.connection.away:
                self.connection.pause()
        self._note_leaving(reason)
        self.connection.leave()
        if self.slot[W.SUSPECTS]:
            self.board.set_header(H.SUSPECTS_AT, now())
        self.slot[W.STATE] = SlotState.IDLE
        return True


class Suspects:
    """When the worker looks for suspects: jobs that may have killed a worker with several jobs. They run in a worker that
    takes nothing else and leaves afterwards.

        a worker died     -> its jobs are suspects -> isqrt(concurrency) of them run together
        it died as well   -> these are suspects for the second time -> each runs alone
        it died           -> a crash is counted against the job

    A new worker looks for them, one that has found no job, and each now and then; but not if enough others run some. A busy
    worker leaves, so that a new one takes its place and runs them.

    found_nothing: since the last job that it ran, this worker has looked for one in vain.
    """

    def __init__(self, board: Scoreboard, slot: Slot, work: WorkOptions) -> None:
        self.board, self.slot = board, slot
        self.soon = 0 if work.stop_when_empty or work.stop_when_empty_for else LOOK_SOON_NS
        self.found_nothing = self.ran = False
        self._looked_at = 0

    def note_turn(self, found: bool, *, in_vain: bool) -> None:
        """A turn has found a job, or none. in_vain: the wait before it ended without a token."""
        new = not self.soon or self.found_nothing or self.ran or not in_vain
        self.found_nothing = new and not found
        self.ran = self.ran and not self.found_nothing

    def due(self, *, busy: bool) -> bool:
        """Whether to look now. busy: this worker runs jobs."""
        every = self.soon if self.found_nothing and not busy else LOOK_NS
        if self._looked_at and now() - self._looked_at < every:
            return False
        workers = [slot for slot in self.board if slot[W.STATE] in ALIVE and slot[W.ROLE] == Role.WORKER]
        left_at = self.board.header(H.SUSPECTS_AT)  # after a turn of suspects, a single worker runs other jobs
        if len(workers) == 1 and left_at and now() - left_at < LOOK_NS and not self.found_nothing:
            return False
        others = sum(slot[W.SUSPECTS] or (slot[W.LEAVES] if busy else 0) for slot in workers)
        return others < max(1, len(workers) // 4)

    def look(self) -> int:
        """A look begins. Returns the moment."""
        self._looked_at = now()
        return self._looked_at

    def wait_in(self, queue: Connector, names: Sequence[str]) -> bool:
        """Whether one of these queues has suspects."""
        self.look()
        space, prefix = queue.kept
        with suppress(*AWAY):
            return any(space.call("EXISTS", prefix + keys.suspects(name)) for name in names)
        return False
