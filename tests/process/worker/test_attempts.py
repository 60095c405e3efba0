"""Tries, timeouts, backoff and retry_until of payload, declaration, flag, environment and file."""

from __future__ import annotations

import time

import pytest

from tests.support.payloads import failed, push, push_laravel
from tests.support.processes import Procs
from tests.support.project import MakeProject, Project
from tests.support.redis import FAILED, Client
from tests.support.witness import JOBS, Witness

pytestmark = pytest.mark.usefixtures("clean_redis")

FAILING = (
    JOBS
    + """
import random
from qd import Backoff

@app.job("fails")
def fails() -> None:
    note("fails", current_job().attempt)
    raise ValueError("it always fails")

@app.job("fails.twice", tries=2)
def fails_twice() -> None:
    fails()

@app.job("surrogate", result_ttl=60)
def surrogate() -> None:
    raise ValueError("no file caf\\udce9")

@app.job("third")
def third() -> None:
    note("third", current_job().attempt)
    if current_job().attempt < 4:
        raise ValueError("not yet")

@app.job("nap")
def nap(seconds: float) -> None:
    note("nap")
    time.sleep(seconds)
    note("awake")

@app.job("nap.short", timeout=1)
def nap_short(seconds: float) -> None:
    nap(seconds)

@app.job("seeds", tries=10, backoff=Backoff(0.05, factor=1, jitter=1))
def seeds() -> None:
    random.seed(7)
    raise ValueError("no luck")

@app.job("waits", tries=3, backoff=[0.05, 0.15])
def waits() -> None:
    fails()
"""
)


@pytest.fixture
def shop(project: MakeProject) -> Project:
    return project(jobs=FAILING)


@FAILED
@pytest.mark.leaves("qd:job:*")
def test_an_error_text_with_a_lone_surrogate_is_stored_and_kills_no_worker(shop: Project, redis: Client) -> None:
    push(redis, "surrogate")
    work = shop.work_off()
    work.wait_line(r"job.failed.* attempt=1 .*no file caf")
    assert not work.matches("worker.died")
    ((record, _),) = failed(redis)
    assert (record["error"], record["reason"]) == ("ValueError", r"no file caf\udce9")
    assert r"ValueError: no file caf\udce9" in record["trace"]


def delays(work: Procs) -> list[float]:
    """Of each release, in their order."""
    return [float(match[1]) for match in work.matches(r"job.released.* delay=([\d.]+)")]


@FAILED
@pytest.mark.parametrize(
    ("flags", "env", "expected"),
    [
        ((), {}, 2),
        ((), {"QD_TRIES": "3"}, 3),
        (("--tries", "4"), {"QD_TRIES": "3"}, 4),
    ],
    ids=["file", "environment", "flag"],
)
def test_tries_of_a_job_that_says_nothing(
    shop: Project, witness: Witness, redis: Client, flags: tuple[str, ...], env: dict[str, str], expected: int
) -> None:
    shop.config("[worker]\ntries = 2")
    push_laravel(redis, "fails")
    work = shop.work_off(*flags, **env)
    assert len(witness.starting("fails")) == expected
    work.wait_line(f"job.failed.* attempt={expected} .*it always fails")


@FAILED
def test_the_payload_beats_the_declaration_and_that_the_flag(shop: Project, witness: Witness, redis: Client) -> None:
    push_laravel(redis, "fails.twice")
    shop.work_off("--tries", "4")
    assert witness.lines == ["fails 1", "fails 2"]
    push_laravel(redis, "fails.twice", maxTries=3)
    shop.work_off("--tries", "4")
    assert witness.lines[2:] == ["fails 1", "fails 2", "fails 3"]


def test_zero_tries_are_without_end(shop: Project, witness: Witness, redis: Client) -> None:
    push_laravel(redis, "third")
    shop.work_off("--tries", "0")
    assert witness.lines == ["third 1", "third 2", "third 3", "third 4"]


@FAILED
def test_timeouts_of_flag_declaration_and_payload(shop: Project, witness: Witness, redis: Client) -> None:
    push_laravel(redis, "nap", {"seconds": 60})
    work = shop.work_off("--timeout", "1", QD_TIMEOUT="60")
    assert work.matches("job.failed.*job=nap .*JobTimeout")
    push_laravel(redis, "nap.short", {"seconds": 60})
    work = shop.work_off("--timeout", "60")
    assert work.matches("job.failed.*job=nap.short .*JobTimeout")
    assert witness.lines == ["nap", "nap"]
    push_laravel(redis, "nap.short", {"seconds": 1.2}, timeout=30)
    push_laravel(redis, "nap.short", {"seconds": 1.2}, timeout=0)  # none
    shop.work_off("--timeout", "0.1")
    assert witness.lines[2:] == ["nap", "awake"] * 2


@FAILED
def test_backoffs_of_flag_declaration_and_payload(shop: Project, witness: Witness, redis: Client) -> None:
    shop.config("[worker]\nbackoff = 9\njitter = 0")
    push_laravel(redis, "fails", maxTries=4)
    assert delays(until_failed(shop, "--backoff", "0.1,0.2")) == [0.1, 0.2, 0.2]
    push_laravel(redis, "waits")
    assert delays(until_failed(shop, "--backoff", "9")) == [0.05, 0.15]
    push_laravel(redis, "waits", backoff="0,1", maxTries=3)
    assert delays(until_failed(shop)) == [0.0, 1.0]
    push_laravel(redis, "waits", delay=1, maxTries=2)  # as Laravel 13: `backoff ?? delay`
    assert delays(until_failed(shop)) == [1.0]
    push_laravel(redis, "waits", backoff=0, delay=7, maxTries=2)
    assert delays(until_failed(shop)) == [0.0]
    push_laravel(redis, "fails", maxTries=2)
    assert delays(until_failed(shop, "--delay", "0.1")) == [0.1]


@FAILED
def test_jitter_is_random_whatever_the_jobs_seed(shop: Project, witness: Witness, redis: Client) -> None:
    push_laravel(redis, "seeds")
    found = delays(until_failed(shop))
    assert all(0.05 <= delay <= 0.1 for delay in found)
    assert (len(found), len(set(found)) > 3) == (9, True), found


def until_failed(shop: Project, *flags: str) -> Procs:
    """Until the job has failed: a queue with delayed jobs is empty for --stop-when-empty."""
    work = shop.work("-w", "1", *flags)
    work.wait_line("job.failed", 20)
    work.stop()
    return work


@FAILED
def test_max_exceptions_counts_errors_and_no_releases(shop: Project, witness: Witness, redis: Client) -> None:
    shop.jobs(
        FAILING
        + """
@app.job("mixed", tries=10, max_exceptions=2)
def mixed() -> None:
    attempt = current_job().attempt
    note("mixed", attempt)
    if attempt in (2, 3):
        current_job().release()
    raise ValueError(attempt)
"""
    )
    push_laravel(redis, "mixed")
    work = shop.work_off()
    assert len(witness.starting("mixed")) == 4
    assert work.matches("job.failed.* attempt=4 .*ValueError: 4")
    push_laravel(redis, "mixed", maxExceptions=1)
    work = shop.work_off()
    assert work.matches("job.failed.* attempt=1 ")


@FAILED
def test_fail_on_timeout_does_not_try_again(shop: Project, witness: Witness, redis: Client) -> None:
    push_laravel(redis, "nap.short", {"seconds": 60}, failOnTimeout=True, maxTries=3)
    work = shop.work_off()
    assert work.matches("job.failed.* attempt=1 .*JobTimeout")
    assert witness.lines == ["nap"]
    push_laravel(redis, "nap.short", {"seconds": 60}, failOnTimeout=False, maxTries=2)
    work = shop.work_off()
    assert work.matches("job.failed.* attempt=2 .*JobTimeout")


@FAILED
@pytest.mark.parametrize("field", ["retryUntil", "timeoutAt"])  # timeoutAt: Laravel 7 and older
def test_a_moment_to_retry_until_beats_tries(shop: Project, witness: Witness, redis: Client, field: str) -> None:
    push_laravel(redis, "fails", {}, "default", **{field: int(time.time()) - 1})
    work = shop.work_off()
    assert work.matches("job.failed.* its time ended .* ago, at .*Z .retry_for")
    assert not witness.lines
    push_laravel(redis, "third", {}, "default", maxTries=1, **{field: int(time.time()) + 600})
    shop.work_off()
    assert witness.lines == ["third 1", "third 2", "third 3", "third 4"]


@FAILED
def test_limits_of_the_file_that_no_payload_knows(shop: Project, witness: Witness, redis: Client) -> None:
    shop.config('[worker]\nmax_crashes = 1\nunroutable_ttl = "1s"')
    shop.jobs(FAILING + '\n@app.job("dies", tries=5)\ndef dies() -> None:\n    note("dies")\n    os._exit(9)\n')
    push_laravel(redis, "dies")
    push_laravel(redis, "quikc")
    work = shop.work("-w", "1")
    work.wait_line("job.failed.* job=dies .*max_crashes 1")
    work.wait_line("job.failed.* job=quikc .*did you mean 'quick'")
    assert witness.lines == ["dies"]
    assert work.matches("job.released.* job=quikc .*delay=1")
    work.stop()
