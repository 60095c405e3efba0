"""What stands in the queues: names that the app does not know, what no key has signed, jobs for PHP, jobs in dead hands,
queues nobody works on.

Does each queue flow? Paused, waited for in vain, stuck: judged as `qd health` does. And how many jobs have failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qd import payload
from qd.cli import context
from qd.cli.checks import Finding, fail, ok, warn
from qd.cli.output import by_whom, count
from qd.cli.state import QueueLine, State, full, is_object_job, of_failed, of_queue, overdue_of
from qd.cli.state import of_php as state_of_php
from qd.drivers.keyspace import keys
from qd.errors import Malformed, ServerRefused, SignatureRefused
from qd.options.kinds import did_you_mean
from qd.process import proc
from qd.store import controls
from qd.store.failed import FailedStore
from qd.store.masters import MasterReport

if TYPE_CHECKING:
    from qd.app import Qd
    from qd.cli.checks.project import Project
    from qd.config.settings import Settings
    from qd.payload.signing import Signing
    from qd.store.base import KeyspaceStore


HEAD = 50  # jobs of each queue that are looked at, and of those that are delayed


@dataclass(frozen=True)
class Standing:
    """Payloads: the first ready ones, the delayed ones that are due first, some of the reserved ones."""

    ready: list[bytes]
    delayed: list[bytes]
    held: list[bytes]

    @property
    def shared(self) -> bool:
        """Whether a PHP worker has jobs of this queue in hand."""
        return any(b'"rsv":"' not in member for member in self.held)

    def __len__(self) -> int:
        return len(self.ready) + len(self.delayed)


@dataclass
class Seen:
    """names: with the place where each stands. refused: why a worker will not run them, and how many."""

    names: dict[str, str] = field(default_factory=dict)
    malformed: int = 0
    refused: Counter[str] = field(default_factory=Counter)


def check_waiting(
    store: KeyspaceStore,
    queues: Sequence[str],
    app: Qd | None,
    masters: list[MasterReport],
    signing: Signing | None,
    place: str = "it",
) -> Iterator[Finding]:
    """signing: None where no keys are configured. place: what of a queue can be looked at."""
    for queue in queues:
        try:
            there = standing(store, queue)
        except ServerRefused as error:
            yield warn(
                f"queue {queue}", f"cannot be read: {error}", f"qd needs a list: TYPE {store.prefix}{keys.ready(queue)}"
            )
            continue
        found = list(judged(queue, there, seen(there, signing), app))
        found += dead_hands(store, queue, masters)
        yield from found or [ok(f"queue {queue}", well(there, place))]


def standing(store: KeyspaceStore, queue: str) -> Standing:
    """By commands that a worker's user may call too."""
    ready, reserved, delayed = (store.prefix + kind(queue) for kind in (keys.ready, keys.reserved, keys.delayed))
    ranges = [("ZRANGE", delayed, 0, HEAD - 1), ("ZRANGE", reserved, 0, HEAD - 1)]
    *head, later, held = store.space.call_many([*(("LINDEX", ready, at) for at in range(HEAD)), *ranges])
    for reply in (*head, later, held):
        if isinstance(reply, Exception):
            raise reply
    return Standing([raw for raw in head if raw is not None], later, held)


def well(there: Standing, place: str) -> str:
    parts = [f"{count(len(there.ready), 'job')} at its head"] if there.ready else []
    parts += [f"{count(len(there.delayed), 'delayed job')}"] if there.delayed else []
    return f"{' and '.join(parts)} looked at" if parts else f"nothing waits in {place}"


def seen(there: Standing, signing: Signing | None) -> Seen:
    found = Seen()
    for place, payloads in (("at its head", there.ready), ("among its delayed jobs", there.delayed)):
        for raw in payloads:
            if is_object_job(raw):
                continue
            try:
                read = payload.read(raw)
                if signing is not None:
                    signing.check(read)
                found.names.setdefault(read.job, place)
            except Malformed:
                found.malformed += 1
            except SignatureRefused as error:
                found.refused[str(error)] += 1
    return found


def judged(queue: str, there: Standing, seen: Seen, app: Qd | None) -> Iterator[Finding]:
    what, of = f"queue {queue}", f"of the {len(there)} looked at"
    if seen.malformed:
        said = f"{seen.malformed} {of} {'is no payload' if seen.malformed == 1 else 'are no payloads'}"
        yield warn(what, said, "they go to the failed store as they are")
    if seen.refused:
        why = ", ".join(f"{reason} ({number})" for reason, number in seen.refused.most_common())
        way = "let their producer sign with one of the keys below [signing], or add its key there"
        yield warn(what, f"{seen.refused.total()} {of} will be refused and never run: {why}", way)
    for name, place in seen.names.items():
        if app is not None and app._registry.get(name) is None:
            near = did_you_mean(name, app._registry.names())
            said = f"'{name}' {place} is no job of this app{near}: it fails after unroutable_ttl"
            yield fail(what, said, "deploy the code that declares it, or name its module in imports = of [qd]")
    yield from of_php(queue, there)


def of_php(queue: str, there: Standing) -> Iterator[Finding]:
    what, each = f"queue {queue}", "give each language a queue of its own"
    objects = sum(map(is_object_job, there.ready))
    if there.shared:
        said = "a PHP worker works on it too: it fails and deletes string jobs that it does not know"
        yield warn(what, said, each)
    elif objects:
        are = "is an object job" if objects == 1 else "are object jobs"
        said = f"{objects} of the first {len(there.ready)} {are} of Laravel, which only a PHP worker takes"
        yield warn(what, said, f"start `php artisan queue:work --queue={queue}`, or {each}")


# -- jobs in dead hands


def dead_hands(store: KeyspaceStore, queue: str, masters: list[MasterReport]) -> list[Finding]:
    (owners,) = store.space.call_many([("HKEYS", store.prefix + keys.owners(queue))])
    tokens = (
        [field.decode("utf-8", "replace").partition("/")[0] for field in owners] if isinstance(owners, list) else []
    )
    gone = sum(token not in {m.token for m in masters} or is_dead(token, masters) for token in tokens)
    if not gone:
        return []
    said = f"{count(gone, 'job')} in the hands of masters that are gone"
    way = (
        "start `qd work` on the host where they ran: it gives them back at once; else they come back with their leases"
    )
    return [warn(f"queue {queue}", said, way)]


def is_dead(token: str, masters: list[MasterReport]) -> bool:
    """Whether its process ran on this host, in this container, and is gone: proved, not guessed."""
    return any(m.token == token and here(m) and proc.alive(m.pid, m.start) is False for m in masters)


def here(master: MasterReport) -> bool:
    return bool(master.boot) and (master.boot, master.ns) == (proc.boot_id(), proc.pid_namespace())


# -- declared jobs and the queues they go to


def unworked(connection: str, project: Project, masters: list[MasterReport]) -> Iterator[Finding]:
    """Jobs that go to a queue of this connection which no pool of the file and no master works on."""
    if project.app is None:
        return
    worked = {(found.work.connection, queue) for found in project.pools.values() for queue in found.work.queues}
    worked |= {(master.connection, queue) for master in masters for queue in master.queues}
    for name in project.app._registry.names():
        declared = project.app._registry.get(name)
        assert declared is not None
        place = project.app.settings.connections.get(declared.options.connection or project.app.settings.default)
        queue = declared.options.queue or (place.queue if place else "")
        if place is not None and place.name == connection and (connection, queue) not in worked:
            way = f'name it in [worker] or in a pool: queues = [..., "{queue}"], or start `qd work {queue}`'
            yield warn(f"job {name}", f"goes to the queue '{queue}' of {connection}, on which nobody here works", way)


WAITS = ("unserved", "stuck")  # of health's reasons: the others are looked at elsewhere


def check(settings: Settings, place: str, queues: Sequence[str], state: State | None) -> Iterator[Finding]:
    """place: the connection's name. state: None where reports cannot be read, so that nobody can say who works."""
    for name in queues:
        try:
            line = line_of(settings, place, name)
        except ServerRefused:
            continue  # waiting.py has said so
        now = context.store(settings, place).now()
        yield from held(line, now)
        if state is not None:
            yield from waits(line, state)
        yield from failed(line, now)


def line_of(settings: Settings, place: str, name: str) -> QueueLine:
    """By commands that a worker's user may call too."""
    store = context.store(settings, place)
    sizes = context.queue(settings, place).sizes(name)
    raw = store.space.call("GET", store.prefix + keys.paused(name))
    paused = None if raw is None else controls.read_pause(raw)
    (fill,) = FailedStore(store).fills([name])
    now = store.now()
    php, overdue = state_of_php(store, name, now), overdue_of(store, name, now)
    return QueueLine(place, name, sizes, paused, 0, *php, fill, full(settings.failed, sizes.failed, fill), overdue)


def held(line: QueueLine, now: float) -> Iterator[Finding]:
    if line.paused is not None:
        said = f"paused{by_whom(line.paused, now)}; {count(line.sizes.ready, 'job')} ready"
        yield warn(f"work on {line.name}", said, f"qd resume {line.name}")


def waits(line: QueueLine, state: State) -> Iterator[Finding]:
    for reason in of_queue(line, state):
        if reason.kind in WAITS:
            said, _, way = reason.text.removeprefix(f"queue '{line.name}': ").partition("; ")
            yield warn(f"work on {line.name}", said, way)


def failed(line: QueueLine, now: float) -> Iterator[Finding]:
    """Failed jobs that are kept are no warning; those that were dropped are, or will be soon."""
    warned = False
    for said, way in of_failed(line, now):
        warned = True
        yield warn(f"failed {line.name}", said, way)
    if line.sizes.failed and not warned:
        yield ok(f"failed {line.name}", f"{count(line.sizes.failed, 'failed job')} kept; qd failed list -q {line.name}")
