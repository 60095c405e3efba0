"""`qd schedule test`: runs an entry here and now, to see whether it works."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from qd.cli import context, output
from qd.cli.context import app
from qd.cli.schedule.heard import Heard
from qd.cli.schedule.which import named, what
from qd.schedule import Entry, JobTask

if TYPE_CHECKING:
    from qd.app import Qd
    from qd.scheduler.runs import Ended


@click.command("test")
@click.argument("name", metavar="NAME")
@context.options
def test(name: str) -> int:
    """Run an entry here and now, to see whether it works.

    Its timing, filters, pauses and locks do not count. A function or command runs with its hooks, and this waits
    for it; the job of an entry is dispatched, and its id
    printed. Exit 1: it failed.
    """
    own = app()
    (entry,) = named(own.schedule.entries(), [name])
    if isinstance(entry.task, JobTask):
        return sent_now(entry, entry.task)
    ended = ran(own, entry)
    if context.given().json:
        facts = {"name": name, "kind": entry.kind, "ok": not ended.error, "code": ended.code, "error": ended.error}
        output.document({**facts, "took_s": round(ended.runtime, 3)})
    else:
        said = f"failed: {ended.error}" if ended.error else "done"
        output.note(f"{name} ({what(entry)}): {said}, took {output.duration(ended.runtime)}")
    return 1 if ended.error else 0


def sent_now(entry: Entry, task: JobTask) -> int:
    id = task.call.using().dispatch().id
    if context.given().json:
        output.document({"name": entry.name, "kind": entry.kind, "ok": True, "id": id})
    else:
        output.say(output.clean(f"sent {what(entry)} {id}"))
    return 0


def ran(own: Qd, entry: Entry) -> Ended:
    """In a process of its own, as the scheduler runs it, but with nothing taken or noted in the store."""
    from qd.scheduler.runs import Runs  # the command line starts without it

    found = own.settings
    nowhere = context.store_at("unix:///dev/null", "")  # nothing is asked of it: an embedded server need not start
    aside = printing_aside if context.given().json else bool
    runs = Runs(own, found, Heard(told, "info"), nowhere, forked=aside)
    return runs.run_here(entry, round(time.time(), 3), f"test-{uuid.uuid4().hex}")


def told(event: str, fields: Mapping[str, object]) -> bool:
    """Of a failed run its traceback is shown; how it ended is the command's own last line."""
    if event == "schedule.failed" and fields.get("trace"):
        for line in str(fields["trace"]).rstrip().splitlines():
            output.note(line)
    return event in ("schedule.started", "schedule.done", "schedule.failed")


def printing_aside() -> None:
    """stdout is for the one document."""
    os.dup2(2, 1)
