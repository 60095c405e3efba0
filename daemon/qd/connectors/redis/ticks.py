"""Ticks of the schedule in Redis: tick.lua takes them, in one write for all queues. See base.Queue.

queues:Q:ticks   field -> what the last scheduler wrote there     entries that send a job to Q
qd:ticks         the same                                          all others

"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hiredis

from qd.connectors.base import Claim, Claimed, Outgoing
from qd.connectors.redis import keys
from qd.connectors.redis.scripts import script
from qd.connectors.redis.sending import Call, each_reply, keyed_words, single_words
from qd.connectors.redis.wire import Arg, Wire, classified, packed
from qd.errors import ConnectionLost

CHUNK = 500  # ticks a script call takes at most


def named(queue: str) -> str:
    """The hash where the ticks of entries stand that send to `queue`, "" for those that send nothing."""
    return keys.ticks(queue) if queue else keys.TICKS


class RedisTicks:
    def __init__(self, wire: Wire, prefix: str) -> None:
        self.wire, self.prefix = wire, prefix

    def take(self, claims: Sequence[Claim]) -> list[Claimed]:
        calls = calls_of(self.prefix, claims)
        found = [Claimed()] * len(claims)
        for call, reply in zip(calls, each_reply(self.wire, calls) if calls else (), strict=True):
            for place, answer in zip(call.places, self._answers(call, reply), strict=True):
                found[place] = answer
        return found

    def _answers(self, call: Call, reply: Any) -> Sequence[Claimed]:
        if isinstance(reply, Exception):
            return [Claimed(refused=reply)] * len(call.places)
        if isinstance(reply, list) and len(reply) == 1 + len(call.places):
            return [answer_of(each, reply[0] / 1000) for each in reply[1:]]
        self.wire.close()
        raise ConnectionLost(self.wire.no_redis)

    def all(self, queues: Sequence[str]) -> list[dict[str, bytes]]:
        replies = self.wire.call_many([("HGETALL", self.prefix + named(queue)) for queue in queues]) if queues else []
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return [{text_of(flat[at]): flat[at + 1] for at in range(0, len(flat), 2)} for flat in replies]

    def strange(self, queue: str) -> str:
        """Which keys that a tick of this queue needs hold something else, in words; "": none."""
        kinds = {named(queue): b"hash"}
        if queue:
            kinds |= {keys.ready(queue): b"list", keys.delayed(queue): b"zset", keys.notify(queue): b"list"}
        found = self.wire.call_many([("TYPE", self.prefix + key) for key in kinds])
        wrong = [
            (key, is_, kind) for is_, (key, kind) in zip(found, kinds.items(), strict=True) if isinstance(is_, bytes)
        ]
        return ", ".join(
            f"{self.prefix}{key} is a {is_.decode()} and not a {kind.decode()}"
            for key, is_, kind in wrong
            if is_ not in (b"none", kind)
        )

    def forget(self, queue: str, fields: Sequence[str]) -> None:
        raw = [field.encode("utf-8", "surrogateescape") for field in fields]
        for at in range(0, len(raw), CHUNK):
            self.wire.call("HDEL", self.prefix + named(queue), *raw[at : at + CHUNK])


def text_of(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def answer_of(reply: Any, now: float) -> Claimed:
    if isinstance(reply, hiredis.ReplyError):
        return Claimed(now, refused=classified(str(reply)))
    if isinstance(reply, list):
        return Claimed(now, found=reply[0] or b"")
    if isinstance(reply, bytes):
        return Claimed(now, taken=True, holder=reply.decode("utf-8", "replace"))
    return Claimed(now, taken=bool(reply), early=not reply)


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
    known, args, its = [named(queue), *[kind(queue) for kind in kinds]], list[Arg](), script("tick")
    for place in places:
        claim = claims[place]
        args += (claim.field, claim.before, claim.after, claim.at, *words_of(claim.job))
        if claim.job is not None and claim.job.lock and not claim.job.key:
            known.append(keys.unique(claim.job.lock))
    return Call(its, packed(("EVALSHA", its.sha, len(known), *[prefix + name for name in known], *args)), places)


def words_of(job: Outgoing | None) -> tuple[Arg, ...]:
    if job is None:
        return ("none",)
    if job.key:
        return ("keyed", *keyed_words(job))
    if job.lock:
        return ("single", *single_words(job))
    return ("push", job.delay or 0, job.payload)
