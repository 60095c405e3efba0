"""Does each queue flow? Paused, waited for in vain, stuck: judged as `qd health` does. And how many jobs have failed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from qd.cli import context
from qd.cli.checks.finding import Finding, ok, warn
from qd.cli.notes import by_whom
from qd.cli.output import count
from qd.cli.reasons import of_failed, of_queue
from qd.cli.state import Line, State, full, of_php, overdue_of
from qd.connectors.keyspace import keys
from qd.errors import ServerRefused
from qd.store import stamps
from qd.store.failed import FailedStore

if TYPE_CHECKING:
    from qd.config import Settings

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


def line_of(settings: Settings, place: str, name: str) -> Line:
    """By commands that a worker's user may call too."""
    store = context.store(settings, place)
    sizes = context.queue(settings, place).sizes(name)
    raw = store.space.call("GET", store.prefix + keys.paused(name))
    paused = None if raw is None else stamps.read_pause(raw)
    (fill,) = FailedStore(store).fills([name])
    now = store.now()
    php, overdue = of_php(store, name, now), overdue_of(store, name, now)
    return Line(place, name, sizes, paused, 0, *php, fill, full(settings.failed, sizes.failed, fill), overdue)


def held(line: Line, now: float) -> Iterator[Finding]:
    if line.paused is not None:
        said = f"paused{by_whom(line.paused, now)}; {count(line.sizes.ready, 'job')} ready"
        yield warn(f"work on {line.name}", said, f"qd resume {line.name}")


def waits(line: Line, state: State) -> Iterator[Finding]:
    for reason in of_queue(line, state):
        if reason.kind in WAITS:
            said, _, way = reason.text.removeprefix(f"queue '{line.name}': ").partition("; ")
            yield warn(f"work on {line.name}", said, way)


def failed(line: Line, now: float) -> Iterator[Finding]:
    """Failed jobs that are kept are no warning; those that were dropped are, or will be soon."""
    warned = False
    for said, way in of_failed(line, now):
        warned = True
        yield warn(f"failed {line.name}", said, way)
    if line.sizes.failed and not warned:
        yield ok(f"failed {line.name}", f"{count(line.sizes.failed, 'failed job')} kept; qd failed list -q {line.name}")
