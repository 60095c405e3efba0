"""What stands in the queues: names that the app does not know, jobs for PHP, jobs in dead hands, queues nobody works on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from qd import payload
from qd.cli.checks.finding import Finding, fail, ok, warn
from qd.cli.output import count
from qd.cli.state import is_object_job
from qd.connectors.redis import keys
from qd.errors import Malformed, ServerRefused
from qd.process import vitals
from qd.store.hosts import Master
from qd.units import did_you_mean

if TYPE_CHECKING:
    from qd.app import Qd
    from qd.cli.checks.project import Project
    from qd.store.redis import RedisStore

HEAD = 50  # jobs of each queue that are looked at


def check(
    store: RedisStore, place: str, queues: Sequence[str], app: Qd | None, masters: list[Master]
) -> Iterator[Finding]:
    """`place`: the connection's name."""
    for queue in queues:
        try:
            head, held = standing(store, queue)
        except ServerRefused as error:
            yield warn(
                f"queue {queue}", f"cannot be read: {error}", f"qd needs a list: TYPE {store.prefix}{keys.ready(queue)}"
            )
            continue
        shared = any(b'"rsv":"' not in member for member in held)
        found = list(judged(queue, head, app, shared=shared))
        found += dead_hands(store, queue, masters)
        well = f"{count(len(head), 'job')} at its head looked at" if head else "nothing is ready"
        yield from found or [ok(f"queue {queue}", well)]


def standing(store: RedisStore, queue: str) -> tuple[list[bytes], list[bytes]]:
    """The first ready payloads, and some of the reserved ones, by commands that a worker's user may call too."""
    ready, reserved = (store.prefix + kind(queue) for kind in (keys.ready, keys.reserved))
    *head, held = store.wire.call_many(
        [*(("LINDEX", ready, at) for at in range(HEAD)), ("ZRANGE", reserved, 0, HEAD - 1)]
    )
    for reply in (*head, held):
        if isinstance(reply, Exception):
            raise reply
    return [payload for payload in head if payload is not None], held


def judged(queue: str, head: list[bytes], app: Qd | None, *, shared: bool) -> Iterator[Finding]:
    """shared: a PHP worker has jobs of this queue in hand."""
    what, own = f"queue {queue}", [raw for raw in head if not is_object_job(raw)]
    names, malformed = named(own)
    strange = [name for name in names if app is not None and app.registry.get(name) is None]
    each = "give each language a queue of its own (docs/php.md)"
    if malformed:
        yield warn(
            what, f"{malformed} of the first {len(head)} are no payloads", "they go to the failed store as they are"
        )
    for name in strange if app is not None else []:
        near = did_you_mean(name, app.registry.names()) if app else ""
        said = f"'{name}' at its head is no job of this app{near}: it fails after unroutable_ttl"
        yield fail(what, said, "deploy the code that declares it, or name its module in imports = of [qd]")
    if len(own) < len(head) and not shared:
        said = (
            f"{len(head) - len(own)} of the first {len(head)} are object jobs of Laravel, which only a PHP worker takes"
        )
        yield warn(what, said, f"start `php artisan queue:work --queue={queue}`, or {each}")
    if shared:
        said = "a PHP worker works on it too: it fails and deletes string jobs that it does not know"
        yield warn(what, said, each)


def named(payloads: Sequence[bytes]) -> tuple[list[str], int]:
    """The names in them, each once, and how many are malformed."""
    names: dict[str, None] = {}
    malformed = 0
    for raw in payloads:
        try:
            names[payload.read(raw).job] = None
        except Malformed:
            malformed += 1
    return list(names), malformed


# -- jobs in dead hands


def dead_hands(store: RedisStore, queue: str, masters: list[Master]) -> list[Finding]:
    (owners,) = store.wire.call_many([("HKEYS", store.prefix + keys.owners(queue))])
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


def is_dead(token: str, masters: list[Master]) -> bool:
    """Whether its process ran on this host, in this container, and is gone: proved, not guessed."""
    return any(m.token == token and here(m) and vitals.alive(m.pid, m.start) is False for m in masters)


def here(master: Master) -> bool:
    return bool(master.boot) and (master.boot, master.ns) == (vitals.boot_id(), vitals.pid_namespace())


# -- declared jobs and the queues they go to


def unworked(connection: str, project: Project, masters: list[Master]) -> Iterator[Finding]:
    """Jobs that go to a queue of this connection which no pool of the file and no master works on."""
    if project.app is None:
        return
    worked = {(found.work.connection, queue) for found in project.pools.values() for queue in found.work.queues}
    worked |= {(master.connection, queue) for master in masters for queue in master.queues}
    for name in project.app.registry.names():
        declared = project.app.registry.get(name)
        assert declared is not None
        place = project.app.settings.connections.get(declared.options.connection or project.app.settings.default)
        queue = declared.options.queue or (place.queue if place else "")
        if place is not None and place.name == connection and (connection, queue) not in worked:
            way = f'name it in [worker] or in a pool: queues = [..., "{queue}"], or start `qd work {queue}`'
            yield warn(f"job {name}", f"goes to the queue '{queue}' of {connection}, on which nobody here works", way)
