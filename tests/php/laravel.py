"""A Laravel application next to qd: runs the scripts of rig/ on the test's server, and reads what both sides write.

Each job, in PHP (rig/jobs.php) or in Python (JOBS below), appends one line to the witness file: name, job ID, attempt, pid
and the data as JSON. It is a file so that the tests know what ran without asking Redis.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.processes import Procs
from tests.support.programs import missing, program
from tests.support.servers.redis import Server
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
RIG = Path(__file__).resolve().parent / "rig"
PREFIX = "laravel_database_"
CACHE_PREFIX = "laravel_cache"
RESTART = "illuminate:queue:restart"
PROBE = "exit((int) !(extension_loaded('redis') && stream_resolve_include_path('Illuminate/Queue/autoload.php')));"

# The head of a project's jobs.py. `seen()` also writes the job's payload as Redis has it while the job runs.
JOBS = """
import json, os, time
from qd import Qd, current_job

app = Qd()


def append(path, line):
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line + b"\\n")
    os.close(file)


def witness(data):
    job = current_job()
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    append(os.environ["RIG_WITNESS"], f"{job.name} {job.id} {job.attempt} {os.getpid()} {text}".encode())


def seen():
    from tests.support.redis import Client

    job, client = current_job(), Client(os.environ["RIG_HOST"])
    for member in client.call("ZRANGE", f"{os.environ['RIG_PREFIX']}queues:{job.queue}:reserved", 0, -1):
        if job.id.encode() in member:
            append(os.environ["RIG_MEMBERS"], member)


@app.job("shared.note")
def note(**data):
    witness(data)
"""


@cache
def has_laravel(php: str) -> bool:
    return subprocess.run([php, "-r", PROBE], check=False).returncode == 0


@dataclass(frozen=True)
class Ran:
    """One line of the witness file."""

    name: str
    id: str
    attempt: int
    pid: int
    data: Any


class Laravel:
    """The PHP application: push jobs, run its worker, write its cache keys. Its redis prefix is PREFIX."""

    def __init__(self, server: Server, folder: Path, **settings: str) -> None:
        self.php = program("php")
        if not has_laravel(self.php):
            missing("php-redis or php-illuminate-queue")
        self.folder, self.server = folder, server
        self.witness, self.members = folder / "witness", folder / "members"
        self.workers: list[Procs] = []
        self.settings = {
            "RIG_HOST": str(server.socket),
            "RIG_PREFIX": PREFIX,
            "RIG_CACHE_PREFIX": CACHE_PREFIX,
            "RIG_WITNESS": str(self.witness),
            "RIG_MEMBERS": str(self.members),
            **settings,
        }

    @property
    def qd_env(self) -> dict[str, Any]:
        """The environment that a project's jobs need to write the witness file."""
        return {**self.settings, "PYTHONPATH": os.pathsep.join([str(ROOT / "daemon"), str(ROOT)])}

    @property
    def qd_config(self) -> str:
        """The lines of qd.toml that share this application's queues and obey its cache keys."""
        cache_url = f"{self.server.url}?db=1"
        return (
            f'prefix = "{PREFIX}"\n\n[laravel]\ncache_url = "{cache_url}"\ncache_prefix = "{PREFIX}{CACHE_PREFIX}:"\n'
        )

    def push(self, *entries: Mapping[str, object]) -> list[str]:
        """Push with Laravel's queue (see rig/push.php). Returns the IDs in order."""
        return self._run("push.php", {"jobs": entries}).split()

    def table(self) -> None:
        """Create the jobs table as Laravel's migration does. Needs RIG_DATABASES."""
        self._run("table.php", {})

    def artisan(self, *words: str, database: Path) -> str:
        """Run a command about failed jobs like `php artisan ...`. Returns its output. See rig/artisan.php."""
        done = subprocess.run(
            [self.php, str(RIG / "artisan.php"), *words],
            cwd=self.folder, env={**os.environ, **self.settings, "RIG_FAILED": str(database)}, capture_output=True,
            text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"
        return done.stdout

    def cache(self, **what: object) -> str:
        """Do one thing with Laravel's cache; see rig/cache.php."""
        return self._run("cache.php", what).strip()

    def worker(self, queue: str, **options: object) -> Procs:
        """Start Laravel's worker daemon on `queue`, and wait until it polls for jobs."""
        given = json.dumps({"queue": queue, "sleep": 0.05, **options})
        procs = Procs([self.php, str(RIG / "work.php"), given], cwd=self.folder, env={**os.environ, **self.settings})
        self.workers.append(procs)
        procs.wait_line("^ready$")
        return procs

    def ran(self, name: str = "") -> list[Ran]:
        """The jobs that ran so far, in either language, in the order of their end."""
        lines = self.witness.read_text().split("\n")[:-1] if self.witness.exists() else []
        found = [_ran(*line.split(" ", 4)) for line in lines]
        return [ran for ran in found if name in ("", ran.name)]

    def wait_ran(self, count: int, seconds: float = 20.0, name: str = "") -> list[Ran]:
        """Wait until at least `count` jobs have run. Returns all that ran."""

        def enough() -> bool:
            ran = len(self.ran(name))
            assert ran >= count, f"{ran} of {count} jobs ran"
            return True

        eventually(enough, seconds, every=0.05)
        return self.ran(name)

    def close(self) -> None:
        running = [title for procs in self.workers for title in procs.sweep()]
        assert not running, f"a PHP worker still runs at the end of the test: {running}"

    def _run(self, script: str, argument: object) -> str:
        done = subprocess.run(
            [self.php, str(RIG / script), json.dumps(argument)],
            env={**os.environ, **self.settings},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), f"{script}: exit {done.returncode}: {done.stderr}"
        return done.stdout


def _ran(name: str, job_id: str, attempt: str, pid: str, data: str) -> Ran:
    return Ran(name, job_id, int(attempt), int(pid), json.loads(data))


def data_of(payload: bytes) -> bytes:
    """The bytes of the payload's `data` value. No other key of these payloads has this name."""
    text = payload.decode()
    start = text.index('"data":') + len('"data":')
    _, end = json.JSONDecoder().raw_decode(text, start)
    return text[start:end].encode()
