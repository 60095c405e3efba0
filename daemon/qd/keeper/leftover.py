"""Processes that jobs of the dead have left running: ended before those jobs run again, so that nothing runs twice.

A job's subprocess carries QD_OWNER=<master token>/<slot> in the environment it was started with, whatever group or session
it has made for itself. (A copy that the job forked without exec does not: that one is in the worker's group as a rule.)
What a run of the schedule has started carries <master token>/run-<pid of its scheduler>-<number>.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from qd.process import vitals

SECONDS = 2.0  # for all of it; what starts processes faster than that is the lease's
AGAIN = 0.002
TICKS = os.sysconf("SC_CLK_TCK")


def end_of_job(owner: str, began: int, alive: Callable[[], None]) -> int:
    """SIGKILL what the job in hand of `owner` ("<token>/<slot>") has started since it began (monotonic ns), and nothing of
    jobs that ended before, but for what started in the same clock tick (10 ms). Returns how many. alive: called again and
    again meanwhile."""
    wanted, since = owner.encode(), ticks_of(began)
    return end(lambda: running(lambda found: found == wanted, alive, since))


def end_of_runs(token: str, scheduler: int, alive: Callable[[], None]) -> int:
    """The same of all runs of the scheduler with this pid, which is dead: "<token>/run-<its pid>-<number>"."""
    wanted = f"{token}/run-{scheduler}-".encode()
    return end(lambda: running(lambda found: found.startswith(wanted), alive))


def end_of_masters(tokens: list[str], alive: Callable[[], None]) -> int:
    """The same of all jobs of these masters."""
    wanted = {token.encode() for token in tokens}
    return end(lambda: running(lambda found: found.partition(b"/")[0] in wanted, alive)) if tokens else 0


def end(found: Callable[[], Iterator[int]]) -> int:
    """Look and kill until a look finds nothing: what is killed last may have started another."""
    ended, until = set[int](), time.monotonic() + SECONDS
    while pids := list(found()):
        for pid in pids:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        ended.update(pids)
        if time.monotonic() > until:
            break
        time.sleep(AGAIN)
    return len(ended)


def running(wanted: Callable[[bytes], bool], alive: Callable[[], None], since: int = 0) -> Iterator[int]:
    """The pids whose QD_OWNER is wanted, started at that clock tick after boot or later."""
    for count, folder in enumerate(Path("/proc").glob("[0-9]*")):
        if count % 64 == 0:
            alive()
        pid = int(folder.name)
        if since and (vitals.start_time(pid) or 0) < since:
            continue
        with suppress(OSError):
            _, found, rest = (b"\0" + (folder / "environ").read_bytes()).partition(b"\0QD_OWNER=")
            if found and wanted(rest.partition(b"\0")[0]):
                yield pid


def ticks_of(moment: int) -> int:
    """A monotonic moment as the kernel writes starts of processes: clock ticks since the boot, the host's sleep included."""
    boot = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns() if hasattr(time, "CLOCK_BOOTTIME") else 0
    return (moment + boot) * TICKS // 1_000_000_000
