"""`qd migrate`: makes the tables in the databases that are configured. Once more does nothing, and two at once no harm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qd.cli import context, output
from qd.connectors.drivers import loaded

if TYPE_CHECKING:
    from qd.config import ConnectionSettings, Settings

MIGRATED = "qd.connectors.database.migrate:migrated"  # loaded where there is a database: its library may be missing


@click.command()
@click.option("--dry-run", is_flag=True, help="Print the SQL, and change nothing.")
@context.options
def migrate(dry_run: bool) -> int:
    """Make the tables in each database that is configured, or in that of -c.

    Those of qd, and Laravel's jobs, failed_jobs and job_batches where they are not there.
    """
    found = {each.name: done(each, dry=dry_run) for each in databases(context.settings())}
    if context.given().json:
        output.document({"dry_run": dry_run, "connections": found})
        return 0
    for name, lines in found.items():
        for line in lines:
            output.say(output.clean(line) if dry_run else output.clean(f"{name}: {line}"))
        if not lines:
            output.say(output.clean(f"-- {name}: nothing to do" if dry_run else f"{name}: nothing to do"))
    if not found:
        output.say("no connection is a database: nothing to do")
    return 0


def databases(settings: Settings) -> list[ConnectionSettings]:
    """Raises ConfigError when the one that is asked for is none."""
    asked = context.given().connection
    names = [context.connection_name(settings)] if asked else list(settings.connections)
    found = [settings.connection(name) for name in names if settings.connections[name].url is not None]
    if asked and found and found[0].driver != "database":
        raise context.Refused(f"connection '{asked}' is no database ({found[0].driver}): it needs no tables")
    return [each for each in found if each.driver == "database"]


def done(at: ConnectionSettings, *, dry: bool) -> list[str]:
    lines: list[str] = loaded(MIGRATED)(at, context.given().patience, dry=dry)
    return lines
