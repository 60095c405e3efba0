"""The judge: may this job run, and what becomes of it after an error. Pure arithmetic, `now` is handed in.

worker/attempt.py asks it. The rules are those of Laravel (Queue/Worker.php, 8 and 13), and one more for crashes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from qd.options.kinds import span_text
from qd.options.tables import JobOptions

if TYPE_CHECKING:
    from qd.options.tables import WorkOptions
    from qd.payload.format import Payload


T = TypeVar("T")

FIRST_HOLD = 1.0  # seconds until a job that nobody here can run is looked at again,
LONGEST_HOLD = 60.0  # doubling up to this

_NOTHING_SAID = JobOptions()


class JobLimits(msgspec.Struct, frozen=True):
    """What holds for one job. Durations are seconds, moments Unix seconds."""

    tries: int  # 0: unlimited
    timeout: float  # 0: none
    backoff: tuple[float, ...]  # after the first, second, ... attempt; the last one goes on
    max_exceptions: int | None
    retry_until: float | None  # when it is set, tries do not count
    fail_on_timeout: bool
    max_crashes: int  # 0: unlimited
    unroutable_ttl: float


class Release(msgspec.Struct, frozen=True):
    """Try again in `delay` seconds. counts: whether this attempt does."""

    delay: float
    reason: str = ""
    counts: bool = True


class Fail(msgspec.Struct, frozen=True):
    """Failed for good. error: the one to tell of, where there is one."""

    reason: str
    error: BaseException | None = None


def limits_of(payload: Payload, declared: JobOptions | None, worker: WorkOptions) -> JobLimits:
    """What the payload says counts before what the declaration says, and that before the worker's options."""
    job = declared or _NOTHING_SAID
    return JobLimits(
        tries=_first(payload.maxTries, job.tries, worker.tries),
        timeout=max(0.0, _first(payload.timeout, job.timeout, worker.timeout)),
        backoff=_first(payload.backoffs, job.backoff, worker.backoff) or (0.0,),
        max_exceptions=_first(payload.maxExceptions, job.max_exceptions, None),
        retry_until=_retry_until(payload, job.retry_for),
        # Laravel writes false when a job says nothing, so only true can be meant.
        fail_on_timeout=bool(payload.failOnTimeout or job.fail_on_timeout),
        max_crashes=worker.max_crashes,
        unroutable_ttl=worker.unroutable_ttl,
    )


def _first(said: T | None, declared: T | None, otherwise: T) -> T:
    if said is not None:
        return said
    return otherwise if declared is None else declared


def _retry_until(payload: Payload, retry_for: float | None) -> float | None:
    """The payload's moment, or the declared span from when it was first due (Laravel 8 does not tell when that was)."""
    if payload.deadline is not None or retry_for is None or payload.createdAt is None:
        return payload.deadline
    waited = payload.delay if isinstance(payload.delay, int) else 0
    return payload.createdAt + waited + retry_for


def before(limits: JobLimits, payload: Payload, now: float) -> str | None:
    """Why it must be failed before it runs; None: run it. `attempts` includes the one that would begin now."""
    if limits.max_crashes and payload.crashes >= limits.max_crashes:
        return f"its worker died {_times(payload.crashes)} while running it (max_crashes {limits.max_crashes})"
    if limits.retry_until is not None:
        return _too_late(limits.retry_until, now) if now > limits.retry_until else None
    if limits.tries and payload.attempts > limits.tries:
        return f"attempted {_times(payload.attempts - 1)} already (tries {limits.tries})"
    return None


def after_error(
    limits: JobLimits, payload: Payload, now: float, *, exceptions: int, timed_out: bool = False
) -> Release | Fail:
    """What becomes of it after an attempt that raised or timed out. `exceptions` counts this one, timeouts too."""
    if limits.retry_until is not None:
        if now >= limits.retry_until:
            return Fail(_too_late(limits.retry_until, now))
    elif 0 < limits.tries <= payload.attempts:
        return Fail(f"attempted {_times(payload.attempts)} (tries {limits.tries})")
    if limits.max_exceptions is not None and exceptions >= limits.max_exceptions:
        return Fail(f"raised {_times(exceptions)} (max_exceptions {limits.max_exceptions})")
    if timed_out and limits.fail_on_timeout:
        return Fail(f"ran longer than its timeout of {span_text(limits.timeout)} (fail_on_timeout)")
    return Release(backoff(limits.backoff, payload.attempts))


def fails_when_killed(limits: JobLimits, payload: Payload) -> bool:
    """Whether this attempt is the last, should it be killed for its timeout."""
    last = limits.retry_until is None and 0 < limits.tries <= payload.attempts
    return last or limits.fail_on_timeout or payload.exceptions + 1 >= (limits.max_exceptions or 1 << 30)


def backoff(waits: tuple[float, ...], attempts: int) -> float:
    """Seconds after attempt number `attempts`: (1, 5, 30) gives 1, 5, 30, 30, ..."""
    return waits[min(max(attempts, 1), len(waits)) - 1]


def hold_delay(since: float, now: float) -> float:
    """Seconds until a job that could not be run here since `since` (0: now) is looked at again: 1, doubling to 60."""
    return min(LONGEST_HOLD, max(FIRST_HOLD, now - since)) if since else FIRST_HOLD


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _too_late(until: float, now: float) -> str:
    return f"its time to be retried ended {span_text(round(now - until))} ago (retry_until {until:.0f})"
