"""One lane of a worker that runs several jobs: its attempt, which runs as a task, in a thread, or in both.

    nothing sync around an async job     -> a task on the loop                             LaneRun.as_task
    anything else                        -> a thread of JobPool; a coroutine inside goes to the loop  LaneRun.in_thread

The job uses the worker's connection through InboxQueue: every call runs in the thread that owns it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import Context, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from qd.drivers.base import Connector, LaneConnector
from qd.drivers.types import Reserved
from qd.errors import EndJob, NotInJob
from qd.jobs import context
from qd.jobs.policy import JobLimits, backoff, fails_when_killed
from qd.payload.format import Payload
from qd.process.scoreboard import L, LaneState, Why, now
from qd.process.shield import in_main_thread
from qd.worker.attempt import Attempts
from qd.worker.connection import PATIENCE, Checkpoints, HeldJob
from qd.worker.lane_alarm import LaneAlarm
from qd.worker.outcome import Attempt, Death, Done, Failed, Outcome
from qd.worker.steps import Owner, context_of, ended, owner_here
from qd.worker.threads import Inbox
from qd.worker.timeout import Alarm

if TYPE_CHECKING:
    from qd.worker.concurrent import ConcurrentWorker

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

    def progress(self, id: str, percent: float, ttl: float) -> object:
        return self._call(lambda: self._queue.jobs.progress(id, percent, ttl))

    def owned_by(self, queue: str, owners: Sequence[str]) -> object:
        return self._call(lambda: self._queue.owned_by(queue, owners))


class LaneCheckpoints(Checkpoints):
    """A task does not wait for the server: its states are saved in order, and a lost lease ends it a moment later."""

    def __init__(self, queue: InboxQueue, alarm: Alarm, log: Any, post: Callable[[Callable[[], None]], None]) -> None:
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
        self.checkpoints = LaneCheckpoints(self.queue, self.alarm, worker.log, worker.inbox.post)
        self.attempts = Attempts(worker.app, worker.work, self.alarm, self, self.checkpoints, worker.board)
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
            with context.running(attempt.job):
                outcome = act()
        except BaseException as error:
            outcome = self._after_error(attempt, raised_by(error))
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
        return self.worker.inbox.call(lambda: self.worker.settlement.settler.death_before(job), 2.0)

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
        here, after = (
            copy_context(),
            lambda: self.attempts.ended(attempt, error, result),
        )  # failed() and listeners are sync
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
