"""What every command shares: --app, --config, -c/--connection and --json, before or after the command's name, and what
they lead to: settings, a connection, the app."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from qd.app import Qd
    from qd.config import Settings
    from qd.connectors.redis.wire import Wire

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Given:
    """The shared options of this call of `qd`; None: not given."""

    app: str | None = None
    config: str | None = None
    connection: str | None = None
    json: bool = False


def given() -> Given:
    """What the shared options of the running command said."""
    return click.get_current_context().find_root().ensure_object(Given)


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value is not None and value is not False and param.name:
        setattr(ctx.find_root().ensure_object(Given), param.name, value)


def _shared(*names: str, **more: Any) -> Callable[[F], F]:
    return click.option(*names, expose_value=False, callback=_keep, **more)


def options(function: F) -> F:
    """Decorator: the options that every command takes. Read them with `given()`."""
    add = (
        _shared("--json", "json", is_flag=True, default=False, help="Print one JSON document, for programs."),
        _shared("-c", "--connection", metavar="NAME", help="Use this connection.  [default: `default` of [qd]]"),
        _shared("--config", metavar="PATH", help="Read this file.  [QD_CONFIG, ./qd.toml, ./pyproject.toml]"),
        _shared("--app", metavar="MODULE:ATTR", help="The app that declares the jobs.  [QD_APP, `app` of [qd]]"),
    )
    for decorator in add:
        function = decorator(function)
    return function


def settings() -> Settings:
    """The configuration as the shared options ask for it. Raises ConfigError."""
    from qd import config

    asked = given()
    flags = {key: value for key, value in (("app", asked.app), ("connection", asked.connection)) if value is not None}
    return config.load(Path(asked.config) if asked.config else None, flags=flags)


def who() -> str:
    """user@host, for what others will ask about."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("qd-worker")
    except PackageNotFoundError:  # run from the source folder
        return "0.1.0"
