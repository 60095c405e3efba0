"""Ending a process with everything that it has started."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from qd.keeper import leftover

SECONDS = 1.0  # for finding all of it: what starts processes faster than that goes with the scheduler's group


def end_tree(pid: int) -> None:
    """SIGKILL a child of ours and its descendants. They are stopped first, so that none starts another meanwhile, and none
    loses the parent by which it is found."""
    stopped, until = set[int](), time.monotonic() + SECONDS
    while (found := {pid, *descendants(pid)} - stopped) and time.monotonic() < until:
        for each in found:
            send(each, signal.SIGSTOP)
        stopped |= found
    for each in stopped:
        send(each, signal.SIGKILL)


def end_marked(owner: str, began: int) -> int:
    """SIGKILL what carries this QD_OWNER and started at the monotonic ns `began` or later, whoever its parent is by now.
    Returns how many."""
    return leftover.end_of_job(owner, began, lambda: None)


def descendants(pid: int) -> list[int]:
    import psutil  # only where something is ended

    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []


def send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
