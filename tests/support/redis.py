"""What tests read from Redis: a client independent of qd, the keys of a queue, the waiters of a lock."""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter
from collections.abc import Callable
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any, NamedTuple

import hiredis
import pytest

from tests.support.waiting import eventually

if TYPE_CHECKING:
    from tests.support.servers.redis import Server


KEPT = ("*qd:events", "qd:{stats}:*")


def leftovers(names: list[str], *but: str) -> list[str]:
    return [name for name in names if not any(fnmatch(name, pattern) for pattern in (*KEPT, *but))]


class Client:
    """Connects on first use, and after an error. call() returns bytes, ints, lists or None, and raises error replies."""

    def __init__(self, path: str, timeout: float = 10.0) -> None:
        self.path, self.timeout = path, timeout
        self._sock: socket.socket | None = None
        self._reader = hiredis.Reader()

    def call(self, *args: Any) -> Any:
        try:
            self._open().sendall(hiredis.pack_command(args))
            reply = self._reply()
        except OSError:
            self.close()
            raise
        if isinstance(reply, hiredis.ReplyError):
            raise reply
        return reply

    __call__ = call

    def text(self, *args: Any) -> Any:
        """call(), with every bytes in the reply decoded."""
        return decoded(self.call(*args))

    def hash(self, key: str) -> dict[str, str]:
        flat = self.text("HGETALL", key)
        return dict(zip(flat[::2], flat[1::2], strict=True))

    def keys(self) -> list[str]:
        return sorted(self.text("KEYS", "*"))

    def everything(self) -> str:
        """The values of all keys, as text to search in. (DUMP compresses them.)"""
        reads = {"list": ("LRANGE", 0, -1), "zset": ("ZRANGE", 0, -1), "hash": ("HGETALL",), "set": ("SMEMBERS",)}
        found = list[Any]()
        for key in self.keys():
            command, *more = reads.get(self.text("TYPE", key), ("GET",))
            found.append(self.call(command, key, *more))
        return repr(found)

    def leftovers(self, *but: str) -> list[str]:
        """The keys that are there, without those that masters keep when they stop and that match patterns in `but`."""
        return leftovers(self.keys(), *but)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
        self._sock = None

    def _open(self) -> socket.socket:
        if self._sock is None:
            self._sock = socket.socket(socket.AF_UNIX)
            self._sock.settimeout(self.timeout)
            self._sock.connect(self.path)
            self._reader = hiredis.Reader()
        return self._sock

    def _reply(self) -> Any:
        while (reply := self._reader.gets()) is False:
            data = self._open().recv(65536)
            if not data:
                raise ConnectionResetError("the server closed the connection")
            self._reader.feed(data)
        return reply


def decoded(reply: Any) -> Any:
    if isinstance(reply, bytes):
        return reply.decode("utf-8", "backslashreplace")
    return [decoded(r) for r in reply] if isinstance(reply, list) else reply


class FailedRecord(NamedTuple):
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

    def failed(self, queue: str) -> list[FailedRecord]:
        """Failed records, oldest first, by the index. Asserts that index and hash contain the same records."""
        order = [name.decode() for name in self.call("ZRANGEBYSCORE", queue, "failed_at", "(0", "+inf")]
        flat = self.call("HGETALL", queue, "failed")
        kept = {name.decode(): text.split(b"\n", 1) for name, text in zip(flat[::2], flat[1::2], strict=True)}
        assert set(order) == set(kept)
        bytes = self.call("ZSCORE", queue, "failed_at", "bytes")
        assert -int(bytes or 0) == sum(map(len, flat[1::2])) or not order
        return [FailedRecord(name, json.loads(kept[name][0]), kept[name][1]) for name in order]

    def everywhere(self, queue: str) -> Counter[bytes]:
        """Each stored payload of the queue: ready, a suspect, delayed, reserved or failed."""
        raws = [buried.raw for buried in self.failed(queue)]
        raws += self.call("LRANGE", queue, "suspects", 0, -1)
        return Counter([*self.ready(queue), *self.delayed(queue), *self.reserved(queue), *raws])

    def now(self) -> float:
        seconds, micros = self.client.call("TIME")
        return int(seconds) + int(micros) / 1e6

    def every_key(self) -> list[str]:
        """All keys of the server, as "db:key" for other databases."""
        found = []
        for line in self.client.text("INFO", "keyspace").splitlines()[1:]:
            db = int(line.removeprefix("db").split(":")[0])
            self.client.call("SELECT", db)
            found += [key if db == self.db else f"{db}:{key}" for key in self.client.text("KEYS", "*")]
        self.client.call("SELECT", self.db)
        return sorted(found)

    def dump(self) -> dict[str, Any]:
        """All data, to compare before and after."""
        return {key: self.client.call("DUMP", key) for key in self.every_key()}

    def _scores(self, queue: str, kind: str) -> dict[bytes, float]:
        flat = self.call("ZRANGE", queue, kind, 0, -1, "WITHSCORES")
        return {member: float(score) for member, score in zip(flat[::2], flat[1::2], strict=True)}


WAIT_LIST = "qd:mutex:{report}:line"


def wait_for_waiters(redis: Client, count: int) -> None:
    eventually(lambda: redis.call("ZCARD", WAIT_LIST) == count, 20, what=f"{count} waiters in line")


def wait_for_blocked_waiter(server: Server) -> None:
    """Wait until a waiter blocks on its token. One that has not reached the server yet gives up when it crashes."""
    redis = server.client()
    try:
        wait_for_waiters(redis, 1)
        blocked: Callable[[], bool] = lambda: "blocked_clients:1\r" in redis.text("INFO", "clients")  # noqa: E731
        eventually(blocked, 20, what="a waiter that waits for its token")
    finally:
        redis.close()


def in_thread(body: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=body)
    thread.start()
    return thread


FAILED = pytest.mark.leaves("queues:*:failed", "queues:*:failed_at", "queues:*:deaths")
DEATHS = pytest.mark.leaves("queues:*:deaths")
