"""Calls that block, for coroutines: in a thread, and never left behind half-way by a task that is cancelled.

Who awaits has loaded asyncio; who does not need not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


def shared(body: Callable[[], T]) -> asyncio.Future[T]:
    """A short call, in one of the threads that all share."""
    import asyncio

    return asyncio.get_running_loop().run_in_executor(None, body)


def own_thread(body: Callable[[], T]) -> asyncio.Future[T]:
    """A call that may last long, in a thread of its own: those that all share stay free for who gives a lock back."""
    import asyncio
    from concurrent.futures import Future

    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(body())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="qd-lock-wait", daemon=True).start()
    return asyncio.wrap_future(future)


async def settled(future: asyncio.Future[T], cancel: Callable[[], object] = lambda: None) -> T:
    """Its result. Cancelled meanwhile: `cancel` is called, and the end of the call waited for still, before that is
    raised."""
    import asyncio

    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        if not future.done():
            cancel()
        while not future.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([future])
        raise


async def aside(body: Callable[[], T]) -> T:
    """What a short call returns, whose end is waited for in any case."""
    return await settled(shared(body))
