"""Every value by the first layer that has it: flags > environment > code > [pools.NAME] > [worker] > built in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from qd.config import table
from qd.config.file import ConfigFile
from qd.errors import ConfigError
from qd.options import Option

SCHEDULE = "schedule"  # the pool of `qd schedule work` where none is named; it need not be in the file


class Found(NamedTuple):
    value: object
    origin: str


class Layers:
    """origins: where each value came from, by its dotted name; grows with each that is asked."""

    def __init__(
        self,
        file: ConfigFile | None,
        environ: Mapping[str, str],
        flags: Mapping[str, object],
        code: Mapping[str, object],
    ) -> None:
        self.file, self.environ, self.flags, self.code = file, environ, flags, code
        self.origins: dict[str, str] = {}

    def value(self, dotted: str, option: Option, code: str = "", connection: str = "", built_in: object = None) -> Any:
        """The value of one key by the first layer that has it, noted with its origin."""
        places = self._layers(dotted, option, code, connection)
        found = next(places, Found(option.default if built_in is None else built_in, "built in"))
        self.origins[dotted] = found.origin
        if found.origin == "built in":
            return found.value
        try:
            return option.read(found.value)
        except ValueError as error:
            raise ConfigError(f"{found.origin}: {error}") from None

    def _layers(self, dotted: str, option: Option, code: str, connection: str) -> Iterator[Found]:
        section, _, key = dotted.rpartition(".")
        if section in ("worker", "qd") and key in self.flags:
            yield Found(self.flags[key], f"flag {option.flag}" if option.flag else "command line")
        for name in _variables(option, connection):
            if self.environ.get(name):  # an empty one counts as not set, as in most programs
                yield Found(self.environ[name], f"environment {name}")
        if code in self.code:
            yield Found(self.code[code], "Qd(...)")
        if self.file is not None:
            yield from self._file_layers(self.file, section, key)

    def _file_layers(self, file: ConfigFile, section: str, key: str) -> Iterator[Found]:
        pools = [("pools", self.pool)] if section == "worker" and self.pool else []
        for names in (*pools, tuple(section.split(".", 1))):
            if key in (held := file.section(*names)):
                yield Found(held[key], file.where(".".join((*names, key))))

    def all(self, section: str, rows: Mapping[str, Option]) -> dict[str, Any]:
        return {name: self.value(f"{section}.{name}", option) for name, option in rows.items()}

    def section(self, name: str) -> Mapping[str, Any]:
        return self.file.section(name) if self.file else {}

    @property
    def root(self) -> Path:
        return self.file.path.parent if self.file else Path.cwd()

    @property
    def pool(self) -> str:
        named = self.flags.get("pool") or self.environ.get("QD_POOL") or ""
        return str(named or (SCHEDULE if self.only_schedule else ""))

    @property
    def only_schedule(self) -> bool:
        return bool(self.flags.get("only_schedule"))


def _variables(option: Option, connection: str) -> list[str]:
    """The environment variables of a row, the first one first."""
    names = [table.environ_name(option, connection)] if option.environ else []
    return [*names, "REDIS_URL"] if connection == "redis" and option.name == "url" else names
