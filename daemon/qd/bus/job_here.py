"""How a job runs where it is sent, here and now: one attempt inside its middleware, with the events a worker would send.

run() and tests call `run_here`; the connection `sync` (at_once.py) tries again, as a worker does.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextvars import copy_context
from typing import Any

from qd import events
from qd.bus.pipeline import through
from qd.bus.running import RunningJob, in_hand
from qd.errors import JobFailure, Settled
from qd.jobs import Declared
from qd.jobs.plan import Middleware
from qd.limits import Release
from qd.listeners import Listeners


def run_here(
    declared: Declared, data: bytes, job: RunningJob, listeners: Listeners, stages: Sequence[Middleware] = ()
) -> Any:
    """One attempt in this process, inside the middleware `stages`, with the events a worker would send. Returns what the
    job returned.

    A job that fails raises its own error, after failed() and the listeners; one that settles itself raises JobFailure.
    """
    if declared.is_async:
        refuse_in_a_loop()
    call = job.prepared(declared)
    with in_hand(job):
        return attempt_here(call, declared, data, job, listeners, stages)


def body_here(
    call: Callable[[], object], declared: Declared, job: RunningJob, listeners: Listeners, stages: Sequence[Middleware]
) -> object:
    """The job's code, inside its middleware. Raises what they raise."""
    listeners.emit(events.JobProcessing(job))
    return through(stages, declared, job, call, finished) if stages else finished(call())


def attempt_here(
    call: Callable[[], object],
    declared: Declared,
    data: bytes,
    job: RunningJob,
    listeners: Listeners,
    stages: Sequence[Middleware],
) -> object:
    result: object = None
    try:
        result = body_here(call, declared, job, listeners, stages)
    except (Exception, Settled) as error:
        if job.outcome is None:
            tell_of_failure(declared, data, error, job, listeners)
            raise
    if isinstance(job.outcome, Release):
        listeners.emit(events.JobReleased(job, job.outcome.delay, job.outcome.reason))
        listeners.emit(events.JobAttempted(job, None))
        why = f" ({job.outcome.reason})" if job.outcome.reason else ""
        raise JobFailure(f"{job.name} released itself for {job.outcome.delay:g} s{why}, and run() runs it only once")
    if job.outcome is not None:
        failure = job.outcome.error or JobFailure(job.outcome.reason)
        tell_of_failure(declared, data, failure, job, listeners)
        raise failure
    listeners.emit(events.JobProcessed(job))
    listeners.emit(events.JobAttempted(job, None))
    return result


def tell_of_failure(
    declared: Declared, data: bytes, error: BaseException, job: RunningJob, listeners: Listeners
) -> None:
    try:
        declared.on_failed(data, error)
    finally:
        listeners.emit(events.JobFailed(job, error))
        listeners.emit(events.JobExceptionOccurred(job, error))
        listeners.emit(events.JobAttempted(job, error))


def finished(result: object) -> object:
    """The result, of a coroutine once it has run."""
    return run_to_end(result) if inspect.iscoroutine(result) else result


def refuse_in_a_loop() -> None:
    """Before anything is opened for a coroutine that could not be run."""
    import asyncio  # only who declares an async job pays for it

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError("run() of an async job was called in a running event loop: await the plain call instead")


def beside_a_loop(act: Callable[[], None]) -> None:
    """act(); in a thread where this one runs an event loop, since a job may be async and needs one of its own."""
    import asyncio  # loaded where jobs run where they are sent

    if asyncio._get_running_loop() is None:
        return act()
    raised: list[BaseException] = []

    def body() -> None:
        try:
            act()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=copy_context().run, args=(body,))
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


def run_to_end(coroutine: Coroutine[Any, Any, Any]) -> object:
    import asyncio  # only who declares an async job pays for it

    try:
        refuse_in_a_loop()
    except RuntimeError:
        coroutine.close()
        raise
    return asyncio.run(coroutine)
