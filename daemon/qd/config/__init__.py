"""Files, environment, code and flags -> one Settings, each value with its origin. Everything that needs a setting asks
here: `load` where it is found out, `from_json` where another process has found it out already.
"""

from __future__ import annotations

from qd.config.load import load, strange_drivers, strangers, unread
from qd.config.settings import (
    ConnectionSettings,
    EntrySettings,
    FailedSettings,
    LaravelSettings,
    ScheduleSettings,
    Settings,
    SigningSettings,
    check_work,
    from_json,
    provider_of,
    to_json,
)

__all__ = [
    "ConnectionSettings",
    "EntrySettings",
    "FailedSettings",
    "LaravelSettings",
    "ScheduleSettings",
    "Settings",
    "SigningSettings",
    "check_work",
    "from_json",
    "load",
    "provider_of",
    "strange_drivers",
    "strangers",
    "to_json",
    "unread",
]
