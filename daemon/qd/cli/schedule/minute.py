"""`qd schedule run`: the ticks of one minute, for a line of a crontab. Any number of hosts may have that line: each tick is
claimed, as by every scheduler.

    the minute by the server's clock -> Scheduler.turn, until its last tick is decided and its runs have ended
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from qd.cli import context, output
from qd.cli.context import app
from qd.cli.maintenance import laravels
from qd.cli.schedule.became import Became
from qd.cli.schedule.heard import Heard
from qd.errors import QdError
from qd.process.exits import Exit
from qd.process.signals import Mailbox
from qd.schedule import check_homes, meant_for
from qd.store import schedule

if TYPE_CHECKING:
    from qd.scheduler.loop import Scheduler
    from qd.store.base import Store

MINUTE = 60
EARLY = 5.0  # seconds by which the server's clock may be behind that of cron: then its next minute is meant
GRACE = 10.0  # seconds after the end of the minute in which its last ticks may still be taken
AWAY = "a server was away until the minute was over"
STOPPING = (signal.SIGTERM, signal.SIGINT)


@click.command("run")
@click.option("--reason", is_flag=True, help="Tell of each entry that did not run why it did not.")
@context.options
def run(reason: bool) -> int:
    """Run what is due in this minute, for a crontab.

    Any number of hosts may call it each minute: every tick runs once. It stays to the end of the minute where an
    entry comes more often, and until what it runs has ended. TERM: no more
    is begun; a second one ends what runs. Exit 1: a run failed.
    """
    own = app()
    found, entries = own.settings, own.schedule.entries()
    here = meant_for(found.env, entries)
    check_homes(here, found, own.connections.own)
    store = context.store(found, found.control)
    now = store.now()
    start = minute_of(now)
    became = Became(found, entries, start, speaks=not context.given().json, reasons=reason)
    if here:
        from qd.scheduler.loop import Scheduler  # the command line starts without it

        log, host, owner = Heard(became.hear, "warning"), socket.gethostname(), f"run-{uuid.uuid4().hex}"
        span = (start, became.end - 0.001)
        scheduler = Scheduler(own, found, log, entries=here, host=host, owner=owner, since=span[0], until=span[1])
        scheduler.down = bool(laravels(found))  # of `qd down` it knows itself
        with aside() if context.given().json else contextlib.nullcontext():
            Minute(scheduler, became, became.end - now).work()
    if reason or context.given().json:
        became.close(taken_by(store, start))
    if context.given().json:
        output.document(became.document())
    return 1 if became.failed else Exit.UNAVAILABLE if became.stopped == AWAY else 0


def minute_of(now: float) -> float:
    """The beginning of the minute that is meant at this moment, unix seconds."""
    return (now + EARLY) // MINUTE * MINUTE


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """What runs print goes to stderr: stdout is for the one document."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(stdout, 1)
        os.close(stdout)


def taken_by(store: Store, start: float) -> dict[str, str]:
    """Entry -> the host that says that it has taken its last tick, where that is of this minute."""
    try:
        notes = [*schedule.last(store).items(), *schedule.skipped(store).items()]
    except QdError:
        return {}
    return {name: one.host for name, one in notes if one.tick >= start and one.host}


class Minute:
    """seconds: until the minute is over, by the server's clock."""

    def __init__(self, scheduler: Scheduler, became: Became, seconds: float) -> None:
        self.scheduler, self.became = scheduler, became
        self._mailbox = Mailbox()
        self._until = time.monotonic() + seconds + GRACE
        self._asked = False

    def work(self) -> None:
        """Until all is decided and has ended, or it was told to stop."""
        self._mailbox.open((*STOPPING, signal.SIGCHLD))
        try:
            while not self._over():
                self._mailbox.peek(self.scheduler.turn())
                self._mailbox.mend()
                self._hear()
        finally:
            self.scheduler.end()
            self.scheduler.close()
            self._mailbox.close()

    def _over(self) -> bool:
        if time.monotonic() > self._until and not self.scheduler.drained:
            self._stop(AWAY)
        # Of what was taken and could not be begun nothing is left to wait for then.
        return self.scheduler.idle or (self.scheduler.drained and not self.scheduler.runs.alive)

    def _hear(self) -> None:
        for number in self._mailbox.read():
            if number not in STOPPING:
                continue
            if self._asked:
                self.scheduler.end()
            self._asked = True
            self._stop(f"this command was told to stop ({signal.Signals(number).name})")

    def _stop(self, why: str) -> None:
        self.became.stopped = self.became.stopped or why
        self.scheduler.drain()
