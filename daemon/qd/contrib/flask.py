"""qd with Flask: jobs run in the app's context, `app.config["QD"]` sets the server's url, `flask qd` runs qd.

ext = QdFlask()                    ext.qd is the Qd that declares jobs
ext.init_app(app)                  in the factory
flask qd work                      becomes `qd work` with --app qd.contrib.flask:found
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import click
from flask import Flask, has_app_context
from flask.cli import ScriptInfo, pass_script_info

from qd.app import Qd
from qd.contrib.command import become_qd, check_keys
from qd.errors import ConfigError
from qd.jobs.context import RunningJob

KEYS = ("url", "imports")


class QdFlask:
    """The extension. qd: your own Qd; None: a new one. app: as in `init_app`, which a factory calls later."""

    def __init__(self, app: Flask | None = None, qd: Qd | None = None) -> None:
        self.qd = qd or Qd()
        self._app: Flask | None = None
        self.qd.middleware.append(self._in_context)
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Read app.config["QD"] and add `flask qd`. Jobs run in the context of the app of the last call.

        Raises ConfigError for an unknown key.
        """
        options: Mapping[str, Any] = app.config.get("QD", {})
        check_keys(options, KEYS, "the Flask app's config")
        self.qd.url = options.get("url", self.qd.url)
        self.qd.imports = tuple(options.get("imports", self.qd.imports))
        self._app = app
        app.extensions["qd"] = self
        app.cli.add_command(command)

    def _in_context(self, job: RunningJob, call_next: Callable[[], object]) -> object:
        """Middleware: a new context for each attempt, so that teardown functions run after it."""
        if self._app is None or has_app_context():  # run() in a request shares the request's
            return call_next()
        with self._app.app_context():
            return call_next()


@click.command(
    "qd",
    short_help="Run background jobs: `flask qd work`, `flask qd status`, ...",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@pass_script_info
def command(script: ScriptInfo, words: tuple[str, ...]) -> None:
    """Pass all arguments to `qd`, which sets the exit code."""
    if script.app_import_path:  # flask --app shop qd work
        os.environ["FLASK_APP"] = script.app_import_path
    become_qd(words or ("--help",), "qd.contrib.flask:found", "flask qd")


def __getattr__(name: str) -> Qd:
    """`found`: the Qd of the Flask app that the `flask` command would find. Usually loaded by a worker."""
    if name != "found":
        raise AttributeError(f"module 'qd.contrib.flask' has no attribute '{name}'")
    flask_app = ScriptInfo(app_import_path=os.environ.get("FLASK_APP"), set_debug_flag=False).load_app()
    extension = flask_app.extensions.get("qd")
    if extension is None:
        way = "call QdFlask().init_app(app) where it is made"
        raise ConfigError(f"the Flask app {flask_app.import_name} has no qd: {way}")
    qd: Qd = extension.qd
    return qd
