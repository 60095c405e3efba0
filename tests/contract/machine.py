"""A model of two queues, three workers, a keeper and a PHP worker, run by Hypothesis against a real server.

Each rule is an event; after each event the state in Redis is compared with the expected state. Time is simulated: scores
are set back to make a delayed job due or a lease expire.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from qd.drivers.types import LaneAnswer, LaneTurn, Released, Reserved, Turn
from qd.errors import ConnectionLost, ServerRefused
from qd.payload.format import read
from qd.payload.reservation import answered, saving, split_mark, unstarted
from tests.contract.keyspace.test_queue import job
from tests.support.keeper import beat
from tests.support.payloads import push_many
from tests.support.redis import Client

QUEUES = ("a", "b")
SLOTS = (1, 2, 3)
WITH_LANES = 4  # the slot of a worker that has several jobs
LANES = (1, 2, 3, 4)
TOKENS = tuple(f"Tok3nTok3{n}" for n in range(5))  # of a master and its successors
PREFIX = "p:"

# The whole state of a queue in one reply: ready, delayed, reserved, owners, tokens, failed, suspects.
LOOK = """
local k = KEYS[1]
local function call(...) local r = redis.pcall(...) if type(r) == 'table' and r.err then return {} end return r end
return {call('LRANGE', k, 0, -1), call('ZRANGE', k .. ':delayed', 0, -1),
        call('ZRANGE', k .. ':reserved', 0, -1, 'WITHSCORES'), call('HGETALL', k .. ':owners'),
        call('LLEN', k .. ':notify'), call('HVALS', k .. ':failed'), call('LRANGE', k .. ':suspects', 0, -1)}
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
        self.ready, self.delayed, reserved, owners, self.tokens, failed, self.suspects = reply
        self.leases = dict(zip(reserved[::2], reserved[1::2], strict=True))
        self.reserved = [*self.leases]
        fields = dict(zip([field.decode() for field in owners[::2]], owners[1::2], strict=True))
        self.owners = {field: member for field, member in fields.items() if not field.endswith(":turn")}
        self.failed = [text.split(b"\n", 1)[1] for text in failed]

    def ids(self) -> Counter[str]:
        return Counter(
            id_of(text) for text in [*self.ready, *self.suspects, *self.delayed, *self.reserved, *self.failed]
        )


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
    alone: bool = True

    def reserve(self, *, alone: bool = True) -> None:
        if self.unanswered != self.attempts:
            self.attempts += 1
        elif self.alone:
            self.crashes += 1
        self.unanswered, self.alone = self.attempts, alone

    def not_started(self) -> None:
        self.attempts, self.unanswered = self.attempts - 1, None


slots, queues = st.sampled_from(SLOTS), st.sampled_from(QUEUES)
orders = st.sampled_from([("a", "b"), ("b", "a"), ("a",), ("b",)])
picks = st.integers(0, 2)
answers = st.sampled_from(["ack", "bury", "release", "release with a delay", "hand back"])


def lanes_command(worker: RedisQueue, turn: LaneTurn) -> bytes:
    """The command of a turn, which uses up its numbers but is not sent."""
    sent, known = list[bytes](), dict(worker._known)

    def keep(_run: object, _name: str, command: bytes) -> list[object]:
        sent.append(command)
        return [0, b"", -1, 0, b"", 0]

    worker._evaluate = keep  # type: ignore[method-assign, assignment]
    worker.turn_lanes(turn)
    del worker._evaluate
    worker._known.clear()
    worker._known.update(known)
    return sent[0]


class Machine(RuleBasedStateMachine):
    socket: ClassVar[Path]
    client: ClassVar[Client]
    of_masters: ClassVar[list[dict[int, RedisQueue]]]  # by slot, for each master in order

    @classmethod
    def at(cls, socket: Path) -> type[Machine]:
        """The machine on the server at this unix socket."""
        settings = ConnectionSettings(name="redis", url=f"unix://{socket}", prefix=PREFIX, retry_after=30.0)
        made = [
            {slot: RedisQueue(settings, ClientIdentity(token, slot)) for slot in (*SLOTS, WITH_LANES)}
            for token in TOKENS
        ]
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
        self.lanes: dict[int, Reserved] = {}  # of the worker with lanes
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
        push_many(self.workers[1], [(queue, self.new(), None) for _ in range(many)])

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
            waits = [before[queue].ready or before[queue].suspects for queue in order if queue not in turn.paused]
            assert not any(waits)
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
            self.taken(slot, Turn(None, held_now, None, ()))

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

    # -- a worker with lanes

    @property
    def laned(self) -> RedisQueue:
        return self.workers[WITH_LANES]

    def lane_turn(self, done: int, back: int, order: Sequence[str], asks: int, how: str) -> LaneTurn:
        """done, back: bits that pick jobs it holds."""
        finished = [held for lane, held in self.lanes.items() if done >> lane & 1]
        rest = [held for held in self.lanes.values() if held not in finished]
        returned = sorted([h for h in rest if back >> split_mark(h.mark).lane & 1], key=lambda held: held.turn)
        kept = {split_mark(held.mark).lane for held in rest if held not in returned}
        free = [lane for lane in LANES if lane not in kept][:asks]
        diverts, suspects = how == "diverts", how == "suspects"
        return LaneTurn(order, finished, returned, free, free[0] if free else 0, diverts=diverts, suspects=suspects)

    def took(
        self, turn: LaneTurn, lost: Sequence[Reserved], jobs: Sequence[Reserved], fits: Mapping[str, bool]
    ) -> None:
        """Record the effects of a turn. fits: whether each job that it answered was still leased."""
        for held in (*turn.done, *turn.back):
            self.lanes.pop(split_mark(held.mark).lane)
        assert [held.mark for held in lost] == [held.mark for held in turn.done if not fits[held.mark]]
        for held in turn.done:
            if fits[held.mark]:
                self.forget(held)
        for held in turn.back:
            if fits[held.mark] and (count := self.count_of(held.member)):
                count.not_started()
        for held in jobs:
            lane = split_mark(held.mark).lane
            assert lane not in self.lanes
            self.lanes[lane] = held
            payload, count = read(held.member), self.count_of(held.member)
            if count is not None:
                count.reserve(alone=lane == 0)
                assert (payload.attempts, payload.crashes) == (count.attempts, count.crashes)

    bits, asked, flags = st.sampled_from([0, 0, 2, 4, 20, 30]), st.integers(0, 3), st.booleans()
    hows = st.sampled_from(["", "", "diverts", "suspects"])

    @rule(done=bits, back=bits, order=st.permutations(QUEUES), asks=asked, how=hows, full=flags, lost=flags, late=flags)
    def turn_with_lanes(
        self, done: int, back: int, order: Sequence[str], asks: int, how: str, full: bool, lost: bool, late: bool
    ) -> None:
        """The reply may be lost; and a copy that was abandoned before may come late, after held_lanes."""
        if full and len(self.look(order[0]).ready) < 33:  # then it may take several
            push_many(self.workers[1], [(order[0], self.new(), None) for _ in range(33)])
        turn, worker = self.lane_turn(done, back, order, asks, how), self.laned
        if late:
            abandoned = lanes_command(worker, turn)
            worker.held_lanes(QUEUES, LANES)
        fits = {held.mark: self.leased(held) for held in (*turn.done, *turn.back)}
        heads = {queue: self.look(queue).ready for queue in QUEUES}
        known = dict(worker._known)
        reply = worker.turn_lanes(turn)
        for queue in QUEUES:  # jobs are taken from the head only, so the rest is in the order that was there before
            pushed = [unstarted(h.member, h.mark) for h in turn.back if h.queue == queue and fits[h.mark]]
            order_before, rest = [*pushed, *heads[queue]], self.look(queue).ready
            if order_before:
                assert order_before[len(order_before) - len(rest) :] == rest, "the queue is in another order"
        self.took(turn, reply.lost, reply.jobs, fits)
        if lost:
            worker._known.clear()
            worker._known.update(known)
            if reply.jobs:
                assert self.is_fenced_off(LaneTurn(turn.queues, lanes=turn.lanes)), "a turn after a lost reply"
            held = worker.held_lanes(QUEUES, LANES)
            assert {each.mark for each in held} == {h.mark for h in self.lanes.values() if self.leased(h)}
            self.lanes = {split_mark(each.mark).lane: each for each in held}
        if late:
            before = [vars(self.look(queue)) for queue in QUEUES]
            assert worker._evaluate(worker._planned(tuple(turn.queues)), "lanes", abandoned)[0] == -2, (
                "a late turn was executed"
            )
            assert [vars(self.look(queue)) for queue in QUEUES] == before

    def is_fenced_off(self, turn: LaneTurn) -> bool:
        try:
            self.laned.turn_lanes(turn)
        except ConnectionLost:
            return True
        return False

    @rule(which=picks)
    def lose_a_lane(self, which: int) -> None:
        if self.lanes:
            self.lose([*self.lanes.values()][which % len(self.lanes)])

    @rule(ends=st.lists(st.sampled_from(["done", "unstarted", "suspect"]), min_size=5, max_size=5), lost=st.booleans())
    def kill_the_worker_with_lanes(self, ends: list[str], lost: bool) -> None:
        """Its keeper settles all jobs. Between its two calls a lease may be lost."""
        answered, heads = list[tuple[str, Reserved, bool]](), {queue: self.look(queue).ready for queue in QUEUES}
        jobs = sorted(self.lanes.values(), key=lambda held: held.turn)
        for queue in QUEUES:
            owned = self.workers[1].owned_by(queue, [held.owner for held in jobs])
            own = [held for held in jobs if owned.get(held.owner) == held.member and held.queue == queue]
            assert len(own) == len(owned)
            assert all(held in own for held in jobs if held.queue == queue and self.leased(held))
            if lost and own:
                self.lose(own[0])
                heads[queue] = self.look(queue).ready
            some = [(end, held, self.leased(held)) for end, held in zip(ends, own, strict=False)]
            texts = {
                "done": lambda _: None,
                "unstarted": lambda h: unstarted(h.member, h.mark),
                "suspect": lambda h: h.member,
            }
            answers = [LaneAnswer(h.owner, h.member, texts[end](h), end == "suspect") for end, h, _ in some]
            assert self.workers[1].settle_lanes(queue, answers) == [leased for _, _, leased in some]
            pushed = [unstarted(h.member, h.mark) for end, h, leased in some if leased and end == "unstarted"]
            assert self.look(queue).ready == [*pushed, *heads[queue]], "the head of the queue is in another order"
            answered += some
        for end, held, leased in answered:
            count = self.count_of(held.member)
            if leased and end == "done":
                self.forget(held)
            elif leased and end == "unstarted" and count:
                count.not_started()
        self.workers[1].forget_lanes(QUEUES, [self.owner(WITH_LANES)])
        self.lanes.clear()

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
        self.left |= {self.owner(slot) for slot in self.hands} | {held.owner for held in self.lanes.values()}
        self.hands.clear()
        self.lanes.clear()
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
            assert self.workers[1].clear(queue) == len(look.ready) + len(look.suspects) + len(look.delayed)
            for text in [*look.ready, *look.suspects, *look.delayed]:
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
            mine |= {held.owner: held.member for held in self.lanes.values() if held.queue == queue}
            for owner, member in look.owners.items():
                assert owner in self.left or mine.get(owner) == member, "an owner without a job"
            owned = [member for member in look.owners.values() if member in look.reserved]
            assert len(owned) == len(set(owned)), "two owners of one reservation"
            for held in [*self.hands.values(), *self.lanes.values()]:
                if held.queue == queue and held.member in look.reserved:
                    assert look.owners.get(held.owner) == held.member, "a running job without an owner entry"
