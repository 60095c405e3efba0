"""`qd` whose workers fail at one point in the life of a job. Production code knows nothing of it: this program changes qd
in its own process and then runs the command line; every child is forked from it.

    python -m tests.support.failpoints POINT:ACTION FILE work ...

    pop_sent     the reserving call is on its way          pop_replied  its answer was read, nothing is noted yet
    noted        the scoreboard says what is in hand       fire         right before the job's function
    fired        right after it, nothing answered          ack_sent     the ack is on its way (with the next reserve)
    ack_replied  its answer was read

    kill9        SIGKILL to the worker itself              rst          its connection to Redis is reset

It fails when FILE is there, and takes it away: once for all workers. In its place FILE.hit says the monotonic second.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from qd.drivers.redis.connection import RedisConnection
from qd.drivers.redis.queue import RedisQueue
from qd.worker.attempt import Attempts
from qd.worker.worker import Worker
from tests.support.clock import eventually
from tests.support.procs import Procs
from tests.support.project import SOURCE, Project

POINTS = ("pop_sent", "pop_replied", "noted", "fire", "fired", "ack_sent", "ack_replied")
ACTIONS = ("kill9", "rst")
AF_UNSPEC = bytes(16)


class Failpoint:
    """In the program: what happens where, as long as the file is there."""

    def __init__(self, point: str, action: str, file: Path) -> None:
        self.point, self.action, self.file = point, action, file
        self.wire: Any = None  # the worker's own, once it has made a turn
        self.turning = ""  # ack or pop while the call of a turn is under way

    def at(self, point: str) -> None:
        if point != self.point:
            return
        try:
            self.file.unlink()
        except FileNotFoundError:
            return
        told = self.file.with_suffix(".new")
        told.write_text(repr(time.monotonic()))
        told.rename(self.file.with_suffix(".hit"))
        if self.action == "kill9":
            os.kill(os.getpid(), signal.SIGKILL)
        reset(self.wire)

    def install(self) -> None:
        self._around(RedisQueue, "turn", self._turn)
        self._around(RedisConnection, "send", self._send)
        self._around(Worker, "_begin", partial(self._behind, "noted"))
        self._around(Attempts, "_fire", partial(self._before, "fire"))
        self._around(Attempts, "run", partial(self._behind, "fired"))

    def _around(self, owner: type, name: str, body: Callable[..., Any]) -> None:
        """`body` in place of a method: called with the method first."""
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

    def _send(self, send: Callable[..., None], wire: RedisConnection, command: bytes) -> None:
        send(wire, command)
        if wire is self.wire and self.turning:
            kind, self.turning = self.turning, ""
            self.at(f"{kind}_sent")


def reset(wire: Any) -> None:
    """As a network would: the peer gets an RST, and this end finds out at its next call."""
    sock = wire._sock
    assert sock is not None
    assert ctypes.CDLL(None).connect(sock.fileno(), AF_UNSPEC, len(AF_UNSPEC)) == 0  # only TCP can be reset so


class Failing:
    """In the test: `qd work` of `shop` with one failpoint, armed once for each run."""

    def __init__(self, shop: Project, point: str, action: str) -> None:
        self.shop, self.what = shop, f"{point}:{action}"
        self.file = shop.run / "failpoint"

    def work(self, *arguments: str) -> Procs:
        command = [sys.executable, "-m", "tests.support.failpoints", self.what, str(self.file), "work", *arguments]
        path = os.pathsep.join([self.shop.env()["PYTHONPATH"], str(SOURCE.parent)])
        procs = Procs(command, cwd=self.shop.root, env=self.shop.env(PYTHONPATH=path))
        self.shop.started.append(procs)
        procs.wait_line("master.ready")
        return procs

    def arm(self) -> None:
        self.file.touch()

    def hit(self) -> float:
        """The monotonic second at which it failed, waited for."""
        told = self.file.with_suffix(".hit")
        eventually(told.exists, what=f"{self.what} to be reached")
        at = float(told.read_text())
        told.unlink()
        return at


if __name__ == "__main__":
    what, path, *rest = sys.argv[1:]
    point, action = what.split(":")
    Failpoint(point, action, Path(path)).install()
    sys.argv = ["qd", *rest]
    runpy.run_module("qd", run_name="__main__")
