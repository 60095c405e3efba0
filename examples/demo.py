"""What `make demo` runs: the gallery next to this file on a private server, with two workers, and checks of their work.

Works in a temporary folder, leaves nothing behind, and exits with 1 if a check fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import psutil

from qd.drivers import embedded

GALLERY = Path(__file__).resolve().parent / "gallery"
QD = (sys.executable, "-m", "qd")
PATIENCE = 10.0  # seconds that any of it may take
DELAY = 2.0


class Workers:
    """`qd work` in this folder, its log printed as it comes; tracebacks are reduced to the gallery's own line."""

    def __init__(self) -> None:
        command = [*QD, "work", "--workers", "2", "--stop-timeout", "10"]
        print(f"$ qd {' '.join(command[3:])}", flush=True)
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, start_new_session=True
        )
        assert self.process.stderr is not None
        self.log: list[str] = []
        self.reader = threading.Thread(target=self.read, args=(self.process.stderr,))
        self.reader.start()

    def read(self, pipe: IO[bytes]) -> None:
        with pipe:
            for raw in pipe:
                self.log.append(raw.decode(errors="replace").rstrip())
                if not self.log[-1].startswith(" ") or "gallery.py" in self.log[-1]:
                    print(f"  | {self.log[-1]}", flush=True)

    def stop(self) -> int:
        """Send TERM and return the exit code. SIGKILL if it does not exit; its children die with it."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            code = self.process.wait(2 * PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self.reader.join(PATIENCE)
        return code

    def left(self) -> list[int]:
        """Processes of its session that are still alive."""
        return [pid for pid in psutil.pids() if session_of(pid) == self.process.pid]

    def logged(self, *words: str) -> bool:
        """Whether one line of the log has all of these words."""
        return any(all(word in line for word in words) for line in self.log)


class Report:
    """Prints each expected fact and whether it was observed."""

    def __init__(self) -> None:
        self.rows: list[tuple[bool, str]] = []

    def expect(self, text: str, fact: Callable[[], object], seconds: float = PATIENCE) -> None:
        """Print whether `fact` becomes true within `seconds`. After the first failure it no longer waits."""
        good = all(seen for seen, _ in self.rows)
        self.rows.append((waited(fact, seconds if good else 0), text))

    def print(self, seconds: float) -> bool:
        print(f"\nIn {seconds:.1f} seconds:")
        for seen, text in self.rows:
            print(f"  {'ok  ' if seen else 'FAIL'}  {text}")
        good = all(seen for seen, _ in self.rows)
        print(
            "\nThe jobs are in examples/gallery/gallery.py. To watch a system: `qd top` in a terminal, `qd dashboard` in a"
            "\nbrowser; `make demo-dashboard` starts one with everything in it."
            if good
            else "\nSomething did not happen; the log is above."
        )
        return good


def waited(fact: Callable[[], object], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not fact():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return 0


def qd(*arguments: str) -> None:
    """Run a `qd` command and print it with its output."""
    print(f"$ qd {' '.join(arguments)}", flush=True)
    done = subprocess.run([*QD, *arguments], stdout=subprocess.PIPE, text=True, check=False)
    print("".join(f"  {line}\n" for line in done.stdout.splitlines()), end="", flush=True)


def say(text: str) -> None:
    print(f"\n# {text}", flush=True)


def main() -> int:
    began, report = time.monotonic(), Report()
    with tempfile.TemporaryDirectory(prefix="qd-demo-") as folder:
        move_in(Path(folder))
        gallery, pictures = import_module("gallery"), import_module("server").PictureServer()
        threading.Thread(target=pictures.serve_forever, args=(0.05,)).start()
        try:
            say("A private server starts with the first command that needs it; two workers wait for jobs.")
            workers = Workers()
            try:
                work(gallery, pictures, workers, report)
                stop(gallery, pictures, workers, report)
            finally:
                workers.stop()
        finally:
            pictures.close()
            say("The private server stops too.")
            qd("embedded", "stop")
            report.expect("the private server stopped", lambda: not embedded.stop(Path.cwd()), 0)
    return 0 if report.print(time.monotonic() - began) else 1


def move_in(folder: Path) -> None:
    """Work in a copy of the gallery, whatever server the environment names, without the results of runs by hand."""
    ignore = shutil.ignore_patterns("__pycache__", ".*", "pictures", "thumbs", "outbox", "index.html")
    shutil.copytree(GALLERY, folder, dirs_exist_ok=True, ignore=ignore)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    for name in [name for name in os.environ if name.startswith("QD_") or name == "REDIS_URL"]:
        del os.environ[name]


def work(gallery: Any, pictures: Any, workers: Workers, report: Report) -> None:
    report.expect("two workers were ready", lambda: workers.logged("master.ready"))

    say(f"A mail, due in {DELAY:g} seconds.")
    due_at = time.time() + DELAY
    gallery.send.using(delay=DELAY).dispatch("ada@example.org", "Your pictures")

    say(
        "Six pictures to fetch, sent in one round trip; each of the six jobs sends another one that scales its picture."
    )
    names = [f"{name}.pgm" for name in ("alps", "bay", "cove", "dune", "elm", "fjord")]
    gallery.app.dispatch(*[gallery.fetch.bind(pictures.url(name)) for name in names])
    report.expect("six pictures were fetched and scaled", lambda: all(Path("thumbs", name).exists() for name in names))

    say("A picture whose server answers 503 the first time, and one whose server never answers (timeout 1 s, one try).")
    gallery.fetch.dispatch(pictures.url("flaky.pgm"))
    gallery.fetch.using(timeout=1, tries=1).dispatch(pictures.url("hangs.pgm"))
    report.expect("the fetch that failed was tried again, and succeeded", Path("thumbs", "flaky.pgm").exists)
    report.expect("the job that hung was ended and failed", lambda: workers.logged("job.failed", "JobTimeout"))

    report.expect("the delayed mail was sent", sent_at)
    report.expect("the mail was not sent before it was due", lambda: sent_at() >= due_at, 0)


def sent_at() -> float:
    """When the mail was written; 0 if not yet."""
    return max((mail.stat().st_mtime for mail in Path("outbox").glob("*.eml")), default=0.0)


def stop(gallery: Any, pictures: Any, workers: Workers, report: Report) -> None:
    say("TERM while a job runs: the worker finishes it and takes no other.")
    gallery.fetch.dispatch(pictures.url("slow.pgm"))
    waited(lambda: "slow.pgm" in pictures.asked, PATIENCE)
    code = workers.stop()
    report.expect("the job that ran at TERM was finished", Path("pictures", "slow.pgm").exists, 0)
    report.expect("the job it sent waits in the queue", lambda: gallery.app.queue("gallery").size() == 1, 0)
    report.expect(f"qd work ended with exit code {code} (0: stopped by a signal)", lambda: code == 0, 0)
    report.expect("no process of it was left", lambda: not workers.left(), 1)


if __name__ == "__main__":
    sys.exit(main())
