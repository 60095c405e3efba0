"""The connections of event loops: each loop has its own, and its tasks share them.

They are closed with their loop. asyncio.run() and its peers end suspended generators before they close the loop, and one of
these closes the connections. Those of a loop that was closed without that are dropped when the next loop begins. A process
that was forked leaves the connections of its parent alone.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from qd.config.settings import Settings
    from qd.drivers.redis.aio import AsyncQueue

T = TypeVar("T")
Open = Callable[["Settings", str], "AsyncQueue | None"]


class Once(Generic[T]):
    """Work that the tasks of a loop wait for together. One that is cancelled does not cancel the work of the others."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._work = work
        self._task: asyncio.Task[T] | None = None

    async def __call__(self) -> T:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work())
            self._task.add_done_callback(lambda task: task.cancelled() or task.exception())  # perhaps nobody waits now
        return await asyncio.shield(self._task)


class LoopConnections:
    """The connections of one loop of one process, for one set of settings. None: that connection needs threads."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.settings: Settings | None = None
        self.queues: dict[str | None, AsyncQueue | None] = {}
        self.opening: dict[str | None, Once[None]] = {}
        self.end: AsyncGenerator[None] | None = None

    async def until_end(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            self.close()
            await asyncio.sleep(0)  # the loop closes the sockets

    def close(self) -> None:
        for queue in filter(None, self.queues.values()):
            queue.close()


class Loops:
    """open: makes a connection, in a thread; it connects on first use."""

    def __init__(self, settings: Callable[[], Settings], open: Open) -> None:
        self._settings, self._open = settings, open
        self._of: dict[asyncio.AbstractEventLoop, LoopConnections] = {}
        # From a parent process: not even the garbage collector may close them.
        self._inherited = list[LoopConnections]()
        self._lock = threading.Lock()

    async def get(self, name: str | None) -> AsyncQueue | None:
        """That of the running loop. Raises ConfigError."""
        loop = asyncio.get_running_loop()
        own = self._of.get(loop)
        if own is None or own.pid != os.getpid() or (own.settings and own.settings is not self._settings()):
            own = self._begin(loop)
        if name not in own.queues:
            await own.opening.setdefault(name, Once(lambda: self._opened(own, name)))()
        return own.queues[name]

    def _begin(self, loop: asyncio.AbstractEventLoop) -> LoopConnections:
        with self._lock:
            for other, before in list(self._of.items()):
                if before.pid != os.getpid():
                    self._inherited.append(self._of.pop(other))
                elif other is loop or other.is_closed():
                    self._of.pop(other).close()
            own = self._of[loop] = LoopConnections()
        return own

    async def _opened(self, own: LoopConnections, name: str | None) -> None:
        """Settings are read, modules imported and an embedded server is started in a thread."""
        if own.end is None:
            own.end = own.until_end()
            await anext(own.end)
        own.settings = settings = await asyncio.to_thread(self._settings)
        found = settings.connection(name).name
        if found not in own.queues:
            own.queues[found] = await asyncio.to_thread(self._open, settings, found)
        own.queues[name] = own.queues[found]

    def close(self, here: bool = False) -> None:
        """Close the connections of every loop of this process, each in its thread. here: of the running loop only."""
        running = asyncio._get_running_loop()
        with self._lock:
            found = [(loop, own) for loop, own in self._of.items() if own.pid == os.getpid()]
        for loop, own in found:
            if loop is running or (loop.is_closed() and not here):
                own.close()
            elif not here:
                with suppress(RuntimeError):  # closed meanwhile
                    loop.call_soon_threadsafe(own.close)
