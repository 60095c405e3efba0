"""A worker's first steps, after the fork: what it must not share with its parent, and what its master must be able to do.
The scheduler's are the same.

Called in the template's grandchildren, and, without preload, in children of the master.

The first look of `qd work` at its servers, before anything runs: what only a person can mend is said, and ends the start.

    the connection can be worked on     a place for what it keeps beside its jobs, queues of names that it takes
    what its driver knows               tables, queues that are there, what takes jobs away too soon
    what this user may do               its rights, and one question to each queue
    the control connection              the same, as far as it is another one

A server that is away, or busy, is no such thing: workers wait for it. Later, whatever is wrong is tried again. What the
configuration alone tells was refused before (template.imported).
"""

from __future__ import annotations

import faulthandler
import gc
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
from typing import TYPE_CHECKING, cast

from qd.app import Qd
from qd.config.settings import Settings
from qd.drivers.connections import extras_named, open_memory, open_queue, server_warnings
from qd.errors import ConfigError, ConnectionLost, NeedsMending, NotInJob, ServerRefused
from qd.jobs.context import current_job
from qd.log import JobRecords, Log, WaitingLogWriter, cut
from qd.master.code import Assignment, ChildContext
from qd.payload.reservation import LIFE
from qd.process import proc, signals
from qd.process.channels import Ready
from qd.process.signals import TAKE_STACK
from qd.worker.worker import Worker

if TYPE_CHECKING:
    from qd.drivers.base import KeeperConnector


OOM_SCORE = 500  # the kernel's out-of-memory killer takes a worker before its master


def serve(
    app: Qd,
    settings: Settings,
    context: ChildContext,
    assignment: Assignment,
    between: Callable[[], None] | None = None,
) -> int:
    """Become worker `assignment` and work until there is a reason to leave. Returns the exit code.

    between: called between two looks for jobs, see Worker.
    """
    context, stack_fd = settled(context, assignment)
    title = f"qd:{settings.work.pool or 'default'}:worker:{assignment.slot}"
    own = app.connections.own
    queue = open_queue(
        settings,
        settings.work.connection,
        token=context.token,
        slot=assignment.slot,
        turns=first_turn(assignment),
        title=title,
        own=own,
    )
    worker = Worker(app, settings, queue, context, assignment, between)
    os.register_at_fork(after_in_child=worker.slot.detach)
    ready = Ready(slot=assignment.slot, generation=assignment.generation)
    return worker.run(lambda: context.sender.send(ready, stack_fd))


def settled(context: ChildContext, assignment: Assignment) -> tuple[ChildContext, int | None]:
    """First steps of a worker or scheduler. Returns its context with its own log, and the file for its stacks."""
    own_stdin()
    print_by_line()
    context = replace(context, log=context.log.of(assignment.role.word, WaitingLogWriter()))
    random.seed()
    proc.die_before_parent(OOM_SCORE)
    os.environ["QD_OWNER"] = (
        f"{context.token}/{assignment.slot}"  # for what it starts: a later master can tell whose it is
    )
    install_quiet()
    signals.ForkedCopies().guard()
    stack_fd = ready_for_stacks()
    log_job_records(context.log)
    return context, stack_fd


def install_quiet() -> None:
    """Signals that steer masters mean nothing to a worker."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGQUIT, signal.SIGWINCH):
        signal.signal(number, signals.nothing)


def first_turn(assignment: Assignment) -> int:
    """Turns are counted on from life to life of a slot, in steps that no life uses up: what is kept under a mark (how its
    worker died) is never another job's."""
    return (assignment.generation - 1) * LIFE


def own_stdin() -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def print_by_line() -> None:
    """What a job prints is in the file or pipe when its line is whole: a worker that is killed flushes nothing."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # else the app has put something of its own there
        with suppress(OSError, ValueError):  # closed, or nobody reads it any more
            sys.stdout.reconfigure(line_buffering=True)


def ready_for_stacks() -> int | None:
    """A file in memory that takes this process's Python stacks, written in C even while a job holds the GIL."""
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    if TAKE_STACK is None or not hasattr(os, "memfd_create"):
        return None
    fd = os.memfd_create("qd-stack", os.MFD_CLOEXEC)
    faulthandler.register(TAKE_STACK, file=fd, all_threads=True)
    return fd


def log_job_records(log: Log, context: Callable[[], Mapping[str, object]] | None = None) -> None:
    """Python's own logging becomes our lines, where the app has set up no handlers."""
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


def freeze() -> None:
    """Move what the import has made out of the collector's sight, so that forks share its pages."""
    gc.collect()
    gc.freeze()


PATIENCE = 1.0  # seconds to connect, and for each answer
TOKEN = "first-look"  # it reserves nothing


def look(app: Qd) -> list[str]:
    """What is odd, though it can be worked with. Raises ConfigError: somebody has to mend something first."""
    settings, work, own = app.settings, app.settings.work, app.connections.own
    opened = partial(open_queue, token=TOKEN, title="qd: start", patience=PATIENCE, own=own)
    with extras_named(), closing(opened(settings, work.connection)) as queue:
        odd = server_warnings(settings, work.connection, work.queues)
        if not work.only_schedule:
            with waited_for():
                try_queue(cast("KeeperConnector", queue), work.queues)
        if settings.control != work.connection:
            odd += server_warnings(settings, settings.control, ())
            with waited_for():
                try_control(settings)
    return odd


@contextmanager
def waited_for() -> Iterator[None]:
    """What a server says that only a person can mend becomes a ConfigError; one that is away may come later."""
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


def try_control(settings: Settings) -> None:
    space, prefix = open_memory(settings, settings.control, title="qd: start", patience=PATIENCE)
    try:
        space.call("EXISTS", f"{prefix}qd:down")
    finally:
        space.close()
