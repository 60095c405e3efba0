"""Ending a process with everything that it has started."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection
from contextlib import suppress

from qd.keeper import leftover

SECONDS = 1.0  # for finding all of it: what starts processes faster than that goes with the scheduler's group


def end_trees(pids: Collection[int]) -> None:
    """SIGKILL children of ours and their descendants. They are stopped first, so that none starts another meanwhile, and
    none loses the parent by which it is found."""
    stopped, until = set[int](), time.monotonic() + SECONDS
    while (found := {*pids, *descendants(pids)} - stopped) and time.monotonic() < until:
        for each in found:
            send(each, signal.SIGSTOP)
        stopped |= found
    for each in stopped:
        send(each, signal.SIGKILL)


def end_marked(owner: str, began: int) -> None:
    """SIGKILL what carries this QD_OWNER and started at the monotonic ns `began` or later, whoever its parent is by now."""
    leftover.end_of_job(owner, began, lambda: None)


def end_all_marked(token: str) -> None:
    """The same of every run of this process."""
    leftover.end_of_runs(token, os.getpid(), lambda: None)


def descendants(pids: Collection[int]) -> set[int]:
    import psutil  # only where something is ended

    children: dict[int, list[int]] = {}
    for process in psutil.process_iter(["ppid"]):
        children.setdefault(process.info["ppid"], []).append(process.pid)
    found, look = set[int](), list(pids)
    while look:
        new = [child for child in children.get(look.pop(), ()) if child not in found]
        found.update(new)
        look += new
    return found


def send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
