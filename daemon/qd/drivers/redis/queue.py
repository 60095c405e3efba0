"""Laravel's Redis queue: the worker's part of `base.Connector`. The rest is in keyspace/queue.py.

    turn    turn.lua                 ack the previous job, lease the next: one call per job
    wait    BLPOP on the tokens      a signal ends it immediately

One instance belongs to one thread of one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qd.drivers.base import PRODUCER, ClientIdentity
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import Arg, script
from qd.drivers.keyspace.queue import DEFAULT, Bounds, KeyspaceQueue
from qd.drivers.redis import acl
from qd.drivers.redis.connection import RedisConnection
from qd.drivers.redis.protocol import packed, packed_items
from qd.drivers.types import BeatReply, BeatRequest, Reserved, Turn
from qd.errors import ConnectionLost
from qd.process.descriptors import ready_of

if TYPE_CHECKING:
    from qd.config.settings import ConnectionSettings


NONE_SHUT = b"$0\r\n\r\n"


class RedisQueue(KeyspaceQueue):
    def __init__(
        self,
        settings: ConnectionSettings,
        who: ClientIdentity = PRODUCER,
        *,
        keep: Bounds = DEFAULT,
        max_payload: int = 0,
    ) -> None:
        self.connection = RedisConnection(settings.url or "", name=who.title)
        super().__init__(settings, self.connection, who, keep=keep, max_payload=max_payload)
        self._heads: dict[tuple[str, ...], bytes] = {}

    def turn(self, done: Reserved | None, queues: Sequence[str], shut: Sequence[str] = ()) -> Turn:
        names = tuple(queues)
        head = self._heads.get(names) or self._headed(names)
        self.turns += 1
        command = head + turn_tail(f"{self.base}{self.turns}".encode(), done, names, shut)
        return turn_of(self.connection.evaluate(script("turn"), command), names)

    def _headed(self, queues: tuple[str, ...]) -> bytes:
        names = self._keys(*[kind(queue) for queue in queues for kind in TURNED])
        head = self._heads[queues] = turn_head(names, self.turned(self._keys(keys.unique(""))[0]))
        return head

    def wait(self, queues: Sequence[str], seconds: float, wake: int) -> None:
        """One BLPOP. If a signal ends it early, the connection is closed and a token that had arrived is put back."""
        names = self._keys(*[keys.notify(queue) for queue in queues])
        self.connection.send(packed(("BLPOP", *names, max(0.001, round(seconds, 3)))))
        in_time = self.connection.readable(seconds + self.connection.timeout, wake)
        token = self.connection.receive() if in_time else self.connection.leave()
        if token and ready_of([wake], 0):
            self.connection.call("RPUSH", token[0], "1")

    def beat(self, queues: Sequence[str], request: BeatRequest) -> BeatReply:
        """Report lost connections from now on: another server may answer next, and leases must be renewed there first."""
        self.connection.report_breaks = True
        return super().beat(queues, request)

    def missing_rights(self, queue: str) -> set[str]:
        return acl.missing(self.connection, self.settings.prefix, queue)

    def user(self) -> str:
        return acl.name_of(self.connection)


TURNED = (
    keys.ready, keys.reserved, keys.delayed, keys.notify, keys.owners, keys.paused, keys.failed, keys.failed_at,
)  # fmt: skip
"""The KEYS of each queue in turn.lua."""


def turn_head(names: Sequence[str], args: Sequence[Arg]) -> bytes:
    """The constant part of the turn's command, packed once. args: its first eight arguments."""
    fixed: list[Arg] = ["EVALSHA", script("turn").sha, len(names), *names, *args]
    return b"*%d\r\n" % (len(fixed) + 4) + packed_items(fixed)


def turn_tail(base: bytes, done: Reserved | None, queues: Sequence[str], shut: Sequence[str]) -> bytes:
    """The rest of the command: its last four arguments. base: beginning of the new mark."""
    if done is None:
        tail = b"$%d\r\n%b\r\n$1\r\n0\r\n$0\r\n\r\n" % (len(base), base)
    else:
        place = b"%d" % (queues.index(done.queue) + 1)
        tail = b"$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(base), base, len(place), place)
        tail += b"$%d\r\n%b\r\n" % (len(done.member), done.member)
    return tail + (NONE_SHUT if not shut else packed_items([places_of(queues, shut)]))


def turn_of(reply: list[Any], queues: Sequence[str]) -> Turn:
    """The reply of turn.lua. Raises ConnectionLost if this worker holds another job."""
    acked, wait, malformed, index, member, mark, start, length, before = reply[:9]
    if acked == -2:
        raise ConnectionLost("Redis executed a call this worker had already abandoned; reconnecting")
    job = Reserved(queues[index - 1], member, mark.decode(), start, length, before) if index else None
    paused = tuple([queues[i - 1] for i in reply[9:]]) if len(reply) > 9 else ()
    return Turn(None if acked < 0 else acked == 1, job, None if wait < 0 else wait / 1000, paused, malformed)


def places_of(names: Sequence[str], shut: Sequence[str]) -> str:
    """` 2 3 `: the positions of `shut` in `names`, counted from 1; "" for none."""
    places = [str(place) for place, name in enumerate(names, 1) if name in shut]
    return f" {' '.join(places)} " if places else ""
