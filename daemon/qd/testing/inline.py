"""`app.inline()`: each job runs when it is dispatched, in that thread, with conversion, middleware and events.

A delay is ignored, and a job that releases itself runs again. An error ends the job, as in run(): dispatch() raises it after
failed(), the listeners and the `catch` job of a chain.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from msgspec.structs import replace

from qd.dispatch.dispatcher import Push as PushBatch
from qd.dispatch.local import MOST_RUNS, LocalRunner, Policy, SentJob, outside_loop
from qd.dispatch.route import Message
from qd.dispatch.services import Services
from qd.drivers.types import Count, Effect, Keep, NewBatch, Push
from qd.jobs.context import RunningJob
from qd.jobs.plan import Plan
from qd.jobs.policy import Release
from qd.payload.format import read
from qd.testing.fake import Fake, staged


class InlinePolicy(Policy):
    """A job that releases itself runs again immediately, up to its tries. An error ends it."""

    def __init__(self, plan: Plan) -> None:
        self._name, self._tries = plan.declared.name, plan.options.tries or MOST_RUNS
        self._runs = 0

    def before(self) -> str | None:
        self._runs += 1
        if self.attempts > self._tries or self._runs > MOST_RUNS:
            return f"{self._name} was released until its tries were used up"
        return None

    def after_release(self, job: RunningJob, release: Release) -> None:
        self.attempts += release.counts


class Inline(Fake):
    """Runs each job, and records it as a Fake does. A job that is not declared here (of PHP, for example) is only
    recorded."""

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._services = services

    def _submit_now(self, messages: Sequence[Message], push: PushBatch | None = None) -> list[str]:
        sent, errors = super()._submit_now(messages, push), list[Exception]()
        for message in messages:
            try:
                outside_loop(partial(self._run, message))
            except Exception as error:
                if push is None:
                    raise
                batch = self._kept.kept[message.relations.batch or ""] if message.relations else None
                if batch is None or not batch.new.allow_failures:
                    errors.append(error)
        if push is not None and not messages:
            for id, kept in list(self._kept.kept.items()):
                if not kept.total:
                    errors += self._call_back(kept.new, self._kept.settled(id))
        if errors:
            raise errors[0]
        return sent

    def _run(self, message: Message) -> None:
        """Run it, what follows in its chain, and the callbacks of its batch. Raises the first error, at the end."""
        ahead, errors = deque([message]), list[Exception]()
        while ahead:
            each, effects = ahead.popleft(), list[Effect]()
            if each.plan is None:
                continue
            self._waiting.begun.add(each.id)
            try:
                self._attempts(each, each.plan, effects.append)
            except Exception as error:
                errors.append(error)
            for pushed in effects:
                if isinstance(pushed, Push):  # a job of a chain, with the rest of it
                    payload = read(pushed.payload)
                    next_one = self._made[payload.id or ""]
                    ahead.append(replace(next_one, body=pushed.payload, relations=payload.qd))
            errors += self._done(effects)
        if errors:
            raise errors[0]

    def _attempts(self, message: Message, plan: Plan, on_effect: Callable[[Effect], None]) -> None:
        declared, payload, services = plan.declared, read(message.body), self._services
        ttl = message.relations and message.relations.result
        progress = (lambda percent: self._waiting.progress(message.id, percent, ttl)) if ttl else None
        job = SentJob(payload, message.body, declared, message.connection, message.queue, services, progress)
        runner = LocalRunner(services.pipeline, services.listeners, InlinePolicy(plan), on_effect)
        runner.run(declared, job.attempt, payload)

    def _done(self, effects: Sequence[Effect]) -> list[Exception]:
        """Apply the effects in memory. Returns the errors of callbacks."""
        errors = list[Exception]()
        for effect in sorted(effects, key=lambda each: not isinstance(each, Keep)):  # a callback may ask for the result
            if isinstance(effect, Keep):
                self._waiting.keep(effect)
            elif isinstance(effect, Count):
                new = self._kept.kept[effect.id].new
                errors += self._call_back(new, self._kept.ended(effect.id, effect.job, effect.how))
        return errors

    def _call_back(self, new: NewBatch, due: Iterator[str]) -> list[Exception]:
        """Run the callbacks that are due. Returns their errors."""
        errors = list[Exception]()
        for what in due:
            try:
                if (callback := self._called_back(new, what)) is not None:
                    self._run(callback)
            except Exception as error:
                errors.append(error)
        return errors


@contextmanager
def inlined(services: Services) -> Iterator[Fake]:
    """In the block the app's jobs run where they are dispatched. Blocks may be nested, as those of fake()."""
    inline = Inline(services)
    with staged(services, inline._submit_now, inline._remember, inline._waiting, inline._kept):
        yield inline
