"""Fields of ticks that nobody needs: looked for once by each scheduler, a page at each look at its server.

of an entry          400 days after its last tick
of one on_every_host where its host has had no scheduler for seven days: hosts come and go by thousands. A host that has one
                     says so, in a field of its own
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from qd.connectors.base import Ticks
from qd.connectors.keyspace import keys
from qd.errors import ServerRefused
from qd.scheduler.claims import Place
from qd.store.schedule import FORGOTTEN, Field, read_field, written_field

GONE = 7 * 86400.0  # seconds
SAYS = 3600.0  # seconds from one sign of a host to the next


class Sweeping:
    """places: those of this scheduler, which may be added to until the first step."""

    def __init__(self, ticks: Ticks, places: Sequence[Place]) -> None:
        self._ticks, self._places = ticks, places
        self._at: int | None = 0  # the next page; None: all were looked at
        self._says_at = 0.0

    def step(self, now: int) -> None:
        """now: unix ms. What the server refuses is left. Raises ConnectionLost."""
        try:
            self._say(now)
            if self._at is not None:
                following, fields = self._ticks.page(self._at)
                self._ticks.forget(self._old(fields, now))
                self._at = following or None
        except ServerRefused:
            self._at = None

    def _say(self, now: int) -> None:
        at = time.monotonic()
        if at < self._says_at:
            return
        for host in {keys.host_of(place.field) for place in self._places} - {""}:
            self._ticks.put(keys.of_host(host, ""), written_field(Field(now, "", "")))
        self._says_at = at + SAYS

    def _old(self, fields: Mapping[str, bytes], now: int) -> list[str]:
        known = {place.field for place in self._places}
        hosts = sorted({keys.host_of(name) for name in fields} - {""})
        signs = self._ticks.read([keys.of_host(host, "") for host in hosts])
        gone = {host for host, raw in zip(hosts, signs, strict=True) if is_old(raw, now, GONE)}
        return [
            name
            for name, raw in fields.items()
            if name not in known and is_old(raw, now, GONE if keys.host_of(name) in gone else FORGOTTEN)
        ]


def is_old(raw: bytes, now: int, seconds: float) -> bool:
    """What is not there is; what is none of ours is not."""
    found = read_field(raw)
    return not raw or (found is not None and found.at < now - seconds * 1000)
