"""`qd doctor`: is it set up right? Looks at the project, its servers, what waits there, the masters, what supervises them
and this host; one line for each thing, with the fix where it is not well. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from qd.cli import context, output
from qd.cli.checks import Finding, fail, fleet, ok, project, servers, supervisors, warn
from qd.cli.checks import project as host
from qd.cli.checks.fleet import check_schedule
from qd.cli.checks.queues import check, check_waiting, unworked
from qd.cli.state import refusal, way_out
from qd.dispatch.route import signing_of
from qd.drivers import embedded
from qd.drivers.connections import gaps_of, server_warnings
from qd.drivers.redis.connection import RedisConnection
from qd.errors import ConfigError, NeedsMending, QdError
from qd.options.drivers import BARE, WITH_KEYSPACE
from qd.process.exit_codes import Exit

if TYPE_CHECKING:
    from qd.cli.checks.project import Project
    from qd.cli.state import State
    from qd.config.settings import Settings
    from qd.drivers.database.keyspace import DatabaseKeyspace
    from qd.store.base import KeyspaceStore
    from qd.store.masters import MasterReport


AT_START = "`qd work` leaves with 78 until then"
PATIENCE = 2.0  # seconds for a connection, and for each answer
COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}
FILE = click.Path(path_type=Path)


@click.command("doctor")
@click.option("--strict", is_flag=True, help="Exit 1 when there is a warning, too.")
@click.option(
    "--supervisord", "program", type=FILE, metavar="PATH", help="Look at this file of supervisord.  [the usual places]"
)
@click.option("--unit", type=FILE, metavar="PATH", help="Look at this unit file of systemd.")
@context.options
def command(strict: bool, program: Path | None, unit: Path | None) -> int:
    """Look at the whole set-up, and say what is not right and how to mend it; nothing is changed.

    Exit 0: all is well, or there are warnings only. Else 78 (configuration, app), 69 (a server is away), or 1.
    """
    context.given().patience, context.given().only_looks = PATIENCE, True
    findings = told_as_found(looked(project.Project(), program, unit))
    code = code_of(findings, strict=strict)
    if context.given().json:
        output.document({"ok": code == 0, "exit": code, "checks": [told(finding) for finding in findings]})
    else:
        output.say(summary(findings))
    return code


def told_as_found(looking: Iterator[Finding]) -> list[Finding]:
    """All of them. People read what is well at once, and last what is not: it must not drown."""
    findings, quiet = list[Finding](), context.given().json
    try:
        for finding in looking:
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


def looked(found: Project, program: Path | None, unit: Path | None) -> Iterator[Finding]:
    """In the order in which one thing needs the other."""
    yield from project.check_project(found)
    yield from of_servers(found)
    yield from supervisors.check(found, program)
    yield from supervisors.check_systemd(found, unit)
    yield from host.check(found)


def of_servers(found: Project) -> Iterator[Finding]:
    for name, settings in project.connections(found).items():
        try:
            yield from of_server(name, settings, found)
        except QdError as error:
            yield stopped(name, error)
    if found.settings is not None and found.settings.laravel is not None and found.settings.laravel.cache_url:
        yield of_laravel(found.settings)


def stopped(name: str, error: QdError) -> Finding:
    """The rest of a server cannot be looked at."""
    if "NOPERM" in str(error):
        way = "run qd doctor with the url of a worker or an operator"
        return warn(f"{name}.reports", f"this user may not read what stands there: {error}", way)
    if isinstance(error, ConfigError | NeedsMending):
        return fail(f"{name}.refused", error, AT_START, Exit.CONFIG)
    return fail(f"{name}.lost", error, way_out(str(error)), Exit.UNAVAILABLE)


def of_server(name: str, settings: Settings, found: Project) -> Iterator[Finding]:
    if (settings.connections[name].url or "").startswith("embedded:") and embedded.status(settings.root) is None:
        yield warn(f"{name}.answers", "the embedded server is not running", "`qd work` starts it")
        return
    yield from limits_of(name, settings, found)
    if settings.connections[name].driver in BARE:
        return  # it has no server of its own
    store = context.store(settings, name)
    begins = list(begin_of(name, settings, store))
    yield from begins
    if any(finding.sign == "fail" for finding in begins):
        return
    wires = list(servers.wires_of(store.space, name))
    masters_of = list[tuple[str, RedisConnection]]()
    for where, wire in wires:
        facts = servers.facts_of(wire)
        if not borrows(name, settings):
            yield from servers.check_redis(wire, where, facts, clustered=wire is not store.space)
            yield from servers.check_sentinels(wire, where)
        if facts.get("role", "master") == "master":
            masters_of.append((where, wire))
    state = reported(settings)
    masters = [master for master in state.masters if master.connection == name] if state else []
    queues = worked(name, found, masters)
    yield from there(name, settings, queues)
    if not borrows(name, settings):
        yield from written(name, refusal(store, queues))
    for where, wire in masters_of:
        yield from servers.check(wire, where, store.prefix, queues)
    yield from check_waiting(store, queues, found.app, masters, signing_of(settings), what_waits(name, settings))
    yield from check(settings, name, queues, state)
    yield from unworked(name, found, masters)
    if name == settings.control:
        yield from fleet.check(state or fleet.read(settings))
        yield from check_schedule(found.app, settings, state)


def begin_of(name: str, settings: Settings, store: KeyspaceStore) -> Iterator[Finding]:
    """Whether it can be used at all; and of a database how well. One that borrows the keyspace of the control connection is
    looked at itself: what it borrows is told as that connection's."""
    at, space = settings.connections[name], cast("DatabaseKeyspace", store.space)
    if borrows(name, settings):
        yield servers.takes(context.queue(settings, name), at)
        return
    lacks = list(servers.tables(space, at)) if at.driver == "database" else []
    if any(finding.sign == "fail" for finding in lacks):
        yield from lacks
        return
    answer = servers.answers(store.space, name)
    yield answer
    yield from lacks
    if at.driver == "database" and answer.sign != "fail":
        yield from servers.check_server(space, name)


def written(name: str, said: str) -> Iterator[Finding]:
    """Whether the server takes writes. A replica is named by its role."""
    if said and "READONLY" not in said:
        yield fail(f"{name}.writes", said.rstrip("."), way_out(said), Exit.UNAVAILABLE)


def limits_of(name: str, settings: Settings, found: Project) -> Iterator[Finding]:
    """What it cannot do: a fact, and nothing to mend."""
    own = found.app.connections.own if found.app is not None else {}
    for what, meaning in gaps_of(settings, name, own).items():
        yield ok(f"{name}.cannot", f"{what}: {meaning}")


def what_waits(name: str, settings: Settings) -> str:
    """Of what the payloads that can be looked at are."""
    return "its outbox" if borrows(name, settings) else "it"


def borrows(name: str, settings: Settings) -> bool:
    """It keeps jobs and nothing else."""
    return settings.connections[name].driver not in WITH_KEYSPACE


def there(name: str, settings: Settings, queues: Sequence[str]) -> Iterator[Finding]:
    """What the server says of these queues that does not make any: SQS. (Of a database begin_of has said it.)"""
    if settings.connections[name].driver in WITH_KEYSPACE:
        return
    try:
        for hint in server_warnings(settings, name, queues):
            yield warn(
                f"{name}.queues", hint, "raise maxReceiveCount of its redrive policy to 10 or more, or remove it"
            )
    except ConfigError as error:
        yield fail(f"{name}.queues", error, AT_START, Exit.CONFIG)


def reported(settings: Settings) -> State | None:
    """None: their reports cannot be read."""
    try:
        return fleet.read(settings)
    except QdError:
        return None


def worked(name: str, found: Project, masters: list[MasterReport]) -> list[str]:
    """The queues of this connection that pools and masters work on."""
    pools = [each.work.queues for each in found.pools.values() if each.work.connection == name]
    queues = [queue for each in pools for queue in each] + [queue for master in masters for queue in master.queues]
    return list(dict.fromkeys(queues))


def of_laravel(settings: Settings) -> Finding:
    """Its cache, where its restart and pause keys are."""
    assert settings.laravel is not None
    try:
        store = context.store_at(settings.laravel.cache_url, settings.laravel.cache_prefix)
        return servers.answers(store.space, "laravel.cache")
    except QdError as error:
        return fail("laravel.cache_url", error, "mend cache_url below [laravel]", Exit.CONFIG)


# -- telling


def say(finding: Finding) -> None:
    sign = click.style(f"{finding.sign:<4}", fg=COLOURS[finding.sign])
    fix = f" -> {finding.fix}" if finding.fix else ""
    output.say(f"{sign}  {output.clean(f'{finding.what}: {finding.value}{fix}')}")


def told(finding: Finding) -> dict[str, str]:
    return {key: value for key, value in asdict(finding).items() if key not in ("code", "topic")}


def summary(findings: list[Finding]) -> str:
    counts = {sign: sum(finding.sign == sign for finding in findings) for sign in COLOURS}
    return f"{counts['ok']} ok, {output.count(counts['warn'], 'warning')}, {output.count(counts['fail'], 'failure')}"


def code_of(findings: list[Finding], *, strict: bool) -> int:
    """The configuration before the server before all else: what cannot be read hides the rest."""
    codes = {finding.code for finding in findings if finding.sign == "fail"}
    for code in (Exit.CONFIG, Exit.UNAVAILABLE):
        if code in codes:
            return code
    return 1 if codes or (strict and any(finding.sign == "warn" for finding in findings)) else 0
