"""The end of an attempt: answer its outcome on the server, log it and count it.

    done      -> acked with the next turn; at once if it has relations (chain, batch, lock)
    back      -> released        failed -> buried, with a record and a copy in Laravel's table
    cancelled -> acked at once   lost   -> logged

effects_of computes the effects on the job's relations, and Copier copies the records of failed jobs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from qd import events
from qd.dispatch.results import UNFIT, value_of_error, value_of_result
from qd.drivers.base import Connector
from qd.drivers.keyspace.sending import left_by
from qd.drivers.types import Effect, Forget, Keep, Released, Reserved, ends, put_back
from qd.errors import ConfigError, ConnectionLost, JobTimeout, Malformed, ServerRefused
from qd.log import Log, cut, encodable
from qd.payload.build import as_pushed
from qd.payload.format import Payload, read, readable, tags_of
from qd.payload.reservation import Ending, answered, ending_of, original, replaced_mark, saving, split_mark
from qd.payload.signing import Signing
from qd.process.counters import C, SlotCounters
from qd.process.scoreboard import Slot, SlotState, W
from qd.redaction import redact
from qd.traces import trimmed
from qd.worker.attempt import Attempts
from qd.worker.connection import HeldJob, RetryingConnection
from qd.worker.outcome import Back, Cancelled, Death, Done, Failed, Lost, Missing, Outcome

if TYPE_CHECKING:
    from qd.store.failed_jobs_table import FailedJobs


AGAIN = 10.0  # seconds until an unreachable database is tried again


class Copier:
    """Copies failed jobs to Laravel's table failed_jobs after their records are stored. If the database is unreachable, a
    try takes at most two seconds, and the job is in the failed store anyway. connection: its name in Laravel."""

    def __init__(self, url: str, connection: str, queue: Connector, log: Log) -> None:
        self.url, self.connection, self.queue, self.log = url, connection, queue, log
        self._table: FailedJobs | None = None
        self._away_until = 0.0
        self._logged = False

    def copy(self, record: dict[str, Any], raw: bytes) -> None:
        """Copy a job that has a uuid (in payloads since Laravel 5.7), which the table requires. Raises nothing."""
        if not record["uuid"] or time.monotonic() < self._away_until:
            return
        from qd.store.failed_jobs_table import DatabaseError, FailedJobs, FailedRow, signed_off

        exception = signed_off(record["trace"] or f"{record['error']}: {record['reason']}", record["id"])
        try:
            text, queue, at = as_pushed(raw).decode(), record["queue"], record["failed_at"]
            self._table = self._table or FailedJobs(self.url)
            self._table.add(FailedRow(record["uuid"], self.connection, queue, text, exception, at))
            self._logged = False
        except (DatabaseError, ConfigError) as error:
            self._away_until = time.monotonic() + AGAIN
            if not self._logged:
                self._logged = True
                fact, fix = (error.fact, f"{error.fix}; ") if isinstance(error, DatabaseError) else (str(error), "")
                hint = f"{fix}until then, failed jobs are in the failed store only"
                self.log.error("failed.not_copied", error=fact, hint=hint)
            return
        except (Malformed, UnicodeDecodeError):
            return
        with suppress(ConnectionLost, ServerRefused):  # the row stays unmarked: `qd failed retry` will not check it
            self.queue.copied(record["queue"], record["id"])


def effects_of(
    job: Reserved, payload: Payload, outcome: Outcome, most: int = 0, signing: Signing | None = None
) -> tuple[Effect, ...]:
    """The effects of an outcome on the job's relations; () without any. A released job keeps its lock. most: bytes of a
    stored result, 0: no limit. signing: signs the next job of a chain, if that takes the result."""
    relations = payload.qd
    if relations is None or isinstance(outcome, Lost):
        return ()
    if isinstance(outcome, Back):
        return put_back(payload, outcome.delay)
    if isinstance(outcome, Failed | Cancelled):
        place = f"{job.queue} {job.mark}" if isinstance(outcome, Failed) else ""
        value = value_of_error(outcome.error, words_of(outcome.error)) if relations.result is not None else b""
        return tuple(ends(payload, "failed", place, value))
    value = value_of_result(outcome.result, most) if relations.result is not None or relations.passes else b""
    return tuple(ends(payload, "skipped" if outcome.skipped else "done", value=value, signing=signing))


def was_killed(job: Reserved, payload: Payload) -> bool:
    """Whether a worker died or lost its lease while running this job. The middleware of that attempt freed nothing."""
    return payload.crashes > 0 or (b'"rsv":' in job.before and ending_of(job.before) is not Ending.ANSWERED)


def places_of(queue: Connector, job: Reserved, payload: Payload, holder: str = "") -> tuple[Effect, ...]:
    """Effects that free the places an earlier attempt left. It takes a call: only after was_killed. holder: see left_by."""
    try:
        return left_by(*queue.kept, payload.uuid or payload.id or job.mark, holder)
    except (ConfigError, ServerRefused):  # this connection stores no places, or the record is not qd's
        return ()


LINE = 250  # characters of an error in a log line
LONGEST = 16_000  # characters of a stored traceback


def log_fields(job: Reserved) -> dict[str, object]:
    payload = readable(job.member)
    if payload is None:
        return {"queue": job.queue, "id": job.mark}
    display = payload.displayName
    shows_name = display is None or display in (payload.job, payload.job.partition("@")[0])
    return {
        "queue": job.queue,
        "job": cut(payload.job),
        "display": None if shows_name else cut(display or ""),
        "id": cut(payload.id or payload.uuid or job.mark),
        "attempt": payload.attempts,
        "crashes": payload.crashes or None,
        "tags": cut(",".join(tags_of(job.member))) if b'"tags":' in job.member else None,
    }


def _saved(job: Reserved, unsaved: bytes | None) -> bytes:
    return job.member if unsaved is None else saving(job.member, job.mark, unsaved)


def short(error: BaseException) -> str:
    """The error for a log line; the record has the full text."""
    text = words_of(error)
    return cut(f"{type(error).__name__}: {text}", LINE) if text else type(error).__name__


def words_of(error: BaseException) -> str:
    """The text of the error, redacted and cut; also if its own __str__ raises."""
    try:
        return cut(encodable(redact(str(error))), LONGEST)
    except Exception:
        return f"({type(error).__name__} has no printable text)"


def full(error: BaseException, log: Log) -> str | None:
    """The traceback; None if no code of the job ran. At the log level debug it includes the frames of qd."""
    text = redact(trimmed(error, whole=log.debugs) or "\n".join(getattr(error, "__notes__", ()))) or None
    if text is None:
        return None
    text = encodable(text)
    return text if len(text) <= LONGEST else text[: LONGEST // 2] + "\n...\n" + text[-LONGEST // 2 :]


NOT_RUN = "(not run)"  # counted in place of a name that may be anything
ENDS = (Done, Failed, Cancelled)
COUNTED = {  # plain integers: see W
    Done: int(C.DONE),
    Missing: int(C.DONE),
    Failed: int(C.FAILED),
    Cancelled: int(C.CANCELLED),
    Lost: int(C.LEASE_LOST),
}


def counted_as(outcome: Outcome) -> int:
    if not isinstance(outcome, Back):
        return COUNTED[outcome.__class__]
    if isinstance(outcome.error, JobTimeout):
        return C.TIMED_OUT
    return C.HANDED_BACK if outcome.head else C.RELEASED


UNTOUCHED = Back(0.0, "reserved, but not begun", spends=False, head=True)


class Settlement:
    """keeps: whether failed jobs are kept. notify: calls the listeners of LeaseLost, and may be replaced."""

    def __init__(
        self, connection: RetryingConnection, attempts: Attempts, slot: Slot, counters: SlotCounters | None = None
    ) -> None:
        self.emitter = attempts.emitter
        self.connection, self.attempts, self.slot, self.counters = connection, attempts, slot, counters
        self.queue, self.log, settings = connection.queue, connection.log, attempts.app.settings
        self.keeps, self.most, url = settings.failed.enabled, settings.max_payload, settings.failed.database
        self.copier = Copier(url, connection.queue.settings.name, self.queue, self.log) if url else None
        self.notify: Callable[[Reserved], None] = self._notify
        self._untouched = partial(self._release, back=UNTOUCHED)
        self._buried: tuple[dict[str, object], bytes] | None = None

    def settle(self, held: HeldJob, outcome: Outcome, took: float) -> None:
        job, payload = held.job, self.attempts.payload
        effects: tuple[Effect, ...] = ()
        if payload is not None and payload.qd is not None:
            effects = effects_of(job, payload, outcome, self.most, self.attempts.signing)
        ends = isinstance(outcome, ENDS)
        if payload is not None and (self.attempts.unfreed or (ends and was_killed(job, payload))):
            holder = "" if ends else job.mark
            effects += self.connection.fetch(lambda: places_of(self.queue, job, payload, holder))
        if job.mark in self.emitter.attempts:
            effects += self._end_stream(job, payload, outcome)
        steps = held.steps or (isinstance(outcome, Cancelled) and b'"rsv":' in job.before)  # of earlier attempts
        if steps and payload is not None and isinstance(outcome, Done | Cancelled):  # a failed job keeps them
            effects += (Forget(payload.id or payload.uuid or ""),)
        if isinstance(outcome, Done):
            if not (held.unsure or effects):
                # Before `finish`: after that the keeper acks the job of a dead worker. A lost lease is found too late.
                self._count(job, outcome, took)
                self.connection.finish(job)
            if isinstance(outcome, Missing):
                if self.log.logs_ends:
                    self.log.info("job.missing", **log_fields(job), reason=outcome.why)
            elif self.log.logs_done:
                self.log.info("job.done", **log_fields(job), took=took)
            if held.unsure or effects:
                self._count(job, outcome, took, kept=self._ack(held, effects))
        elif isinstance(outcome, Lost):
            # No reservation is left to ack, but the job may still be listed under this worker.
            self.connection.until_answered(held, self.queue.ack)
            self._count(job, outcome, took)
            self._lost(job, notified=True)
        else:
            if isinstance(outcome, Back):
                self.slot[W.HANDED_BACK] += int(outcome.head)
            answer = partial(self._answer, outcome=outcome, unsaved=held.unsaved, effects=effects)
            kept = self.connection.until_answered(held, answer) is not False
            self._count(job, outcome, took, kept=kept)
            self._log_outcome(job, outcome)
            if not kept:
                self._lost(job)
            elif isinstance(outcome, Failed) and self.copier is not None and self._buried is not None:
                self.copier.copy(*self._buried)
                self._buried = None

    def _end_stream(self, job: Reserved, payload: Payload | None, outcome: Outcome) -> tuple[Effect, ...]:
        """Wait until the events of the attempt are sent. The effect: its end is recorded, also without result_ttl."""
        attempt = self.connection.fetch(partial(self.emitter.end, job.mark))
        if not isinstance(outcome, ENDS) or (payload and payload.qd and payload.qd.result):
            return ()
        error = None if isinstance(outcome, Done) else outcome.error
        value = UNFIT + b"it has no result_ttl" if error is None else value_of_error(error, words_of(error))
        return (Keep(attempt.id, "done" if error is None else "failed", value, attempt.ttl),)

    def _answer(
        self, job: Reserved, outcome: Back | Failed | Cancelled, unsaved: bytes | None, effects: Sequence[Effect]
    ) -> bool:
        """False: the lease was lost. unsaved: a checkpoint that the server does not have yet."""
        if isinstance(outcome, Back):
            return self._release(job, outcome, unsaved, effects)
        if isinstance(outcome, Failed):
            return self._bury(job, outcome, unsaved, effects)
        return self.queue.ack(job, effects)

    def _release(self, job: Reserved, back: Back, unsaved: bytes | None = None, effects: Sequence[Effect] = ()) -> bool:
        payload = read(job.member)
        attempts = payload.attempts if back.spends else payload.attempts - 1
        text = _saved(job, unsaved)
        text = answered(text, job.mark, attempts=max(0, attempts), exceptions=back.exceptions, held=back.held)
        return self.queue.release(job, Released(text, back.delay, back.head), effects)

    def _bury(self, job: Reserved, failed: Failed, unsaved: bytes | None, effects: Sequence[Effect]) -> bool:
        payload = readable(job.member)
        if payload is None or isinstance(failed.error, Malformed):
            raw, payload = original(job.member, job.start, job.length, job.before), None
        else:
            raw = answered(_saved(job, unsaved), job.mark, attempts=max(0, failed.attempts))
        record: dict[str, object] = {
            "id": job.mark,
            "uuid": payload.uuid if payload else None,
            "queue": job.queue,
            "job": payload.job if payload else None,
            "error": type(failed.error).__name__,
            "reason": words_of(failed.error),
            "attempts": max(0, failed.attempts) if payload else 0,
            "crashes": payload.crashes if payload else 0,
            "failed_at": round(time.time(), 3),
            "trace": full(failed.error, self.log),
        }
        if failed.death is not None and failed.death.facts is not None:
            record["death"] = failed.death.facts
        if self.copier is not None:
            record["copied"] = False  # as copied.lua looks for it
            self._buried = record, raw
        return self.queue.bury(job, json.dumps(record).encode(), raw, effects)

    def _log_outcome(self, job: Reserved, outcome: Back | Failed | Cancelled) -> None:
        error = outcome.error
        if not (self.log.logs_ends or isinstance(error, Malformed)):
            return
        fields = log_fields(job)
        reason = {} if error is None else {"error": short(error), "trace": full(error, self.log)}
        if isinstance(outcome, Back):
            level = "warning" if error is not None or outcome.unroutable else "info"
            fields |= {"delay": outcome.delay, "reason": cut(outcome.why, LINE)}
            self.log.line(level, "job.released", {**fields, **reason})
        elif isinstance(outcome, Failed):
            if "attempt" in fields:  # as in its record: an attempt that did not begin does not count
                fields["attempt"] = max(0, outcome.attempts)
            event = "job.malformed" if isinstance(error, Malformed) else "job.failed"
            self.log.error(event, **fields, kept=None if self.keeps else "no", **reason)
        else:
            self.log.warning("job.cancelled", **fields)

    def death_before(self, job: Reserved) -> Death:
        """How the worker died that held this job before, if the keeper has noted it. Older notes have no facts."""
        try:
            mark = replaced_mark(job.before)
            note = self.queue.death(job.queue, split_mark(mark).noted) if mark else None
            found = json.loads(note) if note else {}
            facts = found.get("death")
            if facts is not None:  # without nested values: qd writes none, and others may nest too deep to be encoded
                facts = {key: value for key, value in facts.items() if not isinstance(value, list | dict)}
            return Death(str(found.get("told", "")), facts)
        except (ValueError, AttributeError, RecursionError, ConnectionLost, ServerRefused):
            return Death()

    def flush(self) -> None:
        """Send the acks that wait for the next turn, and give back jobs that have not started."""
        self.connection.flush(self._untouched, self._ack)

    def lost(self, jobs: Sequence[Reserved]) -> None:
        """A turn found the leases of these finished jobs lost."""
        if jobs and self._has_listeners:
            self.flush()  # they must not delay jobs that are already reserved
        for job in jobs:
            self._lost(job)

    def lost_before(self, done: Reserved, reserved: Reserved | None) -> Reserved | None:
        """The turn found the lease of the previous job lost. Returns the job it reserved, unless it was given back."""
        if reserved is not None and self._has_listeners:  # they must not delay a job that is already reserved
            self.connection.until_answered(HeldJob(reserved), self._untouched)
            reserved = None
        self._lost(done)
        return reserved

    def _ack(self, held: HeldJob, effects: Sequence[Effect] = ()) -> bool:
        kept = self.connection.until_answered(held, lambda job: self.queue.ack(job, effects)) is not False
        if not kept:
            self._lost(held.job)
        return kept

    def _count(self, job: Reserved, outcome: Outcome, took: float, *, kept: bool = True) -> None:
        """Count how the attempt ended, if it was counted as started. kept: the lease was not lost."""
        row, counters = self.attempts.row, self.counters
        if kept and isinstance(outcome, Done):
            self.slot[W.DONE] += 1
        if counters is None:
            return
        if row is not None:
            self.attempts.row = None
            counters.ended(row, counted_as(outcome) if kept else C.LEASE_LOST, int(took * 1e6))
        elif isinstance(outcome, Failed) and kept:  # it cannot run: unreadable, forged, or not declared
            counters.started(job.queue, NOT_RUN)[C.FAILED] += 1

    def _lost(self, job: Reserved, *, notified: bool = False) -> None:
        """The lease is lost: another worker has the job or has done it. notified: listeners were already called."""
        self.log.error("job.lease_lost", **log_fields(job))
        if self.slot[W.LOST_TURN] != job.turn:
            self.slot[W.LOST] += 1
        if not notified and self._has_listeners:
            self.notify(job)

    def _notify(self, job: Reserved) -> None:
        before, self.slot[W.STATE] = self.slot[W.STATE], SlotState.BUSY  # listeners have a time limit, too
        self.attempts.notify_lost(job)
        self.slot[W.STATE] = before

    @property
    def _has_listeners(self) -> bool:
        return self.attempts.app._listeners.has(events.LeaseLost)
