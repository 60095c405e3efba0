"""The keyspace on a database under concurrency and failures: other processes, alarms, forks, hung and lost servers."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from qd.drivers.database import connection
from qd.drivers.database.connection import DatabaseConnection
from qd.drivers.database.keyspace import DatabaseKeyspace
from qd.drivers.database.schema import check_writes, migrate
from qd.drivers.keyspace.base import Script
from qd.drivers.keyspace.queue import beat
from qd.drivers.types import BeatRequest
from qd.errors import ConnectionLost, ServerBusy, ServerRefused, Unreachable
from qd.process.shield import shield
from tests.contract.spaces import Stand
from tests.support.project import SOURCE
from tests.support.waiting import eventually

SERVERS = pytest.mark.parametrize("database", ["postgres", "mariadb"], indirect=True)
POSTGRES = pytest.mark.parametrize("database", ["postgres"], indirect=True)

# -- several processes

BEGIN = """
import json, sys
from qd.drivers.database.keyspace import DatabaseKeyspace
from qd.drivers.database.connection import DatabaseConnection as Link
from qd.drivers.keyspace.base import Script, script
from qd.store.base import KeyspaceStore
from qd.store.locks import Mutex
from qd.store.locks import Rate
url, me = sys.argv[1], sys.argv[2]
space = DatabaseKeyspace(Link(url, timeout=60, connect_timeout=60))
store = KeyspaceStore(space)
space.call("PING")
print("ready", flush=True)
sys.stdin.readline()
"""


def run_concurrently(url: str, code: str, number: int = 2) -> list[str]:
    """The outputs of several processes that start at the same time."""
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-c", BEGIN + code, url]
    pipes: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    started: list[Any] = [subprocess.Popen([*command, str(index)], env=env, **pipes) for index in range(number)]
    try:
        for each in started:
            assert each.stdout.readline() == "ready\n", each.communicate(timeout=20)
        for each in started:
            each.stdin.write("go\n")
            each.stdin.flush()
        ends = [each.communicate(timeout=110) for each in started]
    finally:  # a remaining one would write into the next test
        for each in started:
            each.kill()
            each.communicate()
    assert [each.returncode for each in started] == [0] * number, ends
    return [out.strip() for out, _ in ends]


def url_of(stand: Stand, request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(f"{stand.name}_space")
    return found


def space_of(stand: Stand) -> DatabaseKeyspace:
    found = stand.open()
    assert isinstance(found, DatabaseKeyspace)
    return found


@pytest.mark.leaves("qd:mutex:{x}*")
def test_a_mutex_is_held_by_one_process_at_a_time(database: Stand, request: pytest.FixtureRequest) -> None:
    space = space_of(database)
    space.call("SET", "n", 0)
    code = """
mutex = Mutex("x", me)
for _ in range(8):
    while not mutex.take(store, 60, stay=True).token:
        mutex.wait(store, 0.5)
    n = int(space.call("GET", "n"))
    space.call("SET", "n", n + 1)
    assert mutex.give(store)
"""
    run_concurrently(url_of(database, request), code)
    assert space.call("GET", "n") == b"16"
    space.call("DEL", "n")


def test_steps_are_isolated_from_each_other(database: Stand, request: pytest.FixtureRequest) -> None:
    code = """
step = Script("add", "redis.call('SET', KEYS[1], (tonumber(redis.call('GET', KEYS[1])) or 0) + 1)")
for _ in range(60):
    step.call(space, ["n"])
"""
    space = space_of(database)
    space.call("SET", "n", 0)
    run_concurrently(url_of(database, request), code)
    assert space.call("GET", "n") == b"120"
    space.call("DEL", "n")


@SERVERS
def test_each_job_of_a_batch_is_counted_once(database: Stand, request: pytest.FixtureRequest) -> None:
    """Two processes ack each job; the callback is sent once."""
    space = space_of(database)
    batch = ["qd:batch:1", "qd:batch:1:pending", "qd:batch:1:failed"]
    for number in range(20):
        space.call("ZADD", "held", 4102444800, f"m{number}")
        space.call("SADD", batch[1], f"u{number}")
    text = 'x"createdAt":1795311328'
    fields: list[str | int] = ["then", text, "then:queue", "q", "then:delay", 0, "then:moments", text.index("1795")]
    space.call("HSET", batch[0], "total", 20, *fields)
    code = f"""
acked = 0
for number in range(20):
    effects = ["count", f"u{{number}}", "done", "", ""]
    acked += script("ack").call(space, ["held", "owners", *{batch!r}], me, f"m{{number}}", *effects)
print(acked)
"""
    acked = run_concurrently(url_of(database, request), code)
    assert sum(map(int, acked)) == 20
    assert space.call_many([("LLEN", "queues:q"), ("SCARD", batch[1]), ("ZCARD", "held")]) == [1, 0, 0]
    space.call("DEL", "queues:q", "queues:q:notify", *batch)


@SERVERS
@pytest.mark.leaves("qd:rate:{x}:*")
def test_a_rate_limits_the_starts_of_all_processes(database: Stand, request: pytest.FixtureRequest) -> None:
    code = """
rate = Rate("x", 5, 3600)
print(sum(not rate.start(store, f"{me}.{n}", f"{me}.{n}").wait for n in range(8)))
"""
    assert sum(map(int, run_concurrently(url_of(database, request), code, 3))) == 5


@SERVERS
def test_steps_in_a_deadlock_are_each_executed_once(database: Stand, request: pytest.FixtureRequest) -> None:
    """Each step touches undeclared names, in opposite order. PostgreSQL needs a second to detect a deadlock."""
    space = space_of(database)
    code = """
step = Script("crossed", "for i = 1, 2 do redis.call('HINCRBY', ARGV[i], 'n', 1) end")
names = ["a", "b"] if me == "0" else ["b", "a"]
for _ in range(8):
    step.call(space, [], *names)
"""
    run_concurrently(url_of(database, request), code)
    assert [space.call("HGET", name, "n") for name in "ab"] == [b"16", b"16"]
    space.call("DEL", "a", "b")


# -- a step is all or nothing


def test_a_step_that_fails_leaves_nothing(database: Stand) -> None:
    space = space_of(database)
    step = Script("half", "redis.call('SET', KEYS[1], 'x') redis.call('HGET', KEYS[1], 'f')")
    with pytest.raises(ServerRefused, match="WRONGTYPE"):
        step.call(space, ["a"])
    assert space.call("EXISTS", "a") == 0


def test_a_pcall_continues_after_an_error_reply(database: Stand) -> None:
    space = space_of(database)
    step = Script("goes_on", "local e = redis.pcall('HGET', KEYS[1], 'f').err redis.call('SET', KEYS[2], e) return 1")
    space.call("SET", "a", "x")
    assert step.call(space, ["a", "b"]) == 1
    assert space.call("GET", "b").startswith(b"WRONGTYPE")
    space.call("DEL", "a", "b")


def test_an_unknown_command_is_rejected_by_name(database: Stand) -> None:
    space = space_of(database)
    with pytest.raises(ServerRefused, match="'FLUSHALL'"):
        space.call("FLUSHALL")
    with pytest.raises(ServerRefused, match="'EVAL'"):
        Script("eval", "return redis.call('EVAL', 'return 1', 0)").call(space, [])


def test_a_step_inside_a_transaction_is_part_of_it(database: Stand) -> None:
    space, other = space_of(database), space_of(database)
    half = Script("half", "redis.call('SET', 'b', 'x') redis.call('HGET', 'b', 'f')")

    def changed() -> None:
        space.call("HSET", "a", "f", "v")
        refused(lambda: half.call(space, []))
        assert space.call("GET", "b") is None
        assert space.call("HGET", "a", "f") == b"v"
        raise ServerRefused("enough")

    with pytest.raises(ServerRefused, match="enough"), space.connection.transaction():
        changed()
    assert other.call("EXISTS", "a") == 0


def refused(act: Callable[[], object]) -> None:
    with pytest.raises(ServerRefused):
        act()


def test_large_values_and_arbitrary_bytes_are_stored_unchanged(database: Stand) -> None:
    space = space_of(database)
    every = bytes(range(256))
    large = every * (1 << 13)  # 2 MB
    space.call("HSET", every, every * 2, large, b"", b"")
    assert space.call("HGET", every, every * 2) == large
    assert space.call("HGET", every, b"") == b""
    assert space.call("HSTRLEN", every, every * 2) == len(large)
    assert sorted(space.call("HKEYS", every)) == sorted([b"", every * 2])
    long = b"n" * 500
    space.call("SET", long + b"1", "1")
    space.call("SET", long + b"2", "2")
    assert space.call("MGET", long + b"1", long + b"2") == [b"1", b"2"]
    assert space.call("DEL", every, long + b"1", long + b"2") == 3


def test_expired_values_are_gone_and_their_rows_are_swept(database: Stand) -> None:
    space = space_of(database)
    for number in range(5):
        space.call("HSET", f"h{number}", "f", "v")
        space.call("PEXPIRE", f"h{number}", 50)
    space.call("SET", "stays", "x", "PX", 600_000)
    eventually(lambda: not any(space.call("EXISTS", f"h{number}") for number in range(5)), 20)
    assert space.call("HGETALL", "h0") == []
    assert space.call("HSET", "h0", "g", "w") == 1  # nothing of the old value comes back
    assert space.call("HGETALL", "h0") == [b"g", b"w"]
    assert space.sweep() == 4
    assert space.sweep() == 0
    assert space.connection.query("SELECT count(*) FROM qd_names").scalar() == 2
    assert space.connection.query("SELECT count(*) FROM qd_items").scalar() == 1
    space.call("DEL", "h0", "stays")


def test_a_keeper_sweeps_its_control_connection(database: Stand) -> None:
    space = space_of(database)
    space.call("HSET", "h", "f", "v")
    space.call("PEXPIRE", "h", 10)
    eventually(lambda: not space.call("EXISTS", "h"), 20)
    beat(space, "", (), BeatRequest("T", "", 30.0, False, 0.0, ()))
    assert space.connection.query("SELECT count(*) FROM qd_items").scalar() == 0


# -- waiting


@POSTGRES
def test_a_waiter_is_notified_of_a_token(database: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "NOTIFIED", 60.0)
    waiter, pusher = space_of(database), space_of(database)
    pusher.call("PING")
    found = list[bool]()
    thread = threading.Thread(target=lambda: found.append(waiter.pop("wake", 50)))
    thread.start()
    eventually(lambda: "qd_names" in last_queries(pusher), 20, what="a waiter that has polled once")
    pusher.call("RPUSH", "wake", "1")
    thread.join(40)
    assert found == [True]


def last_queries(space: DatabaseKeyspace) -> str:
    """The last queries of the other connections."""
    return str(space.connection.query("SELECT query FROM pg_stat_activity WHERE pid <> pg_backend_pid()").all())


def test_a_wait_ends_by_a_waiting_token(database: Stand) -> None:
    space = space_of(database)
    assert not space.pop("wake", 0.05)
    space.call("RPUSH", "wake", "1")
    assert space.pop("wake", 60)
    assert space.call("EXISTS", "wake") == 0


# -- alarms and forks


class Rang(BaseException):
    pass


def test_an_alarm_does_not_interrupt_a_call_halfway(database: Stand) -> None:
    """Like a worker's alarm: raised immediately, or when the shield is lowered."""
    space, step, rang = space_of(database), Script("both", "redis.call('HSET', KEYS[1], 'a', ARGV[1], 'b', ARGV[1])"), 0

    def raised() -> None:
        raise Rang

    def alarm(*_: object) -> None:
        if shield.depth:
            shield.overdue = raised
        else:
            raised()

    before = signal.signal(signal.SIGALRM, alarm)
    try:
        for number in range(60):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0001 + number / 10_000)
                step.call(space, ["h"], number)
                assert space.call("HMGET", "h", "a", "b") == [b"%d" % number] * 2
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Rang:
                rang += 1
            one, other = space.call("HMGET", "h", "a", "b")
            assert one == other
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert rang
    space.call("DEL", "h")


def test_a_fork_opens_its_own_connection(database: Stand) -> None:
    space = space_of(database)
    space.call("SET", "a", "parent")
    child = os.fork()
    if not child:
        try:
            right = space.call("GET", "a") == b"parent"
            space.call("SET", "b", "child")
            os._exit(0 if right else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert space.call("MGET", "a", "b") == [b"parent", b"child"]
    space.call("DEL", "a", "b")


# -- failures


@POSTGRES
def test_a_closed_connection_is_reopened(database: Stand) -> None:
    space, other = space_of(database), space_of(database)
    other.call("PING")

    def close_it() -> None:
        pid = space.connection.query("SELECT pg_backend_pid()").scalar()
        other.connection.query(f"SELECT pg_terminate_backend({pid})")
        there = f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid}"
        eventually(lambda: other.connection.query(there).first() is None, 20, what="the end of its server process")

    close_it()
    eventually(lambda: works(space), 20)  # one call may raise that the connection was lost
    close_it()
    space.connection._checked_at -= 2  # last checked a while ago: detected before anything is sent
    assert space.call("GET", "nothing") is None


def works(space: DatabaseKeyspace) -> bool:
    try:
        return space.call("GET", "nothing") is None
    except ConnectionLost:
        return False


@POSTGRES
def test_a_call_to_a_hung_server_times_out(database: Stand) -> None:
    space, other = space_of(database), space_of(database)
    pid = space.connection.query("SELECT pg_backend_pid()").scalar_one()
    os.kill(pid, signal.SIGSTOP)
    try:
        with space.within(0.5), pytest.raises(ConnectionLost, match="no answer in time"):
            space.call("GET", "a")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert other.call("GET", "a") is None


@SERVERS
def test_a_wait_for_locked_names_times_out(database: Stand) -> None:
    space, other = space_of(database), space_of(database)
    with other.connection.transaction():
        other.call("SET", "a", "x")
        space.connection.close()
        space.connection.patience(5, 1.0)
        with pytest.raises(ConnectionLost):
            space.call("SET", "a", "y")
    space.connection.patience(20, 20)
    assert other.call("GET", "a") == b"x"
    assert space.call("DEL", "a") == 1


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_file_locked_by_another_writer_is_busy(database: Stand, request: pytest.FixtureRequest) -> None:
    space = space_of(database)
    assert space.call("GET", "a") is None
    path = url_of(database, request).removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        with space.within(0.1), pytest.raises(ServerBusy, match="locked"):
            space.call("SET", "a", "x")
        assert space.call("GET", "a") is None  # reads still work
        writer.execute("ROLLBACK")
    assert space.call("SET", "a", "x") == b"OK"
    space.call("DEL", "a")


def test_a_try_to_write_leaves_nothing(database: Stand) -> None:
    space = cast(DatabaseKeyspace, database.open())
    for _ in range(2):
        check_writes(space.connection)
        assert list(space.connection.query("SELECT name FROM qd_names")) == []


def test_a_replaced_file_is_reopened(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(connection, "CHECK", 0.0)
    old, new = (
        DatabaseKeyspace(DatabaseConnection(f"sqlite:///{tmp_path}/{name}")) for name in ("jobs.sqlite", "new.sqlite")
    )
    for space, value in ((old, "old"), (new, "new")):
        migrate(space.connection, "jobs")
        space.call("SET", "a", value)
    new.close()
    assert old.call("GET", "a") == b"old"
    (tmp_path / "new.sqlite").rename(tmp_path / "jobs.sqlite")
    for left in tmp_path.glob("jobs.sqlite-*"):
        left.unlink()
    assert old.call("GET", "a") == b"new"
    (tmp_path / "jobs.sqlite").unlink()
    with pytest.raises(ServerBusy, match="run `qd migrate`"):
        old.call("SET", "a", "x")
    old.close()


@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_the_error_for_an_unreachable_server_hides_the_password(kind: str) -> None:
    link = DatabaseConnection(f"{kind}://shop:s3cretw0rd@127.0.0.1:9/db", connect_timeout=2, timeout=2)
    with pytest.raises(Unreachable) as error:
        DatabaseKeyspace(link).call("GET", "a")
    assert "s3cretw0rd" not in str(error.value)
    assert "127.0.0.1:9/db" in str(error.value)
    assert "\n" not in str(error.value)


def test_the_error_for_missing_tables_names_qd_migrate(tmp_path: Any) -> None:
    space = DatabaseKeyspace(DatabaseConnection(f"sqlite:///{tmp_path}/empty.sqlite"))
    with pytest.raises(ServerBusy, match="run `qd migrate`"):
        space.call("GET", "a")
    space.close()


def test_within_sets_the_timeout_of_the_calls_inside_it(database: Stand) -> None:
    space = space_of(database)
    before = space.connection.timeout
    with space.within(25):
        assert space.connection.timeout == space.connection.connect_timeout == 25
        assert space.call("GET", "a") is None
    assert space.connection.timeout == before
    progress: list[float] = []
    space.on_progress(progress.append)
    space.call("GET", "a")
    assert progress
