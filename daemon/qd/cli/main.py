"""`qd`: imports the module of the command and no other, and turns errors into a line and an exit code.

    0 yes    1 no, or a bug    2 usage    69 a server is unreachable    78 configuration    130 Ctrl-C

A command returns None or its exit code.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

import click

from qd import __version__, errors
from qd.cli import context, output
from qd.cli.output import note
from qd.options.kinds import did_you_mean
from qd.process.exit_codes import Exit


class CommandRow(NamedTuple):
    """Where a command is, and its line in `qd --help`, so that --help imports none of them."""

    module: str  # in qd.cli
    attribute: str
    summary: str  # the first sentence of its help


# In the order of `qd --help`.
COMMANDS = {
    "work": CommandRow("work", "command", "Run the jobs of QUEUE..., in order of priority."),
    "status": CommandRow("status", "status", "Show masters, workers, queues, and what is paused."),
    "queues": CommandRow("status", "queues", "Show queues: their sizes, the oldest job, and who paused them."),
    "top": CommandRow("top", "command", "Watch queues and workers on a live screen, and act on them."),
    "health": CommandRow("health", "command", "Check that masters and queues are healthy."),
    "metrics": CommandRow("metrics", "command", "Print what became of all jobs, and their times, for Prometheus."),
    "restart": CommandRow("control", "restart", "Let every worker finish its job and restart, with new code."),
    "pause": CommandRow("control", "pause", "Take no more jobs from these queues, on any host."),
    "resume": CommandRow("control", "resume", "Take jobs from these queues again."),
    "down": CommandRow("control", "down", "Begin maintenance mode, until `qd up`."),
    "up": CommandRow("control", "up", "End maintenance mode."),
    "dispatch": CommandRow("dispatch", "dispatch", "Send a job by its name."),
    "run": CommandRow("dispatch", "run", "Run a job here and now, and print what it returns."),
    "declared": CommandRow("dispatch", "declared", "List the jobs that the app declares."),
    "job": CommandRow("job", "job", "Show where a job is, by its id or uuid."),
    "peek": CommandRow("peek", "peek", "Show the jobs that wait in a queue."),
    "clear": CommandRow("dispatch", "clear", "Delete the ready and delayed jobs of a queue."),
    "wait": CommandRow("wait", "wait", "Wait until a queue is empty."),
    "cancel": CommandRow("job", "cancel", "Cancel a job by its id, or the one that waits under a key."),
    "events": CommandRow("events", "events", "Show what operators did and what happened to masters."),
    "failed": CommandRow("failed", "failed", "List failed jobs, show one, send them again, or delete them."),
    "schedule": CommandRow("schedule", "schedule", "Show what runs when, run it, pause it."),
    "doctor": CommandRow("doctor", "command", "Check the whole setup and show what to fix; nothing is changed."),
    "config": CommandRow("config", "config", "Show the configuration with its origins, or check it."),
    "migrate": CommandRow("servers", "migrate", "Create the tables in each configured database, or in that of -c."),
    "init": CommandRow("config", "init", "Write a first qd.toml and jobs.py, or print a deployment file."),
    "embedded": CommandRow("servers", "command", 'Show or stop the private server of `url = "embedded:"`.'),
    "help": CommandRow("help", "command", "Show the help of a command."),
}
INTERRUPTED = 130

# The first class that matches gives the code.
CODES: Sequence[tuple[type[BaseException], int]] = (
    (errors.ConfigError, Exit.CONFIG),
    (errors.DeclarationError, Exit.CONFIG),
    (errors.ConnectionLost, Exit.UNAVAILABLE),
    (errors.ArgumentError, Exit.USAGE),
    (errors.UnknownJob, Exit.USAGE),
    (errors.UnknownParameters, Exit.USAGE),
    (errors.WrongType, Exit.USAGE),
    (errors.QdError, 1),
)


class Family(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        row = COMMANDS[cmd_name]
        found: click.Command = getattr(import_module(f"qd.cli.{row.module}"), row.attribute)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The lines that click writes, without the commands."""
        longest = formatter.width - 6 - max(map(len, COMMANDS))
        with formatter.section("Commands"):
            summaries = {name: click.Command(name, help=row.summary) for name, row in COMMANDS.items()}
            formatter.write_dl([(name, each.get_short_help_str(longest)) for name, each in summaries.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            near = did_you_mean(args[0], COMMANDS) or f" (known: {', '.join(COMMANDS)})"
            raise click.UsageError(f"unknown command '{args[0]}'{near}")
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, **more: Any) -> Any:
        """As click's, but each error is one line and a code of the table above."""
        more["standalone_mode"] = False
        try:
            code = super().main(*args, **more)
        except click.ClickException as error:
            sys.exit(usage(error))
        except (click.Abort, KeyboardInterrupt):
            sys.exit(INTERRUPTED)
        except errors.QdError as error:
            note(f"qd: {error}")
            sys.exit(next(code for kind, code in CODES if isinstance(error, kind)))
        except OSError:
            if not context.folder_is_gone():
                raise
            note("qd: the current folder has been deleted; cd into one that exists")
            sys.exit(Exit.CONFIG)
        sys.exit(code if isinstance(code, int) else 0)


def usage(error: click.ClickException) -> int:
    """Print the error in one line, with the command whose --help explains more. Returns the exit code."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return Exit.USAGE
    ctx = getattr(error, "ctx", None)
    path = ctx.command_path if ctx else "qd"
    words = " ".join(error.format_message().split())
    words = words[:1].lower() + words[1:].rstrip(".")
    note(f"{path}: {words}; see `{path} --help`" if isinstance(error, click.UsageError) else f"{path}: {words}")
    return error.exit_code


@click.group(
    cls=Family,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog="Exit codes: 0 yes, 1 no, 2 usage, 69 server unreachable, 78 configuration; for `qd work` see `qd work --help`.",
)
@click.version_option(__version__, message="qd %(version)s")
@context.options
def command() -> None:
    """Run background jobs from Redis, SQL databases, beanstalkd or SQS, and manage the workers."""


def main() -> None:
    """The entry point of `qd` and of `python -m qd`."""
    output.guard()
    command(prog_name="qd")
