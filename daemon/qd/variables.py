"""QD_ENV_FILE: a file of variables, one NAME=value a line, as systemd's EnvironmentFile= has them. A `qd` command reads it
before its configuration, and each reload of `qd work` reads it anew.

What stands in it wins over what the program was started with: a supervisor that has read the same file gave it what stood
there at the start.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from qd.errors import ConfigError

NAMED = "QD_ENV_FILE"
LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)")


class Variables:
    """Those of the file, as far as they are in the environment of this process."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self._environ = environ
        self._covered: dict[str, str | None] = {}  # what stood in place of each
        self.found: Mapping[str, str] = {}
        self._begun = False

    def begin(self) -> None:
        """Once in a command: before its first look at the configuration. Raises ConfigError."""
        if not self._begun:
            self.put(self.read())
            self._begun = True

    def read(self) -> Mapping[str, str]:
        """What the file holds now; nothing is changed. Raises ConfigError: it cannot be read."""
        path = self._environ.get(NAMED, "")
        if not path:
            return {}
        try:
            return parsed(Path(path).read_text(encoding="utf-8"), path)
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not UTF-8"
            raise ConfigError(
                f"{NAMED} names {path}, which cannot be read: {why} (correct it, or leave it out)"
            ) from None

    def put(self, found: Mapping[str, str]) -> None:
        """From now on these are in the environment, and those of before that are not among them no more."""
        for name in self.found.keys() - found.keys():
            before = self._covered.pop(name)
            if before is None:
                self._environ.pop(name, None)
            else:
                self._environ[name] = before
        for name, value in found.items():
            self._covered.setdefault(name, self._environ.get(name))
            self._environ[name] = value
        self.found = found


def parsed(text: str, path: str) -> Mapping[str, str]:
    """No escapes, and nothing is filled in. A line that is none is named by its number alone: it may hold a secret. Raises
    ConfigError."""
    found = dict[str, str]()
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line[0] in "#;":
            continue
        held = LINE.fullmatch(line)
        value = unquoted(held[2]) if held is not None else None
        if held is None or value is None or "\0" in value or held[1] == NAMED:
            raise ConfigError(f'{path}:{number} is no variable (write NAME=value, NAME="value", or # in front of it)')
        found[held[1]] = value
    return found


def unquoted(value: str) -> str | None:
    """None: a quote that is not closed."""
    if value[:1] not in ('"', "'"):
        return value
    return value[1:-1] if len(value) > 1 and value[-1] == value[0] else None


VARIABLES = Variables(os.environ)
