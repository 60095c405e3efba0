"""The entry of INSTALLED_APPS: it brings `manage.py qd`, a check for `manage.py check`, and templates/admin/index.html."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from typing import Any
from urllib.parse import urlsplit

from django.apps import AppConfig, apps
from django.core.checks import CheckMessage, Error, Warning, register
from django.db import connections, router
from django.db.models.signals import post_migrate

from qd import config
from qd.contrib.django import testing
from qd.contrib.django.database import url_of
from qd.contrib.django.project import chosen, made, qd_settings
from qd.errors import ConfigError

LARAVELS = {"queue", "payload", "attempts", "reserved_at", "available_at", "created_at"}  # columns of its table `jobs`
PORTS = {"postgresql": 5432, "mysql": 3306}


class QdConfig(AppConfig):
    name = "qd.contrib.django"
    label = "qd"
    verbose_name = "Background jobs"

    def ready(self) -> None:
        register(configured)
        post_migrate.connect(testing.prepare, sender=self)


def configured(**_: Any) -> list[CheckMessage]:
    """`qd config check`: an error is qd.E001, a note qd.W001. No server is contacted."""
    from qd.cli.main import command  # only for this

    printed, code = io.StringIO(), None
    try:
        app = [] if config.load().app else ["--app", chosen()]
        with redirect_stdout(io.StringIO()), redirect_stderr(printed):
            command([*app, "config", "check"], prog_name="qd")
    except ConfigError as error:
        return [Error(str(error), id="qd.E001")]
    except SystemExit as ended:
        code = ended.code
    lines = [line.partition(": ")[2] for line in printed.getvalue().splitlines()]
    found = [Error(line, id="qd.E001") if code else Warning(line, id="qd.W001") for line in lines]
    return found if code or qd_settings().get("app") else [*found, *of_database()]


def of_database() -> list[CheckMessage]:
    """Models in the place of qd's table of jobs, and a url of Django's database that joins no transaction."""
    alias, at = made.alias(), made.settings.connection(None)
    if not alias:
        same = [each for each in connections.settings if place(at.url) and place(at.url) == place_of(each)]
        fact = "a job is not part of an open transaction, and may run before its commit or despite its rollback"
        return [
            Warning(
                f"the url of the jobs is that of DATABASES['{each}']: {fact}",
                hint=f'Write QD = {{"url": "django://{each}"}}.',
                id="qd.W002",
            )
            for each in same
        ]
    return [
        Error(
            f"{model._meta.label} has the table '{at.table}', in which qd stores jobs",
            hint='Write table = "qd_jobs" below [connections.database] in qd.toml, and run `manage.py qd migrate`.',
            obj=model,
            id="qd.E001",
        )
        for model in apps.get_models(include_auto_created=True)
        if model._meta.db_table == at.table
        and router.allow_migrate_model(alias, model)
        and not {column.column for column in model._meta.local_concrete_fields} >= LARAVELS
    ]


def place_of(alias: str) -> tuple[object, ...] | None:
    try:
        return place(url_of(alias, connections.settings))
    except ConfigError:
        return None


def place(url: str | None) -> tuple[object, ...] | None:
    """Kind, host, port and name of a database; the path of SQLite's. None for another kind of server."""
    at = urlsplit(url or "")
    kind = {"postgres": "postgresql", "mariadb": "mysql"}.get(at.scheme, at.scheme)
    if kind == "sqlite":
        return kind, at.path
    return (kind, at.hostname, at.port or PORTS[kind], at.path) if kind in PORTS and at.hostname else None
