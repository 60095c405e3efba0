"""First steps of a worker or scheduler after the fork, and the check of the servers at the start of `qd work`.

The steps run in grandchildren of the template and, without preload, in children of the master.

The check ends the start if there is a problem that only an operator can fix:

    the connection            a keyspace next to its jobs, valid names of queues
    its driver                tables and queues exist, no setting that removes jobs too early
    the permissions           of the user, and one call to each queue
    the control connection    the same, if it is another one

An unreachable or busy server is not such a problem: workers wait for it. Later, every error is retried. Errors of the
configuration alone were reported before (template.imported).
"""

from __future__ import annotations

import faulthandler
import io
import logging
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import cast

from qd.app import Qd
from qd.config.settings import cannot_run_several
from qd.drivers.base import KeeperConnector, with_lanes
from qd.drivers.connections import extras_named, open_memory, open_queue, server_warnings
from qd.errors import ConfigError, ConnectionLost, NeedsMending, NotInJob, ServerRefused
from qd.jobs.context import current_job
from qd.log import JobRecords, Log, WaitingLogWriter, cut
from qd.master.code import Assignment, ChildContext
from qd.payload.reservation import LIFE
from qd.process import proc, signals
from qd.process.channels import Ready
from qd.process.signals import TAKE_STACK
from qd.worker.worker import Between, Worker

MOST_THREADS = 64  # jobs whose threads a fault handler writes: it knows no more than 100, with others of the app
OOM_SCORE = 500  # the kernel's out-of-memory killer takes a worker before its master


def serve(app: Qd, context: ChildContext, assignment: Assignment, between: Between = None) -> int:
    """Become the worker of `assignment` and work until there is a reason to leave. Returns the exit code."""
    settings = app.settings
    context, stack_fd = settled(context, assignment, several=settings.work.concurrency)
    title = f"qd:{settings.work.pool or 'default'}:worker:{assignment.slot}"
    own = app.connections.own
    opened = partial(open_queue, settings, settings.work.connection, title=title, own=own)
    # Turns continue over all generations: no mark is used twice.
    queue = opened(token=context.token, slot=assignment.slot, turns=(assignment.generation - 1) * LIFE)
    lanes = with_lanes(queue)
    worker: Worker | ConcurrentWorker
    if settings.work.concurrency > 1 and lanes is not None:
        from qd.worker.concurrent import ConcurrentWorker  # loads asyncio

        worker = ConcurrentWorker(app, lanes, opened(), context, assignment, between)
    else:
        worker = Worker(app, queue, context, assignment, between)
    os.register_at_fork(after_in_child=worker.slot.detach)
    ready = Ready(slot=assignment.slot, generation=assignment.generation)
    return worker.run(lambda: context.sender.send(ready, stack_fd))


def settled(context: ChildContext, assignment: Assignment, *, several: int = 0) -> tuple[ChildContext, int | None]:
    """First steps of a worker or scheduler. Returns its context with its own log, and the file for its stacks. several: how
    many jobs it may run at once."""
    own_stdin()
    print_by_line()
    context = replace(context, log=context.log.of(assignment.role.word, WaitingLogWriter()))
    random.seed()
    proc.die_before_parent(OOM_SCORE)
    os.environ["QD_OWNER"] = f"{context.token}/{assignment.slot}"  # identifies its subprocesses to a later master
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGQUIT, signal.SIGWINCH):
        signal.signal(number, signals.nothing)
    signals.ForkedCopies().guard()
    stack_fd = ready_for_stacks()
    if several > 1 and stack_fd is not None:
        # Of more than 100 threads, the main thread would be left out, which has the event loop.
        faulthandler.register(cast(int, TAKE_STACK), file=stack_fd, all_threads=several <= MOST_THREADS)
        faulthandler.enable(file=stack_fd, all_threads=False)  # the master looks which thread has crashed
    log_job_records(context.log)
    return context, stack_fd


def own_stdin() -> None:
    """Read from /dev/null instead of the parent's stdin."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def print_by_line() -> None:
    """Flush what a job prints after each line: a killed worker flushes nothing."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # else the app has replaced it
        with suppress(OSError, ValueError):  # closed, or without a reader
            sys.stdout.reconfigure(line_buffering=True)


def ready_for_stacks() -> int | None:
    """A file in memory for this process's Python stacks, written in C even while a job holds the GIL."""
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    if TAKE_STACK is None or not hasattr(os, "memfd_create"):
        return None
    fd = os.memfd_create("qd-stack", os.MFD_CLOEXEC)
    faulthandler.register(TAKE_STACK, file=fd, all_threads=True)
    return fd


def log_job_records(log: Log, context: Callable[[], Mapping[str, object]] | None = None) -> None:
    """Write records of Python's logging as qd's log lines, if the app has set up no handlers."""
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(JobRecords(log, context or job_fields))
        if root.level == logging.WARNING:
            root.setLevel(logging.INFO)


def job_fields() -> Mapping[str, object]:
    try:
        job = current_job()
    except NotInJob:
        return {}
    return {"job": job.name, "job_id": cut(job.id)}


PATIENCE = 1.0  # seconds to connect, and for each answer
TOKEN = "first-look"  # for a connection that reserves nothing


def look(app: Qd) -> list[str]:
    """Check the servers. Returns warnings. Raises ConfigError for problems that an operator must fix first."""
    settings, work, own = app.settings, app.settings.work, app.connections.own
    opened = partial(open_queue, token=TOKEN, title="qd: start", patience=PATIENCE, own=own)
    with extras_named(), closing(opened(settings, work.connection)) as queue:
        lanes = with_lanes(queue)
        if work.concurrency > 1 and (lanes is None or not lanes.keeps_suspects):
            raise cannot_run_several(work, queue.settings)  # of an app's own driver; qd's were checked before
        odd = server_warnings(settings, work.connection, work.queues)
        if not work.only_schedule:
            with waited_for():
                try_queue(cast(KeeperConnector, queue), work.queues)
        if settings.control != work.connection:
            odd += server_warnings(settings, settings.control, ())
            with waited_for():
                space, prefix = open_memory(settings, settings.control, title="qd: start", patience=PATIENCE)
                with closing(space):
                    space.call("EXISTS", f"{prefix}qd:down")
    return odd


@contextmanager
def waited_for() -> Iterator[None]:
    """Turn problems that only an operator can fix into a ConfigError; ignore an unreachable server."""
    try:
        yield
    except NeedsMending as error:
        raise ConfigError(str(error)) from None
    except (ConnectionLost, ServerRefused):
        pass


def try_queue(queue: KeeperConnector, queues: Sequence[str]) -> None:
    lacks = queue.missing_rights(queues[0])
    if lacks:
        words = " ".join(sorted(lacks)).upper()
        raise ConfigError(
            f"user '{queue.user()}' of connection '{queue.settings.name}' may not call {words}: `qd doctor` says how to "
            "grant what is missing"
        )
    for name in queues:
        queue.sizes(name)
