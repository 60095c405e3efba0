"""`qd config show`, `check` and `schema`: what is configured and from where, whether it can be used, and what can be."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

import click

from qd import config as configuration
from qd.cli import context, output
from qd.config.load import RESOLVED
from qd.config.settings import CONNECTION, QD, SECTIONS, Settings, check_concurrency
from qd.drivers.connections import check_library, check_url
from qd.errors import ConfigError
from qd.options.kinds import Backoff
from qd.options.tables import WORK, Option, shown
from qd.payload.encryption import cipher
from qd.redaction import mask_url


@click.group("config")
def config() -> None:
    """Show the configuration with its origins, or check it."""


@config.command("show")
@click.option("--pool", metavar="NAME", help="Show the values of [pools.NAME].")
@click.option("--changed", is_flag=True, help="Show only the values that differ from the defaults.")
@context.options
def show(pool: str | None, changed: bool) -> None:
    """Print each value with its origin, secrets masked."""
    found = context.loaded(pool=pool)
    if found.app:
        try:
            found = context.loaded(context.app_of(found)._code_settings, pool=pool)
        except ConfigError as error:  # an app that does not import does not hide the rest
            output.note(f"qd config show: {error}; the arguments of Qd(...) are missing here")
    listed = [each for each in _values(found) if not changed or _differs(found, *each)]
    if context.given().json:
        values = {name: {"value": value, "origin": _origin(found, name)} for name, _, value in listed}
        output.document({"file": str(found.file) if found.file else None, "root": str(found.root), "values": values})
        return
    output.say(f"file  {found.file or 'none'}")
    output.say(f"root  {found.root}")
    output.say()
    rows = [(name, shown(option.kind, value) or "-", _origin(found, name)) for name, option, value in listed]
    output.table(("key", "value", "origin"), rows)


SHOWN = {"queues": "weighted"}  # kind of option -> the attribute that is shown


def _values(found: Settings) -> Iterator[tuple[str, Option, Any]]:
    """(dotted key, its option, the value without secrets), in the order of the file."""
    sections: list[tuple[str, Mapping[str, Option], object]] = [("qd", QD, found)]
    sections += [(f"connections.{name}", CONNECTION, held) for name, held in found.connections.items()]
    sections += [("worker", WORK, found.work)]
    names = ("laravel", "failed", "signing", "encryption", "schedule", "alerts", "dashboard")
    sections += [(name, SECTIONS[name], getattr(found, name)) for name in names]
    for section, rows, held in sections:
        for option in rows.values():
            if (option.in_file and not option.file_of) or (option.name == "pool" and found.work.pool):
                value = getattr(held, SHOWN.get(option.kind, option.name), None)
                yield f"{section}.{option.name}", option, _shown(option, value)
    own: list[tuple[str, str, object]] = [("schedule.entries", each.name, each) for each in found.schedule.entries]
    own += [("alerts.queues", name, limits) for name, limits in found.alerts.queues.items()]
    for section, name, held in own:
        for option in SECTIONS[f"{section}.NAME"].values():
            if (dotted := f"{section}.{name}.{option.name}") in found.origins:
                yield dotted, option, getattr(held, option.name)


def _differs(found: Settings, name: str, option: Option, value: Any) -> bool:
    """The defaults of RESOLVED options depend on others: they differ if something sets them."""
    return found.origins[name] != "built in" and (option.name in RESOLVED or value != option.default)


def _origin(found: Settings, name: str) -> str:
    """Queues that jobs declare are not listed: only an import of the app shows them."""
    more = ", and every queue that the app declares" if name == "worker.queues" and found.work.in_turn else ""
    return found.origins[name] + more


def _shown(option: Option, value: Any) -> Any:
    """The value without its secrets: passwords, webhooks, keys but for their ids, hashes of passwords."""
    if option.kind in ("url", "database") and value:
        return mask_url(value)
    if option.kind in ("keys", "users"):
        return tuple(f"{each.rpartition(':')[0]}:***" for each in value)
    return "***" if option.secret and value else shown("spans", value) if isinstance(value, Backoff) else value


@config.command("check")
@context.options
def check() -> None:
    """Check the configuration of every pool; nothing is started.

    Exit 0, or 78 and the reason. The app is only imported if its Qd(...) may name the url; else entries of the schedule
    that the code declares are not checked (`qd doctor` does that).
    """
    found = context.settings()
    for pool in ["", *context.pool_names()]:
        each = context.loaded(_url_of_code(found), pool=pool)
        for name in (*each.parts(each.default), each.control, each.work.connection):
            check_url(each.connection(name))
            check_library(each.connection(name))
        check_concurrency(each)
    if found.failed.database:
        from qd.store.failed_jobs_table import FailedJobs  # needs SQLAlchemy

        FailedJobs(found.failed.database)
    for key in found.encryption.keys:
        cipher(key)
    _check_schedule(found)
    notes = [*configuration.unknown_variables(found, os.environ), *configuration.unknown_drivers(found)]
    notes += [*configuration.overridden_urls(found), *configuration.open_files(found).values()]
    for line in notes:
        output.note(f"qd config check: {line}")
    if context.given().json:
        facts = {"app": found.app or None, "app_imported": bool(_url_of_code(found))}
        output.document({"ok": True, "file": str(found.file) if found.file else None, **facts, "notes": notes})
    else:
        app = f"; the app {found.app} was not imported, `qd doctor` does that, and checks the entries of its schedule"
        app = f", and the app {found.app} imports" if _url_of_code(found) else app
        output.say(f"{found.file or 'no file: variables and defaults'}: ok{app if found.app else '; no app is named'}")


@config.command("schema")
@context.options
def schema() -> None:
    """Print the JSON schema of qd.toml, for editors.

    `qd init` writes it next to qd.toml; after an upgrade: qd config schema > qd.schema.json
    """
    from qd.config.schema import text

    click.echo(text(), nl=False)


def _check_schedule(found: Settings) -> None:
    """Raises DeclarationError if an entry of the file cannot run, or one of the code if the app was imported."""
    imported = bool(_url_of_code(found))
    if not found.schedule.entries and not imported:
        return
    from qd.cli.schedule.entries import fault
    from qd.schedule.builder import wrong
    from qd.schedule.declare import check as check_entry
    from qd.schedule.declare import mistake
    from qd.schedule.entry import closed

    for entry in found.schedule.entries:
        if why := fault(check_entry(entry, found)):
            raise mistake(entry, why)
    for declared in context.app().schedule.entries() if imported else ():
        if hours := closed(declared, time.time()):
            raise wrong(declared.origin, f"never comes: {declared.timing.text} is always {hours}")
        if why := fault(declared.task):
            raise wrong(declared.origin, why)


def _url_of_code(found: Settings) -> dict[str, object]:
    """The url of Qd(...), if the app was imported and names it."""
    default = found.connections[found.default]
    return {"url": default.url} if default.url_origin == "Qd(...)" else {}
