"""`app.inline()`: what is dispatched runs at once, in the thread that dispatches it, through conversion and events.

Nothing waits: a delay is passed over, and a job that releases itself runs again. An error is the end of the job, as in
run(): it comes out of dispatch() once failed(), the listeners and what catches a chain have run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from qd.bus.job_here import beside_a_loop, run_here, tell_of_failure
from qd.bus.parcel import Parcel
from qd.bus.results import value_of_error, value_of_result
from qd.bus.running import RunningJob
from qd.bus.send import Push
from qd.bus.services import Services
from qd.connectors.batches import NewBatch
from qd.errors import AttemptsExceeded, JobFailure
from qd.limits import Release
from qd.testing.fake import Fake
from qd.testing.stage import staged

MOST = 1000  # runs of a job that releases itself without end


class Inline(Fake):
    """Runs each job that it is given, and writes it down as a Fake does. A job that is not declared here, PHP's for
    example, is only written down."""

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._services = services

    def _post(self, parcels: Sequence[Parcel], push: Push | None = None) -> list[str]:
        sent, errors = super()._post(parcels, push), list[Exception]()
        for parcel in parcels:
            try:
                beside_a_loop(partial(self._run, parcel))
            except Exception as error:
                if push is None:
                    raise
                errors += self._unexpected(parcel, error)
        if push is not None and not parcels:
            self._finish_empty()
        if errors:
            raise errors[0]
        return sent

    def _unexpected(self, parcel: Parcel, error: Exception) -> list[Exception]:
        """The error of a job of a batch; none where it allows failures."""
        kept = self._kept.kept[parcel.ties.batch or ""] if parcel.ties else None
        return [] if kept and kept.new.allow_failures else [error]

    def _finish_empty(self) -> None:
        for id, kept in list(self._kept.kept.items()):
            if not kept.total:
                self._call_back(kept.new, self._kept.settled(id))

    def _run(self, parcel: Parcel) -> None:
        """It, and what hangs on it. Raises what it raises, in the end."""
        if parcel.plan is None:
            return
        chain, catch = self._behind(parcel)
        how = "failed"
        try:
            how = "skipped" if self._attempts(parcel) else "done"
            for each in chain:
                self._attempts(each)
        except Exception:
            for each in catch:
                self._run(each)
            raise
        finally:
            if parcel.ties is not None and parcel.ties.batch is not None:
                id = parcel.ties.batch
                self._call_back(self._kept.kept[id].new, self._kept.ended(id, parcel.uuid, how))

    def _call_back(self, new: NewBatch, due: Iterator[str]) -> None:
        for what in due:
            callback = self._called_back(new, what)
            if callback is not None:
                self._run(callback)

    def _attempts(self, parcel: Parcel) -> bool:
        """Run it; its result is kept where it is asked for. Whether it was skipped. Raises what it raises."""
        self._waiting.begin(parcel)
        try:
            result, skipped = self._tried(parcel)
        except Exception as error:
            self._waiting.end(parcel, "failed", partial(value_of_error, error, str(error)))
            raise
        self._waiting.end(parcel, "done", partial(value_of_result, result, 0))
        return skipped

    def _tried(self, parcel: Parcel) -> tuple[object, bool]:
        """Until it does not release itself: its result, and whether it was skipped. Raises AttemptsExceeded: its tries are
        used up."""
        assert parcel.plan is not None
        declared, tries = parcel.plan.declared, parcel.plan.options.tries or MOST
        stages, attempt = self._services.pipeline.around(declared), 1
        for _ in range(MOST):
            job = self._job(parcel, attempt)
            try:
                return run_here(declared, parcel.data, job, self._services.listeners, stages), job.skipped
            except JobFailure:
                if not isinstance(job.outcome, Release):
                    raise
            attempt += job.outcome.counts
            if attempt > tries:
                break
        error = AttemptsExceeded(f"{declared.name} was released until its tries were used up")
        tell_of_failure(declared, parcel.data, error, job, self._services.listeners)
        raise error

    def _job(self, parcel: Parcel, attempt: int) -> RunningJob:
        return RunningJob(
            parcel.id,
            parcel.name,
            parcel.queue,
            attempt,
            connection=parcel.connection,
            payload=parcel.body,
            uuid=parcel.uuid,
            ties=parcel.ties,
            declared=parcel.plan.declared if parcel.plan else None,
            data=parcel.data,
            tell=self._teller(parcel),
            backing=self._services,
        )

    def _teller(self, parcel: Parcel) -> Callable[[float], None] | None:
        """Where progress is told. None: it keeps no record."""
        ttl = parcel.ties and parcel.ties.result
        return (lambda percent: self._waiting.progress(parcel.id, percent, ttl)) if ttl else None


@contextmanager
def inlined(services: Services) -> Iterator[Fake]:
    """In the block the app's jobs run where they are dispatched. Blocks may stand in each other, as those of fake()."""
    inline = Inline(services)
    with staged(services, inline._post, inline._remember, inline._waiting, inline._kept):
        yield inline
