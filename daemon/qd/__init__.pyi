# The public names, for type checkers. `_HOMES` in __init__.py loads the same names at run time.

from qd.app import Qd as Qd
from qd.arguments import Provided as Provided
from qd.arguments import Serialized as Serialized
from qd.arguments import Serializer as Serializer
from qd.arguments import provided as provided
from qd.bus.batch import Batch as Batch
from qd.bus.running import RunningJob as RunningJob
from qd.bus.running import current_job as current_job
from qd.bus.send import Keyed as Keyed
from qd.bus.send import Queue as Queue
from qd.connectors.batches import BatchState as BatchState
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
from qd.errors import UnknownBatch as UnknownBatch
from qd.jobs import Call as Call
from qd.jobs import Duration as Duration
from qd.jobs import Handle as Handle
from qd.jobs import Job as Job
from qd.jobs import JobFunction as JobFunction
from qd.jobs import Middleware as Middleware
from qd.jobs import NeverSent as NeverSent
from qd.jobs import Options as Options
from qd.jobs import SendOptions as SendOptions
from qd.locks import Limiter as Limiter
from qd.locks import Lock as Lock
from qd.schedule import Scheduled as Scheduled

__version__: str
