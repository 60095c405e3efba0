"""How middleware asks the store: under which name, and what becomes of the job while the store is away.

Middleware that lets only so many jobs run at a time: ConcurrencyLimit and WithoutOverlapping.

The owner of a place is the job, over its attempts: a job that comes back after a crash still has its place. The holder is
the attempt: an attempt that lost its lease frees nothing. If qd ends the job itself, the step that ends it frees its places
(drivers/keyspace/sending.py: left_by).

Middleware that comes with qd: rates, rests after errors, and what ends a job early. Its sisters are in concurrency.py.

    asked whether the job may run -> it runs
                                  -> put back at no cost, with the reason, until it may

What it knows of other jobs stands in the store of the job's connection.

The middleware that comes with qd, for `from qd.middleware import RateLimited`. What each does stands in its docstring.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

from qd.arguments.signature import Pattern, text_of
from qd.dispatch.services import limit_of, seconds_of
from qd.drivers.base import Connector
from qd.drivers.keyspace import keys
from qd.errors import ConnectionLost, DeclarationError, EndJob, ServerRefused
from qd.jobs.pipeline import title_of
from qd.jobs.plan import Middleware
from qd.jobs.policy import Fail
from qd.payload.format import plain_name
from qd.process.shield import shield
from qd.store.base import Store, store_of
from qd.store.locks import Places, Rate, Strikes

if TYPE_CHECKING:
    from qd.jobs.context import Backing, Limit, RunningJob
    from qd.jobs.plan import Duration
    from qd.jobs.registry import Declared


T = TypeVar("T")
Said = str | Callable[["RunningJob"], object]
PATIENCE = 1.0  # seconds the store may take to answer
AWAY = 1.0  # seconds for which a job is put back whose middleware could not ask
log = logging.getLogger("qd.middleware")


class Key:
    """What tells jobs apart: "order:{order_id}", filled from the arguments, or a callable that is given the job."""

    def __init__(self, middleware: str, said: Said | None) -> None:
        if said is not None and not isinstance(said, str) and not callable(said):
            raise DeclarationError(
                f"{middleware}: the key {said!r} is neither a text nor a callable that takes the job"
            )
        self._middleware, self._said = middleware, said
        self._patterns: dict[str, Pattern] = {}

    def check(self, declared: Declared) -> None:
        """Raises DeclarationError when the job has no such parameter."""
        if isinstance(self._said, str):
            option = f"middleware {self._middleware}"
            self._patterns[declared.name] = Pattern(option, self._said, declared.signature)

    def __repr__(self) -> str:
        """Empty when there is none."""
        if self._said is None:
            return ""
        return repr(self._said) if isinstance(self._said, str) else title_of(self._said)

    @property
    def named(self) -> str:
        return f"key={self}" if self._said is not None else ""

    def of(self, job: RunningJob) -> str:
        """Empty when there is none."""
        if self._said is None:
            return ""
        if not isinstance(self._said, str):
            return text_of(self._said(job))
        if job.name not in self._patterns:
            assert job.declared is not None
            self.check(job.declared)
        return self._patterns[job.name].key(bytes(job.data))


def written(stage: object, *given: object) -> str:
    """The repr of middleware: with what it was given, without what is empty."""
    return f"{type(stage).__name__}({', '.join(text for one in given if (text := str(one)))})"


def asked(job: RunningJob, ask: Callable[[Store], T]) -> T:
    """What the store of the job's connection says; as queue_asked."""
    return queue_asked(job, lambda queue: ask(store_of(queue)))


def queue_asked(job: RunningJob, ask: Callable[[Connector], T]) -> T:
    """What the job's connection says. While it is away the job is put back: that is no fault of the job, and costs no
    attempt. In run() nobody is asked."""
    try:
        return within(job, PATIENCE, ask)
    except (ConnectionLost, ServerRefused) as error:
        said = str(error)
    job.release(AWAY, reason=f"nobody could say whether it may run: {said}", counts=False)


def told(job: RunningJob, tell: Callable[[Store], object], what: str) -> bool:
    """Change something in the store that the job's own end does not depend on. False: it failed, which is logged. what: does
    not happen then."""
    try:
        within(job, PATIENCE, lambda queue: tell(store_of(queue)))
    except (ConnectionLost, ServerRefused) as error:
        log.warning("%s: %s", what, error)
        return False
    return True


def within(job: RunningJob, seconds: float, ask: Callable[[Connector], T]) -> T:
    """Raises ConfigError, ConnectionLost, ServerRefused."""
    if job.backing is None:
        raise DeclarationError("middleware was called with a job that belongs to no app")
    queue = cast(Connector, job.local) if job.local else job.backing.connection(job.connection)
    with shield, queue.within(seconds):  # an alarm must not tear a call apart
        return ask(queue)


Next = Callable[[], object]
A_DAY = 86400.0
FREED_LATER = "the server did not answer, so the place of this job is freed when the job ends"
OVER = 60.0  # seconds that a place is held beyond the timeout of its job: nothing of an attempt lives so long


class Placed:
    """A place around a job. Both of the below are this, under another name."""

    def __init__(
        self, key: Key, most: int, release_after: Duration, expires: Duration | None, drop: bool = False
    ) -> None:
        name = type(self).__name__
        self._key, self._most, self._drop = key, most, drop
        self._release_after = seconds_of(name, "release_after", release_after)
        self._expires = None if expires is None else seconds_of(name, "expires", expires)
        if self._expires == 0:
            raise DeclarationError(f"{name}: a place that expires at once keeps nobody away: give expires more than 0")

    def check(self, declared: Declared) -> None:
        self._key.check(declared)

    def _place(self, job: RunningJob) -> tuple[str, str]:
        """The key of the places in the store, and what is said of a job that finds none."""
        raise NotImplementedError

    def __call__(self, job: RunningJob, call_next: Next) -> object:
        place, taken = self._place(job)
        seconds = self._expires or (job.timeout + OVER if job.timeout else A_DAY)
        places, owner, holder, pid = Places(place, self._most, seconds), job.uuid, job.mark or job.id, os.getpid()

        def free() -> None:
            job.unfreed -= told(job, lambda store: places.free(store, owner, holder), FREED_LATER)

        job.unfreed += 1
        try:
            wait = asked(job, lambda store: places.take(store, owner, holder))
        except EndJob:  # it rang while the call was under way, which was done
            free()
            raise
        job.unfreed -= bool(wait)
        if wait and self._drop:
            log.info("dropped: %s", taken)
            return None
        if wait:
            job.release(min(self._release_after, wait), reason=taken, counts=False)
        try:
            return call_next()
        finally:
            if os.getpid() == pid:  # else a copy that the job has forked: the place is not its own
                free()


class ConcurrencyLimit(Placed):
    """At most `most` jobs with the same `key` run at a time, whatever their names.

    key: "crm" or "customer:{customer_id}", filled from the arguments, or a callable that is given the job. A job that finds
    no place is put back for `release_after` seconds, at no cost. expires: seconds for which a place is held when nobody
    gives it back; None: the timeout of the job and a minute more, or a day.
    """

    def __init__(self, key: Said, most: int, *, release_after: Duration = 5.0, expires: Duration | None = None) -> None:
        if most < 1:
            raise DeclarationError(f"ConcurrencyLimit: at most {most} jobs at a time would be none; give 1 or more")
        super().__init__(Key("ConcurrencyLimit", key), most, release_after, expires)

    def __repr__(self) -> str:
        return written(self, self._key, self._most)

    def _place(self, job: RunningJob) -> tuple[str, str]:
        name = plain_name(self._key.of(job))
        return keys.slots(name), f"{self._most} jobs of {name} run already"


class WithoutOverlapping(Placed):
    """No two jobs of one name with the same `key` run at a time.

    key: "report:{report_id}", filled from the arguments, or a callable that is given the job; None: all jobs of the name.
    shared: the key alone counts, whatever the names. A job that finds another running is put back for `release_after`
    seconds, at no cost; with `drop` it ends, done, without having run. expires: as in ConcurrencyLimit.
    """

    def __init__(
        self,
        key: Said | None = None,
        *,
        release_after: Duration = 5.0,
        drop: bool = False,
        expires: Duration | None = None,
        shared: bool = False,
    ) -> None:
        if shared and key is None:
            raise DeclarationError(
                'WithoutOverlapping: shared=True needs a key: WithoutOverlapping("crm", shared=True)'
            )
        super().__init__(Key("WithoutOverlapping", key), 1, release_after, expires, drop)
        self._shared = shared

    def __repr__(self) -> str:
        return written(self, self._key, "shared=True" if self._shared else "", "drop=True" if self._drop else "")

    def _place(self, job: RunningJob) -> tuple[str, str]:
        key = self._key.of(job)
        name = plain_name(key if self._shared else f"{job.name}:{key}" if key else job.name)
        return keys.lock(name), f"another job of {name} runs"


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


__all__ = [
    "ConcurrencyLimit",
    "FailOnException",
    "Middleware",
    "RateLimited",
    "SkipIf",
    "SkipIfBatchCancelled",
    "ThrottlesExceptions",
    "WithoutOverlapping",
]
