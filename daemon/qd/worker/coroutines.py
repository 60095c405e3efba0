"""Async jobs: one event loop a worker, made when the first of them runs. An alarm cancels the task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qd.worker.alarm import Alarm

if TYPE_CHECKING:
    import asyncio


class Coroutines:
    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, coroutine: Any, alarm: Alarm) -> object:
        """To its end, or to its cancellation by the alarm. Tasks that the job left running are cancelled too."""
        import asyncio  # only who has async jobs pays for it

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        loop = self._loop
        task = loop.create_task(coroutine)
        alarm.cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        try:
            return loop.run_until_complete(task)
        except asyncio.CancelledError as cancelled:
            if alarm.ended_by is not None:
                raise alarm.ended_by.with_traceback(cancelled.__traceback__) from None  # where it stood
            raise RuntimeError("the job cancelled itself") from None
        finally:
            alarm.cancel = None
            left = asyncio.all_tasks(loop)
            for other in left:
                other.cancel()
            if left:
                loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))

    def close(self) -> None:
        if self._loop is not None:
            self._loop.close()
            self._loop = None
