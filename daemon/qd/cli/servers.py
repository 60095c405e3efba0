"""`qd migrate` creates the tables in the configured databases; running it again, or twice at once, is harmless.

`qd embedded status` and `qd embedded stop`: the private server of `url = "embedded:"`. Neither starts one.
"""

from __future__ import annotations

import click

from qd.cli import context, output
from qd.config.settings import ConnectionSettings, Settings
from qd.drivers import embedded
from qd.drivers.connections import loaded

MIGRATED = "qd.drivers.database.schema:migrated"  # loaded only with a database: its library may be missing


@click.command()
@click.option("--dry-run", is_flag=True, help="Print the SQL, and change nothing.")
@context.options
def migrate(dry_run: bool) -> int:
    """Create the tables in the configured databases.

    Creates qd's own tables, and Laravel's table of jobs if it does not exist.
    """
    found, patience = dict[str, list[str]](), context.given().patience
    for each in databases(context.settings()):
        found[each.name] = loaded(MIGRATED)(each, patience, dry=dry_run)
    if context.given().json:
        output.document({"dry_run": dry_run, "connections": found})
        return 0
    for name, lines in found.items():
        for line in lines:
            output.say(line if dry_run else f"{name}: {line}")
        if not lines:
            output.say(f"{'-- ' if dry_run else ''}{name}: nothing to do")
    if not found:
        output.say("no connection is a database: nothing to do")
    return 0


def databases(settings: Settings) -> list[ConnectionSettings]:
    """Raises Refused if the connection of -c is no database."""
    wanted = context.given().connection
    names = [context.connection_name(settings)] if wanted else list(settings.connections)
    found = [settings.connection(name) for name in names if settings.connections[name].url is not None]
    if wanted and found and found[0].driver != "database":
        raise context.Refused(f"connection '{wanted}' is not a database ({found[0].driver}): it needs no tables")
    return [each for each in found if each.driver == "database"]


@click.group(name="embedded")
def command() -> None:
    """Show or stop the private server of `url = "embedded:"`."""


@command.command()
@context.options
def status() -> int:
    """Show whether this project's server runs, and where.

    Exit 1 if it does not run."""
    settings = context.settings()
    root = settings.root
    found = embedded.status(root)
    if context.given().json:
        names = ("pid", "server", "url", "memory", "uptime")
        facts = {**output.fields(found, *names), "folder": str(found.folder)} if found else {}
        output.document({"running": found is not None, **facts})
    elif found is None:
        named = any((each.url or "").startswith("embedded:") for each in settings.connections.values())
        output.say(context.not_running(root) if named else 'no connection here has `url = "embedded:"`, nothing runs')
    else:
        up, memory = output.duration(found.uptime), f"{found.memory / 1_048_576:.1f}M"
        output.say(f"{found.server}  pid {found.pid}  up {up}  memory {memory}  {found.url}  data in {found.folder}")
    return 0 if found else 1


@command.command()
@context.options
def stop() -> int:
    """Stop this project's server and wait for its end.

    Its queues stay in .qd/. Exit 1 if no server was running."""
    root = context.settings().root
    if embedded.stop(root):
        output.say(f"stopped; the queues are kept in {root / '.qd' / 'embedded'}")
        return 0
    output.say(f"the embedded server of {root} was not running")
    return 1
