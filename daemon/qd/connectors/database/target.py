"""The url of a database, looked at before anything connects. No library is needed for that."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from qd.errors import ConfigError


def check(url: str) -> None:
    """Raises ConfigError naming what is wrong in it."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ConfigError(f"the url of a database needs a number as port ({error})") from None
    kind = parts.scheme.partition("+")[0]
    if kind == "sqlite":
        check_file(parts)
    elif kind in ("mysql", "mariadb") and not parts.path.strip("/"):
        raise ConfigError(f"the url names no database (written {kind}://user:password@host/NAME)")


def check_file(parts: SplitResult) -> None:
    path = parts.path.removeprefix("/")
    if not path or path == ":memory:":
        raise ConfigError("what SQLite has in memory is its connection's alone: name a file, sqlite:///qd.sqlite")
    if parts.query:
        raise ConfigError(f"unknown option '{parts.query.partition('=')[0]}' in a url of SQLite (it has none)")
    if not (folder := Path(path).parent).is_dir():
        raise ConfigError(f"the folder {folder} of this file of SQLite is not there")
