"""The user's app: found by MODULE:ATTR, imported, its jobs declared. For commands that need more than the server."""

from __future__ import annotations

import sys
from importlib import import_module
from traceback import extract_tb
from typing import TYPE_CHECKING

from qd.cli import common
from qd.errors import ConfigError

if TYPE_CHECKING:
    from qd.app import Qd
    from qd.config import Settings


def app() -> Qd:
    """The app with its jobs. Raises ConfigError: none is named, or it does not import."""
    found = app_if_named(common.loaded())
    if found is None:
        raise ConfigError("no app is named: give --app MODULE:ATTR, set QD_APP, or write app = below [qd] in qd.toml")
    return found


def app_if_named(found: Settings) -> Qd | None:
    """The app with its jobs; None: neither --app nor QD_APP nor the file names one. Raises ConfigError."""
    if not found.app:
        return None
    held = app_of(found)
    try:
        held.load()
    except Exception as error:
        raise ConfigError(f"the imports of app '{found.app}' fail: {_told(error)}") from error
    return held


def app_of(found: Settings) -> Qd:
    """The app itself. What the command line said counts for it too. Raises ConfigError."""
    from qd.app import Qd

    where = f"app '{found.app}' ({found.origins['qd.app']})"
    module, _, attribute = found.app.partition(":")
    if not module or not attribute:
        raise ConfigError(f"{where} is not of the form MODULE:ATTR, as 'shop.queue:app'")
    if str(found.root) not in sys.path:
        sys.path.insert(0, str(found.root))
    try:
        held = getattr(import_module(module), attribute, None)
    except Exception as error:
        raise ConfigError(f"{where} does not import: {_told(error)}") from error
    if not isinstance(held, Qd):
        what = "is not there" if held is None else f"is no Qd but {type(held).__name__}"
        raise ConfigError(f"{where}: {attribute} {what}; write {attribute} = Qd() in {module}")
    held.settings = common.loaded(held.said)
    return held


def _told(error: Exception) -> str:
    """The error and the line that raised it, where that is not the import itself."""
    frames = [frame for frame in extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if len(frames) > 1 else ""
    return f"{type(error).__name__}: {error}{where}"
