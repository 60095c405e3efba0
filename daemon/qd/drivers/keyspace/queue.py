"""A queue on a keyspace: everything except the worker's turn and wait, which redis/queue.py and cluster/queue.py add.

    push, later, post        send jobs: to ready or delayed, with a token
    ack, release, bury       answers that a turn cannot carry
    checkpoint               replace the text of the reserved job
    held                     after a failed call: the job that this worker owns according to the server
    beat                     the keeper's script call, on any keyspace; without queues it handles the control values only

Keys and payloads are those of Laravel 8 and 13 (Queue/RedisQueue.php, Queue/LuaScripts.php). One instance belongs to one
thread of one process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

from qd.drivers.base import PRODUCER, ClientIdentity, Forgotten, Jobs, Ticks
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import MISTYPED, Arg, Keyspace, checked, chunked, naming, script, strange, strange_queue
from qd.drivers.keyspace.records import KeptBatches, KeptJobs, KeptTicks
from qd.drivers.keyspace.sending import effect_args, sent
from qd.drivers.types import NONE, BeatReply, BeatRequest, Effect, Outgoing, Released, Reserved, Sizes, reserved_of
from qd.errors import ConnectionLost, ServerRefused

if TYPE_CHECKING:
    from qd.config.settings import ConnectionSettings, FailedSettings


CLEAR = 1000  # maximum number of payloads that a step of clear() reads, of ready and of delayed
MOVE_CHUNK = 100  # maximum number of due jobs that a turn promotes
TAKEN = 16  # multiple of max_payload; larger payloads, which only another program can send, are not taken
DEATHS_TTL = 86400  # seconds for which a note on a worker's death waits for the next reserve
DEATHS = 1000  # notes kept; most are never read, because the job's next attempt succeeds
CREATED = re.compile(rb'"createdAt":(\d+)')
ANSWER_KEYS: dict[str, tuple[Callable[[str], str], ...]] = {  # of a queue, in the order of the scripts
    "ack": (keys.reserved, keys.owners),
    "release": (keys.ready, keys.reserved, keys.delayed, keys.notify, keys.owners, lambda _: keys.CANCEL),
    "bury": (keys.reserved, keys.owners, keys.failed, keys.failed_at),
}


class Bounds(NamedTuple):
    """Limits of the failed store of each queue. records: None for any number, 0 to keep none."""

    records: int | None
    seconds: float
    bytes: int = 64 << 20

    @property
    def args(self) -> tuple[Arg, Arg, Arg]:
        """For failed.lua."""
        return "" if self.records is None else self.records, self.seconds, self.bytes


DEFAULT = Bounds(None, 30 * 86400.0)


def bounds_of(kept: FailedSettings) -> Bounds:
    return Bounds(kept.max_count if kept.enabled else 0, kept.keep, kept.max_bytes)


class KeyspaceQueue:
    """keep: limits of the failed store; max_payload: bytes, 0 for no limit."""

    limits = NONE
    answers: tuple[str, ...] = ("turn", "ack", "release", "bury", "checkpoint", "free")

    def __init__(
        self,
        settings: ConnectionSettings,
        space: Keyspace,
        who: ClientIdentity = PRODUCER,
        *,
        keep: Bounds = DEFAULT,
        max_payload: int = 0,
    ) -> None:
        self.settings, self.space = settings, space
        self.batches = KeptBatches(space, settings.prefix)
        self.owner = f"{who.token}/{who.slot}"
        self.base = f"{who.token}.{who.slot}."
        self.keep = keep
        self.longest = TAKEN * max_payload
        self.turns = self.calls = self.begun = who.turns  # of earlier workers of this slot, so that each mark is unique
        self.jobs: Jobs = KeptJobs(space, settings.prefix)
        self.ticks: Ticks = KeptTicks(space, settings.prefix)
        if who.token:
            # Load the scripts now: a job may leave no free descriptor to read a file with.
            for each in self.answers:
                script(each)

    @property
    def kept(self) -> tuple[Keyspace, str]:
        return self.space, self.settings.prefix

    def patience(self, connect: float, answer: float) -> None:
        self.space.patience(connect, answer)

    def _keys(self, *names: str) -> list[str]:
        return [self.settings.prefix + name for name in names]

    def turned(self, locks: str) -> list[Arg]:
        """The constant arguments of take.lua. locks: prefix of the names of locks."""
        rarely = " ".join(map(str, (MOVE_CHUNK, *self.keep.args, locks)))
        return [*self.owner.split("/"), self.settings.retry_after, self.longest, rarely]

    # -- sending

    def push(self, queue: str, payload: bytes) -> None:
        self._add("push", (keys.ready(queue), keys.notify(queue)), [payload])

    def later(self, queue: str, payload: bytes, delay: float) -> None:
        self._add("later", (keys.delayed(queue), keys.notify(queue)), [delay, payload])

    def _add(self, name: str, names: tuple[str, str], args: Sequence[Arg]) -> None:
        """One job. Any reply other than 1, the number of added jobs, is an error."""
        kept = tuple(self._keys(*names))  # evalsha caches the packed form of a tuple
        added = script(name).call(self.space, kept, *args)
        if added != 1:
            self.space.close()
            raise ConnectionLost(self.space.stranger)

    def post(self, jobs: Sequence[Outgoing]) -> list[str | None]:
        """In chunks of 1,000, each all or nothing. A job that needs a lock takes it in the same step."""
        return sent(self.space, self._keys, jobs) if jobs else []

    def free(self, name: str, owner: str) -> bool:
        return bool(script("free").call(self.space, self._keys(keys.unique(name)), owner))

    def cancel_keyed(self, queue: str, name: str) -> bool:
        names = self._keys(keys.delayed(queue), keys.keyed(queue))
        return bool(script("keyed_cancel").call(self.space, names, name))

    def move_keyed(self, queue: str, name: str, delay: float) -> bool:
        names = self._keys(keys.ready(queue), keys.delayed(queue), keys.notify(queue), keys.keyed(queue))
        return bool(script("keyed_move").call(self.space, names, name, delay))

    def keyed_due(self, queue: str, name: str) -> float | None:
        found = script("keyed_due").call(self.space, self._keys(keys.keyed(queue)), name)
        return None if found is None else float(found)

    # -- working

    def _owner_of(self, held: Reserved) -> str:
        """By its mark; a text without one, which another program wrote into the owners, is this worker's own."""
        return held.owner if held.mark else self.owner

    def _answer(self, name: str, queue: str, args: Sequence[Arg], effects: Sequence[Effect]) -> Any:
        """Run the script `name`, which answers a job and does the effects of its end. Returns its reply."""
        more, options = effect_args(effects, self.settings.prefix)
        own = [kind(queue) for kind in ANSWER_KEYS[name]]
        return script(name).call(self.space, self._keys(*own, *more), *args, *options)

    def ack(self, done: Reserved, effects: Sequence[Effect] = ()) -> bool:
        return bool(self._answer("ack", done.queue, (self._owner_of(done), done.member), effects))

    def release(self, held: Reserved, back: Released, effects: Sequence[Effect] = ()) -> bool:
        return self.give_back(held.queue, self._owner_of(held), held.member, back, effects)

    def give_back(self, queue: str, owner: str, member: bytes, back: Released, effects: Sequence[Effect] = ()) -> bool:
        """Release a job that `owner` holds. A keeper calls it for dead owners."""
        return bool(self._answer("release", queue, release_args(owner, member, back), effects))

    def bury(self, held: Reserved, record: bytes, raw: bytes, effects: Sequence[Effect] = ()) -> bool:
        return bool(self._answer("bury", held.queue, self._bury_args(held, record, raw), effects))

    def _bury_args(self, held: Reserved, record: bytes, raw: bytes) -> tuple[Arg, ...]:
        return self._owner_of(held), held.member, held.mark, record, raw, *self.keep.args

    def copied(self, queue: str, id: str) -> None:
        script("copied").call(self.space, self._keys(keys.failed(queue)), "1", id)

    def checkpoint(self, held: Reserved, member: bytes) -> bool:
        names = self._keys(keys.reserved(held.queue), keys.owners(held.queue))
        return bool(script("checkpoint").call(self.space, names, self._owner_of(held), held.member, member))

    def held(self, queues: Sequence[str]) -> Reserved | None:
        for queue in queues:
            while (member := self.owned(queue, self.owner)) is not None:
                held = reserved_of(queue, member, self.base)
                if self.space.call("ZSCORE", *self._keys(keys.reserved(queue)), member) is not None:
                    return held
                # The lease expired and only the owners entry is left; or a checkpoint whose reply was lost was executed
                # between these two calls, and the next HGET returns its text. The ack deletes an expired entry.
                self.ack(held)
        return None

    # -- dead workers: for keepers, and for the next worker of their job

    def owned(self, queue: str, owner: str) -> bytes | None:
        member: bytes | None = self.space.call("HGET", *self._keys(keys.owners(queue)), owner)
        return member

    def owners(self, queue: str) -> list[str]:
        found = self.space.call("HKEYS", *self._keys(keys.owners(queue)))
        return [name for name in [raw.decode("utf-8", "replace") for raw in found] if not name.endswith(keys.FENCE)]

    def forget_lanes(self, queues: Sequence[str], owners: Sequence[str]) -> None:
        """Of a base.LaneConnector."""
        fields = [owner + keys.FENCE for owner in owners]
        if queues and fields:
            checked(self.space.call_many([("HDEL", *self._keys(keys.owners(queue)), *fields) for queue in queues]))

    def note_death(self, queue: str, mark: str, note: bytes) -> None:
        """Above DEATHS notes, delete half of the others, in no particular order."""
        (name,) = self._keys(keys.deaths(queue))
        commands: list[tuple[Arg, ...]] = [("HSET", name, mark, note), ("EXPIRE", name, DEATHS_TTL), ("HLEN", name)]
        count = self.space.call_many(commands)[2]
        if isinstance(count, int) and count > DEATHS:
            others = [field for field in self.space.call("HKEYS", name) if field != mark.encode()]
            self.space.call("HDEL", name, *others[: DEATHS // 2])

    def death(self, queue: str, mark: str) -> bytes | None:
        """The note, which is deleted."""
        (name,) = self._keys(keys.deaths(queue))
        note, _ = self.space.call_many([("HGET", name, mark), ("HDEL", name, mark)])
        return note if isinstance(note, bytes) else None

    def beat(self, queues: Sequence[str], request: BeatRequest) -> BeatReply:
        return beat(self.space, self.settings.prefix, queues, request)

    def forget_aged(self, queue: str, seconds: float, most: int) -> Forgotten:
        names = self._keys(keys.failed(queue), keys.failed_at(queue))
        return Forgotten(*map(int, script("aged").call(self.space, names, seconds, most)))

    # -- inspection

    def queues(self) -> Sequence[str]:
        return ()

    def sizes(self, queue: str) -> Sizes:
        kinds = (keys.ready, keys.suspects, keys.delayed, keys.reserved, keys.failed)
        names = self._keys(*[kind(queue) for kind in kinds])
        counts: list[tuple[Arg, ...]] = list(zip(("LLEN", "LLEN", "ZCARD", "ZCARD", "HLEN"), names, strict=True))
        with naming(self.space, names[0]):
            replies = checked(self.space.call_many([*counts, ("LINDEX", names[0], 0), ("TIME",)]))
        ready, suspects, delayed, reserved, failed, head, (now, _) = replies
        created = CREATED.search(head) if head else None
        age = float(max(0, int(now) - int(created[1]))) if created else None
        return Sizes(ready + suspects, delayed, reserved, failed, age)

    def clear(self, queue: str) -> int:
        """In short steps. It deletes what was there when it began, and at most what was added meanwhile."""
        names = self._keys(keys.ready(queue), keys.delayed(queue), keys.notify(queue), keys.keyed(queue))
        (locks,), sizes, count = self._keys(keys.unique("")), self.sizes(queue), 0
        for _ in range(max(sizes.ready, sizes.delayed) // CLEAR + 1):
            count += sum(script("clear").call(self.space, names, CLEAR, locks))
        return count

    def within(self, seconds: float) -> AbstractContextManager[None]:
        return self.space.within(seconds)

    def beats(self, about: Callable[[float], None]) -> None:
        self.space.on_progress(about)

    def close(self) -> None:
        self.space.close()


def release_args(owner: str, member: bytes, back: Released) -> tuple[Arg, ...]:
    return owner, member, back.text, back.delay, int(back.head)


KINDS = (keys.ready, keys.reserved, keys.delayed, keys.notify, keys.owners, keys.paused)
GLOBAL = (keys.RESTART, keys.DOWN, keys.MASTERS, keys.CANCEL)
MOVE = 500  # maximum number of due jobs that a beat promotes per queue; if there are more, the next beat follows soon
DIGITS = 40  # maximum length of a number in a reply; a text in a job's arguments that looks like a mark may have more


def beat(space: Keyspace, prefix: str, queues: Sequence[str], request: BeatRequest) -> BeatReply:
    """Raises ConnectionLost; ServerRefused, but a queue with a key of another type is in `away`."""
    names = [*GLOBAL, *(kind(queue) for queue in queues for kind in KINDS)]
    slots = request.slots
    args: tuple[Arg, ...] = (*request[:3], int(request.renew), request.reclaims_until, MOVE, len(slots), *slots)
    try:
        reply = space.run(script("beat"), [prefix + name for name in names], args)
    except ServerRefused as error:
        if MISTYPED in str(error) and (why := strange(space, prefix, keys.SHARED_TYPES)):
            raise ServerRefused(why) from None
        raise
    mistyped = reply.pop() if isinstance(reply[-1], list) else []
    wrong = [(queues[place - 1], error.decode("utf-8", "replace")) for place, error in chunked(mistyped, 2)]
    away = tuple([(queue, strange_queue(space, prefix, queue) or error) for queue, error in wrong])
    return read(reply)._replace(away=away)


def read(reply: list[Any]) -> BeatReply:
    # Another program may have written the values, so bytes that are not UTF-8 must not raise.
    stamp, restart, down, due, more, reclaimed, waiting, cancelled = (
        each if isinstance(each, int) else each.decode("utf-8", "replace") for each in reply[:8]
    )
    places = [int(place) - 1 for place in str(waiting).split()]
    cancels = [turn_of(item) for item in str(cancelled).split()]
    lost = [turn_of(item.decode()) for item in reply[8:]]
    more, count = bool(int(more)), int(reclaimed)
    return BeatReply(float(stamp), str(restart), str(down), int(due), more, count, places, cancels, lost)


def turn_of(item: str) -> tuple[int, int]:
    slot, turn = item.split(":")
    return int(slot[:DIGITS]), int(turn[:DIGITS])
