"""What is in the queues: unknown job names, refused signatures, jobs for PHP, jobs of dead masters, queues without workers.

And whether each queue flows: paused, unserved, stuck, as `qd health` decides; and how many jobs have failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from qd.app import Qd
from qd.cli import context
from qd.cli.checks import Finding, fail, ok, warn
from qd.cli.checks.project import Project
from qd.cli.diagnosis import of_failed, of_queue
from qd.cli.output import by_whom, count
from qd.cli.state import QueueLine, State, full, is_object_job, overdue_of
from qd.cli.state import of_php as state_of_php
from qd.config.settings import Settings
from qd.drivers.keyspace import keys
from qd.errors import Malformed, ServerRefused, SignatureRefused
from qd.log import cut
from qd.options.kinds import did_you_mean
from qd.payload.format import read
from qd.payload.signing import Signing
from qd.process import proc
from qd.store import controls
from qd.store.base import KeyspaceStore
from qd.store.failed import FailedStore
from qd.store.masters import MasterReport

HEAD = 50  # ready, and delayed, jobs of each queue that are read
WAITS = ("unserved", "stuck")  # those of health's reasons that are reported here


@dataclass(frozen=True)
class Sample:
    """Payloads: the first ready ones, the delayed ones that are due first, some reserved ones."""

    ready: list[bytes]
    delayed: list[bytes]
    held: list[bytes]

    def __len__(self) -> int:
        return len(self.ready) + len(self.delayed)


def check_waiting(
    store: KeyspaceStore,
    queues: Sequence[str],
    app: Qd | None,
    masters: list[MasterReport],
    signing: Signing | None,
    place: str = "it",
) -> Iterator[Finding]:
    """signing: None if no keys are configured. place: what is read, of a queue whose jobs are kept elsewhere."""
    for queue in queues:
        try:
            sample = sample_of(store, queue)
        except ServerRefused as error:
            way = f"qd needs a list: TYPE {store.prefix}{keys.ready(queue)}"
            yield warn(f"queue {queue}", f"cannot be read: {error}", way)
            continue
        found = list(judged(queue, sample, signing, app))
        found += of_dead_masters(store, queue, masters)
        parts = [f"{count(len(sample.ready), 'job')} at its head"] if sample.ready else []
        parts += [count(len(sample.delayed), "delayed job")] if sample.delayed else []
        checked = f"{' and '.join(parts)} checked" if parts else f"nothing waits in {place}"
        yield from found or [ok(f"queue {queue}", checked)]


def sample_of(store: KeyspaceStore, queue: str) -> Sample:
    """Uses only commands that a worker's user may call."""
    ready, reserved, delayed = (store.prefix + kind(queue) for kind in (keys.ready, keys.reserved, keys.delayed))
    ranges = [("ZRANGE", delayed, 0, HEAD - 1), ("ZRANGE", reserved, 0, HEAD - 1)]
    *head, later, held = store.space.call_many([*(("LINDEX", ready, at) for at in range(HEAD)), *ranges])
    for reply in (*head, later, held):
        if isinstance(reply, Exception):
            raise reply
    return Sample([raw for raw in head if raw is not None], later, held)


def judged(queue: str, sample: Sample, signing: Signing | None, app: Qd | None) -> Iterator[Finding]:
    what, of = f"queue {queue}", f"of the {len(sample)} checked"
    names, malformed, refused = dict[str, str](), 0, Counter[str]()  # job -> where it was found; why -> how many
    waiting = [("at its head", raw) for raw in sample.ready]
    waiting += [("among its delayed jobs", raw) for raw in sample.delayed]
    for place, raw in waiting:
        if is_object_job(raw):
            continue
        try:
            payload = read(raw)
            if signing is not None:
                signing.check(payload)
            names.setdefault(payload.job, place)
        except Malformed:
            malformed += 1
        except SignatureRefused as error:
            refused[str(error)] += 1
    if malformed:
        fact = f"{malformed} {of} {'is not a valid payload' if malformed == 1 else 'are not valid payloads'}"
        yield warn(what, fact, "they go to the failed store unchanged")
    if refused:
        why = ", ".join(f"{reason} ({number})" for reason, number in refused.most_common())
        way = "let their producer sign with one of the keys below [signing], or add its key there"
        yield warn(what, f"{refused.total()} {of} will be refused and never run: {why}", way)
    for name, place in names.items():
        if app is not None and app._registry.get(name) is None:
            near = did_you_mean(name, app._registry.names())
            fact = f"'{cut(name)}' {place} is not a job of this app{near}: it fails after unroutable_ttl"
            yield fail(what, fact, "deploy the code that declares it, or name its module in imports = of [qd]")
    yield from of_php(queue, sample)


def of_php(queue: str, sample: Sample) -> Iterator[Finding]:
    what, each = f"queue {queue}", "give each language its own queue"
    objects = sum(map(is_object_job, sample.ready))
    if any(b'"rsv":"' not in member for member in sample.held):  # reserved by a PHP worker
        value = "a PHP worker works on it too: it fails and deletes string jobs that it does not know"
        yield warn(what, value, each)
    elif objects:
        are = "is an object job" if objects == 1 else "are object jobs"
        value = f"{objects} of the first {len(sample.ready)} {are} of Laravel, which only a PHP worker takes"
        yield warn(what, value, f"start `php artisan queue:work --queue={queue}`, or {each}")


def of_dead_masters(store: KeyspaceStore, queue: str, masters: list[MasterReport]) -> list[Finding]:
    (owners,) = store.space.call_many([("HKEYS", store.prefix + keys.owners(queue))])
    names = [name.decode("utf-8", "replace") for name in owners] if isinstance(owners, list) else []
    tokens = [name.partition("/")[0] for name in names if not name.endswith(keys.FENCE)]
    alive = {master.token for master in masters if not is_dead(master)}
    if not (gone := sum(token not in alive for token in tokens)):
        return []
    way = "start `qd work` on their host, which requeues them at once; else they return when their leases end"
    return [warn(f"queue {queue}", f"{count(gone, 'job')} reserved by masters that are gone", way)]


def is_dead(master: MasterReport) -> bool:
    """Whether its process was on this host and in this container, and no longer exists."""
    here = bool(master.boot) and (master.boot, master.ns) == (proc.boot_id(), proc.pid_namespace())
    return here and proc.alive(master.pid, master.start) is False


def unworked(connection: str, project: Project, masters: list[MasterReport]) -> Iterator[Finding]:
    """Jobs sent to a queue of this connection that no pool of the file and no master works on."""
    if project.app is None:
        return
    worked = {(found.work.connection, queue) for found in project.pools.values() for queue in found.work.queues}
    worked |= {(master.connection, queue) for master in masters for queue in master.queues}
    for declared in project.app._registry:
        place = project.app.settings.connections.get(declared.options.connection or project.app.settings.default)
        queue = declared.options.queue or (place.queue if place else "")
        if place is not None and place.name == connection and (connection, queue) not in worked:
            way = f'name it in [worker] or in a pool: queues = [..., "{queue}"], or start `qd work {queue}`'
            yield warn(
                f"job {declared.name}", f"goes to the queue '{queue}' of {connection}, which no worker here serves", way
            )


def check_flow(settings: Settings, place: str, queues: Sequence[str], state: State | None) -> Iterator[Finding]:
    """place: name of the connection. state: None if reports cannot be read, so that workers are unknown."""
    store = context.store(settings, place)
    for name in queues:
        now = store.now()
        try:
            line = line_of(store, settings, place, name, now)
        except ServerRefused:
            continue  # check_waiting has reported it
        if line.paused is not None:
            value = f"paused{by_whom(line.paused, now)}; {count(line.sizes.ready, 'job')} ready"
            yield warn(f"work on {name}", value, f"qd resume {name}")
        for reason in of_queue(line, state) if state is not None else ():
            if reason.kind in WAITS:
                value, _, way = reason.text.removeprefix(f"queue '{name}': ").partition("; ")
                yield warn(f"work on {name}", value, way)
        dropped = [warn(f"failed {name}", value, way) for value, way in of_failed(line, now)]
        if line.sizes.failed and not dropped:
            yield ok(f"failed {name}", f"{count(line.sizes.failed, 'failed job')} kept; qd failed list -q {name}")
        yield from dropped


def line_of(store: KeyspaceStore, settings: Settings, place: str, name: str, now: float) -> QueueLine:
    """Uses only commands that a worker's user may call."""
    sizes = context.queue(settings, place).sizes(name)
    raw = store.space.call("GET", store.prefix + keys.paused(name))
    paused = None if raw is None else controls.read_pause(raw)
    (fill,) = FailedStore(store).fills([name])
    php, overdue = state_of_php(store, name, now), overdue_of(store, name, now)
    return QueueLine(place, name, sizes, paused, 0, *php, fill, full(settings.failed, sizes.failed, fill), overdue)
