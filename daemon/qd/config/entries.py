"""[schedule.entries.NAME] -> EntrySettings. Only the file says them: no variable, no flag."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qd.config.file import ConfigFile
from qd.config.settings import EntrySettings
from qd.config.table import ENTRY

SECTION = ("schedule", "entries")


def entries_of(file: ConfigFile) -> tuple[EntrySettings, ...]:
    """In the order of the file, each with the line where it begins. The file has checked key by key."""
    return tuple([_entry(file, name, keys) for name, keys in file.section(*SECTION).items()])


def origins_of(file: ConfigFile) -> dict[str, str]:
    """`schedule.entries.cleanup.cron` -> "qd.toml:12", for the keys that are given."""
    each = file.section(*SECTION).items()
    given = [".".join((*SECTION, name, key)) for name, keys in each for key in keys]
    return {dotted: file.where(dotted) for dotted in given}


def _entry(file: ConfigFile, name: str, keys: Mapping[str, Any]) -> EntrySettings:
    held = {key: ENTRY[key].read(value) for key, value in keys.items()}
    if "args" in held:
        held["args"] = _json(held["args"])
    return EntrySettings(name, file.shown, file.line(".".join((*SECTION, name))), **held)


def _json(arguments: dict[str, Any]) -> str:
    """A moment of TOML travels as every moment does: as ISO 8601 says it."""
    import json  # only where there are some

    return json.dumps(arguments, default=lambda moment: moment.isoformat(), ensure_ascii=False)
