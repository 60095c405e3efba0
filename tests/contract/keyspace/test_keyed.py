"""Keyed jobs: replaced, moved and cancelled while they wait, even if another program has moved them to ready."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter

import pytest

from qd.drivers.redis.queue import RedisQueue
from qd.drivers.types import Outgoing, Released
from qd.errors import QdError
from qd.payload.format import key_of, read
from tests.contract.conftest import ONE
from tests.contract.keyspace.test_queue import drain, job

NAME = "shop.remind:order:42"
one_place = pytest.mark.parametrize("place", ONE, indirect=True)


def keyed(n: int, *, delay: float = 60.0, name: str = NAME, id: str = "") -> Outgoing:
    key = key_of(id or f"id{n}", name)
    return Outgoing("a", job(n, qd={"key": key}, id=id or f"id{n}"), delay, key=key)


def entries(seen) -> dict[bytes, bytes]:
    flat = seen.call("HGETALL", "a", "keyed")
    return dict(zip(flat[::2], flat[1::2], strict=True))


def all_due(seen) -> None:
    """All jobs are due, and a program without support for keys (a Laravel worker) moves them to ready."""
    for payload in seen.delayed("a"):
        seen.call("RPUSH", "a", "", payload)
        seen.call("RPUSH", "a", "notify", "1")
        seen.call("ZREM", "a", "delayed", payload)


# -- while it is not due


def test_a_new_job_replaces_the_waiting_one(queue, seen):
    assert queue.post([keyed(1), keyed(2, name="other"), keyed(3, delay=90.0)]) == [None, None, None]
    assert sorted(str(read(payload).id) for payload in seen.delayed("a")) == ["id2", "id3"]
    assert len(entries(seen)) == 2
    all_due(seen)
    assert set(drain(queue)) == {"id2", "id3"}
    assert entries(seen) == {}


def test_a_cancelled_job_is_gone(queue, seen):
    queue.post([keyed(1)])
    assert queue.cancel_keyed("a", NAME) is True
    assert queue.cancel_keyed("a", NAME) is False
    assert (seen.delayed("a"), entries(seen)) == ({}, {})


def test_a_moved_job_has_a_new_due_time(queue, seen):
    assert queue.keyed_due("a", NAME) is None
    assert queue.move_keyed("a", NAME, 5.0) is False
    queue.post([keyed(1, delay=60.0)])
    assert queue.move_keyed("a", NAME, 600.0) is True
    ((payload, score),) = seen.delayed("a").items()
    assert queue.keyed_due("a", NAME) == score
    assert 590 < score - time.time() < 610
    assert read(payload).id == "id1"
    assert queue.cancel_keyed("a", NAME) is True
    assert seen.delayed("a") == {}


def test_a_keyed_job_without_a_delay_is_ready_and_can_be_replaced(queue, seen):
    queue.post([keyed(1, delay=0.0), keyed(2, delay=0.0)])
    assert drain(queue) == ["id2"]
    assert entries(seen) == {}


# -- once it is ready


def test_a_ready_job_can_be_cancelled(queue, seen):
    queue.post([keyed(1)])
    queue.push("a", job(9))
    all_due(seen)
    assert queue.cancel_keyed("a", NAME) is True
    assert drain(queue) == ["id9"]
    assert queue.cancel_keyed("a", NAME) is False


def test_a_ready_job_can_be_moved_and_runs_once(queue, seen):
    queue.post([keyed(1)])
    all_due(seen)
    assert queue.move_keyed("a", NAME, 60.0) is True
    assert drain(queue) == []
    assert len(entries(seen)) == 1
    for _ in range(3):
        all_due(seen)
        assert queue.move_keyed("a", NAME, 60.0) is True
    all_due(seen)
    assert drain(queue) == ["id1"]
    assert (entries(seen), queue.keyed_due("a", NAME)) == ({}, None)


def test_a_ready_job_is_replaced(queue, seen):
    queue.post([keyed(1)])
    all_due(seen)
    queue.post([keyed(2)])
    assert drain(queue) == []
    all_due(seen)
    assert drain(queue) == ["id2"]


def test_a_thousand_replaced_jobs_do_not_block_the_queue(queue, seen):
    queue.post([keyed(n, delay=0.0) for n in range(1000)])
    queue.push("a", job(5000))
    assert [taken for _ in range(12) for taken in drain(queue)] == ["id999", "id5000"]


# -- once it is reserved


def test_a_reserved_keyed_job_cannot_be_cancelled_and_keeps_its_retries(queue, seen):
    queue.post([keyed(1, delay=0.0)])
    held = queue.turn(None, ["a"]).reserved
    assert held is not None
    assert queue.cancel_keyed("a", NAME) is False
    assert queue.move_keyed("a", NAME, 5.0) is False
    queue.post([keyed(2, delay=60.0)])  # a separate job that does not affect the running one
    assert queue.release(held, Released(held.member.replace(b',"rsv":"' + held.mark.encode() + b'"', b"")))
    assert drain(queue) == ["id1"]
    assert queue.cancel_keyed("a", NAME) is True


def test_a_keyed_job_of_a_dead_worker_runs_again(queue, seen, connect):
    """A job that was reserved once is no longer checked for cancellation."""
    queue.post([keyed(1, delay=0.0)])
    held = queue.turn(None, ["a"]).reserved
    assert held is not None
    seen.call("ZREM", "a", "reserved", held.member)
    seen.call("HDEL", "a", "owners", queue.owner)
    seen.call("RPUSH", "a", "", held.member)
    assert drain(connect(2)) == ["id1"]


def test_a_keyed_job_rewritten_by_another_program_is_recognized(queue, seen):
    """A Laravel worker released it: keys in cjson's order, one more attempt."""
    queue.post([keyed(1), keyed(2, name="other")])
    for payload in seen.delayed("a"):
        fields = json.loads(payload)
        fields["attempts"] += 1
        again = json.dumps(dict(sorted(fields.items(), reverse=True)), separators=(",", ":")).replace("/", "\\/")
        seen.call("RPUSH", "a", "", again)
        seen.call("ZREM", "a", "delayed", payload)
    assert queue.cancel_keyed("a", NAME) is True
    assert drain(queue) == ["id2"]


def test_a_key_in_the_arguments_is_ignored(queue, seen):
    """In all cases where qd parses the payload: a hook's key before the ID, a retried job, a job of another program."""
    key = {"key": key_of("id1", NAME)}
    looks_so = {"data": {"qd": key, 'x"qd': key, "]": [{"qd": key}]}}
    queue.push("a", job(1, **looks_so))
    queue.push("a", json.dumps(json.loads(job(2)) | looks_so | {"attempts": 2}, separators=(",", ":")).encode())
    queue.push("a", job(3, **looks_so, log={}).replace(b',"log":{}', b"").replace(b',"id"', b',"log":{},"id"'))
    queue.push("a", job(4, log={"qd": key}))
    tied = json.loads(job(5)) | {"attempts": 1, "qd": {"batch": "b"}} | looks_so
    queue.push("a", json.dumps(tied, separators=(",", ":")).encode())
    assert drain(queue) == ["id1", "id2", "id3", "id4", "id5"]


def test_many_keys_in_the_arguments_are_scanned_once(queue, seen):
    """Half a megabyte of them: with one scan for each, the server would block for an hour."""
    many = json.loads(job(1)) | {"attempts": 1, "data": [{"qd": {"a": "]}"}}] * 25_000}
    queue.push("a", json.dumps(many, separators=(",", ":")).encode())
    queue.push("a", job(2))
    assert drain(queue) == ["id1", "id2"]


def test_clear_removes_the_keys_of_deleted_jobs(queue, seen):
    queue.post([keyed(1), keyed(2, name="other", delay=0.0)])
    assert queue.clear("a") == 2
    assert entries(seen) == {}


# -- rejections


@pytest.mark.parametrize("spoilt", ["keyed", "delayed", "notify", ""])
def test_a_rejected_keyed_job_changes_nothing(queue, seen, spoilt):
    seen.call("SET", "a", spoilt, "x")
    with pytest.raises(QdError, match=r"WRONGTYPE|is a string and not a"):
        queue.post([keyed(1, delay=0.0 if spoilt == "" else 0.5)])
    seen.call("DEL", "a", spoilt)
    assert (seen.ready("a"), seen.delayed("a"), entries(seen)) == ([], {}, {})


# -- concurrency


@one_place
def test_concurrent_operations_on_keys_return_correct_answers(connect, seen):
    """Producers send, move and cancel under a few keys while workers run the jobs. For each key, the number of jobs that
    ran is the number sent minus those replaced or cancelled, and none of those ran."""
    names = [f"k{n}" for n in range(4)]
    sent: list[list[tuple[str, str]]] = [[] for _ in range(3)]
    cancels: Counter[str] = Counter()
    ran: list[str] = []
    over, lock = threading.Event(), threading.Lock()

    def produce(queue: RedisQueue, which: int) -> None:
        choice = random.Random(which)
        for n in range(300):
            name = choice.choice(names)
            match choice.randrange(4):
                case 0 | 1:
                    id = f"{which}x{n:03}".ljust(16, "0")
                    queue.post([keyed(n, name=name, id=id, delay=choice.choice([0.0, 0.001, 60.0]))])
                    sent[which].append((name, id))
                case 2:
                    queue.move_keyed("a", name, choice.choice([0.0, 0.001, 60.0]))
                case _:
                    if queue.cancel_keyed("a", name):
                        with lock:
                            cancels[name] += 1

    def work(queue: RedisQueue) -> None:
        done = None
        while True:
            last = over.is_set()
            turn = queue.turn(done, ["a"])
            done = turn.reserved
            if done is not None:
                with lock:
                    ran.append(str(read(done.member).id))
            elif last:
                return

    producers = [threading.Thread(target=produce, args=(connect(10 + which), which)) for which in range(3)]
    workers = [threading.Thread(target=work, args=(connect(slot),)) for slot in (1, 2)]
    for thread in producers + workers:
        thread.start()
    for thread in producers:
        thread.join()
    over.set()
    for thread in workers:
        thread.join()
    waiting = {name.decode(): entry for name, entry in entries(seen).items()}
    times = Counter(ran)
    assert set(times.values()) <= {1}, "one ran twice"
    for name in names:  # each remaining job waits once, in delayed, under its name
        if name in waiting:
            payload = waiting[name].split(b" ", 2)[2]
            assert payload in seen.delayed("a")
            assert str(read(payload).id) not in times
    assert len(seen.delayed("a")) == len(waiting)
    everything = [id for each in sent for _, id in each]
    assert set(ran) <= set(everything)
    assert sum(cancels.values()) + len(ran) + len(waiting) <= len(everything)
    queue = connect(20)
    for name in waiting:
        assert queue.cancel_keyed("a", name) is True
    assert (seen.delayed("a"), entries(seen)) == ({}, {})


# -- many


FILL = """
for n = tonumber(ARGV[1]), tonumber(ARGV[2]) do
  local name, issue = 'j:k' .. n, string.format('00000.id%d', n)
  local payload = '{"job":"j","qd":{"key":"' .. issue .. ' ' .. name .. '"},"id":"id' .. n .. '","attempts":0,"delay":null}'
  redis.call('ZADD', KEYS[1], 4000000000 + n, payload)
  redis.call('HSET', KEYS[2], name, issue .. ' ' .. (4000000000 + n) .. ' ' .. payload)
end
"""


def calls_of(seen, act) -> dict[str, int]:
    """The number of calls of each command during `act`."""
    seen.client.call("CONFIG", "RESETSTAT")
    act()
    lines = [line for line in seen.client.text("INFO", "commandstats").splitlines() if line.startswith("cmdstat_")]
    found = {line.split(":")[0].removeprefix("cmdstat_"): int(line.split("calls=")[1].split(",")[0]) for line in lines}
    return {name: count for name, count in found.items() if not name.startswith(("config", "info", "select"))}


@pytest.mark.slow
@one_place
def test_keyed_operations_take_one_call_of_few_commands_with_a_million_waiting(queue, seen):
    """One EVALSHA from the client; inside it a few commands, none of which scans the waiting jobs."""
    acts = {
        "due": lambda: queue.keyed_due("a", "j:k7"),
        "move": lambda: queue.move_keyed("a", "j:k7", 60.0),
        "again": lambda: queue.post([keyed(1, name="j:k8")]),
        "cancel": lambda: queue.cancel_keyed("a", "j:k7"),
    }
    seen.client.call("EVAL", FILL, 2, seen.key("a", "delayed"), seen.key("a", "keyed"), 1, 10)
    for act in acts.values():
        act()  # loads the scripts
    few = {}
    for million in (False, True):
        for at in range(0, 1_000_000, 10_000) if million else ():
            seen.client.call("EVAL", FILL, 2, seen.key("a", "delayed"), seen.key("a", "keyed"), at, at + 9_999)
        queue.post([keyed(7, name="j:k7")])
        few[million] = {name: calls_of(seen, act) for name, act in acts.items()}
    assert few[True] == few[False]
    assert all(calls["evalsha"] == 1 and sum(calls.values()) <= 7 for calls in few[True].values()), few[True]
    seen.client.call("UNLINK", seen.key("a", "delayed"), seen.key("a", "keyed"), seen.key("a", "notify"))
