"""Who opens a connection, as each driver is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from qd.config import ConnectionSettings, Settings
    from qd.connectors.base import Connector


class Reserver(NamedTuple):
    """token, slot, turns: who reserves, and how many turns those made who had the slot before; empty for a producer. title:
    what the server's list of clients shows. patience: seconds to connect, and for each reply. own: the app's drivers, by
    their words."""

    token: str = ""
    slot: int = 0
    turns: int = 0
    title: str = ""
    patience: float = 5.0
    own: Mapping[str, Factory] = MappingProxyType({})


PRODUCER = Reserver()
Factory = Callable[["Settings", "ConnectionSettings", Reserver], "Connector"]
