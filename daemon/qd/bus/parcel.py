"""A job that is made and not sent yet: its payload, and where it goes. route.py makes them, send.py posts them;
chains and batches keep some for later."""

from __future__ import annotations

import msgspec

from qd.jobs import Plan
from qd.ties import Link, Ties


class Parcel(msgspec.Struct, frozen=True, gc=False):
    """delay: seconds, 0 for at once. A raw payload has no name, id and uuid: only the payload knows them. plan: None for
    what is not declared here. data: the arguments, JSON."""

    connection: str
    queue: str
    body: bytes
    delay: float = 0.0
    name: str = ""
    id: str = ""
    uuid: str = ""
    data: bytes = b""
    plan: Plan | None = None
    ties: Ties | None = None

    @property
    def link(self) -> Link:
        """The same as another payload carries it."""
        return Link(self.queue, self.delay, self.body.decode())
