"""A server that rejects calls: full, read-only, without disk, busy. Nothing changes, the error names the cause, and calls
work afterwards."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from qd.config.settings import ConnectionSettings
from qd.drivers.base import ClientIdentity
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import script
from qd.drivers.redis.queue import RedisQueue
from qd.drivers.types import BeatRequest, LaneAnswer, LaneTurn, Released, Reserved
from qd.errors import ServerBusy, ServerRefused
from qd.payload.reservation import answered, saving
from qd.store import audit
from qd.store.base import KeyspaceStore
from qd.store.locks import Places, Rate, Strikes
from tests.contract.keyspace.test_queue import job, take
from tests.support.keeper import beat
from tests.support.payloads import push_many
from tests.support.redis import Client, Seen
from tests.support.servers.redis import Server, free_port
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def own() -> Iterator[Server]:
    with Server("--dbfilename", "dump.folder") as server:
        yield server


@pytest.fixture
def admin(own: Server) -> Iterator[Client]:
    with own.client() as client:
        client.call("FLUSHALL")
        yield client


@pytest.fixture
def seen(own: Server) -> Iterator[Seen]:
    with own.client() as client:
        yield Seen(client)


@pytest.fixture
def queue(own: Server) -> Iterator[RedisQueue]:
    made = RedisQueue(
        ConnectionSettings(name="redis", url=own.tcp_url, retry_after=30.0), ClientIdentity("Tok3nTok3n", 1)
    )
    yield made
    made.close()


@pytest.fixture
def held(queue: RedisQueue, admin: Client, seen: Seen) -> Reserved:
    """A reserved job; the queue also has a ready, a due, a delayed and an expired one."""
    push_many(queue, [("a", job(n), None) for n in (1, 2)] + [("a", job(3), 60.0), ("a", job(4), 60.0)])
    seen.call("ZADD", "a", "delayed", 1, job(3))
    seen.call("ZADD", "a", "reserved", 1, job(5))
    job_in_hand = take(queue)
    queue.turn(None, ["b"])
    beat(queue, "b", report="{}")
    return job_in_hand


def turns(queue: RedisQueue, *slots: int) -> None:
    """Turns of other workers that hold nothing."""
    for slot in slots:
        other = RedisQueue(queue.settings, ClientIdentity("Tok3nTok3n", slot))
        other.connection = queue.connection
        other.turn(None, ["a"])


def store_of(queue: RedisQueue) -> KeyspaceStore:
    return KeyspaceStore(queue.connection)


def count(store: KeyspaceStore) -> None:
    """A keeper's write of what its workers have done, as Statistics makes it."""
    names = [keys.STATS_NUMBERS, keys.STATS_TOTAL, keys.stats_hour(1), keys.stats_minute(60)]
    names += [keys.stats_depths(60), keys.stats_depths(59)]
    job, depths = ("redis|a|job", "1 0:1"), ("redis|a", "4 1 1 0 1.0")
    assert store.step("stats", names, "Tok3n", 1, 100, 9000, 9000, 9000, "others", 1, *job, *depths) == 1


Operation = Callable[[RedisQueue, Reserved], object]
PUSHES: dict[str, Operation] = {
    "push": lambda queue, held: queue.push("a", job(9)),
    "push_many": lambda queue, held: push_many(queue, [("a", job(9), None), ("a", job(10), 5)]),
    "later": lambda queue, held: queue.later("a", job(9), 5),
}
OTHERS: dict[str, Operation] = {
    "a turn": lambda queue, held: turns(queue, 2),
    "a turn that moves what is due": lambda queue, held: turns(queue, 2, 3),
    "a turn that acks": lambda queue, held: queue.turn(held, ["a"]),
    "ack": lambda queue, held: queue.ack(held),
    "release": lambda queue, held: queue.release(held, Released(answered(held.member, held.mark))),
    "release with a delay": lambda queue, held: queue.release(held, Released(answered(held.member, held.mark), 5)),
    "checkpoint": lambda queue, held: queue.checkpoint(held, saving(held.member, held.mark, b"7")),
    "bury": lambda queue, held: queue.bury(held, b"{}", b"raw"),
    "a turn with lanes": lambda queue, held: queue.turn_lanes(LaneTurn(["a"], lanes=(1, 2))),
    "a turn with lanes that acks": lambda queue, held: queue.turn_lanes(LaneTurn(["a"], [held], lanes=(1, 2))),
    "a turn with lanes that puts back": lambda queue, held: queue.turn_lanes(LaneTurn(["a"], [], [held], lanes=(1, 2))),
    "a query of lanes": lambda queue, held: queue.held_lanes(["a"], (1, 2)),
    "a settlement": lambda queue, held: queue.settle_lanes("a", [LaneAnswer(held.owner, held.member, job(1))]),
    "a beat": lambda queue, held: beat(queue, "a", slots=[1], report="{}"),
    "clear": lambda queue, held: queue.clear("a"),
    "a place": lambda queue, held: Places("qd:lock:x", 1, 60).take(store_of(queue), "id1", "m"),
    "a start": lambda queue, held: Rate("x", 1, 60).start(store_of(queue), "id1", "m"),
    "an error": lambda queue, held: Strikes("x", 2, 60, 60).count(store_of(queue), "m"),
    "progress": lambda queue, held: queue.jobs.progress("id1", 50, 60),
    "an event": lambda queue, held: audit.record(store_of(queue), audit.Event("queue.paused", {"queue": "a"})),
    "statistics": lambda queue, held: count(store_of(queue)),
}


def readonly(admin: Client) -> Callable[[], object]:
    admin.call("REPLICAOF", "127.0.0.1", free_port())
    return lambda: admin.call("REPLICAOF", "NO", "ONE")


def masterdown(admin: Client) -> Callable[[], object]:
    admin.call("CONFIG", "SET", "replica-serve-stale-data", "no")
    admin.call("REPLICAOF", "127.0.0.1", free_port())
    return lambda: (
        admin.call("REPLICAOF", "NO", "ONE"),
        admin.call("CONFIG", "SET", "replica-serve-stale-data", "yes"),
    )


def noreplicas(admin: Client) -> Callable[[], object]:
    admin.call("CONFIG", "SET", "min-replicas-to-write", 1)
    return lambda: admin.call("CONFIG", "SET", "min-replicas-to-write", 0)


REFUSALS = {"READONLY": readonly, "MASTERDOWN": masterdown, "NOREPLICAS": noreplicas}


@pytest.mark.parametrize("operation", [*PUSHES, *OTHERS])
@pytest.mark.parametrize("word", REFUSALS)
def test_a_server_that_rejects_writes_changes_nothing_and_is_busy(queue, held, admin, seen, word, operation):
    before = seen.dump()
    restore = REFUSALS[word](admin)
    try:
        with pytest.raises(ServerBusy, match=word):
            {**PUSHES, **OTHERS}[operation](queue, held)
    finally:
        restore()
    assert seen.dump() == before
    {**PUSHES, **OTHERS}[operation](queue, held)
    assert seen.dump() != before


def test_a_server_that_cannot_save_changes_nothing_and_is_busy(queue, held, admin, seen, own):
    (own.folder / "dump.folder" / "in the way").mkdir(parents=True)
    admin.call("CONFIG", "SET", "save", "3600 1")
    admin.call("BGSAVE")
    eventually(lambda: "rdb_last_bgsave_status:err" in admin.text("INFO", "persistence"), 20)
    before = seen.dump()
    try:
        for operation in (*PUSHES.values(), *OTHERS.values()):
            with pytest.raises(ServerBusy, match="MISCONF"):
                operation(queue, held)
    finally:
        admin.call("CONFIG", "SET", "save", "")
    assert seen.dump() == before
    assert queue.ack(held)


# -- at maxmemory: calls that add are rejected, calls that move or delete are not


@pytest.fixture
def full(admin: Client, held: Reserved) -> Iterator[None]:
    admin.call("CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", 1)
    yield
    admin.call("CONFIG", "SET", "maxmemory", 0)


@pytest.mark.parametrize("operation", PUSHES)
def test_a_full_server_rejects_pushes_and_the_error_names_the_limit(queue, held, full, admin, seen, operation):
    before = seen.dump()
    with pytest.raises(ServerBusy, match=r"Redis is full.*maxmemory"):
        PUSHES[operation](queue, held)
    assert seen.dump() == before
    admin.call("CONFIG", "SET", "maxmemory", 0)
    PUSHES[operation](queue, held)
    assert job(9) in seen.everywhere("a")


def ids(seen: Seen) -> set[str]:
    return {f"id{n}" for n in range(1, 11) for text in seen.everywhere("a") if b'"id%d"' % n in text}


@pytest.mark.parametrize("operation", OTHERS)
def test_workers_and_keepers_continue_on_a_full_server(queue, held, full, seen, operation):
    OTHERS[operation](queue, held)
    gone = {
        "a turn that acks": {"id1"},
        "a turn with lanes that acks": {"id1"},
        "ack": {"id1"},
        "bury": {"id1"},
        "clear": {"id2", "id3", "id4"},
    }
    assert ids(seen) == {"id1", "id2", "id3", "id4", "id5"} - gone.get(operation, set())


def test_jobs_of_a_full_server_are_worked_off(queue, held, full, seen):
    done, count = held, 0
    beat(queue, "a", slots=[1])
    while (turn := queue.turn(done, ["a"])).reserved is not None:
        assert turn.acked
        done, count = turn.reserved, count + 1
    assert (count, ids(seen)) == (3, {"id4"})  # the delayed one waits


def refusal_of(call: Callable[[], object]) -> Exception | None:
    try:
        call()
    except (ServerBusy, ServerRefused) as error:
        return error
    return None


# -- busy, without scripts, too many clients, keys of the wrong type


def test_a_server_in_a_long_script_is_busy_and_serves_after(queue, held, admin, own):
    admin.call("CONFIG", "SET", "busy-reply-threshold", 1)

    def block() -> None:
        with own.client() as client, pytest.raises(Exception, match="killed"):
            client.call("EVAL", "while true do end", 0)

    thread = threading.Thread(target=block)
    thread.start()
    busy = eventually(lambda: refusal_of(lambda: queue.sizes("a")))
    assert isinstance(busy, ServerBusy)
    admin.call("SCRIPT", "KILL")
    thread.join(10)
    admin.call("CONFIG", "SET", "busy-reply-threshold", 5000)
    assert queue.ack(held)


def test_a_server_full_of_clients_is_busy(queue, held, admin, seen):
    queue.close()
    admin.call("CONFIG", "SET", "maxclients", 1)
    try:
        for _ in range(20):
            with pytest.raises(ServerBusy, match="max number of clients"):
                queue.sizes("a")
    finally:
        admin.call("CONFIG", "SET", "maxclients", 10_000)
    assert queue.ack(held)


@pytest.mark.parametrize("operation", [*PUSHES, *OTHERS])
def test_scripts_are_reloaded_after_a_flush(queue, held, admin, seen, operation):
    before = seen.dump()
    admin.call("SCRIPT", "FLUSH")
    {**PUSHES, **OTHERS}[operation](queue, held)
    assert seen.dump() != before


def test_scripts_can_be_flushed_at_any_time(queue, admin, own):
    stop = threading.Event()

    def flush() -> None:
        with own.client() as client:
            while not stop.is_set():
                client.call("SCRIPT", "FLUSH")

    thread = threading.Thread(target=flush)
    thread.start()
    try:
        push_many(queue, [("a", job(n), None) for n in range(300)])
        done, count = None, 0
        while (turn := queue.turn(done, ["a"])).reserved is not None:
            assert turn.acked is not False
            done, count = turn.reserved, count + 1
    finally:
        stop.set()
        thread.join(10)
    assert count == 300


@pytest.mark.parametrize("kind", ["", "reserved", "delayed"])
def test_a_key_of_the_wrong_type_loses_no_job(queue, held, seen, kind):
    key = seen.key("a", kind)
    seen.client.call("RENAME", key, "aside")
    seen.client.call("SET", key, "foreign")
    calls = [lambda: turns(queue, 2), lambda: turns(queue, 3), lambda: beat(queue, "a", slots=[1])]
    calls += [lambda: queue.checkpoint(held, saving(held.member, held.mark, b"7"))]
    refusals = [str(error) for call in calls if (error := refusal_of(call)) is not None]
    assert all("is a string and not a" in text or "WRONGTYPE" in text for text in refusals)
    seen.client.call("RENAME", "aside", key)
    assert ids(seen) == {"id1", "id2", "id3", "id4", "id5"}


def turn_one(queue: RedisQueue, done: Reserved | None = None) -> tuple[str | None, tuple[str, ...], bool]:
    """A turn for one job: the queue of the job it reserved, the paused queues, and whether the lease of `done` was lost."""
    turn = queue.turn(done, ["a", "b"])
    return turn.reserved and turn.reserved.queue, turn.paused, turn.acked is False


def turn_several(queue: RedisQueue, done: Reserved | None = None) -> tuple[str | None, tuple[str, ...], bool]:
    reply = queue.turn_lanes(LaneTurn(("a", "b"), lanes=(1, 2), done=[done] if done else []))
    return (reply.jobs[0].queue if reply.jobs else None), reply.paused, bool(reply.lost)


@pytest.mark.parametrize("kind", ["", "reserved", "owners", "notify", "suspects"])
@pytest.mark.parametrize("turn", [turn_one, turn_several])
def test_a_turn_leaves_out_a_queue_with_a_key_of_the_wrong_type_and_goes_on(queue, admin, seen, turn, kind):
    push_many(queue, [(name, job(n), None) for n, name in enumerate("aabbb")])
    key = seen.key("a", kind)
    admin.call("RENAME", key, "aside") if admin.call("EXISTS", key) else None
    admin.call("SET", key, "foreign")
    assert turn(queue) == ("b", ("a",), False)
    admin.call("DEL", key)
    admin.call("RENAME", "aside", key) if admin.call("EXISTS", "aside") else None
    queue.turns += 1
    assert turn(RedisQueue(queue.settings, ClientIdentity("Tok3nTok3n", 2))) == ("a", (), False)


@pytest.mark.parametrize("turn", [turn_one, turn_several])
def test_the_ack_of_a_job_whose_reservations_were_overwritten_is_a_lost_lease(queue, admin, seen, turn):
    push_many(queue, [("a", job(0), None), ("b", job(1), None)])
    if turn is turn_one:
        done = queue.turn(None, ["a", "b"]).reserved
    else:
        (done,) = queue.turn_lanes(LaneTurn(("a", "b"), lanes=(1,))).jobs
    admin.call("SET", seen.key("a", "reserved"), "foreign")
    push_many(queue, [("a", job(2), None)])
    assert turn(queue, done) == ("b", ("a",), True)


@pytest.mark.parametrize("kind", ["delayed", "reserved", "owners", "notify"])
def test_a_key_of_the_wrong_type_in_one_queue_does_not_affect_leases_in_another(queue, held, seen, kind):
    seen.call("ZADD", "a", "reserved", "XX", seen.now() + 1, held.member)
    seen.call("SET", "0", kind, "of another program")
    with pytest.raises(ServerRefused, match="WRONGTYPE"):
        beat(queue, "0", "a", slots=[1])
    ((name, way),) = queue.beat(["0", "a"], BeatRequest("Tok3nTok3n", "", 30.0, True, 1e12, [1])).away
    assert name == "0"
    assert f"queues:0:{kind} is a string and not a " in way
    assert seen.reserved("a")[held.member] > seen.now() + 20


def test_a_script_error_has_the_text_of_the_server(queue, admin):
    with pytest.raises(ServerRefused, match=r"ERR .* on @user_script"):
        script("ack").call(queue.connection, ["x", "y"])


def test_the_error_for_an_unreachable_server_names_its_address(queue):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"redis://user:s3cret@127.0.0.1:{taken.getsockname()[1]}/2"
        away = RedisQueue(ConnectionSettings(name="redis", url=url))
        with pytest.raises(Exception, match=r"127\.0\.0\.1:\d+/2 does not answer: connection refused") as caught:
            away.push("a", job(1))
    assert "s3cret" not in str(caught.value)
