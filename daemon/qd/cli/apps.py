"""The user's app: found by MODULE:ATTR, imported, its jobs declared. For commands that need more than the server."""

from __future__ import annotations

import importlib
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING

from qd.cli import common
from qd.errors import ConfigError, QdError

if TYPE_CHECKING:
    from qd.app import Qd
    from qd.config import Settings


def app() -> Qd:
    """The app with its jobs. Raises ConfigError: none is named, or it does not import."""
    settings = common.loaded()
    found = app_if_named(settings)
    if found is None:
        raise ConfigError(
            "no app is named: give --app MODULE:ATTR, set QD_APP, write app = below [qd] in qd.toml, or `qd init`"
            + settings.unfound
        )
    return found


def app_if_named(found: Settings) -> Qd | None:
    """The app with its jobs; None: neither --app nor QD_APP nor the file names one. Raises ConfigError."""
    if not found.app:
        return None
    held = app_of(found)
    try:
        held.load()
    except QdError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"the imports of app '{found.app}' fail: {_told(error)}") from error
    return held


def app_of(found: Settings) -> Qd:
    """The app itself. What the command line said counts for it too. Raises ConfigError."""
    from qd.worker.template import load_app

    try:
        held = load_app(found)
    except QdError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"app '{found.app}' ({found.origins['qd.app']}) does not import: {_told(error)}") from error
    held.settings = common.loaded(held.said)
    return held


def _told(error: BaseException) -> str:
    """The error, and the line of the user's code that raised it."""
    if isinstance(error, SyntaxError) and error.filename:  # its file did not get as far as to have a frame
        return f"{type(error).__name__}: {error.msg} ({error.filename}:{error.lineno})"
    others = (str(Path(common.__file__).parents[1]), importlib.__file__, "<frozen")
    frames = [f for f in extract_tb(error.__traceback__) if not f.filename.startswith(others)]
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"
