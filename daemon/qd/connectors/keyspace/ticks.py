"""Ticks of the schedule in Redis: tick.lua takes them, in one write for all queues. See base.Connector.

qd:ticks   field -> what the last scheduler wrote there
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from qd.connectors.base import Answers, Claim, Claimed, Outgoing
from qd.connectors.keyspace import keys
from qd.connectors.keyspace.base import Arg, Call, Keyspace, Replies, script
from qd.connectors.keyspace.sending import keyed_words, single_words
from qd.errors import ConnectionLost

CHUNK = 500  # ticks a script call takes at most


class KeptTicks:
    def __init__(self, space: Keyspace, prefix: str) -> None:
        self.space, self.prefix, self._key = space, prefix, prefix + keys.TICKS

    def take(self, claims: Sequence[Claim]) -> list[Claimed]:
        return self.begin(claims)()

    def begin(self, claims: Sequence[Claim]) -> Answers:
        calls = calls_of(self.prefix, claims)
        return partial(self._taken, len(claims), calls, self.space.begin_many(calls))

    def _taken(self, count: int, calls: Sequence[Call], replies: Replies) -> list[Claimed]:
        found = [Claimed()] * count
        for call, reply in zip(calls, replies(), strict=True):
            for place, answer in zip(call.places, self._answers(call, reply), strict=True):
                found[place] = answer
        return found

    def _answers(self, call: Call, reply: Any) -> Sequence[Claimed]:
        if isinstance(reply, Exception):
            return [Claimed(refused=reply)] * len(call.places)
        if isinstance(reply, list) and len(reply) == 1 + len(call.places):
            now = reply[0] / 1000
            plain = (Claimed(now, early=True), Claimed(now, taken=True))
            return [plain[each] if isinstance(each, int) else answer_of(each, now) for each in reply[1:]]
        self.space.close()
        raise ConnectionLost(self.space.stranger)

    def read(self, fields: Sequence[str]) -> list[bytes]:
        found = list[bytes]()
        for some in chunks(fields):
            found += [raw or b"" for raw in self.space.call("HMGET", self._key, *some)]
        return found

    def strange(self, queue: str) -> str:
        """Which keys that a tick of this queue needs hold something else, in words; "": none."""
        kinds = {keys.TICKS: b"hash"}
        if queue:
            kinds |= {keys.ready(queue): b"list", keys.delayed(queue): b"zset", keys.notify(queue): b"list"}
        found = self.space.call_many([("TYPE", self.prefix + key) for key in kinds])
        wrong = [
            (key, is_, kind) for is_, (key, kind) in zip(found, kinds.items(), strict=True) if isinstance(is_, bytes)
        ]
        return ", ".join(
            f"{self.prefix}{key} is a {is_.decode()} and not a {kind.decode()}"
            for key, is_, kind in wrong
            if is_ not in (b"none", kind)
        )

    def page(self, at: int) -> tuple[int, dict[str, bytes]]:
        following, flat = self.space.call("HSCAN", self._key, at, "COUNT", CHUNK)
        return int(following), {text_of(flat[n]): flat[n + 1] for n in range(0, len(flat), 2)}

    def put(self, field: str, value: bytes) -> None:
        self.space.call("HSET", self._key, field, value)

    def forget(self, fields: Sequence[str]) -> None:
        for some in chunks(fields):
            self.space.call("HDEL", self._key, *some)


def chunks(fields: Sequence[str]) -> Iterator[list[bytes]]:
    raw = [field.encode("utf-8", "surrogateescape") for field in fields]
    return (raw[at : at + CHUNK] for at in range(0, len(raw), CHUNK))


def text_of(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def answer_of(reply: Any, now: float) -> Claimed:
    """Of a tick that was refused, not taken, or whose job was not sent."""
    if isinstance(reply, Exception):
        return Claimed(now, refused=reply)
    if isinstance(reply, list):
        return Claimed(now, found=reply[0] or b"")
    return Claimed(now, taken=True, holder=reply.decode("utf-8", "replace"))


def calls_of(prefix: str, claims: Sequence[Claim]) -> list[Call]:
    groups: dict[str, list[int]] = {}
    for place, claim in enumerate(claims):
        groups.setdefault(claim.queue, []).append(place)
    return [
        call_of(prefix, queue, claims, places[at : at + CHUNK])
        for queue, places in groups.items()
        for at in range(0, len(places), CHUNK)
    ]


def call_of(prefix: str, queue: str, claims: Sequence[Claim], places: Sequence[int]) -> Call:
    kinds = (keys.ready, keys.delayed, keys.notify, keys.keyed) if queue else ()
    known, args, its = [keys.TICKS, *[kind(queue) for kind in kinds]], list[Arg](), script("tick")
    for place in places:
        _, field, before, after, at, job = claims[place]
        args += (field, before, after, at)
        args += words_of(job)
        if job is not None and job.lock and not job.key:
            known.append(keys.unique(job.lock))
    return Call(its, [prefix + name for name in known], args, places)


def words_of(job: Outgoing | None) -> tuple[Arg, ...]:
    if job is None:
        return ("none",)
    if job.key:
        return ("keyed", *keyed_words(job))
    if job.lock:
        return ("single", *single_words(job))
    return ("push", job.delay or 0, job.payload)
