"""SCAN over all servers of a cluster, one after the other. The cursor says which of them, too: `2:1234`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qd.connectors.keyspace.base import Arg
from qd.errors import ConnectionLost

if TYPE_CHECKING:
    from qd.connectors.cluster.wire import ClusterWire


def scanned(wire: ClusterWire, args: Sequence[Arg]) -> list[Any]:
    """As SCAN: the next cursor, b"0" at the end, and names as everybody says them."""
    number, _, cursor = text_of(args[1]).rpartition(":")
    place = int(number or 0)
    nodes = sorted(wire.nodes.primaries(), key=lambda node: node.place)
    if place >= len(nodes):
        return [b"0", []]
    try:
        following, names = nodes[place].ready().call(args[0], cursor, *args[2:])
    except ConnectionLost as error:
        nodes[place].broke(error)
        if not wire.skips:
            raise
        following, names = b"0", []
    said = [wire.names.said(name.decode("utf-8", "surrogateescape")) for name in names]
    if following == b"0":
        place, following = place + 1, b"0"
    end = place >= len(nodes)
    found = [name.encode("utf-8", "surrogateescape") for name in said if name is not None]
    return [b"0" if end else b"%d:%b" % (place, following), found]


def text_of(value: Arg) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
