"""--reload, for development: which of the app's files has changed since the import."""

from __future__ import annotations

import os
import sys


class Watch:
    def __init__(self) -> None:
        self._seen = {path: stamp_of(path) for path in files()}

    def changed(self) -> str | None:
        """A file that is not as it was, told once."""
        for path, stamp in self._seen.items():
            if stamp_of(path) != stamp:
                self._seen[path] = stamp_of(path)
                return path
        return None


def files() -> list[str]:
    """The sources of all imported modules that are not of the installation."""
    prefixes = (sys.prefix, sys.base_prefix)
    paths = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    return [path for path in paths if path and not path.startswith(prefixes)]


def stamp_of(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0
