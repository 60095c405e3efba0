"""One row of the option table, and how a value is shown again. work.py and config/table.py hold the rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from qd import units
from qd.options.kinds import KINDS


class Option(NamedTuple):  # not a dataclass: making one costs a millisecond of every start
    """One row of the table. `kind` names how its text becomes a value (KINDS); `unit` and `shown` are for people."""

    name: str
    kind: str
    default: Any
    help: str
    shown: str = ""  # the default as text
    unit: str = ""
    short: str = ""  # a short flag, "-w"
    flag: str = ""  # the long flag, "--workers"; "" = none (the queues are words)
    environ: str = ""  # its environment variable, "" = none
    in_file: bool = True
    auto: bool = False  # "auto" is a value too; config/ finds out what it means here
    choices: tuple[str, ...] = ()
    at_least: float = 0

    def read(self, value: object) -> Any:
        """`value`, from a file, the environment, a flag or code, as this option holds it. Raises ValueError."""
        if self.auto and value == "auto":
            return "auto"
        found = KINDS[self.kind](value)
        if self.choices and found not in self.choices:
            near = units.did_you_mean(str(found), self.choices)
            raise ValueError(f"{found!r} is not one of {', '.join(self.choices)}{near}")
        self._check_size(found, value)
        return found

    def _check_size(self, found: Any, value: object) -> None:
        if self.kind == "size" and 0 < found < 1 << 20:  # Laravel's --memory=128 means megabytes
            hint = f" (megabytes are written '{value}M')" if str(value).isdigit() else ""
            raise ValueError(f"{value} is {found} bytes, less than a megabyte{hint}")
        if self.kind in ("count", "span") and found < self.at_least:
            raise ValueError(f"{found:g} is too small (at least {self.at_least:g})")


_UNITS = {"span": "seconds", "spans": "seconds", "size": "bytes"}


def row(name: str, default: Any, meta: Mapping[str, Any]) -> Option:
    """A row of the table, with what follows from its name and kind filled in."""
    more = dict(meta)
    more.setdefault("flag", "--" + name.replace("_", "-"))
    more.setdefault("environ", f"QD_{name.upper()}")
    more.setdefault("unit", _UNITS.get(more["kind"], ""))
    more.setdefault("shown", shown(more["kind"], default))
    return Option(name=name, default=default, **more)


def shown(kind: str, value: Any) -> str:
    """A value of this kind as a person writes it: (1.0, 5.0) spans -> "1s,5s", 128 MiB -> "128M"."""
    if value is None or value == ():
        return ""
    if kind == "span":
        return value if isinstance(value, str) else units.span_text(value)
    if kind == "size":
        return units.size_text(value)
    if kind == "spans":
        return ",".join(units.span_text(part) for part in value)
    if kind in ("names", "queues", "texts", "keys"):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
