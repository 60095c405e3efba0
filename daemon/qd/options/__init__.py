"""Every option of a worker and of a job, described once. config fills WorkOptions from its sources, jobs JobOptions."""

from __future__ import annotations

from qd.options.kinds import BESIDE, KINDS, queue_name
from qd.options.tables import JOB_KINDS, WORK, JobOptions, Option, WorkOptions, row, shown

__all__ = [
    "BESIDE",
    "JOB_KINDS",
    "KINDS",
    "WORK",
    "JobOptions",
    "Option",
    "WorkOptions",
    "queue_name",
    "row",
    "shown",
]
