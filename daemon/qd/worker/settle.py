"""What a worker answers when a job did not simply succeed: given back or buried, said in the log and in the record."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from qd.connectors.base import Connector, Released, Reserved
from qd.connectors.effects import Effect
from qd.errors import ConnectionLost, Malformed, ServerRefused
from qd.log import Log, cut
from qd.masks import masked
from qd.payload import Payload, read, tags_of
from qd.traces import trimmed
from qd.unit import answered, original, saving, split_mark
from qd.worker.copying import Copier
from qd.worker.outcome import Back, Death, Failed

LINE = 250  # characters of an error that stand in a line of the log
LONGEST = 16_000  # characters of a traceback that are kept


class Settler:
    """What an answer writes, and what is said of it once it is given. keeps: whether failed jobs are kept; copier: writes
    the copies of their records."""

    def __init__(self, queue: Connector, log: Log, *, keeps: bool = True, copier: Copier | None = None) -> None:
        self.queue, self.log, self.keeps, self.copier = queue, log, keeps, copier
        self._buried: tuple[dict[str, object], bytes] | None = None

    def give_back(self, job: Reserved, back: Back, unsaved: bytes | None, effects: Sequence[Effect] = ()) -> bool:
        """unsaved: a checkpoint that the server does not have yet."""
        payload = read(job.member)
        attempts = payload.attempts if back.spends else payload.attempts - 1
        text = _saved(job, unsaved)
        text = answered(text, job.mark, attempts=max(0, attempts), exceptions=back.exceptions, held=back.held)
        return self.queue.release(job, Released(text, back.delay, back.head), effects)

    def tell_back(self, job: Reserved, back: Back) -> None:
        level = "warning" if back.error is not None else "info"
        fields = {**self._job(job), "delay": back.delay, "reason": cut(back.why, LINE)}
        if back.error is not None:
            fields |= {"error": short(back.error), "trace": full(back.error, self.log)}
        self.log.line(level, "job.released", fields)

    def bury(self, job: Reserved, failed: Failed, unsaved: bytes | None, effects: Sequence[Effect] = ()) -> bool:
        payload = _payload(job)
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

    def copy(self) -> None:
        """Of the record that was kept last."""
        if self.copier is not None and self._buried is not None:
            self.copier.copy(*self._buried)
            self._buried = None

    def tell_failed(self, job: Reserved, failed: Failed) -> None:
        event = "job.malformed" if isinstance(failed.error, Malformed) else "job.failed"
        kept = None if self.keeps else "no"
        told = self._job(job)
        if "attempt" in told:
            told["attempt"] = max(0, failed.attempts)  # as in its record: one that did not begin is none
        self.log.error(event, **told, kept=kept, error=short(failed.error), trace=full(failed.error, self.log))

    def tell_cancelled(self, job: Reserved) -> None:
        self.log.warning("job.cancelled", **self._job(job))

    def tell_lost(self, job: Reserved) -> None:
        """Somebody else has it, or has done it: said, never taken for success."""
        self.log.error("job.lease_lost", **self._job(job))

    def tell_done(self, job: Reserved, took: float) -> None:
        self.log.info("job.done", **self._job(job), took=took)

    def tell_missing(self, job: Reserved, why: str) -> None:
        self.log.info("job.missing", **self._job(job), reason=why)

    def death_before(self, job: Reserved) -> Death:
        """How the worker died that held this job before, where somebody wrote it down. Older notes have no facts."""
        try:
            mark = json.loads(b"{" + job.before.lstrip(b", ") + b"}").get("rsv")
            note = self.queue.death(job.queue, split_mark(mark).base) if mark else None
            said = json.loads(note) if note else {}
            facts = said.get("death")
            return Death(str(said.get("told", "")), flat(facts) if isinstance(facts, dict) else None)
        except (ValueError, AttributeError, RecursionError, ConnectionLost, ServerRefused):
            return Death()

    def _job(self, job: Reserved) -> dict[str, object]:
        payload = _payload(job)
        if payload is None:
            return {"queue": job.queue, "id": job.mark}
        return {
            "queue": job.queue,
            "job": cut(payload.job),
            "display": shown_otherwise(payload),
            "id": cut(payload.id or payload.uuid or job.mark),
            "attempt": payload.attempts,
            "crashes": payload.crashes or None,
            "tags": cut(",".join(tags_of(job.member))) if b'"tags":' in job.member else None,
        }


def shown_otherwise(payload: Payload) -> str | None:
    """What people are to be shown in place of the name, where it was said."""
    shown = payload.displayName
    return None if shown is None or shown in (payload.job, payload.job.partition("@")[0]) else cut(shown)


def flat(facts: dict[str, object]) -> dict[str, object]:
    """Without what is nested: no fact of ours is, and a note may be anybody's, nested too deep to be written again."""
    return {key: value for key, value in facts.items() if not isinstance(value, list | dict)}


def _payload(job: Reserved) -> Payload | None:
    try:
        return read(job.member)
    except Malformed:
        return None


def _saved(job: Reserved, unsaved: bytes | None) -> bytes:
    return job.member if unsaved is None else saving(job.member, job.mark, unsaved)


def short(error: BaseException) -> str:
    """For a line of the log; the record has all of it."""
    text = words_of(error)
    return cut(f"{type(error).__name__}: {text}", LINE) if text else type(error).__name__


def words_of(error: BaseException) -> str:
    """What the error says, bounded; also of one whose own code fails at saying it."""
    try:
        return cut(masked(str(error)), LONGEST)
    except Exception:
        return f"({type(error).__name__} cannot say what it is)"


def full(error: BaseException, log: Log) -> str | None:
    """The traceback; None if no code of the job ran. At the log's debug level it has the frames of qd, too."""
    text = masked(trimmed(error, whole=log.debugs) or "\n".join(getattr(error, "__notes__", ()))) or None
    if text is None:
        return None
    return text if len(text) <= LONGEST else text[: LONGEST // 2] + "\n...\n" + text[-LONGEST // 2 :]
