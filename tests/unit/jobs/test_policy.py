"""qd.jobs.policy: precedence of options, jobs that fail before they run, and what happens after an error."""

from __future__ import annotations

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
)
from qd.options.tables import JobOptions, WorkOptions
from qd.payload.format import Payload

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
    assert "retry_until" in reason


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
