"""A real MariaDB. mariadb-install-db runs once per test process, and its folder is copied for each server."""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

from tests.support.programs import missing
from tests.support.servers.running import Running

SMALL = ("--innodb-log-file-size=16M", "--innodb-buffer-pool-size=32M", "--performance-schema=OFF", "--skip-log-bin")


def binary(name: str) -> str:
    """The path of the server. Debian installs it in /usr/sbin, which may not be on PATH."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    return shutil.which(name, path=path) or missing("mariadb-server")


def ours() -> list[str]:
    """Options for the user: the server runs as root only if asked to."""
    return ["--user=root"] if os.geteuid() == 0 else []


@functools.cache
def template() -> Path:
    """The folder made by the installer, removed when the test process ends."""
    folder = Path(tempfile.mkdtemp(prefix="qd-test-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    options = ["--no-defaults", f"--datadir={folder / 'my'}", "--auth-root-authentication-method=normal"]
    options += ["--skip-test-db", "--skip-name-resolve", *SMALL, *ours()]
    subprocess.run([binary("mariadb-install-db"), *options], check=True, capture_output=True, cwd=folder, timeout=120)
    return folder / "my"


class MariaDb(Running):
    """The login is root without a password. durable: each commit waits for the disk, for benchmarks; without it a killed
    server loses nothing either."""

    name = "mariadbd"

    def __init__(self, *options: str, durable: bool = False) -> None:
        super().__init__()
        self.options = [f"--innodb-flush-log-at-trx-commit={1 if durable else 2}", *options]
        self.numbers = itertools.count(1)

    def url_of(self, database: str) -> str:
        return f"mysql+pymysql://root@127.0.0.1:{self.port}/{database}?charset=utf8mb4"

    def prepare(self) -> None:
        subprocess.run(["cp", "-a", str(template()), str(self.folder / "my")], check=True, timeout=60)

    def command(self) -> list[str]:
        options = ["--no-defaults", f"--datadir={self.folder / 'my'}", f"--socket={self.folder / 'm.sock'}"]
        options += [f"--port={self.port}", "--bind-address=127.0.0.1", f"--pid-file={self.folder / 'pid'}"]
        options += ["--character-set-server=utf8mb4", "--collation-server=utf8mb4_unicode_ci", "--skip-name-resolve"]
        return [binary("mariadbd"), *options, f"--tmpdir={self.folder}", *SMALL, *ours(), *self.options]

    def answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as tried:  # the driver leaves its socket open if no server listens
            tried.connect(str(self.folder / "m.sock"))
        return self.run("SELECT 1") == [(1,)]

    def run(self, statement: str, database: str | None = None) -> list[tuple]:
        """Run and commit one statement. Returns its rows."""
        import pymysql

        with pymysql.connect(
            unix_socket=str(self.folder / "m.sock"), user="root", database=database, autocommit=True
        ) as connection:
            cursor = connection.cursor()
            cursor.execute(statement)
            return list(cursor.fetchall())

    def fresh_database(self) -> str:
        """The url of a new, empty database."""
        name = f"qd_{next(self.numbers)}"
        self.run(f"CREATE DATABASE {name}")
        return self.url_of(name)

    def drop(self, url: str) -> None:
        self.run(f"DROP DATABASE IF EXISTS {url.rpartition('/')[2].partition('?')[0]}")


def installed() -> None:
    """Skip the test if MariaDB or its driver is missing."""
    binary("mariadbd")
    try:
        import pymysql  # noqa: F401
    except ImportError:
        missing("PyMySQL")
