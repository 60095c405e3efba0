"""A worker's first steps, after the fork: what it must not share with its parent, and what its master must be able to do.
The scheduler's are the same.

Called in the template's grandchildren, and, without preload, in children of the master.
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
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from qd.app import Qd
from qd.bus import running
from qd.config import Settings
from qd.connectors.manager import open_queue
from qd.errors import NotInJob
from qd.log import JobRecords, Log, Patient, cut
from qd.process import signals, vitals
from qd.process.hands import Hands, Seat
from qd.process.signals import TAKE_STACK
from qd.process.talk import Ready
from qd.unit import LIFE
from qd.worker.loop import Worker

OOM_SCORE = 500  # the kernel's out-of-memory killer takes a worker before its master


def serve(app: Qd, settings: Settings, hands: Hands, seat: Seat, between: Callable[[], None] | None = None) -> int:
    """Become worker `seat` and work until there is a reason to leave. Returns the exit code.

    between: called between two looks for jobs, see Worker.
    """
    hands, stack_fd = settled(hands, seat)
    title = f"qd:{settings.work.pool or 'default'}:worker:{seat.slot}"
    own = app.connections.own
    queue = open_queue(
        settings,
        settings.work.connection,
        token=hands.token,
        slot=seat.slot,
        turns=first_turn(seat),
        title=title,
        own=own,
    )
    worker = Worker(app, settings, queue, hands, seat, between)
    os.register_at_fork(after_in_child=worker.slot.part)
    ready = Ready(slot=seat.slot, generation=seat.generation)
    return worker.run(lambda: hands.voice.tell(ready, stack_fd))


def settled(hands: Hands, seat: Seat) -> tuple[Hands, int | None]:
    """What every child in a seat does first. Returns its hands, with a log of its own, and the file for its stacks."""
    own_stdin()
    print_by_line()
    hands = replace(hands, log=hands.log.of(seat.role.word, Patient()))
    random.seed()
    vitals.die_before_parent(OOM_SCORE)
    os.environ["QD_OWNER"] = f"{hands.token}/{seat.slot}"  # for what it starts: a later master can tell whose it is
    install_quiet()
    signals.Copies().guard()
    stack_fd = ready_for_stacks()
    log_job_records(hands.log)
    return hands, stack_fd


def install_quiet() -> None:
    """Signals that steer masters mean nothing to a worker."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGQUIT, signal.SIGWINCH):
        signal.signal(number, signals.nothing)


def first_turn(seat: Seat) -> int:
    """Turns are counted on from life to life of a slot, in steps that no life uses up: what is kept under a mark (how its
    worker died) is never another job's."""
    return (seat.generation - 1) * LIFE


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
        job = running.current_job()
    except NotInJob:
        return {}
    return {"job": job.name, "job_id": cut(job.id)}


def freeze() -> None:
    """Move what the import has made out of the collector's sight, so that forks share its pages."""
    gc.collect()
    gc.freeze()
