"""A procedure with pauses, written once for threads and for the tasks of an event loop.

It is a generator and yields each Pause: a call that blocks, and the same as a coroutine. `block_on` runs it with the former,
`wait_for` with the latter. The result of a pause is returned by its yield, an error is raised there. Only apps that use
asyncio load it.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

if TYPE_CHECKING:
    from asyncio import Future

T = TypeVar("T")


class Pause(NamedTuple):
    block: Callable[[], Any]
    wait: Callable[[], Awaitable[Any]]


Pausing = Generator[Pause, Any, T]


def block_on(steps: Pausing[T]) -> T:
    async def block(pause: Pause) -> Any:
        return pause.block()

    try:
        wait_for(steps, block).send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise AssertionError("a pause has not blocked")


async def wait_for(steps: Pausing[T], until_over: Callable[[Pause], Awaitable[Any]] = lambda pause: pause.wait()) -> T:
    answer: Any = None
    error: BaseException | None = None
    try:
        while True:
            try:
                pause = steps.send(answer) if error is None else steps.throw(error)
                answer = error = None
                answer = await until_over(pause)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            except BaseException as raised:  # of the pause; or an alarm anywhere in this loop
                if cast(Any, steps).gi_frame is None:  # of the procedure, which has ended
                    raise
                error = raised
    finally:
        error = None  # it refers to this frame


async def wait_to_end(steps: Pausing[T]) -> T:
    """As wait_for; the steps go on if the task is cancelled."""
    import asyncio

    return await settled(asyncio.get_running_loop().create_task(wait_for(steps)))


async def settled(future: Future[T]) -> T:
    """Its result. If the task is cancelled, wait until the call has ended, then raise CancelledError."""
    import asyncio

    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([future])
        raise


def sleep(seconds: float) -> Pause:
    return Pause(lambda: time.sleep(seconds), lambda: import_module("asyncio").sleep(seconds))


def threaded(call: Callable[[], Any]) -> Pause:
    """A call that a task makes in a thread."""
    return Pause(call, lambda: import_module("asyncio").to_thread(call))
