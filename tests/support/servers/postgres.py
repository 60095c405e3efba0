"""A real PostgreSQL. initdb runs once per test process, and its folder is copied for each server."""

from __future__ import annotations

import atexit
import ctypes
import functools
import itertools
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from tests.support.programs import missing
from tests.support.servers.redis import LIBC
from tests.support.servers.running import Running, as_root

OWNER = "postgres"  # user of the process if the tests run as root
NAME = "qd"  # login, without a password
IPC_RMID = 0


def binary(name: str) -> str:
    """The path of a program. Debian does not install them on PATH."""
    if found := shutil.which(name):
        return found
    found_at = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[4]))
    return str(found_at[-1]) if found_at else missing("postgresql")


@functools.cache
def template() -> Path:
    """The folder made by initdb, removed when the test process ends."""
    folder = Path(tempfile.mkdtemp(prefix="qd-test-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    user = as_root(OWNER)
    if user:
        shutil.chown(folder, user)
    options = ["--no-sync", "--auth=trust", f"--username={NAME}", "--encoding=UTF8", "--locale=C.UTF-8"]
    command = [binary("initdb"), "-D", str(folder / "pg"), *options]
    subprocess.run(command, check=True, capture_output=True, cwd=folder, user=user, timeout=120)
    return folder / "pg"


class Postgres(Running):
    """url is the empty database of the login. durable: each commit waits for the disk, for benchmarks; without it a killed
    server loses nothing either."""

    name = "postgres"
    ending = signal.SIGINT  # fast shutdown: does not wait for clients

    def __init__(self, *settings: str, durable: bool = False) -> None:
        self.user = as_root(OWNER)
        super().__init__()
        self.settings = [*settings] if durable else [*settings, "fsync=off", "full_page_writes=off"]
        self.numbers = itertools.count(1)

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        return f"postgresql+psycopg://{NAME}@127.0.0.1:{self.port}/{database}"

    def prepare(self) -> None:
        subprocess.run(["cp", "-a", str(template()), str(self.folder / "pg")], check=True, timeout=60)

    def command(self) -> list[str]:
        # Shared memory in the folder, so that nothing is left in /dev/shm after a SIGKILL.
        settings = ["listen_addresses=127.0.0.1", "dynamic_shared_memory_type=mmap", "shared_buffers=32MB"]
        settings += [f"unix_socket_directories={self.folder}", "timezone=UTC", *self.settings]
        options = [word for setting in settings for word in ("-c", setting)]
        return [binary("postgres"), "-D", str(self.folder / "pg"), "-p", str(self.port), *options]

    def answers(self) -> bool:
        return self.run("SELECT 1") == [(1,)]

    def run(self, statement: str, database: str = "postgres") -> list[tuple]:
        """Run one statement outside of a transaction. Returns its rows."""
        import psycopg

        place = f"host={self.folder} port={self.port} user={NAME} dbname={database} connect_timeout=5"
        with psycopg.connect(place, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def fresh_database(self) -> str:
        """The url of a new, empty database."""
        name = f"qd_{next(self.numbers)}"
        self.run(f"CREATE DATABASE {name}")
        return self.url_of(name)

    def drop(self, url: str) -> None:
        """Drop a database, even while clients are connected."""
        self.run(f"DROP DATABASE IF EXISTS {url.rpartition('/')[2]} WITH (FORCE)")

    def stop(self) -> None:
        """Also remove the shared memory by which a second server in the folder would detect the first."""
        self.end()
        note = self.folder / "pg" / "postmaster.pid"
        if note.exists():
            LIBC.shmctl(int(note.read_text().splitlines()[6].split()[1]), IPC_RMID, ctypes.c_void_p(None))
        super().stop()


def installed() -> None:
    """Skip the test if PostgreSQL or its driver is missing."""
    binary("postgres")
    try:
        import psycopg  # noqa: F401
    except ImportError:
        missing("psycopg")
