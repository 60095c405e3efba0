"""Middleware that comes with qd: rates, rests after errors, and what ends a job early. Its sisters are in concurrency.py.

    asked whether the job may run -> it runs
                                  -> put back at no cost, with the reason, until it may

What it knows of other jobs stands in the store of the job's connection.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from qd.bus.asking import Key, Said, asked, log, queue_asked, told, written
from qd.bus.services import limit_of, seconds_of
from qd.errors import DeclarationError
from qd.jobs.stages import title_of
from qd.limits import Fail
from qd.store.rates import Rate, Strikes
from qd.ties import plain_name

if TYPE_CHECKING:
    from qd.bus.running import Backing, Limit, RunningJob
    from qd.jobs import Declared, Duration
    from qd.store.base import Store

Next = Callable[[], object]
NEAR = 0.05  # seconds that are waited in place: to put a job back and to take it again lasts about as long


class RateLimited:
    """At most `most` jobs start in any `per` seconds: a sliding window, exact on all hosts together.

    name: what they share; without figures those that app.limit("stripe", 100, per=60) has declared. key: as in
    ConcurrencyLimit, for a limit each. A job over the limit is put back at no cost until a place is free for it, each to a
    moment of its own.
    """

    def __init__(
        self, name: str, most: int | None = None, *, per: Duration | None = None, key: Said | None = None
    ) -> None:
        if (most is None) != (per is None):
            raise DeclarationError(f'RateLimited("{name}") has half of its figures: RateLimited("{name}", 100, per=60)')
        self._name, self._key = name, Key("RateLimited", key)
        self._limit = None if most is None or per is None else limit_of(name, most, per)

    def check(self, declared: Declared) -> None:
        self._key.check(declared)

    def __repr__(self) -> str:
        figures = f"{self._limit.most} per {self._limit.per:g} s" if self._limit else ""
        return written(self, repr(self._name), figures, self._key.named)

    def __call__(self, job: RunningJob, call_next: Next) -> object:
        rate = self._rate(job)
        while True:
            answer = asked(job, lambda store: rate.start(store, job.uuid, job.mark or job.id))
            if not answer.wait:
                return call_next()
            if answer.wait > NEAR:
                job.release(answer.wait, reason=f"over {rate.most} per {rate.per:g} s of {rate.name}", counts=False)
            time.sleep(answer.wait)

    def limit_in(self, backing: Backing) -> Limit:
        """Its figures. Raises DeclarationError: the app has declared no limit of that name."""
        return self._limit or backing.limit(self._name)

    def _rate(self, job: RunningJob) -> Rate:
        limit = self._limit
        if limit is None:
            if job.backing is None:
                raise DeclarationError(f"RateLimited('{self._name}') was called with a job that belongs to no app")
            limit = self.limit_in(job.backing)
        key = self._key.of(job)
        return Rate(plain_name(f"{self._name}:{key}" if key else self._name), limit.most, limit.per)


class ThrottlesExceptions:
    """After `most` errors within `within` seconds, jobs with the same key rest for `wait` seconds.

    An error itself goes its usual way (its attempt counts, backoff, failed for good); the jobs that would come next are put
    back at no cost until the rest is over. only: the types of errors that count. key: as in ConcurrencyLimit; None: the
    name of the job.
    """

    def __init__(
        self,
        most: int,
        within: Duration,
        wait: Duration,
        *,
        only: type[Exception] | tuple[type[Exception], ...] = Exception,
        key: Said | None = None,
    ) -> None:
        name = "ThrottlesExceptions"
        self._limit, self._wait = limit_of(name, most, within), seconds_of(name, "wait", wait)
        self._only, self._key = only, Key(name, key)

    def check(self, declared: Declared) -> None:
        self._key.check(declared)

    def __repr__(self) -> str:
        figures = f"{self._limit.most} within {self._limit.per:g} s"
        return written(self, figures, f"wait {self._wait:g} s", self._key.named)

    def __call__(self, job: RunningJob, call_next: Next) -> object:
        name = plain_name(self._key.of(job) or job.name)
        strikes = Strikes(name, self._limit.most, self._limit.per, self._wait)
        left = asked(job, strikes.resting)
        if left:
            job.release(left, reason=f"{name} rests after {self._limit.most} errors", counts=False)
        try:
            return call_next()
        except self._only:
            told(job, lambda store: self._count(store, strikes, job.mark or job.id), "this error is not counted")
            raise

    def _count(self, store: Store, strikes: Strikes, mark: str) -> None:
        if strikes.count(store, mark):
            log.warning("%s rests for %g s after %d errors", strikes.name, strikes.wait, strikes.most)


class SkipIf:
    """Ends the job, done, without running it, when `predicate(job)` is true."""

    def __init__(self, predicate: Callable[[RunningJob], object]) -> None:
        if not callable(predicate):
            raise DeclarationError(f"SkipIf({predicate!r}) is not given a callable that takes the job")
        self._predicate = predicate

    def __repr__(self) -> str:
        return written(self, title_of(self._predicate))

    def __call__(self, job: RunningJob, call_next: Next) -> object:
        if self._predicate(job):
            log.info("skipped: %s", getattr(self._predicate, "__qualname__", "its predicate says so"))
            return None
        return call_next()


class SkipIfBatchCancelled:
    """Ends a job of a batch, done, without running it, when its batch was cancelled. Other jobs run."""

    def __repr__(self) -> str:
        return written(self)

    def __call__(self, job: RunningJob, call_next: Next) -> object:
        batch = None if job.ties is None else job.ties.batch
        if batch is not None:
            state = queue_asked(job, lambda queue: queue.batches.state(batch))
            if state is not None and state.cancelled_at is not None:
                log.info("skipped: its batch %s was cancelled", batch)
                job.skipped = True
                return None
        return call_next()


class FailOnException:
    """An error of one of these types fails the job for good at once, however many attempts are left."""

    def __init__(self, *types: type[Exception]) -> None:
        if not types or not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in types):
            raise DeclarationError(
                "FailOnException is given the types of errors: FailOnException(ValueError, KeyError)"
            )
        self._types = types

    def __repr__(self) -> str:
        return written(self, *(kind.__name__ for kind in self._types))

    def __call__(self, job: RunningJob, call_next: Next) -> object:
        try:
            return call_next()
        except self._types as error:
            job.outcome = job.outcome or Fail(str(error), error)
            raise
