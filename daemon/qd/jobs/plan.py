"""How a job is sent: the words for it (Options, Sending), the Plan they become, the Sender, and the Handle it gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Generic, Protocol, TypedDict, TypeVar

from qd.errors import DeclarationError
from qd.jobs.registry import Declared
from qd.options import JobOptions

T_co = TypeVar("T_co", covariant=True)

Span = float | timedelta  # seconds, or a timedelta


class Options(TypedDict, total=False):
    """What a job is: the same words in @app.job(...) and in .using(...)."""

    queue: str
    connection: str
    tries: int
    timeout: Span
    backoff: Span | Sequence[Span]
    max_exceptions: int
    retry_for: Span
    fail_on_timeout: bool
    tags: Sequence[str]
    raw: bool


class Sending(Options, total=False):
    """And how one is sent. delay: from now, or a moment (with its time zone)."""

    delay: Span | datetime


class Plan:
    """How one is sent: the declared job, what its declaration and .using(...) say.

    notes: the sender's, on what follows from declaration and options; shared by plans that differ in the delay only.
    """

    __slots__ = ("declared", "delay", "notes", "options")

    def __init__(self, declared: Declared, options: JobOptions) -> None:
        self.declared = declared
        self.options = options
        self.delay: Span | datetime | None = None
        self.notes: list[Any] = []

    def using(self, given: Mapping[str, Any]) -> Plan:
        said = dict(given)
        delay = said.pop("delay", self.delay)
        if said.get("raw", self.declared.options.raw) != self.declared.options.raw:
            raise DeclarationError("raw is a matter of the declaration: say it in @app.job(raw=...), not in using()")
        plan = Plan(self.declared, JobOptions.read(said).over(self.options) if said else self.options)
        plan.delay = delay
        if not said:
            plan.notes = self.notes
        return plan


class Sender(Protocol):
    """The way out, as app.py hands it in."""

    def send(self, plan: Plan, data: bytes) -> str:
        """Send one; its id."""

    def run(self, plan: Plan, data: bytes) -> Any:
        """Run it here and now; what it returned."""


class Handle(Generic[T_co]):
    """A job that was sent. id: what current_job().id is while it runs, and what the log lines name."""

    __slots__ = ("id",)

    def __init__(self, id: str) -> None:
        self.id: Final[str] = id

    def __repr__(self) -> str:
        return f"Handle({self.id!r})"
