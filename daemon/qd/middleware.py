"""The middleware that comes with qd: `from qd.middleware import RateLimited`.

    check whether the job may run  ->  run it
                                   ->  release it at no cost, with the reason, until it may

State shared between jobs is in the store of the job's connection. The owner of a slot is the job, over all its attempts: a
job that comes back after a crash still has its slot. The holder is the attempt: an attempt that lost its lease frees
nothing. If qd itself ends the job, the same step frees its slots (drivers/keyspace/sending.py: left_by).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

from qd.arguments.signature import Pattern, text_of
from qd.dispatch.services import limit_of
from qd.drivers.base import Connector
from qd.drivers.keyspace import keys
from qd.errors import ConnectionLost, DeclarationError, EndJob, ServerRefused
from qd.jobs.pipeline import title_of
from qd.jobs.plan import Middleware as Middleware
from qd.jobs.policy import GiveUp
from qd.options.kinds import count, seconds_of
from qd.payload.format import plain_name
from qd.process.shield import shield
from qd.store.base import Store, store_of
from qd.store.locks import Places, Rate, Strikes

if TYPE_CHECKING:
    from qd.jobs.context import Backing, Limit, RunningJob
    from qd.jobs.plan import Duration
    from qd.jobs.registry import Declared


T = TypeVar("T")
Next = Callable[[], object]
KeySource = str | Callable[["RunningJob"], object]
PATIENCE = 1.0  # seconds the store may take to answer
AWAY = 1.0  # seconds a job is released for when the store could not be queried
A_DAY = 86400.0
EXTRA_HOLD = 60.0  # seconds a slot is held beyond the timeout of its job: no attempt lives that long
NEAR = 0.05  # seconds a rate limit waits in place: releasing and reserving the job again takes about as long
FREED_LATER = "the server did not answer, so the slot of this job is freed when the job ends"
log = logging.getLogger("qd.middleware")


class Key:
    """The key of a limit: "order:{order_id}", filled from the arguments, or a function of the job."""

    def __init__(self, middleware: str, source: KeySource | None) -> None:
        if source is not None and not isinstance(source, str) and not callable(source):
            raise DeclarationError(f"{middleware}: the key {source!r} is neither a string nor a function of the job")
        self._middleware, self._source = middleware, source
        self._patterns: dict[str, Pattern] = {}

    def check(self, declared: Declared) -> None:
        if isinstance(self._source, str):
            option = f"middleware {self._middleware}"
            self._patterns[declared.name] = Pattern(option, self._source, declared.signature)

    def __repr__(self) -> str:
        """Empty without a key."""
        if self._source is None:
            return ""
        return repr(self._source) if isinstance(self._source, str) else title_of(self._source)

    @property
    def named(self) -> str:
        return f"key={self}" if self._source is not None else ""

    def of(self, job: RunningJob) -> str:
        """The key of this job, "" without a key."""
        if self._source is None:
            return ""
        if not isinstance(self._source, str):
            return text_of(self._source(job))
        if job.name not in self._patterns:
            assert job.declared is not None
            self.check(job.declared)
        return self._patterns[job.name].key(bytes(job.data))


def query_store(job: RunningJob, query: Callable[[Store], T]) -> T:
    return query_queue(job, lambda queue: query(store_of(queue)))


def query_queue(job: RunningJob, query: Callable[[Connector], T]) -> T:
    """The result of `query` on the job's connection (in run(): on the local stand-in). If the server does not answer, the
    job is released, which costs no attempt."""
    try:
        return within(job, query)
    except (ConnectionLost, ServerRefused) as error:
        reason = f"could not check its limits: {error}"
    job.release(AWAY, reason=reason, counts=False)


def update_store(job: RunningJob, update: Callable[[Store], object], otherwise: str) -> bool:
    """Change something in the store on which the end of the job does not depend. Returns False after an error, which is
    logged together with `otherwise`, its consequence."""
    try:
        within(job, lambda queue: update(store_of(queue)))
    except (ConnectionLost, ServerRefused) as error:
        log.warning("%s: %s", otherwise, error)
        return False
    return True


def within(job: RunningJob, call: Callable[[Connector], T]) -> T:
    """Raises ConfigError, ConnectionLost, ServerRefused."""
    if job.backing is None:
        raise DeclarationError("middleware was called with a job that belongs to no app")
    queue = cast(Connector, job.local) if job.local else job.backing.connection(job.connection)
    with shield, queue.within(PATIENCE):  # an alarm must not interrupt a call
        return call(queue)


class Stage:
    """The base of the middleware. _shown: the arguments in its repr; empty ones are left out."""

    _shown: tuple[object, ...] = ()
    _key = Key("", None)

    def check(self, declared: Declared) -> None:
        """Raises DeclarationError if the job lacks a parameter that the key names."""
        self._key.check(declared)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(filter(None, map(str, self._shown)))})"


class Limited(Stage):
    """Lets a job run only while it holds one of `most` slots: the base of ConcurrencyLimit and WithoutOverlapping."""

    def __init__(
        self, key: Key, most: int, release_after: Duration, expires: Duration | None, drop: bool = False
    ) -> None:
        name = type(self).__name__
        self._key, self._most, self._drop = key, most, drop
        self._release_after = seconds_of(f"{name}: release_after", release_after)
        self._expires = None if expires is None else seconds_of(f"{name}: expires", expires)
        if self._expires == 0:
            raise DeclarationError(f"{name}: a slot that expires at once limits nothing: set expires above 0")

    def _slots(self, job: RunningJob) -> tuple[str, str]:
        """The key of the slots in the store, and the reason for releasing a job that finds no free slot."""
        raise NotImplementedError

    def __call__(self, job: RunningJob, call_next: Next) -> object:
        key, reason = self._slots(job)
        seconds = self._expires or (job.timeout + EXTRA_HOLD if job.timeout else A_DAY)
        places, owner, holder, pid = Places(key, self._most, seconds), job.uuid, job.mark or job.id, os.getpid()

        def free() -> None:
            job.unfreed -= update_store(job, lambda store: places.free(store, owner, holder), FREED_LATER)

        job.unfreed += 1
        try:
            wait = query_store(job, lambda store: places.take(store, owner, holder))
        except EndJob:  # an alarm during the call, which completed
            free()
            raise
        job.unfreed -= bool(wait)
        if wait and self._drop:
            log.info("dropped: %s", reason)
            return None
        if wait:
            job.release(min(self._release_after, wait), reason=reason, counts=False)
        try:
            return call_next()
        finally:
            if os.getpid() == pid:  # a fork of the job does not own the slot
                free()


class ConcurrencyLimit(Limited):
    """At most `most` jobs with the same `key` run at a time, across all job names.

    Args:
        key: "crm" or "customer:{customer_id}", filled from the arguments, or a function of the job.
        release_after: Seconds for which a job without a free slot is released, at no cost.
        expires: Seconds after which an unreleased slot is free again. None: the job's timeout plus a minute, or a day.
    """

    def __init__(
        self, key: KeySource, most: int, *, release_after: Duration = 5.0, expires: Duration | None = None
    ) -> None:
        if most < 1:
            raise DeclarationError(f"ConcurrencyLimit: at most {most} jobs at a time is invalid: use 1 or more")
        super().__init__(Key("ConcurrencyLimit", key), most, release_after, expires)
        self._shown = (self._key, most)

    def _slots(self, job: RunningJob) -> tuple[str, str]:
        name = plain_name(self._key.of(job))
        fact = f"{count(self._most, 'job')} of {name} {'is' if self._most == 1 else 'are'} already running"
        return keys.slots(name), fact


class WithoutOverlapping(Limited):
    """No two jobs of the same name and `key` run at the same time.

    Args:
        key: "report:{report_id}", filled from the arguments, or a function of the job. None: all jobs of the name.
        release_after: Seconds for which a job is released, at no cost, while another one runs.
        drop: End the job as done, without running it, instead of releasing it.
        expires: As in ConcurrencyLimit.
        shared: Ignore the names of the jobs; only the key counts.
    """

    def __init__(
        self, key: KeySource | None = None, *, release_after: Duration = 5.0, drop: bool = False,
        expires: Duration | None = None, shared: bool = False,
    ) -> None:  # fmt: skip
        if shared and key is None:
            way = 'WithoutOverlapping("crm", shared=True)'
            raise DeclarationError(f"WithoutOverlapping: shared=True needs a key: {way}")
        super().__init__(Key("WithoutOverlapping", key), 1, release_after, expires, drop)
        self._shared = shared
        self._shown = (self._key, "shared=True" if shared else "", "drop=True" if drop else "")

    def _slots(self, job: RunningJob) -> tuple[str, str]:
        key = self._key.of(job)
        name = plain_name(key if self._shared else f"{job.name}:{key}" if key else job.name)
        return keys.lock(name), f"another job of {name} is running"


class RateLimited(Stage):
    """At most `most` jobs start in any `per` seconds: a sliding window, exact across all hosts.

    Args:
        name: Jobs with this name share the limit. Without numbers, the limit of app.limit("stripe", 100, per=60).
        key: One limit per key, as in ConcurrencyLimit.

    A job over the limit is released at no cost until its own time slot.
    """

    def __init__(
        self, name: str, most: int | None = None, *, per: Duration | None = None, key: KeySource | None = None
    ) -> None:
        if (most is None) != (per is None):
            raise DeclarationError(f'RateLimited("{name}") needs both numbers: RateLimited("{name}", 100, per=60)')
        self._name, self._key = name, Key("RateLimited", key)
        self._limit = None if most is None or per is None else limit_of(name, most, per)
        figures = f"{self._limit.most} per {self._limit.per:g} s" if self._limit else ""
        self._shown = (repr(name), figures, self._key.named)

    def __call__(self, job: RunningJob, call_next: Next) -> object:
        if job.backing is None:
            raise DeclarationError(f"RateLimited('{self._name}') was called with a job that belongs to no app")
        limit, key = self.limit_in(job.backing), self._key.of(job)
        rate = Rate(plain_name(f"{self._name}:{key}" if key else self._name), limit.most, limit.per)
        while True:
            answer = query_store(job, lambda store: rate.start(store, job.uuid, job.mark or job.id))
            if not answer.wait:
                return call_next()
            if answer.wait > NEAR:
                job.release(answer.wait, reason=f"over {rate.most} per {rate.per:g} s of {rate.name}", counts=False)
            time.sleep(answer.wait)

    def limit_in(self, backing: Backing) -> Limit:
        """Its numbers. Raises DeclarationError if the app has declared no limit of that name."""
        return self._limit or backing.limit(self._name)


class ThrottlesExceptions(Stage):
    """Circuit breaker: after `most` errors within `within` seconds, jobs with the same key rest for `wait` seconds.

    Args:
        only: The types of errors that count.
        key: As in ConcurrencyLimit; None: the name of the job.

    The error itself is handled as usual (attempts, backoff, permanent failure). The next jobs are released at no cost until
    the rest is over.
    """

    def __init__(
        self, most: int, within: Duration, wait: Duration, *,
        only: type[Exception] | tuple[type[Exception], ...] = Exception, key: KeySource | None = None,
    ) -> None:  # fmt: skip
        name = "ThrottlesExceptions"
        self._limit, self._wait = limit_of(name, most, within), seconds_of(f"{name}: wait", wait)
        self._only, self._key = only, Key(name, key)
        figures = f"{self._limit.most} within {self._limit.per:g} s"
        self._shown = (figures, f"wait {self._wait:g} s", self._key.named)

    def __call__(self, job: RunningJob, call_next: Next) -> object:
        name = plain_name(self._key.of(job) or job.name)
        strikes = Strikes(name, self._limit.most, self._limit.per, self._wait)
        left = query_store(job, strikes.resting)
        if left:
            job.release(left, reason=f"{name} rests after {self._limit.most} errors", counts=False)
        try:
            return call_next()
        except self._only:

            def count(store: Store) -> None:
                if strikes.count(store, job.mark or job.id):
                    log.warning("%s rests for %g s after %d errors", strikes.name, strikes.wait, strikes.most)

            update_store(job, count, "this error is not counted")
            raise


class SkipIf(Stage):
    """Ends the job as done, without running it, if `predicate(job)` is true."""

    def __init__(self, predicate: Callable[[RunningJob], object]) -> None:
        if not callable(predicate):
            raise DeclarationError(f"SkipIf({predicate!r}): pass a function of the job")
        self._predicate, self._shown = predicate, (title_of(predicate),)

    def __call__(self, job: RunningJob, call_next: Next) -> object:
        if self._predicate(job):
            log.info("skipped: %s", getattr(self._predicate, "__qualname__", "its predicate is true"))
            return None
        return call_next()


class SkipIfBatchCancelled(Stage):
    """Ends a job of a cancelled batch as done, without running it. Other jobs run."""

    def __call__(self, job: RunningJob, call_next: Next) -> object:
        batch = None if job.relations is None else job.relations.batch
        if batch is not None:
            state = query_queue(job, lambda queue: queue.batches.state(batch))
            if state is not None and state.cancelled_at is not None:
                log.info("skipped: its batch %s was cancelled", batch)
                job.skipped = True
                return None
        return call_next()


class FailOnException(Stage):
    """An error of one of these types fails the job permanently at once, whatever attempts are left. For all jobs of an app;
    for one job the option fail_on is shorter."""

    def __init__(self, *types: type[Exception]) -> None:
        if not types or not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in types):
            raise DeclarationError("FailOnException takes types of errors: FailOnException(ValueError, KeyError)")
        self._types, self._shown = types, tuple(kind.__name__ for kind in types)

    def __call__(self, job: RunningJob, call_next: Next) -> object:
        try:
            return call_next()
        except self._types as error:
            job.outcome = job.outcome or GiveUp(str(error), error)
            raise
