"""`qd` that is killed at each line it comes to, once for each: kill -9 by its own hand, so that nothing can be tidied up.

    python -m tests.support.lines FILE work ...      its workers, from the reservation of a job to the next turn's answer
    python -m tests.support.lines FILE failed ...    the command, in one fork after the other until one comes through

FILE has a line for each line of qd at which one was killed; LINES_OF in the environment says of which files, and
LINES_EACH=3 that a third of them will do. Production
code knows nothing of it.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import qd

HOME = str(Path(qd.__file__).parent) + os.sep
OF_RETRY = "cli/failed/ store/failed.py retried.py drivers/keyspace/base.py"


class Killer:
    """Ends this process at the first line below `places` that no other process was ended at."""

    def __init__(self, file: Path, places: tuple[str, ...] = ("",)) -> None:
        self.file = file
        self.places = tuple([HOME + place for place in places])
        self.each = int(os.environ.get("LINES_EACH", "1"))
        self.seen = set(file.read_text().splitlines()) if file.exists() else set()

    def __call__(self, frame: FrameType, event: str, _arg: Any) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(self.places):
            return None
        place = f"{name.removeprefix(HOME)}:{frame.f_lineno}"
        if event == "line" and frame.f_lineno % self.each == 0 and place not in self.seen:
            with self.file.open("a") as told:
                told.write(place + "\n")
            os.kill(os.getpid(), signal.SIGKILL)
        return self

    def watch(self) -> None:
        """From now on, also in the functions that are running already."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            frame.f_trace = self
            frame = frame.f_back
        sys.settrace(self)


def in_workers(file: Path) -> None:
    """Install it in this program: from the reply that brings a job to the one after it. The first job of each worker is
    left alone: a master waits longer and longer for workers that end before they have done anything."""
    from qd.drivers.redis.queue import RedisQueue

    whole: Callable[..., Any] = RedisQueue.turn
    jobs = 0

    def turn(*args: Any) -> Any:
        nonlocal jobs
        reply = whole(*args)
        sys.settrace(None)
        jobs += reply.reserved is not None
        if jobs > 1:
            Killer(file).watch()
        return reply

    setattr(RedisQueue, "turn", turn)  # noqa: B010


def in_forks(file: Path) -> int:
    """Run the command until it comes through. Its exit code."""
    from qd.cli import main
    from qd.cli.failed import retry

    for name in (
        "qd.cli.context",
        "qd.drivers.redis.connection",
        "qd.store.failed_jobs_table",
        "qd.worker.template",
        "sqlalchemy",
    ):
        import_module(name)  # once, and not in each fork

    retry.CHUNK = 10  # so that many steps are left when it is killed
    while True:
        child = os.fork()
        if not child:
            try:
                Killer(file, tuple(os.environ.get("LINES_OF", OF_RETRY).split())).watch()
                main.main()
            except SystemExit as left:
                sys.stdout.flush()
                os._exit(left.code if isinstance(left.code, int) else 0)
            finally:
                os._exit(99)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code != -signal.SIGKILL:
            return code


if __name__ == "__main__":
    file = Path(sys.argv[1])
    sys.argv = ["qd", *sys.argv[2:]]
    if sys.argv[1] != "work":
        sys.exit(in_forks(file))
    in_workers(file)
    runpy.run_module("qd", run_name="__main__")
