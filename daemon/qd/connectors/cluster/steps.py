"""Steps (keyspace/scripts) whose keys stand in several slots of a cluster: which calls they are there, and in which order.

    ack release bury drop    the job's own slot, where the effects for others are noted; then these (answers.py)
    unique                   the lock for a moment; the job, and a note that prolongs the lock; then that
    tick                     the tick, and a note of its job; then the job
    batch_add                the batch, where its jobs are noted; then the jobs
    retry                    the lock for a moment, the batch; the job out of the failed store; then the lock
    clear                    the queue, then the locks of its jobs
    hold                     the record of the owner and the place; the record again where there was no place
    unhold                   the place and the record
    beat                     beating.py

Everything else stands in one slot and is the one call that it is elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

from qd.connectors.cluster import answers, beating, ticking
from qd.connectors.cluster.answers import raw_of
from qd.connectors.cluster.ends import FIRST, Note, Part, finished, new_id, sent_aside, text_of
from qd.connectors.cluster.names import ready_name
from qd.connectors.keyspace import keys
from qd.connectors.keyspace.base import Arg, Call, Script, script
from qd.errors import ConnectionLost, ServerBusy, ServerRefused

if TYPE_CHECKING:
    from qd.connectors.cluster.exchange import Item
    from qd.connectors.cluster.wire import ClusterWire

Names = Sequence[str]
Args = Sequence[Arg]


def run(wire: ClusterWire, its: Script, names: Names, args: Args) -> Any:
    if not is_planned(wire, its, names):
        return wire.sent(item(wire, its, names, args))
    return PLANS[its.name](wire, its, names, args)


def is_planned(wire: ClusterWire, its: Script, names: Names) -> bool:
    """Whether it is more than one call."""
    return its.name in PLANS and not wire.names.is_borrowed(names[0])


def run_many(wire: ClusterWire, calls: Sequence[Call]) -> list[Any]:
    """Each by itself; errors as exceptions in their places."""
    simple = [place for place, call in enumerate(calls) if not is_planned(wire, *call[:2])]
    replies: list[Any] = [None] * len(calls)
    found = wire.exchange([item(wire, *calls[place][:3]) for place in simple])
    for place, reply in zip(simple, found, strict=True):
        replies[place] = reply
    for place, call in enumerate(calls):
        if is_planned(wire, *call[:2]):
            try:
                replies[place] = run(wire, *call[:3])
            except (ConnectionLost, ServerRefused) as error:
                replies[place] = error
    return replies


def item(wire: ClusterWire, its: Script, names: Names, args: Args) -> Item:
    """Raises ServerRefused where its keys stand in several slots: then it is missing in PLANS."""
    placed = wire.names.placed
    first, slot = placed(names[0])
    real = [first]
    for name in names[1:]:
        each, its_slot = placed(name)
        real.append(each)
        if its_slot != slot:
            raise ServerRefused(f"CROSSSLOT the step {its.name} on {', '.join(names[:4])} is no step on a cluster")
    return wire.packed(slot, its, real, args)


def reals(wire: ClusterWire, names: Names) -> list[str]:
    return [wire.names.real(name) for name in names]


def stopped(wire: ClusterWire, its: Script, names: Names, args: Args) -> Any:
    real = reals(wire, names[:2])
    return wire.sent(wire.at(its, [*real, ready_name(wire.names, names[0]) + ":cancel"], args))


def unique(wire: ClusterWire, its: Script, names: Names, args: Args) -> list[bytes]:
    """Killed after the first call, its lock is held for FIRST ms; after the second, a keeper prolongs it."""
    ready, locks, jobs = reals(wire, names[:3]), reals(wire, names[3:]), chunked(args, 4)
    replies = first_locks(wire, [(lock, job[0]) for lock, job in zip(locks, jobs, strict=True)])
    taken = [place for place, reply in enumerate(replies) if isinstance(reply, list) and reply[1] == 1]
    home, notes, items = ready[0] + ":ends", dict[int, Note](), []
    for place in taken:
        owner, ms, delay, payload = jobs[place]
        hold = Part("hold", (names[3 + place],), (owner, ceil(float(ms) / 1000)))
        note = notes[place] = Note(home, new_id(), (hold,))
        items.append(wire.at(script("send_apart"), [*ready, home], [payload, delay, note.id, note.text]))
    sent = dict(zip(taken, wire.exchange(items), strict=True))
    finished(wire, [notes[place] for place in taken if sent[place] == 1])
    freed(wire, [(locks[place], jobs[place][0]) for place in taken if is_refused(sent[place])])
    for place in range(len(jobs)):
        for reply in (replies[place], sent.get(place)):
            if isinstance(reply, Exception):
                raise reply
    return [reply[0] for reply in replies]


def first_locks(wire: ClusterWire, locks: Sequence[tuple[str, Arg]]) -> list[Any]:
    """For each {who has it, 1: taken now}, or an error."""
    return wire.exchange([wire.at(script("lock_first"), [lock], [owner, FIRST]) for lock, owner in locks])


def freed(wire: ClusterWire, locks: Sequence[tuple[str, Arg]]) -> None:
    """As well as it goes: they are held for a moment only."""
    wire.exchange([wire.at(script("free"), [lock], [owner]) for lock, owner in locks])


def is_refused(reply: Any) -> bool:
    return isinstance(reply, ServerRefused | ServerBusy)


def batch_add(wire: ClusterWire, its: Script, names: Names, args: Args) -> int:
    """Killed in between, the jobs that were not sent yet are sent by who counts the end of another one."""
    prefix, opens, fields = text_of(args[0]), args[1], int(args[2])
    jobs = chunked(args[3 + 2 * fields :], 4)
    told = list[Arg]()
    for number, uuid, delay, payload in jobs:
        ready = names[3 * int(number)]
        told += [uuid, delay, ready[len(prefix) + len("queues:") :], payload]
    words = [opens, fields, *args[3 : 3 + 2 * fields], *told]
    code, *more = wire.sent(wire.at(script("batch_aside"), reals(wire, names[:3]), words))
    if code != 1:
        return int(code)
    why = sent_aside(wire, names[0], prefix, [raw_of(each) for each in told] + more)
    if why is not None:
        raise why
    return 1


def retried(wire: ClusterWire, its: Script, names: Names, args: Args) -> list[int]:
    jobs, real = chunked(args[1:], 8), reals(wire, names)
    places = [int(job[4]) for job in jobs]
    wanted = {n: (real[place - 1], job[2]) for n, (place, job) in enumerate(zip(places, jobs, strict=True)) if place}
    locks = dict(zip(wanted, first_locks(wire, list(wanted.values())), strict=True))
    for reply in locks.values():
        if isinstance(reply, Exception):
            raise reply
    mine = [n for n, job in enumerate(jobs) if n not in locks or text_of(locks[n][0]) == text_of(job[2])]
    before = [wire.plain("EXPIRE", real[int(jobs[n][5]) - 1], 0) for n in mine if int(jobs[n][5])]
    if mine and text_of(args[0]) == "1":
        before.append(wire.plain("HDEL", real[4], "cancelled_at"))  # first: a job of a cancelled batch is passed over
    for reply in wire.exchange(before):
        if isinstance(reply, Exception):
            raise reply
    said = dict(zip(mine, _moved(wire, names, real, jobs, mine, wanted), strict=True))
    new = [n for n in mine if n in locks and locks[n][1] == 1]
    freed(wire, [wanted[n] for n in new if said[n] == 0])
    return [said.get(n, -1) for n in range(len(jobs))]


def _moved(
    wire: ClusterWire, names: Names, real: list[str], jobs: Sequence[Args], mine: list[int], locked: dict[int, Any]
) -> list[int]:
    home, notes, words = real[2] + ":ends", dict[int, Note](), list[Arg]()
    for n in mine:
        id, payload, owner, seconds, lock, _, batch, place = jobs[n]
        parts = list[Part]()
        if n in locked:
            parts.append(Part("hold", (names[int(lock) - 1],), (owner, ceil(float(seconds)))))
        if int(batch):
            its = tuple(names[int(batch) - 1 : int(batch) + 2])
            parts.append(Part("count", its, (owner, "retried", place, its[0].partition(keys.batch(""))[0])))
        if parts:
            notes[n] = Note(home, new_id(), tuple(parts))
        words += [id, payload, notes[n].id if n in notes else "", notes[n].text if n in notes else ""]
    said: list[int] = wire.sent(wire.at(script("retry_apart"), [*real[:4], home], words)) if mine else []
    moved = [n for n, one in zip(mine, said, strict=True) if one == 1]
    finished(wire, [notes[n] for n in moved if n in notes])
    return said


def cleared(wire: ClusterWire, its: Script, names: Names, args: Args) -> list[int]:
    """Killed in between, a lock is held for as long as it was taken."""
    ready, delayed, *locks = wire.sent(wire.at(its, reals(wire, names), [args[0], ""]))
    start = text_of(args[1])
    freed(wire, [(wire.names.real(start + text_of(name)), owner) for name, owner in chunked(locks, 2)])
    return [ready, delayed]


def held(wire: ClusterWire, its: Script, names: Names, args: Args) -> int:
    """The record is sent first: if this process is killed in between, it names a place that the owner does not have."""
    (places, record), (_, holder, _, span, name) = reals(wire, names), args
    note = wire.at(script("hold_note"), [record], [name, holder, span])
    noted, left = wire.exchange([note, wire.at(its, [places], args)])
    for reply in (left, noted):
        if isinstance(reply, Exception):
            raise reply
    if left:
        wire.exchange([_forgot(wire, record, args)])  # if that fails, the record expires
    return int(left)


def unheld(wire: ClusterWire, its: Script, names: Names, args: Args) -> int:
    places, record = reals(wire, names)
    freed, _ = wire.exchange([wire.at(its, [places], args), _forgot(wire, record, args)])
    if isinstance(freed, Exception):
        raise freed
    return int(freed)


def _forgot(wire: ClusterWire, record: str, args: Args) -> Item:
    """args: of hold or unhold."""
    return wire.at(script("unhold"), [record], [args[-1], args[1]])


def chunked(args: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [args[at : at + size] for at in range(0, len(args), size)]


Plan = Callable[["ClusterWire", Script, Names, Args], Any]
PLANS: dict[str, Plan] = {
    **dict.fromkeys(answers.OWN, answers.answered),
    "stop": stopped,
    "unique": unique,
    "tick": ticking.taken,
    "batch_add": batch_add,
    "retry": retried,
    "clear": cleared,
    "hold": held,
    "unhold": unheld,
    "beat": beating.beat,
}
