"""What is to run when, as the app declares it. Nothing here asks a server or the clock: qd.scheduler does."""

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
