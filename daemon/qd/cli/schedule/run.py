"""`qd schedule run`: the ticks of one minute, for a crontab, on any number of hosts; each tick is claimed as usual.

    the minute by the server's clock -> Scheduler.turn, until its last tick is decided and its runs have ended

`qd schedule test`: runs an entry here and now.

Both show the scheduler's own log lines as results.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from qd.app import Qd
from qd.cli import context, output
from qd.cli.context import app
from qd.cli.control import laravels
from qd.cli.schedule.entries import moment, named, off, what
from qd.config.settings import Settings
from qd.errors import QdError
from qd.log import LEVELS, Log, Write
from qd.process.exit_codes import Exit
from qd.process.signals import Mailbox
from qd.schedule.declare import check_homes
from qd.schedule.entry import Entry, JobTask, meant_for, next_of
from qd.store import schedule

if TYPE_CHECKING:
    from qd.scheduler.runs import Ended
    from qd.scheduler.scheduler import Scheduler

SKIPS = ("schedule.skipped", "schedule.missed")
MINUTE = 60
EARLY = 5.0  # seconds by which the server's clock may be behind cron's: then its next minute is meant
GRACE = 10.0  # seconds after the end of the minute in which its last ticks may still be taken
AWAY = "a server was unreachable until the minute was over"
STOPPING = (signal.SIGTERM, signal.SIGINT)


class MinuteReport:
    """What happened to the entries in one minute, from the scheduler's log lines.

    start, end: of the minute, unix seconds. speaks: print results at once; reasons: print skipped entries, too.
    """

    def __init__(self, found: Settings, entries: Sequence[Entry], start: float, *, speaks: bool, reasons: bool) -> None:
        self.start, self.end = start, start + 60
        self.ran: list[dict[str, Any]] = []
        self.skipped: list[dict[str, Any]] = []
        self.stopped = ""  # why the minute was not completed
        self._settings, self._entries = found, entries
        self._speaks, self._reasons = speaks, reasons

    def read(self, event: str, fields: Mapping[str, Any]) -> bool:
        """A log line of the scheduler. Returns False if it is not about a tick."""
        name, kind = str(fields.get("entry", "")), event.removeprefix("schedule.")
        if kind in ("sent", "done", "failed"):
            self._run(name, kind, fields)
        elif event in SKIPS:
            self._skip(name, str(fields.get("reason") or f"{fields.get('count')} missed"), fields.get("at"))
        return kind in ("sent", "started", "done", "failed") or event in SKIPS

    def _run(self, name: str, outcome: str, fields: Mapping[str, Any]) -> None:
        took, id, error = fields.get("took"), fields.get("id"), str(fields.get("error") or "")
        tick = seconds(fields.get("at"))
        self.ran.append({"entry": name, "tick_at": tick, "outcome": outcome, "id": id, "took_s": took, "error": error})
        if not self._speaks:
            return
        if outcome == "failed":
            output.note(f"failed {name}: {error}")
            print_trace(fields, before="    ")
        else:
            more = f": job {id}" if outcome == "sent" else f", took {output.duration(took)}"
            output.say(f"{outcome} {name}{more}")

    def _skip(self, name: str, reason: str, at: object = None) -> None:
        self.skipped.append({"entry": name, "tick_at": seconds(at), "reason": reason})
        if self._speaks and self._reasons:
            output.say(f"skipped {name}: {reason}")

    def close(self, elsewhere: Mapping[str, str]) -> None:
        """Report the entries without a line. elsewhere: entry -> the host that took its tick, if known."""
        known = {one["entry"] for one in (*self.ran, *self.skipped)}
        for entry in self._entries:
            if entry.name not in known:
                self._skip(entry.name, self._why(entry, elsewhere))

    def _why(self, entry: Entry, elsewhere: Mapping[str, str]) -> str:
        if why := off(entry, self._settings):
            return why
        due = entry.timing.next_after(self.start - 0.001)
        if due is None:
            return "it never comes again"
        if due >= self.end:
            first = next_of(entry, self.start - 0.001)
            if first is None:
                return "not due within a year: its hours exclude all ticks"
            return f"not due before {moment(first, entry.timing.zone)} {entry.timing.zone}"
        if self.stopped:
            return self.stopped
        return f"taken by {elsewhere[entry.name]}" if entry.name in elsewhere else "taken by another scheduler"


def seconds(at: object) -> float | None:
    """Unix seconds of a time as written in log lines."""
    try:
        return datetime.fromisoformat(str(at)).timestamp() if at else None
    except ValueError:
        return None


@click.command("run")
@click.option("--reason", is_flag=True, help="Explain why entries did not run.")
@context.options
def run(reason: bool) -> int:
    """Run the entries that are due in this minute, for cron.

    Any number of hosts may call it each minute: every tick runs once. It stays until the end of the minute if an entry
    comes more often, and until its runs have ended. TERM: start no more runs; a second TERM kills runs. Exit 1: a run
    failed.
    """
    own = app()
    found, entries = own.settings, own.schedule.entries()
    here = meant_for(found.env, entries)
    check_homes(here, found, own.connections.own)
    store = context.store(found, found.control)
    now = store.now()
    start = minute_of(now)
    report = MinuteReport(found, entries, start, speaks=not context.given().json, reasons=reason)
    if here:
        from qd.scheduler.scheduler import Scheduler  # the command line starts without it

        log, host, owner = TickLog(report.read, "warning"), socket.gethostname(), f"run-{uuid.uuid4().hex}"
        span = (start, report.end - 0.001)
        scheduler = Scheduler(own, found, log, entries=here, host=host, owner=owner, since=span[0], until=span[1])
        scheduler.flags.down_here = bool(laravels(found))  # it reads `qd down` itself
        with stdout_to_stderr() if context.given().json else contextlib.nullcontext():
            complete(scheduler, report, report.end - now)
    if sys.stdin.isatty():  # by hand: a crontab would fill the list, and the entries have notes of their runs
        context.record(found, "schedule run", *[{"entry": one["entry"]} for one in report.ran])
    if reason or context.given().json:
        notes = list[tuple[str, schedule.Last]]()
        with contextlib.suppress(QdError):
            notes = [*schedule.last(store).items(), *schedule.skipped(store).items()]
        report.close({name: one.host for name, one in notes if one.tick >= start and one.host})
    if context.given().json:
        facts = output.fields(report, "stopped", "ran", "skipped")
        output.document({"minute_at": report.start, **facts})
    return (
        1
        if any(one["outcome"] == "failed" for one in report.ran)
        else Exit.UNAVAILABLE
        if report.stopped == AWAY
        else 0
    )


def minute_of(now: float) -> float:
    """The beginning of the minute that is meant, unix seconds."""
    return (now + EARLY) // MINUTE * MINUTE


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """What runs print goes to stderr; stdout is for the document."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(stdout, 1)
        os.close(stdout)


def complete(scheduler: Scheduler, report: MinuteReport, seconds: float) -> None:
    """Turn the scheduler until all is decided and has ended, or a signal stops it. seconds: until the end of the minute, by
    the server's clock."""
    mailbox, until, asked = Mailbox(), time.monotonic() + seconds + GRACE, False

    def stop(why: str) -> None:
        report.stopped = report.stopped or why
        scheduler.drain()

    mailbox.open((*STOPPING, signal.SIGCHLD))
    try:
        while True:
            if time.monotonic() > until and not scheduler.drained:
                stop(AWAY)
            # Claimed runs whose server is unreachable are not waited for.
            if scheduler.idle or (scheduler.drained and not scheduler.runs.alive):
                break
            mailbox.peek(scheduler.turn())
            mailbox.repair()
            for number in mailbox.read():
                if number in STOPPING:
                    if asked:
                        scheduler.end()
                    asked = True
                    stop(f"this command was stopped ({signal.Signals(number).name})")
    finally:
        scheduler.end()
        scheduler.close()
        mailbox.close()


class TickLog(Log):
    """Lines about the schedule go to `read` first; those that it refuses (False), and all others, are logged on stderr.

    level: the minimum of those. Runs, in separate processes, use it for what the app logs.
    """

    def __init__(self, read: Callable[[str, Mapping[str, object]], bool], level: str) -> None:
        super().__init__("scheduler")
        self._read, self._level = read, level

    def of(self, role: str, write: Write | None = None) -> Log:
        return Log(role, level=self._level, write=write or self.write)

    def line(self, level: str, event: str, fields: Mapping[str, object]) -> None:
        done = event.startswith("schedule.") and self._read(event, fields)
        if not done and LEVELS[level] >= LEVELS[self._level]:
            super().line(level, event, fields)


@click.command("test")
@click.argument("name", metavar="NAME")
@context.options
def test(name: str) -> int:
    """Run an entry here and now, to see whether it works.

    Its timing, filters, pauses and locks are ignored. A function or command runs with its hooks, and this waits for it;
    a job is dispatched, and its id printed. Exit 1: it failed.
    """
    own = app()
    (entry,) = named(own.schedule.entries(), [name])
    if isinstance(entry.task, JobTask):
        id = entry.task.call.using().dispatch().id
        if context.given().json:
            output.document({"name": name, "kind": entry.kind, "ok": True, "id": id})
        else:
            output.say(f"sent {what(entry)} {id}")
        return 0
    ended = run_here(own, entry)
    if context.given().json:
        facts = {"name": name, "kind": entry.kind, "ok": not ended.error, "code": ended.code, "error": ended.error}
        output.document({**facts, "took_s": round(ended.runtime, 3)})
    else:
        result = f"failed: {ended.error}" if ended.error else "done"
        output.note(f"{name} ({what(entry)}): {result}, took {output.duration(ended.runtime)}")
    return 1 if ended.error else 0


def run_here(own: Qd, entry: Entry) -> Ended:
    """Run it in a separate process, as the scheduler does, but without the store."""
    from qd.scheduler.runner import RunContext  # the command line starts without them
    from qd.scheduler.runs import Runs

    unused = context.store_at("unix:///dev/null", "")  # never queried, so an embedded server need not start
    to_stderr = (lambda: os.dup2(2, 1)) if context.given().json else bool  # stdout is for the document
    run_context = RunContext(own, own.settings, TickLog(read_test, "info"), f"test-{uuid.uuid4().hex}", to_stderr)
    return Runs(run_context, unused).run_here(entry, round(time.time(), 3))


def print_trace(fields: Mapping[str, object], before: str = "") -> None:
    for line in str(fields.get("trace") or "").rstrip().splitlines():
        output.note(f"{before}{line}")


def read_test(event: str, fields: Mapping[str, object]) -> bool:
    """The traceback of a failed run; its outcome is the command's own last line."""
    if event == "schedule.failed":
        print_trace(fields)
    return event in ("schedule.started", "schedule.done", "schedule.failed")
