"""`qd doctor`: is everything set up correctly? Checks the project, its servers, their queues, the masters, their supervisors
and this host: one line for each, with a fix if something is wrong. Changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from qd.cli import context, output
from qd.cli.checks import Finding, fail, fleet, ok, project, servers, supervisors, warn
from qd.cli.checks.project import Project
from qd.cli.diagnosis import way_out
from qd.cli.state import refusal
from qd.config.settings import Settings
from qd.dispatch.route import signing_of
from qd.drivers import embedded
from qd.drivers.connections import gaps_of, server_warnings
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import strange
from qd.drivers.redis.connection import RedisConnection
from qd.errors import ConfigError, NeedsMending, QdError
from qd.options.drivers import BARE, WITH_KEYSPACE
from qd.process.exit_codes import Exit
from qd.store.base import KeyspaceStore

if TYPE_CHECKING:
    from qd.drivers.database.keyspace import DatabaseKeyspace

AT_START = "`qd work` exits with 78 until then"
PATIENCE = 2.0  # seconds for a connection, and for each reply
COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}
FILE = click.Path(path_type=Path)
OF_SUPERVISORD = "Check this file of supervisord.  [the usual places]"


@click.command("doctor")
@click.option("--strict", is_flag=True, help="Exit 1 if there are warnings, too.")
@click.option("--supervisord", "program", type=FILE, metavar="PATH", help=OF_SUPERVISORD)
@click.option("--unit", type=FILE, metavar="PATH", help="Check this unit file of systemd.")
@context.options
def command(strict: bool, program: Path | None, unit: Path | None) -> int:
    """Check the whole setup and show what to fix.

    Exit 0 if all is well, or there are only warnings. Else 78 (configuration, app), 69 (a server is unreachable), or 1.
    """
    context.given().patience, context.given().only_looks = PATIENCE, True
    found = project.Project()
    units = supervisors.check_supervisord(found, program), supervisors.check_systemd(found, unit)
    parts = (project.check_project(found), of_servers(found), *units, project.check_host(found))
    findings = print_findings(chain.from_iterable(parts))
    code = code_of(findings, strict=strict)
    if context.given().json:
        checks = [output.fields(finding, "sign", "what", "value", "fix") for finding in findings]
        output.document({"ok": code == 0, "exit": code, "checks": checks})
    else:
        signs = Counter(finding.sign for finding in findings)
        problems = f"{output.count(signs['warn'], 'warning')}, {output.count(signs['fail'], 'failure')}"
        output.say(f"{signs['ok']} ok, {problems}")
    return code


def print_findings(found: Iterator[Finding]) -> list[Finding]:
    """Print what is ok at once, and problems last, where they are easy to see. Returns all findings."""
    findings, quiet = list[Finding](), context.given().json
    try:
        for finding in found:
            if finding.topic and any(each.topic == finding.topic for each in findings):
                continue
            findings.append(finding)
            if finding.sign == "ok" and not quiet:
                say(finding)
    finally:
        for finding in sorted(findings, key=lambda each: list(COLOURS).index(each.sign)):
            if finding.sign != "ok" and not quiet:
                say(finding)
    return findings


def of_servers(found: Project) -> Iterator[Finding]:
    for name, settings in project.connections(found).items():
        try:
            yield from of_server(name, settings, found)
        except QdError as error:
            yield stopped(name, error)
    laravel = found.settings.laravel if found.settings is not None else None
    if laravel is not None and laravel.cache_url:
        try:
            store = context.store_at(laravel.cache_url, laravel.cache_prefix)
            yield (answer := servers.answers(store.space, "laravel.cache"))
            if answer.sign != "fail":
                yield servers.check_cache_prefix(store.space, laravel.cache_prefix)
        except QdError as error:
            yield fail("laravel.cache_url", error, "fix cache_url in [laravel]", Exit.CONFIG)
    if found.settings is not None and found.settings.failed.database:
        yield servers.check_failed_jobs(found.settings.failed.database)


def stopped(name: str, error: QdError) -> Finding:
    """A server whose other checks cannot be made."""
    if "NOPERM" in str(error):
        way = "run qd doctor with the url of a worker or an operator"
        return warn(f"{name}.reports", f"this user may not read its keys: {error}", way)
    if isinstance(error, ConfigError | NeedsMending):
        return fail(f"{name}.refused", error, AT_START, Exit.CONFIG)
    return fail(f"{name}.lost", error, way_out(str(error)), Exit.UNAVAILABLE)


def of_server(name: str, settings: Settings, found: Project) -> Iterator[Finding]:
    if (settings.connections[name].url or "").startswith("embedded:") and embedded.status(settings.root) is None:
        yield warn(f"{name}.answers", "the embedded server is not running", "`qd work` starts it")
        return
    own = found.app.connections.own if found.app is not None else {}
    for what, meaning in gaps_of(settings, name, own).items():
        yield ok(f"{name}.cannot", f"{what}: {meaning}")
    if settings.connections[name].driver in BARE:
        return  # it has no server
    borrows = only_keeps_jobs(name, settings)
    store = context.store(settings, name)
    begins = list(begin_of(name, settings, store))
    yield from begins
    if any(finding.sign == "fail" for finding in begins):
        return
    primaries = list[tuple[str, RedisConnection]]()
    for where, connection in servers.redis_connections(store.space, name):
        facts = servers.facts_of(connection)
        if not borrows:
            yield from servers.check_redis(connection, where, facts, clustered=connection is not store.space)
            yield from servers.check_sentinels(connection, where)
        if facts.get("role", "master") == "master":
            primaries.append((where, connection))
    if wrong := strange(store.space, store.prefix, keys.SHARED_TYPES):
        yield fleet.mistyped(f"{name}.keys", wrong)
        return  # what reads them is refused
    try:
        state = fleet.read(settings)
    except QdError:  # the reports cannot be read
        state = None
    masters = [master for master in state.masters if master.connection == name] if state else []
    served = [each.work.queues for each in found.pools.values() if each.work.connection == name]
    worked = list(dict.fromkeys(chain(*served, *(master.queues for master in masters))))
    if borrows:
        try:
            for hint in server_warnings(settings, name, worked):  # about queues that it does not create itself (SQS)
                way = "raise maxReceiveCount of its redrive policy to 10 or more, or remove it"
                yield warn(f"{name}.queues", hint, way)
        except ConfigError as error:
            yield fail(f"{name}.queues", error, AT_START, Exit.CONFIG)
    why = "" if borrows else refusal(store, worked)
    if why and "READONLY" not in why:  # a replica is reported by its role
        yield fail(f"{name}.writes", why.rstrip("."), way_out(why), Exit.UNAVAILABLE)
    for where, connection in primaries:
        yield from servers.check_rights(connection, where, store.prefix, worked)
    if isinstance(store.space, RedisConnection) and not borrows:
        yield from servers.check_prefix(store.space, name, store.prefix, worked)
        yield from servers.check_database(store.space, name, store.prefix, worked, facts)
    place = "its outbox" if borrows else "it"
    yield from fleet.check_waiting(store, worked, found.app, masters, signing_of(settings), place)
    yield from fleet.check_flow(settings, name, worked, state)
    yield from fleet.unworked(name, found, masters)
    if name == settings.control:
        yield from fleet.check_masters(state or fleet.read(settings))
        yield from fleet.check_schedule(found.app, settings, state)


def begin_of(name: str, settings: Settings, store: KeyspaceStore) -> Iterator[Finding]:
    """Whether it can be used at all, and how well a database performs. For a server that only keeps jobs, what it borrows
    from the control connection is reported there."""
    at, space = settings.connections[name], cast("DatabaseKeyspace", store.space)
    if only_keeps_jobs(name, settings):
        yield servers.takes(context.queue(settings, name), at)
        return
    lacks = list(servers.tables(space, at)) if at.driver == "database" else []
    if any(finding.sign == "fail" for finding in lacks):
        yield from lacks
        return
    answer = servers.answers(store.space, name)
    yield from (answer, *lacks)
    if at.driver == "database" and answer.sign != "fail":
        yield from servers.check_server(space, name)


def only_keeps_jobs(name: str, settings: Settings) -> bool:
    """Its other data is on the control connection."""
    return settings.connections[name].driver not in WITH_KEYSPACE


def say(finding: Finding) -> None:
    sign = click.style(f"{finding.sign:<4}", fg=COLOURS[finding.sign])
    fix = f" -> {finding.fix}" if finding.fix else ""
    output.say(f"{finding.what}: {finding.value}{fix}", before=f"{sign}  ")


def code_of(findings: list[Finding], *, strict: bool) -> int:
    """Configuration first, then servers: unreadable configuration hides the rest."""
    codes = {finding.code for finding in findings if finding.sign == "fail"}
    other = int(bool(codes) or (strict and any(finding.sign == "warn" for finding in findings)))
    return next((code for code in (Exit.CONFIG, Exit.UNAVAILABLE) if code in codes), other)
