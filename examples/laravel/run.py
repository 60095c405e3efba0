"""What `make demo-laravel` runs: Laravel and Python share one Redis, each with its own worker.

    PHP pushes podcasts.transcode -> qd work python -> App\\Jobs\\Publish -> Laravel's worker

Works in a temporary folder, leaves nothing behind, and exits with 1 if something did not happen.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from qd.drivers import embedded

HERE = Path(__file__).resolve().parent
QD, PHP = (sys.executable, "-m", "qd"), ("php", str(HERE / "laravel.php"))
PATIENCE = 20.0  # seconds that any of it may take
PROBE = (
    f"exit((int) !(extension_loaded('redis') && (is_file('{HERE}/vendor/autoload.php')"
    " || stream_resolve_include_path('Illuminate/Redis/autoload.php'))));"
)
INSTALL = """This example needs PHP with the extension redis and Laravel's queue. Install them on Debian or Ubuntu:
    apt install php-cli php-redis php-illuminate-queue php-illuminate-redis php-illuminate-events
or elsewhere, with PHP and the extension, from Composer:
    cd examples/laravel && composer require illuminate/queue illuminate/redis illuminate/events"""


class Worker:
    """A worker whose output is printed as it comes."""

    def __init__(self, name: str, shown: str, command: Sequence[str]) -> None:
        print(f"$ {shown}", flush=True)
        self.name, self.lines = name, list[str]()
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, start_new_session=True
        )
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as pipe:
            for line in pipe:
                self.lines.append(line.rstrip())
                print(f"  {self.name:<6} | {self.lines[-1]}", flush=True)

    def did(self, what: str) -> bool:
        return any(what in line for line in self.lines)

    def stop(self) -> bool:
        """End it, as a supervisor does. True: it has ended in time, and no process of it is left."""
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
            left = [pid for pid in psutil.pids() if session_of(pid) == self.process.pid]
        except subprocess.TimeoutExpired:
            self.process.kill()
            left = [self.process.wait()]
        self.reader.join(PATIENCE)
        return not left


def session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return 0


def waited(fact: Callable[[], object]) -> bool:
    deadline = time.monotonic() + PATIENCE
    while not fact() and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(fact())


def main() -> int:
    if shutil.which("php") is None or subprocess.run(["php", "-r", PROBE], check=False).returncode:
        print(INSTALL)
        return 1
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="qd-laravel-") as folder:
        for name in ("podcasts.py", "qd.toml"):
            shutil.copy(HERE / name, folder)
        os.chdir(folder)
        for name in [name for name in os.environ if name.startswith("QD_") or name == "REDIS_URL"]:
            del os.environ[name]
        try:
            rows = share(urlsplit(embedded.resolve("embedded:", Path(folder))).path)
        finally:
            embedded.stop(Path(folder))
    print(f"\nIn {time.monotonic() - began:.1f} seconds:")
    for good, text in rows:
        print(f"  {'ok  ' if good else 'FAIL'}  {text}")
    return 0 if all(good for good, _ in rows) else 1


def share(socket: str) -> list[tuple[bool, str]]:
    """Returns what was expected, and whether it happened."""
    os.environ["REDIS_SOCKET"] = socket
    print("# One Redis, two workers: each takes the jobs of its own queue.", flush=True)
    workers = list[Worker]()
    try:
        workers.append(
            Worker("Python", "qd work python", [*QD, "work", "python", "--workers", "1", "--log-level", "error"])
        )
        workers.append(Worker("PHP", "php laravel.php work", [*PHP, "work"]))
        print(
            "\n# PHP dispatches a job for Python, which dispatches one for PHP.\n$ php laravel.php push 7", flush=True
        )
        subprocess.run([*PHP, "push", "7"], check=True)
        rows = [
            (waited(lambda: workers[0].did("transcoded podcast 7")), "Python ran the job that PHP had dispatched"),
            (waited(lambda: workers[1].did("published podcast 7: podcast-7.mp3")), "PHP ran the one of Python"),
        ]
    finally:
        ended = [worker.stop() for worker in workers]
    return [*rows, (all(ended), "both workers have ended, and no process of them is left")]


if __name__ == "__main__":
    sys.exit(main())
