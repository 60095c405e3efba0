"""The entry of INSTALLED_APPS: it brings `manage.py qd`, a check for `manage.py check`, and templates/admin/index.html."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Error, Warning, register
from django.db.models.signals import post_migrate

from qd import config
from qd.contrib.django import testing
from qd.contrib.django.project import chosen
from qd.errors import ConfigError


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
    return [Error(line, id="qd.E001") if code else Warning(line, id="qd.W001") for line in lines]
