"""What the buttons do: each is a command, run as a process of its own in the name of the viewer.

GET  do/NAME?...  the page that says what will happen, with the command
POST do/NAME      runs it, and shows what it printed
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from glob import escape
from typing import NamedTuple

from qd.cli.context import Given
from qd.dashboard.access import Viewer

PATIENCE = 60.0  # seconds for a command
Form = Mapping[str, str]


class Field(NamedTuple):
    """An input of the form. kind: text, time, number or rate."""

    name: str
    label: str
    example: str = ""
    value: str = ""
    needed: bool = False


class Action(NamedTuple):
    """words: the command for a form. typed: the field whose value must be typed to confirm, because something is deleted."""

    level: str
    title: str  # verb and object; {name} of the form
    effect: str
    words: Callable[[Form], list[str]]
    fields: tuple[Field, ...] = ()
    typed: str = ""
    needs: tuple[str, ...] = ()


FOR = Field("for", "For how long", "30m; until somebody resumes it")
REASON = Field("reason", "Reason", "shown to everybody who looks")
RATE = Field("rate", "At most per second", "no limit", "20")


def option(form: Form, name: str, flag: str = "") -> list[str]:
    value = form.get(name, "").strip()
    return [f"{flag or '--' + name}={value}"] if value else []


def exactly(form: Form, name: str) -> list[str]:
    """The filter of this job or exception, which is a pattern for commands."""
    return [f"--{name}={escape(form[name])}"] if form.get(name) else []


def on(form: Form, *words: str) -> list[str]:
    """Words that begin with the user's text, behind `--`, on the connection of the form."""
    return [*option(form, "connection"), "--", *words]


def note(form: Form) -> list[str]:
    return option(form, "for") + option(form, "reason")


ACTIONS: Mapping[str, Action] = {
    "pause": Action(
        "operate", "Pause {queue}", "Workers on every host take no more jobs from it. Jobs that run are finished.",
        lambda form: ["pause", *note(form), *on(form, form["queue"])], (FOR, REASON), needs=("queue",),
    ),
    "resume": Action(
        "operate", "Resume {queue}", "Workers take jobs from it again.",
        lambda form: ["resume", *on(form, form["queue"])], needs=("queue",),
    ),
    "clear": Action(
        "write", "Clear {queue}", "Deletes its ready and delayed jobs. Jobs that run are finished.",
        lambda form: ["clear", "--yes", *on(form, form["queue"])], typed="queue", needs=("queue",),
    ),
    "cancel": Action(
        "operate", "Cancel the job {id}", "It does not run; if it runs, it is ended.",
        lambda form: ["cancel", *on(form, form["id"])], needs=("id",),
    ),
    "promote": Action(
        "operate", "Run the job {id} now", "The delayed job becomes ready, at the end of its queue.",
        lambda form: ["promote", *option(form, "queue"), *on(form, form["id"])], needs=("id",),
    ),
    "retry": Action(
        "operate", "Retry the failed job {id}", "It goes to its queue again and starts afresh.",
        lambda form: ["failed", "retry", *option(form, "queue"), *on(form, form["id"])], needs=("id",),
    ),
    "forget": Action(
        "write", "Forget the failed job {id}", "Deletes what is stored of it.",
        lambda form: ["failed", "forget", "--yes", *option(form, "queue"), *on(form, form["id"])], needs=("id",),
    ),
    "retry-all": Action(
        "operate", "Retry {count} failed jobs of {job}", "Sends all that had failed when you looked, the oldest first.",
        lambda form: [
            *("failed", "retry", "--all"), *exactly(form, "job"), *exactly(form, "error"), *option(form, "rate"),
            *option(form, "until"), *option(form, "connection"),
        ],
        (RATE,), needs=("job",),
    ),
    "forget-all": Action(
        "write", "Forget {count} failed jobs of {job}", "Deletes what is stored of all that had failed when you looked.",
        lambda form: [
            *("failed", "forget", "--all", "--yes"), *exactly(form, "job"), *exactly(form, "error"),
            *option(form, "until"), *option(form, "connection"),
        ],
        typed="job", needs=("job",),
    ),
    "pause-job": Action(
        "operate", "Pause the job {job}", "Workers put jobs with this name back; others of their queues run.",
        lambda form: ["pause", *option(form, "job"), *note(form)], (FOR, REASON), needs=("job",),
    ),
    "resume-job": Action(
        "operate", "Resume the job {job}", "Workers run jobs with this name again.",
        lambda form: ["resume", *option(form, "job")], needs=("job",),
    ),
    "pause-host": Action(
        "operate", "Pause the host {host}", "Its workers finish their jobs and take nothing, also after a restart.",
        lambda form: ["pause", *option(form, "host"), *note(form)], (FOR, REASON), needs=("host",),
    ),
    "resume-host": Action(
        "operate", "Resume the host {host}", "Its workers take jobs again.",
        lambda form: ["resume", *option(form, "host")], needs=("host",),
    ),
    "restart": Action(
        "write", "Restart all workers, rolling", "Workers finish their jobs and are replaced one by one, with new code.",
        lambda form: ["restart", "--rolling", *option(form, "host"), *option(form, "pool")],
    ),
    "scale": Action(
        "operate", "Scale {pool}", "Each running master of the pool gets this number of workers, until it restarts.",
        lambda form: ["scale", "--", form["pool"], form.get("workers", "")],
        (Field("workers", "Workers", "8", needed=True),), needs=("pool",),
    ),
    "down": Action(
        "write", "Begin maintenance mode", "Workers on every host finish their jobs and take nothing.",
        lambda form: ["down", *option(form, "for", "--until"), *option(form, "reason")], (FOR, REASON),
    ),
    "up": Action("write", "End maintenance mode", "Workers take jobs again.", lambda form: ["up"]),
    "pause-entry": Action(
        "operate", "Pause the schedule entry {entry}", "It does not run until it is resumed.",
        lambda form: ["schedule", "pause", *note(form), "--", form["entry"]], (FOR, REASON), needs=("entry",),
    ),
    "resume-entry": Action(
        "operate", "Resume the schedule entry {entry}", "It runs again from its next time on.",
        lambda form: ["schedule", "resume", "--", form["entry"]], needs=("entry",),
    ),
    "cancel-batch": Action(
        "operate", "Cancel the batch {id}", "Its jobs with the middleware SkipIfBatchCancelled are not run any more.",
        lambda form: ["batch", "cancel", *on(form, form["id"])], needs=("id",),
    ),
    "retry-batch": Action(
        "operate", "Retry the failed jobs of the batch {id}", "They go to their queues again; a cancelled batch is resumed.",
        lambda form: ["batch", "retry", *on(form, form["id"])], needs=("id",),
    ),
    "release": Action(
        "write", "Release {lock}", "Takes the lock from its holder, which is not stopped: two may run at the same time.",
        lambda form: ["locks", "release", "--yes", *option(form, "what", "--kind"), *on(form, form["lock"])],
        typed="lock", needs=("lock",),
    ),
}  # fmt: skip


async def run(words: list[str], given: Given, viewer: Viewer) -> tuple[int, str]:
    """The exit code and the output of a command."""
    shared = [f"--{name}={value}" for name in ("config", "app") if (value := getattr(given, name))]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "qd", *shared, *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "QD_ACTOR": viewer.name, "NO_COLOR": "1"},
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
    except TimeoutError:
        process.kill()
        await process.wait()
        return 1, f"no end after {PATIENCE:.0f} s; it was stopped. Run it in a terminal to see what it does."
    return process.returncode or 0, output.decode("utf-8", "replace").strip()
