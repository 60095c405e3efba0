"""Queues in Laravel's jobs table: the content of its rows, failures that only a database has, and restricted users."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest
import sqlalchemy as sql
from sqlalchemy.orm import Session

from qd import Qd
from qd.config.settings import ConnectionSettings
from qd.contrib.sqlalchemy import install
from qd.drivers.base import ClientIdentity
from qd.drivers.database import connection as listening
from qd.drivers.database.connection import DatabaseConnection
from qd.drivers.database.joined import inside
from qd.drivers.database.queue import DatabaseQueue, open_space, start_warnings
from qd.drivers.database.schema import migrate
from qd.drivers.types import BeatRequest, Outgoing, Released, Reserved
from qd.drivers.urls import check, with_hosts_as_options
from qd.errors import ConfigError, ConnectionLost, ServerBusy, ServerRefused
from qd.payload.format import read
from qd.payload.reservation import answered, original, saving
from qd.store.failed_jobs_table import DatabaseError, FailedJobs
from tests.support.payloads import push_many
from tests.support.servers.mariadb import MariaDb
from tests.support.servers.postgres import NAME, Postgres
from tests.support.waiting import eventually

pytestmark = pytest.mark.xdist_group("databases")


T = TypeVar("T")
TOKEN = "Tok3nTok3n"
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "drivers" / "database.md"
KINDS = ("sqlite", "postgres", "mariadb")
Connect = Callable[..., DatabaseQueue]


@pytest.fixture(scope="module", params=KINDS)
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The url of a database with its tables."""
    if request.param == "sqlite":
        url, drop = f"sqlite:///{tmp_path_factory.mktemp('database') / 'jobs.sqlite'}", lambda _: None
    else:
        server = request.getfixturevalue(request.param)
        url, drop = server.fresh_database(), server.drop
    link = DatabaseConnection(url)
    migrate(link, "jobs")
    link.close()
    yield url
    drop(url)


@pytest.fixture
def url(database: str) -> str:
    """The url of the database, with empty tables."""
    link = DatabaseConnection(database)
    for each in ("jobs", "qd_reserved", "qd_names", "qd_items"):
        link.query(f"DELETE FROM {each}").close()
    link.close()
    return database


@pytest.fixture
def connect(url: str) -> Iterator[Connect]:
    """connect(slot=1, token=...): a connection that reserves for this slot; closed at the end."""
    opened: list[DatabaseQueue] = []

    def make(slot: int = 1, lease: float = 30.0, *, token: str = TOKEN) -> DatabaseQueue:
        at = ConnectionSettings(name="db", driver="database", url=url, retry_after=lease)
        opened.append(DatabaseQueue(at, open_space(at, "", 20.0), ClientIdentity(token, slot)))
        return opened[-1]

    yield make
    for queue in opened:
        queue.close()


@pytest.fixture
def queue(connect: Connect) -> DatabaseQueue:
    return connect()


class Table:
    """The jobs table as another program sees and changes it."""

    def __init__(self, url: str) -> None:
        self.connection = DatabaseConnection(url)

    def rows(self, columns: str = "*", table: str = "jobs") -> list[Any]:
        return list(
            self.connection.query(f"SELECT {columns} FROM {table} ORDER BY {'id' if table == 'jobs' else 1}").all()
        )

    def do(self, text: str, **values: object) -> None:
        self.connection.execute(sql.text(text), values).close()

    def now(self) -> int:
        return int(self.connection.query(f"SELECT {self.connection.server.clock}").scalar_one()) // 1_000_000


@pytest.fixture
def table(url: str) -> Iterator[Table]:
    found = Table(url)
    yield found
    found.connection.close()


def job(n: int, **more: object) -> bytes:
    fields = {
        "job": "t",
        "data": {"n": n},
        "createdAt": 1795225685,
        "id": f"id{n}",
        "attempts": 0,
        "delay": None,
    } | more
    return json.dumps(fields, separators=(",", ":")).encode()


def from_php(n: int) -> bytes:
    """A payload as PHP's database driver pushes it: only the row has the number of attempts."""
    return b'{"uuid":"u%d","displayName":"t","job":"t","maxTries":null,"data":{"n":%d}}' % (n, n)


def take(queue: DatabaseQueue, *queues: str) -> Reserved:
    found = queue.turn(None, queues or ("a",)).reserved
    assert found is not None
    return found


def ids(queue: DatabaseQueue, *queues: str) -> list[str | None]:
    """The IDs of all ready jobs; each is acked with the next turn."""
    found, done = [], None
    while (turn := queue.turn(done, queues or ("a",))).reserved is not None:
        done = turn.reserved
        found.append(read(done.member).id)
    return found


def beat(queue: DatabaseQueue, lease: float = 30.0, until: float = 2.0**40, slots: tuple[int, ...] = (1,)) -> Any:
    return queue.beat(["a", "b"], BeatRequest(TOKEN, "", lease, True, until, slots))


# -- the rows


def test_a_push_writes_the_same_row_as_laravel(queue, table):
    queue.push("a", job(1))
    queue.later("b", job(2), 10.0)
    (first, second), now = table.rows(), table.now()
    assert (first.queue, first.payload, first.attempts, first.reserved_at) == ("a", job(1).decode(), 0, None)
    assert first.available_at == first.created_at <= now
    assert 10 <= second.available_at - second.created_at <= 11


def test_a_reservation_counts_in_the_row_and_does_not_change_the_payload(queue, table):
    queue.push("a", job(1))
    held = take(queue)
    (row,) = table.rows()
    assert (row.attempts, row.payload) == (1, job(1).decode())
    assert row.reserved_at is not None
    (mine,) = table.rows(table="qd_reserved")
    assert (mine.owner, f"{mine.mark}.1", mine.attempts) == (f"{TOKEN}/1", held.mark, 1)
    assert queue.held(["b", "a"]) == held
    assert queue.ack(held)
    assert (table.rows(), table.rows(table="qd_reserved")) == ([], [])
    assert queue.ack(held) is False


def test_jobs_are_taken_in_order_and_acked_with_the_next(queue):
    queue.push("a", job(1))
    push_many(queue, [("a", job(2), None), ("b", job(3), None), ("a", job(4), 0)])
    assert ids(queue, "b", "a") == ["id3", "id1", "id2", "id4"]
    assert queue.sizes("a").reserved == 0


def test_a_job_that_is_handed_back_is_next_and_costs_no_attempt(queue, table):
    push_many(queue, [("a", job(n), None) for n in (1, 2)])
    held = take(queue)
    assert queue.release(held, Released(answered(held.member, held.mark, attempts=0), head=True))
    assert table.rows("id, attempts, reserved_at")[0][1:] == (0, None)
    assert ids(queue) == ["id1", "id2"]


def test_a_released_job_goes_to_the_tail_with_its_counts(queue, table):
    push_many(queue, [("a", job(n), None) for n in (1, 2)])
    held = take(queue)
    assert queue.release(held, Released(answered(held.member, held.mark, exceptions=1)))
    assert [row.attempts for row in table.rows()] == [0, 1]
    assert queue.ack(take(queue))
    again = take(queue)
    assert (read(again.member).attempts, read(again.member).exceptions) == (2, 1)
    assert queue.release(again, Released(answered(again.member, again.mark), 500))
    due = queue.turn(None, ["a"]).next_due
    assert due is not None
    assert 470 < due <= 501


def test_a_delay_is_never_early(queue, table):
    queue.later("a", job(1), 0.3)
    (row,) = table.rows()
    held = eventually(lambda: queue.turn(None, ["a"]).reserved, every=0.005)
    assert table.now() >= row.available_at >= row.created_at + 1
    assert queue.ack(held)


# -- leases and PHP


def test_attempts_of_php_count_and_a_crash_in_qd_costs_none(queue, table):
    table.do(
        "INSERT INTO jobs (queue, payload, attempts, available_at, created_at) VALUES ('a', :payload, 2, 1, 1)",
        payload=from_php(7).decode(),
    )
    held = take(queue)
    assert read(held.member).attempts == 3
    assert original(held.member, held.start, held.length, held.before) == from_php(7)
    assert queue.give_back("a", f"{TOKEN}/1", held.member, Released(held.member))  # its worker died
    assert table.rows()[0].attempts == 2  # what a PHP worker continues from
    again = take(queue)
    assert (read(again.member).attempts, read(again.member).crashes) == (3, 1)
    assert bytes(read(again.member).data) == b'{"n":7}'


def test_an_expired_lease_is_a_crash_for_the_next_worker_and_lost_for_the_first(connect, table):
    first, second = connect(1, 1.0), connect(2)
    first.push("a", job(1))
    held = take(first)
    eventually(lambda: beat(second, slots=()).reclaimed, what="the end of a lease")
    assert table.rows(table="qd_reserved") == []
    again = take(second)
    assert (read(again.member).attempts, read(again.member).crashes) == (1, 1)
    assert first.ack(held) is False
    assert first.release(held, Released(answered(held.member, held.mark))) is False
    assert first.checkpoint(held, saving(held.member, held.mark, b"1")) is False
    assert first.held(["a"]) is None
    assert second.ack(again)


def test_a_renewed_lease_is_visible_to_php_and_not_reclaimed(connect, table):
    queue = connect(1, 1.0)
    queue.push("a", job(1))
    held, before = take(queue), table.rows()[0].reserved_at
    eventually(lambda: beat(queue, 1.0).reclaimed or table.rows()[0].reserved_at >= before + 3, what="three seconds")
    assert queue.ack(held)


def test_a_job_taken_over_by_php_is_lost_and_stays_reserved(queue, table):
    queue.push("a", job(1))
    held = take(queue)
    table.do("UPDATE jobs SET reserved_at = reserved_at + 1, attempts = attempts + 1")  # its pop
    answer = beat(queue, until=0.0)
    assert answer.lost == [(1, 1)]
    assert queue.ack(held) is False
    (row,) = table.rows()
    assert (row.attempts, table.rows(table="qd_reserved")) == (2, [])


def test_an_expired_reservation_of_php_costs_an_attempt(queue, table):
    table.do(
        "INSERT INTO jobs (queue, payload, attempts, reserved_at, available_at, created_at)"
        " VALUES ('a', :payload, 1, :at, 1, 1)",
        payload=from_php(1).decode(), at=table.now() - 10,
    )  # fmt: skip
    assert queue.turn(None, ["a"]).reserved is None
    assert beat(queue).reclaimed == 0
    assert beat(queue, lease=5.0).reclaimed == 1
    held = take(queue)
    assert (read(held.member).attempts, read(held.member).crashes) == (2, 0)


def test_an_object_job_of_php_stays_and_blocks_nothing(queue, table):
    php = json.dumps({"displayName": "App\\Jobs\\X", "job": "Illuminate\\Queue\\CallQueuedHandler@call", "data": {}})
    inside = job(2, data={"job": "Illuminate\\Queue\\CallQueuedHandler@call"})
    push_many(queue, [("a", php.replace(": ", ":").encode(), None), ("a", inside, None)])
    assert ids(queue) == ["id2"]
    assert len(table.rows()) == 1


# -- answers concurrent with the keeper

SERVERS = pytest.mark.parametrize("database", ["postgres", "mariadb"], indirect=True)  # SQLite has one writer at a time
WAITS = {
    "postgresql": "pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()",
    "mysql": "information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
}
ANSWERS: dict[str, Callable[[DatabaseQueue, Reserved], object]] = {
    "a turn": lambda queue, held: queue.turn(held, ["a"]).acked,
    "an ack": lambda queue, held: queue.ack(held),
    "a release": lambda queue, held: queue.release(held, Released(answered(held.member, held.mark))),
    "a release to the head": lambda queue, held: queue.release(held, Released(held.member, head=True)),
    "a burial": lambda queue, held: queue.bury(held, b'{"id":"x"}', job(1)),
    "a checkpoint": lambda queue, held: queue.checkpoint(held, saving(held.member, held.mark, b"1")),
    "the keeper": lambda queue, held: queue.give_back("a", f"{TOKEN}/1", held.member, Released(held.member)),
}


def during(table: Table, other: DatabaseQueue, first: Callable[[], object], then: Callable[[], T]) -> T:
    """Runs `first` in a transaction on `other`, and `then` concurrently, which must wait for the locked rows. Returns the
    result of `then`."""
    waits = f"SELECT count(*) FROM {WAITS[table.connection.kind]}"
    with ThreadPoolExecutor(1) as pool:
        with other.connection.transaction():
            first()
            found = pool.submit(then)
            # MariaDB returns a cached result if queried again within 0.1 s.
            eventually(
                lambda: found.done() or table.connection.query(waits).scalar_one() > 0, every=0.15, what="a lock wait"
            )
            assert not found.done(), "it did not wait"
        return found.result()


@SERVERS
@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_during_the_renewal_of_its_lease_counts(connect, table, answer):
    """The renewal changes reserved_at of both rows. A statement that begins before its commit must not compare the new
    reservation with the old job."""
    worker, keeper = connect(), connect()
    worker.push("a", job(1))
    held = take(worker)
    for each in ("jobs", "qd_reserved"):
        table.do(f"UPDATE {each} SET reserved_at = reserved_at - 5")
    assert during(table, keeper, lambda: beat(keeper), lambda: ANSWERS[answer](worker, held))
    left = {"a release": 1, "a release to the head": 1, "a checkpoint": 1, "the keeper": 1}.get(answer, 0)
    assert (len(table.rows()), len(table.rows(table="qd_reserved"))) == (left, answer == "a checkpoint")


@SERVERS
@pytest.mark.parametrize("answer", ["a turn", "an ack"])
def test_an_answer_during_a_takeover_by_php_is_too_late(connect, table, answer):
    worker, other = connect(), connect()
    worker.push("a", job(1))
    held = take(worker)
    assert during(table, other, lambda: pop(other), lambda: ANSWERS[answer](worker, held)) is False
    assert [row.attempts for row in table.rows()] == [2]


@SERVERS
def test_a_renewal_during_a_takeover_by_php_finds_the_lease_lost(connect, table):
    worker, other = connect(), connect()
    worker.push("a", job(1))
    take(worker)
    table.do("UPDATE jobs SET reserved_at = reserved_at - 5")
    table.do("UPDATE qd_reserved SET reserved_at = reserved_at - 5")
    (before,) = table.rows()
    assert during(table, other, lambda: pop(other), lambda: beat(worker).lost) == [(1, 1)]
    assert [(row.attempts, row.reserved_at) for row in table.rows()] == [(2, before.reserved_at + 1)]


def pop(queue: DatabaseQueue) -> None:
    """Take over the job as PHP does after its reservation expired."""
    queue.connection.query("UPDATE jobs SET reserved_at = reserved_at + 1, attempts = attempts + 1").close()


@SERVERS
def test_held_does_not_lose_a_job_that_is_given_back_meanwhile(connect, table):
    """The job belongs to another program until a transaction gives it back to this reservation."""
    worker, other = connect(), connect()
    worker.push("a", job(1))
    held = take(worker)
    table.do("UPDATE jobs SET reserved_at = reserved_at + 1, attempts = 2")

    def again() -> None:
        for each in ("jobs", "qd_reserved"):
            other.connection.query(f"UPDATE {each} SET attempts = 1, reserved_at = 1")

    assert during(table, other, again, lambda: worker.held(["a"])) in (held, None)
    assert len(table.rows(table="qd_reserved")) == 1
    assert worker.ack(held)


# -- checkpoints, and late answers


def test_a_checkpoint_changes_the_payload_and_the_old_one_answers_nothing(queue):
    queue.push("a", job(1))
    held = take(queue)
    new = held._replace(member=saving(held.member, held.mark, b'{"row":7}'))
    assert queue.checkpoint(held, new.member)
    assert queue.held(["a"]) is not None
    assert queue.owned("a", f"{TOKEN}/1") == new.member
    assert queue.checkpoint(held, saving(held.member, held.mark, b'"late"')) is False
    assert queue.ack(held) is False
    assert queue.give_back("a", f"{TOKEN}/1", new.member, Released(new.member))
    again = take(queue)
    assert (read(again.member).crashes, read(again.member).checkpoint) == (1, b'{"row":7}')


def test_a_worker_has_one_job_at_a_time(queue):
    push_many(queue, [("a", job(n), None) for n in (1, 2)])
    held = take(queue)
    with pytest.raises(ConnectionLost, match="already abandoned"):
        queue.turn(None, ["a"])
    assert queue.held(["a"]) == held
    assert queue.sizes("a").ready == 1


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_a_turn_with_an_answer_and_a_reservation_is_two_round_trips(queue, monkeypatch):
    push_many(queue, [("a", job(1), None), ("a", job(2), None)])
    held, sent, raw = take(queue), list[str](), queue.connection.raw
    send = raw._execute_command

    def counted(command: int, text: str) -> None:
        sent.append(text)
        send(command, text)

    monkeypatch.setattr(raw, "_execute_command", counted)
    turn = queue.turn(held, ["a"])
    assert (turn.acked, turn.reserved is not None, len(sent)) == (True, True, 2)


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_reservations_of_php_are_found_in_index_order(queue):
    """With another order, each beat would scan all waiting jobs, 500,000 in one case."""
    text = str(queue.sql["foreign"]).replace("IN (__[POSTCOMPILE_queues])", "IN ('a', 'b')")
    (plan, *_) = queue.connection.execute(sql.text(f"EXPLAIN {text}"), {"before": 1, "most": 100}).all()
    assert (plan.key, "filesort" in plan.Extra) == ("jobs_qd_ready", False)


# -- malformed payloads, tables, keys, pauses


def test_malformed_payloads_are_stored_as_failed_and_block_nothing(queue, table):
    push_many(queue, [("a", raw, None) for raw in (b"", b"hello", b'{"attempts":"3"}', job(1))])
    turn = queue.turn(None, ["a"])
    assert [(unread.queue, unread.reason) for unread in turn.malformed] == [
        ("a", "not a JSON object with a count of attempts")
    ] * 3
    assert turn.reserved is not None
    assert (queue.sizes("a").failed, len(table.rows())) == (3, 1)


STRANGE = {  # text that only another program can write
    "sqlite": "CAST(x'7b22c3286a' AS TEXT)",
    "mysql": """CONCAT('{"job":"t', CHAR(0), '"}')""",
    "postgresql": """'{"job'""",
}


def test_an_invalid_text_in_a_reserved_row_is_stored_as_failed_when_its_lease_expires(queue, table):
    push_many(queue, [("a", job(1), None), ("a", job(2), None)])
    take(queue)
    table.do(f"UPDATE jobs SET payload = {STRANGE[table.connection.kind]} WHERE reserved_at IS NOT NULL")
    if table.connection.kind == "sqlite":  # its columns take anything
        table.do("UPDATE jobs SET attempts = 'x', payload = CAST(payload AS BLOB) WHERE reserved_at IS NULL")
    table.do("UPDATE qd_reserved SET leased_until = 1")
    queue.push("a", job(3))
    assert beat(queue, slots=()).reclaimed == 1
    assert ids(queue) == ["id2", "id3"]
    assert queue.sizes("a").failed == 1


def test_a_table_in_another_schema_has_its_reservations_in_the_same_schema(url):
    link = DatabaseConnection(url)
    schema = {"sqlite": "main", "postgresql": "public", "mysql": link.url.database}[link.kind]
    at = ConnectionSettings(name="db", driver="database", url=url, table=f"{schema}.work")
    assert {f"made table {schema}.work", f"made table {schema}.qd_reserved_work"} <= set(migrate(link, at.table))
    assert migrate(link, at.table) == []
    with closing(DatabaseQueue(at, open_space(at, "", 20.0), ClientIdentity(TOKEN, 1))) as queue:
        queue.push("a", job(1))
        assert ids(queue) == ["id1"]
    for name in ("work", "qd_reserved_work"):
        link.query(f"DROP TABLE {name}").close()
    link.close()


def looked(url: str) -> list[str]:
    return start_warnings(ConnectionSettings(name="db", driver="database", url=url), ["a"], 1)


def test_a_missing_or_read_only_database_is_a_configuration_error(url, tmp_path):
    there = DatabaseConnection(url)
    missing = there.url.set(database=str(tmp_path / "no" / "x.sqlite") if there.kind == "sqlite" else "nowhere")
    with pytest.raises(ConfigError, match="does not exist, or cannot be opened"):
        looked(missing.render_as_string(hide_password=False))
    if there.kind == "sqlite":
        with pytest.raises(ConfigError, match="may not write the database"):
            looked(f"sqlite:///file:{there.url.database}?mode=ro&uri=true")
    assert looked(url) == []
    there.close()


def test_payloads_are_compared_case_sensitively(queue):
    push_many(queue, [("a", job(1, id=name), None) for name in ("ann", "Ann", "ANN")])
    assert queue.space.call("LREM", "queues:a", 0, job(1, id="Ann")) == 1
    assert ids(queue) == ["ann", "ANN"]


OF_NO_STEP = (
    ("LPUSH", "queues:a", "x"), ("DEL", "queues:a"), ("EXPIRE", "queues:a", 5), ("SET", "queues:a", "x"),
    ("ZADD", "queues:a:reserved", "XX", 5, "x"), ("ZREM", "queues:a:reserved", "x"), ("ZSCORE", "queues:a:delayed", "x"),
    ("HSET", "queues:a", "f", "x"), ("RPUSH", "queues:a:delayed", "x"),
)  # fmt: skip


@pytest.mark.parametrize("line", OF_NO_STEP, ids=lambda line: " ".join(map(str, line)))
def test_commands_that_no_step_runs_on_a_queue_are_refused_and_change_nothing(queue, table, line):
    queue.push("a", job(1))
    with pytest.raises(ServerRefused, match=r"not supported for a queue|WRONGTYPE"):
        queue.space.call(*line)
    assert [row.payload for row in table.rows()] == [job(1).decode()]
    assert table.rows("name", "qd_names") == []


def test_a_queue_name_that_is_not_valid_text_is_rejected(queue):
    with pytest.raises(ServerRefused, match="keeps text"):
        queue.push("\udcff", job(1))


@pytest.mark.parametrize("raw", [b"\xff{}", b'{"job":"\x00"}'])
def test_a_payload_that_a_text_column_cannot_store_is_rejected(queue, table, raw):
    with pytest.raises(ServerRefused, match="a table of jobs cannot store"):
        queue.push("a", raw)
    assert table.rows() == []


def test_a_moved_keyed_job_runs_once_and_is_marked_as_taken(queue):
    tie = {"key": "00000.abcdefgh order:1"}
    queue.post([Outgoing("a", job(1, qd=tie, id="x"), 0.0, key=tie["key"])])
    assert queue.move_keyed("a", "order:1", 0.0)
    held = take(queue)
    assert b'"key":"taken.abcdefgh order:1"' in held.member
    assert queue.turn(held, ["a"]).reserved is None
    assert queue.sizes("a").ready == 0
    assert queue.cancel_keyed("a", "order:1") is False


def test_a_paused_queue_is_skipped_and_reported(queue):
    push_many(queue, [("a", job(1), None), ("b", job(2), None)])
    queue.space.call("SET", "queues:a:paused", "{}")
    turn = queue.turn(None, ["a", "b"])
    assert (turn.paused, turn.reserved.queue) == (("a",), "b")
    shut = queue.turn(turn.reserved, ["a", "b"], shut=["b"])
    assert (shut.acked, shut.paused, shut.reserved) == (True, ("a", "b"), None)
    queue.space.call("DEL", "queues:a:paused")
    assert ids(queue) == ["id1"]


def test_a_cancelled_running_job_is_reported_and_comes_back_marked(queue):
    queue.push("a", job(1))
    held = take(queue)
    found = queue.jobs.find("a", "id1")
    assert found is not None
    assert queue.jobs.stop(found)
    assert beat(queue).cancelled == [(1, 1)]
    assert queue.give_back("a", f"{TOKEN}/1", held.member, Released(held.member))
    assert b'.c"' in take(queue).before
    assert beat(queue).cancelled == []


# -- idle workers


def test_an_idle_worker_polls_once_a_second_with_notifications_and_else_three_times(queue, monkeypatch):
    pauses = list[float]()
    monkeypatch.setattr(queue.connection, "wait_notified", lambda seconds, wake: pauses.append(seconds))

    def slept(fds: object, seconds: float) -> list[int]:
        pauses.append(seconds)
        return []

    monkeypatch.setattr(listening, "ready_of", slept)
    for _ in range(30):
        queue.wait(["a"], 60.0, -1)
    assert pauses[-1] == (1.0 if queue.connection.kind == "postgresql" else 0.3)
    queue.push("a", job(1))
    held = take(queue)
    queue.wait(["a"], 60.0, -1)
    assert pauses[-1] == (1.0 if queue.connection.kind == "postgresql" else 0.01)
    assert queue.ack(held)


# -- several hosts


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
@pytest.mark.parametrize("ports", ["{away}, {there}", "{there}, {away}"])
def test_the_documented_url_with_several_hosts_reaches_the_reachable_one(url, table, tmp_path, monkeypatch, ports):
    there = table.connection.url
    with closing(socket.socket()) as closed:  # bound and not listening: connections are refused
        closed.bind(("127.0.0.1", 0))
        first, second = ports.format(away=closed.getsockname()[1], there=there.port).split(", ")
        (written,) = re.findall(r'url = "(postgresql://.*,.*)"', PAGE.read_text())
        several = written.replace("shop:secret", str(there.username)).replace("/shop", f"/{there.database}")
        several = several.replace("db1.example.org:5432", f"127.0.0.1:{first}")
        several = several.replace("db2.example.org:5432", f"127.0.0.1:{second}")
        (tmp_path / "qd.toml").write_text(f'[connections.redis]\nurl = "{several}"\n[failed]\ndatabase = "{several}"\n')
        monkeypatch.chdir(tmp_path)
        assert looked(several) == []
        app = Qd()
        app.queue("a").push("x", {"n": 1})
        with closing(DatabaseConnection(several)) as link:
            assert link.place == f"postgresql://{there.username}@127.0.0.1:{first},127.0.0.1:{second}/{there.database}"
        with pytest.raises(DatabaseError, match='"failed_jobs" does not exist'):  # the server answers
            FailedJobs(several).check()
        app.connections.close()
    assert len(table.rows()) == 1


@pytest.mark.parametrize(
    ("written", "read"),
    {
        "postgresql://u:a,b@h:1/db": "postgresql://u:a,b@h:1/db",
        "postgresql://u:p@h1,h2:2/db": "postgresql://u:p@/db?host=h1,h2&port=,2",
        "postgres://h1:1,h2:2": "postgres://?host=h1,h2&port=1,2",
        "postgresql+psycopg://[::1]:1,[::2]:2/db?a=b": "postgresql+psycopg:///db?host=::1,::2&port=1,2&a=b",
        "mysql://h1,h2/db": "mysql://h1,h2/db",
    }.items(),
)
def test_several_hosts_in_a_url_are_passed_to_sqlalchemy_as_options(written, read):
    assert with_hosts_as_options(written) == read


def test_an_invalid_port_of_one_of_several_hosts_is_rejected():
    with pytest.raises(ConfigError, match="number as port of each host"):
        check("postgresql://u:p@h1:5432,h2:x/db")


# -- inside a caller's transaction


class Sent(NamedTuple):
    app: Qd
    engine: sql.Engine


@pytest.fixture
def sent(url: str, table: Table) -> Iterator[Sent]:
    app, engine = Qd(url), sql.create_engine(table.connection.url, poolclass=sql.NullPool)
    app.job("t", unique="n:{n}", unique_for=60)(note)
    app.job("plain")(note)
    yield Sent(app, engine)
    app.connections.close()
    engine.dispose()


def note(n: int) -> None: ...


def send(app: Qd) -> None:
    """Send a batch, a single job, several jobs, a unique job and a keyed job. A step comes first: on SQLite, inserting a row
    starts a transaction, and a step does not."""
    app.batch(app.call("t", b'{"n":5}').using(queue="a")).dispatch()
    app.queue("a").push("x", {"n": 1})
    app.dispatch(app.call("t", b'{"n":2}').using(queue="a"), app.call("t", b'{"n":3}').using(queue="a"))
    app.call("plain", b'{"n":4}').using(queue="a", key="k", delay=60).dispatch()


def test_jobs_sent_in_a_transaction_exist_only_after_its_commit(sent, table, queue):
    with Session(sent.engine) as session:
        session.execute(sql.text("SELECT 1"))
        with sent.app.transaction(session):
            send(sent.app)
        assert table.rows() == []
        session.rollback()
    assert (table.rows(), table.rows("name", "qd_names")) == ([], [])
    with Session(sent.engine) as session, session.begin(), sent.app.transaction(session):
        send(sent.app)
    assert (queue.sizes("a").ready, queue.sizes("a").delayed) == (4, 1)
    sent.app.queue("a").push("x", {"n": 1})  # outside the transaction again
    assert queue.sizes("a").ready == 5


def test_after_commit_inside_app_transaction_belongs_to_that_transaction(sent, table):
    """After a commit inside the block, nothing remains in the next transaction, which is never committed."""
    install(sent.app)
    plain = sent.app.call("plain", b'{"n":1}').using(queue="a")
    with Session(sent.engine) as session:
        session.begin()
        plain.using(after_commit=True).dispatch()  # sent after the commit
        with sent.app.transaction(session):
            plain.using(after_commit=True).dispatch()  # sent in the transaction
            assert table.rows() == []
            session.commit()
            assert len(table.rows()) == 2
    assert len(table.rows()) == 2


def test_jobs_sent_inside_a_savepoint_are_rolled_back_with_it(sent, queue):
    plain, single = (sent.app.call(name, b'{"n":1}').using(queue="a") for name in ("plain", "t"))
    with Session(sent.engine) as session, session.begin(), sent.app.transaction(session):
        plain.dispatch()
        with suppress(KeyError), session.begin_nested():
            assert [plain.dispatch(), single.dispatch()]
            raise KeyError
        assert single.dispatch().id
    assert queue.sizes("a").ready == 2


def test_concurrent_sends_in_one_transaction_are_serialized(sent, queue):
    async def send() -> None:
        calls = [sent.app.call("t", b'{"n":%d}' % n).using(queue="a") for n in range(20)]
        await asyncio.gather(*(call.adispatch() for call in calls))

    with Session(sent.engine) as session, session.begin(), sent.app.transaction(session):
        asyncio.run(send())
    assert queue.sizes("a").ready == 20


def test_a_step_in_a_transaction_sees_commits_since_its_start(sent):
    single = sent.app.call("t", b'{"n":2}').using(queue="a")
    with Session(sent.engine) as session, session.begin():
        session.execute(sql.text("SELECT name FROM qd_names")).all()  # MySQL takes its snapshot here
        outside = single.dispatch().id
        with sent.app.transaction(session):
            assert single.dispatch().id == outside


SENT: dict[str, Callable[[Qd], object]] = {
    "a unique job": lambda app: app.call("t", b'{"n":2}').using(queue="a").dispatch(),
    "the same key": lambda app: app.call("plain", b'{"n":2}').using(queue="a", key="k", delay=60).dispatch(),
    "many rows": lambda app: app.connections.get(None).kept[0].call("RPUSH", "l", *map(str, range(1000))),
}


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("what", SENT)
def test_a_concurrent_send_is_a_serialization_failure(sent, queue, caplog, level, what):
    """A retry loop for SQLAlchemy catches it: the second run sees the jobs of the other transaction."""
    send, errors = SENT[what], list[sql.exc.OperationalError]()
    with Session(sent.engine.execution_options(isolation_level=level)) as session:
        while len(errors) < 3:
            session.execute(sql.text("SELECT name FROM qd_names")).all()  # takes the snapshot
            if not errors:
                send(sent.app)
            try:
                with sent.app.transaction(session):
                    send(sent.app)
                session.commit()
                break
            except sql.exc.OperationalError as error:
                errors.append(error)
                session.rollback()
    (raised,) = errors
    assert (getattr(raised.orig, "sqlstate", None), isinstance(raised, ServerBusy)) == ("40001", True)
    assert "roll this transaction back and run it again" in str(raised)
    assert [record for record in caplog.records if record.name == "psycopg"] == []
    assert queue.sizes("a").ready + queue.sizes("a").delayed == (0 if what == "many rows" else 1)


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_a_deadlock_in_a_transaction_of_the_caller_is_also_an_operational_error(sent, queue):
    with Session(sent.engine) as session:
        joined = inside(queue, session)
        assert isinstance(joined, DatabaseQueue)
        with pytest.raises(ServerBusy, match="run it again") as error:
            joined.connection.query("SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'Deadlock found'")
    assert isinstance(error.value, sql.exc.OperationalError)
    assert str(error.value.orig).startswith("(1213,")


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_a_push_that_times_out_on_the_auto_increment_lock_can_be_repeated(queue, connect, table):
    """An INSERT ... SELECT of another program holds the auto-increment lock, here while it waits for a row."""
    queue.connection.query("SET innodb_lock_wait_timeout = 1").close()
    rows = "SELECT 'b', '{}', 0, 1, 1 FROM qd_locks WHERE bucket IN (1, 2) ORDER BY bucket FOR UPDATE"
    insert = f"INSERT INTO jobs (queue, payload, attempts, available_at, created_at) {rows}"
    waits, other, holder = f"SELECT count(*) FROM {WAITS['mysql']}", connect(2).connection, connect(3).connection
    with ThreadPoolExecutor(1) as pool:
        with holder.transaction():
            holder.query("SELECT bucket FROM qd_locks WHERE bucket = 2 FOR UPDATE").close()
            inserted = pool.submit(lambda: other.query(insert).rowcount)
            eventually(lambda: table.connection.query(waits).scalar_one() > 0, every=0.15, what="a lock wait")
            with pytest.raises(ServerBusy, match="1467"):
                queue.push("a", job(1))
        assert inserted.result() == 2
    queue.push("a", job(1))
    assert ids(queue) == ["id1"]


def test_an_autocommit_session_is_rejected(sent, table):
    each = sent.engine.execution_options(isolation_level="AUTOCOMMIT")
    rejected = pytest.raises(ConfigError, match="commits each statement separately")
    with Session(each) as session, rejected, sent.app.transaction(session):
        send(sent.app)
    assert table.rows() == []
    with sent.engine.connect() as connection, sent.app.transaction(connection):
        sent.app.call("t", b'{"n":1}').dispatch()
        connection.commit()
    assert len(table.rows()) == 1


def test_a_transaction_of_another_database_is_rejected(sent, table):
    other = sql.create_engine("sqlite://")
    rejected = pytest.raises(ConfigError, match="not in the database of connection")
    with Session(other) as session, rejected, sent.app.transaction(session):
        send(sent.app)
    other.dispose()
    assert table.rows() == []


def test_a_connection_without_a_database_and_a_wrong_session_are_rejected():
    app = Qd("redis://localhost:1")
    other = sql.create_engine("sqlite://")
    rejected = pytest.raises(ConfigError, match=r"is not a database \(redis\).*after_commit")
    with Session(other) as session, rejected, app.transaction(session):
        pass
    with pytest.raises(ConfigError, match="str is neither a Session"), app.transaction("x"):
        pass
    other.dispose()


# -- several workers


def test_four_concurrent_workers_reserve_each_job_once(connect, table):
    """Each has its own connection; some jobs are released once."""
    push_many(connect(9), [("a", job(n), None) for n in range(200)])
    done: list[list[str]] = [[] for _ in range(4)]

    def work(slot: int) -> None:
        queue = connect(slot)
        acked: Reserved | None = None
        while (turn := queue.turn(acked, ["a"])).reserved is not None:
            held, acked = turn.reserved, None
            payload = read(held.member)
            if payload.attempts == 1 and payload.id in ("id7", "id77", "id177"):
                assert queue.release(held, Released(answered(held.member, held.mark)))
            else:
                done[slot].append(str(payload.id))
                acked = held
        queue.close()

    with ThreadPoolExecutor(4) as pool:
        for each in [pool.submit(work, slot) for slot in range(4)]:
            each.result()
    assert Counter(name for some in done for name in some) == Counter(f"id{n}" for n in range(200))
    assert (table.rows(), table.rows(table="qd_reserved")) == ([], [])


# --- restricted users


def granted(kind: str) -> list[str]:
    """The statements of the page for one kind of database."""
    block = PAGE.read_text(encoding="utf-8").partition(f"    -- {kind}\n")[2].partition("\n\n")[0]
    return [line.strip().rstrip(";") for line in block.splitlines()]


def each_is_needed(owner: str, worker: str, statements: list[str], run: Callable[[str], object], expected: str) -> None:
    """The check fails until all statements have run."""
    link = DatabaseConnection(owner)
    migrate(link, "jobs")
    link.close()
    at = ConnectionSettings("db", driver="database", url=worker)
    assert len(statements) > 2
    for statement in statements:
        with pytest.raises(ConfigError, match=expected):
            start_warnings(at, [], 1)
        run(statement)
    start_warnings(at, [], 1)


def test_workers_need_the_documented_grants_on_postgres(postgres: Postgres, postgres_url: str) -> None:
    database = postgres_url.rpartition("/")[2]
    postgres.run("CREATE ROLE worker LOGIN")
    try:
        worker = postgres_url.replace(f"//{NAME}@", "//worker@")
        each_is_needed(
            postgres_url,
            worker,
            granted("PostgreSQL"),
            lambda words: postgres.run(words, database),
            "lacks a right|may not use",
        )
    finally:
        postgres.run("DROP OWNED BY worker", database)
        postgres.run("DROP ROLE worker")


def test_workers_need_the_documented_grants_on_mariadb(mariadb: MariaDb, mariadb_url: str) -> None:
    database = mariadb_url.rpartition("/")[2].partition("?")[0]
    mariadb.run("CREATE USER worker")
    try:
        words = [statement.replace(" shop.", f" {database}.") for statement in granted("MySQL, MariaDB")]
        worker, expected = (
            mariadb_url.replace("//root@", "//worker@"),
            "lacks a right|its user may see|refuses this user",
        )
        each_is_needed(mariadb_url, worker, words, mariadb.run, expected)
    finally:
        mariadb.run("DROP USER worker")
