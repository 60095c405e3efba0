"""The project (configuration, key files, app, what the app's import leaves behind), and this machine or container
(memory, root, the folder of the liveness files). Imports the app, starts nothing.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from traceback import walk_tb

from qd import config as configuration
from qd.app import Qd
from qd.cli import context
from qd.cli.checks import Finding, fail, ok, warn
from qd.cli.output import count, quote
from qd.config.settings import Settings, check_concurrency, sent_to
from qd.drivers.connections import check_url
from qd.errors import QdError
from qd.options.drivers import WITH_KEYSPACE
from qd.options.kinds import size_text
from qd.process import liveness, proc
from qd.process.exit_codes import Exit
from qd.worker.boot import NoApp

IMPORT = 60  # seconds an app may take to import
ROOT = Path("/")  # where /proc and /sys are
NO_LIMIT = 1 << 60  # cgroup v1 writes a huge number for "no limit"


@dataclass
class Project:
    """What is known so far. pools: pool -> its settings, "" for no pool; {} without a usable configuration. unusable:
    connections whose url cannot be used."""

    app: Qd | None = None
    pools: dict[str, Settings] = field(default_factory=dict)
    unusable: set[str] = field(default_factory=set)

    @property
    def settings(self) -> Settings | None:
        return next(iter(self.pools.values()), None)


def check_project(project: Project) -> Iterator[Finding]:
    """Fills `project` in. The app is imported before urls are checked, because it may name one."""
    try:
        found = context.loaded()
        project.pools = {pool: context.loaded(pool=pool) for pool in context.pool_names() or [""]}
        for each in project.pools.values():
            check_concurrency(each)
    except QdError as error:
        yield fail("configuration", error, "fix it; `qd config check` shows whether it is valid", Exit.CONFIG)
        return
    place = str(found.file) if found.file else "no file: environment variables and defaults"
    yield ok("configuration", f"{place}, {count(len(project.pools), 'pool')}" if project.pools.keys() - {""} else place)
    for line in configuration.unknown_variables(found, os.environ):
        yield warn("environment", line, "remove it, or correct its name")
    for line in configuration.overridden_urls(found):
        yield warn("url", line, "if you meant the server of the file, remove the variable")
    for path, line in configuration.open_files(found).items():  # who reads a signing key can send jobs that workers run
        yield warn("secrets", line, f"chmod 600 {quote(path)}, owned by the user that runs qd")
    yield from check_app(project, found)
    for name, settings in connections(project).items():
        try:
            check_url(settings.connection(name))
        except QdError as error:
            project.unusable.add(name)
            given = name in settings.connections and settings.connections[name].url is not None
            way = "fix the url; `qd config show` shows its origin" if given else "set the url"
            yield fail(f"{name}.url", error, way, Exit.CONFIG)


def check_app(project: Project, found: Settings) -> Iterator[Finding]:
    if not found.app:
        way = "write app = below [qd] in qd.toml, set QD_APP, or give --app MODULE:ATTR"
        yield fail("app", "no app is named: `qd work` does not start", way, Exit.CONFIG)
        return
    without_jobs: Qd | None = None
    try:
        # What its import prints goes to stderr.
        with redirect_stdout(sys.stderr), context.deadline(IMPORT, f"the app's import takes longer than {IMPORT} s"):
            without_jobs = context.app_of(found)
            project.app = context.app()
    except QdError as error:
        way = f"fix it; `{shows(error, found.app)}` shows the same error"
        if isinstance(error, NoApp):
            way = f"set app of [qd] to MODULE:NAME of your Qd ({found.origins['qd.app']} names {found.app})"
        yield fail("app", error, way, Exit.CONFIG)
        if without_jobs is not None:  # the other commands use its url, too
            project.pools = {pool: context.loaded(without_jobs._code_settings, pool=pool) for pool in project.pools}
        return
    names = project.app._registry.names()
    if names:
        yield ok("app", f"{found.app} declares {count(len(names), 'job')}")
    elif len(project.app.schedule) + len(found.schedule.entries):  # functions and commands need no worker
        yield ok("app", f"{found.app} declares no jobs, and entries of the schedule")
    else:
        way = "decorate functions with @app.job, and name their modules in imports = of [qd]"
        yield fail("app", f"{found.app} declares no jobs: every job that arrives is unknown", way)
    yield from check_urls(found, project.app.settings)
    yield from check_queues(project, project.app)
    # What prevents forking workers from a process that has imported the app.
    threads, sockets = proc.thread_names(), proc.connected_sockets()
    way = "open it on first use; until then each worker imports the app itself, which takes time and memory"
    for name in threads:
        yield warn("import", f"left the thread '{name}' running", way)
    for peer in sockets:
        yield warn("import", f"left a connection open: {peer}", way)
    if not threads and not sockets:
        yield ok("import", "left no thread and no connection behind")


def shows(error: QdError, app: str) -> str:
    """A command that imports the module that failed: one of the app's jobs, or the app's own."""
    frames = [frame for frame, _ in walk_tb((error.__cause__ or error).__traceback__)]
    names = [frame.f_locals["name"] for frame in frames if frame.f_code is import_module.__code__]
    module = next(iter(names), app.partition(":")[0])
    return f"python {'manage.py shell -c' if 'django.apps' in sys.modules else '-c'} 'import {module}'"


def check_urls(found: Settings, of_app: Settings) -> Iterator[Finding]:
    """found: the settings without those of Qd(...), which most commands use."""
    ours, theirs = found.connections[found.default], of_app.connections[of_app.default]
    if context.is_server(ours) and theirs.url_origin == "Qd(...)" and ours.url != theirs.url:
        fact = f"workers and producers use the url of Qd(...), and commands that of {ours.url_origin}"
        yield warn("url", fact, "write it in one place: remove one of them")


def check_queues(project: Project, app: Qd) -> Iterator[Finding]:
    """Loads the pools again, with the url and queues that the app names."""
    from qd.worker.queues import resolved, without_limit

    for pool in project.pools:
        found = project.pools[pool] = context.loaded(app._code_settings, pool=pool)
        try:
            project.pools[pool] = resolved(app, found)
        except QdError as error:
            yield fail(f"pool {pool}" if pool else "queues", error, "name its queues", Exit.CONFIG)
    for name, why in without_limit(app):
        way = "declare the limit, or correct its name; a `qd work` that serves the job's queue exits 3"
        yield fail(f"job {name}", f"can never run: {why}", way)
    sealed = [each.name for each in app._registry if each.options.encrypted]
    if sealed and project.settings and not project.settings.encryption.keys:
        way = 'write keys = ["ID:SECRET"] below [encryption]; `openssl rand -base64 32` generates a secret'
        yield fail("encryption", f"{', '.join(sealed)}: encrypted, but [encryption] has no key", way, Exit.CONFIG)


def connections(project: Project) -> dict[str, Settings]:
    """The connections that this project uses, each with settings that name it. With -c only that one, and the connection
    that keeps its pauses, locks and failed jobs."""
    used = dict[str, Settings]()
    for found in project.pools.values():
        for name in (found.work.connection, found.default, *sent_to(found.default, found.connections), found.control):
            used.setdefault(name, found)
    wanted = context.given().connection
    for name, found in list(used.items()):
        at = found.connections.get(wanted or "")
        needed = {wanted}
        if at is not None and at.driver not in WITH_KEYSPACE:
            needed |= {*sent_to(at.name, found.connections), found.control}
        if name in project.unusable or (wanted is not None and name not in needed):
            del used[name]
    return used


def check_host(project: Project) -> Iterator[Finding]:
    yield from memory(project)
    if os.geteuid() == 0:
        if proc.in_container():
            yield ok("root", "this is root, in a container", topic="root")
        else:
            way = "run it as its own user: user= for supervisord, User= for systemd, USER in a Dockerfile"
            yield warn("root", "this is root; `qd work` started like this runs jobs as root", way, topic="root")
    where = liveness.folder(os.environ)
    try:
        liveness.claim(where)
        yield ok("health --live", where)
    except OSError as error:
        way = "set XDG_RUNTIME_DIR (or RUNTIME_DIRECTORY) to a folder of this user, for qd work and the probe alike"
        yield warn("health --live", f"no liveness file can be written: {error}", way)


def memory(project: Project) -> Iterator[Finding]:
    """app + workers x --memory of each pool, compared with the limit of this container or unit, or with the machine."""
    limit = memory_limit(proc.text(ROOT / "proc/self/cgroup"), ROOT / "sys/fs/cgroup")
    match = re.search(r"^MemTotal:\s+(\d+) kB", proc.text(ROOT / "proc/meminfo"), re.MULTILINE)
    whole = int(match[1]) << 10 if match else 0
    app = proc.rss_of(os.getpid()) or 0
    for pool, found in project.pools.items():
        work, what = found.work, f"memory {pool}".strip()
        need = app + work.workers * work.memory
        use = f"{count(work.workers, 'worker')} x {size_text(work.memory)} + app {app >> 20}M = {need >> 20}M"
        way = "fewer workers, a smaller --memory, or more for the container; --memory-hard bounds a single job"
        if limit is not None and not work.memory:
            fact = f"--memory is off, the limit here is {limit >> 20}M: the kernel kills what exceeds it"
            yield warn(what, fact, way)
        elif limit is not None and need > limit:
            yield fail(what, f"{use}, over the {limit >> 20}M of this container or unit", way)
        elif whole and need > whole:
            yield warn(what, f"{use}, over the {whole >> 20}M of this machine", way)
        else:
            yield ok(what, f"{use} of {(limit or whole) >> 20}M")


def memory_limit(membership: str, mount: Path) -> int | None:
    """The smallest memory limit from this process's group up to the root (v1, v2), in bytes. None if there is none."""
    groups = proc.groups(membership, mount, "memory")
    values = [proc.text(group / name).strip() for group in groups for name in ("memory.max", "memory.limit_in_bytes")]
    return min((int(each) for each in values if each.isdigit() and int(each) < NO_LIMIT), default=None)
