"""Ticks of the schedule on a cluster: taken in their own slot, with a note of each job that is to be sent; then these are
sent, each once (ends.py). A scheduler that dies in between leaves the notes to a keeper."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

from qd.connectors.cluster.ends import Note, Part, finished, new_id
from qd.connectors.keyspace.base import Arg, Script, script
from qd.errors import ConnectionLost, ServerRefused

if TYPE_CHECKING:
    from qd.connectors.cluster.wire import ClusterWire

WORDS = {"none": 1, "push": 3, "single": 5, "keyed": 5}


def taken(wire: ClusterWire, its: Script, names: Sequence[str], args: Sequence[Arg]) -> list[Any]:
    """As tick.lua. Nothing is taken while the server of the queue is away: its jobs would pile up."""
    if len(names) > 1:
        _there(wire, names[1])
    home, words, notes = wire.names.real(names[0] + ":ends"), list[Arg](), list[Note | None]()
    at, locks = 0, iter(names[5:])
    while at < len(args):
        how = str(args[at + 4])
        part = part_of(how, names, args[at + 5 : at + 4 + WORDS[how]], locks)
        note = Note(home, new_id(), (part,)) if part is not None else None
        notes.append(note)
        words += [*args[at : at + 4], note.id if note else "", note.text if note else ""]
        at += 4 + WORDS[how]
    now, *answers = wire.sent(wire.at(script("tick_apart"), [wire.names.real(names[0]), home], words))
    these = [note for note, answer in zip(notes, answers, strict=True) if note is not None and answer == 1]
    holders = finished(wire, these) if these else {}
    said = [holders.get(note.id, answer) if note else answer for note, answer in zip(notes, answers, strict=True)]
    return [now, *[each.encode() if isinstance(each, str) else each for each in said]]


def _there(wire: ClusterWire, ready: str) -> None:
    """Raises ServerRefused when its server is away."""
    (reply,) = wire.exchange([wire.plain("LLEN", wire.names.real(ready))])
    if isinstance(reply, ConnectionLost):
        raise ServerRefused(f"the server that has {ready} cannot be asked: {reply}")
    if isinstance(reply, Exception):
        raise reply


def part_of(how: str, names: Sequence[str], words: Sequence[Arg], locks: Any) -> Part | None:
    if how == "none":
        return None
    if how == "push":
        delay, payload = words
        return Part("push", tuple(names[1:4]), (payload, delay))
    if how == "keyed":
        return Part("keyed", (names[1],), tuple(words))
    owner, ms, delay, payload = words
    return Part("single", (names[1], next(locks)), (owner, ceil(float(ms) / 1000), delay, payload))
