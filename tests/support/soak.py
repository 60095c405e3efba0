"""The soak test: supervised masters, producers, and a seeded random choice of faults all the time.

One loop, with a turn every 250 ms: read new lines of jobs and logs, restart what ended, choose faults, take a sample. Every
event is written to a file of JSON lines when it happens.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from qd.payload.build import make
from tests.support import tally
from tests.support.ledger import number_in
from tests.support.payloads import push_raw
from tests.support.processes import QD, Procs, titled
from tests.support.project import Project
from tests.support.redis import Seen
from tests.support.servers.redis import Server
from tests.support.tally import Ended, Tally
from tests.support.waiting import eventually

TICK = 0.25
WORKERS = 5
# Probability of each fault in each turn, independent of the others.
CHANCES = {
    "restart Redis": 0.02,
    "kill a child": 0.08,
    "kill a master": 0.01,
    "poison": 0.05,
    "stop for a second": 0.01,
}
TAKE_FAILED = """
local found = redis.call('HGETALL', KEYS[1])
redis.call('DEL', KEYS[1], KEYS[2])
return found
"""
# Log lines that are copied to the file.
ODD = re.compile(r"lease[._]|silent|reload_refused|boot_failed|dropped|not_told| lost ")
EVENT = re.compile(r"^\S+ \S+ +[A-Z]+ +\S+ +(?P<word>[a-z]+\.[a-z_]+)\b")


class Seat:
    """One master that should always run, and the log of all its restarts."""

    def __init__(self, name: str, path: str = "") -> None:
        """path: the folder to import qd from; empty for the current code."""
        self.name, self.path = name, path
        self.work: Procs | None = None
        self.read = 0  # number of log lines read
        self.expected = False  # the test killed it
        self.began = 0.0  # monotonic seconds of its start
        self.no_template = False  # the test killed the first import of the app: the master exits with 3


class Soak:
    def __init__(
        self, project: Project, server: Server, out: Path, *, seed: int, seconds: float, previous: str
    ) -> None:
        self.project, self.server, self.client = project, server, server.client()
        self.draw, self.seconds, self.out = random.Random(seed), seconds, out.open("w")
        self.seats = [Seat("new"), Seat("old", previous)]
        self.tally = Tally(project.root)
        self.done: Counter[str] = Counter()  # faults
        self.events: Counter[str] = Counter()  # events in the log
        self.samples: list[dict[str, Any]] = []
        self.sizes: list[tuple[float, dict[str, int]]] = []
        self.odd: list[str] = []  # what should not have happened
        self.stopped: list[tuple[float, psutil.Process]] = []
        self.producers: list[subprocess.Popen[bytes]] = []
        self.began = time.monotonic()

    def tell(self, what: str, **more: Any) -> None:
        self.out.write(json.dumps({"at": round(time.monotonic() - self.began, 3), "what": what, **more}) + "\n")

    # -- the run

    def run(self) -> None:
        for number, seat in enumerate(self.seats):
            self.start(seat)
            self._produce(number)
        looked = 0.0
        while (left := self.began + self.seconds - time.monotonic()) > 0:
            self.turn(spare_new=left < self.seconds / 2)
            if time.monotonic() - looked > 5:
                looked = time.monotonic()
                self.sample()
            time.sleep(TICK)

    def turn(self, *, spare_new: bool) -> None:
        self.look_after()
        for what, chance in CHANCES.items():
            if self.draw.random() < chance:
                self.done[what] += 1
                getattr(self, "_" + what.replace(" ", "_").lower())(*([spare_new] if what == "kill a master" else []))

    def look_after(self) -> None:
        self.tally.read()
        for seat in self.seats:
            self._read_log(seat)
            if seat.work is not None and seat.work.process.poll() is not None:
                if not seat.expected and not (seat.no_template and seat.work.process.returncode == 3):
                    self.odd.append(f"{seat.name} master ended by itself with {seat.work.process.returncode}")
                self.start(seat)
        for at, process in list(self.stopped):
            if time.monotonic() > at:
                self.stopped.remove((at, process))
                with suppress(psutil.NoSuchProcess):
                    process.resume()
        self._take_failed()

    def start(self, seat: Seat) -> None:
        path = os.pathsep.join(filter(None, [seat.path, os.environ.get("PYTHONPATH")]))
        env = {"PYTHONPATH": path} if seat.path else {}
        self._read_log(seat)
        seat.work = self.project.work("-w", str(WORKERS), "--log-level", "warning", **env)
        seat.read, seat.expected, seat.no_template, seat.began = 0, False, False, time.monotonic()
        self.tell("master started", seat=seat.name, pid=seat.work.pid)

    def _produce(self, number: int) -> None:
        env = self.project.env()
        script = self.project.root / "producer.py"
        arguments = [QD[0], str(script), str(number), str(self.draw.randrange(2**31)), "15"]
        self.producers.append(subprocess.Popen(arguments, cwd=self.project.root, env=env, stdin=subprocess.DEVNULL))

    # -- the end

    def finish(self, seconds: float = 180.0) -> None:
        """Stop injecting faults and sending jobs, wait for all jobs to end, and stop the masters cleanly."""
        (self.project.root / "enough").touch()
        for producer in self.producers:
            assert producer.wait(30) == 0
        for _, process in self.stopped:
            with suppress(psutil.NoSuchProcess):
                process.resume()
        self.stopped.clear()
        self.tell("the end begins")
        eventually(self._quiet, seconds, every=0.5, what="the end of every job")
        for seat in self.seats:
            assert seat.work is not None
            seat.work.stop(seconds=30)
            self._read_log(seat)
        self.tally.read()

    def _quiet(self) -> bool:
        self.look_after()
        return not self.standing() and not self.tally.open(Counter())

    def standing(self) -> Counter[int]:
        return Counter(number_in(raw) for raw in Seen(self.client).everywhere("default").elements())

    def close(self) -> None:
        for producer in self.producers:
            producer.kill()
            producer.wait()
        self.client.close()
        self.out.close()

    # -- faults

    def _any_seat(self) -> Seat:
        return self.draw.choice(self.seats)

    def _kill(self, process: psutil.Process, why: str) -> None:
        title = titled(process)
        self.tally.ended.append(Ended(process.pid, time.monotonic(), why))
        with suppress(psutil.NoSuchProcess):
            process.kill()
        self.tell(why, pid=process.pid, title=title)

    def _kill_a_child(self) -> None:
        seat = self._any_seat()
        assert seat.work is not None
        if children := seat.work.children("qd: "):
            child = self.draw.choice(sorted(children, key=lambda child: child.pid))
            young = time.monotonic() - seat.began < 10
            seat.no_template |= young and "worker" not in titled(child) and "keeper" not in titled(child)
            self._kill(child, "kill of its process")

    def _kill_a_master(self, spare_new: bool) -> None:
        seat = self.seats[1] if spare_new else self._any_seat()
        assert seat.work is not None
        seat.expected = True
        with suppress(psutil.NoSuchProcess):
            self._kill(psutil.Process(seat.work.pid), "kill of its master")
        seat.work.process.wait(10)

    def _restart_redis(self) -> None:
        self.tell("Redis killed")
        self.server.kill()
        time.sleep(self.draw.uniform(0, 1))
        self.server.start()
        self.client.close()  # it reconnects on next use
        self.tell("Redis back")

    def _poison(self) -> None:
        n = 10 * self.done["poison"] + 9
        raw = make("poison", json.dumps({"n": n}).encode(), created_at=int(time.time()))
        self.tally.sent(n, "poison", json.loads(raw)["id"])
        push_raw(self.client, raw)

    def _stop_for_a_second(self) -> None:
        seat = self._any_seat()
        assert seat.work is not None
        processes = sorted(seat.work.session(), key=lambda process: process.pid)
        if processes:
            process = self.draw.choice(processes)
            self.tell("stopped for a second", pid=process.pid, title=titled(process))
            with suppress(psutil.NoSuchProcess):
                process.suspend()
            self.stopped.append((time.monotonic() + 1, process))

    # -- looking

    def _take_failed(self) -> None:
        """Read failed jobs and remove them, as an operator would."""
        for key, value in self._failed():
            n = number_in(value.partition(b"\n")[2])
            self.tally.failed[n] += 1
            if self.tally.kinds.get(n) not in ("fails", "poison", None):
                self.tell(
                    "failed",
                    n=n,
                    kind=self.tally.kinds[n],
                    id=key.decode(),
                    record=json.loads(value.partition(b"\n")[0]),
                )

    def _failed(self) -> list[tuple[bytes, bytes]]:
        flat = self.client.call("EVAL", TAKE_FAILED, 2, "queues:default:failed", "queues:default:failed_at")
        return list(zip(flat[::2], flat[1::2], strict=True))

    def _read_log(self, seat: Seat) -> None:
        if seat.work is None:
            return
        lines = seat.work.lines
        while seat.read < len(lines):
            line = lines[seat.read]
            seat.read += 1
            if found := EVENT.match(line):
                self.events[found["word"]] += 1
            if ODD.search(line):
                self.tell("line", seat=seat.name, line=line)
            if "lease_lost" in line or "lease.lost" in line:
                self._lease_lost(line)

    def _lease_lost(self, line: str) -> None:
        named = re.search(r"\bid=(\S+)", line)
        pid = re.search(r"\bpid=(\d+)", line)
        who = -self.tally.numbers.get(named[1], -1) if named else int(pid[1]) if pid else 0
        self.tally.leases.append((who, time.monotonic()))

    def sample(self) -> None:
        for seat in self.seats:
            assert seat.work is not None
            found = [{"seat": seat.name, **each} for each in tally.look(seat.work)]
            self.samples += found
            for each in found:
                self.tell("process", **each)
        found_sizes = tally.sizes(self.client)
        self.sizes.append((time.monotonic() - self.began, found_sizes))
        self.tell("redis", **found_sizes)
        self.out.flush()


JOBS = """
import ctypes, signal

def mark(kind, n):
    line = f"{kind} {n} {current_job().attempt} {os.getpid()} {os.getppid()} {time.monotonic_ns()}\\n"
    fd = os.open("ledger", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, line.encode())
    os.close(fd)

@app.job("plain", tries=5)
def plain(n: int, seconds: float) -> None:
    mark("S", n)
    time.sleep(seconds)
    mark("E", n)

@app.job("fails", tries=2, backoff=0.2)
def fails(n: int) -> None:
    mark("S", n)
    raise ValueError("this one never works")

@app.job("shaky", tries=10, backoff=0.2)
def shaky(n: int) -> None:
    mark("S", n)
    if current_job().attempt < 3:
        raise ValueError("this one works the third time")
    mark("E", n)

@app.job("released", tries=10)
def released(n: int) -> None:
    mark("S", n)
    if current_job().attempt == 1:
        current_job().release(0.5)
    mark("E", n)

@app.job("stuck", tries=10, timeout=1)
def stuck(n: int, in_c: bool) -> None:
    mark("S", n)
    if current_job().attempt == 1 and in_c:
        ctypes.PyDLL(None).sleep(30)
    elif current_job().attempt == 1:
        time.sleep(30)
    mark("E", n)

@app.job("saves", tries=10)
def saves(n: int) -> None:
    mark("S", n)
    job = current_job()
    if hasattr(job, "checkpoint"):
        for step in range((job.saved or {"step": 0})["step"], 5):
            time.sleep(0.1)
            job.checkpoint({"step": step + 1})
    mark("E", n)

@app.job("poison")
def poison(n: int) -> None:
    mark("S", n)
    os.kill(os.getpid(), signal.SIGKILL)
"""

# sys.argv: the first number, the seed, jobs per second. Ends when a file `enough` exists.
PRODUCER = """
import os, random, sys, time
import jobs
from qd import QdError

first, seed, rate = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
draw = random.Random(seed)
log = open(f"pushed.{first}", "w", buffering=1)
began, sent = time.monotonic(), 0

def send(n):
    kind = draw.choices(["plain", "long", "fails", "shaky", "released", "stuck", "saves", "delayed"],
                        [60, 4, 4, 6, 8, 2, 4, 12])[0]
    if kind in ("plain", "long", "delayed"):
        seconds = draw.uniform(1, 3) if kind == "long" else draw.uniform(0, 0.1)
        job = jobs.plain.using(delay=draw.uniform(0.05, 5)) if kind == "delayed" else jobs.plain
        call = job.bind(n, round(seconds, 3))
    elif kind == "stuck":
        call = jobs.stuck.bind(n, draw.random() < 0.5)
    else:
        call = getattr(jobs, kind).bind(n)
    try:
        (handle,) = jobs.app.dispatch(call)
        log.write(f"P {n} {kind} {handle.id}\\n")
    except QdError as error:
        log.write(f"U {n} {kind} {type(error).__name__}\\n")

while not os.path.exists("enough"):
    while sent < (time.monotonic() - began) * rate:
        send(first + 10 * sent)
        sent += 1
    time.sleep(0.02)
"""
