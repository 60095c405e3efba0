"""Whether the qd on disk is still the one that this master runs.

A reload forks a template from the master, which has the modules of its own release in memory; whatever the template
imports later comes from disk. After an upgrade of qd that would mix two releases, so a reload is refused until a restart.

The files are read and compared, never imported, and their times do not count: a checkout that went to another commit and
back is the same qd. Two folders count: the one that Python imports from, and the one that a new start would import from.
They differ if qd was started as current/.venv/bin/qd, which pip has tied to releases/1, and `current` points to releases/2.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

VERSION = re.compile(rb'^__version__ = "([^"]+)"', re.MULTILINE)
CODE = (".py", ".lua")


class Release(NamedTuple):
    """version: "" if there is no qd in the folder."""

    version: str
    digest: str


def release_in(folder: str) -> Release:
    """Read the qd of this folder: 330 small files, 12 ms. One that disappears meanwhile counts as changed."""
    digest, version = blake2b(digest_size=4), ""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(name for name in names if name.endswith(CODE) and not name.startswith(".")):
            path = os.path.join(place, name)
            try:
                with open(path, "rb") as file:
                    text = file.read()
            except OSError:
                text = b""
            digest.update(b"%s %d\n%s" % (os.fsencode(os.path.relpath(path, folder)), len(text), text))
            if place == folder and name == "__init__.py" and (found := VERSION.search(text)):
                version = found[1].decode()
    return Release(version, digest.hexdigest())


class OwnCode:
    def __init__(self, folder: str, roots: Sequence[str]) -> None:
        """folder: of the qd that runs. roots: folders by the names that the starter used, with `current` in them."""
        self.folder, self._roots = os.path.abspath(folder), roots

    def remember(self) -> None:
        """Note what runs, before anything on disk changes."""
        self._real, self._started = os.path.realpath(self.folder), release_in(self.folder)
        within = (root for root in self._roots if self._real.startswith(os.path.realpath(root) + os.sep))
        root = next(within, "")
        self.named = root + self._real.removeprefix(os.path.realpath(root)) if root else self.folder

    def change(self) -> dict[str, str | None] | None:
        """The fields of a log line if qd has changed, or None. `running` is where the code in memory came from, if that is
        not the place that has changed."""
        for folder in dict.fromkeys((self.named, self.folder)):
            was, now = self._started, release_in(folder)
            if now == was:
                continue
            same, real = now.version == was.version, self._real
            old, new = (f"{it.version} ({it.digest})" if same else it.version for it in (was, now))
            reason = f"qd changed from {old} to {new}" if new else f"qd {old} was removed"
            running = None
            if os.path.realpath(folder) != real:
                running = f"{real}, {'still there' if os.path.isdir(real) else 'deleted'}"
            return {"reason": reason, "hint": "qd restart", "path": folder, "running": running}
        return None
