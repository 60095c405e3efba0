"""app.batch(...).run(): its jobs one after the other, then what follows; counted in memory, for as long as it lasts."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from qd.bus.batch import Batch
from qd.bus.here import Here
from qd.bus.memory import MemoryBatches
from qd.bus.running import RunningJob
from qd.bus.send import Send
from qd.bus.several import Member, members
from qd.connectors.batches import Entry, NewBatch
from qd.jobs import Call, Handle
from qd.payload import new_id
from qd.ties import Ties


class BatchHere(Batch):
    """What app.current_batch() is in its jobs and callbacks."""

    __slots__ = ("_allow", "_callbacks", "_here", "_left")

    def __init__(self, send: Send, new: NewBatch, jobs: Sequence[Member], callbacks: Mapping[str, Member]) -> None:
        super().__init__(new.id, send, "")
        self._callbacks, self._allow = callbacks, new.allow_failures
        self._here = Here(MemoryBatches(), self)
        self._left = deque(zip(ids(jobs), jobs, strict=True))
        self._kept.send(new, entries(self._left))

    @property
    def _kept(self) -> MemoryBatches:
        return self._here.batches

    def run(self) -> None:
        """Raises the first error of a job, at the end; what a callback raises at once."""
        error: Exception | None = None
        if not self._left:
            self._call_back(self._kept.settled(self.id))
        while self._left:
            id, member = self._left.popleft()
            how = "skipped"
            if error is None or self._allow:
                job = self._job(id, member, Ties(batch=self.id))
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
        self._kept.add(self.id, entries(added))
        self._left += added
        return [Handle(id) for id, _ in added]

    @property
    def dropped(self) -> int:
        """All of its failed jobs: none is kept."""
        return self.failed

    def retry_failed(self) -> int:
        """Nothing of it stands in the failed store."""
        return 0

    def _job(self, id: str, member: Member, ties: Ties) -> RunningJob:
        return self._send.made(id, *member, self._here, ties)

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
                self._send.run_made(self._job(ids([member])[0], member, Ties(after=self.id)), member.plan)


def ids(members: Sequence[Member]) -> list[str]:
    return [new_id() for _ in members]


def entries(jobs: Iterable[tuple[str, Member]]) -> list[Entry]:
    return [Entry("", id, b"", 0.0) for id, _ in jobs]
