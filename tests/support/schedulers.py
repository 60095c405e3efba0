"""A standalone scheduler that tests kill: `python -m tests.support.schedulers URL SECONDS COUNT KIND`, used by `Several`.

COUNT entries send one job each to their own queue, and as many run a function, all of them every SECONDS. Payloads and the
lists `ran:NAME` contain the tick, so that tests can check each one. KIND "early": only jobs, without the tick.

Also a redis-server whose clock is set by the test, with libfaketime.
"""

from __future__ import annotations

import os
import random
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from qd import Qd
from qd.config.load import load
from qd.log import Log
from qd.schedule.entry import CallTask, Entry, Filter, JobTask
from qd.schedule.timing import Every
from qd.scheduler.scheduler import Scheduler
from tests.support.programs import missing
from tests.support.redis import Client
from tests.support.servers.redis import Server, die_with_parent
from tests.support.waiting import eventually

FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
ROOT = Path(__file__).resolve().parents[2]


class Ticks:
    """The tick that is being decided, as passed to its filter."""

    def __init__(self) -> None:
        self.tick = 0.0

    def passes(self, tick: float) -> bool:
        self.tick = tick
        return True


def app_of(url: str, seconds: float, count: int) -> tuple[Qd, list[Entry]]:
    app, ticks = Qd(), Ticks()
    app.settings = load(code={"url": url}, environ={})
    knows = (Filter(ticks.passes, ""),)

    @app.job("tick")
    def tick(entry: int) -> None: ...

    @app.payload_hook
    def add_tick(connection: str, queue: str, payload: Mapping[str, Any]) -> Mapping[str, object]:
        return {"tick": ticks.tick}

    def ran(name: str) -> None:
        with Client(url.removeprefix("unix://")) as redis:
            redis.call("RPUSH", f"ran:{name}", ticks.tick)

    entries = list[Entry]()
    for n in range(count):
        job, call = tick.bind(n).using(queue=f"q{n}"), CallTask(lambda n=n: ran(f"f{n}"))  # type: ignore[misc]
        job._origin = None
        entries.append(Entry(f"j{n}", JobTask(job), Every(seconds), filters=knows))
        entries.append(Entry(f"f{n}", call, Every(seconds), filters=knows))
    return app, entries


def early_app_of(url: str, seconds: float, count: int) -> tuple[Qd, list[Entry]]:
    """Entries of jobs that are built without running code of the app."""
    app = Qd()
    app.settings = load(code={"url": url}, environ={})

    @app.job("tick")
    def tick(entry: int) -> None: ...

    entries = list[Entry]()
    for n in range(count):
        job = tick.bind(n).using(queue=f"q{n}")
        job._origin = None
        entries.append(Entry(f"j{n}", JobTask(job), Every(seconds)))
    return app, entries


def main(url: str, seconds: str, count: str, kind: str) -> None:
    app, entries = (early_app_of if kind == "early" else app_of)(url, float(seconds), int(count))
    scheduler = Scheduler(app, app.settings, Log("scheduler"), entries=entries, host=str(os.getpid()))
    poll = select.poll()  # time.sleep() does not work under libfaketime
    while True:
        poll.poll(1000 * min(scheduler.turn(), 0.02 if scheduler.runs.alive else 1.0))


class Several:
    """Several schedulers, each with its own clock."""

    def __init__(
        self, url: str, seconds: float, count: int, skews: Sequence[float], log: Path, kind: str = "mixed"
    ) -> None:
        self._words = [sys.executable, "-m", "tests.support.schedulers", url, str(seconds), str(count), kind]
        self._skews, self._log = skews, log.open("ab")
        self._living = [self._start(skew) for skew in skews]
        self.killed = 0

    def _start(self, skew: float) -> subprocess.Popen[bytes]:
        fake = {"LD_PRELOAD": str(FAKETIME), "FAKETIME": f"{skew:+g}s", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        path = os.pathsep.join([str(ROOT), str(ROOT / "daemon")])
        env = {**os.environ, **fake, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.Popen(
            self._words, cwd=ROOT, env=env, stdout=self._log, stderr=self._log, preexec_fn=die_with_parent
        )

    def kill_one(self, luck: random.Random) -> None:
        """Kill one with SIGKILL, wherever it is, and start a replacement."""
        at = luck.randrange(len(self._living))
        assert self._living[at].poll() is None, "it has ended by itself"
        self._living[at].kill()
        self._living[at].wait(10)
        self.killed += 1
        self._living[at] = self._start(self._skews[at])

    def close(self) -> None:
        ended = [one.returncode for one in self._living if one.poll() is not None]
        for one in self._living:
            one.kill()
            one.wait(10)
        self._log.close()
        assert not ended, "some have ended by themselves"


def run(several: Several, seconds: float, done: Any, luck: random.Random) -> None:
    """Kill one per second until `done()`, for at most this many seconds."""
    next_kill = time.monotonic() + 1.0

    def killed() -> object:
        nonlocal next_kill
        if time.monotonic() >= next_kill:
            several.kill_one(luck)
            next_kill += 1.0
        return done()

    eventually(killed, seconds, every=0.02)


class FaketimeServer(Server):
    """A server whose clock begins at `start`. Only the time of day is faked, not waiting."""

    def __init__(self, start: str) -> None:
        if not FAKETIME.exists():
            missing("faketime")
        # libc before jemalloc, which would loop forever reading the time before libfaketime is ready
        super().__init__(
            LD_PRELOAD=f"{FAKETIME} libc.so.6", FAKETIME_CACHE_DURATION="1", FAKETIME_DONT_FAKE_MONOTONIC="1"
        )
        self._file = self.folder / "clock"
        self.env["FAKETIME_TIMESTAMP_FILE"] = str(self._file)
        self.set(start)

    def set(self, moment: str) -> None:
        """Set the clock (ISO time with offset). It takes effect within a second."""
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{datetime.fromisoformat(moment).timestamp() - time.time():+.3f}s\n")
        fresh.rename(self._file)


if __name__ == "__main__":
    main(*sys.argv[1:])
