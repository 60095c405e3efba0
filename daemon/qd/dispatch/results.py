"""Status, result and cancellation of a sent job by its id, for Handle; and the encoding of results and errors.

status     reads the record of its end (result_ttl), else searches its queue
result     waits for the record
cancel     deletes a waiting job; the keeper of a running one stops it at its next beat
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from qd.arguments.signature import result_from
from qd.arguments.values import FAILURES, check_value, encode, why
from qd.drivers.base import Connector
from qd.drivers.pausing import Pause, Pausing, sleep, threaded
from qd.drivers.types import SPOTS, Found, Kept, Spot, ends
from qd.errors import ArgumentError, ConnectionLost, JobFailedError, NoResult, ResultTimeout, ServerBusy
from qd.jobs.plan import NewEvents, Status
from qd.jobs.registry import Declared
from qd.payload.build import chained_payload
from qd.payload.format import Payload, check, read
from qd.payload.reservation import Ending

if TYPE_CHECKING:
    from qd.drivers.redis.aio import AsyncQueue

T = TypeVar("T")
Native = Callable[[], Awaitable["AsyncQueue | None"]]
UNFIT = b"!"  # prefix of a stored value that explains why there is no result
FIRST_WAIT = 0.004  # seconds between two reads of a record; on average half the last wait is lost
GROWS = 1.5  # factor from one wait to the next
LONGEST_WAIT = 0.25  # seconds
LOOK = 5.0  # seconds of waiting until the job is searched for in its queue; doubles after each search
LATE = 4.0  # seconds after which a job's result has followed its end, where both are on different servers of a cluster
EVERY = 0.05  # seconds between two reads of a stream while events come: as long as workers collect them
AWAY = 60.0  # seconds a server may be unreachable while waiting without a timeout
CANCELLED = b'{"error":"JobCancelled","message":"the job was cancelled"}'  # the stored value of a cancelled job
TRIES = 50  # a job may move on between being found and being cancelled


def polls(timeout: float | None) -> Iterator[tuple[float, Pause]]:
    """Yields the seconds that have passed and a pause until the next poll, which grows, until `timeout` is over."""
    began, wait = time.monotonic(), FIRST_WAIT
    while True:
        passed = time.monotonic() - began
        left = wait if timeout is None else timeout - passed
        yield passed, sleep(max(0.0, min(wait, left)))
        if left <= 0:
            return
        wait = min(LONGEST_WAIT, wait * GROWS)


def read_by(native: Native | None, read: Callable[[], T], step: Callable[[Connector], T]) -> Pause:
    """Read from the server: by read() in a thread, and in a task by a step on the loop's own connection, if it has one."""

    async def wait() -> T:
        import asyncio  # loaded only by apps that use it

        queue = await native() if native is not None else None
        return await (asyncio.to_thread(read) if queue is None else queue.do(step))

    return Pause(read, wait)


@dataclass(frozen=True, slots=True)
class SentJobs:
    """Jobs of one queue. connector, native: called at each use, since connections belong to threads and event loops. keeps:
    whether they keep a result; None: unknown. declared: their declaration, if known."""

    connector: Callable[[], Connector]
    queue: str
    keeps: bool | None = None
    declared: Declared | None = None
    native: Native | None = None

    def status(self, id: str) -> Status:
        for _ in range(2):  # the first search misses a job that is put back behind its position
            kept = self.kept(id)  # without result_ttl there may be one, too: of a job that has emitted events
            if kept is not None and kept.status in ("done", "failed"):
                return kept.status  # type: ignore[return-value]
            found = self.find(id)
            if found is not None:
                return "failed" if was_cancelled(found) else found.spot
        return "unknown"

    def find(self, id: str, *spots: Spot) -> Found | None:
        return self.connector().jobs.find(self.queue, id, spots or SPOTS)

    def kept(self, id: str) -> Kept | None:
        return self.connector().jobs.kept(id)

    def record(self, id: str) -> Kept | None:
        return None if self.keeps is False else self.kept(id)

    def events(self, id: str, since: int, wait: float | None) -> Pausing[NewEvents]:
        """Waits for events after the number `since`, at most `wait` seconds (None: no limit). Raises ConnectionLost as
        `result`; with `wait` at once."""
        began, look_at, every, away = time.monotonic(), LOOK, LOOK, 0.0
        read, ended = partial(events_after, id, since), None
        while True:
            silence = time.monotonic() - began
            try:
                if wait is None and silence >= look_at:
                    ended = yield threaded(partial(self._ended, id))
                    look_at, every = look_at + every, every * 2
                events, status = yield read_by(self.native, lambda: read(self.connector()), read)
                if events or status or ended or (wait is not None and silence >= wait):
                    return events, status or ended
                away = 0.0
            except ConnectionLost:
                away = away or time.monotonic()
                if wait is not None or time.monotonic() - away > AWAY:
                    raise
            pause = max(EVERY, min(LONGEST_WAIT, silence / 10))
            yield sleep(pause if wait is None else max(0.0, min(pause, wait - silence)))

    def _ended(self, id: str) -> Status | None:
        """How a job without a record has ended. None: it has not, or the broker cannot find jobs."""
        found = self.find(id, "running") or self.find(id) or self.find(id)  # twice: see status()
        if found is None:
            limits = self.connector().limits  # a job of the driver sync has no lease: it has run where it was sent
            return None if "find" in limits and "lease" not in limits else "unknown"
        return "failed" if found.spot == "failed" or was_cancelled(found) else None

    # -- result

    def result(self, id: str, timeout: float | None) -> Pausing[Any]:
        """Raises ResultTimeout, JobFailedError, NoResult; ConnectionLost for a server that is unreachable for too long."""
        if self.keeps is False:
            raise NoResult(f"job {id} keeps no result: declare or send it with result_ttl=...")
        look_at = 0.0 if self.keeps is None else LOOK  # a bare id: check first that the job exists
        every, away, gone = LOOK, 0.0, 0.0
        for passed, pause in polls(timeout):
            try:
                kept = yield read_by(self.native, partial(self.kept, id), lambda queue: queue.jobs.kept(id))
                if kept is not None and kept.status is not None:
                    return value_of(id, kept, self.declared)
                if passed >= look_at:
                    exists = yield threaded(partial(self._exists, id))  # it may search in many calls
                    gone = 0.0 if exists else gone or time.monotonic()
                    if gone and time.monotonic() - gone >= (LATE if "ends" in self.connector().limits else 0.0):
                        raise NoResult(f"job {id} has no result: it is unknown or has expired")
                    look_at, every = look_at + every, every if gone else every * 2
                away = 0.0
            except ConnectionLost:
                away = away or time.monotonic()
                if timeout is None and time.monotonic() - away > AWAY:
                    raise
            yield pause
        raise ResultTimeout(
            f"job {id} has not ended within {timeout:g} s; it keeps running, and its handle can wait again"
        )

    def _exists(self, id: str) -> bool:
        """Whether the job is on the server, or its end. Raises JobFailedError if only the failed store has it: a wait
        would not end."""
        found = self.find(id) or self.find(id)  # twice: see status()
        kept = self.kept(id)
        if kept is not None and kept.status is not None:
            return True
        if found is not None and found.spot == "failed":
            raise error_of(id, found.text.partition(b"\n")[0])
        return found is not None

    # -- cancel

    def cancel(self, id: str) -> bool:
        """True: it will not run, or is being stopped. False: it had ended, is unknown, or is run by another program."""
        missed, before = 0, b""
        for _ in range(TRIES):
            found = self.find(id, "delayed", "ready", "running")
            if found is None:
                missed += 1
                if missed == 2:
                    return False
            elif found.spot == "running":
                if self.connector().jobs.stop(found):
                    return True
                if found.text == before:
                    return False  # it stays in reserved, but no worker of qd has it
                before = found.text
            elif self.connector().jobs.drop(found, ends(found.payload, "failed", value=CANCELLED)):
                return True
        raise ServerBusy(f"job {id} changed its state at each of {TRIES} attempts to cancel it: try again")


def events_after(id: str, since: int, queue: Connector) -> NewEvents:
    events = queue.jobs.events(id, since)
    kept = None if events else queue.jobs.kept(id)
    if kept is None or kept.status is None:
        return events, None
    # The last events may have come in between: they are written before the end.
    return queue.jobs.events(id, since), "done" if kept.status == "done" else "failed"


def value_of(id: str, kept: Kept, declared: Declared | None) -> Any:
    """The result in the record of a job that has ended. Raises JobFailedError, NoResult."""
    if kept.status == "failed":
        raise error_of(id, kept.value)
    if kept.value[:1] == UNFIT:
        reason = kept.value[1:].decode("utf-8", "replace")
        raise NoResult(f"job {id} has succeeded, and its result is not kept: {reason}")
    target = None if declared is None else declared.target
    try:
        return result_from(kept.value, getattr(target, "handle", target))
    except FAILURES as error:
        raise NoResult(f"job {id} has succeeded, but its stored result is not JSON: {why(error)}") from None


def was_cancelled(found: Found) -> bool:
    """Whether it was cancelled while it ran. It stays in ready until the next worker sees that."""
    return found.spot == "ready" and (found.payload.rsv or "").endswith(f".{Ending.CANCELLED}")


# -- encoding


def value_of_result(result: object, most: int) -> bytes:
    """The value to store: JSON, or UNFIT with a reason. most: bytes; 0: unlimited."""
    try:
        check_value(result)
        text = encode(result)
    except FAILURES as error:
        return UNFIT + f"JSON cannot carry what the job returned ({type(result).__qualname__}): {why(error)}".encode()
    if most and len(text) > most:
        return UNFIT + f"it has {len(text)} bytes of JSON, and max_payload is {most}".encode()
    return text


def passed_on(result: object, what: str) -> bytes:
    """The JSON of the result of `what`, for the next job of a chain. Raises NoResult."""
    value = value_of_result(result, 0)
    if value[:1] == UNFIT:
        raise NoResult(f"the next job of the chain takes the result of {what}, and {value[1:].decode()}")
    return value


def check_passed_on(payload: Payload, result: object, max_payload: int, max_depth: int) -> None:
    """Raises NoResult if the next job of its chain takes the result, and cannot get it: once the job has succeeded and its
    hooks have run, it is too late to fail it. So its next payload is built here, and again when it is settled."""
    if payload.qd is None or not payload.qd.passes:
        return
    first, *rest = payload.qd.chain
    passed = (payload.uuid or "", passed_on(result, f"job '{payload.job}'"), None)
    link = chained_payload(first, time.time(), tuple(rest), payload.qd.catch, passed)
    try:
        check(link, (following := read(link)).job, max_payload, max_depth, bytes(following.data))
    except ArgumentError as error:
        raise NoResult(f"the result of job '{payload.job}' cannot be passed on: {error}") from None


def value_of_error(error: BaseException, message: str) -> bytes:
    return msgspec.json.encode({"error": type(error).__name__, "message": message})


def error_of(id: str, value: bytes) -> JobFailedError:
    try:
        record = msgspec.json.decode(value)
        return JobFailedError(id, str(record["error"]), str(record.get("message", record.get("reason", ""))))
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError, AttributeError, RecursionError):
        return JobFailedError(id, "unknown error", "")
