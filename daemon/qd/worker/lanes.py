"""One lane of a worker that runs several jobs: its attempt, which runs as a task, in a thread, or in both.

    nothing sync around an async job     -> a task on the loop                             LaneRun.as_task
    anything else                        -> a thread of JobPool; a coroutine inside goes to the loop  LaneRun.in_thread

The job uses the worker's connection through InboxQueue: every call runs in the thread that owns it.

The event loop that the lanes share: which job's step runs on it now, and which tasks and threads a job has.

    task created in a job's context -> its coroutine is wrapped -> W.STEP is the job's turn during each step, W.STEPS counts
    asyncio.to_thread in a job      -> the attempt ends after that thread

The master reads the two words and so finds the job that blocks the loop, also if that holds the GIL. Callbacks of call_soon
and the like belong to no job.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from qd.drivers.base import Connector, LaneConnector
from qd.drivers.types import Reserved
from qd.errors import EndJob, NotInJob
from qd.jobs import context
from qd.jobs.policy import JobLimits, backoff, fails_when_killed
from qd.payload.format import Payload
from qd.process import fork
from qd.process.scoreboard import L, LaneState, Slot, W, Why, now
from qd.process.shield import in_main_thread
from qd.worker.attempt import Attempts
from qd.worker.connection import PATIENCE, STEP_PATIENCE, Checkpoints, HeldJob
from qd.worker.outcome import LUCK, Attempt, Death, Done, Failed, Outcome
from qd.worker.threads import Inbox
from qd.worker.timeout import Alarm, LaneAlarm

if TYPE_CHECKING:
    from qd.worker.concurrent import ConcurrentWorker

LONG_NS = 200_000_000  # a step that takes longer moves the deadlines of the other jobs
AGAIN = 0.1  # seconds between two cancellations of a task that does not end


class InboxQueue:
    """What the job of a lane uses of the worker's connection, from its own thread."""

    def __init__(self, queue: LaneConnector, inbox: Inbox) -> None:
        self._queue, self._call = queue, partial(inbox.call, seconds=PATIENCE)

    turn_lanes = None  # marks it as a connection with lanes

    @property
    def jobs(self) -> InboxQueue:
        return self

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        yield  # every call is

    def checkpoint(self, held: Reserved, member: bytes) -> object:
        return self._call(lambda: self._queue.checkpoint(held, member))

    def progress(self, id: str, percent: float, ttl: float, details: bytes = b"") -> object:
        return self._call(lambda: self._queue.jobs.progress(id, percent, ttl, details))

    def steps(self, *step: Any) -> object:
        return self._call(lambda: self._queue.jobs.steps(*step), seconds=STEP_PATIENCE)

    def owned_by(self, queue: str, owners: Sequence[str]) -> object:
        return self._call(lambda: self._queue.owned_by(queue, owners))


class LaneCheckpoints(Checkpoints):
    """A task does not wait for the server: its states are saved in order, and a lost lease ends it a moment later."""

    def __init__(self, queue: InboxQueue, alarm: Alarm, worker: ConcurrentWorker) -> None:
        super().__init__(cast(Connector, queue), alarm, worker.log, worker.emitter)
        self._post = worker.inbox.post

    def keep(self, mark: str, state: bytes) -> None:
        if not in_main_thread() or os.getpid() != self._pid:
            return super().keep(mark, state)
        if self._mark != mark:
            raise NotInJob("job.checkpoint() was called after its job had ended")
        self._unsaved, self._used = state, True
        self._post(lambda: self._later(lambda: Checkpoints.keep(self, mark, state)))

    def progress(self, mark: str, id: str, ttl: float, percent: float, details: bytes) -> None:
        if not in_main_thread() or os.getpid() != self._pid:
            return super().progress(mark, id, ttl, percent, details)
        self._post(lambda: self._later(lambda: Checkpoints.progress(self, mark, id, ttl, percent, details)))

    def _later(self, act: Callable[[], None]) -> None:
        with suppress(NotInJob, EndJob):  # it has ended meanwhile, and its answer saves the state
            act()


def raised_by(error: BaseException) -> BaseException:
    """The error of a job: sys.exit() in one of several jobs ends that job only."""
    if isinstance(error, SystemExit):
        return RuntimeError(f"the job called sys.exit({error.code!r})").with_traceback(error.__traceback__)
    return error


class LaneRun:
    """What a lane runs. held, outcome: once its attempt has ended."""

    def __init__(self, worker: ConcurrentWorker, number: int) -> None:
        self.worker, self.number = worker, number
        self.words = worker.connection.words[number]
        self.alarm = LaneAlarm(self.words, worker.deadlines.expect)
        self.queue = InboxQueue(worker.queue, worker.inbox)
        self.checkpoints = LaneCheckpoints(self.queue, self.alarm, worker)
        self.attempts = Attempts(worker.app, self.alarm, self.run, self.checkpoints, worker.board)
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
        words[L.BACKOFF_MS] = 0 if fails else round(backoff(limits, payload.attempts, LUCK.random()) * 1000)
        words[L.WHY] = words[L.PROOF] = words[L.DEADLINE] = 0
        self.name = payload.job.encode("utf-8", "replace")
        words.describe(self.name, job.queue.encode())
        words[L.JOB_AT] = self.began

    def finish(self, outcome: Outcome) -> None:
        self.owner.turn = 0
        self.held, self.outcome = self.checkpoints.end(), outcome
        payload = self.attempts.payload
        emitted = self.held.job.mark in self.worker.emitter.attempts
        plain = payload is not None and payload.qd is None and not (self.held.steps or emitted)
        if isinstance(outcome, Done) and plain and not self.held.unsure:
            self.words[L.PROOF] = self.worker.board.proof_of(self.turn)
        self.worker.finished(self)

    def expire(self) -> None:
        """Its deadline has passed. Check that of a task on the loop: it moves while another task blocks the loop."""
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
            try:
                with context.running(attempt.job):
                    outcome = act()
            except BaseException as error:
                outcome = self.attempts.outcomes.after(attempt, raised_by(error))
        except BaseException as again:
            outcome = Failed(again, attempt.payload.attempts)
        finally:
            context.leave(attempt.job)
        self.finish(outcome)

    def _death(self) -> Death:
        job = self.job
        assert job is not None
        return self.worker.inbox.call(lambda: self.worker.settlement.death_before(job), 2.0)

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
        except BaseException as raised:
            error = raised_by(raised)
        self.alarm.ends()
        self.alarm.cancel = None
        context.leave(attempt.job)
        if error is None and attempt.job.outcome is None:
            self.finish(self.attempts.ended(attempt, None, result))
            return
        here, after = copy_context(), lambda: self.attempts.ended(attempt, error, result)  # it may call sync code
        self.worker.pool.submit(lambda: here.run(self._perform, attempt, after))

    def _meaning(self, cancelled: asyncio.CancelledError) -> BaseException:
        if (by := self.alarm.ended_by) is not None:
            return by.with_traceback(cancelled.__traceback__)
        return RuntimeError("its task was cancelled by code of the app")

    def _cancel(self) -> None:
        """On the loop: cancel it until it ends."""
        task, turn = self.task, self.turn
        if task is None or task.done() or self.alarm.ended_by is None:
            return
        task.cancel()
        self.worker.loop.call_later(AGAIN, lambda: self._cancel() if self.turn == turn else None)


class Owner:
    """The attempt that owns tasks and threads. turn: 0 once it has ended. tasks: without its first one."""

    __slots__ = ("tasks", "threads", "turn")

    def __init__(self, turn: int) -> None:
        self.turn = turn
        self.tasks = set[asyncio.Task[Any]]()
        self.threads = set[Future[Any]]()


owner_here: ContextVar[Owner | None] = ContextVar("qd_owner_of_tasks", default=None)


class Stepped(Coroutine[Any, Any, Any]):
    """A coroutine that notes its job during each step."""

    __slots__ = ("_coroutine", "_owner", "_steps")

    def __init__(self, coroutine: Any, owner: Owner, steps: Steps) -> None:
        self._coroutine, self._owner, self._steps = coroutine, owner, steps

    def send(self, value: Any) -> Any:
        return self._step(self._coroutine.send, value)

    def throw(self, *error: Any) -> Any:
        return self._step(self._coroutine.throw, *error)

    def _step(self, go: Callable[..., Any], *args: Any) -> Any:
        steps = self._steps
        slot, began = steps.slot, now()
        before = slot[W.STEP]
        slot[W.STEPS] = steps.count = steps.count + 1
        slot[W.STEP] = self._owner.turn
        try:
            return go(*args)
        finally:
            if steps.copied:
                fork.leave(0)  # a copy of the worker that the job has forked: the other jobs are not its own
            if (took := now() - began) > LONG_NS and not before:
                steps.blocked(took, self._owner.turn)  # before STEP is 0: the master sees a step, or later deadlines
            slot[W.STEP] = before

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise TypeError("await the task, not its coroutine")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coroutine, name)  # cr_frame, __qualname__ ...


class Steps:
    """Installs itself in a loop. blocked: called after a step that took so many ns, with the job's turn."""

    def __init__(self, slot: Slot, blocked: Callable[[int, int], None]) -> None:
        self.slot, self.blocked = slot, blocked
        self.count = 0
        self.copied = False  # this process is a fork of the worker
        self._factory: Any = None  # the app's

    def install(self, loop: asyncio.AbstractEventLoop, threads: int) -> None:
        """threads: for asyncio.to_thread. An app may set a task factory of its own later; it is wrapped, too."""
        replace = loop.set_task_factory
        loop.set_default_executor(JobThreads(max(32, threads), "qd-to-thread"))

        def set_factory(factory: Any) -> None:
            self._factory = factory
            replace(self._make)

        set_factory(None)
        with suppress(AttributeError):  # a loop written in C
            loop.set_task_factory = set_factory  # type: ignore[method-assign]

    def first(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, owner: Owner, context: Context
    ) -> asyncio.Task[Any]:
        """The first task of an attempt."""
        stepped = Stepped(coroutine, owner, self)
        if self._factory is not None:
            return cast("asyncio.Task[Any]", self._factory(loop, stepped, context=context))
        return asyncio.Task(stepped, loop=loop, context=context)

    def _make(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **how: Any) -> Any:
        context: Context | None = how.get("context")
        owner = owner_here.get() if context is None else context.get(owner_here)
        if owner is not None and owner.turn:
            coroutine = Stepped(coroutine, owner, self)
        task = self._factory(loop, coroutine, **how) if self._factory else asyncio.Task(coroutine, loop=loop, **how)
        if owner is not None:
            owner.tasks.add(task)
            task.add_done_callback(owner.tasks.discard)
        return task


class JobThreads(ThreadPoolExecutor):
    """Notes the threads of each job."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(fn, *args, **kwargs)
        if (owner := owner_here.get()) is not None:
            owner.threads.add(future)
            future.add_done_callback(owner.threads.discard)
        return future


async def ended(owner: Owner) -> None:
    """Cancel the tasks that the job has left running, and wait for them and its threads."""
    here = asyncio.current_task()
    while left := [task for task in owner.tasks if task is not here and not task.done()]:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=0.1)
    if owner.threads:
        await asyncio.wait([asyncio.wrap_future(future) for future in list(owner.threads)])


def context_of(owner: Owner, base: Context | None = None) -> Context:
    """A new context for the tasks of an attempt."""
    context = (base or copy_context()).copy()
    context.run(owner_here.set, owner)
    return context
