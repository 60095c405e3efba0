"""Turns of several jobs on a jobs table, what the keeper does with them, and turns that arrive late."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from qd.drivers.base import with_lanes
from qd.drivers.database.queue import DatabaseQueue
from qd.drivers.types import BeatRequest, LaneAnswer, LaneTurn, Outgoing, Released, Reserved
from qd.errors import ConnectionLost
from qd.payload.format import read
from qd.payload.reservation import saving, split_mark, taken_alone, unstarted
from tests.contract.database.test_queue import (  # noqa: F401  fixtures
    SERVERS,
    TOKEN,
    WAITS,
    Connect,
    Table,
    connect,
    database,
    from_php,
    job,
    pop,
    queue,
    table,
    url,
)
from tests.support.waiting import eventually

pytestmark = pytest.mark.xdist_group("databases")

LANES = tuple(range(1, 17))
MANY = 400  # ready jobs of which a turn may take more than LANES


def turn(queue: DatabaseQueue, queues: tuple[str, ...] = ("a",), lanes: tuple[int, ...] = LANES, **more: Any) -> Any:
    return queue.turn_lanes(LaneTurn(queues, lanes=lanes, **more))


def ids(held: Any) -> list[str | None]:
    return [read(each.member).id for each in held]


def fill(queue: DatabaseQueue, count: int = MANY, start: int = 0) -> None:
    queue.push_many([("a", job(n), None) for n in range(start, start + count)])


def many(queue: DatabaseQueue, lanes: tuple[int, ...] = LANES) -> tuple[Reserved, ...]:
    """The jobs of the first turn that fills all lanes: the number of jobs doubles from turn to turn."""
    done: tuple[Reserved, ...] = ()
    while len((reply := turn(queue, lanes=lanes, done=done)).jobs) < len(lanes):
        assert reply.jobs
        done = reply.jobs
    jobs: tuple[Reserved, ...] = reply.jobs
    return jobs


def test_a_turn_reserves_several_jobs_in_order_and_the_next_one_acks_them(queue, table):
    fill(queue)
    done, seen, most = (), [], 0
    while (reply := turn(queue, done=done)).jobs:
        assert reply.lost == ()
        most, done = max(most, len(reply.jobs)), reply.jobs
        seen += ids(done)
    assert seen == [f"id{n}" for n in range(MANY)]
    assert most == len(LANES)
    assert (table.rows(), table.rows(table="qd_reserved")) == ([], [])


def test_each_job_of_a_turn_has_its_own_lane_turn_and_owner(queue, table):
    fill(queue)
    jobs, first = many(queue), queue.turns - len(LANES) + 1
    marks = [split_mark(each.mark) for each in jobs]
    assert [(mark.slot, mark.lane, mark.turn) for mark in marks] == [(1, n, first + n - 1) for n in LANES]
    rows = {row.mark: row for row in table.rows(table="qd_reserved")}
    assert {row.owner for row in rows.values()} == {f"{TOKEN}/{1 + 256 * lane}" for lane in LANES}
    assert {mark.base for mark in marks} == set(rows)
    reserved = [row for row in table.rows() if row.reserved_at is not None]
    assert [row.payload.encode() for row in reserved] == [job(n) for n in range(MANY - len(table.rows()), MANY)][:16]
    assert {row.attempts for row in reserved} == {1}
    assert read(jobs[3].member).attempts == 1
