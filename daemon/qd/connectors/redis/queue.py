"""Laravel's Redis queue: the contract of `base.Queue` in scripts.

    push / later                     ready or delayed, and a token
    turn    turn.lua                 ack the job before, lease the next: reserved + owners, one call a job
    wait    BLPOP on the tokens      ended at once by a signal
    ack, release, bury               what a turn cannot carry
    checkpoint                       the job in hand stands as another text
    held                             after a broken call: what is mine by the server's word

Keys and payloads as Laravel 8 and 13 keep them (Queue/RedisQueue.php, Queue/LuaScripts.php). One instance belongs to one
thread of one process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple

from qd.connectors.base import NONE, Jobs, Limits, Outgoing, Reserved, Sizes, Turn, reserved_of
from qd.connectors.effects import Effect
from qd.connectors.keeping import Answer, Asked
from qd.connectors.keyspace import keyed, keys
from qd.connectors.keyspace.base import Arg, Keyspace
from qd.connectors.keyspace.batches import KeptBatches
from qd.connectors.keyspace.beat import beat
from qd.connectors.keyspace.effects import spoken
from qd.connectors.keyspace.jobs import KeptJobs
from qd.connectors.keyspace.sending import sent
from qd.connectors.keyspace.ticks import KeptTicks
from qd.connectors.redis import rights
from qd.connectors.redis.wire import Wire, packed, packed_items, ready_of
from qd.connectors.scripts import script
from qd.errors import ConnectionLost

if TYPE_CHECKING:
    from qd.config import ConnectionSettings

CLEAR = 1000  # payloads a step of clear() reads at most, of ready and of delayed
MOVE = 100  # due jobs a turn moves at most
TAKEN = 16  # times max_payload: larger ones, which only another program can have sent, are not taken
DEATHS_TTL = 86400  # seconds a note of how a worker died waits for the next reserve
DEATHS = 1000  # notes kept; most are never asked for, since their job ran well the next time
NONE_SHUT = b"$0\r\n\r\n"
ANSWERS = ("turn", "ack", "release", "bury", "checkpoint", "free")
CREATED = re.compile(rb'"createdAt":(\d+)')


class Bounds(NamedTuple):
    """Of the failed store of each queue. records 0: nothing is kept."""

    records: int
    seconds: float
    bytes: int = 256 << 20


DEFAULT = Bounds(10_000, 30 * 86400.0)


class RedisQueue:
    """url and names from `settings`; token and slot say who reserves (a worker), and stay empty for a producer."""

    def __init__(
        self,
        settings: ConnectionSettings,
        *,
        token: str = "",
        slot: int = 0,
        turns: int = 0,
        name: str = "",
        keep: Bounds = DEFAULT,
        max_payload: int = 0,
    ) -> None:
        self.settings = settings
        self.wire = Wire(settings.url or "", name=name)
        self.batches = KeptBatches(self.wire, settings.prefix)
        self.owner = f"{token}/{slot}"
        self.base = f"{token}.{slot}."
        self.keep = keep
        self.longest = TAKEN * max_payload
        self.turns = turns  # made so far, also by those who had this slot before: no two reservations have one mark
        self.jobs: Jobs = KeptJobs(self.wire, settings.prefix)
        self.ticks = KeptTicks(self.wire, settings.prefix)
        self._heads: dict[tuple[str, ...], tuple[bytes, tuple[str, ...]]] = {}
        if token:  # whoever reserves must be able to answer, also when a job has left no descriptor to read a file with
            for each in ANSWERS:
                script(each)

    @property
    def kept(self) -> tuple[Keyspace, str]:
        return self.wire, self.settings.prefix

    @property
    def limits(self) -> Limits:
        return NONE

    def patience(self, connect: float, answer: float) -> None:
        self.wire.connect_timeout, self.wire.timeout = connect, answer

    def _keys(self, *names: str) -> list[str]:
        return [self.settings.prefix + name for name in names]

    # -- sending

    def push(self, queue: str, payload: bytes) -> None:
        self._add("push", (keys.ready(queue), keys.notify(queue)), [payload])

    def later(self, queue: str, payload: bytes, delay: float) -> None:
        self._add("later", (keys.delayed(queue), keys.notify(queue)), [delay, payload])

    def _add(self, name: str, names: tuple[str, str], args: Sequence[Arg]) -> None:
        """Only the number of jobs that were added is a yes."""
        added = script(name).call(self.wire, self._keys(*names), *args)
        if added != len(args) // (2 if name == "later" else 1):
            self.wire.close()
            raise ConnectionLost(self.wire.stranger)

    def push_many(self, jobs: Sequence[tuple[str, bytes, float | None]]) -> None:
        """In the order given within a queue; chunks of 1,000, each of them all or nothing."""
        self.post([Outgoing(queue, payload, delay or 0.0) for queue, payload, delay in jobs])

    def post(self, jobs: Sequence[Outgoing]) -> list[str | None]:
        """As push_many; each that needs a lock takes it in the same step."""
        return sent(self.wire, self._keys, jobs) if jobs else []

    def free(self, name: str, owner: str) -> bool:
        return bool(script("free").call(self.wire, self._keys(keys.unique(name)), owner))

    def cancel_keyed(self, queue: str, name: str) -> bool:
        return keyed.cancelled(self.wire, self._keys, queue, name)

    def move_keyed(self, queue: str, name: str, delay: float) -> bool:
        return keyed.moved(self.wire, self._keys, queue, name, delay)

    def keyed_due(self, queue: str, name: str) -> float | None:
        return keyed.due(self.wire, self._keys, queue, name)

    # -- working

    def turn(self, done: Reserved | None, queues: Sequence[str], shut: Sequence[str] = ()) -> Turn:
        head, names = self._head(tuple(queues))
        self.turns += 1
        base = f"{self.base}{self.turns}".encode()
        if done is None:
            tail = b"$%d\r\n%b\r\n$1\r\n0\r\n$0\r\n\r\n" % (len(base), base)
        else:
            place = b"%d" % (names.index(done.queue) + 1)
            tail = b"$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(base), base, len(place), place)
            tail += b"$%d\r\n%b\r\n" % (len(done.member), done.member)
        tail += NONE_SHUT if not shut else packed_items([places_of(names, shut)])
        reply = self.wire.evaluate(script("turn"), head + tail)
        acked, wait, malformed, index, member, mark, start, length, before = reply[:9]
        if acked == -2:
            raise ConnectionLost("Redis has run a call of this worker that was given up before")
        job = Reserved(names[index - 1], member, mark.decode(), start, length, before) if index else None
        paused = tuple([names[i - 1] for i in reply[9:]]) if len(reply) > 9 else ()
        return Turn(None if acked < 0 else acked == 1, job, None if wait < 0 else wait / 1000, paused, malformed)

    def _head(self, queues: tuple[str, ...]) -> tuple[bytes, tuple[str, ...]]:
        """The part of the turn's command that stays the same, packed once."""
        if queues not in self._heads:
            kinds = (keys.ready, keys.reserved, keys.delayed, keys.notify, keys.owners, keys.paused, keys.failed)
            names = [kind(queue) for queue in queues for kind in (*kinds, keys.failed_at)]
            fixed: list[Arg] = ["EVALSHA", script("turn").sha, len(names), *self._keys(*names)]
            fixed += [
                self.owner,
                self.settings.retry_after,
                MOVE,
                *self.keep,
                self.longest,
                *self._keys(keys.unique("")),
            ]
            body = packed_items(fixed)
            self._heads[queues] = (b"*%d\r\n" % (len(fixed) + 4) + body, queues)
        return self._heads[queues]

    def wait(self, queues: Sequence[str], seconds: float, wake: int) -> None:
        """One BLPOP. Left early by a signal, the connection is given up with it, and a token that came is put back."""
        names = self._keys(*[keys.notify(queue) for queue in queues])
        self.wire.send(packed(("BLPOP", *names, max(0.001, round(seconds, 3)))))
        in_time = self.wire.readable(seconds + self.wire.timeout, wake)
        token = self.wire.receive() if in_time else self.wire.leave()
        if token and ready_of([wake], 0):
            self.wire.call("RPUSH", token[0], "1")

    def ack(self, done: Reserved, effects: Sequence[Effect] = ()) -> bool:
        more, said = spoken(effects, self.settings.prefix)
        names = self._keys(keys.reserved(done.queue), keys.owners(done.queue), *more)
        return bool(script("ack").call(self.wire, names, self.owner, done.member, *said))

    def release(
        self, held: Reserved, text: bytes, delay: float, *, head: bool = False, effects: Sequence[Effect] = ()
    ) -> bool:
        return self.give_back(held.queue, self.owner, held.member, text, delay, head=head, effects=effects)

    def give_back(
        self,
        queue: str,
        owner: str,
        member: bytes,
        text: bytes,
        delay: float,
        *,
        head: bool = False,
        effects: Sequence[Effect] = (),
    ) -> bool:
        """The keeper's release: of a job that `owner`, now dead, held."""
        kinds = (keys.ready, keys.reserved, keys.delayed, keys.notify, keys.owners)
        more, said = spoken(effects, self.settings.prefix)
        names = self._keys(*[kind(queue) for kind in kinds], keys.CANCEL, *more)
        return bool(script("release").call(self.wire, names, owner, member, text, delay, int(head), *said))

    def bury(self, held: Reserved, record: bytes, raw: bytes, effects: Sequence[Effect] = ()) -> bool:
        kinds = (keys.reserved, keys.owners, keys.failed, keys.failed_at)
        more, said = spoken(effects, self.settings.prefix)
        names = self._keys(*[kind(held.queue) for kind in kinds], *more)
        args = (self.owner, held.member, held.mark, record, raw, *self.keep, *said)
        return bool(script("bury").call(self.wire, names, *args))

    def copied(self, queue: str, id: str) -> None:
        script("copied").call(self.wire, self._keys(keys.failed(queue)), "1", id)

    def checkpoint(self, held: Reserved, member: bytes) -> bool:
        names = self._keys(keys.reserved(held.queue), keys.owners(held.queue))
        return bool(script("checkpoint").call(self.wire, names, self.owner, held.member, member))

    def held(self, queues: Sequence[str]) -> Reserved | None:
        for queue in queues:
            while (member := self.owned(queue, self.owner)) is not None:
                held = reserved_of(queue, member, self.base)
                if self.wire.call("ZSCORE", *self._keys(keys.reserved(queue)), member) is not None:
                    return held
                # Its lease ran out, others may have run it, and only our name is left on it; or a checkpoint of ours,
                # whose reply was lost, came to pass between these two calls: then another text is found now.
                self.ack(held)
        return None

    # -- the dead, for keepers and for the next worker of their job

    def owned(self, queue: str, owner: str) -> bytes | None:
        """The payload that `owner` ("<token>/<slot>") holds, by its mark."""
        member: bytes | None = self.wire.call("HGET", *self._keys(keys.owners(queue)), owner)
        return member

    def owners(self, queue: str) -> list[str]:
        return [field.decode("utf-8", "replace") for field in self.wire.call("HKEYS", *self._keys(keys.owners(queue)))]

    def note_death(self, queue: str, mark: str, note: bytes) -> None:
        """Kept for the next reserve of the job. One more than DEATHS makes half of the others go, whichever."""
        (name,) = self._keys(keys.deaths(queue))
        commands: list[tuple[Arg, ...]] = [("HSET", name, mark, note), ("EXPIRE", name, DEATHS_TTL), ("HLEN", name)]
        count = self.wire.call_many(commands)[2]
        if isinstance(count, int) and count > DEATHS:
            others = [field for field in self.wire.call("HKEYS", name) if field != mark.encode()]
            self.wire.call("HDEL", name, *others[: DEATHS // 2])

    def death(self, queue: str, mark: str) -> bytes | None:
        """How the worker died that held the job under `mark`; told once."""
        (name,) = self._keys(keys.deaths(queue))
        note, _ = self.wire.call_many([("HGET", name, mark), ("HDEL", name, mark)])
        return note if isinstance(note, bytes) else None

    def beat(self, queues: Sequence[str], asked: Asked) -> Answer:
        return beat(self.wire, self.settings.prefix, queues, asked)

    def forget_aged(self, queue: str, seconds: float, most: int) -> int:
        names = self._keys(keys.failed(queue), keys.failed_at(queue))
        return int(script("aged").call(self.wire, names, seconds, most))

    def missing_rights(self, queue: str) -> set[str]:
        return rights.missing(self.wire, self.settings.prefix, queue)

    def user(self) -> str:
        return rights.name_of(self.wire)

    # -- looking

    def sizes(self, queue: str) -> Sizes:
        ready, delayed, reserved, failed = self._keys(
            keys.ready(queue), keys.delayed(queue), keys.reserved(queue), keys.failed(queue)
        )
        counts = self.wire.call_many(
            [
                ("LLEN", ready),
                ("ZCARD", delayed),
                ("ZCARD", reserved),
                ("HLEN", failed),
                ("LINDEX", ready, 0),
                ("TIME",),
            ]
        )
        for answer in counts:
            if isinstance(answer, Exception):
                raise answer
        return Sizes(counts[0], counts[1], counts[2], counts[3], age_of(counts[4], int(counts[5][0])))

    def clear(self, queue: str) -> int:
        """In steps, so that nobody is held up: of what stood there when it began, and what came meanwhile at most."""
        names = self._keys(keys.ready(queue), keys.delayed(queue), keys.notify(queue), keys.keyed(queue))
        (locks,), sizes, count = self._keys(keys.unique("")), self.sizes(queue), 0
        for _ in range(max(sizes.ready, sizes.delayed) // CLEAR + 1):
            count += sum(script("clear").call(self.wire, names, CLEAR, locks))
        return count

    def within(self, seconds: float) -> AbstractContextManager[None]:
        return self.wire.within(seconds)

    def beats(self, about: Callable[[float], None]) -> None:
        self.wire.about = about

    def close(self) -> None:
        self.wire.close()


def places_of(names: Sequence[str], shut: Sequence[str]) -> str:
    """` 2 3 `: which of `names` stand in `shut`, counted from 1; "" for none."""
    places = [str(place) for place, name in enumerate(names, 1) if name in shut]
    return f" {' '.join(places)} " if places else ""


def age_of(payload: bytes | None, now: int) -> float | None:
    created = CREATED.search(payload) if payload else None
    return float(max(0, now - int(created[1]))) if created else None
