"""Laravel's Redis queue: the worker's part of `base.Connector` and `base.LaneConnector`. The rest is in keyspace/queue.py.

    turn            turn.lua            ack the previous job, lease the next: one call per job
    wait            BLPOP on tokens     a signal ends it immediately
    turn_lanes      lanes.lua           ack what has finished, put back what has not started, lease more: one call
    held_lanes      held_lanes.lua      after a broken call: what this worker owns; its earlier turns do nothing from then on
    settle_lanes    settle_lanes.lua    for keepers: the jobs of a dead worker

The fence of a worker is a field in the owners of the first of its queues, in alphabetical order; on a cluster each slot has
its own. It is the number of the last call, and a turn that knows only of an older one does nothing.

LaneQueue does what one server (RedisQueue) and a cluster (cluster/queue.py) have in common. One instance belongs to one
thread of one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from qd.drivers.base import PRODUCER, ClientIdentity
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import Arg, chunked, chunked_by_size, script
from qd.drivers.keyspace.queue import KeyspaceQueue
from qd.drivers.redis import acl
from qd.drivers.redis.connection import RedisConnection
from qd.drivers.redis.protocol import packed, packed_items
from qd.drivers.types import (
    BeatReply,
    BeatRequest,
    LaneAnswer,
    LaneReply,
    LaneTurn,
    Reserved,
    Turn,
    Unread,
    reserved_of,
)
from qd.errors import ConnectionLost
from qd.payload.reservation import unstarted
from qd.process import SLOTS
from qd.process.descriptors import ready_of

if TYPE_CHECKING:
    from qd.config.settings import ConnectionSettings

ASKED = 500  # owners that a command reads
SETTLED, SETTLED_BYTES = 100, 16 << 20  # answers of a step
NEW, DELAY = b'"attempts":0', b',"delay":null}'
FIELDS = len(b'"attempts":1,"rsv":""')
TURNED = (
    keys.ready, keys.reserved, keys.delayed, keys.notify, keys.owners, keys.paused, keys.failed, keys.failed_at,
    keys.suspects,
)  # fmt: skip
"""The KEYS of each queue in take.lua."""


class SlotQueues(NamedTuple):
    """Queues on one server; on a cluster, consecutive ones in one slot.

    turn, lanes: constant parts of the commands; `lanes` without the first line, of `length` words. marks: for each queue the
    key of cancelled jobs. fenced: of the worker's queues in this slot, the first in alphabetical order.
    """

    slot: int
    queues: tuple[str, ...]
    length: int
    turn: bytes
    lanes: bytes
    marks: list[str]
    fenced: str


def run_of(
    slot: int, queues: tuple[str, ...], names: list[str], args: list[Arg], fence: tuple[str, str], marks: list[str]
) -> SlotQueues:
    """names: the KEYS. args: see KeyspaceQueue.turned. fence: the queue and the key."""
    owner = f"{args[0]!s}/{args[1]!s}"
    fixed: list[list[Arg]] = [
        ["EVALSHA", script(name).sha, len(names), *names, *args, more]
        for name, more in (("turn", owner), ("lanes", fence[1]))
    ]
    turn = packed_items(fixed[0], b"*%d\r\n" % (len(fixed[0]) + 4))
    return SlotQueues(slot, queues, len(fixed[1]), turn, packed_items(fixed[1]), marks, fence[0])


class LaneQueue(KeyspaceQueue):
    """run: queues on one server."""

    answers = (*KeyspaceQueue.answers, "lanes", "held_lanes")
    keeps_suspects = fetches_ahead = True

    _known: dict[str, int]
    """Queue with a fence -> the last call whose reply has come."""

    def _evaluate(self, run: SlotQueues, name: str, command: bytes) -> Any:
        """Send a packed EVALSHA of the script `name`."""
        raise NotImplementedError

    def _lanes_in(self, run: SlotQueues, turn: LaneTurn) -> LaneReply:
        first, self.calls = self.turns + 1, self.calls + 1
        self.turns += max(1, len(turn.lanes))
        how = "s" if turn.suspects else "d" if turn.diverts else ""
        known = self._known.get(run.fenced, self.begun)
        words: list[Arg] = [known, self.calls, first, turn.single, how, places_of(run.queues, turn.shut)]
        words += (len(turn.lanes), *turn.lanes)
        groups = list[list[Reserved]]()
        for what, jobs in (("back", turn.back), ("done", turn.done)):
            for place, queue in enumerate(run.queues):
                if some := [job for job in jobs if job.queue == queue]:
                    groups.append(some)
                    words += (what, place + 1, len(some), run.marks[place])
                    words += [job.mark.split(".")[1] for job in some]
                    words += [job.member for job in some]
                    words += [unstarted(job.member, job.mark) for job in some] if what == "back" else ()
        command = b"*%d\r\n%b" % (run.length + len(words), run.lanes) + packed_items(words)
        reply = self._evaluate(run, "lanes", command)
        if reply[0] == -2:
            raise ConnectionLost("Redis executed a turn whose reply this worker does not have; reconnecting")
        self._known[run.fenced] = self.calls
        lost = [tuple(map(int, each.split(b":"))) for each in reply[1].split()]
        paused = tuple([run.queues[int(place) - 1] for place in reply[4].split()])
        jobs = self._jobs_of(run, reply[5:], turn.lanes, first)
        self.turns = first + max(1, len(jobs)) - 1  # the reply is here: other numbers are not in use
        gone = tuple([groups[group - 1][number - 1] for group, number in lost])
        buried = unread(reply[3], run.queues) if reply[3] else ()
        return LaneReply(gone, jobs, None if reply[2] < 0 else reply[2] / 1000, paused, buried)

    def _jobs_of(self, run: SlotQueues, found: list[Any], lanes: Sequence[int], first: int) -> tuple[Reserved, ...]:
        if not found[0]:
            return ()
        queue, token, slot = run.queues[found[0] - 1], *self.owner.split("/")
        if found[1] == b"each":
            return tuple([Reserved(queue, each[0], each[1].decode(), *each[2:]) for each in chunked(found[2:], 5)])
        jobs, number = list[Reserved](), int(slot)
        for turn, (lane, member) in enumerate(zip(lanes, found[2:], strict=False), first):
            mark = f"{token}.{number + SLOTS * lane}.{turn}.1"
            length = FIELDS + len(mark)
            start = len(member) - length - (len(DELAY) if member.endswith(DELAY) else 1)
            jobs.append(Reserved(queue, member, mark, start, length, NEW))
        return tuple(jobs)

    def _held_in(self, run: SlotQueues, lanes: Sequence[int]) -> list[Reserved]:
        token, slot = self.owner.split("/")
        seats = [int(slot) + SLOTS * lane for lane in (0, *lanes)]
        self.calls += 1
        names = self._keys(*[kind(queue) for queue in run.queues for kind in (keys.reserved, keys.owners)])
        (fence,) = self._keys(keys.owners(run.fenced))
        owners = [f"{token}/{seat}" for seat in seats]
        reply = script("held_lanes").call(self.space, [fence, *names], self.owner + keys.FENCE, self.calls, *owners)
        self._known[run.fenced] = self.calls
        return [
            reserved_of(run.queues[index - 1], member, f"{token}.{seats[number - 1]}.")
            for index, number, member in chunked(reply, 3)
        ]

    def leave_lanes(self) -> None:
        self.forget_lanes(list(self._known), [self.owner])

    # -- for keepers

    def owned_by(self, queue: str, owners: Sequence[str]) -> dict[str, bytes]:
        (name,) = self._keys(keys.owners(queue))
        parts = [self.space.call("HMGET", name, *some) for some in chunked(owners, ASKED)]
        return {own: member for own, member in zip(owners, chain(*parts), strict=True) if member is not None}

    def settle_lanes(self, queue: str, answers: Sequence[LaneAnswer]) -> list[bool]:
        """The last part first, so that jobs keep their order at the head."""
        kinds = (keys.ready, keys.reserved, keys.notify, keys.owners, keys.suspects)
        names = self._keys(*[kind(queue) for kind in kinds], keys.CANCEL)
        parts = chunked_by_size(answers, lambda each: len(each.member) + len(each.text or b""), SETTLED, SETTLED_BYTES)
        settled = list[bool]()
        for some in reversed(list(parts)):
            words: list[Arg] = []
            for owner, member, text, suspect in some:
                words += (owner, member, "ack" if text is None else "suspect" if suspect else "head", text or b"")
            settled[:0] = map(bool, script("settle_lanes").call(self.space, names, *words))
        return settled


def places_of(names: Sequence[str], shut: Sequence[str]) -> str:
    """` 2 3 `: the positions of `shut` in `names`, counted from 1; "" for none."""
    places = [str(place) for place, name in enumerate(names, 1) if name in shut]
    return f" {' '.join(places)} " if places else ""


class RedisQueue(LaneQueue):
    def __init__(self, settings: ConnectionSettings, who: ClientIdentity = PRODUCER, **limits: Any) -> None:
        """limits: see KeyspaceQueue."""
        self.connection = RedisConnection(settings.url or "", name=who.title)
        super().__init__(settings, self.connection, who, **limits)
        self._runs: dict[tuple[str, ...], SlotQueues] = {}
        self._known = {}

    def turn(self, done: Reserved | None, queues: Sequence[str], shut: Sequence[str] = ()) -> Turn:
        names = tuple(queues)
        run = self._runs.get(names) or self._planned(names)
        self.turns += 1
        command = run.turn + turn_tail(f"{self.base}{self.turns}".encode(), done, names, shut)
        return turn_of(self.connection.evaluate(script("turn"), command), names)

    def _planned(self, queues: tuple[str, ...]) -> SlotQueues:
        names = self._keys(*[kind(queue) for queue in queues for kind in TURNED])
        locks, mark, fence = self._keys(keys.unique(""), keys.CANCEL, keys.owners(min(queues)))
        marks = [mark] * len(queues)
        run = self._runs[queues] = run_of(0, queues, names, self.turned(locks), (min(queues), fence), marks)
        return run

    def _evaluate(self, run: SlotQueues, name: str, command: bytes) -> Any:
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
    return tail + (packed_items([places_of(queues, shut)]) if shut else b"$0\r\n\r\n")


def unread(replies: Sequence[bytes], queues: Sequence[str]) -> tuple[Unread, ...]:
    """From what take.lua returns for each payload that it buries: `1 id reason`."""
    parts = [reply.decode().split(" ", 2) for reply in replies]
    return tuple([Unread(queues[int(place) - 1], id, reason) for place, id, reason in parts])


def turn_of(reply: list[Any], queues: Sequence[str]) -> Turn:
    """The reply of turn.lua. Raises ConnectionLost if this worker holds another job."""
    acked, wait, malformed, index, member, mark, start, length, before = reply[:9]
    if acked == -2:
        raise ConnectionLost("Redis executed a call this worker had already abandoned; reconnecting")
    job = Reserved(queues[index - 1], member, mark.decode(), start, length, before) if index else None
    paused = tuple([queues[i - 1] for i in reply[9:]]) if len(reply) > 9 else ()
    buried = unread(malformed, queues) if malformed else ()
    return Turn(None if acked < 0 else acked == 1, job, None if wait < 0 else wait / 1000, paused, buried)
