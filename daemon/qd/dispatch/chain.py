"""Jobs that belong together: what a chain and a batch ask of the calls that they are made of.

app.chain(first, second, third, catch=sorry): each job is sent when the one before it has succeeded.

Dispatched, the payload of the first carries those of the others, as text, and each hands on what remains. So a chain is
nowhere but in the one job of it that waits, runs, or has failed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Self, Unpack

from qd.dispatch.route import Message
from qd.errors import ArgumentError, DeclarationError
from qd.jobs.job import Call, caller
from qd.jobs.plan import Handle, Plan, SendOptions
from qd.payload.format import Relations

if TYPE_CHECKING:
    from qd.dispatch.dispatcher import Dispatcher


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


def together(parcels: Sequence[Message], what: str) -> None:
    """Raises DeclarationError: they would go to several connections, and no step of a server reaches another."""
    for parcel in parcels[1:]:
        if parcel.connection != parcels[0].connection:
            raise DeclarationError(
                f"{what} lives on one connection: job '{parcels[0].name}' goes to '{parcels[0].connection}', "
                f"job '{parcel.name}' to '{parcel.connection}'"
            )


WHAT = "a chain"


class Chain(Together):
    """Not sent yet. origin: file and line of who made it."""

    def __init__(
        self, send: Dispatcher, calls: Sequence[Call[Any]], catch: Call[Any] | None, origin: tuple[str, int] | None
    ) -> None:
        if not calls:
            raise ArgumentError("app.chain() was given no job: a chain has at least one")
        self._send = send
        self._members = members(calls)
        self._caught = members([] if catch is None else [catch])
        self._origin = origin

    def using(self, **options: Unpack[SendOptions]) -> Self:
        """The same with these options over those of each of its jobs; a delay and a key are the first one's."""
        self._origin = None
        others = {name: value for name, value in options.items() if name not in FOR_ONE}
        other = copy.copy(self)
        first, *rest = self._members
        other._members = [first.using(options), *[member.using(others) for member in rest]]
        other._origin = caller()
        return other

    def dispatch(self) -> Handle[None]:
        """Send the first, which carries the others. Its handle, which answers for it alone. Raises ArgumentError: all of
        them are too large for a payload; and as the dispatch of one job."""
        self._origin = None
        return Handle(self._send.post((self._parcel(),))[0], self._send, self._members[0].plan)

    async def adispatch(self) -> Handle[None]:
        """Send it, in a thread: the loop goes on meanwhile."""
        import asyncio  # who awaits has loaded it; who does not need not

        return await asyncio.to_thread(self.dispatch)

    def run(self) -> None:
        """Run all of them here and now, in order, until one fails: then what catches it, and the error comes out."""
        self._origin = None
        try:
            for plan, data in self._members:
                self._send.run(plan, data)
        except Exception:
            for plan, data in self._caught:
                self._send.run(plan, data)
            raise

    def _parcel(self) -> Message:
        (plan, data), *rest = self._members
        links = [self._made(member) for member in rest]
        catch = [self._made(member) for member in self._caught]
        if any(each.plan.after_commit for each in (*self._members, *self._caught)):
            plan = plan.using({"after_commit": True})
        ties = Relations(chain=tuple([each.link for each in links]), catch=tuple([each.link for each in catch]))
        first = self._send.parcel(plan, data, ties)
        together([first, *links, *catch], WHAT)
        return first

    def _made(self, member: Member) -> Message:
        return self._send.parcel(*later(member, WHAT))

    def __repr__(self) -> str:
        return f"<chain of {', '.join([member.plan.declared.name for member in self._members])}>"
