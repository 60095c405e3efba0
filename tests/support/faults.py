"""`qd` with faults injected into its own process. Production code knows nothing of it: these programs change qd and then
run its command line; every child is forked from them.

    python -m tests.support.faults failpoint POINT:ACTION FILE work ...    workers fail at one point in the life of a job
    python -m tests.support.faults line FILE work ...         a worker is killed at the n-th line it runs for a job
    python -m tests.support.faults each-line FILE work ...    a worker is killed at each line, once for each
    python -m tests.support.faults each-line FILE failed ...  the same for the command, in forks, until one finishes
    python -m tests.support.faults host KIND work ...         qd appears to run on another host

`failpoint` fails when FILE exists, and removes it: once for all workers. FILE.hit then contains the monotonic second.

    pop_sent     the reserving call is on its way          pop_replied  its answer was read, nothing is noted yet
    noted        the scoreboard shows the current job      fire         right before the job's function
    fired        right after it, nothing answered          ack_sent     the ack is on its way (with the next reserve)
    ack_replied  its answer was read

    kill9        SIGKILL to the worker itself              rst          its connection to Redis is reset

`line`: FILE contains n. The worker that begins to count removes it, so it happens once. FILE.hit names the line. A worker
that waits for a job before reaching n writes the number of lines it ran into FILE.all and is left alone.

`each-line`: FILE lists the lines of qd at which a process was killed. LINES_OF in the environment names the source files;
LINES_EACH=3 tries every third line only. Workers are killed between the reservation of a job and the next turn's answer;
with LINES_OF=emitters while they collect or send events of jobs.

`host`: KIND is `name` (another host name), `boot` (same name, other boot) or `ns` (another container, same name and kernel).
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import qd
from qd.drivers.redis.connection import RedisConnection
from qd.drivers.redis.queue import RedisQueue
from qd.drivers.types import LaneTurn
from qd.process import proc
from qd.worker.attempt import Attempts
from qd.worker.lanes import LaneRun
from qd.worker.worker import BaseWorker, Worker
from tests.support.processes import Procs
from tests.support.project import SOURCE, Project
from tests.support.waiting import eventually

POINTS = ("pop_sent", "pop_replied", "noted", "fire", "fired", "ack_sent", "ack_replied")
ACTIONS = ("kill9", "rst")
AF_UNSPEC = bytes(16)


class Failpoint:
    """In the program: the fault, which happens while the file exists."""

    def __init__(self, point: str, action: str, file: Path) -> None:
        self.point, self.action, self.file = point, action, file
        self.wire: Any = None  # the worker's connection, once it has made a turn
        self.turning = ""  # ack or pop while the call of a turn is running

    def at(self, point: str) -> None:
        if point != self.point:
            return
        try:
            self.file.unlink()
        except FileNotFoundError:
            return
        file = self.file.with_suffix(".new")
        file.write_text(repr(time.monotonic()))
        file.rename(self.file.with_suffix(".hit"))
        if self.action == "kill9":
            os.kill(os.getpid(), signal.SIGKILL)
        reset(self.wire)

    def install(self) -> None:
        self._around(RedisQueue, "turn", self._turn)
        self._around(RedisQueue, "turn_lanes", self._turn_lanes)
        self._around(RedisConnection, "send", self._send)
        self._around(BaseWorker, "_begin", partial(self._behind, "noted"))
        self._around(LaneRun, "take", partial(self._behind, "noted"))
        self._around(Attempts, "_fire", partial(self._before, "fire"))
        self._around(Attempts, "perform", partial(self._behind, "fired"))

    def _around(self, owner: type, name: str, body: Callable[..., Any]) -> None:
        """Replace a method by `body`, which gets the method as its first argument."""
        whole = getattr(owner, name)
        setattr(owner, name, lambda *args: body(whole, *args))

    def _before(self, point: str, body: Callable[..., Any], *args: Any) -> Any:
        self.at(point)
        return body(*args)

    def _behind(self, point: str, body: Callable[..., Any], *args: Any) -> Any:
        result = body(*args)
        self.at(point)
        return result

    def _turn(self, turn: Callable[..., Any], queue: RedisQueue, done: Any, *queues: Any) -> Any:
        self.wire, self.turning = queue.connection, "pop" if done is None else "ack"
        reply = turn(queue, done, *queues)
        if done is not None or reply.reserved is not None:
            self.at("pop_replied" if done is None else "ack_replied")
        return reply

    def _turn_lanes(self, turn_lanes: Callable[..., Any], queue: RedisQueue, turn: LaneTurn) -> Any:
        self.wire, self.turning = queue.connection, "ack" if turn.done else "pop"
        reply = turn_lanes(queue, turn)
        if turn.done or reply.jobs:
            self.at("ack_replied" if turn.done else "pop_replied")
        return reply

    def _send(self, send: Callable[..., None], wire: RedisConnection, command: bytes) -> None:
        send(wire, command)
        if wire is self.wire and self.turning:
            kind, self.turning = self.turning, ""
            self.at(f"{kind}_sent")


def reset(wire: Any) -> None:
    """Reset the connection as a network would: the peer gets an RST, and this end notices at its next call."""
    sock = wire._sock
    assert sock is not None
    assert ctypes.CDLL(None).connect(sock.fileno(), AF_UNSPEC, len(AF_UNSPEC)) == 0  # works for TCP only


class Failing:
    """In the test: `qd work` of `shop` with one failpoint, which is armed once per run."""

    def __init__(self, shop: Project, point: str, action: str) -> None:
        self.shop, self.what = shop, f"{point}:{action}"
        self.file = shop.run / "failpoint"

    def work(self, *arguments: str) -> Procs:
        command = [
            sys.executable,
            "-m",
            "tests.support.faults",
            "failpoint",
            self.what,
            str(self.file),
            "work",
            *arguments,
        ]
        path = os.pathsep.join([self.shop.env()["PYTHONPATH"], str(SOURCE.parent)])
        procs = Procs(command, cwd=self.shop.root, env=self.shop.env(PYTHONPATH=path))
        self.shop.started.append(procs)
        procs.wait_line("master.ready")
        return procs

    def arm(self) -> None:
        self.file.touch()

    def hit(self) -> float:
        """Wait for the fault, and return its monotonic second."""
        file = self.file.with_suffix(".hit")
        eventually(file.exists, what=f"{self.what} to be reached")
        at = float(file.read_text())
        file.unlink()
        return at


HOME = str(SOURCE / "qd") + os.sep


class LineCounter:
    """In the program: counts lines from the first job begun while FILE exists until the worker waits."""

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
        if not frame.f_code.co_filename.startswith(HOME):
            return None
        if event == "line" and self.last:
            self.count += 1
            if self.count == self.last:
                self._tell(".hit", f"{frame.f_code.co_filename.removeprefix(HOME)}:{frame.f_lineno}")
                os.kill(os.getpid(), signal.SIGKILL)
        return self._trace

    def _tell(self, suffix: str, text: str) -> None:
        file = self.file.with_suffix(".new")
        file.write_text(text)
        file.rename(self.file.with_suffix(suffix))


class LineKill:
    """In the test: `qd work` of a project with one worker, killed at the given line."""

    def __init__(self, shop: Project) -> None:
        self.shop, self.file = shop, shop.run / "line"

    def work(self, *arguments: str) -> Procs:
        command = [sys.executable, "-m", "tests.support.faults", "line", str(self.file), "work", "-w", "1", *arguments]
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
        """Wait for ("hit", the line), or ("all", the number of lines)."""

        def reached() -> tuple[str, str] | None:
            for suffix in ("hit", "all"):
                path = self.file.with_suffix("." + suffix)
                if path.exists():
                    text = path.read_text()
                    path.unlink()
                    return suffix, text
            return None

        return eventually(reached, 20, what="the line to be reached")


HOME = str(Path(qd.__file__).parent) + os.sep
RECORDS = "drivers/keyspace/records.py"
OF_RETRY = "cli/failed.py store/failed.py retried.py drivers/keyspace/base.py"


class Killer:
    """Kills this process at the first line below `places` where no other process was killed."""

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
            with self.file.open("a") as lines:
                lines.write(place + "\n")
            os.kill(os.getpid(), signal.SIGKILL)
        return self

    def watch(self) -> None:
        """Start tracing, also in the functions that are already running."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            frame.f_trace = self
            frame = frame.f_back
        sys.settrace(self)


def in_workers(file: Path) -> None:
    """Install it in this program, from the reply that contains a job to the next reply. The first job of each worker is
    spared, because a master delays the replacement of workers that die before they have finished a job."""
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


def in_emitters(file: Path) -> None:
    """Install it in this program, in the calls that collect and send the events of jobs, in any thread. The first job of
    each worker is spared."""
    from qd.worker.emitter import Emitter

    ended = list[int]()

    class Sparing(Killer):
        def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
            if not frame.f_code.co_filename.startswith(self.places):
                return None
            return super().__call__(frame, event, arg) if ended == [os.getpid()] else self

    def traced(whole: Callable[..., Any], *args: Any) -> Any:
        before = sys.gettrace()
        sys.settrace(Sparing(file, ("worker/emitter.py", RECORDS)))
        try:
            return whole(*args)
        finally:
            sys.settrace(before)
            if whole.__name__ == "end":
                ended[:] = [os.getpid()]

    for name in ("add", "_serve", "end"):
        method = getattr(Emitter, name)
        setattr(Emitter, name, lambda *args, method=method: traced(method, *args))


def in_forks(file: Path) -> int:
    """Run the command in forks until one finishes. Returns its exit code."""
    from qd.cli import failed, main

    for name in (
        "qd.cli.context",
        "qd.drivers.redis.connection",
        "qd.store.failed_jobs_table",
        "qd.worker.boot",
        "sqlalchemy",
    ):
        import_module(name)  # once instead of in each fork

    failed.CHUNK = 10  # so that many steps remain when it is killed
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


def work_on_another_host(shop: Project, *arguments: str, by: str = "name") -> Procs:
    """Start `qd work` of the shop on another host and wait until it is ready. Both hosts share the files."""
    path = os.pathsep.join([shop.env()["PYTHONPATH"], str(SOURCE.parent)])
    command = [sys.executable, "-m", "tests.support.faults", "host", by, "work", *arguments]
    work = Procs(command, cwd=shop.root, env=shop.env(PYTHONPATH=path))
    shop.started.append(work)
    work.wait_line("master.ready")
    return work


def appear_elsewhere(kind: str) -> None:
    """Change what distinguishes hosts, in this process."""
    if kind == "name":
        socket.gethostname = lambda: "elsewhere"
    elif kind == "boot":
        setattr(proc, "boot_id", lambda: "another-boot")  # noqa: B010
    else:
        setattr(proc, "pid_namespace", lambda: "pid:[1]")  # noqa: B010


if __name__ == "__main__":
    fault, *rest = sys.argv[1:]
    if fault == "failpoint":
        where, path, *rest = rest
        point, action = where.split(":")
        Failpoint(point, action, Path(path)).install()
    elif fault == "line":
        path, *rest = rest
        LineCounter(Path(path)).install()
    elif fault == "each-line":
        path, *rest = rest
        sys.argv = ["qd", *rest]
        if rest[0] != "work":
            sys.exit(in_forks(Path(path)))
        (in_emitters if os.environ.get("LINES_OF") == "emitters" else in_workers)(Path(path))
    else:
        kind, *rest = rest
        appear_elsewhere(kind)
    sys.argv = ["qd", *rest]
    runpy.run_module("qd", run_name="__main__")
