"""Kills what a job left running, before the job may run again.

A job's subprocess has QD_OWNER in its initial environment, whatever its process group or session:

    <master token>/<slot>                                  of a job
    <master token>/run-<pid of its scheduler>-<number>     of a run of the schedule

A copy that a job forked without exec does not have it, but is usually in the worker's group, which is killed with the
worker. `alive` is called repeatedly during a search, so that the caller can write its heartbeat.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from qd.process import proc

SECONDS = 2.0  # limit for all kills of one job
AGAIN = 0.002  # seconds between two searches
TICKS = os.sysconf("SC_CLK_TCK")


def kill_left_by_job(owner: str, began: int, alive: Callable[[], None]) -> int:
    """SIGKILL the processes that the last job of `owner` ("<token>/<slot>") started after `began` (monotonic ns), but not
    those of earlier jobs, except in the same clock tick (10 ms). Returns their number."""
    wanted, since = owner.encode(), ticks_of(began)
    return kill_all(lambda: owned(lambda found: found == wanted, alive, since))


def kill_left_by_runs(token: str, scheduler: int, alive: Callable[[], None]) -> int:
    """The same for all runs of the dead scheduler with this pid: "<token>/run-<its pid>-<number>"."""
    wanted = f"{token}/run-{scheduler}-".encode()
    return kill_all(lambda: owned(lambda found: found.startswith(wanted), alive))


def kill_left_by_masters(tokens: list[str], alive: Callable[[], None]) -> int:
    """The same for all jobs of these masters."""
    wanted = {token.encode() for token in tokens}
    return kill_all(lambda: owned(lambda found: found.partition(b"/")[0] in wanted, alive)) if tokens else 0


def kill_all(found: Callable[[], Iterator[int]]) -> int:
    """Search and kill until nothing is found: a killed process may have started another."""
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


def owned(wanted: Callable[[bytes], bool], alive: Callable[[], None], since: int = 0) -> Iterator[int]:
    """The pids whose QD_OWNER is wanted, started at that clock tick after boot or later."""
    for count, folder in enumerate(Path("/proc").glob("[0-9]*")):
        if count % 64 == 0:
            alive()
        pid = int(folder.name)
        if since and (proc.start_time(pid) or 0) < since:
            continue
        with suppress(OSError):
            _, found, rest = (b"\0" + (folder / "environ").read_bytes()).partition(b"\0QD_OWNER=")
            if found and wanted(rest.partition(b"\0")[0]):
                yield pid


def ticks_of(moment: int) -> int:
    """Convert a monotonic moment (ns) to the kernel's start times: clock ticks since the boot, suspended time included."""
    boot = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns() if hasattr(time, "CLOCK_BOOTTIME") else 0
    return (moment + boot) * TICKS // 1_000_000_000
