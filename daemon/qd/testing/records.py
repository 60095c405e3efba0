"""What a test reads: plain records made of what would have been sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

import msgspec

from qd.arguments import decode_value
from qd.bus.parcel import Parcel
from qd.connectors.batches import NewBatch
from qd.jobs import Plan, SendOptions
from qd.jobs.registry import Declared, DeclaredRaw
from qd.options import JOB_KINDS
from qd.units import span


@dataclass(frozen=True, slots=True)
class Dispatched:
    """A job that was dispatched. arguments: by name, as the worker would get them; defaults do not travel.

    options: what the declaration and using() say; durations in seconds, a moment as it was given. id: the handle's.
    """

    arguments: dict[str, Any]
    options: SendOptions
    name: str
    id: str = field(compare=False)


@dataclass(frozen=True, slots=True)
class Pushed:
    """What app.queue(...) was given. push_raw: job is "", and data the bytes. delay: seconds, 0 for at once."""

    queue: str
    job: str
    data: Any
    delay: float


@dataclass(frozen=True, slots=True)
class Chained:
    """A chain that was dispatched: its jobs in order, and what is sent when one of them fails."""

    jobs: list[Dispatched]
    catch: Dispatched | None


@dataclass(frozen=True, slots=True)
class Batched:
    """A batch that was dispatched: its jobs in order, and what is sent when they have ended."""

    jobs: list[Dispatched]
    then: Dispatched | None
    catch: Dispatched | None
    finally_: Dispatched | None
    name: str
    allow_failures: bool
    id: str = field(compare=False)


def batched(
    new: NewBatch, jobs: list[Parcel], then: Parcel | None, catch: Parcel | None, last: Parcel | None
) -> Batched:
    after = [None if each is None else dispatched(each) for each in (then, catch, last)]
    return Batched(
        jobs=[dispatched(each) for each in jobs],
        then=after[0],
        catch=after[1],
        finally_=after[2],
        name=new.name,
        allow_failures=new.allow_failures,
        id=new.id,
    )


def chained(first: Parcel, rest: list[Parcel], catch: list[Parcel]) -> Chained:
    return Chained([dispatched(each) for each in (first, *rest)], dispatched(catch[0]) if catch else None)


def dispatched(parcel: Parcel) -> Dispatched:
    assert parcel.plan is not None
    declared = parcel.plan.declared
    return Dispatched(arguments(declared, parcel.data), options(parcel.plan), declared.name, parcel.id)


def pushed(parcel: Parcel) -> Pushed:
    data = msgspec.json.decode(parcel.data or b'""') if parcel.name else parcel.body
    return Pushed(parcel.queue, parcel.name, data, parcel.delay)


def arguments(declared: Declared, data: bytes) -> dict[str, Any]:
    if isinstance(declared, DeclaredRaw):
        return {declared.signature.parameters[0].name: decode_value(data)}
    return declared.signature.decode(data)


def options(plan: Plan) -> SendOptions:
    said = {name: value for name in JOB_KINDS if (value := getattr(plan.options, name)) is not None}
    if plan.delay is not None:
        said["delay"] = plan.delay if isinstance(plan.delay, datetime) else span(plan.delay)
    if plan.key is not None:
        said["key"] = plan.key
    if plan.after_commit is not None:
        said["after_commit"] = plan.after_commit
    return cast(SendOptions, said)
