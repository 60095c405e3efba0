"""What stands in Redis for a queue, read by a client that is not qd's: the witness of the contract tests."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, NamedTuple

from tests.support.resp import Client


class Buried(NamedTuple):
    """A record of the failed store, and the payload kept with it."""

    id: str
    record: dict[str, Any]
    raw: bytes


class Seen:
    """Laravel's keys and qd's below `prefix` in one database."""

    def __init__(self, client: Client, prefix: str = "", db: int = 0) -> None:
        self.client, self.prefix, self.db = client, prefix, db
        client.call("SELECT", db)

    def key(self, queue: str, kind: str = "") -> str:
        return f"{self.prefix}queues:{queue}" + (f":{kind}" if kind else "")

    def call(self, command: str, queue: str, kind: str, *args: Any) -> Any:
        """One command on one key of a queue; kind "" is the ready list."""
        return self.client.call(command, self.key(queue, kind), *args)

    def ready(self, queue: str) -> list[bytes]:
        found: list[bytes] = self.call("LRANGE", queue, "", 0, -1)
        return found

    def delayed(self, queue: str) -> dict[bytes, float]:
        return self._scores(queue, "delayed")

    def reserved(self, queue: str) -> dict[bytes, float]:
        return self._scores(queue, "reserved")

    def owners(self, queue: str) -> dict[str, bytes]:
        flat = self.call("HGETALL", queue, "owners")
        return {field.decode(): member for field, member in zip(flat[::2], flat[1::2], strict=True)}

    def tokens(self, queue: str) -> int:
        count: int = self.call("LLEN", queue, "notify")
        return count

    def failed(self, queue: str) -> list[Buried]:
        """The oldest first, by the index; index and hash must tell of the same records."""
        order = [name.decode() for name in self.call("ZRANGEBYSCORE", queue, "failed_at", "(0", "+inf")]
        flat = self.call("HGETALL", queue, "failed")
        kept = {name.decode(): text.split(b"\n", 1) for name, text in zip(flat[::2], flat[1::2], strict=True)}
        assert set(order) == set(kept)
        bytes = self.call("ZSCORE", queue, "failed_at", "bytes")
        assert -int(bytes or 0) == sum(map(len, flat[1::2])) or not order
        return [Buried(name, json.loads(kept[name][0]), kept[name][1]) for name in order]

    def everywhere(self, queue: str) -> Counter[bytes]:
        """Each payload that stands anywhere, as it stands there."""
        raws = [buried.raw for buried in self.failed(queue)]
        return Counter([*self.ready(queue), *self.delayed(queue), *self.reserved(queue), *raws])

    def now(self) -> float:
        seconds, micros = self.client.call("TIME")
        return int(seconds) + int(micros) / 1e6

    def every_key(self) -> list[str]:
        """Those of the whole server, "db:key" for those of other databases."""
        found = []
        for line in self.client.text("INFO", "keyspace").splitlines()[1:]:
            db = int(line.removeprefix("db").split(":")[0])
            self.client.call("SELECT", db)
            found += [key if db == self.db else f"{db}:{key}" for key in self.client.text("KEYS", "*")]
        self.client.call("SELECT", self.db)
        return sorted(found)

    def dump(self) -> dict[str, Any]:
        """All of it, to compare before and after."""
        return {key: self.client.call("DUMP", key) for key in self.every_key()}

    def _scores(self, queue: str, kind: str) -> dict[bytes, float]:
        flat = self.call("ZRANGE", queue, kind, 0, -1, "WITHSCORES")
        return {member: float(score) for member, score in zip(flat[::2], flat[1::2], strict=True)}
