"""Redis Cluster: steps that span slots, interrupted at each of their calls; moving slots; an unreachable node."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from qd.config.settings import ConnectionSettings
from qd.drivers.base import ClientIdentity
from qd.drivers.cluster import deferred, keyspace
from qd.drivers.cluster.nodes import slot_of
from qd.drivers.cluster.queue import ClusterQueue
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import ScriptCall, script
from qd.drivers.redis.connection import RedisConnection
from qd.drivers.redis.queue import RedisQueue
from qd.drivers.types import (
    BeatRequest,
    Callback,
    Claim,
    Count,
    Effect,
    Entry,
    Free,
    Keep,
    LaneAnswer,
    LaneReply,
    LaneTurn,
    NewBatch,
    Outgoing,
    Push,
    Released,
    Reserved,
    Vacate,
)
from qd.errors import ConnectionLost, OtherKind
from qd.keeper.dead_workers import DeadWorkers
from qd.log import Log
from qd.master.code import ChildContext
from qd.payload.format import read
from qd.payload.reservation import answered, saving, unstarted
from qd.process.scoreboard import Scoreboard
from qd.store.base import keyspace_store
from qd.store.locks import Places
from qd.store.masters import MasterReport
from qd.worker.connection import HeldJob, WorkerConnection
from qd.worker.outcome import Back, Failed
from qd.worker.queues import Rota
from qd.worker.settle import Settlement
from tests.contract.keyspace.test_batches import is_cancelled
from tests.contract.keyspace.test_queue import job
from tests.support.payloads import push_many
from tests.support.servers.cluster import Cluster
from tests.support.servers.redis import Server
from tests.support.waiting import eventually

pytestmark = pytest.mark.xdist_group("cluster")
Connect = Callable[..., ClusterQueue]
LEASE = 30.0


class Killed(BaseException):
    """Stands for SIGKILL: the process does nothing after it."""


def revive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(deferred, "LEFT", 0.0)


def killed(*_: Any, **__: Any) -> Any:
    raise Killed


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keepers process notes without giving their author time to do so."""
    monkeypatch.setattr(deferred, "LEFT", 0.0)


@pytest.fixture
def connect(cluster: Cluster) -> Iterator[Connect]:
    opened: list[ClusterQueue] = []

    def make(slot: int = 1, token: str = "Tok3nTok3n", prefix: str = "") -> ClusterQueue:
        settings = ConnectionSettings(name="redis", url=cluster.url, prefix=prefix, retry_after=LEASE)
        opened.append(ClusterQueue(settings, ClientIdentity(token, slot)))
        opened[-1].patience(20.0, 20.0)
        return opened[-1]

    yield make
    for queue in opened:
        queue.close()


@pytest.fixture
def queue(connect: Connect) -> ClusterQueue:
    return connect()


@pytest.fixture
def three(cluster: Cluster) -> list[str]:
    """Queues on three different nodes."""
    found: dict[int, str] = {}
    for name in "abcdefghijklmnop":
        found.setdefault(cluster.node_of(f"queues:{{{name}}}").port, name)
    return [found[node.port] for node in cluster.nodes]


@contextmanager
def node_down(cluster: Cluster, name: str) -> Iterator[None]:
    """Kill the node of this queue; start it again at the end."""
    node = cluster.node_of(f"queues:{{{name}}}")
    node.kill()
    try:
        yield
    finally:
        node.start()
        cluster.settled()


def take(queue: ClusterQueue, *queues: str) -> Reserved:
    found = queue.turn(None, queues).reserved
    assert found is not None
    return found


def beat(keeper: ClusterQueue, *queues: str) -> Any:
    return keeper.beat(queues, BeatRequest("K33p3rK33p3r", "", LEASE, False, 0.0, ()))


def call(queue: ClusterQueue, *words: Any) -> Any:
    return queue.connection.call(*words)


def noted(queue: ClusterQueue, name: str) -> int:
    return int(queue.connection.send(queue.connection.plain("HLEN", f"queues:{{{name}}}:ends")))


def finished_by_a_keeper(connect: Connect, queue: ClusterQueue, name: str, *others: str) -> None:
    """There is a note about the unfinished step, and some beats of another master's keeper remove it."""
    assert noted(queue, name) == 1
    keeper = connect(2, "K33p3rK33p3r")
    eventually(lambda: beat(keeper, name, *others) and not noted(queue, name), what="a processed note")


INTERRUPTED: dict[str, tuple[Any, str]] = {
    "right behind the step": (deferred, "send_once"),
    "behind the jobs, before the note is gone": (deferred, "_delete_notes"),
}
each_interruption = pytest.mark.parametrize("where", INTERRUPTED)


@each_interruption
@pytest.mark.parametrize("way", ["ack", "release", "bury"])
def test_effects_of_an_answer_are_applied_once_even_if_its_worker_is_killed(
    connect: Connect, queue: ClusterQueue, three: list[str], where: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, c = three
    queue.push(a, job(1))
    held = take(queue, a)
    call(queue, "SET", "qd:unique:n", "u1")
    effects: list[Effect] = [
        Push(b, job(7)), Push(c, job(8), 60.0), Free("n", "u1"), Keep("id1", "done", b"[1]", 60.0),
    ]  # fmt: skip
    monkeypatch.setattr(*INTERRUPTED[where], killed)
    with pytest.raises(Killed):
        answer(queue, held, way, effects)
    revive(monkeypatch)
    for wire in queue.connection.nodes:
        wire.connection.close()
    finished_by_a_keeper(connect, queue, a, b, c)
    assert call(queue, "LRANGE", f"queues:{b}", 0, -1) == [job(7)]
    assert call(queue, "ZRANGE", f"queues:{c}:delayed", 0, -1) == [job(8)]
    assert call(queue, "GET", "qd:unique:n") is None
    assert call(queue, "HGET", "qd:job:id1", "value") == b"[1]"
    assert queue.sizes(a).reserved == 0


def answer(queue: ClusterQueue, held: Reserved, way: str, effects: list[Effect]) -> bool:
    if way == "ack":
        return queue.ack(held, effects)
    if way == "release":
        return queue.release(held, Released(answered(held.member, held.mark), 60), effects)
    return queue.bury(held, b"{}", job(1), effects)


def test_no_effect_is_applied_after_a_lost_lease(queue: ClusterQueue, three: list[str]) -> None:
    a, b, _ = three
    queue.push(a, job(1))
    held = take(queue, a)
    call(queue, "ZREM", f"queues:{a}:reserved", held.member)
    assert queue.ack(held, [Push(b, job(7))]) is False
    assert (queue.sizes(b).ready, noted(queue, a)) == (0, 0)


@each_interruption
def test_a_batch_counts_a_job_once_and_calls_back_once(
    connect: Connect, queue: ClusterQueue, three: list[str], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, c = three
    late = job(9, createdAt=int(time.time()))
    moments = (late.index(b'"createdAt":') + 12,)
    callbacks = {"then": Callback(c, late, 0.0, moments), "finally": Callback(a, late, 0.0, moments)}
    queue.batches.send(NewBatch("B", "", False, callbacks), [Entry(a, "u1", job(1), 0.0), Entry(b, "u2", job(2), 0.0)])
    assert queue.ack(take(queue, b), [Count("B", "u2")])
    held = take(queue, a)
    monkeypatch.setattr(*INTERRUPTED[where], killed)
    with pytest.raises(Killed):
        queue.ack(held, [Count("B", "u1")])
    revive(monkeypatch)
    finished_by_a_keeper(connect, queue, a)
    state = queue.batches.state("B")
    assert state is not None
    assert (state.total, state.pending, state.failed) == (2, 0, 0)
    assert [queue.sizes(name).ready for name in three] == [1, 0, 1]
    assert queue.connection.send(queue.connection.plain("HLEN", "qd:batch:{B}:ends")) == 0


def test_unsent_jobs_of_a_batch_are_sent_when_another_one_ends(
    queue: ClusterQueue, three: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, _ = three
    queue.batches.send(NewBatch("B", "", False, {}), [Entry(a, "u1", job(1), 0.0)])
    monkeypatch.setattr(deferred, "send_once", killed)
    with pytest.raises(Killed):
        queue.batches.add("B", [Entry(b, "u2", job(2), 0.0)])
    revive(monkeypatch)
    assert queue.sizes(b).ready == 0
    held = take(queue, a)
    assert queue.ack(held, [Count("B", "u1")])
    assert queue.ack(take(queue, b), [Count("B", "u2")])
    state = queue.batches.state("B")
    assert state is not None
    assert (state.total, state.pending) == (2, 0)


def unique(queue: str, n: int) -> Outgoing:
    return Outgoing(queue, job(n), 0.0, "shop:7", f"id{n}", 3600.0)


def test_the_lock_of_a_job_that_was_never_sent_expires_soon(
    queue: ClusterQueue, three: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyspace, "finish", killed)
    real = keyspace.take_locks
    monkeypatch.setattr(keyspace, "take_locks", lambda *words: real(*words) and killed())
    with pytest.raises(Killed):
        queue.post([unique(three[0], 1)])
    assert 0 < call(queue, "PTTL", "qd:unique:shop:7") <= deferred.FIRST
    assert queue.sizes(three[0]).ready == 0


def test_the_lock_of_a_sent_job_is_extended_even_if_its_producer_died(
    connect: Connect, queue: ClusterQueue, three: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyspace, "finish", killed)
    with pytest.raises(Killed):
        queue.post([unique(three[0], 1)])
    revive(monkeypatch)
    assert call(queue, "PTTL", "qd:unique:shop:7") <= deferred.FIRST
    finished_by_a_keeper(connect, queue, three[0])
    assert call(queue, "TTL", "qd:unique:shop:7") > 3500
    assert queue.post([unique(three[1], 2)]) == ["id1"]
    assert [queue.sizes(name).ready for name in three] == [1, 0, 0]


@pytest.mark.parametrize("kind", ["push", "single", "keyed"])
@each_interruption
def test_a_tick_sends_its_job_once_even_if_its_scheduler_is_killed(
    connect: Connect, queue: ClusterQueue, three: list[str], kind: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = three[1]
    jobs = {
        "push": Outgoing(name, job(1)),
        "single": unique(name, 1),
        "keyed": Outgoing(name, job(1), key="00000.id1 order:7"),
    }
    claim = Claim(name, "entry", b"", b"1 x y", 1, jobs[kind])
    monkeypatch.setattr(*INTERRUPTED[where], killed)
    with pytest.raises(Killed):
        queue.ticks.begin([claim])()
    revive(monkeypatch)
    assert queue.ticks.read(["entry"]) == [b"1 x y"]
    assert queue.connection.send(queue.connection.plain("HLEN", "qd:{ticks}:ends")) == 1
    keeper = connect(2, "K33p3rK33p3r")
    eventually(
        lambda: beat(keeper, name) and not queue.connection.send(queue.connection.plain("HLEN", "qd:{ticks}:ends"))
    )
    assert queue.sizes(name).ready == 1
    assert call(queue, "TTL", "qd:unique:shop:7") > 3500 or kind != "single"
    assert queue.ticks.begin([claim])()[0].found == b"1 x y"


def test_a_tick_is_not_taken_while_the_node_of_its_queue_is_unreachable(
    cluster: Cluster, queue: ClusterQueue, three: list[str]
) -> None:
    clock = cluster.node_of("qd:{ticks}")
    name, other = (name for name in three if cluster.node_of(f"queues:{{{name}}}") is not clock)
    claims = [Claim(each, each, b"", b"1 x y", 1, Outgoing(each, job(1))) for each in (name, other)]
    queue.ticks.read(["entry"])
    with node_down(cluster, name):
        refused, taken = queue.ticks.begin(claims)()
        assert (refused.refused is not None, refused.taken, taken.taken) == (True, False, True)
    assert queue.ticks.read([name, other]) == [b"", b"1 x y"]


def test_failed_jobs_are_sent_again_with_their_locks_and_their_batch(queue: ClusterQueue, three: list[str]) -> None:
    from qd.store.base import keyspace_store
    from qd.store.failed import FailedStore

    a = three[0]
    text = job(1, uuid="u1", qd={"unique": "n", "batch": "B", "hold": 600, "result": 60})
    queue.batches.send(NewBatch("B", "", False, {}), [Entry(a, "u1", text, 0.0)])
    held = take(queue, a)
    call(queue, "HSET", "qd:job:id1", "status", "failed")
    assert queue.bury(held, b'{"id":"x"}', text, [Count("B", "u1", "failed", f"{a} {held.mark}")])
    assert is_cancelled(queue.batches)
    store = FailedStore(keyspace_store(queue))
    (record,) = store.records([a])
    call(queue, "SET", "qd:unique:n", "another")
    assert store.retry(a, [record], time.time(), resumes="B") == ["another job has the lock of its unique name"]
    call(queue, "DEL", "qd:unique:n")
    assert store.retry(a, [record], time.time(), resumes="B") == [None]
    assert store.retry(a, [record], time.time(), resumes="B") == [""]
    assert (queue.sizes(a).ready, queue.sizes(a).failed, noted(queue, a)) == (1, 0, 0)
    assert call(queue, "GET", "qd:unique:n") == b"u1"
    assert 500 < call(queue, "TTL", "qd:unique:n") <= 600
    assert call(queue, "EXISTS", "qd:job:id1") == 0
    assert not is_cancelled(queue.batches)


def test_reserving_a_unique_job_extends_its_lock(queue: ClusterQueue, three: list[str]) -> None:
    text = job(1, uuid="id1", qd={"unique": "shop:7", "hold": 600})
    assert queue.post([Outgoing(three[0], text, 0.0, "shop:7", "id1", 20.0)]) == [None]
    take(queue, three[0])
    assert 500 < call(queue, "TTL", "qd:unique:shop:7") <= 600


# -- several queues


def test_a_wait_ends_with_a_job_on_any_node_and_leaves_other_tokens(
    connect: Connect, queue: ClusterQueue, three: list[str]
) -> None:
    for name in three:
        producer = connect(0, "")
        pushing = threading.Timer(0.2, producer.push, (name, job(1)))
        began = time.monotonic()
        pushing.start()
        queue.wait(three, 60.0, -1)
        pushing.join()
        assert time.monotonic() - began < 40
        assert queue.ack(take(queue, *three))
    push_many(queue, [(name, job(1), None) for name in three])
    queue.wait(three, 10.0, -1)
    tokens = [call(queue, "LLEN", f"queues:{name}:notify") for name in three]
    assert sum(tokens) >= 2


def test_a_job_is_acked_before_the_next_one_is_reserved(queue: ClusterQueue, three: list[str]) -> None:
    a, b, c = three
    push_many(queue, [(name, job(n), None) for n, name in enumerate((c, b, a, b, c))])
    done, seen = None, []
    while True:
        turn = queue.turn(done, three)
        assert turn.acked is (None if done is None else True)
        if turn.reserved is None:
            break
        assert sum(queue.sizes(name).reserved for name in three) == 1
        done = turn.reserved
        seen.append(done.queue)
    assert seen == [a, b, b, c, c]


def test_no_job_is_reserved_if_the_ack_cannot_be_sent(
    cluster: Cluster, queue: ClusterQueue, three: list[str], connect: Connect
) -> None:
    a, b, _ = three
    queue.push(b, job(1))
    held = take(queue, a, b)
    connect(0, "").push(a, job(2))
    with node_down(cluster, b):
        with pytest.raises(ConnectionLost):
            queue.turn(held, [a, b])
        found = connect(3).sizes(a)
        assert (found.ready, found.reserved) == (1, 0)
    assert eventually(lambda: holds_nothing(queue, [a, b])) is True
    turn = queue.turn(None, [a, b])
    assert turn.reserved is not None
    assert turn.reserved.queue == a
    assert queue.sizes(b).reserved == 0


def holds_nothing(queue: ClusterQueue, queues: list[str]) -> bool:
    """Query the held job as a worker does after a broken call."""
    try:
        return queue.held(queues) is None
    except ConnectionLost:
        return False


# -- an unreachable node


def test_an_unreachable_node_affects_only_its_own_queues(
    cluster: Cluster, connect: Connect, queue: ClusterQueue, three: list[str]
) -> None:
    a, b, c = three
    push_many(queue, [(name, job(n), None) for n, name in enumerate(three)])
    with node_down(cluster, a):
        found = [worked(queue, a, b, c).queue]
        done = take(connect(2), a, b, c)
        assert {*found, done.queue} == {b, c}
        producer = connect(0, "")
        with pytest.raises(ConnectionLost):
            producer.push(a, job(9))
        producer.push(b, job(9))
        began = time.monotonic()
        connect(3).wait([a, c], 120.0, -1)
        assert time.monotonic() - began < 60  # shorter than the given timeout: the node is checked again
        assert beat(connect(4, "K33p3rK33p3r"), a, b, c).now > 0
    eventually(lambda: tried(lambda: connect(5).turn(None, [a]).reserved), what="the job of the restarted node")


def test_a_hung_node_is_waited_for_once_and_its_late_reservation_is_returned(
    cluster: Cluster, connect: Connect, queue: ClusterQueue, three: list[str]
) -> None:
    """It executes commands that it received while stopped, and reserves a job for a worker that has moved on."""
    a, b, _ = three
    take_nothing(queue, a, b)
    stopped = psutil.Process(process_of(cluster, a))
    producer = connect(0, "")
    push_many(producer, [(name, job(n), None) for n, name in enumerate((a, b, b))])
    stopped.suspend()
    try:
        queue.patience(1.0, 1.0)
        with pytest.raises(ConnectionLost):
            queue.turn(None, [a, b])
        queue.patience(60.0, 60.0)  # for one more of its replies
        began = time.monotonic()
        assert queue.held([a, b]) is None
        first = worked(queue, a, b)
        assert queue.ack(first)
        second = worked(queue, a, b)
        assert time.monotonic() - began < 60, "it was waited for again"
    finally:
        stopped.resume()
    assert (first.queue, second.queue) == (b, b)
    assert queue.ack(second)
    assert worked(queue, a, b).queue == a


def process_of(cluster: Cluster, name: str) -> int:
    process = cluster.node_of(f"queues:{{{name}}}").process
    assert process is not None
    return process.pid


def take_nothing(queue: ClusterQueue, *queues: str) -> None:
    assert queue.turn(None, queues).reserved is None


def worked(queue: ClusterQueue, *queues: str) -> Reserved:
    """The next job as a worker reserves it: after a broken call it queries what it holds."""

    def once() -> Reserved | None:
        try:
            return queue.turn(None, queues).reserved
        except ConnectionLost:
            held: Reserved | None = tried(lambda: queue.held(queues))
            return held

    return eventually(once, what="a job")


def tried(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except ConnectionLost:
        return None


# -- answers that are left while a node is unreachable


AFTER: list[Effect] = [Free("n", "me")]
WAYS: list[Callable[[ClusterQueue, Reserved], bool]] = [
    lambda queue, held: queue.ack(held, AFTER),
    lambda queue, held: queue.release(held, Released(held.member, 60.0), AFTER),
    lambda queue, held: queue.bury(held, b"{}", b"{}", AFTER),
]


@pytest.fixture
def left(cluster: Cluster, connect: Connect, three: list[str]) -> list[tuple[ClusterQueue, Reserved]]:
    """Three workers that held a job of the first queue and left their answers (done, released, failed) on another node."""
    a, b, _ = three
    workers = [connect(slot) for slot in range(3)]
    for worker in workers:
        take_nothing(worker, a, b)
    push_many(workers[0], [(a, job(n), None) for n in range(3)])
    held = [take(worker, a, b) for worker in workers]
    with node_down(cluster, a):
        for worker, one, way in zip(workers, held, WAYS, strict=True):
            assert worker.leave(one, partial(way, worker), sure=True)
        assert noted(workers[0], b) == 3
        beat(connect(9, "K33p3rK33p3r"), a, b)
        assert noted(workers[0], b) == 3
    call(connect(8), "SET", "qd:unique:n", "me")
    return list(zip(workers, held, strict=True))


def settled_once(queue: ClusterQueue, a: str, b: str) -> bool:
    sizes = queue.sizes(a)
    counts = (sizes.ready, sizes.delayed, sizes.reserved, sizes.failed)
    return counts == (0, 1, 0, 1) and not noted(queue, b) and call(queue, "GET", "qd:unique:n") is None


def test_a_keeper_applies_a_left_answer_once_the_node_is_back(
    connect: Connect, queue: ClusterQueue, three: list[str], left: list[tuple[ClusterQueue, Reserved]]
) -> None:
    a, b, _ = three
    keeper, given = connect(9, "K33p3rK33p3r"), dict[bytes, bool]()

    def beats() -> bool:
        given.update({each.member: each.there for each in beat(keeper, a, b).late_answers})
        return len(given) == len(left)

    eventually(beats, what="applied answers")
    assert given == {held.member: True for _, held in left}
    assert settled_once(queue, a, b)
    assert [call(queue, "HGET", f"queues:{a}:owners", worker.owner) for worker, _ in left] == [None] * 3


@pytest.mark.parametrize("actor", ["the keeper of dead workers", "the worker itself"])
def test_a_job_with_a_left_answer_is_neither_requeued_nor_run(
    connect: Connect, queue: ClusterQueue, three: list[str], left: list[tuple[ClusterQueue, Reserved]], actor: str
) -> None:
    a, b, _ = three
    keeper = connect(9, "K33p3rK33p3r")
    beat_without_notes(keeper, a, b)
    for worker, _ in left:
        if actor == "the worker itself":
            queue.push(b, job(9))
            found = worked(worker, a, b)
            assert found.queue == b
            assert worker.ack(found)
            assert [each.there for each in worker.late_answers()] == [True]
        else:
            found_so = eventually(partial(owned, keeper, a, worker.owner), what="the node")
            assert found_so == [None]
    assert settled_once(queue, a, b)


def test_a_keeper_of_another_pool_applies_answers_left_by_a_dead_master(
    connect: Connect, queue: ClusterQueue, three: list[str], left: list[tuple[ClusterQueue, Reserved]]
) -> None:
    a, b, c = three
    keeper: Any = connect(9, "K33p3rK33p3r")
    sender: Any = None
    lines = list[object]()
    log = Log("keeper", write=lines.append)
    dead = DeadWorkers(keeper, (c,), ChildContext(Scoreboard(), sender, "K33p3rK33p3r", 1, log), log)
    theirs = MasterReport("Tok3nTok3n", "app-1", 1, 0.0, 0.0, connection="redis", queues=[a, b])
    assert eventually(lambda: tried(lambda: [dead._give_back_all(theirs, {})]), what="the node") == [True]
    assert settled_once(queue, a, b)
    assert not lines


def beat_without_notes(keeper: ClusterQueue, *queues: str) -> None:
    """Beat once for these queues without applying the answers left on their nodes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deferred, "LEFT", 3600.0)
        beat(keeper, *queues)


def owned(keeper: ClusterQueue, name: str, owner: str) -> Any:
    return tried(lambda: [keeper.owned(name, owner)])


def test_a_left_answer_reports_a_lost_lease(
    cluster: Cluster, connect: Connect, queue: ClusterQueue, three: list[str]
) -> None:
    a, b, _ = three
    take_nothing(queue, a, b)
    queue.push(a, job(1))
    held, keeper = take(queue, a, b), connect(2, "K33p3rK33p3r")
    with node_down(cluster, a):
        assert queue.leave(held, queue.ack, sure=True)
    eventually(lambda: tried(lambda: call(queue, "ZREM", f"queues:{a}:reserved", held.member)), what="a lost lease")
    given = eventually(lambda: beat(keeper, a, b).late_answers, what="an applied answer")
    assert given == ((a, held.member, False),)
    assert noted(queue, b) == 0


def test_a_left_answer_holds_for_the_reservation_even_after_a_late_checkpoint(
    cluster: Cluster, connect: Connect, queue: ClusterQueue, three: list[str]
) -> None:
    a, b, _ = three
    take_nothing(queue, a, b)
    queue.push(a, job(1))
    held, keeper = take(queue, a, b), connect(2, "K33p3rK33p3r")
    assert queue.checkpoint(held, saving(held.member, held.mark, b"1"))
    with node_down(cluster, a):
        assert queue.leave(held, queue.ack, sure=True)
    given = eventually(lambda: beat(keeper, a, b).late_answers, what="an applied answer")
    assert [each.there for each in given] == [True]
    assert queue.sizes(a).reserved == 0


def test_no_answer_is_left_if_no_other_node_has_a_queue_of_the_worker(
    cluster: Cluster, queue: ClusterQueue, three: list[str]
) -> None:
    a, *_ = three
    queue.push(a, job(1))
    held = take(queue, a)
    with node_down(cluster, a):
        assert not queue.leave(held, queue.ack, sure=True)


@pytest.mark.parametrize("again", [True, False], ids=["released", "failed"])
def test_a_job_ends_although_the_node_of_its_lock_places_is_unreachable(
    cluster: Cluster, connect: Connect, queue: ClusterQueue, three: list[str], again: bool
) -> None:
    """A keeper frees the places once the node is back; the places of a later attempt stay."""
    a, b, _ = three
    gone, store = cluster.node_of(f"queues:{{{a}}}"), keyspace_store(queue)
    owner = next(str(n) for n in range(1000) if cluster.node_of(f"qd:places:{n}") is gone)
    take_nothing(queue, a, b)
    queue.push(b, job(1, id=owner))
    held = take(queue, a, b)
    on = [
        next(f"qd:lock:{n}" for n in range(1000) if cluster.node_of(f"qd:lock:{n}") is node) for node in cluster.nodes
    ]
    first, *others = [Places(key, 1, 3600) for key in on]
    later = Places("qd:lock:later", 1, 3600)
    assert [place.take(store, owner, held.mark) for place in (first, *others)] == [0, 0, 0]
    assert later.take(store, owner, "a later attempt") == 0
    log = Log("worker", write=lambda _: None)
    connection = WorkerConnection(queue, Rota((a, b)), log, lambda _: time.sleep(0.01))
    settings = SimpleNamespace(max_payload=0, failed=SimpleNamespace(enabled=True, database=""))
    attempts: Any = SimpleNamespace(
        app=SimpleNamespace(settings=settings),
        payload=read(held.member),
        unfreed=True,
        row=None,
        signing=None,
        emitter=SimpleNamespace(lock=threading.Lock(), attempts={}),
    )
    ending = Settlement(connection, attempts, Scoreboard().slot(1))
    context: Any = SimpleNamespace(board=Scoreboard())
    keeper: Any = connect(9, "K33p3rK33p3r")
    with node_down(cluster, a):
        assert DeadWorkers(keeper, (a, b), context, log)._left(held.member, held.mark) == (Vacate(owner, held.mark),)
        ending.settle(HeldJob(held), Back(60.0, "its lock is taken") if again else Failed(ValueError("no")), 0.0)
        assert (queue.sizes(b).delayed, queue.sizes(b).failed) == (int(again), int(not again))
        assert noted(queue, b) == 1
    eventually(lambda: tried(lambda: beat(keeper, a, b) and not noted(queue, b)), what="freed places")
    assert [place.take(store, "another", "mark") for place in (first, *others)] == [0, 0, 0]
    assert (later.take(store, "another", "mark") > 0) is again


READY = ("queues:b", "queues:b:delayed", "queues:b:notify")
HELD = ("queues:a:reserved", "queues:a:owners")
FORGED = {
    "of an unknown kind": ("bogus", ("queues:b",), ()),
    "without names": ("free", (), ("x",)),
    "without values": ("free", ("qd:unique:x",), ()),
    "of places without names": ("vacate", (), ("x",)),
    "of places without values": ("vacate", ("qd:places:x",), ()),
    "of a job without a payload": ("push", READY, ()),
    "of a job with an invalid due time": ("push", READY, (b"{}", "later")),
    "of a job that is null": ("push", READY, (None, 0)),
    "of a list": ("count", ("qd:batch:x", "qd:batch:x:pending", "qd:batch:x:failed"), ("u", "done", "", [1])),
    "of an invalid queue": ("free", ("queues:}x",), ("y",)),
    "of an empty answer": ("answer", (), ()),
    "of an answer for a list": ("answer", HELD, ("ack", 1, [1], b"m")),
    "of an answer with an unknown effect": ("answer", (*HELD, "x"), ("ack", 1, "o", b"m", "bogus", 1)),
    "of an answer with half an effect": ("answer", (*HELD, "x"), ("ack", 1, "o", b"m", "free")),
}


@pytest.mark.parametrize("part", FORGED.values(), ids=[name.replace(" ", "-") for name in FORGED])
def test_a_keeper_skips_an_invalid_note(
    connect: Connect, queue: ClusterQueue, three: list[str], part: tuple[Any, ...]
) -> None:
    """Any client may write into that hash. Valid notes next to it are processed."""
    name, *_ = three
    call(queue, "SET", "qd:unique:n", "me")
    true = deferred.Note("", "true", (deferred.Part("free", ("qd:unique:n",), ("me",)),))
    forged = deferred.Note("", "forged", (deferred.Part(*part),))
    for note in (forged, true):
        queue.connection.send(queue.connection.plain("HSET", f"queues:{{{name}}}:ends", note.id, b"1.000 " + note.text))
    keeper = connect(9, "K33p3rK33p3r")
    assert beat(keeper, name).late_answers == ()
    assert call(queue, "GET", "qd:unique:n") is None
    assert noted(queue, name) == 1


# -- slots that move


def test_jobs_are_done_once_while_their_slot_moves_to_and_fro(
    cluster: Cluster, connect: Connect, three: list[str]
) -> None:
    name, home, other = three[0], cluster.nodes[0], cluster.nodes[1]
    slot, moved, over = slot_of(f"queues:{{{name}}}"), threading.Event(), threading.Event()
    done, sent = Counter[int](), list[int]()

    def produces() -> None:
        producer = connect(0, "")
        while not moved.is_set():
            eventually(partial(pushed, producer, len(sent)), what="a push")
            sent.append(len(sent))

    def pushed(producer: ClusterQueue, n: int) -> bool:
        try:
            producer.push(name, job(n))
        except ConnectionLost:
            return False
        return True

    def works() -> None:
        worker, held = connect(7), None
        while not over.is_set() or held is not None:
            try:
                turn = worker.turn(held, [name])
            except ConnectionLost:
                (mine,) = eventually(lambda: tried(lambda: (worker.held([name]),)))
                if held is not None and (mine is None or mine.mark != held.mark):
                    done[number(held)] += 1  # its ack was done
                held = mine
                continue
            if held is not None:
                done[number(held)] += int(turn.acked or 0)
            held = turn.reserved

    threads = [threading.Thread(target=each) for each in (produces, works)]
    for thread in threads:
        thread.start()
    try:
        for node in (other, home):
            eventually(partial(longer, sent, len(sent) + 50), what="jobs before the move")
            cluster.forget_errors()
            cluster.moves(slot, node, lambda: eventually(lambda: refused(cluster), what="a call during the move"))
        moved.set()
        threads[0].join(60)
        eventually(lambda: sum(done.values()) >= len(sent), 60, what="all jobs")
    finally:
        moved.set()
        over.set()
        for thread in threads:
            thread.join(30)
    assert sorted(done) == sent
    assert max(done.values()) == 1


def longer(found: list[int], than: int) -> bool:
    return len(found) > than


def refused(cluster: Cluster) -> bool:
    """Whether calls have reached a slot whose keys are on two nodes."""
    return any(word in cluster.errors() for word in ("errorstat_ASK", "errorstat_TRYAGAIN"))


def number(held: Reserved) -> int:
    import json

    return int(json.loads(held.member)["data"]["n"])


def test_a_client_with_an_outdated_slot_map_follows_and_runs_nothing_twice(
    cluster: Cluster, connect: Connect, three: list[str]
) -> None:
    name = three[0]
    queue, slot = connect(), slot_of(f"queues:{{{name}}}")
    queue.push(name, job(1))
    cluster.moves(slot, cluster.nodes[2])
    try:
        queue.push(name, job(2))
        held = take(queue, name)
        assert queue.ack(held)
        assert queue.sizes(name).ready == 1
        queue.wait([name], 1.0, -1)
        assert queue.ack(take(queue, name))
    finally:
        cluster.moves(slot, cluster.nodes[0])


def test_scripts_that_a_server_does_not_know_are_sent_again_however_slow_it_is(
    cluster: Cluster, connect: Connect, three: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = connect()
    for name in three:
        queue.push(name, job(1))
    for client in cluster.clients():
        client.call("SCRIPT", "FLUSH")
        client.close()
    monkeypatch.setattr("qd.drivers.cluster.client.PATIENCE", -1.0)
    calls = [ScriptCall(script("push"), [keys.ready(name), keys.notify(name)], [job(2)]) for name in three]
    assert queue.space.run_many(calls) == [1, 1, 1]
    for name in three:
        queue.clear(name)


def test_the_error_for_a_server_that_is_not_a_cluster_names_the_right_url(server: Server) -> None:
    settings = ConnectionSettings(name="redis", url=f"redis+cluster://127.0.0.1:{server.port}", retry_after=LEASE)
    queue = ClusterQueue(settings)
    with pytest.raises(OtherKind, match=r"is not part of a cluster: write redis://127\.0\.0\.1"):
        queue.push("a", job(1))
    queue.close()


def test_the_error_for_a_cluster_used_as_a_single_server_names_the_right_url(cluster: Cluster) -> None:
    queue = RedisQueue(ConnectionSettings(name="redis", url=f"redis://127.0.0.1:{cluster.nodes[0].port}"))
    for ask in (partial(queue.push, "a", job(1)), partial(queue.sizes, "a")):
        with pytest.raises(OtherKind, match=r"write redis\+cluster://"):
            ask()
    queue.close()
    cluster.forget_errors()  # the fixture treats a CROSSSLOT as a bug in qd


def test_names_are_found_on_all_nodes(connect: Connect, three: list[str]) -> None:
    from qd.store.base import keyspace_store
    from qd.store.masters import queues_found

    queue = connect(prefix="app_")
    push_many(queue, [(name, job(1), None) for name in (*three, "{shop}:mail")])
    assert queues_found(keyspace_store(queue)) == sorted([*three, "{shop}:mail"])
    assert isinstance(queue.connection.nodes.primaries()[0].connection, RedisConnection)
    assert keyspace.TICKED


# -- several jobs per worker: a turn is one call per slot, and each slot has a fence of its own

LANES = (1, 2, 3, 4)


def fill(queue: ClusterQueue, names: list[str], count: int = 100) -> None:
    push_many(queue, [(name, job(n), None) for name in names for n in range(count)])


def lanes(queue: ClusterQueue, names: list[str], **more: object) -> LaneReply:
    return queue.turn_lanes(LaneTurn(names, **{"lanes": LANES, **more}))  # type: ignore[arg-type]


def waiting(queue: ClusterQueue, name: str) -> list[bytes]:
    found: list[bytes] = call(queue, "LRANGE", f"queues:{name}", 0, -1)
    return found


def test_answers_go_to_their_slots_and_jobs_come_from_the_first_queue_that_has_some(queue, three):
    a, b, c = three
    fill(queue, [b, c])
    first = lanes(queue, three).jobs
    assert {held.queue for held in first} == {b}
    second = lanes(queue, [c, a, b], done=first[:2], back=first[2:], lanes=LANES[:2])
    assert second.lost == ()
    assert [(held.queue, read(held.member).id) for held in second.jobs] == [(c, "id0"), (c, "id1")]
    assert waiting(queue, b) == [job(n) for n in range(2, 100)]
    assert lanes(queue, three, done=[*first[:1], *second.jobs], lanes=()).lost == first[:1]
    queue.leave_lanes()
    assert [call(queue, "EXISTS", f"queues:{name}:{kind}") for name in three for kind in ("owners", "reserved")] == [
        0
    ] * 6


def test_a_turn_whose_reply_is_lost_fences_off_later_ones_on_that_slot_only(queue, three):
    a, b, _ = three
    fill(queue, [a, b])
    lost = lanes(queue, [b]).jobs
    queue._known.clear()
    held_of_a = lanes(queue, [a]).jobs
    assert {held.queue for held in held_of_a} == {a}
    with pytest.raises(ConnectionLost, match="whose reply"):
        lanes(queue, [b])
    assert queue.held_lanes([b], LANES) == list(lost)
    assert lanes(queue, three, done=[*lost, *held_of_a], lanes=()).lost == ()
    queue.leave_lanes()


def test_queues_of_an_unreachable_node_are_skipped_unless_the_worker_has_jobs_there(queue, three, cluster):
    a, b, _ = three
    fill(queue, [a, b])
    held = lanes(queue, [a]).jobs
    with node_down(cluster, b):
        with pytest.raises(ConnectionLost):
            lanes(queue, [b, a], done=held)
        assert queue.held_lanes([b, a], LANES) == list(held)
        more = lanes(queue, [b, a], done=held)
        assert (more.lost, {each.queue for each in more.jobs}, more.next_due) == ((), {a}, 1.0)
        assert queue.held_lanes([b, a], LANES) == list(more.jobs)
    assert lanes(queue, [a], done=more.jobs, lanes=()).lost == ()
    taken = lanes(queue, [b]).jobs
    with node_down(cluster, b):
        with pytest.raises(ConnectionLost):
            lanes(queue, [a, b], done=taken)
        with pytest.raises(ConnectionLost):
            queue.held_lanes([a, b], LANES)
    found = queue.held_lanes([a, b], LANES)
    assert lanes(queue, [a, b], done=found, lanes=()).lost == ()


def test_a_keeper_settles_the_lanes_of_a_dead_worker(queue, connect, three):
    a, keeper = three[0], connect(9)
    fill(queue, [a])
    held = lanes(queue, [a]).jobs
    answers = [LaneAnswer(each.owner, each.member, unstarted(each.member, each.mark)) for each in held]
    answers[0] = answers[0]._replace(text=None)
    answers[1] = answers[1]._replace(text=held[1].member, suspect=True)
    assert keeper.owned_by(a, [each.owner for each in held]) == {each.owner: each.member for each in held}
    assert keeper.settle_lanes(a, answers) == [True] * 4
    assert waiting(queue, a) == [job(n) for n in range(2, 100)]
    assert keeper.sizes(a).ready == 99
    keeper.forget_lanes([a], [queue.owner])
    assert call(queue, "EXISTS", f"queues:{a}:owners") == 0
    suspect: Reserved = keeper.turn(None, [a]).reserved
    assert read(suspect.member).id == "id1"
    assert keeper.ack(suspect)
