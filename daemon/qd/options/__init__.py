"""Every option of a worker and of a job, described once. config fills WorkOptions from its sources, jobs JobOptions."""

from qd.options.job import JOB_KINDS, JobOptions
from qd.options.kinds import BESIDE, KINDS, queue_name
from qd.options.table import Option, row, shown
from qd.options.work import WORK, WorkOptions

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
