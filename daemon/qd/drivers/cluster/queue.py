"""The queue on a cluster: keyspace/queue.py, plus turn and wait over several slots.

    turn    one call per slot, in the order of the queues, until one has a job; the ack goes with the call to its slot
    wait    one BLPOP per slot, each on its own connection, all waited for together. Once a token arrives or the descriptor
            is readable, CLIENT UNBLOCK (or closing, if that is refused) ends the others; surplus tokens are put back
    held    sends the ack of a failed turn first

Queues in one slot are one call on one connection, as on a single server. Queues of an unreachable server are skipped and
tried again within a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, Any

from qd.drivers.base import PRODUCER, STAYS, ClientIdentity
from qd.drivers.cluster import deferred
from qd.drivers.cluster.client import Called, ClusterClient
from qd.drivers.cluster.deferred import Note
from qd.drivers.cluster.keyspace import ClusterKeyspace
from qd.drivers.cluster.nodes import Node
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import Arg, script
from qd.drivers.redis import acl
from qd.drivers.redis.connection import RedisConnection
from qd.drivers.redis.protocol import packed
from qd.drivers.redis.queue import TURNED, LaneQueue, SlotQueues, run_of, turn_of, turn_tail
from qd.drivers.types import BeatReply, BeatRequest, Effect, LaneReply, LaneTurn, Released, Reserved, Turn, reserved_of
from qd.errors import NOTHING_DONE, ConnectionLost, Malformed, ServerRefused, WrongPassword
from qd.payload.format import HOLD, read
from qd.payload.reservation import answered, marks_of
from qd.process.descriptors import ready_of

if TYPE_CHECKING:
    from qd.config.settings import ConnectionSettings


MOST_LEFT = 64  # maximum number of queues for which a worker has left an answer
AGAIN = 1.0  # seconds until an unreachable server is tried again


class ClusterQueue(LaneQueue):
    limits, stays = deferred.LIMITS, STAYS
    fetches_ahead = False

    def __init__(self, settings: ConnectionSettings, who: ClientIdentity = PRODUCER, **limits: Any) -> None:
        """limits: see KeyspaceQueue."""
        self.connection = ClusterKeyspace(settings.url or "", settings.prefix, name=who.title)
        super().__init__(settings, self.connection, who, **limits)
        self._runs: dict[tuple[str, ...], list[SlotQueues]] = {}
        self._known = {}
        self._waits = SlotWaits(self.connection)
        self.late_answers = self.connection.beat_state.taken_late_answers
        self._unacked: Reserved | None = None  # job of an ack whose outcome is unknown
        self._served: dict[str, None] = {}  # queues next to which an answer may be left, in order
        self._mine = set[tuple[str, str]]()  # queue and owner of the jobs that turn_lanes has reserved
        self._left: dict[str, Note] = {}  # queue -> the last answer that this worker has left for it

    def turn(self, done: Reserved | None, queues: Sequence[str], shut: Sequence[str] = ()) -> Turn:
        runs = self._runs.get(tuple(queues)) or self._planned(tuple(queues))
        if len(runs) == 1:
            turn = self._turn_of(runs[0], done, shut)
        else:
            self._unacked = done
            turn = self._over(runs, done, shut)
        self._renew_lock(turn.reserved)
        return turn

    def _turn_of(self, run: SlotQueues, done: Reserved | None, shut: Sequence[str]) -> Turn:
        self.turns += 1
        tail = turn_tail(f"{self.base}{self.turns}".encode(), done, run.queues, shut)
        return turn_of(self.connection.evaluate(run.slot, run.turn + tail, script("turn")), run.queues)

    def _over(self, runs: Sequence[SlotQueues], done: Reserved | None, shut: Sequence[str]) -> Turn:
        """One run after the other. Raises the last error if no server answered, or if the ack failed."""
        turns, away, found = list[Turn](), list[Exception](), None
        for run in runs:
            acks = done if self._unacked is not None and done is not None and done.queue in run.queues else None
            try:
                turn = self._turn_of(run, acks, shut)
            except NOTHING_DONE as error:
                if acks is not None:
                    raise
                away.append(error)
                continue
            self._unacked = None if acks is not None else self._unacked
            turns.append(turn)
            if (found := turn.reserved) is not None:
                break
        if not turns and away:
            raise away[-1]
        if found is not None and self._left:  # a worker owns one job of a queue, so the answer left before was executed
            self._left.pop(found.queue, None)
        acked = next((turn.acked for turn in turns if turn.acked is not None), None)
        if self._unacked is not None and done is not None:
            acked = self._ack_apart(done, found)
        return summed(turns, acked, AGAIN if away else None)

    def _ack_apart(self, done: Reserved, found: Reserved | None) -> bool:
        """The ack if the turn did not reach its slot. If it fails, the job reserved meanwhile is put back."""
        try:
            acked = self.ack(done)
        except (ConnectionLost, ServerRefused):
            if found is not None:
                with suppress(ConnectionLost, ServerRefused, ValueError):  # `held` finds it again if this fails
                    text = answered(found.member, found.mark, attempts=max(0, int(found.mark.rpartition(".")[2]) - 1))
                    self.release(found, Released(text, head=True))
            raise
        self._unacked = None
        return acked

    def _planned(self, queues: tuple[str, ...]) -> list[SlotQueues]:
        names, args, runs = self.connection.names, self.turned(""), list[SlotQueues]()
        slot_of: Callable[[str], int] = lambda queue: names.slot(self._keys(keys.ready(queue))[0])  # noqa: E731
        first = {slot_of(queue): queue for queue in sorted(queues, reverse=True)}
        for slot, each in groupby(queues, slot_of):
            these = tuple(each)
            real = [names.real(name) for queue in these for name in self._keys(*[kind(queue) for kind in TURNED])]
            marks = [keys.cancelled(name) for name in real[:: len(TURNED)]]
            fence = first[slot], names.real(self._keys(keys.owners(first[slot]))[0])
            runs.append(run_of(slot, these, real, args, fence, marks))
        self._runs[queues] = runs
        self._served.update(dict.fromkeys(queues))
        return runs

    def _renew_lock(self, job: Reserved | None) -> None:
        """Renew the lock of a unique job that was taken. On a single server the turn does that (tied.lua)."""
        if job is None or b'"unique":"' not in job.member:
            return
        with suppress(Malformed):  # the worker reports it
            relations = (payload := read(job.member)).qd
            if relations is not None and relations.unique is not None:
                names = [self.connection.names.real(name) for name in self._keys(keys.unique(relations.unique))]
                words: list[Arg] = ["hold", payload.uuid or "", round(relations.hold or HOLD)]
                self.connection.exchange([self.connection.at(script("apart"), names, words)])

    def held(self, queues: Sequence[str]) -> Reserved | None:
        if self._unacked is not None:
            self.ack(self._unacked)
            self._unacked = None
        away = list[ConnectionLost]()
        for queue in queues:
            try:
                if (held := super().held([queue])) is not None:
                    return held
            except ConnectionLost as error:  # the turn that reaches this server finds what this worker owns there
                away.append(error)
        if len(away) == len(queues):
            raise away[0]
        return None

    # -- several jobs per worker

    def _evaluate(self, run: SlotQueues, name: str, command: bytes) -> Any:
        return self.connection.evaluate(run.slot, command, script(name))

    def turn_lanes(self, turn: LaneTurn) -> LaneReply:
        """One run after the other, until one has jobs. Each gets the answers for its queues."""
        runs = self._runs.get(tuple(turn.queues)) or self._planned(tuple(turn.queues))
        replies, away = list[LaneReply](), list[Exception]()
        taken = False
        for run in runs:
            done = [job for job in turn.done if job.queue in run.queues]
            back = [job for job in turn.back if job.queue in run.queues]
            if (taken or not turn.lanes) and not done and not back:
                continue
            lanes = () if taken else turn.lanes
            try:
                reply = self._lanes_in(run, turn._replace(done=done, back=back, lanes=lanes))
            except NOTHING_DONE as error:
                if not done and not back:
                    away.append(error)
                    continue
                if not replies:
                    raise
                raise ConnectionLost(str(error)) from None  # other servers have executed their part
            replies.append(reply)
            taken = taken or bool(reply.jobs)
            self._mine -= {(job.queue, job.owner) for job in (*done, *back)}
            self._mine |= {(job.queue, job.owner) for job in reply.jobs}
        if away and not replies:
            raise away[-1]
        jobs = tuple([job for reply in replies for job in reply.jobs])
        self._renew_lock(jobs[0] if len(jobs) == 1 else None)
        return LaneReply(
            tuple([job for reply in replies for job in reply.lost]),
            jobs,
            min([reply.next_due for reply in replies if reply.next_due is not None], default=AGAIN if away else None),
            tuple([queue for reply in replies for queue in reply.paused]),
            tuple([unread for reply in replies for unread in reply.malformed]),
        )

    def held_lanes(self, queues: Sequence[str], lanes: Sequence[int]) -> list[Reserved]:
        """Raises ConnectionLost if a server is away on which this worker has jobs; from another one, the next turn tells
        whether it reserved any."""
        runs, held, away = self._runs.get(tuple(queues)) or self._planned(tuple(queues)), list[Reserved](), 0
        for run in runs:
            try:
                held += self._held_in(run, lanes)
            except ConnectionLost:
                away += 1
                if away == len(runs) or any(queue in run.queues for queue, _ in self._mine):
                    raise
        self._mine = {(job.queue, job.owner) for job in held}
        return sorted(held, key=lambda job: job.turn)

    def _answer(self, name: str, queue: str, args: Sequence[Arg], effects: Sequence[Effect]) -> Any:
        reply = super()._answer(name, queue, args, effects)
        self._mine.discard((queue, str(args[0])))
        return reply

    def leave(self, held: Reserved, answer: Callable[[Reserved], object], *, sure: bool) -> bool:
        """The job's node is unreachable: note the call of `answer` on another node, for a keeper to execute (deferred.py).
        sure: it was certainly not executed before. False: not possible, answer again."""
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
        self._mine.discard((held.queue, held.owner))
        if self._unacked is not None and self._unacked.mark == held.mark:
            self._unacked = None
        return True

    def owned(self, queue: str, owner: str) -> bytes | None:
        """Executes an answer that was left for the job first."""
        self._served[queue] = None
        while (member := super().owned(queue, owner)) is not None:
            mark = reserved_of(queue, member, marks_of(owner)).mark
            note = self._left.get(queue)
            if note is None or note.id != deferred.id_of(mark):
                note = deferred.find_answer(self.connection, mark, self._served)
            if note is None:
                return member
            self.connection.beat_state.late_answers.append(deferred.give(self.connection, note))
        return None

    def owners(self, queue: str) -> list[str]:
        self._served[queue] = None
        return super().owners(queue)

    def wait(self, queues: Sequence[str], seconds: float, wake: int) -> None:
        self._waits.wait(self._keys(*[keys.notify(queue) for queue in queues]), seconds, wake)

    def beat(self, queues: Sequence[str], request: BeatRequest) -> BeatReply:
        self._served.update(dict.fromkeys(queues))
        answer = super().beat(queues, request)
        away = (*answer.away, *self.connection.beat_state.away.items())
        return answer._replace(away=away, late_answers=self.late_answers())

    def missing_rights(self, queue: str) -> set[str]:
        """The union over all servers that answer, since each has its own users. Raises ConnectionLost if none answers."""
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
        self._waits.close()
        super().close()


def summed(turns: Sequence[Turn], acked: bool | None, again: float | None) -> Turn:
    """One Turn from the turns of all slots. again: seconds until skipped queues are tried again."""
    dues = [turn.next_due for turn in turns if turn.next_due is not None]
    dues += [] if again is None else [again]
    paused = tuple([queue for turn in turns for queue in turn.paused])
    malformed = tuple([unread for turn in turns for unread in turn.malformed])
    return Turn(acked, turns[-1].reserved if turns else None, min(dues, default=None), paused, malformed)


AWAY = 1.0  # maximum seconds of a wait while a server is unreachable


class NodeWait:
    """A connection that waits on lists of one slot. number: its id on the server, 0 if unknown."""

    def __init__(self, node: Node, connection: RedisConnection) -> None:
        self.node, self.connection, self.number = node, connection, 0

    def listen(self, names: Sequence[str], seconds: float) -> None:
        """Raises ConnectionLost, ServerRefused."""
        self.node.ready()  # raises if the server rests
        try:
            if not self.connection.connected:
                self.connection.connect()
                (number,) = self.connection.call_many([("CLIENT", "ID")])
                self.number = number if isinstance(number, int) else 0
            self.connection.send(packed(("BLPOP", *names, max(0.001, round(seconds, 3)))))
        except ConnectionLost as error:
            self.node.note_error(error)
            raise

    def end(self) -> Any:
        """End the wait. Returns the token that had arrived, or None."""
        try:
            if self.connection.readable(0, -1):
                return self.connection.receive()
            if self.number:
                self.node.ready().call("CLIENT", "UNBLOCK", self.number)
                return self.connection.receive()
        except (ConnectionLost, ServerRefused) as error:
            self.node.note_error(error)
        return self.connection.leave()


class SlotWaits:
    def __init__(self, space: ClusterClient) -> None:
        self.space = space
        self._by_slot: dict[int, NodeWait] = {}

    def wait(self, names: Sequence[str], seconds: float, wake: int) -> None:
        """Raises ConnectionLost if no server answers."""
        groups: dict[int, list[str]] = {}
        for real, slot in map(self.space.names.placed, names):
            groups.setdefault(slot, []).append(real)
        waits, why = list[NodeWait](), None
        for slot, these in groups.items():
            try:
                wait = self._wait_on(slot)
                wait.listen(these, seconds)
                waits.append(wait)
            except (ConnectionLost, ServerRefused) as error:
                why, self.space.nodes.stale = error, True
        if not waits:
            raise why or ConnectionLost(f"the {self.space.place} is unreachable")
        limit = seconds + self.space.timeout if why is None else min(seconds, AWAY)
        tokens = self._tokens(waits, limit, wake)
        for name in tokens if ready_of([wake], 0) else tokens[1:]:
            self.space.send(self.space.plain("RPUSH", name.decode(), "1"))

    def _tokens(self, waits: Sequence[NodeWait], seconds: float, wake: int) -> list[bytes]:
        """The lists from which a token came."""
        until, came = time.monotonic() + seconds, False
        connections = [wait.connection for wait in waits]
        while not came and (left := until - time.monotonic()) > 0:
            fds = ready_of([*[each.fileno() for each in connections], wake], left)
            came = not fds or wake in fds or any(each.readable(0, -1) for each in connections if each.fileno() in fds)
        return [reply[0] for reply in [wait.end() for wait in waits] if isinstance(reply, list)]

    def _wait_on(self, slot: int) -> NodeWait:
        """The wait for a slot; a new one if another server has the slot now."""
        node = self.space.nodes.of(slot)
        wait = self._by_slot.get(slot)
        if wait is None or wait.node is not node:
            if wait is not None:
                wait.connection.close()
            wait = self._by_slot[slot] = NodeWait(node, self.space.open(self.space.nodes.seeds.url(node.place)))
        wait.connection.patience(self.space.connect_timeout, self.space.timeout)
        return wait

    def close(self) -> None:
        for wait in self._by_slot.values():
            wait.connection.close()
