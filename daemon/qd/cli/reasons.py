"""Why things are not well, from what `state` has read: one line for each reason. Nothing is asked here; `health` prints.

A reason says the fact, the thing with its value, and the way out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from qd.cli.output import ago, count, duration
from qd.cli.state import Line, State
from qd.store.hosts import Master, Scheduler, Worker

STUCK = 10.0  # seconds in which nothing was taken from a queue with work
UNTAKEN = 60.0  # seconds that a job for PHP may wait where no master tells since when
STALE = 5.0  # seconds without a report; one comes each second
CRASHES, WITHIN = 5, 30.0  # so many workers of one master in so many seconds
REPLACED, APART = 5, 60.0  # keepers of one master, and the seconds between them on the average
UNSCHEDULED = 5.0  # seconds without a scheduler where one is wanted; it is replaced within one
FULL = 0.8  # part of the failed store's bounds that is used; beyond it there is a warning
RECENT = 86400.0  # seconds for which commands warn after a failed job was dropped
GRACE = 10.0  # seconds after `qd restart`, or for a job that came just now, in which masters may be on their way


@dataclass(frozen=True)
class Reason:
    """kind: a word for programs. queue, master: what it is about, "" when it is not about one."""

    kind: str
    text: str
    queue: str = ""
    master: str = ""


@dataclass(frozen=True)
class Limits:
    """What --max-ready, --max-age and --expect said, None: not given; and --allow-none. max_age: seconds."""

    max_ready: int | None = None
    max_age: float | None = None
    expect: int | None = None
    allow_none: bool = False


def reasons(state: State, limits: Limits) -> Iterator[Reason]:
    yield from nodes_away(state)
    yield from refusals(state)
    if not blind(state):
        yield from too_few(state, limits)
        for master in state.masters:
            yield from of_master(master, state)
    for line in state.queues:
        if state.knows_masters:
            yield from of_queue(line, state)
        yield from over(line, limits, state)


# -- servers

PRIMARY = "it is a replica, or a failover is under way: point the url at the primary"
WAYS = {
    "READONLY": PRIMARY,
    "read-only": PRIMARY,
    "MISCONF": "free its disk and see its log",
    "NOREPLICAS": "start its replicas, or lower min-replicas-to-write",
    "OOM": "let workers make room, or raise maxmemory",
}


def nodes_away(state: State) -> Iterator[Reason]:
    for place, why in state.nodes.items():
        lacks = f"; not known: {', '.join(state.unknown)}" if state.unknown else ""
        yield Reason("node", f"node {place} of the cluster is away ({why}){lacks}; start it, or see its log")


def refusals(state: State) -> Iterator[Reason]:
    for place, said in state.refused.items():
        yield Reason("refused", f"connection {place}: {refused(said)}")


def blind(state: State) -> bool:
    """Whether masters are silent because the server takes no reports: their state is unknown."""
    return not state.knows_masters or (state.control in state.refused and not living(state))


def refused(said: str) -> str:
    return f"the server refuses writes: {said.rstrip('.')}; {way_out(said)}"


def way_out(said: str) -> str:
    return next((way for word, way in WAYS.items() if word in said), "see its log")


# -- masters


def too_few(state: State, limits: Limits) -> Iterator[Reason]:
    """A master that fell silent is a reason of its own."""
    there = len(living(state))
    if restarting(state):
        return
    if limits.expect is not None and there < limits.expect:
        said = f"{count(there, 'master')} of the {limits.expect} expected"
        yield Reason("masters", f"{said}; start `qd work` where it is missing (`qd status` names those that run)")
    elif not state.masters and not limits.allow_none:
        said = "no master runs on any host; start `qd work`, or pass --allow-none if that is intended"
        yield Reason("no-master", said)


def named(master: Master) -> str:
    return f"{master.pool or 'default'}@{master.host}"


def of_master(master: Master, state: State) -> Iterator[Reason]:
    who = f"{named(master)} (pid {master.pid})"
    if stale(master, state.now):
        if not replaced(master, state):
            yield Reason("silent-master", f"{who}: {silence(master, state.now)}", master=named(master))
        return
    if master.hangs:
        yield Reason("hung-master", f"{who}: {hung(master)}", master=named(master))
    crashed = [moment for moment in master.crashes if state.now - moment <= WITHIN]
    if len(crashed) >= CRASHES:
        said = f"{len(crashed)} workers crashed in the last {duration(WITHIN)}; its log tells how, at `worker.died`"
        yield Reason("crashes", f"{who}: {said}", master=named(master))
    for slot in master.silent_workers:
        yield Reason("silent-worker", f"{who}: {silent(master, slot)}", master=named(master))
    if master.unscheduled is not None and state.now - master.unscheduled > UNSCHEDULED:
        said = f"no scheduler for {duration(state.now - master.unscheduled)}; its log tells why, at `scheduler.`"
        yield Reason("scheduler", f"{who}: {said}", master=named(master))
    up = state.now - master.booted_at
    if master.keeper_restarts >= REPLACED and up / master.keeper_restarts < APART:
        said = f"its keeper ended {master.keeper_restarts} times in {duration(up)}; its log tells how, at `keeper.`"
        yield Reason("keeper", f"{who}: {said}", master=named(master))


def silent(master: Master, slot: int) -> str:
    children: list[tuple[str, Worker | Scheduler]] = [("worker", worker) for worker in master.workers]
    children += [("scheduler", scheduler) for scheduler in master.schedulers]
    what = next(
        (f"{word} {slot} (pid {child.pid})" for word, child in children if child.slot == slot), f"worker {slot}"
    )
    return f"{what} stopped answering; USR1 to the master writes its stack to the log"


def silence(master: Master, now: float) -> str:
    return (
        f"its keeper has not reported for {duration(now - master.seen_at)}; see whether it runs there and reaches this "
        f"server; if that host is gone for good: HDEL qd:masters {master.token}"
    )


def hung(master: Master) -> str:
    said = f"the master has not answered for {duration(master.master_silent)}, though its keeper reports"
    return f"{said}; kill -9 {master.pid} on {master.host}, its supervisor starts it again"


def stale(master: Master, now: float) -> bool:
    return now - master.seen_at > STALE


def living(state: State) -> list[Master]:
    return [master for master in state.masters if not stale(master, state.now)]


def replaced(gone: Master, state: State) -> bool:
    """Whether one of the same pool was started since it fell silent: a new container on another host."""
    others = [m for m in living(state) if m.pool == gone.pool and m.token != gone.token]
    return any(other.booted_at > gone.seen_at for other in others)


# -- queues


@dataclass(frozen=True)
class Untaken:
    """Why no worker takes the ready jobs. kind: as of a Reason, "" if it is none by itself."""

    kind: str
    fact: str
    way: str


def of_queue(line: Line, state: State) -> Iterator[Reason]:
    why = untaken(line, state) if line.sizes.ready or line.overdue else None
    if why is not None and why.kind:
        yield Reason(why.kind, f"queue '{line.name}': {waiting(line)} and {why.fact}; {why.way}", queue=line.name)


def waiting(line: Line) -> str:
    if line.sizes.ready:
        return f"{line.sizes.ready} ready"
    if not line.sizes.delayed:
        return f"{line.sizes.reserved} reserved, the first lease ended {ago(line.overdue)},"
    return f"{line.sizes.delayed} delayed, the first due {ago(line.overdue)},"


def untaken(line: Line, state: State) -> Untaken:
    """The first of these that is so."""
    if line.paused:
        return Untaken("", "it is paused", f"`qd resume {line.name}`")
    if shut(line, state):
        if state.down:
            return Untaken("", "maintenance mode", "`qd up`")
        return Untaken("", "Laravel's maintenance mode", "`php artisan up`")
    serving = [m for m in living(state) if serves(m, line)]
    since = stuck_since(line, serving)
    stuck_for = 0.0 if since is None else state.now - since
    if line.php and (stuck_for > STUCK or (line.sizes.oldest_age or 0.0) > UNTAKEN):
        said = f"start `php artisan queue:work --queue={line.name}`, or give each language a queue of its own"
        return Untaken("php", "the first is an object job of Laravel that no PHP worker takes", said)
    if not serving and (line.php or line.theirs):
        return Untaken("", "only PHP workers serve it", "add PHP workers")
    if not serving:
        return unserved(line, state)
    if not any(master.workers for master in serving):
        kind = "stuck" if stuck_for > STUCK else ""
        return Untaken(kind, f"{names_of(serving)} has no worker that is up", "see the `worker.` lines of its log")
    if stuck_for > STUCK:
        return Untaken("stuck", *stuck(serving, stuck_for))
    if not any(works(master) for master in serving):
        return Untaken("", f"{names_of(serving)} is {serving[0].state}", "CONT to a paused master resumes it")
    if all(busy(master) for master in serving if works(master)):
        return Untaken("", "all workers are busy", "add workers")
    return Untaken("", "", "add workers")


def unserved(line: Line, state: State) -> Untaken:
    kind = "unserved" if old(line) and not restarting(state) else ""
    silent = [m for m in state.masters if stale(m, state.now) and serves(m, line) and not replaced(m, state)]
    start = f"start `qd work {line.name}`"
    if blind(state):
        return Untaken("", "no master can report", "fix the server that refuses writes")
    if silent:
        seconds = duration(state.now - silent[0].seen_at)
        return Untaken(kind, f"{names_of(silent)}, which serves it, has not reported for {seconds}", start)
    if not living(state):
        return Untaken(kind, "no master runs", start)
    return Untaken(kind, "no worker serves it", f"{start}, or add it to the queues of a pool that runs")


def names_of(masters: list[Master]) -> str:
    return ", ".join(f"{named(m)} (pid {m.pid})" for m in masters[:3])


def of_failed(line: Line, now: float) -> Iterator[tuple[str, str]]:
    """What to know about the failed store of a queue, and what to do. It is a warning only: no job waits because of it."""
    way = f"raise [failed] max_bytes (or max_count), or retry or forget some: qd failed list -q {line.name}"
    at = line.failed.dropped_at
    if at is not None and now - at < RECENT:
        said = f"{count(line.failed.dropped, 'failed job')} of queue '{line.name}' dropped to make room for newer ones"
        yield f"{said}, the last {ago(max(0.0, now - at))}", way
    elif line.full >= FULL:
        used = f"{line.sizes.failed} of them, {line.failed.bytes / (1 << 20):.1f} MB"
        said = f"the failed jobs of queue '{line.name}' use {line.full:.0%} of their limits ({used})"
        yield f"{said}; beyond them the oldest are dropped", way


def shut(line: Line, state: State) -> bool:
    """Whether maintenance mode holds it back: ours, or Laravel's own on every host that serves it."""
    if state.down is not None and line.name not in state.down.allow:
        return True
    serving = [master for master in living(state) if serves(master, line)]
    return bool(serving) and all(master.laravel_down for master in serving)


def serves(master: Master, line: Line) -> bool:
    return master.connection == line.connection and line.name in master.queues


def stuck_since(line: Line, serving: list[Master]) -> float | None:
    """Since when nobody took anything though somebody could have. None: it moves, or all hands are busy elsewhere."""
    able = [m for m in serving if works(m) and not busy(m)]
    moments = [m.stuck[line.name] for m in able if line.name in m.stuck]
    return max(moments) if moments and len(moments) == len(able) else None


def works(master: Master) -> bool:
    """Whether it takes jobs: of a queue that maintenance mode allows, also in it."""
    return master.state == "running" or (master.state == "down" and not master.laravel_down)


def busy(master: Master) -> bool:
    """Whether each worker has a job in hand: then what waits is behind, not stuck (--max-age tells how long)."""
    return bool(master.workers) and all(worker.job for worker in master.workers)


def stuck(serving: list[Master], seconds: float) -> tuple[str, str]:
    hands = count(sum(len(master.workers) for master in serving), "worker")
    fact = f"nothing taken for {duration(seconds)} by the {hands} of {names_of(serving)}"
    return fact, "`qd status` shows what they do, USR1 to the master writes all stacks to its log"


def old(line: Line) -> bool:
    """Not known is old: payloads of Laravel 8 do not tell when they were made."""
    if not line.sizes.ready:
        return line.overdue >= GRACE
    return line.sizes.oldest_age is None or line.sizes.oldest_age >= GRACE


def restarting(state: State) -> bool:
    return state.restart is not None and state.now - state.restart.at < GRACE


def over(line: Line, limits: Limits, state: State) -> Iterator[Reason]:
    why = untaken(line, state)
    rest = f" ({why.fact}); {why.way}" if why.fact else f"; {why.way}"
    ready, age = line.sizes.ready, line.sizes.oldest_age if line.sizes.ready else line.overdue
    if limits.max_ready is not None and ready > limits.max_ready:
        what = f"queue '{line.name}': {ready} ready, over --max-ready {limits.max_ready}{rest}"
        yield Reason("max-ready", what, queue=line.name)
    if limits.max_age is not None and age is not None and age > limits.max_age:
        what = (
            f"queue '{line.name}': its oldest job waits for {duration(age)}, over --max-age {duration(limits.max_age)}"
        )
        yield Reason("max-age", f"{what}{rest}", queue=line.name)
