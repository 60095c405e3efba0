"""Jobs that are sent once by their ids, whoever sends them again; and those that need a lock which stands elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from qd.connectors.cluster.client import ClusterClient
from qd.connectors.keyspace import keys
from qd.connectors.keyspace.base import Arg, script

REMEMBERED = 86400  # seconds that the id of a job is kept, as long as its note may still be there
CHUNK = 500  # jobs a call carries


class Errand(NamedTuple):
    """A job that is sent once. ready: the list of its queue, as everybody says it; key: as Outgoing has it."""

    ready: str
    id: str
    payload: Arg
    delay: float = 0.0
    key: str = ""

    @property
    def words(self) -> tuple[Arg, ...]:
        if self.key:
            issue, _, name = self.key.partition(" ")
            return self.id, "keyed", name, issue, self.delay, self.payload
        return self.id, "push", self.delay, self.payload

    def seen(self, client: ClusterClient) -> str:
        return keys.seen_ids(client.names.real(self.ready))


def send_once(client: ClusterClient, errands: Sequence[Errand]) -> list[Any]:
    """For each 1, 0 where it was sent before, or why it was not: one call for each queue."""
    replies: list[Any] = [None] * len(errands)
    groups: dict[str, list[int]] = {}
    for place, errand in enumerate(errands):
        groups.setdefault(errand.ready, []).append(place)
    chunks = [
        (ready, places[at : at + CHUNK]) for ready, places in groups.items() for at in range(0, len(places), CHUNK)
    ]
    items = []
    for ready, places in chunks:
        real = client.names.real(ready)
        names = [real, *[real + ending for ending in (":delayed", ":notify", ":keyed")], keys.seen_ids(real)]
        words = [word for place in places for word in errands[place].words]
        items.append(client.at(script("once"), names, [REMEMBERED, *words]))
    for (_, places), reply in zip(chunks, client.exchange(items), strict=True):
        for number, place in enumerate(places):
            replies[place] = reply[number] if isinstance(reply, list) else reply
    return replies
