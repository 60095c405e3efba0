"""--reload, for development: which of the app's files has changed since the import.

The template asks twice a second; where there is none, idle workers do.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PYTHONS = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})
INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


class Watch:
    def __init__(self, since_ns: int, configuration: Path | None) -> None:
        """since_ns: unix time at which the import began; what was written after it counts as changed."""
        self._others = [str(configuration)] if configuration else []
        self._folders = {os.path.dirname(path) for path in sources()}
        self._seen = self._look()
        for path, stamp in self._seen.items():
            if since_ns <= stamp <= time.time_ns():
                self._seen[path] = 0

    def changed(self) -> str | None:
        """A file that is not as it was, new or gone; told once."""
        before, self._seen = self._seen, self._look()
        differ = (path for path in {**before, **self._seen} if before.get(path) != self._seen.get(path))
        return next(differ, None)

    def _look(self) -> dict[str, int]:
        """Every module, imported or not yet, beside those that were, and the configuration, with its time of writing."""
        stamps = {}
        for path in (*self._others, *(path for folder in self._folders for path in modules_in(folder))):
            with suppress(OSError):
                stamps[path] = os.stat(path).st_mtime_ns
        return stamps


def sources() -> list[str]:
    """The files of all imported modules that are not of an installation."""
    paths = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    return [p for p in paths if p and not p.startswith(PYTHONS) and not any(part in p for part in INSTALLED)]


def modules_in(folder: str) -> Iterator[str]:
    with suppress(OSError):
        yield from (os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".py"))
