"""Start, find and stop the private server of a project. Called by the connection manager and by `qd embedded`."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, quote

from qd.embedded.home import Address, Home, locked, unused
from qd.embedded.places import runtime_folder, server_binary
from qd.errors import ConfigError, ConnectionLost
from qd.process import vitals

START_WAIT = 30.0  # seconds; the append-only file is read before the first answer
STOP_WAIT = 30.0
LOST_AFTER = 3.0  # seconds until a server without its socket counts as lost, not as one that is just starting
REPLY_WAIT = 2.0
LOOK_AGAIN = 0.02
SOCKET_PATH_MAX = 103  # bytes: 107 on Linux, 103 on macOS
LOG_MAX = 1_000_000  # bytes; a longer log is begun anew at the next start
PRIVATE = ("--port", "0", "--unixsocketperm", "700", "--protected-mode", "yes", "--daemonize", "no")
DURABLE = ("--appendonly", "yes", "--save", "", "--maxmemory-policy", "noeviction")
# QD_OWNER marks what a job started, for the master to end; the others belong to whoever is supervised.
NOT_INHERITED = ("QD_", "NOTIFY_SOCKET", "WATCHDOG_")
# The shell ends at once and the server is nobody's child: it is no zombie later, and no reaper in this process sees it.
DETACH = '"$@" </dev/null >/dev/null 2>&1 & echo $!'


@dataclass(frozen=True, slots=True)
class Status:
    """A running embedded server: memory in bytes, uptime in seconds, server as "valkey 9.1.0" or "redis 7.0.15"."""

    pid: int
    server: str
    url: str
    memory: int
    uptime: int
    folder: Path


def resolve(url: str, root: Path) -> str:
    """The unix:// url of the project's server, which is started when it is not running.

    url: `embedded:` or `embedded:?db=1`. Raises ConfigError: no server binary, a folder that cannot be used, a server
    that does not come up.
    """
    rest = url.removeprefix("embedded:").removeprefix("//")
    db = parse_qs(rest.removeprefix("?")).get("db", ["0"])[-1]
    if rest not in ("", f"?db={db}") or not db.isdecimal():
        raise ConfigError(f"cannot read url '{url}': the embedded server is 'embedded:' or 'embedded:?db=1'")
    return url_of(ensure(Home.of(root)), db)


def status(root: Path) -> Status | None:
    """What the project's server says of itself; None: it is not running. Never starts one."""
    home = Home.of(root)
    address = home.address()
    answer = ask(address, "INFO") if address else None
    if address is None or not answer or not answer.startswith(b"$"):
        return None
    facts = dict(line.split(":", 1) for line in answer.decode("utf-8", "replace").splitlines() if ":" in line)
    name = "valkey" if "valkey_version" in facts else "redis"
    return Status(
        pid=int(facts["process_id"]),
        server=f"{name} {facts[f'{name}_version']}",
        url=url_of(address),
        memory=int(facts["used_memory"]),
        uptime=int(facts["uptime_in_seconds"]),
        folder=home.folder,
    )


def stop(root: Path) -> bool:
    """End the project's server and wait until it is gone; its queues stay on disk. False: none was running.

    Raises ConnectionLost when it runs and does not end.
    """
    home = Home.of(root)
    if not home.lock.exists():
        return False
    address = home.address()
    home.forget()  # before its end: a keeper starts a server that is noted and does not run
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
    """Raises ConnectionLost when it does not end."""
    said = ask(address, "SHUTDOWN") if address else None
    if said is None and address:
        terminate(address)
    deadline = time.monotonic() + (0 if said else STOP_WAIT)
    while not unused(home):
        if time.monotonic() > deadline:
            why = said.decode("utf-8", "replace").strip() if said else "no answer"
            pid = address.pid if address else 0
            raise ConnectionLost(f"the embedded server (pid {pid or 'unknown'}) does not end: {why} (see {home.log})")
        time.sleep(LOOK_AGAIN)


def revive(root: Path) -> int | None:
    """Start the server again if it was killed, at the socket it had, and do not wait for its first answer. Returns its pid;
    None: it runs, or it was stopped. Raises ConfigError, OSError and SubprocessError."""
    home = Home.of(root)
    if home.address() is None:
        return None
    with locked(home) as lock:
        address = home.address()
        return start(home, lock, address.socket).pid if lock is not None and address is not None else None


def ensure(home: Home) -> Address:
    """A server that answers, started if need be."""
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
        waited = at - began
        if address and address.pid != pid:
            pid, since = address.pid, at  # one that has just been started has no socket yet
        if lock is None and not started and address and at - since > LOST_AFTER and not address.socket.exists():
            terminate(address)  # a logout swept the runtime folder: nobody reaches it any more, and it holds the files
        if waited > START_WAIT:
            where = f"pid {address.pid}, {address.socket}" if address else "no address noted"
            raise ConfigError(f"the embedded server ({where}) does not answer: end it, then try again (see {home.log})")
        time.sleep(LOOK_AGAIN)
    return address


def socket_of(home: Home) -> Path:
    path = runtime_folder() / f"qd-{hashlib.sha256(os.fsencode(home.folder)).hexdigest()[:16]}.sock"
    if len(os.fsencode(path)) > SOCKET_PATH_MAX:
        raise ConfigError(f"socket path '{path}' is too long for this system: set XDG_RUNTIME_DIR to a shorter folder")
    return path


def start(home: Home, lock: int, path: Path) -> Address:
    """Start a server that inherits `lock` and listens at `path`, in a session of its own."""
    program = server_binary()
    path.unlink(missing_ok=True)  # with the lock in hand, nobody listens there
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
    started = Address(path, pid, vitals.start_time(pid))
    home.note(started)
    return started


def ask(address: Address, command: str) -> bytes | None:
    """The beginning of the server's answer. b"": it hung up, as after SHUTDOWN. None: nobody answers."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(REPLY_WAIT)
        try:
            sock.connect(str(address.socket))
            sock.sendall(f"{command}\r\n".encode())
        except OSError:
            return None
        try:
            return received(sock)
        except ConnectionError:
            return b""
        except OSError:
            return None


def received(sock: socket.socket) -> bytes:
    """One reply: a line, or a whole bulk string (`$length`, then as many bytes)."""
    data = b""
    while piece := sock.recv(65536):
        data += piece
        head, end, body = data.partition(b"\r\n")
        if end and not (head.startswith(b"$") and len(body) < int(head[1:])):
            break
    return data


def terminate(address: Address) -> None:
    """SIGTERM (a clean shutdown) to the server, and to nobody who got its pid after it."""
    if address.pid and address.start is not None and vitals.start_time(address.pid) == address.start:
        os.kill(address.pid, signal.SIGTERM)


def url_of(address: Address, db: str = "0") -> str:
    return f"unix://{quote(str(address.socket))}?db={db}"


def last_words(home: Home) -> str:
    """The last line of the server's log that says something."""
    try:
        lines = home.log.read_text(errors="replace").split("\n")
    except OSError:
        return "it wrote no log"
    return next((line.strip() for line in reversed(lines) if line.strip()), "its log is empty")
