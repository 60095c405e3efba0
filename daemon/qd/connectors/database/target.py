"""The url of a database, looked at before anything connects. No library is needed for that."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from qd.errors import ConfigError

_HOSTS = re.compile(
    r"(?P<head>postgres(?:ql)?(?:\+\w+)?://(?:[^?#]*@)?)(?P<hosts>[^/?#@]*,[^/?#@]*)(?=[/?#]|$)(?P<path>[^?#]*)\??"
)
_HOST = re.compile(r"(?:\[(?P<v6>[^\]]*)\]|(?P<name>[^:\[\]]*))(?::(?P<port>[0-9]*))?")


def with_hosts_as_options(url: str) -> str:
    """A PostgreSQL url with several hosts, as libpq takes it, in the form that SQLAlchemy takes: `?host=a,b&port=1,2`. Every
    other url is returned as it is. Raises ConfigError."""
    found = _HOSTS.match(url)
    if found is None:
        return url
    places = [_HOST.fullmatch(each) for each in found["hosts"].split(",")]
    if not all(places):
        raise ConfigError("the url of a database needs a number as port of each host (written HOST:5432,HOST:5432)")
    hosts = ",".join((each["v6"] or each["name"] or "") for each in places if each)
    ports = ",".join(each["port"] or "" for each in places if each)
    more = url[found.end() :]
    return f"{found['head']}{found['path']}?host={hosts}&port={ports}" + (f"&{more}" if more else "")


def check(url: str) -> None:
    """Raises ConfigError naming what is wrong in it."""
    try:
        parts = urlsplit(with_hosts_as_options(url))
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
