"""How middleware asks the store: under which name, and what becomes of the job while the store is away."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

from qd.arguments import Pattern, text_of
from qd.connectors.base import Connector
from qd.errors import ConnectionLost, DeclarationError, ServerRefused
from qd.jobs.stages import title_of
from qd.process.shield import shield
from qd.store.base import Store

if TYPE_CHECKING:
    from qd.bus.running import RunningJob
    from qd.jobs import Declared

T = TypeVar("T")
Said = str | Callable[["RunningJob"], object]
PATIENCE = 1.0  # seconds the store may take to answer
AWAY = 1.0  # seconds for which a job is put back whose middleware could not ask
log = logging.getLogger("qd.middleware")


class Key:
    """What tells jobs apart: "order:{order_id}", filled from the arguments, or a callable that is given the job."""

    def __init__(self, middleware: str, said: Said | None) -> None:
        if said is not None and not isinstance(said, str) and not callable(said):
            raise DeclarationError(
                f"{middleware}: the key {said!r} is neither a text nor a callable that takes the job"
            )
        self._middleware, self._said = middleware, said
        self._patterns: dict[str, Pattern] = {}

    def check(self, declared: Declared) -> None:
        """Raises DeclarationError when the job has no such parameter."""
        if isinstance(self._said, str):
            option = f"middleware {self._middleware}"
            self._patterns[declared.name] = Pattern(option, self._said, declared.signature)

    def __repr__(self) -> str:
        """Empty when there is none."""
        if self._said is None:
            return ""
        return repr(self._said) if isinstance(self._said, str) else title_of(self._said)

    @property
    def named(self) -> str:
        return f"key={self}" if self._said is not None else ""

    def of(self, job: RunningJob) -> str:
        """Empty when there is none."""
        if self._said is None:
            return ""
        if not isinstance(self._said, str):
            return text_of(self._said(job))
        if job.name not in self._patterns:
            assert job.declared is not None
            self.check(job.declared)
        return self._patterns[job.name].key(bytes(job.data))


def written(stage: object, *given: object) -> str:
    """The repr of middleware: with what it was given, without what is empty."""
    return f"{type(stage).__name__}({', '.join(text for one in given if (text := str(one)))})"


def asked(job: RunningJob, ask: Callable[[Store], T]) -> T:
    """What the store of the job's connection says; as queue_asked."""
    return queue_asked(job, lambda queue: ask(store_of(queue)))


def queue_asked(job: RunningJob, ask: Callable[[Connector], T]) -> T:
    """What the job's connection says. While it is away the job is put back: that is no fault of the job, and costs no
    attempt. In run() nobody is asked."""
    try:
        return within(job, PATIENCE, ask)
    except (ConnectionLost, ServerRefused) as error:
        said = str(error)
    job.release(AWAY, reason=f"nobody could say whether it may run: {said}", counts=False)


def told(job: RunningJob, tell: Callable[[Store], object], what: str) -> bool:
    """Change something in the store that the job's own end does not depend on. False: it failed, which is logged. what: does
    not happen then."""
    try:
        within(job, PATIENCE, lambda queue: tell(store_of(queue)))
    except (ConnectionLost, ServerRefused) as error:
        log.warning("%s: %s", what, error)
        return False
    return True


def within(job: RunningJob, seconds: float, ask: Callable[[Connector], T]) -> T:
    """Raises ConfigError, ConnectionLost, ServerRefused."""
    if job.backing is None:
        raise DeclarationError("middleware was called with a job that belongs to no app")
    queue = cast(Connector, job.local) if job.local else job.backing.connection(job.connection)
    with shield, queue.within(seconds):  # an alarm must not tear a call apart
        return ask(queue)


def store_of(queue: Connector) -> Store:
    from qd.store.keyspace import beside  # whose app has no such middleware loads no driver for it

    own: Store | None = getattr(queue, "store", None)  # of one that is made up, for run() and for tests
    return beside(queue) if own is None else own
