"""`qd work`: wires master, template, keeper, workers and scheduler together. The only module that knows all of them.

Before the first fork, the master imports the code and the libraries that its children have in common, so that all
processes share that memory (`import_shared`). It never imports the app, and it connects to no server.
"""

from __future__ import annotations

import gc
import os
import re
import secrets
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from setproctitle import setproctitle

from qd import __version__, config
from qd.config.file import VARIABLES
from qd.config.settings import Settings
from qd.errors import ConfigError
from qd.log import Log, Unblocked
from qd.master.code import Assignment, ChildContext, MasterPlan
from qd.master.master import Master
from qd.master.state import MAX_WORKERS
from qd.options.drivers import extra_of_url
from qd.options.extras import to_install
from qd.process import proc, systemd
from qd.process.scoreboard import Role
from qd.redaction import mask_url

if TYPE_CHECKING:
    from qd.app import Qd
    from qd.drivers.base import Factory
    from qd.process.channels import Imported
    from qd.worker.boot import Serve

NAMED = 5  # jobs that a warning about an unserved queue lists
Load = Callable[[dict[str, object] | None], Settings]  # reads the configuration; the argument: what Qd(...) was given


def run(load: Load) -> int:
    """Work until stopped, and return the exit code. `load` runs at the start, after the app's import, and at each HUP.
    Raises ConfigError before anything runs."""
    settings = load(None)
    if settings.work.workers == 0 and not settings.work.only_schedule:
        config.check_work(settings)
        from qd.foreground import run_inline  # for breakpoints: without a master

        return run_inline(settings, load, token(), announce)
    work = settings.work
    log = Log("master", format=work.log_format, level=work.log_level, jobs=work.log_jobs, write=Unblocked())
    pool = f" [{work.pool}]" if work.pool else ""
    master = Master(
        plan_of(settings, load),
        token=token(),
        log=log,
        notifier=systemd.Notifier(os.environ),
        title=lambda text: setproctitle(f"qd: master{pool} {text}"),
        replan=lambda: reload_plan(load),
        announce=lambda found: announce(log, config.from_json(found.settings.encode()), found),
        prepare=lambda: import_shared(settings),
    )
    return master.run()


def import_shared(settings: Settings) -> None:
    """Import what template and keeper have in common, libraries of servers included: 70 MB become 55. Nothing here
    connects to a server or starts a thread; the app is imported by the template only."""
    from qd.drivers.connections import preload
    from qd.keeper import keeper  # noqa: F401
    from qd.worker import boot  # noqa: F401

    preload(settings, (settings.work.connection, settings.control))
    gc.freeze()  # else a collection in a child would write to every page


def reload_plan(load: Load) -> MasterPlan:
    """The plan after a reload, which reads the file of variables again. Children of the previous plan keep theirs."""
    VARIABLES.put(VARIABLES.read())
    return plan_of(load(None), load)


def plan_of(settings: Settings, load: Load) -> MasterPlan:
    """The settings that the master needs, and the functions that its children run."""
    work = settings.work
    if work.workers > MAX_WORKERS:
        most = f"the {MAX_WORKERS} of one `qd work` (start a second one)"
        raise ConfigError(f"workers = {work.workers} is more than {most}")
    if settings.failed.database and find_spec("sqlalchemy") is None:
        extra = extra_of_url(settings.failed.database) or "database"
        raise ConfigError(f"[failed] database needs SQLAlchemy: {to_install(extra)}")
    if not work.workers and not work.only_schedule:
        raise ConfigError("workers = 0 works in the foreground, without a master: stop qd work and start it again")
    config.check_work(settings)
    bodies = Bodies(settings, load)
    return MasterPlan(work, bodies.template, bodies.fresh, bodies.keeper)


class Bodies:
    """The functions that the master's children run, each in a new process."""

    def __init__(self, settings: Settings, load: Load) -> None:
        self.settings, self._load = settings, load
        self._variables = VARIABLES.found

    def template(self, context: ChildContext, orders: Any) -> int:
        from qd.worker import boot

        return boot.run_template(self._own(context), orders, self.settings, self._complete, self._serve)

    def fresh(self, context: ChildContext, assignment: Assignment) -> int:
        from qd.worker import boot

        return boot.run_fresh(self._own(context), assignment, self.settings, self._complete, self._serve)

    def keeper(self, context: ChildContext, orders: Any, resolved: str, also: tuple[str, ...]) -> int:
        from qd.keeper import keeper

        settings = config.from_json(resolved.encode())
        return keeper.run(self._own(context), orders, settings, also, own_drivers_of(settings))

    def _own(self, context: ChildContext) -> ChildContext:
        """The context with the log settings of this plan. Also restores its variables: a later reload may have failed."""
        VARIABLES.put(self._variables)
        work, log = self.settings.work, context.log.of(context.log.role)
        log.tune(work.log_format, work.log_level, work.log_jobs)
        return replace(context, log=log)

    def _complete(self, app: Qd) -> Settings:
        return self._load(app._code_settings)

    def _serve(self, app: Qd) -> Serve:
        """The function that workers and schedulers run. Imported before they are forked: they then share its memory, and
        all run the same release, even if a deploy replaces the code meanwhile."""
        from qd.worker import boot

        work = self.settings.work
        if not work.runs_schedule or not (work.only_schedule or app.schedule.here(app.settings.env)):
            return boot.serve
        from qd.scheduler import process

        serves = {Role.WORKER: boot.serve, Role.SCHEDULER: process.serve}
        return lambda app, context, of, between: serves[of.role](app, context, of, between)


def own_drivers_of(settings: Settings) -> Mapping[str, Factory]:
    """The app's own drivers, for the keeper. The keeper imports the app only if the app opens its connection, or has the
    credential provider of a url."""
    from qd.options.drivers import OPENED_WITHOUT_APP

    has_driver = settings.connections[settings.work.connection].driver not in OPENED_WITHOUT_APP
    used = [settings.connections[name].url for name in (settings.work.connection, settings.control)]
    cache = settings.laravel.cache_url if settings.laravel else ""
    if not has_driver and not any(map(config.provider_of, (*used, cache))):
        return {}
    from qd.worker import boot

    app = boot.load_app(settings)
    app.settings = settings
    if has_driver:
        app._load()
    return app.connections.own


def announce(log: Log, settings: Settings, found: Imported) -> None:
    """Log the start line, then one line per capability that the connection lacks and per declared queue that no worker
    serves, and warnings about the setup."""
    work, connection = settings.work, settings.connection(settings.work.connection)
    only = work.only_schedule
    log.info(
        "master.started",
        version=__version__,
        pool=work.pool or "default",
        connection=connection.name,
        url=mask_url(connection.url or ""),
        queues=None if only else ",".join(work.weighted),
        workers=work.workers,
        concurrency=work.concurrency if work.concurrency > 1 else None,
        jobs=found.jobs,
        schedule=(found.entries or None) if work.runs_schedule else None,
    )
    for what, meaning in found.limits.items():
        log.info("connection.unsupported", connection=connection.name, what=what, meaning=meaning)
    for queue, names in found.unserved.items():
        log.warning("queue.unserved", queue=queue, jobs=named(names))
    if work.prefetch > 1 and work.concurrency > 1:
        hint = "a worker with a concurrency above 1 fetches nothing ahead: leave out prefetch"
        log.info("prefetch.unused", prefetch=work.prefetch, concurrency=work.concurrency, hint=hint)
    if found.exclusive and work.concurrency > 1:
        hint = "each waits until the other jobs of its worker have ended: give them a pool with concurrency = 1"
        log.info("jobs.exclusive", jobs=named(found.exclusive), hint=hint)
    hint, url = "", connection.url or ""
    if "ssl_cert_reqs=none" in url:
        hint = "the server's certificate is not verified: use ssl_ca_certs instead of ssl_cert_reqs=none"
    elif re.search("ssl_check_hostname=(false|no|0)", url, re.IGNORECASE):
        hint = "any certificate of the CA is accepted, for any host: remove ssl_check_hostname=false"
    if hint:
        log.warning("redis.unverified", url=mask_url(url), hint=hint)
    if os.geteuid() == 0:
        hint = "set a user: user= in supervisord, User= in systemd, USER in a Dockerfile"
        log.line("info" if proc.in_container() else "warning", "master.is_root", {"hint": hint})
    if only and not found.entries:
        hint = "declare entries with app.schedule(...) or in [schedule.entries.NAME], then send HUP or run `qd restart`"
        log.warning("schedule.empty", app=settings.app, hint=hint)
    if not found.jobs and not found.entries and not only:
        hint = "declare jobs with @app.job, or name their modules in imports"
        log.warning("app.no_jobs", app=settings.app, hint=hint)


def named(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ",".join(names[:NAMED]) + more


def token() -> str:
    """A unique token for this master: ten letters and digits, 59 bits."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(10))
