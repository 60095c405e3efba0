"""Django's database connections around each job, and jobs that wait for their transactions.

Before and after a job, as around a request, broken connections and those older than CONN_MAX_AGE are closed
(django.db.close_old_connections), except one with an open transaction, as for run() in a view.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from qd.events import JobExceptionOccurred, JobTimedOut

if TYPE_CHECKING:
    from qd.app import Qd
    from qd.jobs.context import RunningJob


def watch(app: Qd) -> None:
    """Close old connections around every job of `app`, and let its jobs wait for commits."""

    def around(job: RunningJob, call_next: Callable[[], object]) -> object:
        declared = app._registry.get(job.name)
        close = close_both if declared is not None and declared.is_async else close_old
        close()
        try:
            return call_next()
        finally:
            close()

    app.middleware.append(around)
    app._transactions.append(wait_for_commit)
    for last in (JobExceptionOccurred, JobTimedOut):  # told after failed() and the listeners of JobFailed
        app.on(last)(lambda _: close_old())


# -- connections


def close_old() -> None:
    """Close each connection of this thread that is broken or too old, unless a transaction is open on it."""
    for connection in opened():
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


def close_both() -> None:
    """Also those of the thread in which an async job uses the database: that of sync_to_async."""
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


def close() -> None:
    """Close all connections of this thread, which is about to fork."""
    for connection in opened():
        if not connection.in_atomic_block:
            connection.close()


def opened() -> list[Any]:
    from django.db import connections  # waits until Django's settings are there

    return list(connections.all(initialized_only=True))


# -- transactions


def wait_for_commit(act: Callable[[], object], waited: frozenset[str] = frozenset()) -> bool:
    """Call `act` after the commit of the atomic block that is open in this thread. False: none is.

    A savepoint that is rolled back drops it, as Django's on_commit does. Where blocks of two databases are open, it waits
    for both, the one of "default" first. waited: databases that it has waited for; inside of a TestCase they still have
    their block open when their callbacks are called. Raises TransactionManagementError: autocommit is off, and nobody hears
    of commits.
    """
    others = sorted(opened(), key=lambda each: bool(each.alias != "default"))
    found = next((each for each in others if each.alias not in waited and has_transaction(each)), None)
    if found is None:
        return False
    found.on_commit(lambda: wait_for_commit(act, waited | {found.alias}) or act())
    return True


def has_transaction(connection: Any) -> bool:
    by_hand = connection.connection is not None and not connection.autocommit
    return bool(connection.in_atomic_block or by_hand)
