"""Retry policy: may this job run, and what follows an error? Pure arithmetic; `now` and `luck`, a random number from 0 to
1, are arguments. Retry and Fail: what a job raises to decide it itself.

Used by worker/attempt.py and dispatch/local.py. The rules are Laravel's (Queue/Worker.php, 8 and 13), plus one for crashes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

import msgspec

from qd.errors import ArgumentError, Settled
from qd.options.kinds import Backoff, seconds_of, span_text
from qd.options.tables import JobOptions, WorkOptions
from qd.payload.format import LONGEST_TIME, Payload

if TYPE_CHECKING:
    from datetime import timedelta

T = TypeVar("T")

FIRST_HOLD = 1.0  # seconds until a job that no worker here can run is tried again,
LONGEST_HOLD = 60.0  # doubling up to this
MOST_WAITS = 20  # of a Backoff; the last one repeats, as in a list


class JobLimits(msgspec.Struct, frozen=True):
    """The limits of one job. Durations are seconds."""

    tries: int  # 0: unlimited
    timeout: float  # 0: none
    backoff: tuple[float, ...]  # after the first, second, ... attempt; the last value repeats
    max_exceptions: int | None
    retry_until: float | None  # unix seconds; if set, tries do not count
    fail_on_timeout: bool
    max_crashes: int  # 0: unlimited
    unroutable_ttl: float
    jitter: float = 0.0  # up to this share of a backoff is added to it
    retry_on: tuple[type[Exception], ...] | None = None  # None: any error
    fail_on: tuple[type[Exception], ...] = ()


class Release(msgspec.Struct, frozen=True):
    """Try again in `delay` seconds. counts: whether this attempt counts."""

    delay: float
    reason: str = ""
    counts: bool = True


class GiveUp(msgspec.Struct, frozen=True):
    """Failed permanently. error: the exception to report, if there is one."""

    reason: str
    error: BaseException | None = None


class Retry(Settled):
    """Raise it in a job, from any depth: the job stops here and runs again in `delay` seconds, whatever its backoff.

    Args:
        delay: Seconds, or a timedelta. No jitter is added.
        reason: For the log line and JobReleased.
        counts: Whether this attempt counts toward `tries`.

    Raises:
        ArgumentError: The delay is no duration.

    Example:
        `raise Retry(delay=30)`
    """

    def __init__(self, delay: float | timedelta = 0, *, reason: str = "", counts: bool = True) -> None:
        self.decision = Release(seconds_of("delay of Retry", delay, ArgumentError), reason, counts)

    def __str__(self) -> str:
        return f"retry in {self.decision.delay:g} s"


class Fail(Settled):
    """Raise it in a job, from any depth: the job stops here and has failed permanently, whatever attempts are left.

    Args:
        reason: For the failed store.

    Example:
        `raise Fail("the account is closed")`
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.decision = GiveUp(reason)


def limits_of(payload: Payload, job: JobOptions, worker: WorkOptions) -> JobLimits:
    """The payload takes precedence over the declaration, and the declaration over the worker's options."""
    return JobLimits(
        tries=_first(payload.maxTries, job.tries, worker.tries),
        timeout=min(max(0.0, _first(payload.timeout, job.timeout, worker.timeout)), LONGEST_TIME),
        backoff=waits(_first(payload.backoffs, job.backoff, worker.backoff)) or (0.0,),
        max_exceptions=_first(payload.maxExceptions, job.max_exceptions, None),
        retry_until=_retry_until(payload, job.retry_for),
        # Laravel writes false for a job that does not set it, so only true is a setting.
        fail_on_timeout=bool(payload.failOnTimeout or job.fail_on_timeout),
        max_crashes=worker.max_crashes,
        unroutable_ttl=worker.unroutable_ttl,
        jitter=_first(payload.own_jitter, job.jitter, worker.jitter),
        retry_on=job.retry_on,
        fail_on=job.fail_on or (),
    )


def _first(in_payload: T | None, declared: T | None, default: T) -> T:
    if in_payload is not None:
        return in_payload
    return default if declared is None else declared


def _retry_until(payload: Payload, retry_for: float | None) -> float | None:
    """The payload's deadline, else `retry_for` after it was first due (unknown in payloads of Laravel 8)."""
    if payload.deadline is not None or retry_for is None or payload.createdAt is None:
        return payload.deadline
    waited = payload.delay if isinstance(payload.delay, int) else 0
    return payload.createdAt + waited + retry_for


def before(limits: JobLimits, payload: Payload, now: float) -> str | None:
    """Why the job must fail before it runs; None: run it. `payload.attempts` includes the one about to begin."""
    if limits.max_crashes and payload.crashes >= limits.max_crashes:
        return f"its worker died {_times(payload.crashes)} while running it (max_crashes {limits.max_crashes})"
    if limits.retry_until is not None:
        return _too_late(limits.retry_until, now) if now > limits.retry_until else None
    if limits.tries and payload.attempts > limits.tries:
        return f"attempted {_times(payload.attempts - 1)} already (tries {limits.tries})"
    return None


def after_error(
    limits: JobLimits,
    payload: Payload,
    now: float,
    *,
    exceptions: int,
    error: BaseException | None,
    luck: float,
) -> Release | GiveUp:
    """What follows an attempt that raised `error`, None: that timed out. exceptions: how many so far, with this one;
    timeouts count."""
    if error is not None and isinstance(error, limits.fail_on):
        return GiveUp(f"raised {type(error).__name__} (fail_on)")
    if error is not None and limits.retry_on is not None and not isinstance(error, limits.retry_on):
        return GiveUp(f"raised {type(error).__name__}, which is not in retry_on")
    if limits.retry_until is not None:
        if now >= limits.retry_until:
            return GiveUp(_too_late(limits.retry_until, now))
    elif 0 < limits.tries <= payload.attempts:
        return GiveUp(f"attempted {_times(payload.attempts)} (tries {limits.tries})")
    if limits.max_exceptions is not None and exceptions >= limits.max_exceptions:
        return GiveUp(f"raised {_times(exceptions)} (max_exceptions {limits.max_exceptions})")
    if error is None and limits.fail_on_timeout:
        return GiveUp(f"ran longer than its timeout of {span_text(limits.timeout)} (fail_on_timeout)")
    return Release(backoff(limits, payload.attempts, luck))


def fails_when_killed(limits: JobLimits, payload: Payload) -> bool:
    """Whether the job fails permanently if this attempt is killed for its timeout."""
    last = limits.retry_until is None and 0 < limits.tries <= payload.attempts
    return last or limits.fail_on_timeout or payload.exceptions + 1 >= (limits.max_exceptions or 1 << 30)


def backoff(limits: JobLimits, attempts: int, luck: float) -> float:
    """Seconds after attempt number `attempts`: (1, 5, 30) gives 1, 5, 30, 30, ... plus its jitter, in whole ms."""
    wait = limits.backoff[min(max(attempts, 1), len(limits.backoff)) - 1]
    return wait and min(wait + int(wait * limits.jitter * luck * 1000) / 1000, LONGEST_TIME)


def waits(given: tuple[float, ...] | Backoff, tries: int | None = None) -> tuple[float, ...]:
    """The seconds after each attempt but the last, as payloads have them. tries: None or 0: unknown or unlimited."""
    if not isinstance(given, Backoff):
        return given
    wait, found = given.first, list[float]()
    for _ in range(min(tries - 1, MOST_WAITS) if tries else MOST_WAITS):
        found.append(round(wait, 3))
        wait = min(wait * given.factor, given.max)
    return tuple(found)


def hold_delay(since: float, now: float) -> float:
    """Seconds until a job that cannot be run here since `since` (0: now) is tried again: 1, doubling to 60."""
    return min(LONGEST_HOLD, max(FIRST_HOLD, now - since)) if since else FIRST_HOLD


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _too_late(until: float, now: float) -> str:
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(until))
    return f"its time ended {span_text(round(now - until))} ago, at {at} (retry_for, or retryUntil in PHP)"
