"""`QD = {"url": "django://default"}`: the url of one of Django's DATABASES, for the database driver.

ENGINE     the last part of its name: postgresql, mysql, sqlite3 and the GIS and wrapper engines named after them
OPTIONS    those of the driver go into the url; those of Django itself (pool, isolation_level, ...) stay with Django
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from qd.errors import ConfigError
from qd.options.kinds import did_you_mean

SCHEME = "django://"
ENGINES = {
    "postgresql": "postgresql",
    "postgis": "postgresql",
    "mysql": "mysql",
    "sqlite3": "sqlite",
    "spatialite": "sqlite",
}
"""The last part of ENGINE -> the kind of url."""
DJANGOS = ("pool", "isolation_level", "server_side_binding", "cursor_factory", "context", "init_command", "sql_mode")
"""Options that concern Django's own use of its connection."""


def alias_of(url: object) -> str:
    """`default` of "django://default", "" for any other url."""
    return url.removeprefix(SCHEME).strip("/") or "default" if isinstance(url, str) and url.startswith(SCHEME) else ""


def url_of(alias: str) -> str:
    """The url of DATABASES[alias], as it is now: also that of a test's database. Raises ConfigError."""
    from django.db import connections

    known = connections.settings
    if alias not in known:
        near = did_you_mean(alias, known) or f" (known: {', '.join(known)})"
        raise ConfigError(f"QD of the Django settings: DATABASES has no '{alias}'{near}")
    found: Mapping[str, Any] = known[alias]
    engine = str(found["ENGINE"])
    kind = ENGINES.get(engine.rpartition(".")[2])
    if kind is None:
        names = "PostgreSQL, MySQL, MariaDB and SQLite"
        raise ConfigError(f"qd cannot store jobs in DATABASES['{alias}'] with ENGINE '{engine}' (it uses {names})")
    if kind == "sqlite":
        return f"sqlite:///{_file(alias, str(found['NAME'] or ''))}"
    options = dict(_options(alias, found.get("OPTIONS") or {}))
    host, port, login = str(found.get("HOST") or ""), str(found.get("PORT") or ""), ""
    if host.startswith("/") or "," in host or ":" in host:  # a socket, several hosts, or IPv6
        name = "unix_socket" if kind == "mysql" and host.startswith("/") else "host"
        options |= {name: host, **({"port": port} if port and name == "host" else {})}
        host = port = ""
    if found.get("USER"):
        password = f":{quote(str(found['PASSWORD']), safe='')}" if found.get("PASSWORD") else ""
        login = f"{quote(str(found['USER']), safe='')}{password}@"
    if kind == "mysql" and not host and "host" not in options:
        host = "localhost"
    place = f"{host}:{port}" if port else host
    return f"{kind}://{login}{place}/{found.get('NAME') or ''}" + (f"?{urlencode(options)}" if options else "")


def _file(alias: str, name: str) -> Path:
    if not name or name.startswith("file:") or ":memory:" in name:
        raise ConfigError(f"DATABASES['{alias}'] is '{name}': a database in memory belongs to one process; name a file")
    return Path(name).absolute()


def _options(alias: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """OPTIONS as options of the url: ssl of PyMySQL and mysqlclient is a mapping, a url has ssl_ca, ssl_cert, ..."""
    options = {name: value for name, value in given.items() if name not in DJANGOS}
    ssl = options.pop("ssl", {})
    options |= {f"ssl_{name}": value for name, value in ssl.items()} if isinstance(ssl, Mapping) else {"ssl": ssl}
    for name, value in options.items():
        if name == "assume_role" or not isinstance(value, str | int | float | Path):
            way = 'give qd its own url: QD = {"url": "postgresql://..."}'
            raise ConfigError(f"option '{name}' of DATABASES['{alias}'] has no form in a url: {way}")
    return options
