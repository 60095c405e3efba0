# The public names, for type checkers. `_HOMES` in __init__.py loads the same names at run time.

from qd.app import Qd as Qd
from qd.arguments.injection import Provided as Provided
from qd.arguments.injection import Serialized as Serialized
from qd.arguments.injection import Serializer as Serializer
from qd.arguments.injection import provided as provided
from qd.dispatch.composite import Batch as Batch
from qd.dispatch.dispatcher import Keyed as Keyed
from qd.dispatch.dispatcher import Queue as Queue
from qd.drivers.types import BatchState as BatchState
from qd.errors import ArgumentError as ArgumentError
from qd.errors import BatchFinished as BatchFinished
from qd.errors import DeclarationError as DeclarationError
from qd.errors import JobCancelled as JobCancelled
from qd.errors import JobFailedError as JobFailedError
from qd.errors import JobInterrupted as JobInterrupted
from qd.errors import JobTimeout as JobTimeout
from qd.errors import LeaseLost as LeaseLost
from qd.errors import LockError as LockError
from qd.errors import LockLost as LockLost
from qd.errors import LockTaken as LockTaken
from qd.errors import NoResult as NoResult
from qd.errors import NotInJob as NotInJob
from qd.errors import QdError as QdError
from qd.errors import ResultTimeout as ResultTimeout
from qd.errors import UnknownBatch as UnknownBatch
from qd.jobs.context import RunningJob as RunningJob
from qd.jobs.context import current_job as current_job
from qd.jobs.job import Call as Call
from qd.jobs.job import Job as Job
from qd.jobs.job import JobFunction as JobFunction
from qd.jobs.job import Link as Link
from qd.jobs.job import NeverSent as NeverSent
from qd.jobs.plan import Duration as Duration
from qd.jobs.plan import Handle as Handle
from qd.jobs.plan import Middleware as Middleware
from qd.jobs.plan import Options as Options
from qd.jobs.plan import SendOptions as SendOptions
from qd.jobs.policy import Fail as Fail
from qd.jobs.policy import Retry as Retry
from qd.locks.limiter import Limiter as Limiter
from qd.locks.lock import Lock as Lock
from qd.options.kinds import Backoff as Backoff
from qd.schedule.builder import Scheduled as Scheduled

__version__: str
