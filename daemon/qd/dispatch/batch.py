"""app.batch(*calls, then=, catch=, finally_=): jobs that run in parallel and are counted together.

    BatchCall     not sent yet         dispatch -> connection.batches -> Batch
    Batch         one that was sent    its state; cancel, add jobs, retry failed jobs
    LocalBatch    BatchCall.run()      runs its jobs in order, then the callbacks; counted in memory

The server counts in the script that acks each job (drivers/keyspace/scripts/batch.lua). retry_failed() moves the failed jobs
of a batch from the failed store back to their queues; `dropped` counts those whose record is gone.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack

from qd.dispatch.chain import FOR_ONE, CompositeCall, Member, check_connections, later, members, unlocked
from qd.dispatch.dispatcher import Dispatcher
from qd.dispatch.local import LocalConnection, MemoryBatches
from qd.dispatch.results import polls, read_by
from qd.dispatch.route import Message
from qd.drivers.keyspace.base import chunked
from qd.drivers.pausing import Pausing, block_on, threaded
from qd.drivers.types import BatchState, Callback, Entry, NewBatch
from qd.errors import JobFailedError, UnknownBatch
from qd.events import JobRetryRequested, Listeners
from qd.jobs.context import current_job
from qd.jobs.job import Call, caller
from qd.jobs.plan import Duration, Handle, SendOptions, Status, waiting_time
from qd.payload.build import new_id, new_uuid, time_positions
from qd.payload.format import Relations, read
from qd.process.shield import shield

if TYPE_CHECKING:
    from qd.drivers.base import Batches, Connector
    from qd.store.failed import FailedStore, Record


WHAT = "a batch"
MOST = 100  # records that one call moves


class BatchCall(CompositeCall):
    """A batch that is not sent yet. origin: file and line that made it."""

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
        """A copy with these options over those of each job and callback; a delay applies to the jobs only."""
        self._origin = None
        others = {name: value for name, value in options.items() if name not in FOR_ONE}
        other = copy.copy(self)
        other._members = [member.using(options) for member in self._members]
        other._callbacks = {what: member.using(others) for what, member in self._callbacks.items()}
        other._origin = caller()
        return other

    def dispatch(self) -> Batch:
        """Send its jobs, the first 1,000 in one step with the batch itself. Raises as the dispatch of one job."""
        batch, new, messages, after = self._made()
        batch._submit(messages, lambda sent: batch._kept.send(new, entries(sent)), after)
        return batch

    async def adispatch(self) -> Batch:
        """As dispatch(); the event loop goes on."""
        queue = await self._send.native([each.plan for each in (*self._members, *self._callbacks.values())])
        if queue is None:
            return await threaded(self.dispatch).wait()  # type: ignore[no-any-return]
        batch, new, messages, _ = self._made()
        await self._send.asubmit(messages, queue, lambda found: found.batches.send(new, entries(messages)))
        return batch

    def _made(self) -> tuple[Batch, NewBatch, list[Message], list[Message]]:
        """The batch, its jobs and its callbacks, to be sent."""
        self._origin = None
        id = new_uuid()
        messages = [self._send.prepare(*unlocked(member, WHAT), Relations(batch=id)) for member in self._members]
        after = {
            what: self._send.prepare(*later(each, WHAT), Relations(after=id)) for what, each in self._callbacks.items()
        }
        every = [*messages, *after.values()]
        check_connections(every, WHAT)
        connection = every[0].connection if every else self._send.connection(None)
        new = NewBatch(id, self._name, self._allow, {what: callback(message) for what, message in after.items()})
        return Batch(id, self._send, connection), new, messages, list(after.values())

    def run(self) -> None:
        """Run the jobs in this process, in order, then the callbacks, then raise the first error. Unless failures are
        allowed, no job runs after the first error."""
        self._origin = None
        new = NewBatch(new_uuid(), self._name, self._allow, {})
        LocalBatch(self._send, new, self._members, self._callbacks).run()

    def __repr__(self) -> str:
        return f"<batch of {len(self._members)} jobs{self._name and f' ({self._name})'}>"


def current_batch(send: Dispatcher) -> Batch:
    """The batch that the current job belongs to, or is a callback of. Raises NotInJob, UnknownBatch."""
    job = current_job()
    if job.local is not None and isinstance(job.local.batch, Batch):
        return job.local.batch
    id = None if job.relations is None else job.relations.batch or job.relations.after
    if id is None:
        raise UnknownBatch(f"job '{job.name}' belongs to no batch")
    return Batch(id, send, job.connection)


class Batch(Handle[None]):
    """A batch that was sent. Each property and method is one round trip: use look() for several values at one time. All
    raise UnknownBatch if the batch does not exist or has expired."""

    __slots__ = ("_connection", "_send")

    def __init__(self, id: str, send: Dispatcher, connection: str) -> None:
        super().__init__(id)
        self._send, self._connection = send, connection

    def look(self) -> BatchState:
        """All values at one time."""
        with shield:
            return self._found(self._kept.state(self.id))

    def _found(self, state: BatchState | None) -> BatchState:
        if state is None:
            raise UnknownBatch(f"no batch '{self.id}' exists (finished batches expire)")
        return state

    def status(self) -> Status:
        """ "running" until all of its jobs have ended, then "failed" if one of them failed, else "done" (`cancelled` shows
        whether some may have been skipped). "unknown": it does not exist or has expired."""
        try:
            state = self.look()
        except UnknownBatch:
            return "unknown"
        if state.finished_at is None:
            return "running"
        return "failed" if state.failed else "done"

    def result(self, timeout: Duration | None = None) -> None:
        """Wait until all of its jobs have ended, for at most `timeout` seconds (None: no limit).

        Raises TimeoutError; JobFailedError if one of its jobs has failed.
        """
        block_on(self._result(timeout))

    def _result(self, timeout: Duration | None) -> Pausing[None]:
        seconds, native = waiting_time(timeout), partial(self._send._connections.native, self._connection)
        for _, pause in polls(seconds):
            state = yield read_by(native, self.look, lambda queue: self._found(queue.batches.state(self.id)))
            if state.finished_at is not None:
                break
            yield pause
        else:
            raise TimeoutError(f"batch {self.id} has not finished within {seconds:g} s: {state.pending} jobs are left")
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
        """Jobs that have failed permanently, and have not succeeded in a retry since."""
        return self.look().failed

    @property
    def dropped(self) -> int:
        """Failed jobs that cannot be retried, so that `then` will never run: their records were dropped to make room for
        newer ones, deleted, or never kept. One call per 500 failed jobs."""
        queue = self._send.connector(self._connection)
        return lost(self.id, queue.batches, failed_store(queue))

    @property
    def progress(self) -> int:  # type: ignore[override]  # a property of a batch
        """Percentage of its jobs that have ended."""
        return self.look().progress

    @property
    def finished(self) -> bool:
        """Whether all of its jobs have ended."""
        return self.look().finished_at is not None

    @property
    def cancelled(self) -> bool:
        """By cancel(), or by a failure if failures are not allowed."""
        return self.look().cancelled_at is not None

    def cancel(self) -> bool:
        """Cancel it: its jobs with the middleware SkipIfBatchCancelled are no longer run. False: it was already cancelled
        or finished."""
        with shield:
            return self._kept.cancel(self.id)

    def add(self, *calls: Call[Any]) -> list[Handle[Any]]:
        """Send more jobs in the batch. Returns their handles in order. Raises BatchFinished, which cannot happen inside one
        of its jobs."""
        added = [unlocked(member, WHAT) for member in members(calls)]
        messages = [self._send.prepare(*member, Relations(batch=self.id)) for member in added]
        batch = Message(self._connection, "", b"", name=f"batch {self.id}")
        check_connections([batch, *messages], WHAT)
        self._submit(messages, lambda sent: self._kept.add(self.id, entries(sent)))
        return [Handle(message.id, self._send, message.plan) for message in messages]

    def retry_failed(self) -> int:
        """Send its failed jobs again; a cancelled batch is resumed. Returns how many were sent. Those whose record is gone
        are logged (logger `qd.batches`) and counted by `dropped`."""
        send = self._send
        queue, count = send.connector(self._connection), 0
        kept = failed_store(queue, send._settings().failed.database)
        for name, jobs in failures(self.id, queue.batches).items():
            for ids in chunked(list(jobs.values()) if name else [], MOST):
                with shield:
                    records = kept.of_ids(name, ids)
                    refusals = kept.retry(name, records, kept.store.now(), resumes=self.id) if records else []
                moved = [record for record, why in zip(records, refusals, strict=True) if why is None]
                emit_retried(send._listeners, self._connection, moved)
                count += len(moved)
        if gone := lost(self.id, queue.batches, kept):
            import logging  # loaded only for this warning

            logging.getLogger("qd.batches").warning(lost_text(self.id, gone))
        return count

    @property
    def _kept(self) -> Batches:
        return self._send.connector(self._connection).batches

    def _submit(self, messages: Sequence[Message], push: Any, callbacks: Iterable[Message] = ()) -> None:
        """Send now, or after the commit if a job or callback waits for it."""
        post = partial(self._send._submit_now, messages, push)
        if not any(self._send.waits(each) for each in (*messages, *callbacks)) or not self._send.after_commit(post):
            post()

    def __repr__(self) -> str:
        return f"Batch({self.id!r})"


def entries(messages: Sequence[Message]) -> list[Entry]:
    return [Entry(message.queue, message.uuid, message.body, message.delay) for message in messages]


def callback(message: Message) -> Callback:
    starts = tuple([start for start, _ in time_positions(message.body, read(message.body))])
    return Callback(message.queue, message.body, message.delay, starts)


class LocalBatch(Batch):
    """A batch that run() runs in this process. app.current_batch() returns it in its jobs and callbacks."""

    __slots__ = ("_allow", "_callbacks", "_left", "_local")

    def __init__(
        self, send: Dispatcher, new: NewBatch, jobs: Sequence[Member], callbacks: Mapping[str, Member]
    ) -> None:
        super().__init__(new.id, send, "")
        self._callbacks, self._allow = callbacks, new.allow_failures
        self._local = LocalConnection(MemoryBatches(), self)
        self._left = deque([(new_id(), member) for member in jobs])
        self._kept.send(new, local_entries(self._left))

    @property
    def _kept(self) -> MemoryBatches:
        return self._local.batches

    def run(self) -> None:
        """Raises the first error of a job at the end, an error of a callback immediately."""
        error: Exception | None = None
        if not self._left:
            self._call_back(self._kept.settled(self.id))
        while self._left:
            id, member = self._left.popleft()
            how = "skipped"
            if error is None or self._allow:
                job = self._send.made(id, *member, self._local, Relations(batch=self.id))
                try:
                    self._send.run_made(job, member.plan)
                    how = "skipped" if job.skipped else "done"
                except Exception as raised:
                    how, error = "failed", raised if error is None else error
            self._call_back(self._kept.ended(self.id, id, how))
        if error is not None:
            raise error

    def add(self, *calls: Call[Any]) -> list[Handle[Any]]:
        """Add jobs, to be run after those before them."""
        added = [(new_id(), member) for member in members(calls)]
        self._kept.add(self.id, local_entries(added))
        self._left += added
        return [Handle(id) for id, _ in added]

    @property
    def dropped(self) -> int:
        """All of its failed jobs, since none of them is in the failed store."""
        return self.failed

    def retry_failed(self) -> int:
        """0: none of its jobs is in the failed store."""
        return 0

    def _call_back(self, due: Iterable[str]) -> None:
        for what in due:
            if (member := self._callbacks.get(what)) is not None:
                job = self._send.made(new_id(), *member, self._local, Relations(after=self.id))
                self._send.run_made(job, member.plan)


def local_entries(jobs: Iterable[tuple[str, Member]]) -> list[Entry]:
    return [Entry("", id, b"", 0.0) for id, _ in jobs]


# -- jobs that have failed


def lost_text(id: str, gone: int) -> str:
    return f"batch {id}: {gone} of its failed jobs cannot be retried, their records are gone: `then` will not run"


def lost(id: str, batches: Batches, kept: FailedStore) -> int:
    """How many failed jobs of the batch cannot be retried because their record is gone."""
    with shield:
        by_queue = failures(id, batches)
        return sum(len(kept.gone(name, jobs) if name else jobs) for name, jobs in by_queue.items())


def failures(id: str, batches: Batches) -> dict[str, dict[str, str]]:
    """Queue -> uuid -> id of the record; "" for jobs that never had one."""
    by_queue: dict[str, dict[str, str]] = {}
    with shield:
        for uuid, (name, record) in batches.failures(id).items():
            by_queue.setdefault(name, {})[uuid] = record
    return by_queue


def emit_retried(listeners: Listeners, connection: str, records: Iterable[Record]) -> None:
    """Also for `qd failed retry`."""
    if listeners.has(JobRetryRequested):
        for record in records:
            listeners.emit(JobRetryRequested(connection, record.queue, record.job, record.job_id, record.payload))


def failed_store(queue: Connector, database: str = "") -> FailedStore:
    """database: url of the database with copies of its records, see with_copies."""
    from qd.store.base import keyspace_store  # loaded only when failed jobs are counted or retried
    from qd.store.failed_jobs_table import with_copies

    return with_copies(keyspace_store(queue), database)
