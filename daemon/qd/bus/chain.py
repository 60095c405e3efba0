"""app.chain(first, second, third, catch=sorry): each job is sent when the one before it has succeeded.

Dispatched, the payload of the first carries those of the others, as text, and each hands on what remains. So a chain is
nowhere but in the one job of it that waits, runs, or has failed.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self, Unpack

from qd.bus.several import FOR_ONE, Member, Together, later, members, together
from qd.errors import ArgumentError
from qd.jobs import Handle, SendOptions
from qd.jobs.calls import caller
from qd.ties import Ties

if TYPE_CHECKING:
    from qd.bus.parcel import Parcel
    from qd.bus.send import Send
    from qd.jobs import Call

WHAT = "a chain"


class Chain(Together):
    """Not sent yet. origin: file and line of who made it."""

    def __init__(
        self, send: Send, calls: Sequence[Call[Any]], catch: Call[Any] | None, origin: tuple[str, int] | None
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

    def _parcel(self) -> Parcel:
        (plan, data), *rest = self._members
        links = [self._made(member) for member in rest]
        catch = [self._made(member) for member in self._caught]
        if any(each.plan.after_commit for each in (*self._members, *self._caught)):
            plan = plan.using({"after_commit": True})
        ties = Ties(chain=tuple([each.link for each in links]), catch=tuple([each.link for each in catch]))
        first = self._send.parcel(plan, data, ties)
        together([first, *links, *catch], WHAT)
        return first

    def _made(self, member: Member) -> Parcel:
        return self._send.parcel(*later(member, WHAT))

    def __repr__(self) -> str:
        return f"<chain of {', '.join([member.plan.declared.name for member in self._members])}>"
