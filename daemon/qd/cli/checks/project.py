"""The project: its configuration, key files, app, what the app's import leaves behind. Imports the app, starts nothing."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qd import config as configuration
from qd.cli import context
from qd.cli.begin import loaded, pools
from qd.cli.checks.finding import Finding, fail, ok, warn
from qd.cli.output import count
from qd.config import Settings
from qd.config.settings import sent_to
from qd.connectors.manager import check_url
from qd.errors import QdError
from qd.options.drivers import WITH_KEYSPACE
from qd.process.exits import Exit

if TYPE_CHECKING:
    from qd.app import Qd

IMPORT = 60  # seconds an app may take to import


@dataclass
class Project:
    """What was found out so far. pools: pool -> its settings, "" the one without a name; {}: no usable configuration.
    unusable: connections whose url cannot be used."""

    app: Qd | None = None
    pools: dict[str, Settings] = field(default_factory=dict)
    unusable: set[str] = field(default_factory=set)

    @property
    def settings(self) -> Settings | None:
        return next(iter(self.pools.values()), None)


def check(project: Project) -> Iterator[Finding]:
    """Fills `project` in. The app comes before the urls: it may name one."""
    try:
        found = context.loaded()
        project.pools = {pool: loaded(pool) for pool in pools() or [""]}
    except QdError as error:
        yield fail("configuration", error, "mend it; `qd config check` tells whether it is valid", Exit.CONFIG)
        return
    place = str(found.file) if found.file else "no file: variables and what is built in"
    yield ok("configuration", f"{place}, {count(len(project.pools), 'pool')}" if project.pools.keys() - {""} else place)
    for line in configuration.strangers(found, os.environ):
        yield warn("environment", line, "take it away, or mend its name")
    yield from check_key_files(found)
    yield from check_app(project, found)
    yield from check_urls(project)


def check_key_files(found: Settings) -> Iterator[Finding]:
    """Whoever reads a signing key can send jobs that workers run."""
    for path in found.signing.files:
        mode = stat.S_IMODE(os.stat(path).st_mode)
        if mode & 0o044:
            who = "everybody" if mode & 0o004 else "its group"
            said = f"{path} can be read by {who} (mode {mode:04o})"
            yield warn("signing", said, f"chmod 600 {path}, owned by the user that runs qd")


def check_app(project: Project, found: Settings) -> Iterator[Finding]:
    if not found.app:
        way = "write app = below [qd] in qd.toml, set QD_APP, or give --app MODULE:ATTR"
        yield fail("app", "none is named: `qd work` does not start", way, Exit.CONFIG)
        return
    try:
        project.app = imported()
    except QdError as error:
        yield fail(
            "app", error, f"mend it; `python -c 'import {found.app.partition(':')[0]}'` shows the same", Exit.CONFIG
        )
        return
    names = project.app._registry.names()
    if names:
        yield ok("app", f"{found.app} declares {count(len(names), 'job')}")
    elif len(project.app.schedule) + len(found.schedule.entries):  # their functions and commands need no worker
        yield ok("app", f"{found.app} declares no jobs, and entries of the schedule")
    else:
        way = "decorate functions with @app.job, and name their modules in imports = of [qd]"
        yield fail("app", f"{found.app} declares no jobs: whatever comes is unknown", way)
    yield from check_pools(project, project.app)
    yield from check_limits(project.app)
    yield from check_import()


def check_pools(project: Project, app: Qd) -> Iterator[Finding]:
    """Reads them again, with what the app says of the server and of its queues."""
    from qd.worker.served import resolved

    for pool in project.pools:
        found = project.pools[pool] = loaded(pool, app._code_settings)
        try:
            project.pools[pool] = resolved(app, found)
        except QdError as error:
            yield fail(f"pool {pool}" if pool else "queues", error, "name its queues", Exit.CONFIG)


def check_limits(app: Qd) -> Iterator[Finding]:
    from qd.worker.served import without_limit

    for name, why in without_limit(app):
        way = "declare the limit, or correct its name; a `qd work` that serves the job's queue exits 3"
        yield fail(f"job {name}", f"can never run: {why}", way)


def imported() -> Qd:
    """The app; what its import prints goes to stderr. Raises QdError, also when it takes for ever."""
    with redirect_stdout(sys.stderr), context.deadline(IMPORT, f"the app's import takes longer than {IMPORT} s"):
        return context.app()


def check_import() -> Iterator[Finding]:
    """What stands against forking workers from a process that has imported the app."""
    from qd.process.vitals import connected_sockets, thread_names

    threads, sockets = thread_names(), connected_sockets()
    way = "open it when it is first used; until then each worker imports the app by itself, which takes time and memory"
    for name in threads:
        yield warn("import", f"left the thread '{name}' running", way)
    for peer in sockets:
        yield warn("import", f"left a connection open: {peer}", way)
    if not threads and not sockets:
        yield ok("import", "left no thread and no connection behind")


def check_urls(project: Project) -> Iterator[Finding]:
    for name, found in connections(project).items():
        try:
            check_url(found.connection(name))
        except QdError as error:
            project.unusable.add(name)
            yield fail(f"{name}.url", error, "mend the url; `qd config show` tells where it comes from", Exit.CONFIG)


def connections(project: Project) -> dict[str, Settings]:
    """The connections that this project works on or is steered by, each with settings that name it. Of the one that is asked
    for also where its pauses, locks and failed jobs stand, when it keeps none itself."""
    used = dict[str, Settings]()
    for found in project.pools.values():
        for name in (found.work.connection, found.default, *sent_to(found.default, found.connections), found.control):
            used.setdefault(name, found)
    asked = context.given().connection
    if asked is not None:
        used = {name: found for name, found in used.items() if name in with_home(asked, found)}
    return {name: found for name, found in used.items() if name not in project.unusable}


def with_home(name: str, settings: Settings) -> tuple[str, ...]:
    at = settings.connections.get(name)
    if at is None or at.driver in WITH_KEYSPACE:
        return (name,)
    return (name, *sent_to(name, settings.connections), settings.control)
