"""The queue on a cluster: what keyspace/queue.py does, and turn and wait over several slots.

    turn    one call for each slot, in the order of the queues, until one has a job; the ack goes with the call to its slot
    wait    a BLPOP for each slot, all of them waited for together; tokens that came from more than one are put back
    held    the ack that a broken turn has left comes first

Queues of one slot are one call on one connection, as on a single server. A server that is away keeps nobody from the queues
of the others: its queues are passed over, and looked at again within a second.

Waiting for a token in several slots: a BLPOP for each, on connections of their own, as many as slots. Once one of them
has come, or the descriptor is readable, the others are ended: by CLIENT UNBLOCK, or where that is refused by hanging up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from qd.drivers.base import PRODUCER, STAYS, ClientIdentity
from qd.drivers.cluster import deferred
from qd.drivers.cluster.client import Called, ClusterClient
from qd.drivers.cluster.deferred import Note
from qd.drivers.cluster.keyspace import ClusterKeyspace
from qd.drivers.cluster.nodes import Node
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import Arg, script
from qd.drivers.keyspace.queue import DEFAULT, Bounds, KeyspaceQueue
from qd.drivers.redis import acl
from qd.drivers.redis.connection import RedisConnection
from qd.drivers.redis.protocol import packed
from qd.drivers.redis.queue import TURNED, turn_head, turn_of, turn_tail
from qd.drivers.types import BeatReply, BeatRequest, Gaps, Given, Released, Reserved, Turn, reserved_of
from qd.errors import NOTHING_DONE, ConnectionLost, Malformed, ServerRefused, WrongPassword
from qd.payload.format import HOLD, read
from qd.payload.reservation import answered
from qd.process.descriptors import ready_of

if TYPE_CHECKING:
    from qd.config.settings import ConnectionSettings


MOST_LEFT = 64  # queues for which a worker has left an answer; it waits with one more
AGAIN = 1.0  # seconds until a server that is away is looked at again
ENDS = (
    "what the end of a job does beside (its chain, its batch, its lock) is no step with it where that stands on another "
    "server of the cluster: it is noted with it, done right after it, once, and by a keeper within some seconds where its "
    "worker died in between"
)


class Run(NamedTuple):
    """Neighbours in the order of the queues that stand in one slot."""

    slot: int
    queues: tuple[str, ...]
    head: bytes


class ClusterQueue(KeyspaceQueue):
    stays = STAYS

    def __init__(
        self,
        settings: ConnectionSettings,
        who: ClientIdentity = PRODUCER,
        *,
        keep: Bounds = DEFAULT,
        max_payload: int = 0,
    ) -> None:
        self.connection = ClusterKeyspace(settings.url or "", settings.prefix, name=who.title)
        super().__init__(settings, self.connection, who, keep=keep, max_payload=max_payload)
        self._runs: dict[tuple[str, ...], list[Run]] = {}
        self._ears = Ears(self.connection)
        self._owed: Reserved | None = None  # an ack that nobody knows the fate of
        self._served: dict[str, None] = {}  # queues beside which an answer may be left, in order
        self._left: dict[str, Note] = {}  # queue -> the last answer that this worker has left for it

    @property
    def limits(self) -> Gaps:
        return {"ends": ENDS}

    def turn(self, done: Reserved | None, queues: Sequence[str], shut: Sequence[str] = ()) -> Turn:
        runs = self._runs.get(tuple(queues)) or self._planned(tuple(queues))
        if len(runs) == 1:
            return self._renewed(self._asked(runs[0], done, shut))
        self._owed = done
        return self._renewed(self._over(runs, done, shut))

    def _asked(self, run: Run, done: Reserved | None, shut: Sequence[str]) -> Turn:
        self.turns += 1
        tail = turn_tail(f"{self.base}{self.turns}".encode(), done, run.queues, shut)
        return turn_of(self.connection.evaluate(run.slot, run.head + tail, script("turn")), run.queues)

    def _over(self, runs: Sequence[Run], done: Reserved | None, shut: Sequence[str]) -> Turn:
        """One after the other. Raises what the last one said when none could be asked, or the ack could not be sent."""
        said, away, found = list[Turn](), list[Exception](), None
        for run in runs:
            acks = done if self._owed is not None and done is not None and done.queue in run.queues else None
            try:
                turn = self._asked(run, acks, shut)
            except NOTHING_DONE as error:
                if acks is not None:
                    raise
                away.append(error)
                continue
            self._owed = None if acks is not None else self._owed
            said.append(turn)
            if (found := turn.reserved) is not None:
                break
        if not said and away:
            raise away[-1]
        if found is not None and self._left:  # one job of a queue at a time: the answer before was given
            self._left.pop(found.queue, None)
        acked = next((turn.acked for turn in said if turn.acked is not None), None)
        if self._owed is not None and done is not None:
            acked = self._acked_beside(done, found)
        return summed(said, acked, AGAIN if away else None)

    def _acked_beside(self, done: Reserved, found: Reserved | None) -> bool:
        """The ack where the turn has not come to its slot. What was reserved goes back where it cannot be sent: one job at a
        time."""
        try:
            acked = self.ack(done)
        except (ConnectionLost, ServerRefused):
            if found is not None:
                self._untaken(found)
            raise
        self._owed = None
        return acked

    def _untaken(self, found: Reserved) -> None:
        """As well as it goes: what stays in hand is found by `held`."""
        try:
            text = answered(found.member, found.mark, attempts=max(0, int(found.mark.rpartition(".")[2]) - 1))
            self.release(found, Released(text, head=True))
        except (ConnectionLost, ServerRefused, ValueError):
            return

    def _planned(self, queues: tuple[str, ...]) -> list[Run]:
        names, args, runs = self.connection.names, self.turned(""), list[Run]()
        for slot, each in groupby(queues, lambda queue: names.slot(self._keys(keys.ready(queue))[0])):
            these = tuple(each)
            real = [names.real(name) for queue in these for name in self._keys(*[kind(queue) for kind in TURNED])]
            runs.append(Run(slot, these, turn_head(real, args)))
        self._runs[queues] = runs
        self._served.update(dict.fromkeys(queues))
        return runs

    def _renewed(self, turn: Turn) -> Turn:
        """The lock of a unique job is held anew when it is taken; elsewhere that is a part of the turn (tied.lua)."""
        job = turn.reserved
        if job is not None and b'"unique":"' in job.member:
            try:
                payload = read(job.member)
                ties = payload.qd
                if ties is not None and ties.unique is not None:
                    names = [self.connection.names.real(name) for name in self._keys(keys.unique(ties.unique))]
                    words: list[Arg] = ["hold", payload.uuid or "", round(ties.hold or HOLD)]
                    self.connection.exchange([self.connection.at(script("apart"), names, words)])
            except Malformed:
                pass  # the worker reads it, too
        return turn

    def held(self, queues: Sequence[str]) -> Reserved | None:
        if self._owed is not None:
            self.ack(self._owed)
            self._owed = None
        away = list[ConnectionLost]()
        for queue in queues:
            try:
                if (held := super().held([queue])) is not None:
                    return held
            except ConnectionLost as error:  # what it holds of this worker is found by the turn that reaches it
                away.append(error)
        if len(away) == len(queues):
            raise away[0]
        return None

    def leave(self, held: Reserved, answer: Callable[[Reserved], object], *, sure: bool) -> bool:
        """Its node is away: note what `answer` would do on a node that answers, for a keeper to do it (answers.py). sure: it
        was certainly not done before. False: that cannot be, answer again."""
        if held.queue not in self._left and len(self._left) >= MOST_LEFT:
            return False
        self.connection.left = calls = list[Called]()
        try:
            answer(held)
        finally:
            self.connection.left = None
        note = deferred.leave(self.connection, held.mark, calls[0], self._served, sure) if len(calls) == 1 else None
        if note is None:
            return False
        self._left[held.queue] = note
        if self._owed is not None and self._owed.mark == held.mark:
            self._owed = None
        return True

    def owned(self, queue: str, owner: str) -> bytes | None:
        """An answer that was left for the job is given first."""
        self._served[queue] = None
        while (member := super().owned(queue, owner)) is not None:
            mark = reserved_of(queue, member, owner.replace("/", ".") + ".").mark
            note = self._left.get(queue)
            if note is None or note.id != deferred.id_of(mark):
                note = deferred.found(self.connection, mark, self._served)
            if note is None:
                return member
            self.connection.beating.given.append(deferred.give(self.connection, note))
        return None

    def given(self) -> tuple[Given, ...]:
        """Answers that were left, and that this connection has given since it was asked last."""
        state = self.connection.beating
        given, state.given = tuple(state.given), []
        return given

    def owners(self, queue: str) -> list[str]:
        self._served[queue] = None
        return super().owners(queue)

    def wait(self, queues: Sequence[str], seconds: float, wake: int) -> None:
        self._ears.wait(self._keys(*[keys.notify(queue) for queue in queues]), seconds, wake)

    def beat(self, queues: Sequence[str], asked: BeatRequest) -> BeatReply:
        self._served.update(dict.fromkeys(queues))
        answer = super().beat(queues, asked)
        return answer._replace(away=tuple(self.connection.beating.away.items()), given=self.given())

    def missing_rights(self, queue: str) -> set[str]:
        """On any of the servers that answer: each has users of its own. Raises ConnectionLost where none does."""
        found, away = list[set[str]](), list[ConnectionLost]()
        scratch = acl.scratch_key(self.settings.prefix, queue)
        for node in self.connection.nodes.primaries():
            try:
                lacks = acl.missing(node.ready(), self.settings.prefix, queue)
                more = acl.refused(node.ready(), [("ASKING",), ("CLUSTER", "SLOTS"), ("HSCAN", scratch, 0)])
                found.append(lacks | more)
            except WrongPassword:
                raise
            except ConnectionLost as error:
                away.append(error)
        if away and not found:
            raise away[0]
        return set().union(*found)

    def user(self) -> str:
        nodes = self.connection.nodes.primaries()
        return acl.name_of(min(nodes, key=lambda node: not node.connection.connected).ready())

    def close(self) -> None:
        self._ears.close()
        super().close()


def summed(said: Sequence[Turn], acked: bool | None, again: float | None) -> Turn:
    """What they come to. again: seconds until a queue is to be looked at that could not be."""
    dues = [turn.next_due for turn in said if turn.next_due is not None]
    dues += [] if again is None else [again]
    paused = tuple([queue for turn in said for queue in turn.paused])
    malformed = sum(turn.malformed for turn in said)
    return Turn(acked, said[-1].reserved if said else None, min(dues, default=None), paused, malformed)


AWAY = 1.0  # seconds that the wait lasts at most while a server is away


class NodeWait:
    """A connection that waits on lists of one slot. number: its id on the server, 0 where that is not told."""

    def __init__(self, node: Node, connection: RedisConnection) -> None:
        self.node, self.connection, self.number = node, connection, 0

    def listen(self, names: Sequence[str], seconds: float) -> None:
        """Raises ConnectionLost, ServerRefused."""
        self.node.ready()  # or it rests, and is not waited for
        try:
            if not self.connection.connected:
                self.connection.connect()
                (told,) = self.connection.call_many([("CLIENT", "ID")])
                self.number = told if isinstance(told, int) else 0
            self.connection.send(packed(("BLPOP", *names, max(0.001, round(seconds, 3)))))
        except ConnectionLost as error:
            self.node.broke(error)
            raise

    def end(self) -> Any:
        """What it hears when nobody waits any more. None: nothing."""
        try:
            if self.connection.readable(0, -1):
                return self.connection.receive()
            if self.number:
                self.node.ready().call("CLIENT", "UNBLOCK", self.number)
                return self.connection.receive()
        except (ConnectionLost, ServerRefused) as error:
            self.node.broke(error)
        return self.connection.leave()


class Ears:
    def __init__(self, space: ClusterClient) -> None:
        self.space = space
        self._by_slot: dict[int, NodeWait] = {}

    def wait(self, names: Sequence[str], seconds: float, wake: int) -> None:
        """Raises ConnectionLost when none of the servers can be asked."""
        groups: dict[int, list[str]] = {}
        for real, slot in map(self.space.names.placed, names):
            groups.setdefault(slot, []).append(real)
        ears, why = dict[int, NodeWait](), None
        for slot, these in groups.items():
            try:
                ear = self._ear(slot)
                ear.listen(these, seconds)
                ears[slot] = ear
            except (ConnectionLost, ServerRefused) as error:
                why, self.space.nodes.stale = error, True
        if not ears:
            raise why or ConnectionLost(f"the {self.space.place} is away")
        limit = seconds + self.space.timeout if why is None else min(seconds, AWAY)
        tokens = self._heard(list(ears.values()), limit, wake)
        left = tokens if ready_of([wake], 0) else tokens[1:]
        for name in left:
            self.space.sent(self.space.plain("RPUSH", name.decode(), "1"))

    def _heard(self, ears: Sequence[NodeWait], seconds: float, wake: int) -> list[bytes]:
        """The lists that a token came from."""
        until, came = time.monotonic() + seconds, False
        while not came and (left := until - time.monotonic()) > 0:
            fds = ready_of([*[ear.connection.fileno() for ear in ears], wake], left)
            came = (
                not fds
                or wake in fds
                or any(ear.connection.readable(0, -1) for ear in ears if ear.connection.fileno() in fds)
            )
        tokens = list[bytes]()
        for reply in [ear.end() for ear in ears]:
            if isinstance(reply, list):
                tokens.append(reply[0])
        return tokens

    def _ear(self, slot: int) -> NodeWait:
        """Connected where it is not. Another one has the slot by now: it gets a connection of its own."""
        node = self.space.nodes.of(slot)
        ear = self._by_slot.get(slot)
        if ear is None or ear.node is not node:
            if ear is not None:
                ear.connection.close()
            ear = self._by_slot[slot] = NodeWait(node, self.space.opened(node.place))
        ear.connection.patience(self.space.connect_timeout, self.space.timeout)
        return ear

    def close(self) -> None:
        for ear in self._by_slot.values():
            ear.connection.close()
