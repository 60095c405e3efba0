"""Liveness files: health checks on the same host or in the same container read them and need no server.

The master writes `<folder>/<pool or default>.<pid>.live`, one line of JSON, every two seconds. Its age shows whether the
master hangs. Folder: $RUNTIME_DIRECTORY (systemd), else $XDG_RUNTIME_DIR/qd, else /run/user/UID/qd, else /tmp/qd-UID.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from qd.process import proc

HANGS = 10.0  # seconds: a master whose file is older hangs


class Live(msgspec.Struct, frozen=True, omit_defaults=True):
    """The liveness file of one master. age: seconds since it was written. keeper_silent_s: since its keeper's last turn.
    folder: its working directory, which tells the projects of one user apart."""

    pid: int
    start: int | None  # clock ticks, as proc.start_time
    pool: str
    workers: int
    ready: bool
    keeper_silent_s: float
    age: float = 0.0
    folder: str = ""

    @property
    def hangs(self) -> bool:
        return self.age > HANGS


def folder(environ: Mapping[str, str]) -> Path:
    given = environ.get("RUNTIME_DIRECTORY", "").split(":")[0]
    if given:
        return Path(given)
    uid = os.getuid()
    home = Path(environ.get("XDG_RUNTIME_DIR") or f"/run/user/{uid}")
    return home / "qd" if home.is_dir() else Path(f"/tmp/qd-{uid}")


def path(where: Path, pool: str, pid: int) -> Path:
    name = re.sub(r"[^\w.-]", "_", pool) or "default"
    return where / f"{name}.{pid}.live"


def write(live: Live, environ: Mapping[str, str]) -> None:
    """Write the file. Raises OSError, also if the folder belongs to another user."""
    where = folder(environ)
    claim(where)
    file = path(where, live.pool, live.pid)
    fresh = file.with_suffix(".new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, msgspec.json.encode(live) + b"\n")
    finally:
        os.close(fd)
    os.replace(fresh, file)


def claim(where: Path) -> None:
    """Create the folder if it is missing. Refuse one that other users can write to: /tmp is shared."""
    with suppress(FileExistsError):
        os.mkdir(where, 0o700)
    found = os.lstat(where)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(f"{where} is not a folder of this user alone (remove it, or set XDG_RUNTIME_DIR)")


def remove(pool: str, pid: int, environ: Mapping[str, str]) -> None:
    with suppress(OSError):
        path(folder(environ), pool, pid).unlink()


def read_all(environ: Mapping[str, str]) -> list[Live]:
    """The files of the masters alive here, by pool and pid. Deletes the files of dead masters."""
    where, found = folder(environ), list[Live]()
    with suppress(OSError):
        claim(where)
        for file in sorted(where.glob("*.live")):
            live = read(file)
            if live is not None and proc.alive(live.pid, live.start) is not False:
                found.append(live)
            elif live is None or live.hangs:  # a fresh one may belong to another pid namespace
                with suppress(OSError):
                    file.unlink()
        for file in where.glob("*.new"):  # left by masters that were killed while writing
            with suppress(OSError):
                if time.time() - file.stat().st_mtime > HANGS:
                    file.unlink()
    return found


def read(file: Path) -> Live | None:
    """None if the file is missing or malformed."""
    try:
        live = msgspec.json.decode(file.read_bytes(), type=Live)
        return replace(live, age=max(0.0, time.time() - file.stat().st_mtime))
    except (OSError, msgspec.DecodeError):
        return None
