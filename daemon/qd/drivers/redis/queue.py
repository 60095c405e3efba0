"""Laravel's Redis queue: the worker's part of `base.Connector`. The rest is in keyspace/queue.py.

    turn    turn.lua                 ack the previous job, lease the next: one call per job
    wait    BLPOP on the tokens      a signal ends it immediately

Several jobs per worker: lanes.py.

One instance belongs to one thread of one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qd.drivers.base import PRODUCER, ClientIdentity
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import script
from qd.drivers.redis import acl
from qd.drivers.redis.connection import RedisConnection
from qd.drivers.redis.lanes import TURNED, LaneQueue, Run, places_of, run_of
from qd.drivers.redis.protocol import packed, packed_items
from qd.drivers.types import BeatReply, BeatRequest, LaneReply, LaneTurn, Reserved, Turn
from qd.errors import ConnectionLost
from qd.process.descriptors import ready_of

if TYPE_CHECKING:
    from qd.config.settings import ConnectionSettings


NONE_SHUT = b"$0\r\n\r\n"


class RedisQueue(LaneQueue):
    def __init__(self, settings: ConnectionSettings, who: ClientIdentity = PRODUCER, **limits: Any) -> None:
        """limits: see KeyspaceQueue."""
        self.connection = RedisConnection(settings.url or "", name=who.title)
        super().__init__(settings, self.connection, who, **limits)
        self._runs: dict[tuple[str, ...], Run] = {}
        self._known = {}

    def turn(self, done: Reserved | None, queues: Sequence[str], shut: Sequence[str] = ()) -> Turn:
        names = tuple(queues)
        run = self._runs.get(names) or self._planned(names)
        self.turns += 1
        command = run.turn + turn_tail(f"{self.base}{self.turns}".encode(), done, names, shut)
        return turn_of(self.connection.evaluate(script("turn"), command), names)

    def _planned(self, queues: tuple[str, ...]) -> Run:
        names = self._keys(*[kind(queue) for queue in queues for kind in TURNED])
        locks, mark, fence = self._keys(keys.unique(""), keys.CANCEL, keys.owners(min(queues)))
        fenced = min(queues), fence
        run = self._runs[queues] = run_of(0, queues, names, self.turned(locks), fenced, [mark] * len(queues))
        return run

    def _evaluate(self, run: Run, name: str, command: bytes) -> Any:
        return self.connection.evaluate(script(name), command)

    def turn_lanes(self, turn: LaneTurn) -> LaneReply:
        names = tuple(turn.queues)
        return self._lanes_in(self._runs.get(names) or self._planned(names), turn)

    def held_lanes(self, queues: Sequence[str], lanes: Sequence[int]) -> list[Reserved]:
        names = tuple(queues)
        held = self._held_in(self._runs.get(names) or self._planned(names), lanes)
        return sorted(held, key=lambda job: job.turn)

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
