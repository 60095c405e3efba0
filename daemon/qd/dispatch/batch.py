"""app.batch(*calls, then=, catch=, finally_=): jobs that run side by side and are counted together.

    BatchCall     not sent yet         dispatch -> connection.batches -> Batch
    Batch         one that was sent    its state, cancelling it, adding to it, retrying what has failed
    LocalBatch    BatchCall.run()      its jobs one after the other, then what follows; counted in memory

The server counts, in the step that answers each job (drivers/keyspace/scripts/batch.lua). retry_failed() takes the failed
jobs of a batch out of the failed store and sends them again; `dropped` counts those whose record is gone.
"""

from __future__ import annotations

import copy
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack

from qd.dispatch.chain import FOR_ONE, Member, Together, later, members, together, unlocked
from qd.dispatch.dispatcher import Dispatcher
from qd.dispatch.local import LocalConnection, MemoryBatches
from qd.dispatch.results import FIRST_WAIT, GROWS, LONGEST_WAIT
from qd.dispatch.route import Message
from qd.drivers.types import BatchState, Callback, Entry, NewBatch
from qd.errors import JobFailedError, UnknownBatch
from qd.events import JobRetryRequested, Listeners
from qd.jobs.context import RunningJob, current_job
from qd.jobs.job import Call, caller
from qd.jobs.plan import Duration, Handle, SendOptions, Status, waiting_time
from qd.payload.build import new_id, new_uuid
from qd.payload.format import Relations, read
from qd.payload.rewrite import time_positions
from qd.process.shield import shield

if TYPE_CHECKING:
    from qd.config.settings import Settings
    from qd.drivers.base import Batches, Connector
    from qd.store.failed import FailedStore, Record


WHAT = "a batch"
MOST = 100  # records that one call moves


class BatchCall(Together):
    """Not sent yet. origin: file and line of who made it."""

    def __init__(
        self,
        send: Dispatcher,
        calls: Sequence[Call[Any]],
        callbacks: Mapping[str, Call[Any] | None],
        *,
        name: str,
        allow_failures: bool,
        origin: tuple[str, int] | None,
    ) -> None:
        self._send, self._name, self._allow = send, name, allow_failures
        self._members = members(calls)
        given = {what: call for what, call in callbacks.items() if call is not None}
        self._callbacks = dict(zip(given, members(given.values()), strict=True))
        self._origin = origin

    def using(self, **options: Unpack[SendOptions]) -> Self:
        """The same with these options over those of each of its jobs, and of its callbacks; a delay is of its jobs only."""
        self._origin = None
        others = {name: value for name, value in options.items() if name not in FOR_ONE}
        other = copy.copy(self)
        other._members = [member.using(options) for member in self._members]
        other._callbacks = {what: member.using(others) for what, member in self._callbacks.items()}
        other._origin = caller()
        return other

    def dispatch(self) -> Batch:
        """Send all of its jobs; up to 1,000 in one step with the batch itself. Raises as the dispatch of one job."""
        self._origin = None
        id = new_uuid()
        parcels = [self._send.parcel(*unlocked(member, WHAT), Relations(batch=id)) for member in self._members]
        after = {
            what: self._send.parcel(*later(each, WHAT), Relations(after=id)) for what, each in self._callbacks.items()
        }
        together([*parcels, *after.values()], WHAT)
        connection = (*parcels, *after.values())[0].connection if parcels or after else self._send.connection(None)
        new = NewBatch(id, self._name, self._allow, {what: callback(parcel) for what, parcel in after.items()})
        batch = Batch(id, self._send, connection)
        batch._post(parcels, partial(batch._made, new), after.values())
        return batch

    async def adispatch(self) -> Batch:
        """Send it, in a thread: the loop goes on meanwhile."""
        import asyncio  # who awaits has loaded it; who does not need not

        return await asyncio.to_thread(self.dispatch)

    def run(self) -> None:
        """Run all of them here and now, in order, then what follows. The first error comes out at the end; unless failures
        are allowed, it is the end of the batch."""
        self._origin = None
        new = NewBatch(new_uuid(), self._name, self._allow, {})
        LocalBatch(self._send, new, self._members, self._callbacks).run()

    def __repr__(self) -> str:
        return f"<batch of {len(self._members)} jobs{self._name and f' ({self._name})'}>"


def batch_in_hand(send: Dispatcher) -> Batch:
    """The batch of the job that this code runs in, or whose callback it is. Raises NotInJob, UnknownBatch."""
    job = current_job()
    if job.local is not None and isinstance(job.local.batch, Batch):
        return job.local.batch
    id = None if job.ties is None else job.ties.batch or job.ties.after
    if id is None:
        raise UnknownBatch(f"job '{job.name}' belongs to no batch")
    return Batch(id, send, job.connection)


class Batch(Handle[None]):
    """A batch that was sent. Everything asked of it is asked of its server, in one round trip: take look() for several
    answers of one moment. All raise UnknownBatch when it is not there (any more)."""

    __slots__ = ("_connection", "_send")

    def __init__(self, id: str, send: Dispatcher, connection: str) -> None:
        super().__init__(id)
        self._send, self._connection = send, connection

    def look(self) -> BatchState:
        with shield:
            state = self._kept.state(self.id)
        if state is None:
            raise UnknownBatch(f"no batch '{self.id}' is there (a finished one is kept for a day)")
        return state

    def status(self) -> Status:
        """ "running" until nothing of it is left to run; then "failed" when a job of it has failed, else "done": cancelled
        tells whether some may have been skipped. "unknown": it is not there (any more)."""
        with shield:
            state = self._kept.state(self.id)
        if state is None or state.finished_at is None:
            return "unknown" if state is None else "running"
        return "failed" if state.failed else "done"

    def result(self, timeout: Duration | None = None) -> None:
        """Wait until nothing of it is left to run: for `timeout` seconds at most, None: for as long as it takes.

        Raises TimeoutError; JobFailedError when a job of it has failed.
        """
        seconds, began, wait = waiting_time(timeout), time.monotonic(), FIRST_WAIT
        while (state := self.look()).finished_at is None:
            left = wait if seconds is None else seconds - (time.monotonic() - began)
            if left <= 0:
                raise TimeoutError(
                    f"batch {self.id} has not finished within {seconds:g} s: {state.pending} jobs are left"
                )
            time.sleep(min(wait, left))
            wait = min(LONGEST_WAIT, wait * GROWS)
        if state.failed:
            raise JobFailedError(
                self.id, "BatchFailed", f"{state.failed} of the {state.total} jobs of the batch have failed"
            )

    @property
    def name(self) -> str:
        return self.look().name

    @property
    def total(self) -> int:
        """Jobs that were sent with it and added to it."""
        return self.look().total

    @property
    def pending(self) -> int:
        """Jobs that have not ended."""
        return self.look().pending

    @property
    def failed(self) -> int:
        """Jobs that have failed for good, and were not retried with success since."""
        return self.look().failed

    @property
    def dropped(self) -> int:
        """Failed jobs that can never be retried, so that `then` can never run: their records were dropped to make room for
        newer ones, or forgotten, or were never kept. One call for each 500 failed jobs."""
        return dropped(self.id, self._send.connector(self._connection))

    @property
    def progress(self) -> int:  # type: ignore[override]  # of a batch, a number that it always has
        """Percent of its jobs that have ended."""
        return self.look().progress

    @property
    def finished(self) -> bool:
        """Whether nothing is left to run."""
        return self.look().finished_at is not None

    @property
    def cancelled(self) -> bool:
        """By cancel(), or by a failure that is not allowed."""
        return self.look().cancelled_at is not None

    def cancel(self) -> bool:
        """Its jobs are not wanted any more: those with the middleware SkipIfBatchCancelled are not run. False: it was
        cancelled or finished already."""
        with shield:
            return self._kept.cancel(self.id)

    def add(self, *calls: Call[Any]) -> list[Handle[Any]]:
        """Send more jobs of it; their handles in order. Sure to be in time from inside one of its jobs. Raises
        BatchFinished."""
        ready = [unlocked(member, WHAT) for member in members(calls)]
        parcels = [self._send.parcel(*member, Relations(batch=self.id)) for member in ready]
        here = Message(self._connection, "", b"", name=f"batch {self.id}")
        together([here, *parcels], WHAT)
        self._post(parcels, self._added)
        return [Handle(parcel.id, self._send, parcel.plan) for parcel in parcels]

    def retry_failed(self) -> int:
        """Send its failed jobs again. A cancelled batch goes on. Returns how many jobs were sent; those whose records
        are not kept any more are logged (logger `qd.batches`) and counted by `dropped`."""
        send, connection = self._send, self._connection
        return retry_failed(self.id, send.connector(connection), send._settings(), connection, send._listeners)

    @property
    def _kept(self) -> Batches:
        return self._send.connector(self._connection).batches

    def _post(self, parcels: Sequence[Message], push: Any, callbacks: Iterable[Message] = ()) -> None:
        """Now, or after the commit if one of the jobs or callbacks waits for it."""
        post = partial(self._send._post, parcels, push)
        if not any(self._send.waits(each) for each in (*parcels, *callbacks)) or not self._send.after_commit(post):
            post()

    def _made(self, new: NewBatch, parcels: Sequence[Message]) -> None:
        self._kept.send(new, entries(parcels))

    def _added(self, parcels: Sequence[Message]) -> None:
        self._kept.add(self.id, entries(parcels))

    def __repr__(self) -> str:
        return f"Batch({self.id!r})"


def entries(parcels: Sequence[Message]) -> list[Entry]:
    return [Entry(parcel.queue, parcel.uuid, parcel.body, parcel.delay) for parcel in parcels]


def callback(parcel: Message) -> Callback:
    moments = [start for start, _ in time_positions(parcel.body, read(parcel.body))]
    return Callback(parcel.queue, parcel.body, parcel.delay, tuple(moments))


class LocalBatch(Batch):
    """A batch that run() runs here and now. app.current_batch() returns it in its jobs and callbacks."""

    __slots__ = ("_allow", "_callbacks", "_left", "_local")

    def __init__(
        self, send: Dispatcher, new: NewBatch, jobs: Sequence[Member], callbacks: Mapping[str, Member]
    ) -> None:
        super().__init__(new.id, send, "")
        self._callbacks, self._allow = callbacks, new.allow_failures
        self._local = LocalConnection(MemoryBatches(), self)
        self._left = deque(zip(ids(jobs), jobs, strict=True))
        self._kept.send(new, local_entries(self._left))

    @property
    def _kept(self) -> MemoryBatches:
        return self._local.batches

    def run(self) -> None:
        """Raises the first error of a job, at the end; what a callback raises at once."""
        error: Exception | None = None
        if not self._left:
            self._call_back(self._kept.settled(self.id))
        while self._left:
            id, member = self._left.popleft()
            how = "skipped"
            if error is None or self._allow:
                job = self._job(id, member, Relations(batch=self.id))
                raised = self._failure(job, member)
                error = raised if error is None else error
                how = "failed" if raised is not None else "skipped" if job.skipped else "done"
            self._call_back(self._kept.ended(self.id, id, how))
        if error is not None:
            raise error

    def add(self, *calls: Call[Any]) -> list[Handle[Any]]:
        """Run more jobs of it, when those before them have ended."""
        more = members(calls)
        added = list(zip(ids(more), more, strict=True))
        self._kept.add(self.id, local_entries(added))
        self._left += added
        return [Handle(id) for id, _ in added]

    @property
    def dropped(self) -> int:
        """All of its failed jobs: the failed store has none of them."""
        return self.failed

    def retry_failed(self) -> int:
        """The failed store has none of its jobs."""
        return 0

    def _job(self, id: str, member: Member, ties: Relations) -> RunningJob:
        return self._send.made(id, *member, self._local, ties)

    def _failure(self, job: RunningJob, member: Member) -> Exception | None:
        try:
            self._send.run_made(job, member.plan)
        except Exception as error:
            return error
        return None

    def _call_back(self, due: Iterable[str]) -> None:
        for what in due:
            if what in self._callbacks:
                member = self._callbacks[what]
                self._send.run_made(self._job(ids([member])[0], member, Relations(after=self.id)), member.plan)


def ids(members: Sequence[Member]) -> list[str]:
    return [new_id() for _ in members]


def local_entries(jobs: Iterable[tuple[str, Member]]) -> list[Entry]:
    return [Entry("", id, b"", 0.0) for id, _ in jobs]


# -- retrying what has failed


def retry_failed(id: str, queue: Connector, settings: Settings, connection: str, listeners: Listeners) -> int:
    """How many were sent again. With the first of them the batch goes on: a cancelled one is not cancelled any more. Those
    that can never be retried are logged."""
    kept, count = failed_store(queue, settings.failed.database), 0
    for name, jobs in failures(id, queue.batches).items():
        ids = list(jobs.values()) if name else []
        for at in range(0, len(ids), MOST):
            moved = retried(kept, name, ids[at : at + MOST], id)
            tell_retried(listeners, connection, moved)
            count += len(moved)
    if gone := lost(id, queue.batches, kept):
        import logging

        logging.getLogger("qd.batches").warning(told(id, gone))
    return count


def told(id: str, gone: int) -> str:
    return f"batch {id}: {gone} of its failed jobs cannot be retried, no record of them is kept: `then` will not run"


def dropped(id: str, queue: Connector) -> int:
    """How many failed jobs of the batch can never be retried."""
    return lost(id, queue.batches, failed_store(queue))


def lost(id: str, batches: Batches, kept: FailedStore) -> int:
    """As `dropped`, for `qd failed retry`, which has the store already."""
    with shield:
        by_queue = failures(id, batches)
        return sum(len(kept.gone(name, jobs) if name else jobs) for name, jobs in by_queue.items())


def failures(id: str, batches: Batches) -> dict[str, dict[str, str]]:
    """Queue -> uuid -> id of the record; under "" those that never had one."""
    by_queue: dict[str, dict[str, str]] = {}
    with shield:
        for uuid, (name, record) in batches.failures(id).items():
            by_queue.setdefault(name, {})[uuid] = record
    return by_queue


def retried(kept: FailedStore, queue: str, ids: Sequence[str], batch: str) -> list[Record]:
    """The records of these ids that were sent again."""
    with shield:
        records = kept.of_ids(queue, ids)
        said = kept.retry(queue, records, kept.store.now(), resumes=batch) if records else []
    return [record for record, why in zip(records, said, strict=True) if why is None]


def tell_retried(listeners: Listeners, connection: str, records: Iterable[Record]) -> None:
    """`qd failed retry` tells here, too."""
    if listeners.has(JobRetryRequested):
        for record in records:
            listeners.emit(JobRetryRequested(connection, record.queue, record.job, record.job_id, record.payload))


def failed_store(queue: Connector, database: str = "") -> FailedStore:
    """database: where copies of its records are, see with_copies."""
    from qd.store.base import beside  # loaded only when failed jobs are counted or retried
    from qd.store.failed_jobs_table import with_copies

    return with_copies(beside(queue), database)
