"""job.step(): each name once, results as JSON gives them; steps of jobs that run where they are sent are in memory."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from qd import ArgumentError, NotInJob, Qd, RunningJob, current_job


def job(store: Callable[..., Mapping[str, bytes] | None] | None = None) -> RunningJob:
    return RunningJob("an-id", "x", "default", 1, _step_store=store)


@dataclass
class Page:
    path: Path
    at: datetime


PAGE = Page(Path("a/b"), datetime(2026, 11, 28, tzinfo=UTC))


def typed() -> Page:
    return PAGE


def untyped():  # as the users of no type checker write it
    return {"seen": (1, 2), "page": PAGE}


def mistyped() -> int:
    return "seven"  # type: ignore[return-value]


async def atyped() -> Page:
    await asyncio.sleep(0)
    return PAGE


def never() -> int:
    raise AssertionError("it ran")


class Store:
    """Keeps what is recorded, and does not answer the next `away` calls."""

    def __init__(self, **known: bytes) -> None:
        self.known, self.away, self.calls = known, 0, list[tuple[Any, ...]]()

    def __call__(self, job: RunningJob, *step: Any) -> Mapping[str, bytes] | None:
        self.calls.append(step)
        if self.away:
            self.away -= 1
            return None
        if step:
            self.known.setdefault(*step)
        return self.known


def test_a_result_is_recorded_before_it_is_returned() -> None:
    store = Store()
    assert job(store).step("add", lambda a, b: a + b, 3, b=4) == 7
    assert store.calls == [(), ("add", b"7")]


def test_a_recorded_step_does_not_run() -> None:
    store = Store(add=b"8")
    running = job(store)
    assert running.step("add", never) == 8
    assert running.step("more", int, "3") == 3
    assert store.calls == [(), ("more", b"3")]  # the steps are read once


@pytest.mark.parametrize("text", [b"no", b"\xff", b"[" * 200_000], ids=["no JSON", "no UTF-8", "deep"])
def test_a_recorded_result_that_is_no_json_is_one_clear_error(text: bytes) -> None:
    with pytest.raises(ArgumentError, match=r"the recorded result of job.step\('add'\) is not JSON: "):
        job(Store(add=text)).step("add", never)


@pytest.mark.parametrize(
    ("function", "result"),
    [
        (typed, PAGE),
        (untyped, {"seen": [1, 2], "page": {"path": "a/b", "at": "2026-11-28T00:00:00Z"}}),
        (mistyped, "seven"),
        (functools.partial(typed), {"path": "a/b", "at": "2026-11-28T00:00:00Z"}),
        (int, 0),
    ],
)
def test_each_attempt_gets_the_same_types(function: Callable[[], object], result: object) -> None:
    store = Store()
    first, second = job(store).step("a", function), job(store).step("a", function)
    assert first == second == result
    assert type(first) is type(second) is type(result)


def test_an_async_step_is_awaited_and_has_the_same_types() -> None:
    store = Store()

    async def twice() -> list[Page]:
        return [await job(store).step("a", atyped), await job(store).step("a", atyped)]

    assert asyncio.run(twice()) == [PAGE, PAGE]
    assert len(store.calls) == 3


@pytest.mark.parametrize("name", ["", None, 7, b"fetch", "two\nlines", "\ud800"])
def test_a_name_that_is_no_text_is_refused(name: Any) -> None:
    with pytest.raises(ArgumentError, match=r"job.step\(\) takes a name like 'fetch' and a function, not "):
        job().step(name, never)


@pytest.mark.parametrize("given", [(never, 1), ("fetch", 7)])
def test_a_step_needs_a_name_and_a_function(given: Any) -> None:
    with pytest.raises(ArgumentError, match=r"takes a name like 'fetch' and a function, not .* and (1|7)"):
        job().step(*given)


def test_a_name_is_used_once_in_an_attempt() -> None:
    running = job(Store(b=b"1"))
    for name in ("a", "b"):
        running.step(name, int)
        with pytest.raises(ArgumentError, match=f"job.step\\('{name}'\\) was called twice in one attempt"):
            running.step(name, never)


def test_a_result_that_is_no_json_is_refused_and_not_recorded() -> None:
    store = Store()
    with pytest.raises(ArgumentError, match=r"the result of job.step\('a'\) cannot be sent: a value of type object"):
        job(store).step("a", object)
    assert store.calls == [()]


def test_an_error_of_the_function_passes_and_nothing_is_recorded() -> None:
    store = Store()

    def fails() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        job(store).step("a", fails)
    assert store.calls == [()]


def test_it_waits_for_the_server_and_runs_the_function_once() -> None:
    store, ran = Store(), list[int]()
    running = job(store)
    store.away = 1
    running.step("a", ran.append, 1)
    store.away = 2
    running.step("b", ran.append, 2)
    assert ran == [1, 2]
    assert store.known == {"a": b"null", "b": b"null"}


def test_a_result_that_another_attempt_has_recorded_meanwhile_wins() -> None:
    store = Store()

    def late() -> int:
        store.known["a"] = b"1"
        return 2

    assert job(store).step("a", late) == 1


def test_threads_and_tasks_of_a_job_read_the_steps_once() -> None:
    store = Store()
    running = job(store)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda n: running.step(f"s{n}", int, n), range(40))) == list(range(40))
    assert store.calls.count(()) == 1

    async def number(n: int) -> int:
        return n

    async def gathered() -> list[int]:
        again = job(store)
        return await asyncio.gather(*[again.step(f"t{n}", number, n) for n in range(40)])

    assert asyncio.run(gathered()) == list(range(40))
    assert store.calls.count(()) == 2
    assert len(store.known) == 80


def test_a_waiting_task_leaves_the_loop_free() -> None:
    asked, answer = threading.Event(), threading.Event()

    def slow(job: RunningJob, *step: Any) -> dict[str, bytes]:
        asked.set()
        answer.wait()
        return {"a": b"1"}

    async def both() -> int:
        task = asyncio.create_task(job(slow).step("a", number))
        await asyncio.to_thread(asked.wait)
        answer.set()
        return await task

    async def number() -> int:
        return 1

    assert asyncio.run(both()) == 1


async def afetch() -> int:
    return 1


def test_a_sync_function_on_the_event_loop_is_refused_with_a_way_that_works() -> None:
    async def main() -> None:
        running = job()
        with pytest.raises(ArgumentError, match=r"event loop; else: await asyncio.to_thread\(job.step, 'a', "):
            running.step("a", int)
        assert await asyncio.to_thread(running.step, "a", int, "7") == 7

    asyncio.run(main())


def test_an_async_function_outside_a_loop_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"job.step\('a'\) takes an async function in an async job only"):
        job().step("a", afetch)  # type: ignore[unused-coroutine]


def test_a_process_that_the_job_has_forked_has_no_steps() -> None:
    running = job(Store(b=b"1"))
    running.step("a", int)
    child = os.fork()
    if child == 0:
        try:
            running.step("b", int)
        except NotInJob:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


# -- jobs that run where they are sent


def released_once(ran: list[Any]) -> list[Any]:
    running = current_job()

    def work(name: str) -> int:
        ran.append(name)
        return len(ran)

    found = [running.step(name, work, name) for name in ("a", "b")]
    if running.attempt == 1:
        running.release()
    return found


def test_run_keeps_steps_for_that_run() -> None:
    app, ran = Qd(), list[str]()

    @app.job("twice")
    def twice(n: int) -> list[int]:
        def note(name: str) -> int:
            ran.append(name)
            return n

        return [current_job().step(name, note, name) for name in ("a", "b")]

    assert [twice.run(1), twice.run(2)] == [[1, 1], [2, 2]]
    assert ran == ["a", "b"] * 2


def test_inline_keeps_them_for_the_next_attempt() -> None:
    app, ran, ended = Qd(), list[str](), list[Any]()

    @app.job("once more", tries=2)
    def once_more() -> None:
        ended.append(released_once(ran))

    with app.inline():
        once_more.dispatch()
        once_more.dispatch()
    assert ran == ["a", "b"] * 2
    assert ended == [[1, 2], [3, 4]]


def test_an_async_job_runs_its_steps_where_it_is_sent() -> None:
    app, ran = Qd(), list[str]()

    async def note(name: str) -> str:
        ran.append(name)
        return name

    @app.job("later", tries=2)
    async def later() -> None:
        running = current_job()
        await asyncio.gather(running.step("a", note, "a"), running.step("b", note, "b"))
        if running.attempt == 1:
            running.release()

    with app.inline():
        later.dispatch()
    assert sorted(ran) == ["a", "b"]
