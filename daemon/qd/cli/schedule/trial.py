"""`qd schedule test`: runs an entry here and now, to see whether it works."""

from __future__ import annotations

import os
import time
import uuid
from typing import TYPE_CHECKING

import click

from qd.cli import common, output
from qd.cli.apps import app
from qd.cli.schedule.which import named, what
from qd.log import Log
from qd.schedule import Entry, JobTask

if TYPE_CHECKING:
    from qd.app import Qd
    from qd.scheduler.runs import Ended


@click.command("test")
@click.argument("name", metavar="NAME")
@common.options
def test(name: str) -> int:
    """Run an entry here and now, whatever its timing, filters, pauses and locks say.

    A function or command runs in the foreground, with this terminal; the job of an entry is dispatched, and its id
    printed. Exit 1: it failed.
    """
    own = app()
    (entry,) = named(own.schedule.entries(), [name])
    if isinstance(entry.task, JobTask):
        return sent_now(entry, entry.task)
    ended = ran(own, entry)
    failed = bool(ended.error)
    if common.given().json:
        facts = {"name": name, "kind": entry.kind, "ok": not failed, "code": ended.code, "error": ended.error}
        output.document({**facts, "took_s": ended.runtime})
    else:
        said = f"failed: {ended.error}" if failed else "done"
        output.note(f"{name} ({what(entry)}): {said}, took {output.duration(ended.runtime)}")
    return int(failed)


def sent_now(entry: Entry, task: JobTask) -> int:
    id = task.call.using().dispatch().id
    if common.given().json:
        output.document({"name": entry.name, "kind": entry.kind, "ok": True, "id": id})
    else:
        output.say(output.clean(f"sent {what(entry)} {id}"))
    return 0


def ran(own: Qd, entry: Entry) -> Ended:
    """As a scheduler runs it, with its hooks and listeners, but for the lock. Ctrl-C ends it."""
    from qd.scheduler.runs import Runs

    store = common.store(own.settings, own.settings.control)
    quiet = Log("schedule", level="warning")
    runs = Runs(own, own.settings, quiet, store, forked=printing_aside if common.given().json else bool)
    return runs.run_here(entry, time.time(), f"test-{uuid.uuid4().hex}")


def printing_aside() -> None:
    """stdout is for the one document."""
    os.dup2(2, 1)
