"""Whether qd would accept the qd commands that entries of the schedule run. For `qd config check` and `qd doctor`."""

from __future__ import annotations

import shlex

import click

from qd.schedule import QdTask, Task


def fault(task: Task) -> str:
    """Why qd would refuse the command of an entry, "" if it would not. Parses it and runs nothing; lines for the shell, and
    what begins with an option, are not checked."""
    if not isinstance(task, QdTask):
        return ""
    from qd.cli.main import command

    found: click.Command = command
    context, rest = click.Context(command, info_name="qd"), list(task.words)
    try:
        while isinstance(found, click.Group):
            if not rest or rest[0].startswith("-"):
                return ""
            name, inner, rest = found.resolve_command(context, rest)
            assert inner is not None  # else it has raised
            found, context = inner, click.Context(inner, parent=context, info_name=name)
        found.parse_args(context, rest)
    except click.UsageError as error:
        return f"{shlex.join(['qd', *task.words])}: {' '.join(error.format_message().split())}"
    except click.exceptions.Exit:  # --help
        pass
    return ""
