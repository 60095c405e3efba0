"""`qd schedule test`: runs an entry here and now, to see whether it works."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import time
import traceback

import click

from qd.cli import common, output
from qd.cli.apps import app
from qd.cli.schedule.which import named, what
from qd.schedule import CallTask, Entry, JobTask, QdTask, ShellTask


@click.command("test")
@click.argument("name", metavar="NAME")
@common.options
def test(name: str) -> int:
    """Run an entry here and now, whatever its timing, filters, pauses and locks say.

    A function or command runs in the foreground, with this terminal; the job of an entry is dispatched, and its id
    printed. Exit 1: it failed.
    """
    (entry,) = named(app().schedule.entries(), [name])
    if isinstance(entry.task, JobTask):
        return sent_now(entry, entry.task)
    began = time.monotonic()
    code, why = ran(entry)
    took = time.monotonic() - began
    if common.given().json:
        output.document({"name": name, "kind": entry.kind, "ok": code == 0, "code": code, "error": why, "took_s": took})
    else:
        said = f"failed: {why}" if code else "done"
        output.note(f"{name} ({what(entry)}): {said}, took {output.duration(took)}")
    return 1 if code else 0


def sent_now(entry: Entry, task: JobTask) -> int:
    id = task.call.using().dispatch().id
    if common.given().json:
        output.document({"name": entry.name, "kind": entry.kind, "ok": True, "id": id})
    else:
        output.say(output.clean(f"sent {what(entry)} {id}"))
    return 0


def ran(entry: Entry) -> tuple[int, str]:
    """Its exit code, and why it failed."""
    task = entry.task
    if isinstance(task, CallTask):
        try:
            found = task.function()
            if inspect.isawaitable(found):
                asyncio.run(awaited(found))
        except (Exception, SystemExit) as error:
            traceback.print_exception(error)
            return 1, f"{type(error).__name__}: {error}"
        return 0, ""
    assert isinstance(task, ShellTask | QdTask)  # jobs are sent
    words = ["/bin/sh", "-c", task.line] if isinstance(task, ShellTask) else [sys.executable, "-m", "qd", *task.words]
    code = subprocess.run(words, check=False).returncode
    return code, f"exit code {code}" if code >= 0 else f"signal {-code}"


async def awaited(found: object) -> object:
    return await found  # type: ignore[misc]
