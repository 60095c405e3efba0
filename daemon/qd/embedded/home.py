"""The files of one project's private server, in ROOT/.qd/embedded, and the lock that tells whether one is running.

lock      held for as long as the server lives, since it inherits the descriptor: who gets the lock knows that no
          server is running on these files, and of two starters at once only one starts
address   the path of the socket, then the server's pid and start time; `qd embedded stop` removes it, a kill does not
server.log, appendonlydir/      the server's own
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from qd.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Address:
    """The server that was started last. pid 0: its starter was ended before it could note it."""

    socket: Path
    pid: int = 0
    start: int | None = None


@dataclass(frozen=True, slots=True)
class Home:
    """Where the embedded server of one project keeps its files."""

    folder: Path

    @classmethod
    def of(cls, root: Path) -> Home:
        return cls(root.resolve() / ".qd" / "embedded")

    @property
    def lock(self) -> Path:
        return self.folder / "lock"

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    def make(self) -> None:
        """The folder, for its owner only, and a .gitignore so that nobody commits a queue. Raises OSError, also for a link
        or a folder of somebody else: who owns it would own the queue."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (self.folder.parent, self.folder):
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                raise PermissionError(errno.EPERM, "it is not a folder of this user", str(folder))
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
        """The server is to end: no keeper starts it again, only its next use does."""
        (self.folder / "address").unlink(missing_ok=True)


@contextmanager
def locked(home: Home) -> Iterator[int | None]:
    """The lock, as long as the block lasts, or None: a server is running or being started.

    Closing the descriptor does not free it while a server that inherited it lives. Raises ConfigError when the folder
    cannot be used.
    """
    import fcntl  # not on Windows, where producers import this module

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
    """Whether no server has these files."""
    with locked(home) as lock:
        return lock is not None
