"""The stack of a worker that is to be killed, as its fault handler wrote it (most recent call first), cut to the job's own
code: what led there is the same for every job.

A block for each thread: a heading, and below it lines of the form `  File "/srv/shop/jobs.py", line 7 in ship`.
"""

from __future__ import annotations

import os
from pathlib import Path

HOME = str(Path(__file__).parent.parent) + os.sep


def of_the_job(stack: str, home: str = HOME) -> str:
    """home: the folder of qd's own code. A thread in which no code of a job runs stays whole."""
    return "\n\n".join(_cut(block, home) for block in stack.split("\n\n"))


def _cut(block: str, home: str) -> str:
    ours = f'  File "{home}'
    door = f"{ours}worker{os.sep}alarm.py"  # all code of users runs below Alarm.guard
    lines = block.splitlines()
    at = next((i for i, line in enumerate(lines) if line.startswith(door) and line.endswith(" in guard")), 0)
    while at and lines[at - 1].startswith(ours):
        at -= 1
    has_frames = any(line.startswith("  File ") for line in lines[:at])
    return "\n".join(lines[:at]) if has_frames else block
