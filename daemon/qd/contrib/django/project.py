"""The Qd of a Django project: configured by settings.QD; workers import `jobs.py` of each installed app.

app()          shop/qd.py: app = qd.contrib.django.app()       `[qd] app = "shop.qd:app"`; not needed with manage.py
install(app)   adds Django's features to the project's own app: models, transactions, database connections, loading
loading        in a worker: django.setup(), then settings.QD["imports"], then jobs.py and tasks.py of every app

Models are sent as keys: `def pay(order: Order)` as {"model": "shop.Order", "key": 42}, and loaded on the worker.

Before and after a job, as around a request, broken connections and those older than CONN_MAX_AGE are closed
(django.db.close_old_connections), except one with an open transaction, as for run() in a view. In a worker that runs
several jobs, each thread has its connections, and each async job a thread of its own for sync_to_async, as a request of
ASGI has; the connections of that are closed with it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from typing import Any

from qd.app import Qd
from qd.arguments.injection import Key, Provided
from qd.contrib.command import check_keys
from qd.contrib.django.database import alias_of, url_of
from qd.drivers.base import Connector
from qd.drivers.connections import loaded
from qd.errors import ConfigError
from qd.events import JobExceptionOccurred, JobTimedOut
from qd.jobs.context import RunningJob


class Models:
    """The serializer of Django's models, see qd.arguments.Serializer."""

    def recognizes(self, kind: Any) -> bool:
        from django.db.models import Model  # needs Django's settings

        return issubclass(kind, Model) and not kind._meta.abstract

    def name(self, kind: Any) -> str:
        return str(kind._meta.label)

    def pack(self, thing: Any) -> Any:
        """The primary key; a list if it has several columns. None: not saved yet, or deleted. Raises ValueError for an
        object of another database than that which `load` reads."""
        key, read = thing.pk, thing._state.db
        if read is not None and (loads := loaded_from(thing.__class__, read)) != read:
            fact = f"the worker loads it from the database '{loads}', and {thing._meta.label} {key} is in '{read}'"
            raise ValueError(f"{fact}: send its key, and load it in the job with .using('{read}')")
        return list(key) if isinstance(key, tuple) else key

    def load(self, kind: Any, key: Key, given: Provided) -> object | None:
        """With the base manager, so that a manager that hides rows (soft deletes) does not hide them from jobs."""
        found: object | None = kind._base_manager.filter(pk=tuple(key) if isinstance(key, list) else key).first()
        return found


def loaded_from(kind: Any, read: str) -> str:
    """The database from which a worker loads a model; `read` if that is its replica, or if DATABASE_ROUTERS decide, which
    may read the same row elsewhere."""
    from django.conf import settings
    from django.db import connections

    if settings.DATABASE_ROUTERS:
        return read
    found = str(kind._base_manager.all().db)
    return read if connections.settings[read]["TEST"]["MIRROR"] == found else found


OURS = "qd.contrib.django"  # its tasks.py is the backend, which needs Django's own Tasks
HERE = "qd.contrib.django.project:made"
KEYS = ("url", "imports", "app")
SETTINGS = "DJANGO_SETTINGS_MODULE"
TESTING, TESTED = "qd.contrib.django.testing", "_QD_TEST_DATABASES"
MODULES = ("jobs", "tasks")  # tasks: of Django's own Tasks, see tasks.py


class DjangoQd(Qd):
    """A Qd that is configured by Django's settings and imports the jobs of the installed apps."""

    def __init__(self) -> None:
        super().__init__()
        self._database: tuple[Mapping[str, Any], str] | None = (
            None  # its entry in DATABASES, and the NAME that was read
        )
        install(self)
        self.connections.join, self.connections.used = self._join, self.follow

    @property
    def _code_settings(self) -> dict[str, object]:
        """settings.QD, in place of arguments of Qd(...). Raises ConfigError."""
        from django.db import connections

        found = {key: value for key, value in qd_settings().items() if key != "app" and value}
        alias = alias_of(found.get("url"))
        if not alias:
            return found
        url, at = url_of(alias, connections.settings), connections.settings[alias]
        self._database = at, str(at["NAME"])
        return found | {"url": url}

    def follow(self) -> None:
        """Read the settings again if Django's database has another NAME now: tests change it, once more in each process of
        `manage.py test --parallel`."""
        if self._database is not None and str(self._database[0]["NAME"]) != self._database[1]:
            self._services.forget_settings()

    def _join(self, name: str) -> Connector | None:
        """The connection `name` inside Django's open transaction, if its url is django://ALIAS and one is open there."""
        from django.db import connections

        if not (alias := self.open_transaction(name)):
            return None
        opened = self.connections.get(name), connections[alias]
        joined: Connector | None = loaded("qd.drivers.database.joined:in_django")(*opened)
        return joined

    def alias(self, name: str | None = None) -> str:
        """The alias in DATABASES of the database that has the jobs of connection `name`, "" if Django has no such."""
        found = alias_of(qd_settings().get("url"))
        return found if found and self.settings.connection(name).url_origin == "Qd(...)" else ""

    def open_transaction(self, name: str | None = None) -> str:
        """That alias if this thread has a transaction open there, else ""."""
        from django.db import connections

        return alias if (alias := self.alias(name)) and in_transaction(connections[alias]) else ""


def install(app: Qd) -> None:
    """Add Django's features to your own app. The app of `app()` has them.

    Jobs take and carry models, wait for commits (`after_commit=True`), and close database connections as a request does.
    A worker calls django.setup() and imports jobs.py and tasks.py of each installed app. Calling it again does nothing.

    Example:
        app = Qd("redis://localhost:6379/0")
        qd.contrib.django.install(app)  # before it is used
    """
    if wait_for_commit in app._transactions:
        return
    app.serializer(Models())
    watch(app)
    app.loading.append(around_load)
    app._in_tests.append(lambda: loaded(f"{TESTING}:variables")())


@contextmanager
def around_load() -> Iterator[None]:
    """Set up Django before the app imports its modules, then import the job modules of the installed apps. Raises
    ConfigError, and what the imports raise."""
    import django
    from django.apps import apps

    check_settings()
    if given := os.environ.get(TESTED):
        loaded(f"{TESTING}:use")(given)  # before AppConfig.ready(), which may open a connection
    if not apps.ready:
        django.setup()
    yield
    import_declared()
    close()  # an import may have opened one, which workers forked from here must not share


def import_declared() -> None:
    """Import jobs.py and tasks.py of each installed app that has them."""
    from django.apps import apps
    from django.utils.module_loading import module_has_submodule

    for config in apps.get_app_configs():
        for name in MODULES if config.name != OURS else ():
            if module_has_submodule(config.module, name):
                import_module(f"{config.name}.{name}")


def app(settings: str | None = None) -> DjangoQd:
    """The project's Qd, the same at each call. settings: DJANGO_SETTINGS_MODULE if the environment has none."""
    if settings is not None:
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", settings)
    return made


def qd_settings() -> Mapping[str, Any]:
    """settings.QD, checked. Raises ConfigError."""
    from django.conf import settings

    check_settings()
    try:
        given: Mapping[str, Any] = getattr(settings, "QD", {})
    except Exception as error:
        from qd.worker.boot import user_line

        what = f"{type(error).__name__}: {error}{user_line(error)}"
        raise ConfigError(f"the Django settings '{os.environ.get(SETTINGS)}' do not import: {what}") from error
    check_keys(given, KEYS, "the Django settings")
    return given


def chosen() -> str:
    """MODULE:ATTRIBUTE of the project's Qd: settings.QD["app"], else that of `app()`."""
    return str(qd_settings().get("app") or HERE)


def check_settings() -> None:
    from django.conf import settings

    if not settings.configured and not os.environ.get(SETTINGS):
        ways = "set it, use `manage.py qd`, or write qd.contrib.django.app('shop.settings')"
        raise ConfigError(f"DJANGO_SETTINGS_MODULE is not set: {ways}")


# -- database connections, and jobs that wait for their transactions


def watch(app: Qd) -> None:
    """Close old connections around every job of `app`, and let its jobs wait for commits."""

    def around(job: RunningJob, call_next: Callable[[], object]) -> object:
        declared = app._registry.get(job.name)
        runs_async = declared is not None and declared.is_async
        shared = runs_async and app.settings.work.concurrency > 1
        close = close_both if runs_async and not shared else close_old
        close()
        try:
            with own_thread() if shared else nullcontext():
                return call_next()
        finally:
            close()

    app.middleware.append(around)
    app._transactions.append(wait_for_commit)
    for last in (JobExceptionOccurred, JobTimedOut):  # emitted after failed() and JobFailed
        app.on(last)(lambda _: close_old())


def close_old() -> None:
    """Close each connection of this thread that is broken or too old, unless a transaction is open on it."""
    for connection in opened():
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


def close_both() -> None:
    """Also in the thread in which async jobs use the database, that of sync_to_async."""
    import asyncio

    from asgiref.sync import sync_to_async

    close_old()
    if asyncio._get_running_loop() is not None:
        return  # run() of an async job raises in a running loop anyway
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(sync_to_async(close_old)())
    finally:
        loop.close()


@contextmanager
def own_thread() -> Iterator[None]:
    """Inside, sync_to_async has a thread of its own, and not that of all jobs."""
    from asgiref.sync import SyncToAsync, ThreadSensitiveContext

    here = ThreadSensitiveContext()
    token = SyncToAsync.thread_sensitive_context.set(here)
    try:
        yield
    finally:
        SyncToAsync.thread_sensitive_context.reset(token)
        threads = SyncToAsync.context_to_thread_executor.pop(here, None)
        if threads is not None:
            threads.submit(close).result()
            threads.shutdown()


def close() -> None:
    """Close all connections of this thread, which is about to fork."""
    for connection in opened():
        if not connection.in_atomic_block:
            connection.close()


def opened() -> list[Any]:
    from django.db import connections  # needs Django's settings

    return list(connections.all(initialized_only=True))


def wait_for_commit(act: Callable[[], object], waited: frozenset[str] = frozenset()) -> bool:
    """Call `act` after the commit of the atomic block that is open in this thread. Returns False without one.

    A savepoint that is rolled back drops it, as Django's on_commit does. If blocks of two databases are open, it waits for
    both, "default" first. waited: databases that have committed; in a TestCase their block is still open when their
    callbacks run. Raises TransactionManagementError if autocommit is off, because Django then reports no commits.
    """
    for found in sorted(opened(), key=lambda each: bool(each.alias != "default")):
        if found.alias not in waited and in_transaction(found):
            found.on_commit(partial(committed, act, waited | {found.alias}))
            return True
    return False


def in_transaction(found: Any) -> bool:
    """Whether an atomic block is open on this connection of Django, or its autocommit is off."""
    return bool(found.in_atomic_block or (found.connection is not None and not found.autocommit))


def committed(act: Callable[[], object], waited: frozenset[str]) -> None:
    if not wait_for_commit(act, waited):
        act()


made = DjangoQd()  # of `app()`; it reads nothing of the project yet
