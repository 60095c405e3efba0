"""The answer for a job in its own slot: ack, release, bury, drop. What it does in other slots is noted with it: ends.py.

If the node of the job is away, a worker leaves its answer on another node and takes the next job. Any keeper of these queues
gives it:

    leave    the call as it is (script, keys, arguments) becomes a note in queues:{OTHER}:ends, on a node that answers
    give     by a keeper's beat; or before the job of a dead worker or master would be requeued; or by the worker itself,
             whose next turn on that node finds its own name on the job

While the node is away no keeper reclaims there, so the lease needs no renewal. Once it is back, a keeper renews it, since
the job still has its owner. An answer that is given twice finds its mark gone and does nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from qd.connectors.base import reserved_of
from qd.connectors.cluster.client import Called, ClusterClient
from qd.connectors.cluster.ends import Note, Part, are_plain, finished, is_whole, new_id, note_of, parted, stays
from qd.connectors.cluster.names import ready_name, slot_of, split
from qd.connectors.keeping import Given
from qd.connectors.keyspace import keys
from qd.connectors.keyspace.base import Arg, Script, script
from qd.errors import NOTHING_DONE, ConnectionLost, ServerRefused

OWN = {"ack": (2, 2), "release": (6, 5), "bury": (4, 8), "drop": (3, 5)}
"""Keys and arguments of each, before their effects. The first two arguments are the owner and the payload, but of drop."""
OWNERS = {"ack": 1, "release": 4, "bury": 1}  # which of the keys says who holds the job
LATE = "answer"  # the kind of a part. args: name of the script, 1 if it was certainly not sent before, its arguments


def answered(client: ClusterClient, its: Script, names: Sequence[str], args: Sequence[Arg]) -> Any:
    if client.left is not None:
        client.left.append((its.name, tuple(names), tuple(args)))
        return 1
    k, a = OWN[its.name]
    real, ready = [client.names.real(name) for name in names[:k]], ready_name(client.names, names[0])
    if its.name == "release":
        real[5] = keys.cancelled(ready)
    parts, slot = parted(names[k:], args[a:]), slot_of(ready)
    words = list[Arg](args[:a])
    for part in (part for part in parts if stays(client, part, slot)):
        real += [client.names.real(name) for name in part.names]
        words += [part.kind, *part.args]
    apart = tuple([part for part in parts if not stays(client, part, slot)])
    note = Note(keys.ends(ready), new_id(), apart)
    if apart:
        real.append(note.home)
        words += ["ends", note.id, note.text]
    reply = client.sent(client.at(its, real, words))
    if apart and reply == 1:
        finished(client, [note])
    return reply


def raw_of(value: Arg) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def id_of(mark: str) -> str:
    return f"answer.{mark}"


def home_of(client: ClusterClient, queue: str) -> str:
    return keys.ends(client.names.real(client.names.prefix + keys.ready(queue)))


def leave(client: ClusterClient, mark: str, call: Called, queues: Iterable[str], sure: bool) -> Note | None:
    """Note it beside the first of `queues` whose node answers. sure: it was certainly not sent before. None: none does."""
    name, names, args = call
    its_slot = slot_of(ready_name(client.names, names[0]))
    for home in dict.fromkeys([home_of(client, queue) for queue in queues]):
        if slot_of(home) == its_slot:
            continue
        note = Note(home, id_of(mark), (Part(LATE, names, (name, int(sure), *args)),))
        try:
            client.sent(client.at(script("apart"), [home], ["ends", note.id, note.text]))
            return note
        except (ConnectionLost, ServerRefused) as error:
            sure = sure and isinstance(error, NOTHING_DONE)  # it may be noted there all the same, and be given twice
    return None


def is_late(client: ClusterClient, note: Note) -> bool:
    """Whether it is such an answer, and whole: anybody may write into that hash."""
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
        return is_whole(client, note._replace(parts=tuple(parted(names[k:], args[a + 2 :]))))
    except (ServerRefused, KeyError):
        return False


def found(client: ClusterClient, mark: str, queues: Iterable[str]) -> Note | None:
    """The answer that was left for this reservation, beside any of `queues`. What a node that is away has is not found."""
    homes = list(dict.fromkeys([home_of(client, queue) for queue in queues]))
    replies = client.exchange([client.plain("HGET", home, id_of(mark)) for home in homes])
    for home, reply in zip(homes, replies, strict=True):
        if isinstance(reply, bytes):
            note = note_of(home, id_of(mark), reply.partition(b" ")[2])
            if note is not None and is_late(client, note):
                return note
    return None


def give(client: ClusterClient, note: Note) -> Given:
    """Give it, and take the note away. Raises ConnectionLost, ServerRefused: its node is still away."""
    ((_, names, (name, sure, *args)),) = note.parts
    its, owner, member = script(str(name)), str(args[0]), raw_of(args[1])
    base = owner.replace("/", ".") + "."
    queue, _ = split(names[0].removeprefix(client.names.prefix))
    there = answered(client, its, names, args) == 1
    if not there:  # a checkpoint whose reply was lost may have changed its text: the same reservation
        stands = client.call("HGET", names[OWNERS[its.name]], owner)
        if (
            stands is not None
            and stands != member
            and reserved_of("", stands, base).mark == note.id.removeprefix(id_of(""))
        ):
            args[1] = stands
            there = answered(client, its, names, args) == 1
    with suppress(ConnectionLost, ServerRefused):  # given again later, it finds nothing
        client.sent(client.plain("HDEL", note.home, note.id))
    return Given(queue, member, there or not sure)
