"""The events that jobs emit: a numbered list beside the record of each job, read by any number of followers.

    job.emit(data) -> worker/emitter.py, which collects -> `append`, one call for all jobs of a worker (emit.lua)
    handle.events() -> jobs/streams.py -> dispatch/results.py, which polls `after` (events.lua)

Numbers grow over all attempts of a job. A number is missing if its event was deleted to keep the stream within its bounds,
or never reached the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from qd.arguments.values import decode_value
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import Arg, Keyspace, ScriptCall, script
from qd.drivers.types import JobEvent
from qd.errors import WrongType

MOST_EVENTS = 1000  # that a stream keeps
MOST_BYTES = 1 << 20  # of JSON that a stream keeps
KEPT = 3600.0  # seconds for which a stream is kept after its last event, unless the job has a longer result_ttl


class Emitted(NamedTuple):
    """Events of one attempt. base: the number before its first one, -1: unknown. ttl: seconds. events: (position, JSON)."""

    id: str
    attempt: str
    base: int
    ttl: float
    events: Sequence[tuple[int, bytes]]


def append(space: Keyspace, prefix: str, batches: Sequence[Emitted]) -> list[Any]:
    """Append to many streams in one round trip. Returns the base of each; errors are exceptions in the list. A batch that is
    sent again after ConnectionLost is not appended twice."""
    calls = list[ScriptCall]()
    for batch in batches:
        bounds: list[Arg] = [batch.attempt, batch.base, max(1, round(batch.ttl)), MOST_EVENTS, MOST_BYTES]
        words = [word for event in batch.events for word in event]
        calls.append(ScriptCall(script("emit"), [prefix + keys.stream(batch.id)], [*bounds, *words]))
    return space.run_many(calls)


def after(space: Keyspace, prefix: str, id: str, number: int) -> list[JobEvent]:
    """The events of a job that are kept and have a higher number."""
    found = [event_of(entry) for entry in script("events").call(space, [prefix + keys.stream(id)], number)]
    return [event for event in found if event is not None and event.number > number]


def event_of(entry: bytes) -> JobEvent | None:
    try:
        number, _, at, _, _, text = entry.split(b" ", 5)
        return JobEvent(int(number), decode_value(text), float(at))
    except (ValueError, WrongType):
        return None  # written by another program
