"""Whether the jobs of entries can be sent where they are to go, asked before a scheduler starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from qd.connectors.manager import check_ticks
from qd.errors import ConfigError
from qd.schedule.entry import Entry, JobTask

if TYPE_CHECKING:
    from qd.config import Settings
    from qd.connectors.reserver import Factory


def check_homes(entries: Iterable[Entry], settings: Settings, own: Mapping[str, Factory]) -> None:
    """Raises ConfigError naming the first whose connection takes no job of the schedule. Nothing is connected."""
    for entry in entries:
        if not isinstance(entry.task, JobTask):
            continue
        try:
            check_ticks(settings, settings.connection(entry.task.plan.options.connection).name, own)
        except ConfigError as error:
            raise ConfigError(f"entry '{entry.name}' of the schedule: {error}") from None
