"""The connection that takes jobs and forgets them, as Laravel's null driver: for a place where nothing is to be run."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from qd.connectors.base import Connector, Limits, Outgoing
from qd.connectors.sending_only import SendingOnly

if TYPE_CHECKING:
    from qd.config import ConnectionSettings, Settings
    from qd.connectors.reserver import Reserver

LIMITS: Limits = MappingProxyType({"order": "jobs are forgotten: none ever runs", "memory": "nothing is kept"})


def open_queue(settings: Settings, at: ConnectionSettings, who: Reserver) -> Connector:
    return cast(Connector, NullQueue(settings, at))  # what it lacks, it refuses by name


class NullQueue(SendingOnly):
    def __init__(self, whole: Settings, settings: ConnectionSettings) -> None:
        super().__init__(settings, limits=LIMITS, whole=whole)

    def take(self, job: Outgoing) -> str | None:
        return None
