"""Files, environment, code and flags -> one Settings, each value with its origin. Everything that needs a setting asks
here: `load` where it is found out, `from_json` where another process has found it out already."""

from qd.config.load import load, unread
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
from qd.config.strange import strange_drivers, strangers

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
