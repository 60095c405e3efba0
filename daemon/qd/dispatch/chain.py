"""app.chain(first, second, third, catch=sorry): each job is sent once the one before it has succeeded.

The payload of the first job carries the payloads of the others as text, and each job passes on the rest. So a chain
exists only in the one job of it that is waiting, running or failed. Members are checked here for chains and batches.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Self, Unpack

from qd.dispatch.route import Message
from qd.drivers.pausing import threaded
from qd.errors import ArgumentError, DeclarationError
from qd.jobs.job import Call, caller
from qd.jobs.plan import Handle, Plan, SendOptions
from qd.payload.format import Relations

if TYPE_CHECKING:
    from qd.dispatch.dispatcher import Dispatcher


FOR_ONE = ("delay", "key", "unique", "unique_for", "unique_until")  # options of a single job


class Member(NamedTuple):
    """A call in a chain or batch."""

    plan: Plan
    data: bytes

    def using(self, options: Mapping[str, Any]) -> Member:
        return self._replace(plan=self.plan.using(options)) if options else self


class CompositeCall(Call[None]):
    """Several calls that are sent together."""

    def _to_send(self) -> NoReturn:
        self._origin = None
        raise ArgumentError(f"{self!r} cannot be part of another call: call .dispatch() on it")


def members(calls: Iterable[object]) -> list[Member]:
    """The calls count as sent from now on. Raises ArgumentError for anything but a call."""
    found = []
    for call in calls:
        if not isinstance(call, Call):
            raise ArgumentError(f"{call!r} is not a call: give job.bind(...) or an instance of a class job")
        found.append(Member(*call._to_send()[1:]))
    return found


def later(member: Member, what: str) -> Member:
    """The member as a worker will send it. Raises DeclarationError for options that only a single job can have."""
    plan = member.plan
    if isinstance(plan.delay, datetime):
        raise DeclarationError(
            f"job '{plan.declared.name}' has delay={plan.delay}, but in {what} a delay counts from the moment the job is "
            "sent: give seconds"
        )
    return unlocked(member, what)


def unlocked(member: Member, what: str) -> Member:
    """The member without its unique lock, which only jobs dispatched on their own take. Raises DeclarationError."""
    plan = member.plan
    if plan.key is not None:
        raise DeclarationError(
            f"job '{plan.declared.name}' has key='{plan.key}', but a job in {what} cannot be moved or cancelled by key: "
            "remove it"
        )
    if plan.options.unique is None:
        return member
    bare = Plan(plan.declared, replace(plan.options, unique=None))
    bare.delay, bare.after_commit = plan.delay, plan.after_commit
    return member._replace(plan=bare)


def check_connections(messages: Sequence[Message], what: str) -> None:
    """Raises DeclarationError if they go to several connections, since a script of one server cannot reach another."""
    for message in messages[1:]:
        if message.connection != messages[0].connection:
            raise DeclarationError(
                f"all jobs of {what} need the same connection: job '{messages[0].name}' goes to "
                f"'{messages[0].connection}', job '{message.name}' to '{message.connection}'"
            )


WHAT = "a chain"


class Chain(CompositeCall):
    """A chain that is not sent yet. origin: file and line that made it."""

    def __init__(
        self, send: Dispatcher, calls: Sequence[Call[Any]], catch: Call[Any] | None, origin: tuple[str, int] | None
    ) -> None:
        if not calls:
            raise ArgumentError("app.chain() needs at least one job")
        self._send = send
        self._members = members(calls)
        self._caught = members([] if catch is None else [catch])
        self._origin = origin

    def using(self, **options: Unpack[SendOptions]) -> Self:
        """A copy with these options over those of each job; delay and key apply to the first job only."""
        self._origin = None
        others = {name: value for name, value in options.items() if name not in FOR_ONE}
        other = copy.copy(self)
        first, *rest = self._members
        other._members = [first.using(options), *[member.using(others) for member in rest]]
        other._origin = caller()
        return other

    def dispatch(self) -> Handle[None]:
        """Send the first job, which carries the others. Returns the handle of the first job. Raises as the dispatch of one
        job; ArgumentError if all of them together are too large for a payload."""
        self._origin = None
        return Handle(self._send.submit((self._message(),))[0], self._send, self._members[0].plan)

    async def adispatch(self) -> Handle[None]:
        """As dispatch(); the event loop goes on."""
        queue = await self._send.native([plan for plan, _ in (*self._members, *self._caught)])
        if queue is None:
            return await threaded(self.dispatch).wait()  # type: ignore[no-any-return]
        self._origin = None
        return Handle((await self._send.asubmit([self._message()], queue))[0], self._send, self._members[0].plan)

    def run(self) -> None:
        """Run the jobs in this process, in order. If one fails: run the `catch` job and raise the error."""
        self._origin = None
        try:
            for plan, data in self._members:
                self._send.run(plan, data)
        except Exception:
            for plan, data in self._caught:
                self._send.run(plan, data)
            raise

    def _message(self) -> Message:
        (plan, data), *rest = self._members
        links = [self._made(member) for member in rest]
        catch = [self._made(member) for member in self._caught]
        if any(each.plan.after_commit for each in (*self._members, *self._caught)):
            plan = plan.using({"after_commit": True})
        relations = Relations(chain=tuple([each.link for each in links]), catch=tuple([each.link for each in catch]))
        first = self._send.prepare(plan, data, relations)
        check_connections([first, *links, *catch], WHAT)
        return first

    def _made(self, member: Member) -> Message:
        return self._send.prepare(*later(member, WHAT))

    def __repr__(self) -> str:
        return f"<chain of {', '.join([member.plan.declared.name for member in self._members])}>"
