"""`qd work` put together: settings -> master + {template, keeper, workers, scheduler}. The only file that knows them all.

What a child needs is imported in the child: the master itself loads neither the app nor anything that talks to a server.
"""

from __future__ import annotations

import os
import secrets
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from qd.master.master import MOST, Master
from qd.process import proc, systemd
from qd.process.scoreboard import Role
from qd.redaction import mask_url

if TYPE_CHECKING:
    from qd.app import Qd
    from qd.drivers.base import Factory
    from qd.worker.template import Serve


NAMED = 5  # jobs that a warning about their queue names
Load = Callable[[dict[str, object] | None], Settings]  # the configuration; the argument is what Qd(...) was given


def run(load: Load) -> int:
    """Work until told to stop. `load` reads the configuration, at the start, after the app's import, and at each HUP.
    Returns the exit code; raises ConfigError before anything runs."""
    settings = load(None)
    if settings.work.workers == 0 and not settings.work.only_schedule:
        config.check_work(settings)
        from qd.foreground import run_inline  # for breakpoints: no master at all

        return run_inline(settings, load, token(), announce)
    log = Log("master", format=settings.work.log_format, level=settings.work.log_level, write=Unblocked())
    pool = f" [{settings.work.pool}]" if settings.work.pool else ""
    master = Master(
        plan_of(settings, load),
        token=token(),
        log=log,
        notifier=systemd.Notifier(os.environ),
        title=lambda text: setproctitle(f"qd: master{pool} {text}"),
        replan=lambda: planned_anew(load),
        announce=lambda message: announce(
            log,
            config.from_json(message.settings.encode()),
            message.jobs,
            message.entries,
            message.limits.items(),
            message.unserved,
        ),
    )
    return master.run()


def planned_anew(load: Load) -> MasterPlan:
    """The plan of a reload, with the variables of the file as they are now. Children of the plan before keep theirs."""
    VARIABLES.put(VARIABLES.read())
    return plan_of(load(None), load)


def plan_of(settings: Settings, load: Load) -> MasterPlan:
    """What the master needs of the settings, and the bodies of its children."""
    work = settings.work
    if work.workers > MOST:
        raise ConfigError(f"workers = {work.workers} is more than the {MOST} of one `qd work` (start a second one)")
    if settings.failed.database and find_spec("sqlalchemy") is None:
        raise ConfigError("[failed] database needs SQLAlchemy: pip install 'qd-worker[database]'")
    if not work.workers and not work.only_schedule:
        raise ConfigError("workers = 0 works in the foreground, without a master: it needs a new start")
    config.check_work(settings)
    bodies = Bodies(settings, load)
    return MasterPlan(work, bodies.template, bodies.fresh, bodies.keeper)


class Bodies:
    """What the children of a master do, each called in a new process. Their code is imported there."""

    def __init__(self, settings: Settings, load: Load) -> None:
        self.settings, self._load = settings, load
        self._variables = VARIABLES.found

    def template(self, context: ChildContext, line: Any) -> int:
        from qd.worker import template

        return template.run(self._ours(context), line, self.settings, self._complete, self._serve_for)

    def fresh(self, context: ChildContext, assignment: Assignment) -> int:
        from qd.worker import template

        return template.run_fresh(self._ours(context), assignment, self.settings, self._complete, self._serve_for)

    def keeper(self, context: ChildContext, line: Any, resolved: str, also: tuple[str, ...]) -> int:
        from qd.keeper import keeper as loop

        found = config.from_json(resolved.encode())
        return loop.run(self._ours(context), line, found, also, own_of(found))

    def _ours(self, context: ChildContext) -> ChildContext:
        """A child's context. Its environment is that of its plan, also where a reload was refused since."""
        VARIABLES.put(self._variables)
        return replace(context, log=context.log.tuned(self.settings.work.log_format, self.settings.work.log_level))

    def _complete(self, app: Qd) -> Settings:
        return self._load(app._code_settings)

    def _serve_for(self, app: Qd) -> Serve:
        """What the children in their seats do. Imported before they are forked, so that they share it, and so that all of
        it is of one release: behind a `current` link another one may stand by then."""
        from qd.worker import boot

        work = self.settings.work
        if not work.runs_schedule or not (work.only_schedule or app.schedule.here(app.settings.env)):
            return boot.serve
        from qd.scheduler import process

        serves = {Role.WORKER: boot.serve, Role.SCHEDULER: process.serve}
        return lambda app, settings, context, assignment, between: serves[assignment.role](
            app, settings, context, assignment, between
        )


def own_of(settings: Settings) -> Mapping[str, Factory]:
    """The app's drivers, for a keeper of a connection that only the app can open: that one imports it, and so does one that
    needs a credential provider."""
    from qd.options.drivers import OPENED_WITHOUT_APP

    has_driver = settings.connections[settings.work.connection].driver not in OPENED_WITHOUT_APP
    used = [settings.connections[name].url for name in (settings.work.connection, settings.control)]
    cache = settings.laravel.cache_url if settings.laravel else ""
    if not has_driver and not any(config.provider_of(url) for url in (*used, cache)):
        return {}
    from qd.worker import template

    app = template.load_app(settings)
    app.settings = settings
    if has_driver:
        app._load()
    return app.connections.own


def announce(
    log: Log,
    settings: Settings,
    jobs: int,
    entries: int,
    limits: Iterable[tuple[str, str]],
    unserved: Mapping[str, Sequence[str]],
) -> None:
    """The first line: what works here, on what, and how much of it. Then what its connection cannot do, a line each, and
    the declared queues without a worker."""
    work, connection = settings.work, settings.connection(settings.work.connection)
    only = work.only_schedule
    log.info(
        "master.started",
        version=__version__,
        pool=work.pool or "default",
        connection=connection.name,
        url=mask_url(connection.url or ""),
        queues=None if only else ",".join(work.queues),
        workers=work.workers,
        jobs=jobs,
        schedule=(entries or None) if work.runs_schedule else None,
    )
    for what, meaning in limits:
        log.info("connection.unsupported", connection=connection.name, what=what, meaning=meaning)
    for queue, names in unserved.items():
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        log.warning("queue.unserved", queue=queue, jobs=",".join(names[:NAMED]) + more)
    if "ssl_cert_reqs=none" in (connection.url or ""):
        hint = "anybody on the way can read and change jobs: give ssl_ca_certs in place of ssl_cert_reqs=none"
        log.warning("redis.unverified", url=mask_url(connection.url or ""), hint=hint)
    if os.geteuid() == 0:
        hint = "give it a user: user= in supervisord, User= in systemd, USER in a Dockerfile"
        log.line("info" if proc.in_container() else "warning", "master.is_root", {"hint": hint})
    if only and not entries:
        hint = (
            "declare entries with app.schedule(...) or in [schedule.entries.NAME]; HUP then reads them, or `qd restart`"
        )
        log.warning("schedule.empty", app=settings.app, hint=hint)
    if not jobs and not entries and not only:
        log.warning(
            "app.no_jobs", app=settings.app, hint="declare jobs with @app.job, or name their modules in imports"
        )


def token() -> str:
    """Ten letters and digits that no other master has: 59 bits."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(10))
