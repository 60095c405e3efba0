"""A procedure with pauses does the same in a thread and in a task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from qd.drivers.pausing import Pause, Pausing, block_on, sleep, threaded, wait_for

RUN: dict[str, Callable[[Pausing[Any]], Any]] = {
    "in a thread": block_on,
    "in a task": lambda steps: asyncio.run(wait_for(steps)),
}


def gives(value: object) -> Pause:
    async def wait() -> object:
        return value

    return Pause(lambda: value, wait)


def fails(error: BaseException) -> Pause:
    def block() -> None:
        raise error

    async def wait() -> None:
        raise error

    return Pause(block, wait)


@pytest.fixture(params=RUN)
def run(request: pytest.FixtureRequest) -> Callable[[Pausing[Any]], Any]:
    return RUN[request.param]


def test_the_result_of_a_pause_is_returned_by_its_yield(run: Callable[[Pausing[Any]], Any]) -> None:
    def steps() -> Pausing[int]:
        yield sleep(0.001)
        return (yield gives(2)) + (yield threaded(lambda: 3))  # type: ignore[no-any-return]

    assert run(steps()) == 5


def test_an_error_is_raised_at_the_yield_and_may_be_followed_by_more_pauses(run: Callable[[Pausing[Any]], Any]) -> None:
    done = list[object]()

    def steps() -> Pausing[None]:
        try:
            yield fails(KeyError("here"))
        except KeyError as error:
            done.append(error.args)
        try:
            yield fails(ValueError("there"))
        finally:
            done.append((yield gives("cleaned up")))

    with pytest.raises(ValueError, match="there"):
        run(steps())
    assert done == [("here",), "cleaned up"]


def test_an_error_of_the_procedure_is_raised(run: Callable[[Pausing[Any]], Any]) -> None:
    def steps() -> Pausing[None]:
        yield gives(1)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run(steps())


def test_a_cancelled_task_runs_the_pauses_of_its_cleanup() -> None:
    done = list[object]()

    def steps() -> Pausing[None]:
        try:
            yield sleep(60)
        except BaseException:
            done.append((yield gives("left")))
            raise

    async def main() -> None:
        task = asyncio.create_task(wait_for(steps()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert done == ["left"]
