"""A model of two queues, three workers, a keeper and a PHP worker, run by Hypothesis against a real server.

Each rule is an event; after each event the state in Redis is compared with the expected state. Time is simulated: scores
are set back to make a delayed job due or a lease expire.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from qd.config.settings import ConnectionSettings
from qd.drivers.base import ClientIdentity
from qd.drivers.redis.queue import RedisQueue
from qd.drivers.types import Released, Reserved, Turn
from qd.errors import ConnectionLost, ServerRefused
from qd.payload.format import read
from qd.payload.reservation import answered, saving
from tests.contract.keyspace.test_queue import job
from tests.support.keeper import beat
from tests.support.redis import Client

QUEUES = ("a", "b")
SLOTS = (1, 2, 3)
TOKENS = tuple(f"Tok3nTok3{n}" for n in range(5))  # of a master and its successors
PREFIX = "p:"

# The whole state of a queue in one reply: ready, delayed, reserved, owners, tokens, failed.
LOOK = """
local k = KEYS[1]
local function call(...) local r = redis.pcall(...) if type(r) == 'table' and r.err then return {} end return r end
return {call('LRANGE', k, 0, -1), call('ZRANGE', k .. ':delayed', 0, -1),
        call('ZRANGE', k .. ':reserved', 0, -1, 'WITHSCORES'), call('HGETALL', k .. ':owners'),
        call('LLEN', k .. ':notify'), call('HVALS', k .. ':failed')}
"""

# What Laravel's worker does: decode, count, encode again.
PHP_POP = """
local p = redis.call('LPOP', KEYS[1])
local job = cjson.decode(p)
job.attempts = job.attempts + 1
local text = cjson.encode(job)
redis.call('ZADD', KEYS[2], redis.call('TIME')[1] + 30, text)
redis.call('LPOP', KEYS[3])
return text
"""


class Look:
    """The state of one queue."""

    def __init__(self, reply: list[Any]) -> None:
        self.ready, self.delayed, reserved, owners, self.tokens, failed = reply
        self.leases = dict(zip(reserved[::2], reserved[1::2], strict=True))
        self.reserved = [*self.leases]
        self.owners = dict(zip([field.decode() for field in owners[::2]], owners[1::2], strict=True))
        self.failed = [text.split(b"\n", 1)[1] for text in failed]

    def ids(self) -> Counter[str]:
        return Counter(id_of(text) for text in [*self.ready, *self.delayed, *self.reserved, *self.failed])


class Known(msgspec.Struct):
    id: str


def id_of(text: bytes) -> str:
    return msgspec.json.decode(text, type=Known).id


@dataclass
class Count:
    """The expected counts of a job's payload: attempts, crashes, and the attempts of an unanswered reservation."""

    attempts: int = 0
    crashes: int = 0
    unanswered: int | None = None

    def reserve(self) -> None:
        if self.unanswered == self.attempts:
            self.crashes += 1
        else:
            self.attempts += 1
        self.unanswered = self.attempts


slots, queues = st.sampled_from(SLOTS), st.sampled_from(QUEUES)
orders = st.sampled_from([("a", "b"), ("b", "a"), ("a",), ("b",)])
picks = st.integers(0, 2)
answers = st.sampled_from(["ack", "bury", "release", "release with a delay", "hand back"])


class Machine(RuleBasedStateMachine):
    socket: ClassVar[Path]
    client: ClassVar[Client]
    of_masters: ClassVar[list[dict[int, RedisQueue]]]  # by slot, for each master in order

    @classmethod
    def at(cls, socket: Path) -> type[Machine]:
        """The machine on the server at this unix socket."""
        settings = ConnectionSettings(name="redis", url=f"unix://{socket}", prefix=PREFIX, retry_after=30.0)
        made = [{slot: RedisQueue(settings, ClientIdentity(token, slot)) for slot in SLOTS} for token in TOKENS]
        return type("On", (cls,), {"socket": socket, "client": Client(str(socket)), "of_masters": made})

    @classmethod
    def close(cls) -> None:
        cls.client.close()
        for workers in cls.of_masters:
            for worker in workers.values():
                worker.close()

    @initialize()
    def begin(self) -> None:
        self.client.call("FLUSHALL")
        self.expected: Counter[str] = Counter()  # id -> expected number of payloads
        self.counts: dict[str, Count] = {}  # only of jobs that were pushed once
        self.hands: dict[int, Reserved] = {}
        self.dead: set[int] = set()
        self.master = 0
        self.left: set[str] = set()  # owners left by killed masters
        self.saved: dict[str, bytes] = {}  # id -> its last checkpoint
        self.number = 0
        for queue in QUEUES:
            self.push(queue, 1)

    @property
    def workers(self) -> dict[int, RedisQueue]:
        return self.of_masters[self.master]

    def owner(self, slot: int) -> str:
        return f"{TOKENS[self.master]}/{slot}"

    def look(self, queue: str) -> Look:
        return Look(self.client.call("EVAL", LOOK, 1, self.key(queue)))

    @staticmethod
    def key(queue: str, kind: str = "") -> str:
        return f"{PREFIX}queues:{queue}" + (f":{kind}" if kind else "")

    # -- sending

    def new(self) -> bytes:
        self.number += 1
        name = f"id{self.number}"
        self.expected[name], self.counts[name] = 1, Count()
        return job(self.number)

    @rule(queue=queues, many=st.integers(1, 3))
    def push(self, queue: str, many: int) -> None:
        self.workers[1].push_many([(queue, self.new(), None) for _ in range(many)])

    @rule(queue=queues)
    def push_the_same_again(self, queue: str) -> None:
        """Push the same bytes as the last job, whatever its state: they are two jobs."""
        name = f"id{self.number}"
        self.expected[name] += 1
        self.counts.pop(name, None)
        self.workers[1].push(queue, job(self.number))

    @rule(queue=queues, due=st.booleans())
    def later(self, queue: str, due: bool) -> None:
        self.workers[1].later(queue, self.new(), 60)
        if due:
            for payload in self.look(queue).delayed:
                self.client.call("ZADD", self.key(queue, "delayed"), "XX", 1, payload)

    # -- a worker

    def able(self, slot: int) -> bool:
        return slot not in self.dead

    def in_hand(self, slot: int) -> Reserved | None:
        return self.hands.get(slot) if self.able(slot) else None

    def leased(self, held: Reserved) -> bool:
        return held.member in self.look(held.queue).reserved

    def forget(self, held: Reserved) -> None:
        self.expected[id_of(held.member)] -= 1

    def count_of(self, text: bytes) -> Count | None:
        return self.counts.get(id_of(text))

    def taken(self, slot: int, turn: Turn) -> None:
        """Check and record the effects of a turn."""
        done = self.hands.pop(slot, None)
        if done is not None and turn.acked:
            self.forget(done)
        if turn.reserved is not None:
            self.hands[slot] = turn.reserved
            payload, count = read(turn.reserved.member), self.count_of(turn.reserved.member)
            assert payload.rsv == turn.reserved.mark
            assert bytes(payload.data).startswith(b'{"n":'), "its arguments are not what was pushed"
            if count is not None:
                count.reserve()
                assert (payload.attempts, payload.crashes) == (count.attempts, count.crashes)
                assert payload.checkpoint == self.saved.get(str(payload.id))

    def turn_of(self, slot: int, order: tuple[str, ...]) -> Turn:
        done = self.in_hand(slot)
        if done is not None and done.queue not in order:
            order = QUEUES  # a worker does not change its queues
        leased = done is not None and self.leased(done)
        before = {queue: self.look(queue) for queue in order}
        turn = self.workers[slot].turn(done, order)
        assert turn.acked == (leased if done is not None else None)
        if turn.reserved is None:
            assert not any(before[queue].ready for queue in order if queue not in turn.paused)
        return turn

    @rule(slot=slots, order=orders)
    def turn(self, slot: int, order: tuple[str, ...]) -> None:
        if self.able(slot):
            self.taken(slot, self.turn_of(slot, order))

    @rule(slot=slots, order=orders, paused=queues)
    def turn_beside_a_paused_queue(self, slot: int, order: tuple[str, ...], paused: str) -> None:
        if self.able(slot):
            self.client.call("SET", self.key(paused, "paused"), "{}")
            turn = self.turn_of(slot, order)
            self.client.call("DEL", self.key(paused, "paused"))
            assert turn.reserved is None or turn.reserved.queue != paused
            self.taken(slot, turn)

    @rule(slot=slots, order=orders, at=st.integers(0, 5))
    def turn_whose_reply_is_lost(self, slot: int, order: tuple[str, ...], at: int) -> None:
        """The worker queries what it holds, which must be the job of the lost reply. Before command `at` of the query the
        lease may be lost: then it holds nothing, and it is the owner of nothing."""
        if self.able(slot):
            turn = self.turn_of(slot, order)
            self.taken(slot, turn)
            with self.meanwhile(self.workers[slot], at, lambda: self.lose_what_it_holds(slot)):
                held_now = self.workers[slot].held(QUEUES)
            mine = self.hands.get(slot)
            assert (held_now and held_now.mark) == (mine and mine.mark)

    @contextmanager
    def meanwhile(self, worker: RedisQueue, at: int, happens: Callable[[], object]) -> Iterator[None]:
        """Inside, call `happens` just before the worker's command number `at`."""
        wire, commands = worker.connection, itertools.count()
        send = wire.send

        def interrupted(command: bytes) -> None:
            if next(commands) == at:
                happens()
            send(command)

        wire.send = interrupted  # type: ignore[method-assign]
        try:
            yield
        finally:
            del wire.send

    @rule(slot=slots, order=orders)
    def turn_that_comes_late(self, slot: int, order: tuple[str, ...]) -> None:
        """An abandoned call reaches the server after the worker has moved on: it reserves no second job, and a job that it
        reserves for a worker without one is found at the next turn."""
        if not self.able(slot):
            return
        worker, late = self.workers[slot], self.in_hand(slot)
        self.taken(slot, self.turn_of(slot, order))
        mine = self.hands.get(slot)
        with suppress(ConnectionLost):
            worker.turn(late, QUEUES)
        held_now = worker.held(QUEUES)
        if mine is not None:
            assert held_now is not None
            assert held_now.mark == mine.mark
        elif held_now is not None:
            try:
                again = worker.turn(None, QUEUES)
            except ConnectionLost:
                again = None
            assert again is None, "a second job for one worker"
            self.taken(slot, Turn(None, held_now, None, (), 0))

    def busy(self) -> list[int]:
        return [slot for slot in self.hands if self.able(slot)]

    some_worker_is_busy = precondition(lambda self: bool(self.busy()))

    @some_worker_is_busy
    @rule(which=picks, answer=answers, lost=st.integers(0, 2))
    def answer(self, which: int, answer: str, lost: int) -> None:
        """In one of three cases its lease is lost before: then the answer fails and changes nothing."""
        slot = self.busy()[which % len(self.busy())]
        if not lost:
            self.lose(self.hands[slot])
        held = self.hands.pop(slot)
        worker, leased, count = self.workers[slot], self.leased(held), self.count_of(held.member)
        if answer == "ack":
            assert worker.ack(held) is leased
            self.expected[id_of(held.member)] -= leased
        elif answer == "bury":
            assert worker.bury(held, b"{}", held.member) is leased
        else:
            attempts = read(held.member).attempts - (answer == "hand back")
            text = answered(held.member, held.mark, attempts=attempts)
            delay = 60 if answer == "release with a delay" else 0
            assert worker.release(held, Released(text, delay, head=answer == "hand back")) is leased
            if leased and count is not None:
                count.attempts, count.unanswered = attempts, None

    @some_worker_is_busy
    @rule(which=picks, state=st.integers(), lost=st.integers(0, 2))
    def checkpoint(self, which: int, state: int, lost: int) -> None:
        """The checkpoint replaces the reserved payload; a late copy of the call changes nothing."""
        slot = self.busy()[which % len(self.busy())]
        held = self.hands[slot]
        if not lost:
            self.lose(held)
        worker, leased = self.workers[slot], self.leased(held)
        lease = self.look(held.queue).leases.get(held.member)
        member = saving(held.member, held.mark, b"%d" % state)
        assert worker.checkpoint(held, member) is leased
        if leased:
            late = saving(held.member, held.mark, b'"late"')
            assert worker.checkpoint(held, late) is (member == held.member)
            member = late if member == held.member else member
            self.hands[slot] = held._replace(member=member)
            self.saved[id_of(member)] = read(member).checkpoint or b""
            assert self.look(held.queue).leases[member] == lease

    def lose(self, held: Reserved) -> None:
        """The lease expired, and PHP or a keeper of another host has requeued the job."""
        if self.client.call("ZREM", self.key(held.queue, "reserved"), held.member):
            self.client.call("RPUSH", self.key(held.queue), held.member)

    def lose_what_it_holds(self, slot: int) -> None:
        if slot in self.hands:
            self.lose(self.hands.pop(slot))

    @some_worker_is_busy
    @rule(which=picks, settled=st.booleans())
    def crash(self, which: int, settled: bool) -> None:
        self.dead.add(self.busy()[which % len(self.busy())])
        if settled:
            self.settle_the_dead()

    # -- the keeper

    @precondition(lambda self: self.dead)
    @rule(between=st.sampled_from(["", "it is lost", "another has it"]))
    def settle_the_dead(self, between: str = "") -> None:
        """The keeper queries what each dead worker held and requeues it. Between the two calls the lease may be lost, and
        another worker may have reserved the job."""
        for slot in self.dead:
            self.give_back(self.owner(slot), between)
            self.hands.pop(slot, None)
        self.dead.clear()

    def give_back(self, owner: str, between: str = "") -> None:
        keeper = self.workers[1]
        for queue in QUEUES:
            member = keeper.owned(queue, owner)
            if member is None:
                continue
            if between:
                self.lose(Reserved(queue, member, "", 0, 0, b""))
            free = [slot for slot in SLOTS if self.able(slot) and slot not in self.hands]
            if between == "another has it" and free:
                self.turn(free[0], (queue,))
            leased = member in self.look(queue).reserved
            assert keeper.give_back(queue, owner, member, Released(member)) is leased

    @precondition(lambda self: self.master < len(TOKENS) - 1)
    @rule()
    def kill_the_master(self) -> None:
        """All of its workers die with it; another master starts, with a new token."""
        self.left |= {self.owner(slot) for slot in self.hands}
        self.hands.clear()
        self.dead.clear()
        self.master += 1

    @precondition(lambda self: self.left)
    @rule(between=st.sampled_from(["", "it is lost", "another has it"]))
    def settle_the_dead_master(self, between: str) -> None:
        owners = {owner for queue in QUEUES for owner in self.workers[1].owners(queue)}
        for owner in sorted(owners & self.left):
            self.give_back(owner, between)
        self.left.clear()

    @rule(reclaim=st.booleans(), expired=st.booleans(), lost=st.booleans(), which=picks)
    def beat(self, reclaim: bool, expired: bool, lost: bool, which: int) -> None:
        """Before the beat, leases may expire and one may be lost."""
        if expired:
            for queue in QUEUES:
                for member in self.look(queue).reserved:
                    self.client.call("ZADD", self.key(queue, "reserved"), "XX", 1, member)
        if lost and self.busy():
            self.lose(self.hands[self.busy()[which % len(self.busy())]])
        before = {queue: self.look(queue) for queue in QUEUES}
        alive = [slot for slot in SLOTS if self.able(slot)]
        done = beat(self.workers[1], *QUEUES, slots=alive, reclaim=reclaim)
        held_now = set()
        for queue in QUEUES:
            was, now = before[queue], self.look(queue)
            assert set(now.reserved) <= set(was.reserved), "a beat created a lease"
            assert reclaim or len(now.reserved) == len(was.reserved)
            assert now.tokens >= min(64, len(now.ready)), "ready jobs without tokens"
            for slot in alive:
                member = was.owners.get(self.owner(slot))
                if member in was.reserved:
                    assert member in now.reserved, "the lease of a live worker was not renewed"
                elif member is not None:
                    held_now.add(f"{slot}:{read(member).rsv.split('.')[2]}")  # type: ignore[union-attr]
        assert set(done.lost) == held_now

    # -- PHP on the same queues

    @rule(queue=queues, ending=st.sampled_from(["done", "released", "killed", "at work"]))
    def php(self, queue: str, ending: str) -> None:
        ready = self.look(queue).ready
        if not ready or self.count_of(ready[0]) is None:
            return  # two equal payloads are one in its reserved set: a loss in Laravel itself
        text = self.client.call("EVAL", PHP_POP, 3, *[self.key(queue, kind) for kind in ("", "reserved", "notify")])
        count = self.count_of(text)
        assert count is not None
        count.attempts += 1
        if ending == "at work":
            return
        self.client.call("ZREM", self.key(queue, "reserved"), text)
        if ending == "done":
            self.expected[id_of(text)] -= 1
        elif ending == "released":
            self.client.call("ZADD", self.key(queue, "delayed"), 1, text)
        else:
            self.client.call("RPUSH", self.key(queue), text)

    # -- other events

    @rule(queue=queues, slot=slots, what=st.sampled_from(["clear", "flush", "", "reserved"]))
    def trouble(self, queue: str, slot: int, what: str) -> None:
        if what == "clear":
            look = self.look(queue)
            assert self.workers[1].clear(queue) == len(look.ready) + len(look.delayed)
            for text in [*look.ready, *look.delayed]:
                self.expected[id_of(text)] -= 1
        elif what == "flush":
            self.client.call("SCRIPT", "FLUSH")
        else:
            self.block_with_a_key_of_the_wrong_type(queue, what, self.workers[slot])

    def block_with_a_key_of_the_wrong_type(self, queue: str, kind: str, worker: RedisQueue) -> None:
        """Calls fail halfway, which must not lose a job. The first queue is empty, so that a script that checks its first
        keys does not fail at its start."""
        key = self.key(queue, kind)
        aside = bool(self.client.call("EXISTS", key)) and self.client.call("RENAME", key, "aside")
        self.client.call("SET", key, "foreign")
        mine = next((held for slot, held in self.hands.items() if self.workers[slot] is worker), None)
        calls: list[Callable[[], object]] = [lambda: beat(worker, queue)]
        if mine is None:
            calls.insert(0, lambda: worker.turn(None, ("empty", queue)))
        if mine is not None and mine.queue == queue and kind:
            calls.append(lambda: worker.checkpoint(mine, saving(mine.member, mine.mark, b"0")))
        for call in calls:
            with suppress(ServerRefused):
                call()
        self.client.call(*(("RENAME", "aside", key) if aside else ("DEL", key)))

    # -- invariants

    @invariant()
    def each_job_exists_once(self) -> None:
        found = Counter[str]()
        for queue in QUEUES:
            found += self.look(queue).ids()
        assert found == +self.expected

    @invariant()
    def owners_hold_what_is_reserved(self) -> None:
        for queue in QUEUES:
            look = self.look(queue)
            mine = {self.owner(slot): held.member for slot, held in self.hands.items() if held.queue == queue}
            for owner, member in look.owners.items():
                assert owner in self.left or mine.get(owner) == member, "an owner without a job"
            owned = [member for member in look.owners.values() if member in look.reserved]
            assert len(owned) == len(set(owned)), "two owners of one reservation"
            for slot, held in self.hands.items():
                if held.queue == queue and held.member in look.reserved:
                    assert look.owners.get(self.owner(slot)) == held.member, "a running job without an owner entry"
