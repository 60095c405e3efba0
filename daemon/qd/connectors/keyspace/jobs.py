"""Single jobs in Redis, by their ids: found, cancelled, and what is kept of their ends. See base.Jobs.

find    find.lua       a thousand payloads a call: no call is long, all of them are O(n)
drop    drop.lua       a waiting job, by its exact bytes
stop    stop.lua       a running one: a field of qd:cancel, which the keeper of its worker reads
kept    HGETALL        the record that the end of a job wrote (keep.lua)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from qd.connectors.base import Found, Kept, Spot
from qd.connectors.effects import Effect
from qd.connectors.keyspace import keys
from qd.connectors.keyspace.base import Keyspace, script
from qd.connectors.keyspace.effects import left_by, spoken
from qd.errors import Malformed
from qd.payload import Payload, read
from qd.process.shield import shield
from qd.unit import split_mark

# In the order in which a job goes through them, so that one that goes on meanwhile is met further behind.
PLACES: tuple[tuple[Spot, str], ...] = (("delayed", "zset"), ("ready", "list"), ("running", "zset"), ("failed", "hash"))
NAMES = {"delayed": keys.delayed, "ready": keys.ready, "running": keys.reserved, "failed": keys.failed}


class KeptJobs:
    def __init__(self, space: Keyspace, prefix: str) -> None:
        self.space, self.prefix = space, prefix

    def find(
        self, queue: str, id: str, spots: Sequence[Spot] = ("delayed", "ready", "running", "failed")
    ) -> Found | None:
        for spot, kind in PLACES:
            for text, beside in self._named(queue, id, spot, kind) if spot in spots else ():
                raw = text.partition(b"\n")[2] if spot == "failed" else text
                payload = understood(raw)
                if payload is not None and id in (payload.id, payload.uuid):
                    score = float(beside) if spot in ("delayed", "running") else None
                    behind = int(beside) if spot == "ready" else None
                    return Found(queue, spot, text, payload, score, behind)
        return None

    def _named(self, queue: str, id: str, spot: Spot, kind: str) -> Iterator[tuple[bytes, bytes]]:
        """Whatever has the id somewhere in it."""
        name, at = self.prefix + NAMES[spot](queue), b"0"
        while True:
            with shield:
                at, *found = script("find").call(self.space, [name], kind, at, id)
            yield from zip(found[::2], found[1::2], strict=True)
            if at == b"0":
                return

    def drop(self, found: Found, effects: Sequence[Effect]) -> bool:
        if found.payload.rsv is not None:  # it was in hand before, and may have left places
            owner = found.payload.uuid or found.payload.id or ""
            effects = [*effects, *left_by(self.space, self.prefix, owner)]
        more, said = spoken(effects, self.prefix)
        own = (NAMES[found.spot](found.queue), keys.notify(found.queue), keys.keyed(found.queue))
        names = [self.prefix + name for name in (*own, *more)]
        issue, _, key = ((found.payload.qd.key if found.payload.qd else None) or "").partition(" ")
        with shield:
            return bool(
                script("drop").call(self.space, names, found.spot, found.text, key, issue, found.behind or 0, *said)
            )

    def stop(self, found: Found) -> bool:
        try:
            mark = split_mark(found.payload.rsv or "")
        except ValueError:
            return False  # another program's
        if not mark.n.isdecimal():
            return False
        names = [self.prefix + name for name in (keys.reserved(found.queue), keys.owners(found.queue), keys.CANCEL)]
        with shield:
            return bool(script("stop").call(self.space, names, f"{mark.token}/{mark.slot}", mark.base))

    def kept(self, id: str) -> Kept | None:
        with shield:
            flat: list[Any] = self.space.call("HGETALL", self.prefix + keys.kept(id))
        said = {flat[i].decode("utf-8", "replace"): flat[i + 1] for i in range(0, len(flat), 2)}
        if not said:
            return None
        status = said["status"].decode("utf-8", "replace") if "status" in said else None
        return Kept(status, said.get("value", b""), number(said.get("progress")), number(said.get("at")))

    def progress(self, id: str, percent: float, ttl: float) -> None:
        script("progress").call(self.space, [self.prefix + keys.kept(id)], percent, ttl)


def understood(raw: bytes) -> Payload | None:
    try:
        return read(raw)
    except Malformed:
        return None


def number(text: bytes | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None  # somebody else wrote it
