"""Several calls that are sent together: app.chain(first, second, catch=) and app.batch(*calls, then=, catch=, finally_=).

    Chain         each job is sent once the one before it has succeeded
    BatchCall     jobs that run in parallel and are counted together; dispatch -> connection.batches -> Batch
    Batch         one that was sent    its state; cancel, add jobs, retry failed jobs
    LocalBatch    BatchCall.run()      runs its jobs in order, then the callbacks; counted in memory

The payload of the first job of a chain carries the payloads of the others as text, and each job passes on the rest. So a
chain exists only in the one job of it that is waiting, running or failed. The server counts a batch in the script that acks
each job (drivers/keyspace/scripts/batch.lua). retry_failed() moves its failed jobs from the failed store back to their
queues; `dropped` counts those whose record is gone.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, Self, TypeVar, Unpack, cast, overload

from qd.dispatch.dispatcher import Dispatcher
from qd.dispatch.local import LocalConnection, MemoryBatches
from qd.dispatch.results import passed_on, polls, read_by, value_of, value_of_error, value_of_result
from qd.dispatch.route import Message
from qd.drivers.keyspace.base import chunked
from qd.drivers.pausing import Pausing, block_on, threaded
from qd.drivers.types import BatchState, Callback, Entry, Kept, NewBatch
from qd.errors import (
    ArgumentError,
    DeclarationError,
    JobFailedError,
    NoResult,
    ResultTimeout,
    UnknownBatch,
    unknown_batch,
)
from qd.events import JobRetryRequested, Listeners
from qd.jobs.context import current_job
from qd.jobs.job import AnyJob, Call, Link, Unsent, caller, declared_plan
from qd.jobs.plan import Duration, Handle, Plan, SendOptions, Status, waiting_time
from qd.options.kinds import count
from qd.payload.build import id_in_batch, new_id, new_pair, new_uuid, time_positions, with_argument
from qd.payload.format import Relations, read
from qd.process.shield import shield

if TYPE_CHECKING:
    from qd.drivers.base import Batches, Connector
    from qd.jobs.registry import Declared
    from qd.store.failed import FailedStore, Record


T = TypeVar("T")
CHAIN, BATCH = "a chain", "a batch"
MOST = 100  # records that one call moves
ARRIVES = 3.0  # seconds until the result of a job that has been counted is there, on another node of a cluster
FOR_ONE = ("delay", "key", "unique", "unique_for", "unique_until")  # options of a single job


class Member(NamedTuple):
    """A call in a chain or batch. takes: of a link, the argument that its data lacks, the result of the job before it."""

    plan: Plan
    data: bytes
    takes: str = ""

    def using(self, options: Mapping[str, Any]) -> Member:
        return self._replace(plan=self.plan.using(options)) if options else self


class CompositeCall(Call[None]):
    """Several calls that are sent together."""

    def _to_send(self) -> NoReturn:
        self._origin = None
        raise ArgumentError(f"{self!r} cannot be part of another call, and has no call(): call .dispatch() on it")


def members(calls: Iterable[object]) -> list[Member]:
    """The calls count as sent from now on. Raises ArgumentError for anything but a call."""
    found = []
    for call in calls:
        if not isinstance(call, Call):
            links = " (a link goes behind the first call, with pass_results=True)" if isinstance(call, Link) else ""
            raise ArgumentError(f"{call!r} is not a call: give job.bind(...) or an instance of a class job{links}")
        found.append(Member(*call._to_send()[1:]))
    return found


def linked(call: object) -> Member:
    """A link, which counts as sent from now on. Raises ArgumentError for anything else."""
    if not isinstance(call, Link):
        way = "after the first call give job.link(...), with pass_results=True"
        raise ArgumentError(f"{call!r} takes no result: {way}")
    return Member(call._plan, call._data, call._takes)


def later(member: Member, what: str) -> Member:
    """The member as a worker will send it. Raises DeclarationError for options that only a single job can have."""
    plan = member.plan
    if isinstance(plan.delay, datetime):
        way = f"but in {what} a delay counts from the moment the job is sent: give seconds"
        raise DeclarationError(f"job '{plan.declared.name}' has delay={plan.delay}, {way}")
    if member.takes and plan.options.encrypted:
        why = "the result would be readable in its payload; pass the id of a stored value, or do both in one job"
        raise DeclarationError(f"job '{plan.declared.name}' is encrypted and cannot take the result of a job: {why}")
    return unlocked(member, what)


def unlocked(member: Member, what: str) -> Member:
    """The member without its unique lock, which only jobs dispatched on their own take. Raises DeclarationError."""
    plan = member.plan
    if plan.key is not None:
        way = f"but a job in {what} cannot be moved or cancelled by key: remove it"
        raise DeclarationError(f"job '{plan.declared.name}' has key='{plan.key}', {way}")
    if plan.options.unique is None:
        return member
    bare = Plan(plan.declared, replace(plan.options, unique=None))
    bare.delay, bare.after_commit = plan.delay, plan.after_commit
    return member._replace(plan=bare)


def check_connections(messages: Sequence[Message], what: str) -> None:
    """Raises DeclarationError if they go to several connections, since a script of one server cannot reach another."""
    one = messages[0]
    for other in messages[1:]:
        if other.connection != one.connection:
            both = f"job '{one.name}' goes to '{one.connection}', job '{other.name}' to '{other.connection}'"
            raise DeclarationError(f"all jobs of {what} need the same connection: {both}")


class Chain(CompositeCall):
    """A chain that is not sent yet. passes: results are passed on. origin: file and line that made it."""

    def __init__(
        self, send: Dispatcher, calls: Sequence[object], catch: object, passes: bool, origin: tuple[str, int] | None
    ) -> None:
        if not calls:
            raise ArgumentError("app.chain() needs at least one job")
        for call in (*calls, catch):
            if isinstance(call, Unsent):
                call._origin = None  # also if the chain is refused
        self._send = send
        self._members = [*members(calls[:1]), *map(linked, calls[1:])] if passes else members(calls)
        self._caught = members([] if catch is None else [catch])
        self._origin = origin

    def using(self, **options: Unpack[SendOptions]) -> Self:
        """A copy with these options over those of each job; delay and key apply to the first job only."""
        self._origin = None
        others = {name: value for name, value in options.items() if name not in FOR_ONE}
        other = copy.copy(self)
        first, *rest = self._members
        other._members = [first.using(options), *[member.using(others) for member in rest]]
        other._origin = caller()
        return other

    def dispatch(self) -> Handle[None]:
        """Send the first job, which carries the others. Returns the handle of the first job. Raises as the dispatch of one
        job; ArgumentError if all of them together are too large for a payload."""
        self._origin = None
        return Handle(self._send.submit((self._message(),))[0], self._send, self._members[0].plan)

    async def adispatch(self) -> Handle[None]:
        """As dispatch(), without blocking the event loop."""
        queue = await self._send.native([each.plan for each in (*self._members, *self._caught)])
        if queue is None:
            return await threaded(self.dispatch).wait()  # type: ignore[no-any-return]
        self._origin = None
        return Handle((await self._send.asubmit([self._message()], queue))[0], self._send, self._members[0].plan)

    def run(self) -> None:
        """Run the jobs in this process, in order. If one fails: run the `catch` job and raise the error."""
        self._origin, before, result = None, "", None
        try:
            for plan, data, takes in self._members:
                given = with_argument(data, takes, passed_on(result, before)) if takes else data
                before, result = f"job '{plan.declared.name}'", self._send.run(plan, given)
        except Exception:
            for plan, data, _ in self._caught:
                self._send.run(plan, data)
            raise

    def _message(self) -> Message:
        (plan, data, _), *rest = self._members
        pairs = [new_pair() for _ in self._members]
        links = [self._made(*each) for each in zip(rest, pairs[1:], pairs, strict=False)]
        catch = [self._made(member) for member in self._caught]
        if any(each.plan.after_commit for each in (*self._members, *self._caught)):
            plan = plan.using({"after_commit": True})
        relations = Relations(chain=tuple([each.link for each in links]), catch=tuple([each.link for each in catch]))
        first = self._send.prepare(plan, data, relations, None, *pairs[0])
        check_connections([first, *links, *catch], CHAIN)
        return first

    def _made(self, member: Member, pair: Sequence[str] = (), before: Sequence[str] = ()) -> Message:
        """pair: its uuid and id. before: those of the job before it."""
        plan, data, takes = later(member, CHAIN)
        return self._send.prepare(plan, data, Relations(takes=f"{before[0]} {takes}") if takes else None, None, *pair)

    def __repr__(self) -> str:
        return f"<chain of {', '.join([member.plan.declared.name for member in self._members])}>"


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
        """As dispatch(), without blocking the event loop."""
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
        prepare, relations, after = self._send.prepare, Relations(batch=id), Relations(after=id)
        bare = [unlocked(member, BATCH)[:2] for member in self._members]
        messages = [prepare(*each, relations, None, new_uuid(), id_in_batch(id, at)) for at, each in enumerate(bare)]
        called = {what: prepare(*later(each, BATCH)[:2], after) for what, each in self._callbacks.items()}
        every = [*messages, *called.values()]
        check_connections(every, BATCH)
        connection = every[0].connection if every else self._send.connection(None)
        callbacks = {what: callback(message) for what, message in called.items()}
        new = NewBatch(id, self._name, self._allow, callbacks, len(messages))
        return Batch(id, self._send, connection), new, messages, list(called.values())

    def run(self) -> None:
        """Run the jobs in this process, in order, then the callbacks, then raise the first error. Unless failures are
        allowed, no job runs after the first error."""
        self._origin = None
        new = NewBatch(new_uuid(), self._name, self._allow, {}, len(self._members))
        LocalBatch(self._send, new, self._members, self._callbacks).run()

    def __repr__(self) -> str:
        return f"<batch of {count(len(self._members), 'job')}{self._name and f' ({self._name})'}>"


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
            raise unknown_batch(self.id)
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

        Raises ResultTimeout; JobFailedError if one of its jobs has failed.
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
            left = f"{count(state.pending, 'job')} left, still running"
            raise ResultTimeout(f"batch {self.id} has not finished within {seconds:g} s: {left}")
        if state.failed:
            raise JobFailedError(
                self.id, "BatchFailed", f"{state.failed} of {count(state.total, 'job')} of the batch failed"
            )

    @overload
    def results(self, *, return_exceptions: bool = ...) -> list[Any]: ...
    @overload
    def results(self, job: AnyJob[T], *, return_exceptions: Literal[False] = ...) -> list[T]: ...
    @overload
    def results(self, job: AnyJob[T], *, return_exceptions: bool) -> list[T | JobFailedError]: ...
    def results(self, job: Any = None, *, return_exceptions: bool = False) -> list[Any]:
        """What its jobs have returned, in the order in which they were sent with it: `app.current_batch().results(count)`
        in its `then`. Without those that were added later. One round trip per 1,000 jobs.

        Args:
            job: The job that they are calls of, for results of the type that it declares. Without it: JSON values.
            return_exceptions: In place of the result of a job that has failed, return its JobFailedError.

        Raises:
            NoResult: One has not ended, has no result_ttl (`app.batch(...).using(result_ttl=3600)`), or it has expired.
            JobFailedError: One has failed.
        """
        declared = None if job is None else declared_plan(job).declared
        ids = missing = [id_in_batch(self.id, place) for place in range(self.look().jobs)]
        found = dict[str, Kept | None]()
        for _, pause in polls(ARRIVES):
            found |= zip(missing, self._kept_of(missing), strict=True)
            missing = [id for id in missing if (kept := found[id]) is None or kept.status is None]
            if not missing:
                return [returned(id, cast(Kept, found[id]), declared, return_exceptions) for id in ids]
            if len(missing) == len(ids):
                break
            pause.block()
        fact = f"{len(missing)} of the {len(ids)} jobs of batch {self.id} have no result, the first is {missing[0]}"
        raise NoResult(f"{fact}: not ended, expired, or not kept; send the batch with .using(result_ttl=3600)")

    def _kept_of(self, ids: Sequence[str]) -> list[Kept | None]:
        return self._send.connector(self._connection).jobs.kept_many(ids)

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
        added = [unlocked(member, BATCH)[:2] for member in members(calls)]
        messages = [self._send.prepare(*each, Relations(batch=self.id)) for each in added]
        batch = Message(self._connection, "", b"", name=f"batch {self.id}")
        check_connections([batch, *messages], BATCH)
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


def returned(id: str, kept: Kept, declared: Declared | None, return_exceptions: bool) -> Any:
    try:
        return value_of(id, kept, declared)
    except JobFailedError as error:
        if not return_exceptions:
            raise
        return error


def entries(messages: Sequence[Message]) -> list[Entry]:
    return [Entry(message.queue, message.uuid, message.body, message.delay) for message in messages]


def callback(message: Message) -> Callback:
    starts = tuple([start for start, _ in time_positions(message.body, read(message.body))])
    return Callback(message.queue, message.body, message.delay, starts)


class LocalBatch(Batch):
    """A batch that run() runs in this process. app.current_batch() returns it in its jobs and callbacks."""

    __slots__ = ("_allow", "_callbacks", "_ended", "_left", "_local")

    def __init__(
        self, send: Dispatcher, new: NewBatch, jobs: Sequence[Member], callbacks: Mapping[str, Member]
    ) -> None:
        super().__init__(new.id, send, "")
        self._callbacks, self._allow = callbacks, new.allow_failures
        self._local = LocalConnection(MemoryBatches(), self)
        self._left = deque([(id_in_batch(new.id, place), member) for place, member in enumerate(jobs)])
        self._ended = dict[str, Kept]()  # the results of jobs with a result_ttl
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
                job = self._send.made(id, *member[:2], self._local, Relations(batch=self.id))
                try:
                    result = self._send.run_made(job, member.plan)
                    if member.plan.options.result_ttl:
                        self._ended[id] = Kept("done", value_of_result(result, 0), None, None)
                    how = "skipped" if job.skipped else "done"
                except Exception as raised:
                    how, error = "failed", raised if error is None else error
                    if member.plan.options.result_ttl:
                        self._ended[id] = Kept("failed", value_of_error(raised, str(raised)), None, None)
            self._call_back(self._kept.ended(self.id, id, how))
        if error is not None:
            raise error

    def add(self, *calls: Call[Any]) -> list[Handle[Any]]:
        """Add jobs, to be run after those before them."""
        added = [(new_id(), member) for member in members(calls)]
        self._kept.add(self.id, local_entries(added))
        self._left += added
        return [Handle(id) for id, _ in added]

    def _kept_of(self, ids: Sequence[str]) -> list[Kept | None]:
        return list(map(self._ended.get, ids))

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
                job = self._send.made(new_id(), *member[:2], self._local, Relations(after=self.id))
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
