"""What an app is given in place of its own for the length of a block: settings, connections, the way out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from qd import config
from qd.bus.parcel import Parcel
from qd.config import ConnectionSettings, Settings
from qd.errors import QdError
from qd.jobs import Plan
from qd.ties import Ties

if TYPE_CHECKING:
    from qd.app import Qd


class Unread(Settings):
    """Settings that were read nowhere: every connection is there, and its queue is "default"."""

    __slots__ = ()

    def connection(self, name: str | None = None) -> ConnectionSettings:
        return ConnectionSettings(name or self.default, url="fake://")


@contextmanager
def unread(app: Qd) -> Iterator[None]:
    """The app reads no file and no variable; what it has read until now counts again after the block."""
    built_in = config.unread(app.said)
    before, app._settings = (
        app._settings,
        Unread(**{each.name: getattr(built_in, each.name) for each in fields(Settings)}),
    )
    try:
        yield
    finally:
        app._settings = before


@contextmanager
def no_server(app: Qd) -> Iterator[None]:
    """Whoever asks for a connection gets an error."""
    before, app.connections.make = app.connections.make, refuse
    try:
        yield
    finally:
        app.connections.make = before


def refuse(settings: Settings, name: str | None) -> Any:
    raise QdError(
        "app.fake() and app.inline() ask no server: what needs its answer is tested with the fixture qd_worker"
    )


@contextmanager
def posting(app: Qd, post: Callable[..., list[str]]) -> Iterator[None]:
    """What is sent goes to `post`, from every thread; with after_commit=True when that would have been."""
    send: Any = app._send
    before = send._post
    send._post = post
    try:
        yield
    finally:
        send._post = before


@contextmanager
def remembering(app: Qd, note: Callable[[Parcel], None]) -> Iterator[None]:
    """Each job that is made, to be sent now or later, goes by `note` too."""
    send: Any = app._send
    before = send.parcel

    def parcel(plan: Plan, data: bytes, ties: Ties | None = None) -> Parcel:
        made: Parcel = before(plan, data, ties)
        note(made)
        return made

    send.parcel = parcel
    try:
        yield
    finally:
        send.parcel = before
