"""Why masters and queues are not well: for `qd status`, `qd health` and `qd doctor`.

State -> reasons -> Reason(kind, text: the fact, the thing with its value, the fix)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from qd.cli.output import ago, by_whom, count, duration, moving, quote, resuming
from qd.cli.state import FIRST, QueueLine, State, runs_long, stale
from qd.drivers.keyspace import keys
from qd.payload.format import OBJECT_JOB
from qd.store.fleet import Target
from qd.store.masters import FORGOTTEN, MasterReport, SchedulerReport, WorkerReport
from qd.store.statistics import Place, Rate

STUCK = 10.0  # seconds in which nothing was taken from a queue with jobs
UNTAKEN = 60.0  # seconds a job for PHP may wait, if no master reports since when
CRASHES, WITHIN = 5, 60.0  # this many workers of one master in this many seconds; `qd alerts` must see it in two checks
REPLACED, APART = 5, 60.0  # keepers of one master, and the mean seconds between them
UNSCHEDULED = 5.0  # seconds without a scheduler where one is wanted; it is replaced within one
FULL = 0.8  # part of the failed store's limits; above it there is a warning
RECENT = 86400.0  # seconds for which commands warn after a failed job was dropped
ONLY_PHP = "if only PHP serves it, name the queues to check instead: `qd health QUEUE...`, `qd alerts QUEUE...`"
GRACE = 10.0  # seconds after `qd restart`, or after a job arrived, in which masters may still be starting


@dataclass(frozen=True)
class Reason:
    """kind: a word for programs. queue, master: what it is about, or ""."""

    kind: str
    text: str
    queue: str = ""
    master: str = ""


@dataclass(frozen=True)
class HealthThresholds:
    """The values of --max-ready, --max-age (seconds) and --expect, None if not given; and --allow-none."""

    max_ready: int | None = None
    max_age: float | None = None
    expect: int | None = None
    allow_none: bool = False


def reasons(state: State, limits: HealthThresholds) -> Iterator[Reason]:
    yield from nodes_away(state)
    yield from refusals(state)
    if not blind(state):
        yield from too_few(state, limits)
        for master in state.masters:
            yield from of_master(master, state)
    for line in state.queues:
        if line.error:
            yield Reason("unreadable", f"queue '{line.name}': {line.error}", queue=line.name)
        elif state.knows_masters:
            yield from of_queue(line, state)
        yield from over(line, limits, state)


# -- servers

PRIMARY = "it is a replica, or a failover is under way: point the url at the primary"
WAYS = {
    "READONLY": PRIMARY,
    "read-only": PRIMARY,
    "MISCONF": "free its disk and see its log",
    "NOREPLICAS": "start its replicas, or lower min-replicas-to-write",
    "No space left": "free its disk",
    "OOM": "let workers make room, or raise maxmemory",
}


def nodes_away(state: State) -> Iterator[Reason]:
    for place, why in state.nodes.items():
        lacks = f"; not known: {', '.join(state.unknown)}" if state.unknown else ""
        yield Reason("node", f"node {place} of the cluster is unreachable ({why}){lacks}; start it, or see its log")


def refusals(state: State) -> Iterator[Reason]:
    for place, text in state.refused.items():
        fact = f"the server refuses writes: {text.rstrip('.')}"
        yield Reason("refused", f"connection {place}: {fact}; {way_out(text)}")


def blind(state: State) -> bool:
    """Whether masters are silent because the server refuses their reports: their state is unknown."""
    return not state.knows_masters or (state.control in state.refused and not state.living)


def way_out(text: str) -> str:
    return next((way for word, way in WAYS.items() if word in text), "see its log")


# -- masters


def way_back(master: MasterReport, state: State) -> str:
    """For a silent master. The next one on its host requeues its jobs, others those whose lease ends."""
    way = "if it died, start `qd work` there, which requeues its jobs and deletes this report; if it runs, it does not reach"
    way += f" this server; if that host is gone, other masters do both, the report within {duration(FORGOTTEN)}"
    # The rest is for redis-cli.
    return (
        way
        if state.in_database
        else f"{way}; to delete it now: HDEL {quote(state.prefix + keys.MASTERS)} {master.token}"
    )


def too_few(state: State, limits: HealthThresholds) -> Iterator[Reason]:
    """A silent master is a separate reason."""
    there = len(state.living)
    if restarting(state):
        return
    if limits.expect is not None and there < limits.expect:
        fact = f"{count(there, 'master')} of the {limits.expect} expected"
        yield Reason("masters", f"{fact}; start `qd work` where it is missing (`qd status` names those that run)")
    elif not state.masters and not limits.allow_none:
        fact = "no master runs on any host; start `qd work`, or pass --allow-none if that is intended"
        yield Reason("no-master", fact)


def of_master(master: MasterReport, state: State) -> Iterator[Reason]:
    who, title = f"{master.title} (pid {master.pid})", master.title
    if stale(master, state.now):
        if not replaced(master, state):
            fact = f"its keeper has not reported for {duration(state.now - master.seen_at)}"
            yield Reason("silent-master", f"{who}: {fact}; {way_back(master, state)}", master=title)
        return
    if master.hangs:
        yield Reason("hung-master", f"{who}: {hung(master)}", master=title)
    crashed = [at for at in master.crashes if state.now - at <= WITHIN]
    if len(crashed) >= CRASHES:
        fact = f"{len(crashed)} workers crashed in the last minute; see `worker.died` and `job.killed` in its log"
        yield Reason("crashes", f"{who}: {fact}", master=title)
    for slot in master.silent_workers:
        yield Reason("silent-worker", f"{who}: {silent(master, slot)}", master=title)
    if master.unscheduled is not None and state.now - master.unscheduled > UNSCHEDULED:
        fact = f"no scheduler for {duration(state.now - master.unscheduled)}; see `scheduler.` in its log"
        yield Reason("scheduler", f"{who}: {fact}", master=title)
    up = state.now - master.booted_at
    if master.keeper_restarts >= REPLACED and up / master.keeper_restarts < APART:
        fact = f"its keeper ended {master.keeper_restarts} times in {duration(up)}; see `keeper.` in its log"
        yield Reason("keeper", f"{who}: {fact}", master=title)


def of_refused_code(state: State) -> Iterator[tuple[str, str]]:
    """Warnings about masters that refused new code, each with a fix. Their pools work."""
    for master in state.living:
        if master.refused:
            fact, way = refused_code(master, state.now)
            yield f"{master.title} {fact}", way


def refused_code(master: MasterReport, now: float) -> tuple[str, str]:
    reason, _, way = master.refused.rpartition("; ")
    when = "" if master.refused_at is None else f" {ago(max(0.0, now - master.refused_at))}"
    return f"refused new code{when} and runs the old: {reason}", way


def silent(master: MasterReport, slot: int) -> str:
    children: list[tuple[str, WorkerReport | SchedulerReport]] = [("worker", worker) for worker in master.workers]
    children += [("scheduler", scheduler) for scheduler in master.schedulers]
    names = (f"{word} {slot} (pid {child.pid})" for word, child in children if child.slot == slot)
    what = next(names, f"worker {slot}")
    return f"{what} stopped answering; USR1 to the master writes its stack to the log"


def hung(master: MasterReport) -> str:
    text = f"the master has not answered for {duration(master.master_silent)}, though its keeper reports"
    return f"{text}; kill -9 {master.pid} on {master.host}, its supervisor restarts it"


def replaced(gone: MasterReport, state: State) -> bool:
    """Whether another master of the same pool has started since it fell silent, such as a new container."""
    others = [m for m in state.living if m.pool == gone.pool and m.token != gone.token]
    return any(other.booted_at > gone.seen_at for other in others)


# -- queues


@dataclass(frozen=True)
class Untaken:
    """Why no worker takes the ready jobs. kind: of a Reason; "" if this alone is not one."""

    kind: str
    fact: str
    way: str


def of_queue(line: QueueLine, state: State) -> Iterator[Reason]:
    why = untaken(line, state) if line.sizes.ready or line.overdue else None
    if why is not None and why.kind:
        yield Reason(why.kind, f"queue '{line.name}': {waiting(line)} and {why.fact}; {why.way}", queue=line.name)
    late = php_held(line, state.now)
    if late > UNTAKEN and not (why is not None and why.kind == "php") and not line.paused and not shut(line, state):
        fact = f"a PHP job was put back {ago(late)}, and no PHP worker takes it"
        first = next(job.display for job in line.held if job.job == OBJECT_JOB)
        yield Reason("php", f"queue '{line.name}': {fact}; {php_way(line, first)}", queue=line.name)


def php_held(line: QueueLine, now: float) -> float:
    """Seconds since a qd worker first put back an object job that still waits; 0.0 if none, or a PHP worker takes them.
    Unlike `stuck`, this grows while qd puts back the next one. In another queue than ours, where `qd move` may have sent
    it, PHP workers run it when it is due."""
    since = [job.since for job in line.held if job.job == OBJECT_JOB]
    return now - min(since) if since and line.ours and not line.theirs else 0.0


def php_way(line: QueueLine, job: str) -> str:
    """A PHP worker in a queue of ours would fail and delete the jobs of Python. job: its name for people."""
    if not line.ours:
        return f"start `php artisan queue:work --queue={quote(line.name)}`, or give each language a queue of its own"
    return f"move it: {moving(line.name, job)}, start a PHP worker there, and let its sender push it there"


def waiting(line: QueueLine) -> str:
    if line.sizes.ready:
        return f"{line.sizes.ready} ready"
    if not line.sizes.delayed:
        return f"{line.sizes.reserved} reserved, the first lease ended {ago(line.overdue)},"
    return f"{line.sizes.delayed} delayed, the first due {ago(line.overdue)},"


def untaken(line: QueueLine, state: State) -> Untaken:
    """The first of these that applies."""
    if line.paused:
        return Untaken("", "it is paused", f"`qd resume {quote(line.name)}`")
    if shut(line, state):
        which = ("maintenance mode", "`qd up`") if state.down else ("Laravel's maintenance mode", "`php artisan up`")
        return Untaken("", *which)
    found = serving_now(line, state)
    # Stuck: no worker that is free took anything. A queue whose workers are all busy is behind, not stuck.
    moments = [m.stuck.get(line.name) for m in found if works(m) and not busy(m)]
    since = [moment for moment in moments if moment is not None]
    stuck_for = state.now - max(since) if since and len(since) == len(moments) else 0.0
    waited = max(line.sizes.oldest_age or line.overdue, php_held(line, state.now))
    if line.php and (stuck_for > STUCK or waited > UNTAKEN):
        return Untaken("php", "the first is a PHP job that no PHP worker takes", php_way(line, line.php))
    if not found and (line.theirs or (line.php and not line.ours)):
        way = f"start `qd work {quote(line.name)}`" if line.ours else "add PHP workers"
        return Untaken("", "only PHP workers serve it", way)
    if not found:
        return unserved(line, state)
    if not any(master.workers for master in found):
        kind = "stuck" if stuck_for > STUCK else ""
        return Untaken(kind, f"{names_of(found)} has no worker that is up", "see the `worker.` lines of its log")
    if stuck_for > STUCK:
        workers = count(sum(len(master.workers) for master in found), "worker")
        fact = f"nothing taken for {duration(stuck_for)} by the {workers} of {names_of(found)}"
        return Untaken("stuck", fact, "`qd status` shows what they do, USR1 to the master writes all stacks to its log")
    if not any(works(master) for master in found):
        places = ("host", found[0].host), ("pool", found[0].pool_title)
        held = next((resuming(*target) for target in state.fleet.pauses if target in places), "")
        way = held or "CONT to a paused master resumes it"
        return Untaken("", f"{names_of(found)} is {found[0].state}", way)
    if all(busy(master) for master in found if works(master)):
        fact, way = next(long_jobs(found, state.now), ("", "add workers"))
        return Untaken("", ", ".join(filter(None, ("all workers are busy", fact))), way)
    return Untaken("", "", "add workers")


def unserved(line: QueueLine, state: State) -> Untaken:
    kind = "unserved" if old(line) and not restarting(state) else ""
    silent = [m for m in serving(line, state) if stale(m, state.now) and not replaced(m, state)]
    start = f"start `qd work {quote(line.name)}`"
    if blind(state):
        return Untaken("", "no master can report", "fix the server that refuses writes")
    if silent:
        seconds = duration(state.now - silent[0].seen_at)
        return Untaken(kind, f"{names_of(silent)}, which serves it, has not reported for {seconds}", start)
    if not state.living:
        return Untaken(kind, "no master runs", start)
    way = f"{start}, or add it to the queues of a pool that runs"
    foreign = "" if line.ours else f"; {ONLY_PHP}"
    return Untaken(kind, "no worker serves it", way + foreign)


def names_of(masters: list[MasterReport]) -> str:
    return ", ".join(f"{m.title} (pid {m.pid})" for m in masters[:3])


def warnings(state: State, rates: Mapping[Place, Rate]) -> Iterator[tuple[str, str]]:
    """What may become a problem, or is held by a person, each with a fix."""
    yield from of_refused_code(state)
    for line in state.queues:
        if line.paused:
            yield f"{line.name} is paused{by_whom(line.paused, state.now)}", f"`qd resume {quote(line.name)}`"
        elif is_growing(line, rates):
            growth = rates[line.connection, line.name].growth
            yield f"{line.name} is growing by {growth:,.0f}/min, {line.sizes.ready:,} ready", "add workers"
        yield from of_line(line, state)


def is_growing(line: QueueLine, rates: Mapping[Place, Rate]) -> bool:
    """By a job a minute or more, and more than a twentieth of what comes in."""
    rate = rates.get((line.connection, line.name))
    return rate is not None and line.sizes.ready > 0 and rate.growth >= max(1.0, rate.enters / 20)


def of_line(line: QueueLine, state: State) -> Iterator[tuple[str, str]]:
    """Warnings about one queue that are no reasons, each with a fix."""
    yield from of_failed(line, state.now)
    yield from of_held(line, state)
    yield from of_paused_masters(line, state)
    yield from long_jobs(serving_now(line, state), state.now, line.name)


def long_jobs(found: list[MasterReport], now: float, queue: str | None = None) -> Iterator[tuple[str, str]]:
    """Jobs (of this queue) that may never end, the longest first, each with a fix."""
    workers = [(master, worker) for master in found for worker in master.workers if runs_long(worker, now)]
    for master, worker in sorted(workers, key=lambda pair: pair[1].since or now):
        if queue in (None, worker.queue):
            ran = duration(now - (worker.since or now))
            fact = f"worker {worker.slot} of {names_of([master])} has run {worker.job} for {ran} without a timeout"
            stack = "USR1 to the master writes its stack to the log"
            yield fact, f"`qd cancel {quote(worker.job_id)}` if it hangs" if worker.job_id else stack


def of_held(line: QueueLine, state: State) -> Iterator[tuple[str, str]]:
    """Jobs that no worker can run. Paused ones wait for an operator, object jobs for a PHP worker, and those that were moved
    to a queue of PHP for its workers."""
    held = [job for job in line.held if job.job != OBJECT_JOB and Target("job", job.job) not in state.fleet.pauses]
    if not held or not line.ours:
        return
    since, more = ago(state.now - held[0].since), " or more" if line.sizes.delayed > FIRST else ""
    what = f"{len(held)}{more} jobs were put back because no worker can run them, the first {since}"
    if len(held) == 1 and not more:
        what = f"1 job was put back because no worker can run it, first {since}"
    way = "deploy the code that fits before unroutable_ttl ends"
    yield f"queue '{line.name}': {what}", f"`qd why {quote(held[0].id)}` shows the cause; {way}"


def of_paused_masters(line: QueueLine, state: State) -> Iterator[tuple[str, str]]:
    found = serving_now(line, state)
    if not (line.sizes.ready or line.overdue) or line.paused or any(master.state != "paused" for master in found):
        return
    why = untaken(line, state) if found else None
    if why is not None and not why.kind and not shut(line, state):
        yield f"queue '{line.name}': {waiting(line)} and {why.fact}", why.way


def of_failed(line: QueueLine, now: float) -> Iterator[tuple[str, str]]:
    """Warnings about the failed store of a queue, each with a fix. No job waits because of it."""
    way = f"raise [failed] max_bytes (or max_count), or retry or forget some: qd failed list -q {quote(line.name)}"
    at = line.failed.dropped_at
    if at is not None and now - at < RECENT:
        text = f"{count(line.failed.dropped, 'failed job')} of queue '{line.name}' dropped to make room for newer ones"
        yield f"{text}, the last {ago(max(0.0, now - at))}", way
    elif line.full >= FULL:
        used = f"{line.sizes.failed} of them, {line.failed.bytes / (1 << 20):.1f} MB"
        text = f"the failed jobs of queue '{line.name}' use {line.full:.0%} of their limits ({used})"
        yield f"{text}; beyond them the oldest are dropped", way


def shut(line: QueueLine, state: State) -> bool:
    """Whether maintenance mode stops it: qd's, or Laravel's on every host that serves it."""
    if state.down is not None and line.name not in state.down.allow:
        return True
    found = serving_now(line, state)
    return bool(found) and all(master.laravel_down for master in found)


def serving(line: QueueLine, state: State) -> list[MasterReport]:
    return state.serving.get((line.connection, line.name), [])


def serving_now(line: QueueLine, state: State) -> list[MasterReport]:
    return [master for master in serving(line, state) if not stale(master, state.now)]


def works(master: MasterReport) -> bool:
    """Whether it takes jobs; in maintenance mode those of allowed queues."""
    return master.state == "running" or (master.state == "down" and not master.laravel_down)


def busy(master: MasterReport) -> bool:
    """Whether each worker runs a job (see --max-age)."""
    return bool(master.workers) and all(worker.job for worker in master.workers)


def old(line: QueueLine) -> bool:
    """Unknown counts as old: payloads of Laravel 8 have no creation time."""
    if not line.sizes.ready:
        return line.overdue >= GRACE
    return line.sizes.oldest_age is None or line.sizes.oldest_age >= GRACE


def restarting(state: State) -> bool:
    return state.restart is not None and state.now - state.restart.at < GRACE


def over(line: QueueLine, limits: HealthThresholds, state: State) -> Iterator[Reason]:
    why = untaken(line, state)
    rest = f" ({why.fact}); {why.way}" if why.fact else f"; {why.way}"
    ready, age = line.sizes.ready, line.sizes.oldest_age if line.sizes.ready else line.overdue
    if limits.max_ready is not None and ready > limits.max_ready:
        what = f"queue '{line.name}': {ready} ready, more than {limits.max_ready}{rest}"
        yield Reason("max-ready", what, queue=line.name)
    if limits.max_age is not None and age is not None and age > limits.max_age:
        what = f"its oldest job waits for {duration(age)}, longer than {duration(limits.max_age)}"
        yield Reason("max-age", f"queue '{line.name}': {what}{rest}", queue=line.name)
