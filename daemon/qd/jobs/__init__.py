"""What a job is: its declaration, policy and context.

context     current_job() and RunningJob: what a job sees of itself.
declare     @app.job and its checks.
job         What a producer holds: JobFunction, Job, Call.
pipeline    The chain of middleware around a job, and the checks on each.
plan        Dispatch options, Plan, Handle, and the Sender protocol.
policy      Retry policy: may a job run, and what follows an error. Pure.
registry    Declared jobs by name.
"""

from __future__ import annotations

from qd.jobs.declare import Declare
from qd.jobs.job import Call, Job, JobFunction, NeverSent
from qd.jobs.plan import Asks, Duration, Handle, Middleware, Options, Place, Plan, Sender, SendOptions, Status
from qd.jobs.registry import Declared, Registry

__all__ = [
    "Asks",
    "Call",
    "Declare",
    "Declared",
    "Duration",
    "Handle",
    "Job",
    "JobFunction",
    "Middleware",
    "NeverSent",
    "Options",
    "Place",
    "Plan",
    "Registry",
    "SendOptions",
    "Sender",
    "Status",
]
