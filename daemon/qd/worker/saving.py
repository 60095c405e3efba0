"""What the job in hand saves or tells, on its way to the server: job.checkpoint() -> Saver -> queue.checkpoint, and
job.progress() -> Saver -> queue.jobs.progress.

A call of it may come from any thread of the job, and from its main thread is never torn by an alarm. Nothing of a server
that is away reaches the job: what could not be kept is remembered, and goes with the next checkpoint or with the answer.
"""

from __future__ import annotations

import os
import threading
import time
from typing import NamedTuple

from qd.connectors.base import Connector, Reserved
from qd.errors import NOTHING_DONE, ConnectionLost, LeaseLost, NotInJob, ServerRefused
from qd.log import Log
from qd.process.shield import in_main_thread, shield
from qd.unit import saving
from qd.worker.alarm import Alarm

AWAY = (ConnectionLost, ServerRefused)
PATIENCE = 0.2  # seconds a call waits for the server: less than what a job has between its alarm and its end
REST = 10  # times as long as a call has failed, the next ones only remember


class Held(NamedTuple):
    """The job after its attempt. unsaved: a state that the server does not have for certain. unsure: a call broke, so
    another text of it may stand there, now or a little later: ask before the answer, and after one that was refused."""

    job: Reserved
    unsaved: bytes | None = None
    unsure: bool = False


def stands(queue: Connector, job: Reserved) -> Reserved | None:
    """The job as it stands by the server's word. None: it is not this worker's any more."""
    mine = queue.held((job.queue,))
    return job._replace(member=mine.member) if mine is not None and mine.mark == job.mark else None


class Saver:
    def __init__(self, queue: Connector, alarm: Alarm, log: Log) -> None:
        self.queue, self.alarm, self.log = queue, alarm, log
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._mark: str | None = None  # of the job whose checkpoints are taken; None: no attempt is under way
        self._job: Reserved | None = None  # as it stands
        self._unsaved: bytes | None = None
        self._used = self._unsure = self._calling = False
        self._not_before = 0.0

    def begin(self, job: Reserved) -> None:
        if self._used:
            self._unsaved, self._used, self._unsure, self._not_before = None, False, False, 0.0
        self._job, self._mark = job, job.mark

    def end(self) -> Held:
        """The attempt is over: nothing of it is saved any more."""
        self._mark = None
        # Set before the mark is looked at: a call under way is seen here, or sees that it comes too late.
        if self._used:
            with self._lock:
                pass
        assert self._job is not None
        return Held(self._job, self._unsaved, self._unsure)

    def keep(self, mark: str, state: bytes) -> None:
        """Keep `state` (JSON text) with the job that was reserved under `mark`. Raises NotInJob; LeaseLost in the job."""
        with shield:
            if os.getpid() != self._pid:
                raise NotInJob(
                    "job.checkpoint() was called in a process that the job has forked: call it in the job's own"
                )
            self._used = True
            with self._lock:
                if self._mark != mark:
                    raise NotInJob("job.checkpoint() was called after its job had ended")
                self._unsaved = state
                if self._calling or time.monotonic() < self._not_before:
                    return  # from a signal handler, in the middle of a call; or the server is away
                kept = self._send(state)
        if not kept:
            self.alarm.lease_lost()
            if not in_main_thread():
                raise LeaseLost("the reservation is gone")

    def tell(self, mark: str, id: str, ttl: float, percent: float) -> None:
        """Keep how far the job is that was reserved under `mark`, as well as it goes. Raises NotInJob."""
        with shield:
            if os.getpid() != self._pid:
                raise NotInJob(
                    "job.progress() was called in a process that the job has forked: call it in the job's own"
                )
            self._used = True
            with self._lock:
                if self._mark != mark:
                    raise NotInJob("job.progress() was called after its job had ended")
                if self._calling or time.monotonic() < self._not_before:
                    return
                self._progress(id, percent, ttl)

    def _progress(self, id: str, percent: float, ttl: float) -> None:
        began = time.monotonic()
        self._calling = True
        try:
            with self.queue.within(PATIENCE):
                self.queue.jobs.progress(id, percent, ttl)
        except AWAY as error:
            self._not_before = time.monotonic() + REST * (time.monotonic() - began)
            self.log.debug("job.progress", kept=False, error=str(error))
        finally:
            self._calling = False

    def _send(self, state: bytes) -> bool:
        """False: the lease was lost."""
        began = time.monotonic()
        self._calling = True
        try:
            with self.queue.within(PATIENCE):
                return self._kept(state)
        except AWAY as error:
            self._unsure = self._unsure or not isinstance(error, NOTHING_DONE)
            self._not_before = time.monotonic() + REST * (time.monotonic() - began)
            self.log.debug("job.checkpoint", kept="in memory", error=str(error))
            return True
        finally:
            self._calling = False

    def _kept(self, state: bytes) -> bool:
        assert self._job is not None
        job: Reserved | None = self._job
        if self._unsure:
            job = stands(self.queue, self._job)
        while job is not None:
            self._job = job
            member = saving(job.member, job.mark, state)
            if self.queue.checkpoint(job, member):
                self._job, self._unsaved, self._unsure = job._replace(member=member), None, False
                return True
            # One whose reply was lost may have come in between.
            found = stands(self.queue, job) if self._unsure else None
            job = found if found is not None and found.member != job.member else None
        return False
