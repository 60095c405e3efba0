"""What a programmer declares and sends.

`registry` is what a worker asks, `calls` what a producer holds, `declare` makes both of a function or class. How a call
is sent is handed in by app.py (`plan.Sender`).
"""

from qd.jobs.calls import Call, Job, JobFunction, NeverSent
from qd.jobs.declare import Declare
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
