"""Django's database connections around each job, and jobs that wait for their transactions.

Before and after a job, as around a request, broken connections and those older than CONN_MAX_AGE are closed
(django.db.close_old_connections), except one with an open transaction, as for run() in a view. In a worker that runs
several jobs, each thread has its connections, and each async job a thread of its own for sync_to_async, as a request of
ASGI has; the connections of that are closed with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from qd.app import Qd
from qd.events import JobExceptionOccurred, JobTimedOut
from qd.jobs.context import RunningJob


def watch(app: Qd) -> None:
    """Close old connections around every job of `app`, and let its jobs wait for commits."""

    def around(job: RunningJob, call_next: Callable[[], object]) -> object:
        declared = app._registry.get(job.name)
        runs_async = declared is not None and declared.is_async
        shared = runs_async and app.settings.work.concurrency > 1
        close = close_both if runs_async and not shared else close_old
        close()
        try:
            with own_thread() if shared else nullcontext():
                return call_next()
        finally:
            close()

    app.middleware.append(around)
    app._transactions.append(wait_for_commit)
    for last in (JobExceptionOccurred, JobTimedOut):  # emitted after failed() and JobFailed
        app.on(last)(lambda _: close_old())


def close_old() -> None:
    """Close each connection of this thread that is broken or too old, unless a transaction is open on it."""
    for connection in opened():
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


def close_both() -> None:
    """Also in the thread in which async jobs use the database, that of sync_to_async."""
    import asyncio

    from asgiref.sync import sync_to_async

    close_old()
    if asyncio._get_running_loop() is not None:
        return  # run() of an async job raises in a running loop anyway
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(sync_to_async(close_old)())
    finally:
        loop.close()


@contextmanager
def own_thread() -> Iterator[None]:
    """Inside, sync_to_async has a thread of its own, and not that of all jobs."""
    from asgiref.sync import SyncToAsync, ThreadSensitiveContext

    here = ThreadSensitiveContext()
    token = SyncToAsync.thread_sensitive_context.set(here)
    try:
        yield
    finally:
        SyncToAsync.thread_sensitive_context.reset(token)
        threads = SyncToAsync.context_to_thread_executor.pop(here, None)
        if threads is not None:
            threads.submit(close).result()
            threads.shutdown()


def close() -> None:
    """Close all connections of this thread, which is about to fork."""
    for connection in opened():
        if not connection.in_atomic_block:
            connection.close()


def opened() -> list[Any]:
    from django.db import connections  # needs Django's settings

    return list(connections.all(initialized_only=True))


def wait_for_commit(act: Callable[[], object], waited: frozenset[str] = frozenset()) -> bool:
    """Call `act` after the commit of the atomic block that is open in this thread. Returns False without one.

    A savepoint that is rolled back drops it, as Django's on_commit does. If blocks of two databases are open, it waits for
    both, "default" first. waited: databases that have committed; in a TestCase their block is still open when their
    callbacks run. Raises TransactionManagementError if autocommit is off, because Django then reports no commits.
    """
    for found in sorted(opened(), key=lambda each: bool(each.alias != "default")):
        by_hand = found.connection is not None and not found.autocommit
        if found.alias not in waited and (found.in_atomic_block or by_hand):
            found.on_commit(partial(committed, act, waited | {found.alias}))
            return True
    return False


def committed(act: Callable[[], object], waited: frozenset[str]) -> None:
    if not wait_for_commit(act, waited):
        act()
