"""Effects of a step in other slots than its own, and answers for jobs on an unreachable node.

The step itself (ack, release, bury, drop, ...) writes a note; further calls execute the note; then it is deleted. If the
process dies in between, a keeper executes the note.

    queues:{NAME}:ends     hash   id -> time, and what to do; only notes in progress, or blocked by an unreachable server
    queues:{NAME}:seen     zset   id of a job sent this way -> until when it is remembered: at most a day, a minute once its
                                  note is deleted
    qd:{ticks}:ends        hash   the same for ticks of the schedule: their jobs
    qd:batch:{ID}:ends     hash   jobs and callbacks of a batch; see batch.lua

Executing a note twice is harmless: locks are compared with their owner, a batch counts a uuid once, a record is overwritten,
and a job is sent once per id (once.lua).

If the node of a job is unreachable, its worker leaves the answer on another node and takes the next job:

    leave    the call (script, keys, arguments) becomes a note in queues:{OTHER}:ends, on a node that answers
    give     executes it: in a keeper's beat; before a keeper would requeue the job of a dead worker or master; or by the
             worker, whose next turn on that node finds that it owns the job

While the node is unreachable no keeper reclaims there, so the lease needs no renewal. Afterwards a keeper renews it, since
the job still has its owner. A second execution of an answer finds its mark gone and does nothing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from qd.drivers.cluster.client import Called, ClusterClient, Item, text_of
from qd.drivers.cluster.nodes import ready_name, slot_of, split
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import Arg, Script, chunked, grouped, script
from qd.drivers.keyspace.sending import leaves
from qd.drivers.types import Gaps, LateAnswer, reserved_of
from qd.errors import NOTHING_DONE, ConnectionLost, ServerRefused
from qd.payload.reservation import marks_of

LIMITS: Gaps = {
    "ends": "the effects of a job's end in other slots (on its chain, batch or lock) are noted in the same step and applied "
    "once, right after it; if the worker died in between, a keeper applies them within seconds"
}
REMEMBERED = 86400  # seconds for which the id of a job is remembered, while its note may exist
CHUNK = 500  # maximum number of jobs in a call


class Errand(NamedTuple):
    """A job to send once. ready: original name of its queue's list. words: for once.lua."""

    ready: str
    id: str
    words: tuple[Arg, ...]


def send_once(client: ClusterClient, errands: Sequence[Errand]) -> list[Any]:
    """Send jobs with one call per queue. Returns for each 1, 0 if it had been sent before, or the error."""
    replies: list[Any] = [None] * len(errands)
    chunks, items = grouped([errand.ready for errand in errands], CHUNK), []
    for ready, places in chunks:
        real = client.names.real(ready)
        names = [real, *[real + ending for ending in (":delayed", ":notify", ":keyed")], keys.seen_ids(real)]
        words = [word for place in places for word in (errands[place].id, *errands[place].words)]
        items.append(client.at(script("once"), names, [REMEMBERED, *words]))
    for (_, places), reply in zip(chunks, client.exchange(items), strict=True):
        for number, place in enumerate(places):
            replies[place] = reply[number] if isinstance(reply, list) else reply
    return replies


WORDS = {
    "push": (3, 2),
    "count": (3, 4),
    "free": (1, 1),
    "hold": (1, 2),
    "leave": (1, 2),
    "vacate": (1, 1),
    "keep": (1, 4),
    "forget": (1, 0),
}
"""Number of keys and arguments of each effect in effects.lua; vacate exists only in notes."""
SHAPES = WORDS | {"keyed": (1, 4), "single": (2, 4)}  # the same for every part of a note
FIRST = 30_000  # ms for which a job's lock is held until the job has been sent
LEFT = 2.0  # seconds before a keeper executes the note of another process
log = logging.getLogger("qd.effects")


class Part(NamedTuple):
    """One thing to do. names: original names. kind: an effect, or a job to send:

    keyed    names ready         args name, issue, delay in s, payload
    single   names ready, lock   args owner, seconds it holds the lock, delay, payload
    """

    kind: str
    names: tuple[str, ...]
    args: tuple[Arg, ...]


class Note(NamedTuple):
    """home: real name of its hash."""

    home: str
    id: str
    parts: tuple[Part, ...]

    @property
    def text(self) -> bytes:
        return msgspec.msgpack.encode(self.parts)


_parts = msgspec.msgpack.Decoder(tuple[tuple[str, tuple[str, ...], tuple[Any, ...]], ...])


def new_id() -> str:
    return os.urandom(9).hex()


def note_of(home: str, id: str, text: bytes) -> Note | None:
    """None: the text is not a note."""
    try:
        return Note(home, id, tuple([Part(*part) for part in _parts.decode(text)]))
    except (msgspec.MsgspecError, TypeError, RecursionError):
        return None


def are_plain(args: Sequence[Any]) -> bool:
    return all(isinstance(arg, bytes | str | int | float) for arg in args)


def is_whole(client: ClusterClient, note: Note) -> bool:
    """Whether the note can be executed. Another program may have written it, and a keeper must not crash on it."""
    try:
        for part in note.parts:
            if SHAPES.get(part.kind) != (len(part.names), len(part.args)) or not are_plain(part.args):
                return False
            for name in part.names:
                client.names.real(name)
            if part.kind in ("push", "keyed", "single"):
                errand_of(part, note.id)
    except (ServerRefused, ValueError):
        return False
    return True


def parts_of(names: Sequence[str], args: Sequence[Arg]) -> list[Part]:
    """The parts of keys and arguments that effect_args() has made."""
    parts, at, k = list[Part](), 0, 0
    while at < len(args):
        kind = str(args[at])
        keys_, words = WORDS[kind]
        parts.append(Part(kind, tuple(names[k : k + keys_]), tuple(args[at + 1 : at + 1 + words])))
        at, k = at + 1 + words, k + keys_
    return parts


def stays(client: ClusterClient, part: Part, slot: int) -> bool:
    """Whether the step itself can do it. Callbacks of a batch go to any queue, and places are in any slot."""
    return part.kind not in ("count", "vacate") and all(client.names.slot(name) == slot for name in part.names)


def finish(client: ClusterClient, notes: Sequence[Note]) -> dict[str, str]:
    """Execute notes in a few round trips. Notes that fail remain for a keeper. Returns note id -> the other owner of the
    lock, for jobs that were not sent because of it."""
    actions = [Action(note, part, f"{note.id}.{number}") for note in notes for number, part in enumerate(note.parts)]
    first = [action for action in actions if action.part.kind not in ("push", "keyed")]
    for action, reply in zip(first, client.exchange([item_of(client, action.part) for action in first]), strict=True):
        action.reply = reply
    for action in first:
        if action.part.kind == "count" and isinstance(action.reply, list) and action.reply:
            action.reply = send_aside(client, action.part.names[0], str(action.part.args[3]), action.reply)
        elif action.part.kind == "vacate":
            action.reply = vacate(client, action.part, action.reply)
    pushed = [action for action in actions if action.is_sent]
    for action, reply in zip(pushed, send_once(client, [action.errand for action in pushed]), strict=True):
        action.locked, action.reply = action.reply, reply
    singles = [action for action in pushed if action.part.kind == "single" and isinstance(action.reply, int)]
    _extend_locks(client, singles)
    undone = {action.note.id for action in actions if is_undone(action)}
    _delete_notes(client, [action for action in actions if action.note.id not in undone])
    return {action.note.id: action.holder for action in first if action.holder}


class Action:
    """The execution of one part of a note. reply: of its last call; locked: of its first, if it needs a lock."""

    def __init__(self, note: Note, part: Part, id: str) -> None:
        self.note, self.part, self.id = note, part, id
        self.reply: Any = None
        self.locked: Any = None

    @property
    def holder(self) -> str:
        """The other owner of its lock, "" if there is none."""
        found = self.reply if self.locked is None else self.locked
        if self.part.kind != "single" or not isinstance(found, list):
            return ""
        owner = text_of(self.part.args[0])
        return "" if text_of(found[0]) == owner else text_of(found[0])

    @property
    def is_sent(self) -> bool:
        """Whether it is a job to send now."""
        single = self.part.kind == "single" and isinstance(self.reply, list) and not self.holder
        return single or self.part.kind in ("push", "keyed")

    @property
    def errand(self) -> Errand:
        return errand_of(self.part, self.id)


def _extend_locks(client: ClusterClient, actions: Sequence[Action]) -> None:
    """Extend the lock of a job sent now. A job sent before may have ended: if its lock was free, free it again."""
    items = []
    for action in actions:
        owner, seconds, *_ = action.part.args
        real = client.names.real(action.part.names[1])
        over = action.reply == 0 and action.locked[1] == 1
        items.append(client.at(script("apart"), [real], ["free", owner] if over else ["hold", owner, seconds]))
    for action, reply in zip(actions, client.exchange(items), strict=True):
        action.reply = reply if isinstance(reply, Exception) else action.reply


def _delete_notes(client: ClusterClient, done: Sequence[Action]) -> None:
    """Delete the notes. Then the ids of their jobs are remembered for a minute only."""
    homes: dict[str, dict[str, None]] = {}
    for action in done:
        homes.setdefault(action.note.home, {})[action.note.id] = None
    gone = client.exchange([client.plain("HDEL", home, *ids) for home, ids in homes.items()])
    if not any(isinstance(reply, Exception) for reply in gone):
        _forget_ids(client, [action.errand for action in done if action.is_sent or action.locked is not None])


def item_of(client: ClusterClient, part: Part) -> Item:
    """The first call of a part; for jobs see send_once."""
    real = [client.names.real(name) for name in part.names]
    if part.kind == "count":
        return client.at(script("counted"), real, part.args[:3])
    if part.kind == "single":
        return client.at(script("lock_first"), real[1:], [part.args[0], FIRST])
    if part.kind == "vacate":
        return client.plain("HGETALL", *real)
    return client.at(script("apart"), real, [part.kind, *part.args])


def vacate(client: ClusterClient, part: Part, flat: Any) -> Any:
    """Free the places in the record. flat: the record, or the error of reading it. Returns the error of an unreachable node.
    Does not touch a key of another type."""
    if not isinstance(flat, list):
        return flat if isinstance(flat, ConnectionLost) else 0
    prefix = client.names.prefix
    record = part.names[0].removeprefix(prefix)
    owner = record.removeprefix(keys.places_of(""))
    items = [
        client.at(script("apart"), [client.names.real(prefix + leave.key)], ["leave", leave.field, leave.holder])
        for leave in leaves(record, owner, flat, text_of(part.args[0]))
    ]
    return next((reply for reply in client.exchange(items) if isinstance(reply, ConnectionLost)), 0)


def is_undone(action: Action) -> bool:
    if isinstance(action.reply, ServerRefused):
        log.error("an effect of a job's end is not done yet (%s): %s", action.note.home, action.reply)
    return isinstance(action.reply, Exception)


def errand_of(part: Part, id: str) -> Errand:
    """Raises ValueError: not a delay."""
    if part.kind == "push":
        payload, delay = part.args
    else:
        *name, delay, payload = part.args
        if part.kind == "keyed":
            return Errand(part.names[0], id, ("keyed", *name, float(delay), payload))
    return Errand(part.names[0], id, ("push", float(delay), payload))


def send_aside(client: ClusterClient, batch: str, prefix: str, jobs: Sequence[bytes]) -> Exception | None:
    """Send jobs that a batch has put aside. jobs: name, delay, queue and payload of each, as batch.lua returns them. Returns
    the first error."""
    errands, names = list[Errand](), list[bytes]()
    for name, delay, queue, payload in chunked(jobs, 4):
        id = f"{batch}.{name.decode('utf-8', 'replace')}"
        errands.append(Errand(prefix + keys.ready(queue.decode()), id, ("push", float(delay), payload)))
        names.append(name)
    replies = send_once(client, errands)
    done = [place for place, reply in enumerate(replies) if not isinstance(reply, Exception)]
    home = client.names.real(keys.ends(batch))
    sent = [names[place] for place in done]
    gone = client.exchange([client.plain("HDEL", home, *some) for some in chunked(sent, 1000)])
    if not any(isinstance(reply, Exception) for reply in gone):
        _forget_ids(client, [errands[place] for place in done])
    return next((reply for reply in replies if isinstance(reply, Exception)), None)


def _forget_ids(client: ClusterClient, errands: Sequence[Errand]) -> None:
    seen: dict[str, list[str]] = {}
    for errand in errands:
        seen.setdefault(keys.seen_ids(client.names.real(errand.ready)), []).append(errand.id)
    client.exchange([client.at(script("once_over"), [name], [60, *ids]) for name, ids in seen.items()])


def unfinished(client: ClusterClient, home: str, at: str) -> tuple[str, list[Note]]:
    """Some unfinished notes, and the next cursor, "0" at the end. Raises as a command."""
    following, *flat = client.send(client.at(script("ends_left"), [home], [LEFT, at]))
    found = [note_of(home, text_of(id), text) for id, text in chunked(flat, 2)]
    return following.decode(), [note for note in found if note is not None]


OWN = {"ack": (2, 2), "release": (6, 5), "bury": (4, 8), "drop": (3, 5)}
"""Number of keys and arguments of each answer before its effects. Except for drop, they begin with owner and payload."""
OWNERS = {"ack": 1, "release": 4, "bury": 1}  # index of the owners hash in the keys
LATE = "answer"  # kind of a part. args: name of the script, 1 if it was certainly not executed before, its arguments


def answer(client: ClusterClient, its: Script, names: Sequence[str], args: Sequence[Arg]) -> Any:
    if client.left is not None:
        client.left.append((its.name, tuple(names), tuple(args)))
        return 1
    k, a = OWN[its.name]
    real, ready = [client.names.real(name) for name in names[:k]], ready_name(client.names, names[0])
    if its.name == "release":
        real[5] = keys.cancelled(ready)
    parts, slot = parts_of(names[k:], args[a:]), slot_of(ready)
    words = list[Arg](args[:a])
    for part in (part for part in parts if stays(client, part, slot)):
        real += [client.names.real(name) for name in part.names]
        words += [part.kind, *part.args]
    apart = tuple([part for part in parts if not stays(client, part, slot)])
    note = Note(keys.ends(ready), new_id(), apart)
    if apart:
        real.append(note.home)
        words += ["ends", note.id, note.text]
    reply = client.send(client.at(its, real, words))
    if apart and reply == 1:
        finish(client, [note])
    return reply


def raw_of(value: Arg) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def id_of(mark: str) -> str:
    return f"answer.{mark}"


def home_of(client: ClusterClient, queue: str) -> str:
    return keys.ends(client.names.real(client.names.prefix + keys.ready(queue)))


def leave(client: ClusterClient, mark: str, call: Called, queues: Iterable[str], sure: bool) -> Note | None:
    """Note the answer next to the first of `queues` whose node answers. sure: it was certainly not executed before. None: no
    node answers."""
    name, names, args = call
    its_slot = slot_of(ready_name(client.names, names[0]))
    for home in dict.fromkeys([home_of(client, queue) for queue in queues]):
        if slot_of(home) == its_slot:
            continue
        note = Note(home, id_of(mark), (Part(LATE, names, (name, int(sure), *args)),))
        try:
            client.send(client.at(script("apart"), [home], ["ends", note.id, note.text]))
            return note
        except (ConnectionLost, ServerRefused) as error:
            sure = sure and isinstance(error, NOTHING_DONE)  # the note may exist anyway, and be executed twice
    return None


def is_late(client: ClusterClient, note: Note) -> bool:
    """Whether the note is a valid answer. Another program may have written it."""
    if len(note.parts) != 1 or note.parts[0].kind != LATE:
        return False
    _, names, args = note.parts[0]
    name = str(args[0]) if args else ""
    k, a = OWN.get(name, (0, 0))
    if name not in OWNERS or len(names) < k or len(args) < a + 2:
        return False
    if not are_plain(args) or not isinstance(args[3], bytes):
        return False
    try:
        ready_name(client.names, names[0])
        for key in names:
            client.names.real(key)
        return is_whole(client, note._replace(parts=tuple(parts_of(names[k:], args[a + 2 :]))))
    except (ServerRefused, KeyError):
        return False


def find_answer(client: ClusterClient, mark: str, queues: Iterable[str]) -> Note | None:
    """The answer that was left for this reservation next to any of `queues`, on the nodes that answer."""
    homes = list(dict.fromkeys([home_of(client, queue) for queue in queues]))
    replies = client.exchange([client.plain("HGET", home, id_of(mark)) for home in homes])
    for home, reply in zip(homes, replies, strict=True):
        if isinstance(reply, bytes):
            note = note_of(home, id_of(mark), reply.partition(b" ")[2])
            if note is not None and is_late(client, note):
                return note
    return None


def give(client: ClusterClient, note: Note) -> LateAnswer:
    """Execute the answer and delete the note. Raises ConnectionLost or ServerRefused if its node is still unreachable."""
    ((_, names, (name, sure, *args)),) = note.parts
    its, owner, member = script(str(name)), str(args[0]), raw_of(args[1])
    queue, _ = split(names[0].removeprefix(client.names.prefix))
    there = answer(client, its, names, args) == 1
    if not there:  # a checkpoint whose reply was lost may have changed the text of this reservation
        stored = client.call("HGET", names[OWNERS[its.name]], owner)
        mark = note.id.removeprefix(id_of(""))
        if stored is not None and stored != member and reserved_of("", stored, marks_of(owner)).mark == mark:
            args[1] = stored
            there = answer(client, its, names, args) == 1
    with suppress(ConnectionLost, ServerRefused):  # a second execution does nothing
        client.send(client.plain("HDEL", note.home, note.id))
    return LateAnswer(queue, member, there or not sure)
