"""What became of a job that was sent, asked by its id: what Handle's methods do. And how an end is written down.

status     the record of its end (result_ttl), else a look through its queue
result     the record, waited for
cancel     a waiting job is taken away; a running one is told to end by its keeper's next beat
"""

from __future__ import annotations

import time
import typing
from collections.abc import Callable
from typing import Any

import msgspec

from qd.arguments.signature import usable
from qd.arguments.values import FAILURES, encode, look, made, why
from qd.drivers.base import Jobs
from qd.drivers.types import Found, Kept, Spot, ends
from qd.errors import ConnectionLost, JobFailedError, NoResult, ServerBusy
from qd.jobs.plan import Status
from qd.jobs.registry import Declared
from qd.payload.reservation import Ending

UNFIT = b"!"  # begins a value that is no result, but says why there is none
CANCELLED = "JobCancelled"
FIRST_WAIT, GROWS, LONGEST_WAIT = (
    0.004,
    1.5,
    0.25,
)  # seconds between two looks at a record: a wait costs half its length
LOOK = 5.0  # seconds until a job that was waited for is looked for in its queue; then twice as long, and so on
AWAY = 60.0  # seconds for which a server may be away while a result is waited for without a timeout
TRIES = 50  # a job may move on between being found and being cancelled


class SentJobs:
    """Jobs of one queue. jobs: asked at each use, for it is this thread's. keeps: whether they keep a result, None: nobody
    knows. declared: as what they were declared, where that is known."""

    def __init__(
        self, jobs: Callable[[], Jobs], queue: str, keeps: bool | None = None, declared: Declared | None = None
    ) -> None:
        self._jobs, self._queue, self._keeps, self._declared = jobs, queue, keeps, declared

    def status(self, id: str) -> Status:
        for _ in range(2):  # one that was put back behind the look is met by the second
            kept = None if self._keeps is False else self._jobs().kept(id)
            if kept is not None and kept.status in ("done", "failed"):
                return kept.status  # type: ignore[return-value]
            found = self.find(id)
            if found is not None:
                return "failed" if dropped(found) else found.spot
        return "unknown"

    def find(self, id: str, *spots: Spot) -> Found | None:
        return self._jobs().find(self._queue, id, *((spots,) if spots else ()))

    def kept(self, id: str) -> Kept | None:
        return self._jobs().kept(id)

    def progress(self, id: str) -> float | None:
        kept = None if self._keeps is False else self._jobs().kept(id)
        return None if kept is None else kept.percent

    # -- result

    def result(self, id: str, timeout: float | None) -> Any:
        """Raises TimeoutError, JobFailedError, NoResult; ConnectionLost for a server that is away for too long."""
        if self._keeps is False:
            raise NoResult(f"job {id} keeps no result: declare or send it with result_ttl=...")
        began, wait, every, away = time.monotonic(), FIRST_WAIT, LOOK, 0.0
        look_at = 0.0 if self._keeps is None else LOOK  # of a bare id nobody knows whether there is such a job
        while True:
            try:
                kept = self._jobs().kept(id)
                if kept is not None and kept.status is not None:
                    return self._value(id, kept)
                if time.monotonic() - began >= look_at:
                    self._must_be_there(id)
                    look_at, every = look_at + every, every * 2
                away = 0.0
            except ConnectionLost:
                away = away or time.monotonic()
                if timeout is None and time.monotonic() - away > AWAY:
                    raise
            left = wait if timeout is None else timeout - (time.monotonic() - began)
            if left <= 0:
                raise TimeoutError(f"job {id} has not ended within {timeout:g} s")
            time.sleep(min(wait, left))
            wait = min(LONGEST_WAIT, wait * GROWS)

    def _must_be_there(self, id: str) -> None:
        """A job that nobody has any more, and one that only the failed store has, end no wait by themselves."""
        found = self.find(id) or self.find(id)  # one that was put back behind the look is met by the second
        kept = self._jobs().kept(id)
        if kept is not None and kept.status is not None:
            return
        if found is None:
            raise NoResult(f"job {id} has no result: nothing is known of it (any more)")
        if found.spot == "failed":
            raise error_of(id, found.text.partition(b"\n")[0])

    def _value(self, id: str, kept: Kept) -> Any:
        if kept.status == "failed":
            raise error_of(id, kept.value)
        if kept.value[:1] == UNFIT:
            reason = kept.value[1:].decode("utf-8", "replace")
            raise NoResult(f"job {id} has succeeded, and its result is not kept: {reason}")
        hint = Any if self._declared is None else result_type(self._declared)
        try:
            return msgspec.json.decode(kept.value, type=hint, dec_hook=made)
        except FAILURES:
            pass  # it returned something else than it says
        try:
            return msgspec.json.decode(kept.value)
        except FAILURES as error:
            raise NoResult(f"job {id} has succeeded, and what stands for its result is no JSON: {why(error)}") from None

    # -- cancel

    def cancel(self, id: str) -> bool:
        """True: it will not run any more, or was told to end. False: it had ended, is unknown, or another program's."""
        missed, before = 0, b""
        for _ in range(TRIES):
            found = self.find(id, "delayed", "ready", "running")
            if found is None:
                missed += 1
                if missed == 2:
                    return False
            elif found.spot == "running":
                if self._jobs().stop(found):
                    return True
                if found.text == before:
                    return False  # it stands there, and no worker of ours has it
                before = found.text
            elif self._jobs().drop(found, ends(found.payload, "failed", value=cancelled())):
                return True
        raise ServerBusy(f"job {id} moves on at every try to cancel it: try again")


def dropped(found: Found) -> bool:
    """It was cancelled while it ran: it stands in ready only until the next worker sees that."""
    return found.spot == "ready" and (found.payload.rsv or "").endswith(f".{Ending.CANCELLED}")


def result_type(declared: Declared) -> Any:
    """What it says that it returns; Any where it says nothing, or what JSON cannot be made into."""
    target = declared.target
    try:
        hint = typing.get_type_hints(getattr(target, "handle", target), include_extras=True).get("return", Any)
        return usable(hint)
    except Exception:  # whatever annotations raise
        return Any


# -- ends, written down


def value_of_result(result: object, most: int) -> bytes:
    """As it is kept: JSON, or UNFIT and why it cannot be. most: bytes, 0: any."""
    try:
        look(result)
        text = encode(result)
    except FAILURES as error:
        return UNFIT + f"JSON cannot carry what the job returned ({type(result).__qualname__}): {why(error)}".encode()
    if most and len(text) > most:
        return UNFIT + f"it has {len(text)} bytes of JSON, and max_payload is {most}".encode()
    return text


def value_of_error(error: BaseException, message: str) -> bytes:
    return msgspec.json.encode({"error": type(error).__name__, "message": message})


def cancelled() -> bytes:
    return msgspec.json.encode({"error": CANCELLED, "message": "the job was cancelled"})


def error_of(id: str, value: bytes) -> JobFailedError:
    try:
        said = msgspec.json.decode(value)
        return JobFailedError(id, str(said["error"]), str(said.get("message", said.get("reason", ""))))
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError, AttributeError, RecursionError):
        return JobFailedError(id, "unknown error", "")
