"""An alarm at every line of the code that takes, waits for and releases a lock leaves no holder and no waiter behind; how
many coroutines wait at once.

The connection stays usable. The alarm works like the worker's: a shield defers it.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import qd
from qd import Qd
from qd.errors import JobTimeout
from qd.locks.lock import MOST, _limits, waiter_limit
from qd.process.shield import shield
from tests.support.redis import Client
from tests.support.servers.redis import Server

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.leaves("qd:mutex:{*}:fence", "qd:mutex:{*}:wake:*")]
HOME = str(Path(qd.__file__).parent) + os.sep
ROOMS = (
    "locks/",
    "store/locks",
    "store/base",
    "drivers/redis/connection",
    "drivers/keyspace/base",
    "process/shield",
)
PLACES = tuple(HOME + room for room in ROOMS)
# Nothing can be guarded before its first line has run: there the ttl frees the lock.
BARE = ("__exit__", "uninterrupted")


class Alarm:
    """Fires once, at line number `at` of qd's code."""

    def __init__(self, at: int) -> None:
        self.at, self.lines, self.where, self.name = at, 0, "", ""

    def run(self, body: Callable[[], object]) -> bool:
        """Returns whether it fired. Its exception is swallowed."""
        sys.settrace(self._call)
        try:
            body()
        except JobTimeout:
            pass
        finally:
            sys.settrace(None)
            shield.overdue = None
        return bool(self.where)

    def _call(self, frame: FrameType, event: str, about: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(PLACES) else None

    def _line(self, frame: FrameType, event: str, about: Any) -> Any:
        if event == "line" and not self.where:
            self.lines += 1
            if self.lines == self.at:
                self._ring(frame)
        return self._line

    def _ring(self, frame: FrameType) -> None:
        self.where = f"{frame.f_code.co_filename.removeprefix(HOME)}:{frame.f_lineno}"
        self.name = frame.f_code.co_name
        if shield.depth:
            shield.overdue = self._raise
        else:
            self._raise()

    def _raise(self) -> None:
        raise JobTimeout(self.where)


@pytest.mark.parametrize("renew", [False, True])
def test_an_alarm_at_any_line_leaves_no_lock_behind(server: Server, redis: Client, renew: bool):
    app = Qd(server.url)

    def body() -> None:
        with app.lock("report", ttl=30, renew=renew):
            pass

    at, left = 1, list[str]()
    while (alarm := Alarm(at)).run(body):
        assert shield.depth == 0, alarm.where
        if redis.call("DEL", "qd:mutex:{report}") and alarm.name not in BARE:
            left.append(alarm.where)
        lock = app.lock("report", ttl=30)
        assert lock.acquire(blocking=False), alarm.where
        assert lock.owner().pid == os.getpid(), alarm.where  # type: ignore[union-attr]
        lock.release()
        at += 1
    assert at > 200
    assert left == []
    app.connections.close_all()


def test_an_alarm_at_any_line_of_a_wait_leaves_no_waiter_behind(server: Server, redis: Client):
    """At every eleventh line only, because waits take time."""
    app = Qd(server.url)
    holder = app.lock("report", ttl=600)
    assert holder.acquire()
    whole = Alarm(sys.maxsize)
    whole.run(lambda: app.lock("report", ttl=30).acquire(timeout=0.4))
    left, rung = list[str](), 0
    for at in range(1, whole.lines, 11):
        alarm = Alarm(at)
        rung += alarm.run(
            lambda: app.lock("report", ttl=30).acquire(timeout=0.03)
        )  # fewer after a pause of this process
        assert shield.depth == 0, alarm.where
        if redis.call("ZCARD", "qd:mutex:{report}:line"):
            left.append(alarm.where)
        assert holder.owner().pid == os.getpid(), alarm.where  # type: ignore[union-attr]
    assert whole.lines > 200
    assert rung > 200 / 11
    assert left == []
    holder.release()
    app.connections.close_all()


def test_a_limited_number_of_coroutines_wait_and_the_others_follow_in_order():
    async def main() -> None:
        door, entered = waiter_limit("report"), list[int]()
        assert waiter_limit("report") is door is not waiter_limit("other")

        async def come(number: int) -> None:
            assert await door.enter(None)
            entered.append(number)

        tasks = [asyncio.create_task(come(number)) for number in range(MOST + 4)]
        while len(entered) < MOST:
            await asyncio.sleep(0)
        assert not await door.enter(0.001)
        tasks[MOST].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[MOST]
        tasks[MOST + 1].cancel()
        door.room.release()  # also wakes one that is cancelled
        while len(entered) < MOST + 1:
            await asyncio.sleep(0)
        assert entered[MOST:] == [MOST + 2]
        assert door.room.locked()
        for _ in range(MOST + 1):
            door.room.release()
        await tasks[-1]
        assert (door.room._value, entered[-1]) == (MOST, MOST + 3)

    asyncio.run(main())
    gc.collect()
    assert len(_limits) == 0
