"""driver = "sync": a job runs in the dispatching process, by the rules of a worker; driver = "null": it is discarded."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from qd import Fail, Qd, Retry, RunningJob, config, current_job
from qd.errors import AttemptsExceeded, ConfigError, JobFailure, NoResult, UnknownBatch, UnknownJob, WrongType
from qd.events import (
    JobAttempted,
    JobExceptionOccurred,
    JobFailed,
    JobProcessed,
    JobProcessing,
    JobReleased,
    JobReleasedAfterException,
    UniqueJobSkipped,
)
from qd.middleware import WithoutOverlapping
from qd.options.drivers import BARE

HEARD = (
    JobProcessing,
    JobProcessed,
    JobReleased,
    JobReleasedAfterException,
    JobExceptionOccurred,
    JobFailed,
    JobAttempted,
)


class Shop:
    """An app whose default connection is sync, and a record of what its jobs did."""

    def __init__(self, folder: Path, default: str = "sync") -> None:
        names = "".join(f'[connections.{name}]\ndriver = "{name}"\n' for name in ("sync", "null"))
        (folder / "qd.toml").write_text(f'[qd]\ndefault = "{default}"\n{names}')
        self.app = Qd()
        self.app.settings = config.load(folder / "qd.toml", environ={})
        self.did: list[Any] = []
        self.heard: list[str] = []
        for event in HEARD:
            self.app.on(event)(lambda emitted: self.heard.append(type(emitted).__name__))

        @self.app.job("work", tries=3, backoff=100)
        def work(n: int, fails: int = 0) -> int:
            self.did.append((n, current_job().attempt))
            if current_job().attempt <= fails:
                raise ValueError(f"{n} does not work")
            return n * 10

        self.work = work


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_a_job_runs_before_dispatch_returns_whatever_its_delay(shop: Shop) -> None:
    shop.work.using(delay=3600).dispatch(1)
    assert shop.did == [(1, 1)]
    assert shop.heard == ["JobProcessing", "JobProcessed", "JobAttempted"]


def test_a_failing_job_is_retried_at_once_up_to_its_tries(shop: Shop) -> None:
    shop.work.dispatch(1, fails=2)
    assert shop.did == [(1, 1), (1, 2), (1, 3)]
    again = ["JobProcessing", "JobExceptionOccurred", "JobReleasedAfterException", "JobAttempted"]
    assert shop.heard == [*again, *again, "JobProcessing", "JobProcessed", "JobAttempted"]


def test_dispatch_raises_the_last_error_of_the_job(shop: Shop) -> None:
    failed: list[object] = []
    shop.app.on(JobFailed)(lambda event: failed.append(event.error))
    with pytest.raises(ValueError, match="1 does not work") as raised:
        shop.work.dispatch(1, fails=3)
    assert len(shop.did) == 3
    assert failed == [raised.value]


def test_jobs_sent_together_with_a_failing_job_still_run(shop: Shop) -> None:
    with pytest.raises(ValueError, match="1 does not work"):
        shop.app.dispatch(shop.work.bind(1, fails=9), shop.work.bind(2))
    assert shop.did[-1] == (2, 1)


def test_limits_of_the_payload_apply(shop: Shop) -> None:
    with pytest.raises(ValueError, match="does not work"):
        shop.work.using(tries=1).dispatch(1, fails=1)
    with pytest.raises(ValueError, match="does not work"):
        shop.work.using(tries=0, max_exceptions=4).dispatch(2, fails=9)
    assert [n for n, _ in shop.did] == [1, 2, 2, 2, 2]


def test_a_job_that_releases_itself_runs_again_until_its_tries_are_used_up(shop: Shop) -> None:
    @shop.app.job("again", tries=3)
    def again(until: int) -> None:
        shop.did.append(current_job().attempt)
        if current_job().attempt < until:
            current_job().release(60)

    again.dispatch(3)
    assert shop.did == [1, 2, 3]
    with pytest.raises(AttemptsExceeded, match="attempted 3 times"):
        again.dispatch(9)


def test_a_job_that_calls_fail_reports_the_reason(shop: Shop) -> None:
    @shop.app.job("gives_up", tries=5)
    def gives_up() -> None:
        shop.did.append(1)
        current_job().fail("no stock")

    with pytest.raises(JobFailure, match="no stock"):
        gives_up.dispatch()
    assert shop.did == [1]


def test_retry_and_fail_are_raised_by_async_jobs_too(shop: Shop) -> None:
    @shop.app.job("again", tries=3)
    async def again(until: int) -> None:
        shop.did.append(current_job().attempt)
        await asyncio.sleep(0)
        raise Retry(delay=60) if current_job().attempt < until else Fail("no stock")

    with pytest.raises(JobFailure, match="no stock"):
        again.dispatch(3)
    assert shop.did == [1, 2, 3]
    with pytest.raises(AttemptsExceeded, match="attempted 3 times"):
        again.dispatch(9)


def test_a_release_of_the_outer_job_ends_the_inner_one_without_another_attempt(shop: Shop) -> None:
    @shop.app.job("inner", tries=3)
    def inner() -> None:
        shop.did.append("inner")
        outers[0].release(60)

    @shop.app.job("outer", tries=2)
    def outer() -> None:
        outers.append(current_job())
        if current_job().attempt == 1:
            inner.dispatch()

    outers: list[RunningJob] = []
    outer.dispatch()
    assert (shop.did, [job.attempt for job in outers]) == (["inner"], [1, 2])


def test_errors_decide_by_their_class_whether_a_job_is_retried(shop: Shop) -> None:
    @shop.app.job("picky", tries=3, retry_on=OSError, fail_on=(ConnectionError,))
    def picky(kind: str) -> None:
        shop.did.append(kind)
        raise {"os": OSError, "connection": ConnectionError, "value": ValueError}[kind]

    for kind, expected in (("os", OSError), ("connection", ConnectionError), ("value", ValueError)):
        with pytest.raises(expected):
            picky.dispatch(kind)
    assert shop.did == ["os", "os", "os", "connection", "value"]


def test_the_traceback_of_an_error_contains_no_frames_of_qd(shop: Shop) -> None:
    with pytest.raises(ValueError, match="does not work") as raised:
        shop.work.using(tries=1).dispatch(1, fails=9)
    assert raised.value.__context__ is sys.exc_info()[1]  # an alarm inside an except clause may have left one behind


def test_the_next_attempt_sees_the_checkpoint(shop: Shop) -> None:
    @shop.app.job("saves", tries=2)
    def saves() -> None:
        shop.did.append(current_job().saved)
        current_job().checkpoint({"row": 7})
        if current_job().attempt == 1:
            raise ValueError

    saves.dispatch()
    assert shop.did == [None, {"row": 7}]


def test_the_next_attempt_runs_no_step_again(shop: Shop) -> None:
    def work(name: str) -> int:
        shop.did.append(name)
        return len(shop.did)

    @shop.app.job("stepped", tries=2)
    def stepped() -> None:
        job = current_job()
        found = [job.step(name, work, name) for name in ("a", "b")[: job.attempt]]
        shop.did.append(found)
        if job.attempt == 1:
            raise ValueError

    stepped.dispatch()
    assert shop.did == ["a", [1], "b", [1, 3]]


def test_jobs_of_other_programs_are_refused(shop: Shop) -> None:
    with pytest.raises(UnknownJob, match=r"Shop\\Mail@fire"):
        shop.app.queue("default").push(r"Shop\Mail@fire", {})
    with pytest.raises(WrongType):
        shop.app.queue("default").push_raw(json.dumps({"job": "work", "data": {"n": "x"}}).encode())
    assert shop.did == []


def test_a_chain_runs_to_its_end_however_long(shop: Shop) -> None:
    shop.app.chain(*[shop.work.bind(n) for n in range(1200)]).dispatch()
    assert [n for n, _ in shop.did] == list(range(1200))


def test_a_failed_chain_stops_and_runs_its_catch_callback(shop: Shop) -> None:
    chain = shop.app.chain(shop.work.bind(1), shop.work.bind(2, fails=3), shop.work.bind(3), catch=shop.work.bind(4))
    with pytest.raises(ValueError, match="2 does not"):
        chain.dispatch()
    assert [n for n, _ in shop.did] == [1, 2, 2, 2, 4]


def test_a_batch_is_counted_and_runs_its_callbacks(shop: Shop) -> None:
    work = shop.work
    calls = [work.bind(1), work.bind(2, fails=3)]
    batch = shop.app.batch(*calls, then=work.bind(7), catch=work.bind(8), finally_=work.bind(9), allow_failures=True)
    found = batch.dispatch().look()
    assert (found.total, found.pending, found.failed) == (2, 0, 1)
    assert found.finished_at is not None
    assert [n for n, _ in shop.did] == [1, 2, 2, 2, 8, 9]
    shop.app.batch(then=work.bind(10)).dispatch()
    assert shop.did[-1] == (10, 1)


def test_a_failure_raises_and_cancels_the_batch(shop: Shop) -> None:
    with pytest.raises(ValueError, match="1 does not"):
        shop.app.batch(shop.work.bind(1, fails=3), shop.work.bind(2)).dispatch()


def test_a_job_can_add_to_its_batch(shop: Shop) -> None:
    @shop.app.job("more")
    def more() -> None:
        shop.app.current_batch().add(shop.work.bind(5))

    assert shop.app.batch(more.bind(), then=shop.work.bind(6)).dispatch().look().total == 2
    assert shop.did == [(5, 1), (6, 1)]


def test_a_unique_job_cannot_dispatch_itself_while_it_runs(shop: Shop) -> None:
    skipped: list[str] = []
    shop.app.on(UniqueJobSkipped)(lambda event: skipped.append(event.unique))

    @shop.app.job("one", unique="one")
    def one(again: bool = True) -> None:
        shop.did.append(again)
        if again:
            one.dispatch(False)

    one.dispatch()
    one.dispatch(False)  # its lock is free again
    assert (shop.did, len(skipped)) == ([True, False], 1)


def test_the_current_job_is_restored_after_a_nested_job(shop: Shop) -> None:
    @shop.app.job("outer")
    def outer() -> None:
        shop.work.dispatch(1)
        shop.did.append(current_job().name)

    outer.dispatch()
    assert shop.did == [(1, 1), "outer"]


def test_an_async_job_runs_even_inside_an_event_loop(shop: Shop) -> None:
    @shop.app.job("waits")
    async def waits() -> None:
        await asyncio.sleep(0)
        shop.did.append(current_job().name)

    async def main() -> None:
        waits.dispatch()
        await waits.adispatch()

    waits.dispatch()
    asyncio.run(main())
    assert shop.did == ["waits"] * 3


def test_threads_share_batches_and_results(shop: Shop) -> None:
    handle = shop.work.using(result_ttl=60).dispatch(4)
    seen: list[object] = []
    thread = threading.Thread(target=lambda: seen.append((handle.status(), handle.result(1))))
    thread.start()
    thread.join()
    assert seen == [("done", 40)]


def test_without_a_store_rate_limits_are_not_enforced(shop: Shop) -> None:
    @shop.app.job("placed", middleware=[WithoutOverlapping("x")])
    def placed() -> None:
        shop.did.append(1)

    placed.dispatch()
    assert shop.did == [1]


def test_the_null_driver_accepts_and_discards_everything(tmp_path: Path) -> None:
    shop = Shop(tmp_path, "null")
    shop.work.using(delay=5).dispatch(1)
    shop.work.using(key="a", delay=5).dispatch(1)
    shop.work.using(unique="a").dispatch(1)
    shop.app.chain(shop.work.bind(1), shop.work.bind(2)).dispatch()
    batch = shop.app.batch(shop.work.bind(1)).dispatch()
    handle = shop.app.dispatch(shop.work.bind(1), shop.work.bind(2))[0]
    queue = shop.app.queue("default")
    assert (shop.did, shop.heard, queue.size(), queue.clear()) == ([], [], 0, 0)
    assert (batch.status(), handle.status()) == ("unknown", "unknown")
    with pytest.raises(UnknownBatch):
        batch.look()
    with pytest.raises((NoResult, TimeoutError)):
        handle.result(0.01)
    with pytest.raises(ConfigError, match="keeps nothing: name"):
        shop.app.lock("a", ttl=5).acquire()


@pytest.mark.parametrize("name", ["sync", "null"])
def test_unsupported_features_are_declared_and_refused(shop: Shop, name: str) -> None:
    queue = shop.app.connections.get(name)
    assert name in BARE
    assert {"memory"} <= queue.limits.keys()
    assert queue.sizes("default") == (queue.sizes("other"))
    for ask in (lambda: queue.turn(None, ["default"]), lambda: queue.ticks):
        with pytest.raises(ConfigError, match=rf"connection '{name}' \({name}\) only sends jobs"):
            ask()
