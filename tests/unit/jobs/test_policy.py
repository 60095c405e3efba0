"""qd.jobs.policy: precedence of options, jobs that fail before they run, and what happens after an error."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qd.jobs.policy import (
    GiveUp,
    JobLimits,
    Release,
    after_error,
    backoff,
    before,
    fails_when_killed,
    hold_delay,
    limits_of,
    waits,
)
from qd.options.kinds import EXPONENTIAL, Backoff
from qd.options.tables import JobOptions, WorkOptions
from qd.payload.format import LONGEST_TIME, Payload

NOW = 1_795_225_685.0
WORKER = WorkOptions(tries=1, timeout=60.0, backoff=(0.0,), max_crashes=3, unroutable_ttl=600.0)


def payload(**facts: object) -> Payload:
    return Payload(job="mail.welcome", **facts)  # type: ignore[arg-type]


def limits(**facts: object) -> JobLimits:
    plain: dict[str, object] = {
        "tries": 3,
        "timeout": 60.0,
        "backoff": (1.0, 5.0),
        "max_exceptions": None,
        "retry_until": None,
        "fail_on_timeout": False,
        "max_crashes": 3,
        "unroutable_ttl": 600.0,
    }
    return JobLimits(**{**plain, **facts})  # type: ignore[arg-type]


# -- precedence


def test_the_options_of_the_worker_are_the_default():
    assert limits_of(payload(), JobOptions(), WORKER) == JobLimits(1, 60.0, (0.0,), None, None, False, 3, 600.0, 0.1)


def test_the_declaration_overrides_the_worker():
    declared = JobOptions(tries=5, timeout=0.5, backoff=(1.0, 2.0), max_exceptions=2, fail_on_timeout=True)
    assert limits_of(payload(), declared, WORKER) == JobLimits(5, 0.5, (1.0, 2.0), 2, None, True, 3, 600.0, 0.1)


def test_the_payload_overrides_the_declaration():
    declared = JobOptions(tries=5, timeout=7.0, backoff=(1.0, 2.0), max_exceptions=2)
    given = payload(maxTries=0, timeout=0, backoff="9", maxExceptions=4, failOnTimeout=True, retryUntil=NOW)
    assert limits_of(given, declared, WORKER) == JobLimits(0, 0.0, (9.0,), 4, NOW, True, 3, 600.0, 0.1)


def test_fail_on_timeout_false_in_the_payload_does_not_override():
    assert limits_of(payload(failOnTimeout=False), JobOptions(fail_on_timeout=True), WORKER).fail_on_timeout


def test_a_negative_timeout_means_no_timeout():
    assert limits_of(payload(timeout=-1), JobOptions(), WORKER).timeout == 0.0


def test_a_timeout_beyond_a_century_is_cut_to_one():
    """A timer cannot be set to it: each attempt failed before it began, and the job was retried at once."""
    assert limits_of(payload(timeout=2**53), JobOptions(), WORKER).timeout == 100 * 365 * 86400.0


def test_a_declared_retry_period_begins_when_the_job_was_due():
    declared = JobOptions(retry_for=100.0)
    assert limits_of(payload(createdAt=NOW), declared, WORKER).retry_until == NOW + 100
    assert limits_of(payload(createdAt=NOW, delay=30), declared, WORKER).retry_until == NOW + 130
    assert limits_of(payload(createdAt=NOW, retryUntil=NOW + 5), declared, WORKER).retry_until == NOW + 5
    assert limits_of(payload(), declared, WORKER).retry_until is None


# -- before a job runs


@pytest.mark.parametrize(
    ("attempts", "tries", "runs"), [(1, 1, True), (2, 1, False), (3, 3, True), (4, 3, False), (1000, 0, True)]
)
def test_an_attempt_beyond_tries_does_not_run(attempts, tries, runs):
    assert (before(limits(tries=tries), payload(attempts=attempts), NOW) is None) == runs


def test_a_deadline_overrides_tries():
    held = limits(tries=1, retry_until=NOW)
    assert before(held, payload(attempts=50), NOW) is None
    reason = before(held, payload(attempts=1), NOW + 90)
    assert reason is not None
    assert "retry_for" in reason


@pytest.mark.parametrize(("crashes", "most", "runs"), [(0, 3, True), (2, 3, True), (3, 3, False), (9, 0, True)])
def test_a_job_that_killed_its_workers_does_not_run(crashes, most, runs):
    held = limits(max_crashes=most, tries=0)
    assert (before(held, payload(attempts=1, crashes=crashes), NOW) is None) == runs


def test_reasons_name_the_limit_with_its_value():
    assert before(limits(tries=3), payload(attempts=4), NOW) == "attempted 3 times already (tries 3)"
    assert before(limits(tries=1), payload(attempts=2), NOW) == "attempted once already (tries 1)"
    reason = before(limits(), payload(crashes=3), NOW)
    assert reason == "its worker died 3 times while running it (max_crashes 3)"


# -- after an error


def after(held: JobLimits, attempts: int, **more: object) -> Release | GiveUp:
    given = {"exceptions": 1, "error": OSError(), "luck": 0.0, **more}
    return after_error(held, payload(attempts=attempts), NOW, **given)  # type: ignore[arg-type]


def test_a_job_is_released_with_its_backoff_until_tries_are_used_up():
    assert after(limits(), 1) == Release(1.0)
    assert after(limits(), 2) == Release(5.0)
    assert isinstance(after(limits(), 3), GiveUp)
    assert after(limits(tries=0), 99) == Release(5.0)


def test_a_passed_deadline_fails_the_job_and_tries_do_not():
    assert after(limits(tries=1, retry_until=NOW + 0.1), 7) == Release(5.0)
    assert isinstance(after(limits(tries=0, retry_until=NOW), 1), GiveUp)


def test_too_many_exceptions_fail_the_job():
    assert after(limits(max_exceptions=2), 1, exceptions=1) == Release(1.0)
    assert isinstance(after(limits(max_exceptions=2), 1, exceptions=2), GiveUp)
    assert isinstance(after(limits(max_exceptions=2, retry_until=NOW + 9), 1, exceptions=2), GiveUp)


def test_a_timeout_fails_the_job_only_with_fail_on_timeout():
    assert after(limits(), 1, error=None) == Release(1.0)
    assert after(limits(fail_on_timeout=True), 1) == Release(1.0)
    assert isinstance(after(limits(fail_on_timeout=True), 1, error=None), GiveUp)


@settings(deadline=None)
@given(st.integers(0, 5), st.integers(1, 12))
def test_a_job_that_fails_after_its_last_try_would_not_run_again(tries, attempts):
    held = limits(tries=tries)
    failed = isinstance(after(held, attempts), GiveUp)
    assert failed == (before(held, payload(attempts=attempts + 1), NOW) is not None)


# -- arithmetic


@pytest.mark.parametrize(("attempts", "wait"), [(0, 1.0), (1, 1.0), (2, 5.0), (3, 30.0), (4, 30.0), (999, 30.0)])
def test_the_last_backoff_repeats(attempts, wait):
    assert backoff(limits(backoff=(1.0, 5.0, 30.0)), attempts, 0.5) == wait


@pytest.mark.parametrize(
    ("given", "tries", "found"),
    [
        (EXPONENTIAL, 12, (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 600.0)),
        (EXPONENTIAL, 4, (1.0, 2.0, 4.0)),
        (EXPONENTIAL, 2, (1.0,)),
        (EXPONENTIAL, 1, ()),
        (EXPONENTIAL, None, (*[2.0**n for n in range(10)], *[600.0] * 10)),
        (EXPONENTIAL, 0, (*[2.0**n for n in range(10)], *[600.0] * 10)),
        (EXPONENTIAL, 1000, (*[2.0**n for n in range(10)], *[600.0] * 10)),
        (Backoff(0.1, 3, 1), 6, (0.1, 0.3, 0.9, 1.0, 1.0)),
        (Backoff(timedelta(minutes=1), 1), 4, (60.0, 60.0, 60.0)),
        (Backoff("5s", factor=1.5, max="1h"), 5, (5.0, 7.5, 11.25, 16.875)),
        (Backoff(1, 1000, "1h"), 4, (1.0, 1000.0, 3600.0)),
        ((1.0, 5.0, 30.0), 2, (1.0, 5.0, 30.0)),
        ((0.0,), None, (0.0,)),
    ],
)
def test_the_waits_of_a_backoff_grow_up_to_its_max(given, tries, found):
    assert waits(given, tries) == found


def test_a_worker_continues_the_waits_of_a_payload_with_the_last_one():
    held = limits_of(payload(backoff="1,2,4"), JobOptions(backoff=EXPONENTIAL), WORKER)
    assert [backoff(held, attempt, 0.0) for attempt in (1, 2, 3, 4, 99)] == [1, 2, 4, 4, 4]
    held = limits_of(payload(), JobOptions(backoff=EXPONENTIAL), WORKER)
    assert [backoff(held, attempt, 0.0) for attempt in (1, 3, 10, 11, 20, 21, 99)] == [1, 4, 512, 600, 600, 600, 600]


# -- jitter


@pytest.mark.parametrize(
    ("jitter", "luck", "wait"),
    [
        (0.1, 0.0, 30.0),
        (0.1, 0.5, 31.5),
        (0.1, 0.999, 32.997),
        (0.0, 0.999, 30.0),
        (1.0, 0.25, 37.5),
    ],
)
def test_jitter_adds_a_share_of_the_backoff(jitter, luck, wait):
    held = limits(backoff=(30.0,), jitter=jitter)
    assert backoff(held, 1, luck) == wait
    assert after(held, 1, luck=luck) == Release(wait)
    assert after(held, 1, luck=luck, error=None) == Release(wait)  # a timeout


@given(st.floats(0, LONGEST_TIME), st.floats(0, 1), st.floats(0, 1, exclude_max=True))
def test_jitter_never_shortens_a_backoff_and_adds_at_most_its_share(wait, jitter, luck):
    found = backoff(limits(backoff=(wait,), jitter=jitter), 1, luck)
    assert wait <= found <= min(wait * (1 + jitter) + 0.0005, LONGEST_TIME)


def test_jobs_that_failed_together_do_not_come_back_together():
    held, chance = limits(backoff=(60.0,), jitter=0.1), random.Random(17)
    found = [backoff(held, 1, chance.random()) for _ in range(10_000)]
    assert (min(found) >= 60.0, max(found) <= 66.0) == (True, True)
    assert max(Counter(int(wait * 10) for wait in found).values()) < 250  # of 10,000 in any tenth of a second


@pytest.mark.parametrize(
    ("in_payload", "declared", "found"),
    [
        (None, None, 0.1),
        (None, 0.5, 0.5),
        (None, 0.0, 0.0),
        (0, 0.5, 0.0),
        (0.25, None, 0.25),
        ("soon", 0.5, 0.5),
        (7, 0.5, 0.5),
        ([1], None, 0.1),
    ],
)
def test_the_jitter_of_the_payload_is_before_the_declaration_and_the_worker(in_payload, declared, found):
    """A value that another program has put there is ignored."""
    assert limits_of(payload(jitter=in_payload), JobOptions(jitter=declared), WORKER).jitter == found


# -- by the class of the error


@pytest.mark.parametrize(
    ("rules", "error", "fails"),
    [
        ({}, ValueError(), False),
        ({"fail_on": (ValueError,)}, ValueError(), True),
        ({"fail_on": (ValueError,)}, UnicodeError(), True),  # a subclass
        ({"fail_on": (ValueError,)}, OSError(), False),
        ({"retry_on": (OSError,)}, ConnectionResetError(), False),
        ({"retry_on": (OSError,)}, ValueError(), True),
        ({"retry_on": (OSError,)}, KeyboardInterrupt(), True),
        ({"retry_on": ()}, OSError(), True),
        ({"retry_on": (OSError,), "fail_on": (ConnectionError,)}, ConnectionResetError(), True),
        ({"retry_on": (ConnectionError,), "fail_on": (OSError,)}, ConnectionResetError(), True),  # fail_on wins
        ({"retry_on": (OSError,), "fail_on": (ConnectionError,)}, TimeoutError(), False),
        ({"retry_on": (OSError,), "fail_on": (Exception,)}, None, False),  # a timeout
    ],
)
def test_the_class_of_an_error_decides_whether_the_job_is_retried(rules, error, fails):
    assert isinstance(after(limits(**rules), 1, error=error), GiveUp) is fails


def test_a_retried_class_still_uses_up_its_tries():
    assert isinstance(after(limits(retry_on=(OSError,)), 3), GiveUp)


def test_a_held_job_is_checked_after_one_second_doubling_to_sixty():
    now, since, waits = NOW, 0.0, []
    for _ in range(9):
        waits.append(hold_delay(since, now))
        since = since or now
        now += waits[-1]
    assert waits == [1, 1, 2, 4, 8, 16, 32, 60, 60]


def test_a_clock_that_went_back_does_not_hold_a_job():
    assert hold_delay(NOW + 1000, NOW) == 1.0


@pytest.mark.parametrize(
    ("facts", "attempts", "exceptions", "fails"),
    [
        ({"tries": 3}, 2, 0, False),
        ({"tries": 3}, 3, 0, True),
        ({"tries": 0}, 99, 0, False),
        ({"tries": 1, "retry_until": NOW + 60}, 5, 0, False),
        ({"fail_on_timeout": True}, 1, 0, True),
        ({"max_exceptions": 2}, 1, 0, False),
        ({"max_exceptions": 2}, 1, 1, True),
    ],
)
def test_a_timeout_kill_fails_a_job_when_an_error_would(facts, attempts, exceptions, fails):
    job = payload(attempts=attempts, exceptions=exceptions)
    assert fails_when_killed(limits(**facts), job) is fails
    verdict = after_error(limits(**facts), job, NOW, exceptions=exceptions + 1, error=None, luck=0.0)
    assert isinstance(verdict, GiveUp) is fails
