"""The Qd of a Django project: configured by settings.QD; workers import `jobs.py` of each installed app.

app()          shop/qd.py: app = qd.contrib.django.app()       `[qd] app = "shop.qd:app"`; not needed with manage.py
install(app)   adds Django's features to the project's own app: models, transactions, database connections, loading
loading        in a worker: django.setup(), then settings.QD["imports"], then jobs.py and tasks.py of every app

Models are sent as keys: `def pay(order: Order)` as {"model": "shop.Order", "key": 42}, and loaded on the worker.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

from qd.app import Qd
from qd.arguments.injection import Key, Provided
from qd.contrib.command import check_keys
from qd.contrib.django import connections
from qd.errors import ConfigError


class Models:
    """The serializer of Django's models, see qd.arguments.Serializer."""

    def recognizes(self, kind: Any) -> bool:
        from django.db.models import Model  # needs Django's settings

        return issubclass(kind, Model) and not kind._meta.abstract

    def name(self, kind: Any) -> str:
        return str(kind._meta.label)

    def pack(self, thing: Any) -> Any:
        """The primary key; a list if it has several columns. None: not saved yet, or deleted."""
        key = thing.pk
        return list(key) if isinstance(key, tuple) else key

    def load(self, kind: Any, key: Key, given: Provided) -> object | None:
        """With the base manager, so that a manager that hides rows (soft deletes) does not hide them from jobs."""
        found: object | None = kind._base_manager.filter(pk=tuple(key) if isinstance(key, list) else key).first()
        return found


OURS = "qd.contrib.django"  # its tasks.py is the backend, which needs Django's own Tasks
HERE = "qd.contrib.django.found:app"
KEYS = ("url", "imports", "app")
MODULES = ("jobs", "tasks")  # tasks: of Django's own Tasks, see tasks.py


class DjangoQd(Qd):
    """A Qd that is configured by Django's settings and imports the jobs of the installed apps."""

    def __init__(self) -> None:
        super().__init__()
        install(self)

    @property
    def _code_settings(self) -> dict[str, object]:
        """settings.QD, in place of arguments of Qd(...). Raises ConfigError."""
        given = qd_settings()
        return {key: given[key] for key in ("url", "imports") if given.get(key)}


def install(app: Qd) -> None:
    """Add Django's features to your own app. The app of `app()` has them.

    Jobs take and carry models, wait for commits (`after_commit=True`), and close database connections as a request does.
    A worker calls django.setup() and imports jobs.py and tasks.py of each installed app. Calling it again does nothing.

    Example:
        app = Qd("redis://localhost:6379/0")
        qd.contrib.django.install(app)  # before it is used
    """
    if connections.wait_for_commit in app._transactions:
        return
    app.serializer(Models())
    connections.watch(app)
    app.loading.append(around_load)


@contextmanager
def around_load() -> Iterator[None]:
    """Set up Django before the app imports its modules, then import the job modules of the installed apps. Raises
    ConfigError, and what the imports raise."""
    import django
    from django.apps import apps

    check_settings()
    if not apps.ready:
        django.setup()
    yield
    import_declared()
    connections.close()  # an import may have opened one, which workers forked from here must not share


def import_declared() -> None:
    """Import jobs.py and tasks.py of each installed app that has them."""
    from django.apps import apps
    from django.utils.module_loading import module_has_submodule

    for config in apps.get_app_configs():
        for name in MODULES if config.name != OURS else ():
            if module_has_submodule(config.module, name):
                import_module(f"{config.name}.{name}")


@cache
def made() -> DjangoQd:
    return DjangoQd()


def app(settings: str | None = None) -> DjangoQd:
    """The project's Qd, the same at each call. settings: DJANGO_SETTINGS_MODULE if the environment has none."""
    if settings is not None:
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", settings)
    return made()


def qd_settings() -> Mapping[str, Any]:
    """settings.QD, checked. Raises ConfigError."""
    from django.conf import settings

    check_settings()
    given: Mapping[str, Any] = getattr(settings, "QD", {})
    check_keys(given, KEYS, "the Django settings")
    return given


def chosen() -> str:
    """MODULE:ATTRIBUTE of the project's Qd: settings.QD["app"], else that of `app()`."""
    return str(qd_settings().get("app") or HERE)


def check_settings() -> None:
    from django.conf import settings

    if not settings.configured and not os.environ.get("DJANGO_SETTINGS_MODULE"):
        ways = "set it, use `manage.py qd`, or write qd.contrib.django.app('shop.settings')"
        raise ConfigError(f"DJANGO_SETTINGS_MODULE is not set: {ways}")
