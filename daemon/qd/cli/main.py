"""`qd`: imports the module of the command and no other, and turns errors into a line and an exit code.

    0 yes    1 no, or a bug    2 usage    69 a server is unreachable    78 configuration    130 Ctrl-C

A command returns None or its exit code.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

import click

from qd import __version__, errors
from qd.cli import context, output
from qd.cli.output import note
from qd.options.extras import to_install
from qd.options.kinds import did_you_mean
from qd.process.exit_codes import Exit


class CommandRow(NamedTuple):
    """Where a command is, and its line in `qd --help`, so that --help imports none of them."""

    module: str  # in qd.cli, or with a dot in qd
    attribute: str
    summary: str  # the first sentence of its help


# In the order of `qd --help`.
COMMANDS = {
    "work": CommandRow("work", "command", "Run the jobs of QUEUE..., in order of priority."),
    "dev": CommandRow("dev", "command", "Run worker, scheduler and dashboard in this terminal."),
    "status": CommandRow("status", "status", "Show masters, workers, queues, and what is paused."),
    "queues": CommandRow("status", "queues", "Show queue sizes, rates, and who paused a queue."),
    "top": CommandRow("top", "command", "Watch queues and workers on a live screen, and act on them."),
    "health": CommandRow("health", "command", "Check that masters and queues are healthy."),
    "dashboard": CommandRow("dashboard.command", "command", "Serve the dashboard: the system in a browser."),
    "alerts": CommandRow("alerts", "command", "Notify a webhook or a program when something is wrong."),
    "metrics": CommandRow("metrics", "command", "Print metrics of jobs, queues and workers, for Prometheus."),
    "restart": CommandRow("control", "restart", "Restart every worker with new code, after its job."),
    "pause": CommandRow("control", "pause", "Take no more jobs from these queues, on any host."),
    "resume": CommandRow("control", "resume", "Take jobs from these queues again."),
    "scale": CommandRow("control", "scale", "Give each master of a pool N workers, until it restarts."),
    "down": CommandRow("control", "down", "Begin maintenance mode, until `qd up`."),
    "up": CommandRow("control", "up", "End maintenance mode."),
    "dispatch": CommandRow("dispatch", "dispatch", "Dispatch a job by its name."),
    "run": CommandRow("dispatch", "run", "Run a job here and now, and print what it returns."),
    "declared": CommandRow("dispatch", "declared", "List the jobs that the app declares."),
    "job": CommandRow("job", "job", "Show where a job is, by its id or uuid."),
    "why": CommandRow("why", "why", "Show why a job does not run."),
    "peek": CommandRow("waiting", "peek", "Show the jobs that wait in a queue."),
    "move": CommandRow("waiting", "move", "Move waiting jobs to another queue."),
    "promote": CommandRow("job", "promote", "Make a delayed job ready now."),
    "clear": CommandRow("waiting", "clear", "Delete the ready and delayed jobs of a queue."),
    "wait": CommandRow("waiting", "wait", "Wait until a queue is empty."),
    "cancel": CommandRow("job", "cancel", "Cancel a job by its id, the one under a key, or many."),
    "events": CommandRow("events", "events", "Show what operators did and what happened to masters."),
    "failed": CommandRow("failed", "failed", "List, show, retry or delete failed jobs."),
    "batch": CommandRow("batch", "command", "List batches, show one, cancel it, retry its failed jobs."),
    "locks": CommandRow("locks", "command", "Show who holds which lock or limit, and free one."),
    "schedule": CommandRow("schedule", "schedule", "Show what runs when, run it, pause it."),
    "doctor": CommandRow("doctor", "command", "Check the whole setup and show what to fix."),
    "config": CommandRow("config", "config", "Show the configuration with its origins, or check it."),
    "migrate": CommandRow("servers", "migrate", "Create the tables in the configured databases."),
    "init": CommandRow("init", "init", "Write a first qd.toml and jobs.py, or a deployment file."),
    "embedded": CommandRow("servers", "command", 'Show or stop the private server of `url = "embedded:"`.'),
    "completion": CommandRow("main", "completion", "Print the script for completion in a shell."),
    "help": CommandRow("help", "command", "Show the help of a command, or a page of the docs."),
}
HELP = {
    "Run": ("work", "dev", "schedule", "dispatch", "run", "declared"),
    "Jobs": ("job", "why", "cancel", "promote", "batch", "locks"),
    "Queues": ("queues", "peek", "pause", "resume", "move", "clear", "wait"),
    "Fleet": ("status", "top", "dashboard", "health", "alerts", "metrics", "events", "restart", "scale", "down", "up"),
    "Failures": ("failed",),
    "Set-up": (),  # and all others
}
"""The sections of `qd --help`."""
INTERRUPTED = 130

# The first class that matches gives the code.
CODES: Sequence[tuple[tuple[type[BaseException], ...], int]] = (
    ((errors.ConfigError, errors.DeclarationError), Exit.CONFIG),
    ((errors.ConnectionLost,), Exit.UNAVAILABLE),
    ((errors.ArgumentError, errors.UnknownJob, errors.UnknownParameters, errors.WrongType), Exit.USAGE),
    ((errors.QdError,), 1),
)


def imported(module: str) -> Any:
    """The module of a command. Raises ConfigError if a package of its extra is not installed."""
    try:
        return import_module(f"qd.{module}" if "." in module else f"qd.cli.{module}")
    except ModuleNotFoundError as error:
        if "." not in module or (error.name or "").startswith("qd"):
            raise
        way = to_install(module.partition(".")[0])
        raise errors.ConfigError(f"the library '{error.name}' is not installed: {way}") from None


class Family(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        row = COMMANDS[cmd_name]
        found: click.Command = getattr(imported(row.module), row.attribute)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The lines that click writes, without importing the commands, in sections."""
        wide = max(map(len, COMMANDS))
        others = [name for name in COMMANDS if not any(name in names for names in HELP.values())]
        for title, names in HELP.items():
            with formatter.section(title):
                listed = [click.Command(name, help=COMMANDS[name].summary) for name in names or others]
                room = formatter.width - 6 - wide
                formatter.write_dl([(f"{each.name:<{wide}}", each.get_short_help_str(room)) for each in listed])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            near = did_you_mean(args[0], COMMANDS) or f" (known: {', '.join(COMMANDS)})"
            raise click.UsageError(f"unknown command '{args[0]}'{near}")
        return super().resolve_command(ctx, args)

    def main(self, args: Sequence[str] | None = None, *others: Any, **more: Any) -> Any:
        """As click's, but each error is one line and a code of the table above; with --json the line is a document."""
        more["standalone_mode"] = False
        given = sys.argv[1:] if args is None else args
        as_json = "--json" in given and "work" not in given
        try:
            code = super().main(args, *others, **more)
        except click.ClickException as error:
            sys.exit(usage(error, as_json))
        except (click.Abort, KeyboardInterrupt):
            sys.exit(INTERRUPTED)
        except errors.QdError as error:
            code = next(code for kinds, code in CODES if isinstance(error, kinds))
            sys.exit(report("qd", str(error), "", code, as_json))
        except UnicodeEncodeError as error:  # an argument that is not UTF-8
            if "surrogates" not in error.reason:
                raise
            text = f"{error.object!r} is not UTF-8: names of queues, jobs and ids are"
            sys.exit(report("qd", text, "", Exit.USAGE, as_json))
        except OSError:
            if not context.folder_is_gone():
                raise
            note("qd: the current folder has been deleted; cd into one that exists")
            sys.exit(Exit.CONFIG)
        sys.exit(code if isinstance(code, int) else 0)


def report(command: str, text: str, hint: str, code: int, as_json: bool) -> int:
    """Print the error: a line, or with --json a document. Returns the exit code."""
    if as_json:
        facts = {"schema": 1, "error": output.clean(text), "command": command, "hint": hint or None, "exit": code}
        click.echo(json.dumps(facts), err=True)
    else:
        note(f"{command}: {text}; {hint}" if hint else f"{command}: {text}")
    return code


def usage(error: click.ClickException, as_json: bool) -> int:
    """Print the error in one line, with the command whose --help explains more. Returns the exit code."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return Exit.USAGE
    ctx = getattr(error, "ctx", None)
    path = ctx.command_path if ctx else "qd"
    words = " ".join(error.format_message().split())
    words = words[:1].lower() + words[1:].rstrip(".")
    hint = f"see `{path} --help`" if isinstance(error, click.UsageError) else ""
    return report(path, words, hint, error.exit_code, as_json)


@click.group(
    cls=Family,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog="Exit codes: 0 yes, 1 no, 2 usage, 69 server unreachable, 78 configuration; for `qd work` see `qd work --help`.",
)
@click.version_option(__version__, message="qd %(version)s")
@context.options
def command() -> None:
    """Run background jobs from Redis, SQL databases, beanstalkd or SQS, and manage the workers."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@context.options
def completion(shell: str) -> None:
    """Print the script for completion in a shell.

    bash: `eval "$(qd completion bash)"` in ~/.bashrc; zsh: the same in ~/.zshrc. fish: `qd completion fish | source`.
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(click.get_current_context().find_root().command, {}, "qd", "_QD_COMPLETE").source())


def main() -> None:
    """The entry point of `qd` and of `python -m qd`."""
    output.guard()
    command(prog_name="qd")
