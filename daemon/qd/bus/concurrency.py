"""Middleware that lets only so many jobs run at a time: ConcurrencyLimit and WithoutOverlapping.

The owner of a place is the job, over its attempts: a job that comes back after a crash still has its place. The holder is
the attempt: an attempt that lost its lease frees nothing. If qd ends the job itself, the step that ends it frees its places
(connectors/keyspace/effects.py: left_by).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from qd.bus.asking import Key, Said, asked, log, told, written
from qd.bus.services import seconds_of
from qd.connectors.keyspace import keys
from qd.errors import DeclarationError, EndJob
from qd.store.locks import Places
from qd.ties import plain_name

if TYPE_CHECKING:
    from qd.bus.running import RunningJob
    from qd.jobs import Declared, Duration

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
