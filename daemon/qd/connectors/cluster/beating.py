"""The keeper's beat on a cluster: a call for each queue and some for what all share, written to all servers before any reply
is read. A server that is away costs its own queues their beat, and no other; when it is back, leases are renewed there
first, and reclaimed after a third of a lease and two seconds, as everywhere.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from qd.connectors.cluster import answers, ends
from qd.connectors.cluster.names import ready_name, slot_of
from qd.connectors.keyspace.base import Arg, Script, script
from qd.errors import ConnectionLost, ServerBusy, ServerRefused

if TYPE_CHECKING:
    from qd.connectors.cluster.ends import Note
    from qd.connectors.cluster.exchange import Item
    from qd.connectors.cluster.wire import ClusterWire
    from qd.connectors.keeping import Given

BUDGET = 0.3  # seconds a beat gives to what others have left undone


class Beating:
    """What a keeper knows of each server, by its place: since when it answers without a break (monotonic), and its clock at
    the last beat."""

    def __init__(self) -> None:
        self.since: dict[str, float] = {}
        self.stamps: dict[str, float] = {}
        self.now = 0.0
        self.said: tuple[Any, Any] = (b"", b"")  # restart and down, as they were read last
        self.cursors: dict[str, str] = {}
        self.given: list[Given] = []  # answers that workers had left, and that were given since the last beat
        self.away: dict[str, str] = {}  # those that did not answer the last beat, with what is wrong

    def until(self, place: str, until: float, lease: float) -> float:
        """The last moment of that server's clock at which leases may be reclaimed there, 0: not at all."""
        since = self.since.get(place)
        if not until or since is None or time.monotonic() - since < lease / 3 + 2:
            return 0.0
        return self.stamps[place] + until - self.now

    def heard(self, place: str, stamp: float | None, gap: float) -> None:
        """stamp: None when it did not answer. gap: more between two is no delay any more, 0: that is not known."""
        if stamp is None:
            self.since.pop(place, None)
            return
        if gap and stamp - self.stamps.get(place, stamp) > gap:
            self.since.pop(place, None)
        self.since.setdefault(place, time.monotonic())
        self.stamps[place] = stamp


class Asked(NamedTuple):
    """The arguments of beat.lua."""

    token: Arg
    report: Arg
    lease: float
    renew: int
    until: float
    rest: tuple[Arg, ...]


def beat(wire: ClusterWire, its: Script, names: Sequence[str], args: Sequence[Arg]) -> list[Any]:
    """As beat.lua. Raises when no queue could be asked, and what a server has refused."""
    asked = Asked(args[0], args[1], float(args[2]), int(args[3]), float(args[4]), tuple(args[5:]))
    queues = [names[at : at + 6] for at in range(4, len(names), 6)]
    shared = shared_items(wire, names, asked)
    places = [place_of(wire, queue[0]) for queue in queues]
    own = [queue_item(wire, its, queue, place, asked) for queue, place in zip(queues, places, strict=True)]
    homes = [wire.names.real(names[0][: -len("restart")] + "ticks:ends")] if queues else []
    homes += [ready_name(wire.names, queue[0]) + ":ends" for queue in queues]
    counts = [wire.plain("HLEN", home) for home in homes]
    replies = wire.exchange([*shared, *own, *counts])
    about, beats, lengths = parts(replies, len(shared), len(own))
    state = wire.beating
    gap = asked.until - state.now if asked.until else 0.0
    state.away = {
        place: str(reply) for place, reply in zip(places, beats, strict=True) if isinstance(reply, ConnectionLost)
    }
    for place, reply in zip(places, beats, strict=True):
        state.heard(place, float(reply[0]) if isinstance(reply, list) else None, gap)
    answer = merged(state, about, beats)
    left_over(wire, [home for home, count in zip(homes, lengths, strict=True) if isinstance(count, int) and count])
    return answer


def parts(replies: list[Any], first: int, second: int) -> tuple[list[Any], list[Any], list[Any]]:
    return replies[:first], replies[first : first + second], replies[first + second :]


def shared_items(wire: ClusterWire, names: Sequence[str], asked: Asked) -> list[Item]:
    restart, down, masters = (wire.names.real(name) for name in names[:3])
    items = [wire.clock_item(), wire.plain("GET", restart), wire.plain("GET", down)]
    if asked.report:
        items.append(wire.at(script("report"), [masters], [asked.token, asked.report]))
    return items


def queue_item(wire: ClusterWire, its: Script, names: Sequence[str], place: str, asked: Asked) -> Item:
    """On the keys of one queue: where the shared ones are meant, keys that are not there."""
    real = [wire.names.real(name) for name in names]
    none, cancel = real[0] + ":none", real[0] + ":cancel"
    state = wire.beating
    renew = asked.renew or int(place not in state.since)
    words = [asked.token, "", asked.lease, renew, state.until(place, asked.until, asked.lease), *asked.rest]
    return wire.at(its, [none, none, none, cancel, *real], words)


def place_of(wire: ClusterWire, ready: str) -> str:
    try:
        return wire.nodes.of(slot_of(wire.names.real(ready))).place
    except (ConnectionLost, ServerRefused):
        return ""


def merged(state: Beating, about: list[Any], beats: list[Any]) -> list[Any]:
    """One reply of all."""
    well = [(number, reply) for number, reply in enumerate(beats, 1) if isinstance(reply, list)]
    broken = [reply for reply in beats if isinstance(reply, Exception)]
    refused = [reply for reply in (*about, *broken) if isinstance(reply, ServerRefused)]
    if not well and (broken or isinstance(about[0], Exception)):
        raise (broken or about)[0]
    now = about[0] if isinstance(about[0], list) else None
    state.now = int(now[0]) + int(now[1]) / 1e6 if now else max(float(reply[0]) for _, reply in well)
    state.said = kept(state.said[0], about[1]), kept(state.said[1], about[2])
    if refused:
        raise refused[0]
    restart, down = state.said
    dues = [reply[3] for _, reply in well if reply[3] >= 0]
    waiting = " ".join([str(number) for number, reply in well if reply[6]])
    cancelled = b" ".join([reply[7] for _, reply in well if reply[7]])
    more, reclaimed = max([reply[4] for _, reply in well], default=0), sum(reply[5] for _, reply in well)
    lost = [each for _, reply in well for each in reply[8:]]
    stamp = f"{state.now:.6f}".encode()
    return [stamp, restart, down, min(dues, default=-1), more, reclaimed, waiting.encode(), cancelled, *lost]


def kept(before: Any, reply: Any) -> Any:
    """What stands there; what stood there last where that cannot be read."""
    return before if isinstance(reply, Exception) else reply or b""


def given(wire: ClusterWire, notes: Sequence[Note]) -> list[Given]:
    """The answers whose node is back."""
    said: list[Given] = []
    for note in notes:
        try:
            said.append(answers.give(wire, note))
        except ConnectionLost:
            continue
        except ServerRefused as error:
            ends.log.error("an answer that a worker has left is not given yet (%s): %s", note.home, error)
    return said


def left_over(wire: ClusterWire, homes: Sequence[str]) -> None:
    """Finish what somebody has left undone, as far as there is time."""
    until, cursors = time.monotonic() + BUDGET, wire.beating.cursors
    for home in homes:
        try:
            cursors[home], notes = ends.left(wire, home, cursors.get(home, "0"))
        except (ConnectionLost, ServerRefused, ServerBusy):
            continue
        ends.finished(wire, [note for note in notes if ends.is_whole(wire, note)])
        wire.beating.given += given(wire, [note for note in notes if answers.is_late(wire, note)])
        if time.monotonic() > until:
            return
