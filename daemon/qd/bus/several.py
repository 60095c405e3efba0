"""Jobs that belong together: what a chain and a batch ask of the calls that they are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple, NoReturn

from qd.bus.parcel import Parcel
from qd.errors import ArgumentError, DeclarationError
from qd.jobs import Call, Plan

FOR_ONE = ("delay", "key", "unique", "unique_for", "unique_until")  # options of a job that is sent by itself


class Member(NamedTuple):
    """A call, taken apart."""

    plan: Plan
    data: bytes

    def using(self, options: Mapping[str, Any]) -> Member:
        return self._replace(plan=self.plan.using(options)) if options else self


class Together(Call[None]):
    """Several calls that are sent as one thing."""

    def _to_send(self) -> NoReturn:
        self._origin = None
        raise ArgumentError(f"{self!r} is sent by itself: call .dispatch() on it")


def members(calls: Iterable[object]) -> list[Member]:
    """From now on they count as sent. Raises ArgumentError for what is no call of a job."""
    found = []
    for call in calls:
        if not isinstance(call, Call):
            raise ArgumentError(f"{call!r} is not a call: give job.bind(...) or an instance of a class job")
        found.append(Member(*call._to_send()[1:]))
    return found


def later(member: Member, what: str) -> Member:
    """As one that is sent by a worker, when its turn has come. Raises DeclarationError for what can only be said of a job
    that is dispatched by itself."""
    plan = member.plan
    if isinstance(plan.delay, datetime):
        raise DeclarationError(
            f"job '{plan.declared.name}' is to start at {plan.delay}, but in {what} a delay counts from when its turn "
            "has come: give seconds"
        )
    return unlocked(member, what)


def unlocked(member: Member, what: str) -> Member:
    """Without its lock: whether one like it waits is asked of jobs that are dispatched by themselves."""
    plan = member.plan
    if plan.key is not None:
        raise DeclarationError(
            f"job '{plan.declared.name}' has key='{plan.key}': a job in {what} cannot be moved or cancelled by a key, "
            "leave it out"
        )
    if plan.options.unique is None:
        return member
    bare = Plan(plan.declared, replace(plan.options, unique=None))
    bare.delay, bare.after_commit = plan.delay, plan.after_commit
    return member._replace(plan=bare)


def together(parcels: Sequence[Parcel], what: str) -> None:
    """Raises DeclarationError: they would go to several connections, and no step of a server reaches another."""
    for parcel in parcels[1:]:
        if parcel.connection != parcels[0].connection:
            raise DeclarationError(
                f"{what} lives on one connection: job '{parcels[0].name}' goes to '{parcels[0].connection}', "
                f"job '{parcel.name}' to '{parcel.connection}'"
            )
