"""The commands that entries of the schedule run: whether they are there. For `qd config check`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from qd.schedule import QdTask, ShellTask, Task
from qd.schedule.shells import missing
from qd.units import did_you_mean


def fault(task: Task, root: Path) -> str:
    """What is wrong with the command of an entry, "" for nothing. root: the folder of the project."""
    if isinstance(task, ShellTask) and (word := missing(task.line, (root, Path.cwd()))):
        where = "there" if "/" in word else "on the PATH"
        return f"its command '{word}' is not {where} ({task.line}): install it, or write its whole path"
    if isinstance(task, QdTask) and (why := strange(task.words)):
        return f"{shlex.join(['qd', *task.words])}: {why}"
    return ""


def strange(words: Sequence[str]) -> str:
    """Why qd would refuse these words, "" where it would not. Nothing is run. Its commands have been looked at before
    (schedule/commands.py), but behind an option."""
    from qd.cli.main import command

    found: click.Command = command
    context, rest = click.Context(command, info_name="qd"), list(words)
    while isinstance(found, click.Group):
        if not rest or rest[0].startswith("-"):
            return "" if rest else "it names no command"
        name = rest.pop(0)
        inner = found.get_command(context, name)
        if inner is None:
            known = found.list_commands(context)
            near = did_you_mean(name, known) or f" (known: {', '.join(known)})"
            return f"unknown command '{name}'{near}"
        found, context = inner, click.Context(inner, parent=context, info_name=name)
    try:
        found.parse_args(context, rest)
    except click.UsageError as error:
        return " ".join(error.format_message().split())
    except click.exceptions.Exit:  # --help
        return ""
    return ""
