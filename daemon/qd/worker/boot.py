"""From the start of `qd work` to the first job: the template, the check of the servers, and the first steps of a worker.

The template imports the app once, then forks a worker or scheduler for each order. It runs in a child of the master. It
reports the result of the import: the number of jobs, the completed settings, and obstacles to forking. Threads and
connections do not survive a fork; if there are any, workers import the app by themselves (run_fresh). The bodies of the
children are passed in, because the scheduler is on a higher layer.

Watch, for --reload: the template, or without one each idle worker, checks twice a second whether a file has changed.

The check of the servers ends the start if there is a problem that only an operator can fix:

    the connection            a keyspace next to its jobs, valid names of queues
    its driver                tables and queues exist, no setting that removes jobs too early
    the permissions           of the user, and one call to each queue
    the control connection    the same, if it is another one

An unreachable or busy server is not such a problem: workers wait for it. Later, every error is retried. Errors of the
configuration alone were reported before (imported).
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import io
import logging
import os
import random
import select
import signal
import socket
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import cast

from setproctitle import setproctitle

from qd import config
from qd.app import Qd
from qd.config.settings import Settings, cannot_run_several
from qd.drivers import connections
from qd.drivers.base import KeeperConnector, with_lanes
from qd.drivers.keyspace import keys
from qd.errors import ConfigError, ConnectionLost, NeedsMending, NotInJob, QdError, ServerRefused
from qd.jobs.context import current_job
from qd.log import JobRecords, Log, WaitingLogWriter, carry_job, cut
from qd.master.code import Assignment, ChildContext
from qd.payload.reservation import LIFE
from qd.process import fork, proc, signals
from qd.process.channels import Born, Changed, Imported, ImportFailed, OrderReader, Ready, Unborn
from qd.process.exit_codes import Exit
from qd.process.scoreboard import Role
from qd.process.signals import TAKE_STACK
from qd.redaction import redact
from qd.schedule.declare import check_homes
from qd.worker import queues
from qd.worker.settle import full, short
from qd.worker.worker import Between, Worker

PYTHONS = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})
LONGEST = 1000  # characters of an error for the master
INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
PATIENCE = 1.0  # seconds to connect, and for each answer
TOKEN = "first-look"  # for a connection that reserves nothing


class Watch:
    def __init__(self, since_ns: int, configuration: Path | None) -> None:
        """since_ns: unix time at which the import began; files written after it count as changed."""
        self._others = [str(configuration)] if configuration else []
        self._folders = {os.path.dirname(path) for path in sources()}
        self._seen = self._look()
        for path, stamp in self._seen.items():
            if since_ns <= stamp <= time.time_ns():
                self._seen[path] = 0

    def changed(self) -> str | None:
        """A file that was changed, added or deleted since the last call."""
        before, self._seen = self._seen, self._look()
        return next((path for path in {**before, **self._seen} if before.get(path) != self._seen.get(path)), None)

    def report(self, context: ChildContext) -> None:
        if changed := self.changed():
            context.sender.send(Changed(file=changed, code=context.code))

    def _look(self) -> dict[str, int]:
        """The modification time of the configuration and of every module in a folder of an imported one."""
        stamps = {}
        paths = list(self._others)
        for folder in self._folders:
            with suppress(OSError):
                paths += [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".py")]
        for path in paths:
            with suppress(OSError):
                stamps[path] = os.stat(path).st_mtime_ns
        return stamps


def sources() -> list[str]:
    """The files of all imported modules that do not belong to an installation."""
    paths = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    return [p for p in paths if p and not p.startswith(PYTHONS) and not any(part in p for part in INSTALLED)]


LOOK = 500  # ms between two checks of --reload
Complete = Callable[[Qd], Settings]  # completes the settings from the app
# The body of a worker or scheduler, as `serve`.
Serve = Callable[[Qd, ChildContext, Assignment, Between], int]
ServeFor = Callable[[Qd], Serve]  # imports only the body that the app needs


def run_template(
    context: ChildContext, line: tuple[socket.socket, int], settings: Settings, complete: Complete, serve_for: ServeFor
) -> int:
    """Import, report, fork on request; leave when the master closes the stream. Returns the exit code of a failed import."""
    sock, code = line
    own_stdin()
    setproctitle("qd: template" + (f" [{settings.work.pool}]" if settings.work.pool else ""))
    began = time.time_ns()
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)  # where a slow import waits
    failed = list[str]()
    app = imported(settings, complete, context.log, tell=failed.append)
    if isinstance(app, Exit):
        context.sender.send(ImportFailed(code=code, error=cut(redact(" ".join(failed)), LONGEST)))
        return int(app)
    faulthandler.unregister(signal.SIGUSR1)
    serve, found = serve_for(app), obstacles()
    report(context, app, code, found)
    if found:
        orders = OrderReader(sock)
        while not orders.ended:
            orders.read()
        return 0
    watch = Watch(began, app.settings.file) if app.settings.work.reload else None
    gc.collect()
    gc.freeze()  # the imported objects are not collected again, so that forks share their pages
    return fork_on_request(replace(context, code=code), OrderReader(sock), app, serve, watch)


def imported(
    settings: Settings,
    complete: Complete,
    log: Log,
    *,
    first: bool = True,
    tell: Callable[[str], object] = lambda _: None,
) -> Qd | Exit:
    """Import the app and check the configuration, and first: the servers. Returns an Exit if that fails, after logging the
    reason and calling `tell` with it."""
    carry_job(job_fields)
    try:
        app = load_app(settings)
        app.settings = complete(app)
        app._load()
        app.settings = complete(app)
        app.schedule.entries()  # raises if one of them is invalid
        app.settings = queues.resolved(app, app.settings)
        queues.check_limits(app, app.settings)
        for name in (app.settings.work.connection, app.settings.control):
            connections.check_url(app.settings.connection(name))
            connections.check_credentials(app.settings.connection(name))
            connections.driver_of(app.settings.connection(name), app.connections.own)
        config.check_work(app.settings)
        connections.needs_memory(app.settings, app.settings.control)
        if app.settings.work.runs_schedule:
            check_homes(app.schedule.here(app.settings.env), app.settings, app.connections.own)
    except ConfigError as error:
        log.error("app.refused", reason=str(error))
        tell(str(error))
        return Exit.CONFIG
    except QdError as error:
        log.error("app.import_failed", app=settings.app, error=f"{error}{user_line(error)}")
        tell(f"{error}{user_line(error)}")
    except BaseException as error:
        log.error("app.import_failed", app=settings.app, error=short(error), trace=full(error, log))
        tell(f"{short(error)}{user_line(error)}")
    else:
        return app if not first or may_start(app, log, tell) else Exit.CONFIG
    return Exit.IMPORT


def may_start(app: Qd, log: Log, tell: Callable[[str], object]) -> bool:
    """Check the servers and log warnings. False: an operator must fix a problem first; `tell` and the log have it."""
    settings, work, own = app.settings, app.settings.work, app.connections.own
    name = work.connection
    opened = partial(connections.open_queue, token=TOKEN, title="qd: start", patience=PATIENCE, own=own)
    try:
        with connections.extras_named(), closing(opened(settings, name)) as queue:
            lanes = with_lanes(queue)
            if work.concurrency > 1 and (lanes is None or not lanes.keeps_suspects):
                raise cannot_run_several(work, queue.settings)  # of an app's own driver; qd's were checked before
            hints = [(name, hint) for hint in connections.server_warnings(settings, name, work.queues)]
            if not work.only_schedule:
                with only_problems_of_operators():
                    try_queue(cast(KeeperConnector, queue), work.queues)
            if settings.control != work.connection:
                name = settings.control
                hints += [(name, hint) for hint in connections.server_warnings(settings, name, ())]
                with only_problems_of_operators():
                    space, prefix = connections.open_memory(settings, name, title="qd: start", patience=PATIENCE)
                    with closing(space):
                        space.call("EXISTS", prefix + keys.DOWN)
    except ConfigError as error:
        log.error("connection.refused", connection=name, reason=str(error))
        tell(f"connection {name}: {error}")
        return False
    for place, hint in hints:
        log.warning("connection.warning", connection=place, hint=hint)
    return True


@contextmanager
def only_problems_of_operators() -> Iterator[None]:
    """Turn problems that only an operator can fix into a ConfigError; ignore an unreachable server."""
    try:
        yield
    except NeedsMending as error:
        raise ConfigError(str(error)) from None
    except (ConnectionLost, ServerRefused):
        pass


def try_queue(queue: KeeperConnector, queues: Sequence[str]) -> None:
    lacks = queue.missing_rights(queues[0])
    if lacks:
        words = " ".join(sorted(lacks)).upper()
        way = "`qd doctor` says how to grant what is missing"
        raise ConfigError(f"user '{queue.user()}' of connection '{queue.settings.name}' may not call {words}: {way}")
    for name in queues:
        queue.sizes(name)


def user_line(error: BaseException) -> str:
    """The last line outside qd, best outside installed packages, that led to the error: " (/srv/shop/jobs.py:12)". "" if
    there is none, or the error names it. With the fix, if Django was not set up yet."""
    others = (str(Path(__file__).parents[1]), importlib.__file__, "<frozen")
    frames = [frame for frame in extract_tb(error.__traceback__) if not frame.filename.startswith(others)]
    frames = [frame for frame in frames if "site-packages" not in frame.filename] or frames
    line = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    early = type(error).__name__ == "AppRegistryNotReady"
    way = "; make the app in a module without models, such as shop/qd.py, and import it in jobs.py"
    return (f" ({line})" if line and line not in str(error) else "") + way * early


class NoApp(ConfigError):
    """The module imports, but what `app` names is no Qd."""


def load_app(settings: Settings) -> Qd:
    """The Qd of `app = "module:attribute"`; the folder of the configuration comes first on sys.path."""
    if not settings.app:
        way = 'write app = "module:attribute" into qd.toml, set QD_APP, use --app, or run `qd init`'
        raise ConfigError(f"no app is named: {way}{settings.unfound}")
    module_name, _, attribute = settings.app.partition(":")
    importlib.invalidate_caches()  # the master may have listed the start folder in another release
    if str(settings.root) not in sys.path:
        sys.path.insert(0, str(settings.root))
    module = importlib.import_module(module_name)
    app = getattr(module, attribute or "app", None)
    if not isinstance(app, Qd):
        raise NoApp(no_app(module, attribute or "app"))
    return app


def no_app(module: ModuleType, attribute: str) -> str:
    """What this attribute is, and which of the module are apps."""
    apps = ", ".join(f"'{name}'" for name, value in vars(module).items() if isinstance(value, Qd))
    there = f"the module has {apps}" if apps else "the module has none"
    if not hasattr(module, attribute):
        return f"module {module.__name__} has no '{attribute}', which should be a qd.Qd; {there}"
    kind = type(getattr(module, attribute)).__name__
    article = "an" if kind[0] in "AEIOUaeiou" else "a"
    return f"'{attribute}' in module {module.__name__} is {article} {kind}, not a qd.Qd; {there}"


def obstacles() -> list[str]:
    """Threads and connections that the import has left, which a fork would break."""
    threads = [f"the import left the thread '{name}' running" for name in proc.thread_names()]
    sockets = [f"the import left a connection open: {peer}" for peer in proc.connected_sockets()]
    return threads + sockets


def report(context: ChildContext, app: Qd, code: int, found: list[str]) -> None:
    limits = connections.gaps_of(app.settings, app.settings.work.connection, app.connections.own)
    warnings = [f"{what}; workers import the app by themselves (as with --no-preload)" for what in found]
    declared = list(app._registry)
    message = Imported(
        code=code,
        jobs=len(declared),
        entries=len(app.schedule.here(app.settings.env)),
        unserved=queues.unserved(app, app.settings),
        exclusive=[each.name for each in declared if each.options.exclusive],
        limits=dict[str, str](limits.items()),
        settings=config.to_json(app.settings).decode(),
        preload=not found,
        warnings=warnings,
    )
    context.sender.send(message)


def fork_on_request(context: ChildContext, orders: OrderReader, app: Qd, serve: Serve, watch: Watch | None) -> int:
    poll = select.poll()
    poll.register(orders.fileno(), select.POLLIN)
    while not orders.ended:
        if poll.poll(LOOK if watch else None):
            for order in orders.read():
                assignment = Assignment(order["slot"], order["generation"], order["paused"], Role(order["role"]))
                fork_one(context, orders, app, serve, assignment)
        if watch is not None:
            watch.report(context)
    return 0


def fork_one(context: ChildContext, orders: OrderReader, app: Qd, serve: Serve, assignment: Assignment) -> None:
    def body() -> int:
        orders.sock.close()
        return serve(app, replace(context, log=context.log.of(assignment.role.word)), assignment, None)

    def born(pid: int) -> None:
        context.sender.send(Born(slot=assignment.slot, generation=assignment.generation, pid=pid))

    try:
        fork.fork_for(context.master, body, born)
    except OSError as error:  # the master logs it and tries again later
        context.sender.send(Unborn(slot=assignment.slot, generation=assignment.generation, error=str(error)))


def run_fresh(
    context: ChildContext, assignment: Assignment, settings: Settings, complete: Complete, serve_for: ServeFor
) -> int:
    """A worker or scheduler without a template: imports the app itself."""
    own_stdin()
    began = time.time_ns()
    app = imported(settings, complete, context.log, first=assignment.generation == 1)
    if isinstance(app, Exit):
        return int(app)
    report(context, app, context.code, [])
    watch = Watch(began, app.settings.file) if app.settings.work.reload else None
    serve = serve_for(app)
    return serve(app, context, assignment, partial(watch.report, context) if watch else None)


# -- the first steps of a worker or scheduler

MOST_THREADS = 64  # jobs whose threads a fault handler writes: it knows no more than 100, with others of the app
OOM_SCORE = 500  # the kernel's out-of-memory killer takes a worker before its master


def serve(app: Qd, context: ChildContext, assignment: Assignment, between: Between = None) -> int:
    """Become the worker of `assignment` and work until there is a reason to leave. Returns the exit code."""
    settings = app.settings
    context, stack_fd = become_child(context, assignment, several=settings.work.concurrency)
    title = f"qd:{settings.work.pool or 'default'}:worker:{assignment.slot}"
    own = app.connections.own
    opened = partial(connections.open_queue, settings, settings.work.connection, title=title, own=own)
    # Turns continue over all generations: no mark is used twice.
    queue = opened(token=context.token, slot=assignment.slot, turns=(assignment.generation - 1) * LIFE)
    lanes = with_lanes(queue)
    worker: Worker | ConcurrentWorker
    if settings.work.concurrency > 1 and lanes is not None:
        from qd.worker.concurrent import ConcurrentWorker  # loads asyncio

        worker = ConcurrentWorker(app, lanes, opened(), context, assignment, between)
    else:
        worker = Worker(app, queue, context, assignment, between)
    os.register_at_fork(after_in_child=worker.slot.detach)
    ready = Ready(slot=assignment.slot, generation=assignment.generation)
    return worker.run(lambda: context.sender.send(ready, stack_fd))


def become_child(context: ChildContext, assignment: Assignment, *, several: int = 0) -> tuple[ChildContext, int | None]:
    """First steps of a worker or scheduler. Returns its context with its own log, and the file for its stacks. several: how
    many jobs it may run at once."""
    own_stdin()
    print_by_line()
    context = replace(context, log=context.log.of(assignment.role.word, WaitingLogWriter()))
    random.seed()
    proc.die_before_parent(OOM_SCORE)
    os.environ["QD_OWNER"] = f"{context.token}/{assignment.slot}"  # identifies its subprocesses to a later master
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGQUIT, signal.SIGWINCH):
        signal.signal(number, signals.nothing)
    signals.guard_copies()
    stack_fd = ready_for_stacks()
    if several > 1 and stack_fd is not None:
        # Of more than 100 threads, the main thread would be left out, which has the event loop.
        faulthandler.register(cast(int, TAKE_STACK), file=stack_fd, all_threads=several <= MOST_THREADS)
    log_job_records(context.log)
    return context, stack_fd


def own_stdin() -> None:
    """Read from /dev/null instead of the parent's stdin."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def print_by_line() -> None:
    """Flush what a job prints after each line: a killed worker flushes nothing."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # else the app has replaced it
        with suppress(OSError, ValueError):  # closed, or without a reader
            sys.stdout.reconfigure(line_buffering=True)


def ready_for_stacks() -> int | None:
    """A file in memory for this process's Python stacks, written in C even while a job holds the GIL."""
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    if TAKE_STACK is None or not hasattr(os, "memfd_create"):
        return None
    fd = os.memfd_create("qd-stack", os.MFD_CLOEXEC)
    faulthandler.register(TAKE_STACK, file=fd, all_threads=True)
    faulthandler.enable(file=fd, all_threads=False)  # a crash: of the thread that has crashed
    return fd


def log_job_records(log: Log, context: Callable[[], Mapping[str, object]] | None = None) -> None:
    """Write records of Python's logging as qd's log lines, if the app has set up no handlers."""
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(JobRecords(log, context or job_fields))
        if root.level == logging.WARNING:
            root.setLevel(logging.INFO)


def job_fields() -> Mapping[str, object]:
    try:
        job = current_job()
    except NotInJob:
        return {}
    return {"job": job.name, "job_id": cut(job.id)}
