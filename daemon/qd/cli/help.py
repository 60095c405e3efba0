"""`qd help [COMMAND]`: what `qd COMMAND --help` prints. `qd completion SHELL`: click's own script for that shell."""

from __future__ import annotations

import click

from qd.cli import context
from qd.options.kinds import did_you_mean


@click.command("help")
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@context.options
def command(words: tuple[str, ...]) -> None:
    """Show the help of a command."""
    here = click.get_current_context().find_root()
    for word in words:
        group = here.command
        names = group.list_commands(here) if isinstance(group, click.Group) else []
        found = group.get_command(here, word) if isinstance(group, click.Group) else None
        if found is None:
            near = did_you_mean(word, names) or (f" (known: {', '.join(names)})" if names else "")
            raise click.UsageError(f"unknown command '{' '.join(words)}'{near}")
        here = click.Context(found, info_name=word, parent=here, **found.context_settings)
    click.echo(here.get_help())


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@context.options
def completion(shell: str) -> None:
    """Print the script that completes qd's words in a shell.

    bash: eval "$(qd completion bash)" in ~/.bashrc; zsh: the same with zsh in ~/.zshrc; fish: qd completion fish | source.
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(click.get_current_context().find_root().command, {}, "qd", "_QD_COMPLETE").source())
