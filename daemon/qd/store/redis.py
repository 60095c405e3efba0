"""The store on Redis or Valkey: a wire and the prefix that every key stands under."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qd.connectors.base import Queue
from qd.connectors.redis.scripts import script as text_of
from qd.connectors.redis.wire import Arg, Wire, packed
from qd.errors import ConfigError, ConnectionLost
from qd.process.shield import shield

STEP = 1000  # names the server looks at in one call


class RedisStore:
    """Belongs to the thread and process of its wire."""

    def __init__(self, wire: Wire, prefix: str = "") -> None:
        self.wire = wire
        self.prefix = prefix

    def now(self) -> float:
        seconds, micros = self.wire.call("TIME")
        return int(seconds) + int(micros) / 1_000_000

    def get(self, *names: str) -> list[bytes | None]:
        found: list[bytes | None] = self.wire.call("MGET", *[self.prefix + name for name in names]) if names else []
        return found

    def put(self, name: str, value: bytes, seconds: float | None = None) -> None:
        expiry: tuple[Arg, ...] = () if seconds is None else ("PX", max(1, round(seconds * 1000)))
        self.wire.call("SET", self.prefix + name, value, *expiry)

    def take(self, name: str) -> bytes | None:
        # GETDEL is younger than the oldest server that is still in use; MULTI is not.
        replies = self.wire.call_many([("MULTI",), ("GET", self.prefix + name), ("DEL", self.prefix + name), ("EXEC",)])
        if isinstance(replies[-1], Exception):
            raise replies[-1]
        found: bytes | None = replies[-1][0]
        return found

    def fields(self, name: str) -> Mapping[str, bytes]:
        flat: list[bytes] = self.wire.call("HGETALL", self.prefix + name)
        return {flat[at].decode("utf-8", "replace"): flat[at + 1] for at in range(0, len(flat), 2)}

    def token(self, name: str) -> None:
        self.wire.call("RPUSH", self.prefix + name, "1")

    def pop(self, name: str, seconds: float, wake: int = -1) -> bool:
        """One BLPOP. An alarm may end the wait and nothing else; left early, the connection is given up with it."""
        command = packed(("BLPOP", self.prefix + name, max(0.001, round(seconds, 3))))
        try:
            with shield:
                self.wire.send(command)
            came = self.wire.readable(seconds + self.wire.timeout, wake)
            with shield:
                return bool(self.wire.receive() if came else self.wire.leave())
        except ConnectionLost:
            raise
        except BaseException:
            self.wire.leave()
            raise

    def left(self, name: str) -> float:
        return max(0, int(self.wire.call("PTTL", self.prefix + name))) / 1000

    def step(self, script: str, names: Sequence[str], *words: str | int) -> Any:
        return text_of(script).call(self.wire, [self.prefix + name for name in names], *words)

    def names(self, start: str, most: int) -> list[str]:
        found: set[str] = set()
        pattern = "".join(f"\\{char}" if char in "*?[]^\\" else char for char in self.prefix + start) + "*"
        cursor, looked = b"0", 0
        while looked < most:
            cursor, names = self.wire.call("SCAN", cursor, "MATCH", pattern, "COUNT", STEP)
            found.update(name.decode("utf-8", "replace").removeprefix(self.prefix) for name in names)
            looked += STEP
            if cursor == b"0":
                break
        return sorted(found)


def beside(queue: Queue) -> RedisStore:
    """The store beside a queue, over its connection. Raises ConfigError where the queue is kept elsewhere."""
    from qd.connectors.redis.queue import RedisQueue  # a driver is loaded when it is used

    if not isinstance(queue, RedisQueue):
        raise ConfigError(f"{type(queue).__name__} keeps no locks and no limits: use a connection with driver redis")
    return RedisStore(queue.wire, queue.settings.prefix)
