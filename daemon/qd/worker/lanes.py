"""One lane of a worker that runs several jobs: its attempt, which runs as a task, in a thread, or in both, and its alarm.

    nothing sync around an async job     -> a task on the loop                             LaneRun.as_task
    anything else                        -> a thread of JobPool; a coroutine inside goes to the loop  LaneRun.in_thread

LaneAlarm    ends the attempt from outside: a task is cancelled until it ends; in a thread an exception is raised, once and
             only inside user code. Python does not raise it in a blocking call of C: such a job ends with its worker
LaneQueue    the worker's connection as the job of one lane uses it; every call runs in the thread that owns it
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager, suppress
from contextvars import Context, copy_context
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar, cast

from qd.drivers.base import Connector, LaneConnector
from qd.drivers.types import Reserved
from qd.errors import EndJob, NoAnswer, NotInJob
from qd.jobs import context
from qd.jobs.policy import JobLimits, backoff, fails_when_killed
from qd.options.kinds import span_text
from qd.payload.format import Payload
from qd.process import shield
from qd.process.scoreboard import Fails, L, Lane, LaneState, Why, now
from qd.process.shield import in_main_thread
from qd.worker.attempt import Attempts
from qd.worker.connection import PATIENCE, Checkpoints, HeldJob
from qd.worker.outcome import Attempt, Death, Done, Failed, Outcome
from qd.worker.steps import Owner, context_of, ended, owner_here
from qd.worker.timeout import ENDS, MISSING, Alarm

if TYPE_CHECKING:
    from qd.worker.concurrent import ConcurrentWorker

T = TypeVar("T")
AGAIN = 0.1  # seconds between two cancellations of a task that does not end


class LaneAlarm(Alarm):
    """begun: called with the deadline of what begins. raised: an EndJob was raised in a thread."""

    def __init__(self, words: Lane, begun: Callable[[int], None]) -> None:
        self.words, self._begun = words, begun
        self.raised = False
        self.cancel: Callable[[], object] | None = None
        self.ended_by: EndJob | None = None
        self.job: context.RunningJob | None = None
        self.deadline = 0
        self._seconds = 0.0
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._inside = self._flying = self._overdue = (
            False  # flying: Python has the exception and has not raised it yet
        )
        self._thread = self._depth = 0

    def open(self) -> None:
        """It needs no signal."""

    def begins(self, seconds: float) -> None:
        """User code begins, in this thread or on the loop."""
        self.ended_by, self._seconds = None, seconds
        self._flying = self._overdue = False
        self._depth, self._thread = 0, threading.get_ident()
        self.words[L.THREAD] = 0 if in_main_thread() else self._thread
        self.deadline = self.words[L.DEADLINE] = now() + int(seconds * 1e9) if seconds else 0
        self._inside = True
        if seconds:
            self._begun(self.deadline)

    def moved(self, ns: int) -> None:
        """The loop was blocked by another job for so long."""
        with self._lock:
            if self._inside and self.deadline and not self.words[L.THREAD]:
                self.deadline = self.words[L.DEADLINE] = self.deadline + ns

    def ends(self) -> None:
        with self._lock:
            self._inside = False
            self._drop()
        if os.getpid() == self._pid:
            self.words[L.DEADLINE] = self.deadline = 0
            if self.ended_by is not None:
                self.words[L.OVER] = self.words.state[0]

    def guard(self, body: Callable[[], T], seconds: float) -> T:
        thread, result = threading.get_ident(), MISSING
        self.begins(seconds)
        shield.threads[thread] = self
        try:
            try:
                result = body()
            finally:
                try:
                    self.ends()
                except EndJob:  # raised in the lines above
                    self.ends()
        except EndJob as raised:
            if result is MISSING:
                raise (self.ended_by or raised).with_traceback(raised.__traceback__) from None
        finally:
            shield.threads.pop(thread, None)
        return cast(T, result)

    def note_hooks(self, fails: Fails = Fails.HOOKS) -> None:
        if os.getpid() == self._pid:
            self.words[L.FAILS] = fails

    def lease_lost(self) -> None:
        self.end(Why.LEASE)

    def end(self, why: Why) -> None:
        """End the attempt, if user code runs. Repeat it for a thread that was in a block of the shield. From any thread."""
        with self._lock:
            if not self._inside or (why is Why.TIMEOUT and not self._late):
                return
            if self.ended_by is None:
                kind, text = ENDS[why]
                text = f"{text} of {span_text(self._seconds)}" if why is Why.TIMEOUT else text
                self.ended_by = kind(text)
                if self.job is not None:
                    self.job.ended_by = self.ended_by
                if self.cancel is None:
                    self.raised = self._overdue = True
            if self.cancel is not None:
                self.cancel()
            elif self._overdue and not self._depth:
                self._overdue, self._flying = False, True
                raise_in(self._thread, self._exception(self.ended_by))

    @property
    def _late(self) -> bool:
        return 0 < self.deadline <= now()

    def _exception(self, error: EndJob) -> type[EndJob]:
        """A class, because Python raises only classes in other threads. It is made when its exception is raised."""
        kind, text = type(error), str(error)

        def __init__(made: EndJob) -> None:
            kind.__init__(made, text)
            self._flying = False

        return type(kind.__name__, (kind,), {"__init__": __init__, "__module__": kind.__module__})

    def _drop(self) -> None:
        if self._flying:
            raise_in(self._thread, None)
            self._flying = False

    # -- blocks of the shield, in the job's thread

    def shielded(self) -> None:
        with self._lock:
            if not self._flying:
                self._depth += 1
                return
            self._drop()  # it would be raised inside the block
        self._raise()

    def unshielded(self, *, rings: bool = True) -> None:
        with self._lock:
            self._depth -= 1
            due = rings and self._overdue and not self._depth and self._inside
            self._overdue = self._overdue and not due
        if due:
            self._raise()

    def depth_set(self, depth: int) -> int:
        with self._lock:
            before, self._depth = self._depth, depth
        return before

    def _raise(self) -> None:
        if self.ended_by is not None:
            raise self.ended_by


def raise_in(thread: int, kind: type[BaseException] | None) -> None:
    """Raise an exception in another thread, when Python gets to it. None: not any more."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None if kind is None else ctypes.py_object(kind))


class JobPool:
    """Threads for jobs, started when they are needed and kept. Daemons: one that is stuck does not keep the worker."""

    def __init__(self, most: int) -> None:
        self._most, self._idle, self._count = most, 0, 0
        self._tasks = SimpleQueue[Callable[[], None]]()
        self._lock = threading.Lock()

    def submit(self, act: Callable[[], None]) -> None:
        with self._lock:
            starts = self._tasks.qsize() >= self._idle and self._count < self._most
            self._count += starts
            number = self._count
        self._tasks.put(act)
        if starts:
            try:
                threading.Thread(target=self._work, name=f"qd-job-{number}", daemon=True).start()
            except RuntimeError:  # no more threads are allowed: the others run it
                with self._lock:
                    self._count -= 1
                if not self._count:
                    raise

    def _work(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            act = self._tasks.get()
            with self._lock:
                self._idle -= 1
            act()
            del act


class LaneQueue:
    """What the job of a lane uses of the worker's connection, from its own thread."""

    def __init__(self, queue: LaneConnector, call: Callable[[Callable[[], Any], float], Any]) -> None:
        """call: runs a function in the thread that owns the connection, and waits so many seconds."""
        self._queue, self._call = queue, call

    turn_lanes = None  # marks it as a connection with lanes

    @property
    def jobs(self) -> LaneQueue:
        return self

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        yield  # every call is

    def checkpoint(self, held: Reserved, member: bytes) -> object:
        return self._call(lambda: self._queue.checkpoint(held, member), PATIENCE)

    def progress(self, id: str, percent: float, ttl: float) -> object:
        return self._call(lambda: self._queue.jobs.progress(id, percent, ttl), PATIENCE)

    def owned_by(self, queue: str, owners: Sequence[str]) -> object:
        return self._call(lambda: self._queue.owned_by(queue, owners), PATIENCE)


class LaneCheckpoints(Checkpoints):
    """A task does not wait for the server: its states are saved in order, and a lost lease ends it a moment later."""

    def __init__(self, queue: LaneQueue, alarm: Alarm, log: Any, post: Callable[[Callable[[], None]], None]) -> None:
        super().__init__(cast(Connector, queue), alarm, log)
        self._post = post

    def keep(self, mark: str, state: bytes) -> None:
        if not in_main_thread() or os.getpid() != self._pid:
            return super().keep(mark, state)
        if self._mark != mark:
            raise NotInJob("job.checkpoint() was called after its job had ended")
        self._unsaved, self._used = state, True
        self._post(lambda: self._later(lambda: Checkpoints.keep(self, mark, state)))

    def progress(self, mark: str, id: str, ttl: float, percent: float) -> None:
        if not in_main_thread() or os.getpid() != self._pid:
            return super().progress(mark, id, ttl, percent)
        self._post(lambda: self._later(lambda: Checkpoints.progress(self, mark, id, ttl, percent)))

    def _later(self, act: Callable[[], None]) -> None:
        with suppress(NotInJob, EndJob):  # it has ended meanwhile, and its answer saves the state
            act()


class LaneRun:
    """What a lane runs. held, outcome: once its attempt has ended."""

    def __init__(self, worker: ConcurrentWorker, number: int) -> None:
        self.worker, self.number = worker, number
        self.words = worker.board.lane(worker.slot.number, number)
        self.alarm = LaneAlarm(self.words, worker.expects)
        self.queue = LaneQueue(worker.lanes, worker.calls)
        self.checkpoints = LaneCheckpoints(self.queue, self.alarm, worker.log, worker.posts)
        self.attempts = Attempts(
            worker.app, worker.work, self.alarm, cast(Any, self), self.checkpoints.keep, self.checkpoints.progress
        )
        self.job: Reserved | None = None
        self.turn = self.began = 0
        self.owner = Owner(0)
        self.task: asyncio.Task[Any] | None = None
        self.attempt: Attempt | Outcome | None = None
        self.held: HeldJob | None = None
        self.outcome: Outcome | None = None
        self.name = b""

    def take(self, job: Reserved) -> Attempt | Outcome:
        self.job, self.turn, self.name = job, job.turn, b"?"
        self.words.set(self.turn, LaneState.HELD)
        self.task, self.outcome, self.held = None, None, None
        self.owner = Owner(self.turn)
        self.alarm.raised = False
        self.checkpoints.begin(job)
        self.began = now()
        prepared = self.attempts.prepare(job, self._begin)
        self.alarm.job = prepared.job if isinstance(prepared, Attempt) else None
        self.attempt = prepared
        return prepared

    def _begin(self, payload: Payload, limits: JobLimits) -> None:
        words, job = self.words, self.job
        assert job is not None
        fails = fails_when_killed(limits, payload)
        words[L.FAILS] = fails
        words[L.BACKOFF_MS] = 0 if fails else int(backoff(limits.backoff, payload.attempts) * 1000)
        words[L.WHY] = words[L.PROOF] = words[L.DEADLINE] = 0
        self.name = payload.job.encode("utf-8", "replace")
        words.describe(self.name, job.queue.encode())
        words[L.JOB_AT] = self.began

    def finish(self, outcome: Outcome) -> None:
        self.owner.turn = 0
        self.held, self.outcome = self.checkpoints.end(), outcome
        payload = self.attempts.payload
        if isinstance(outcome, Done) and payload is not None and payload.qd is None and not self.held.unsure:
            self.words[L.PROOF] = self.worker.board.proof_of(self.turn)
        self.worker.finished(self)

    def expire(self) -> None:
        """Its deadline has passed. A task is asked on the loop: its deadline moves while another one blocks that."""
        if self.alarm.cancel is None:
            self.alarm.end(Why.TIMEOUT)
        else:
            self.worker.loop.call_soon_threadsafe(self.alarm.end, Why.TIMEOUT)

    # -- in a thread

    def in_thread(self, base: Context) -> None:
        """Run it in this thread of the pool, in a copy of `base`."""
        attempt = cast(Attempt, self.attempt)
        base.copy().run(self._perform, attempt, lambda: self.attempts.perform(attempt, self._death))

    def _perform(self, attempt: Attempt, act: Callable[[], Outcome]) -> None:
        context.enter(attempt.job)
        owner_here.set(self.owner)
        outcome: Outcome
        try:
            with context.running(attempt.job):
                outcome = act()
        except BaseException as error:
            # sys.exit() in one of several jobs ends that job only.
            raised = (
                RuntimeError(f"the job called sys.exit({error.code!r})") if isinstance(error, SystemExit) else error
            )
            outcome = self._after_error(attempt, raised.with_traceback(error.__traceback__))
        finally:
            context.leave(attempt.job)
        self.finish(outcome)

    def _after_error(self, attempt: Attempt, error: BaseException) -> Outcome:
        try:
            return self.attempts.outcomes.after(attempt, error)
        except BaseException as again:
            return Failed(again, attempt.payload.attempts)

    def _death(self) -> Death:
        job = self.job
        assert job is not None
        return self.worker.calls(lambda: self.worker.settlement.settler.death_before(job), 2.0)

    def run(self, coroutine: Any, alarm: Alarm) -> object:
        """As Coroutines.run: run it on the loop; this thread waits. It sees what middleware has set in this context."""
        loop, done = self.worker.loop, Future[object]()
        here = context_of(self.owner, copy_context())

        async def whole() -> None:
            try:
                try:
                    result = await coroutine
                finally:
                    await ended(self.owner)
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(result)

        def start() -> None:
            self.task = self.worker.steps.first(loop, whole(), self.owner, here)
            if alarm.ended_by is not None:
                self._cancel()

        alarm.cancel = lambda: loop.call_soon_threadsafe(self._cancel)
        try:
            loop.call_soon_threadsafe(start)
            return done.result()
        except asyncio.CancelledError as cancelled:
            raise self._meaning(cancelled) from None
        finally:
            alarm.cancel = None

    # -- as a task

    def as_task(self, attempt: Attempt, call: Callable[[], object], base: Context) -> None:
        """Called on the loop."""
        here = context_of(self.owner, base)
        here.run(context.of_task, attempt.job)
        context.enter(attempt.job)
        self.alarm.cancel = lambda: self.worker.loop.call_soon_threadsafe(self._cancel)
        self.alarm.begins(attempt.limits.timeout)
        self.task = self.worker.steps.first(self.worker.loop, self._whole(attempt, call), self.owner, here)

    async def _whole(self, attempt: Attempt, call: Callable[[], object]) -> None:
        error: BaseException | None = None
        result: object = None
        try:
            try:
                result = await cast(Any, call())
            finally:
                if self.owner.tasks or self.owner.threads:
                    await ended(self.owner)
        except asyncio.CancelledError as cancelled:
            error = self._meaning(cancelled)
        except SystemExit as left:
            error = RuntimeError(f"the job called sys.exit({left.code!r})").with_traceback(left.__traceback__)
        except BaseException as raised:
            error = raised
        self.alarm.ends()
        self.alarm.cancel = None
        context.leave(attempt.job)
        if error is None and attempt.job.outcome is None:
            self.finish(self.attempts.ended(attempt, None, result))
            return
        here = copy_context()  # failed() and listeners are sync
        self.worker.pool.submit(
            lambda: here.run(self._perform, attempt, lambda: self.attempts.ended(attempt, error, result))
        )

    def _meaning(self, cancelled: asyncio.CancelledError) -> BaseException:
        by = self.alarm.ended_by
        return (
            RuntimeError("its task was cancelled by code of the app")
            if by is None
            else by.with_traceback(cancelled.__traceback__)
        )

    def _cancel(self) -> None:
        """On the loop: cancel it until it ends."""
        task, turn = self.task, self.turn
        if task is None or task.done() or self.alarm.ended_by is None:
            return
        task.cancel()
        self.worker.loop.call_later(AGAIN, lambda: self._cancel() if self.turn == turn else None)


def waited(future: Future[T], seconds: float) -> T:
    """The result of a call in the connection's thread. Raises NoAnswer if it has not begun in time."""
    try:
        return future.result(seconds)
    except FutureTimeout:
        if future.done():
            return future.result()
        future.cancel()
        raise NoAnswer("the worker's connection is busy") from None
