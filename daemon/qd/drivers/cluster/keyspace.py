"""A cluster as one keyspace: the calls that a script with keys in several slots becomes, in their order.

    ack release bury drop    the job's own slot, where effects on other slots are noted; then these effects (deferred.py)
    unique                   the lock for a moment; the job, and a note that extends the lock; then the lock again
    tick                     the tick, and a note of its job; then the job
    batch_add                the batch, where its jobs are noted; then the jobs
    retry                    the lock for a moment, the batch; the job out of the failed store; then the lock
    clear                    the queue, then the locks of its jobs
    hold                     the record of the owner and the place; the record again if there was no place
    unhold                   the place and the record
    beat                     one call per queue, some for the shared keys, and unfinished notes of other processes

Every other script has its keys in one slot, and is one call as on a single server.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from math import ceil
from typing import Any

from qd.drivers.cluster import deferred
from qd.drivers.cluster.client import BeatState, ClusterClient, Item, text_of, whole
from qd.drivers.cluster.deferred import FIRST, Note, Part, finish, is_whole, new_id, raw_of, send_aside, unfinished
from qd.drivers.cluster.nodes import ready_name, slot_of
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import Arg, Replies, Script, ScriptCall, checked, chunked, script
from qd.drivers.redis.protocol import evalsha, packed
from qd.errors import ConnectionLost, ServerBusy, ServerRefused

Names = Sequence[str]
Args = Sequence[Arg]
TICKED = {"none": 1, "push": 3, "single": 5, "keyed": 5}  # number of arguments of a tick after its first four
BUDGET = 0.3  # seconds that a beat spends on unfinished notes
log = logging.getLogger("qd.effects")


class ClusterKeyspace(ClusterClient):
    """Belongs to one thread of one process. prefix: of all names."""

    def run(self, script: Script, names: Names, args: Args) -> Any:
        if not self._is_planned(script, names):
            return self.send(item(self, script, names, args))
        return PLANS[script.name](self, script, names, args)

    def run_many(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Each step separately; errors are exceptions in the list. Raises ConnectionLost if a server is unreachable."""
        simple = [place for place, call in enumerate(calls) if not self._is_planned(*call[:2])]
        replies: list[Any] = [None] * len(calls)
        found = self.exchange([item(self, *calls[place][:3]) for place in simple])
        for place, reply in zip(simple, found, strict=True):
            replies[place] = reply
        for place, call in enumerate(calls):
            if self._is_planned(*call[:2]):
                try:
                    replies[place] = self.run(*call[:3])
                except (ConnectionLost, ServerRefused) as error:
                    replies[place] = error
        return whole(replies)

    def begin_many(self, calls: Sequence[ScriptCall]) -> Replies:
        replies = self.run_many(calls)
        return lambda: replies

    def _is_planned(self, script: Script, names: Names) -> bool:
        """Whether it is more than one call."""
        return script.name in PLANS and not self.names.is_borrowed(names[0])


def item(client: ClusterClient, its: Script, names: Names, args: Args) -> Item:
    """Raises ServerRefused if its keys are in several slots: then it is missing in PLANS."""
    placed = client.names.placed
    first, slot = placed(names[0])
    real = [first]
    for name in names[1:]:
        each, its_slot = placed(name)
        real.append(each)
        if its_slot != slot:
            raise ServerRefused(f"CROSSSLOT the keys of step {its.name} are in several slots: {', '.join(names[:4])}")
    return Item(slot, evalsha(its, real, args), its)


def real_names(client: ClusterClient, names: Names) -> list[str]:
    return [client.names.real(name) for name in names]


def stop(client: ClusterClient, its: Script, names: Names, args: Args) -> Any:
    real = real_names(client, names[:-1])
    return client.send(client.at(its, [*real, keys.cancelled(ready_name(client.names, names[0]))], args))


def unique(client: ClusterClient, its: Script, names: Names, args: Args) -> list[bytes]:
    """If the process dies after the first call, the lock is held for FIRST ms; after the second, a keeper extends it."""
    ready, locks, jobs = real_names(client, names[:3]), real_names(client, names[3:]), chunked(args, 4)
    replies = take_locks(client, [(lock, job[0]) for lock, job in zip(locks, jobs, strict=True)])
    taken = [place for place, reply in enumerate(replies) if isinstance(reply, list) and reply[1] == 1]
    home, notes, items = keys.ends(ready[0]), dict[int, Note](), []
    for place in taken:
        owner, ms, delay, payload = jobs[place]
        hold = Part("hold", (names[3 + place],), (owner, ceil(float(ms) / 1000)))
        note = notes[place] = Note(home, new_id(), (hold,))
        items.append(client.at(script("send_apart"), [*ready, home], [payload, delay, note.id, note.text]))
    sent = dict(zip(taken, client.exchange(items), strict=True))
    finish(client, [notes[place] for place in taken if sent[place] == 1])
    refused = [place for place in taken if isinstance(sent[place], ServerRefused | ServerBusy)]
    free_locks(client, [(locks[place], jobs[place][0]) for place in refused])
    checked([each for place, reply in enumerate(replies) for each in (reply, sent.get(place))])
    return [reply[0] for reply in replies]


def take_locks(client: ClusterClient, locks: Sequence[tuple[str, Arg]]) -> list[Any]:
    """For each lock {its owner, 1 if taken now}, or an error."""
    return client.exchange([client.at(script("lock_first"), [lock], [owner, FIRST]) for lock, owner in locks])


def free_locks(client: ClusterClient, locks: Sequence[tuple[str, Arg]]) -> None:
    """Ignores errors, because these locks expire after FIRST ms."""
    client.exchange([client.at(script("free"), [lock], [owner]) for lock, owner in locks])


def batch_add(client: ClusterClient, its: Script, names: Names, args: Args) -> int:
    """If the process dies in between, the next process that counts a job's end sends the remaining jobs."""
    prefix, opens, fields = text_of(args[0]), args[1], int(args[2])
    jobs = list[Arg]()
    for number, uuid, delay, payload in chunked(args[3 + 2 * fields :], 4):
        ready = names[3 * int(number)]
        jobs += [uuid, delay, ready[len(prefix) + len("queues:") :], payload]
    words = [opens, fields, *args[3 : 3 + 2 * fields], *jobs]
    code, *more = client.send(client.at(script("batch_aside"), real_names(client, names[:3]), words))
    if code != 1:
        return int(code)
    error = send_aside(client, names[0], prefix, [raw_of(each) for each in jobs] + more)
    if error is not None:
        raise error
    return 1


def retry(client: ClusterClient, its: Script, names: Names, args: Args) -> list[int]:
    jobs, real = chunked(args[1:], 8), real_names(client, names)
    places = [int(job[4]) for job in jobs]
    wanted = {n: (real[place - 1], job[2]) for n, (place, job) in enumerate(zip(places, jobs, strict=True)) if place}
    locks = dict(zip(wanted, checked(take_locks(client, list(wanted.values()))), strict=True))
    mine = [n for n, job in enumerate(jobs) if n not in locks or text_of(locks[n][0]) == text_of(job[2])]
    before = [client.plain("EXPIRE", real[int(jobs[n][5]) - 1], 0) for n in mine if int(jobs[n][5])]
    if mine and text_of(args[0]) == "1":
        before.append(client.plain("HDEL", real[4], "cancelled_at"))  # first: jobs of a cancelled batch are skipped
    checked(client.exchange(before))
    outcomes = dict(zip(mine, _move(client, names, real, jobs, mine, wanted), strict=True))
    free_locks(client, [wanted[n] for n in mine if n in locks and locks[n][1] == 1 and outcomes[n] == 0])
    return [outcomes.get(n, -1) for n in range(len(jobs))]


def _move(
    client: ClusterClient, names: Names, real: list[str], jobs: Sequence[Args], mine: list[int], locked: dict[int, Any]
) -> list[int]:
    home, notes, words = keys.ends(real[2]), dict[int, Note](), list[Arg]()
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
    outcomes: list[int] = client.send(client.at(script("retry_apart"), [*real[:4], home], words)) if mine else []
    finish(client, [notes[n] for n, outcome in zip(mine, outcomes, strict=True) if outcome == 1 and n in notes])
    return outcomes


def clear(client: ClusterClient, its: Script, names: Names, args: Args) -> list[int]:
    """If the process dies in between, the locks of deleted jobs are held until their TTL."""
    ready, delayed, *locks = client.send(client.at(its, real_names(client, names), [args[0], ""]))
    start = text_of(args[1])
    free_locks(client, [(client.names.real(start + text_of(name)), owner) for name, owner in chunked(locks, 2)])
    return [ready, delayed]


def hold(client: ClusterClient, its: Script, names: Names, args: Args) -> int:
    """The record first: if the process dies in between, the record names a place that the owner does not have."""
    (places, record), (_, holder, _, span, name) = real_names(client, names), args
    note = client.at(script("hold_note"), [record], [name, holder, span])
    noted, left = client.exchange([note, client.at(its, [places], args)])
    checked([left, noted])
    if left:
        client.exchange([_forget_place(client, record, args)])  # if that fails, the record expires
    return int(left)


def unhold(client: ClusterClient, its: Script, names: Names, args: Args) -> int:
    places, record = real_names(client, names)
    reply, _ = client.exchange([client.at(its, [places], args), _forget_place(client, record, args)])
    return int(*checked([reply]))


def _forget_place(client: ClusterClient, record: str, args: Args) -> Item:
    """args: of hold or unhold."""
    return client.at(script("unhold"), [record], [args[-1], args[1]])


# -- ticks of the schedule: each tick is taken in its own slot with a note of its job; then the jobs are sent, each once
# (deferred.py). If the scheduler dies in between, a keeper executes the notes.


def tick(client: ClusterClient, its: Script, names: Sequence[str], args: Sequence[Arg]) -> list[Any]:
    """As tick.lua. Takes no tick while the server of the queue is unreachable, because the jobs would pile up."""
    if len(names) > 1:
        (reply,) = client.exchange([client.plain("LLEN", client.names.real(names[1]))])
        if isinstance(reply, ConnectionLost):
            raise ServerRefused(f"the server that has {names[1]} is unreachable: {reply}")
        if isinstance(reply, Exception):
            raise reply
    home, words, notes = client.names.real(keys.ends(names[0])), list[Arg](), list[Note | None]()
    at, locks = 0, iter(names[5:])
    while at < len(args):
        how = str(args[at + 4])
        part = part_of(how, names, args[at + 5 : at + 4 + TICKED[how]], locks)
        note = Note(home, new_id(), (part,)) if part is not None else None
        notes.append(note)
        words += [*args[at : at + 4], note.id if note else "", note.text if note else ""]
        at += 4 + TICKED[how]
    now, *answers = client.send(client.at(script("tick_apart"), [client.names.real(names[0]), home], words))
    these = [note for note, answer in zip(notes, answers, strict=True) if note is not None and answer == 1]
    holders = finish(client, these) if these else {}
    outcomes = [holders.get(note.id, answer) if note else answer for note, answer in zip(notes, answers, strict=True)]
    return [now, *[each.encode() if isinstance(each, str) else each for each in outcomes]]


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


# -- the keeper's beat. While a server is unreachable, only its own queues have no beat. Afterwards leases are renewed there
# first, and reclaimed after a third of a lease and two seconds, as on other drivers.


def beat(client: ClusterClient, its: Script, names: Names, args: Args) -> list[Any]:
    """As beat.lua. Raises if no server of the queues answers, or if a server refuses."""
    token, report, lease, renew, until, *rest = args
    state, lease, until = client.beat_state, float(lease), float(until)
    restart, down, masters = real_names(client, names[:3])
    shared = [Item(client.clock, packed(("TIME",))), client.plain("GET", restart), client.plain("GET", down)]
    if report:
        shared.append(client.at(script("report"), [masters], [token, report]))
    queues = [real_names(client, names[at : at + 6]) for at in range(4, len(names), 6)]
    places, beats = [place_of(client, real[0]) for real in queues], list[Item]()
    for real, place in zip(queues, places, strict=True):
        none = real[0] + ":none"  # the shared keys do not exist there
        words = [token, "", lease, renew, state.until(place, until, lease), *rest]
        beats.append(client.at(its, [none, none, none, keys.cancelled(real[0]), *real], words))
    homes = [client.names.real(names[0][: -len("restart")] + "ticks:ends")] if queues else []
    homes += [keys.ends(real[0]) for real in queues]
    replies = client.exchange([*shared, *beats, *[client.plain("HLEN", home) for home in homes]])
    first, last = len(shared), len(shared) + len(beats)
    about, came, counts = replies[:first], replies[first:last], replies[last:]
    gap = until - state.now if until else 0.0
    state.away = {}
    for place, reply in zip(places, came, strict=True):
        if isinstance(reply, ConnectionLost):
            state.away[place] = str(reply)
        state.note_reply(place, float(reply[0]) if isinstance(reply, list) else None, gap)
    answer = merged(state, about, came)
    finish_notes(client, [home for home, count in zip(homes, counts, strict=True) if isinstance(count, int) and count])
    return answer


def place_of(client: ClusterClient, ready: str) -> str:
    """The server of the queue with this ready list (its real name), "" if unknown."""
    try:
        return client.nodes.of(slot_of(ready)).place
    except (ConnectionLost, ServerRefused):
        return ""


def merged(state: BeatState, about: list[Any], beats: list[Any]) -> list[Any]:
    """One reply from all replies."""
    well = [(number, reply) for number, reply in enumerate(beats, 1) if isinstance(reply, list)]
    broken = [reply for reply in beats if isinstance(reply, Exception)]
    refused = [reply for reply in (*about, *broken) if isinstance(reply, ServerRefused)]
    if not well and (broken or isinstance(about[0], Exception)):
        raise (broken or about)[0]
    now = about[0] if isinstance(about[0], list) else None
    state.now = int(now[0]) + int(now[1]) / 1e6 if now else max(float(reply[0]) for _, reply in well)
    before = zip(state.control, about[1:3], strict=True)  # keep the last known value if the key cannot be read
    restart, down = (old if isinstance(new, Exception) else new or b"" for old, new in before)
    state.control = restart, down
    if refused:
        raise refused[0]
    dues = [reply[3] for _, reply in well if reply[3] >= 0]
    waiting = " ".join([str(number) for number, reply in well if reply[6]])
    cancelled = b" ".join([reply[7] for _, reply in well if reply[7]])
    more, reclaimed = max([reply[4] for _, reply in well], default=0), sum(reply[5] for _, reply in well)
    wrong = [(number, reply.pop()) for number, reply in well if isinstance(reply[-1], list)]
    mistyped = [[each for number, (_, error) in wrong for each in (number, error)]] if wrong else []
    lost = [each for _, reply in well for each in reply[8:]]
    stamp = f"{state.now:.6f}".encode()
    return [stamp, restart, down, min(dues, default=-1), more, reclaimed, waiting.encode(), cancelled, *lost, *mistyped]


def finish_notes(client: ClusterClient, homes: Sequence[str]) -> None:
    """Execute unfinished notes of other processes, for about BUDGET seconds; also answers left by workers, if their node is
    reachable again."""
    until, cursors = time.monotonic() + BUDGET, client.beat_state.cursors
    for home in homes:
        try:
            cursors[home], notes = unfinished(client, home, cursors.get(home, "0"))
        except (ConnectionLost, ServerRefused, ServerBusy):
            continue
        finish(client, [note for note in notes if is_whole(client, note)])
        for note in [note for note in notes if deferred.is_late(client, note)]:
            try:
                client.beat_state.late_answers.append(deferred.give(client, note))
            except ConnectionLost:
                pass
            except ServerRefused as error:
                log.error("an answer left by a worker is not executed yet (%s): %s", note.home, error)
        if time.monotonic() > until:
            return


Plan = Callable[[ClusterClient, Script, Names, Args], Any]
PLANS: dict[str, Plan] = {
    **{plan.__name__: plan for plan in (stop, unique, tick, batch_add, retry, clear, hold, unhold, beat)},
    **dict.fromkeys(deferred.OWN, deferred.answer),
    "settle_lanes": stop,
}
