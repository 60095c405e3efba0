"""A limited number of coroutines wait for a lock at once; the others follow in the order of their arrival."""

from __future__ import annotations

import asyncio
import gc

import pytest

from qd.locks.waiting import MOST, _limits, waiter_limit


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
