"""`QD = {"url": "django://default"}`: the url of one of Django's DATABASES. OPTIONS of the driver go into the url, those of
Django itself stay with Django."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from qd.errors import ConfigError
from qd.options.kinds import did_you_mean

SCHEME = "django:"
# The last part of ENGINE -> the kind of url.
ENGINES = dict.fromkeys(("postgresql", "postgis"), "postgresql") | {"mysql": "mysql"}
ENGINES |= dict.fromkeys(("sqlite3", "spatialite"), "sqlite")
DJANGOS = ("pool", "isolation_level", "server_side_binding", "cursor_factory", "context", "init_command", "sql_mode")


def alias_of(url: object) -> str:
    """`default` of "django://default", "" for any other url."""
    return url.removeprefix(SCHEME).strip("/") or "default" if isinstance(url, str) and url.startswith(SCHEME) else ""


def in_memory(alias: str) -> ConfigError:
    where = f"DATABASES['{alias}']"
    way = f"set {where}['TEST'] = {{'NAME': BASE_DIR / 'test.sqlite3'}}"
    return ConfigError(f"{where} is in memory in tests, where only Django's own connection sees it: {way}")


def url_of(alias: str, known: Mapping[str, Mapping[str, Any]]) -> str:
    """known: DATABASES. Raises ConfigError."""
    if alias not in known:
        near = did_you_mean(alias, known) or f" (known: {', '.join(known)})"
        raise ConfigError(f"QD of the Django settings: DATABASES has no '{alias}'{near}")
    found, where = known[alias], f"DATABASES['{alias}']"
    engine, database, host, port = (str(found.get(key) or "") for key in ("ENGINE", "NAME", "HOST", "PORT"))
    kind = ENGINES.get(engine.rpartition(".")[2])
    if kind is None:
        names = "PostgreSQL, MySQL, MariaDB and SQLite"
        raise ConfigError(f"qd cannot store jobs in {where} with ENGINE '{engine}' (it uses {names})")
    if kind == "sqlite":
        if database.startswith("file:memorydb_"):
            raise in_memory(alias)
        if not database or database.startswith("file:") or ":memory:" in database:
            raise ConfigError(f"{where} is '{database}': a database in memory belongs to one process; name a file")
        return f"sqlite:///{Path(database).absolute()}"
    options = {name: value for name, value in (found.get("OPTIONS") or {}).items() if name not in DJANGOS}
    if isinstance(options.get("ssl"), Mapping):  # of PyMySQL and mysqlclient; a url has ssl_ca, ssl_cert, ...
        options |= {f"ssl_{name}": value for name, value in options.pop("ssl").items()}
    for name, value in options.items():
        if name == "assume_role" or not isinstance(value, str | int | float | Path):
            way = f'give qd a url of its own, QD = {{"url": "{kind}://..."}}'
            raise ConfigError(f"option '{name}' of {where} has no form in a url: {way}")
    if host.startswith("/") and kind == "mysql":
        options, host, port = {**options, "unix_socket": host}, "localhost", ""
    elif set(host) & set("/,:"):  # a folder of sockets, several hosts, or IPv6
        options |= {"host": host, **({"port": port} if port else {})}
        host = port = ""
    login = ":".join(quote(str(found[key]), safe="") for key in ("USER", "PASSWORD") if found.get(key))
    place = f"{login}@" * bool(login) + (host or "localhost" * (kind == "mysql")) + f":{port}" * bool(port)
    return f"{kind}://{place}/{database}" + f"?{urlencode(options)}" * bool(options)
