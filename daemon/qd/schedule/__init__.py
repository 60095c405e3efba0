"""The schedule as the app declares it. Nothing here queries a server or reads the clock; qd.scheduler does.

declare        app.schedule, and the entries of qd.toml
builder        one entry while it is being declared
frequencies    how often and on which days
tasks          what an entry runs: a job, a function, a shell line, a qd command
entry          Entry: the frozen result, its name and its next tick
timing         cron expressions and intervals as ticks. Pure
"""

from qd.schedule.builder import Scheduled as Scheduled
from qd.schedule.declare import Schedule as Schedule
from qd.schedule.declare import check_homes as check_homes
from qd.schedule.entry import CallTask as CallTask
from qd.schedule.entry import Entry as Entry
from qd.schedule.entry import JobTask as JobTask
from qd.schedule.entry import Missed as Missed
from qd.schedule.entry import QdTask as QdTask
from qd.schedule.entry import ShellTask as ShellTask
from qd.schedule.entry import Task as Task
from qd.schedule.entry import meant_for as meant_for
