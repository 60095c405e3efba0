"""`qd` whose worker is killed (SIGKILL) at one line of qd's own code: the n-th that it runs from the moment it begins a job.

    python -m tests.support.linekill FILE work ...

FILE says n and is taken away by the worker that begins to count, so it happens once; FILE.hit says at which line. A worker
that waits for a job before it came so far writes the number of lines it ran into FILE.all instead, and is left alone.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from qd.worker.worker import Worker
from tests.support.clock import eventually
from tests.support.procs import Procs
from tests.support.project import SOURCE, Project

OURS = str(SOURCE / "qd") + os.sep


class Counter:
    """In the program. Lines count from the first job that is begun while FILE is there until the worker waits."""

    def __init__(self, file: Path) -> None:
        self.file, self.count, self.last = file, 0, 0

    def install(self) -> None:
        do, wait = Worker._do, Worker._wait
        changed: Any = Worker
        changed._do = lambda worker, job: self._begin(do, worker, job)
        changed._wait = lambda worker: self._end(wait, worker)

    def _begin(self, do: Callable[..., Any], worker: Any, job: Any) -> Any:
        if not self.last and self.file.exists():
            self.last = int(self.file.read_text())
            self.file.unlink()
            loop = sys._getframe(2)  # the worker's run(), which began before
            sys.settrace(self._trace)
            loop.f_trace = self._trace
        return do(worker, job)

    def _end(self, wait: Callable[..., Any], worker: Any) -> Any:
        if self.last:
            sys.settrace(None)
            self._tell(".all", str(self.count))
            self.last = self.count = 0
        return wait(worker)

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        if event == "line" and self.last:
            self.count += 1
            if self.count == self.last:
                self._tell(".hit", f"{frame.f_code.co_filename.removeprefix(OURS)}:{frame.f_lineno}")
                os.kill(os.getpid(), signal.SIGKILL)
        return self._trace

    def _tell(self, suffix: str, text: str) -> None:
        told = self.file.with_suffix(".new")
        told.write_text(text)
        told.rename(self.file.with_suffix(suffix))


class LineKill:
    """In the test: `qd work` of a project with one worker, killed at the line that is asked for."""

    def __init__(self, shop: Project) -> None:
        self.shop, self.file = shop, shop.run / "line"

    def work(self, *arguments: str) -> Procs:
        command = [sys.executable, "-m", "tests.support.linekill", str(self.file), "work", "-w", "1", *arguments]
        path = os.pathsep.join([self.shop.env()["PYTHONPATH"], str(SOURCE.parent)])
        procs = Procs(command, cwd=self.shop.root, env=self.shop.env(PYTHONPATH=path))
        self.shop.started.append(procs)
        procs.wait_line("master.ready")
        return procs

    def arm(self, number: int) -> None:
        new = self.file.with_suffix(".arm")
        new.write_text(str(number))
        new.rename(self.file)

    def met(self) -> tuple[str, str]:
        """("hit", the line), or ("all", how many there were), waited for."""

        def told() -> tuple[str, str] | None:
            for suffix in ("hit", "all"):
                path = self.file.with_suffix("." + suffix)
                if path.exists():
                    text = path.read_text()
                    path.unlink()
                    return suffix, text
            return None

        return eventually(told, 20, what="the line to be reached")


if __name__ == "__main__":
    path, *rest = sys.argv[1:]
    Counter(Path(path)).install()
    sys.argv = ["qd", *rest]
    runpy.run_module("qd", run_name="__main__")
