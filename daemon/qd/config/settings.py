"""What a configuration is once it is found out: frozen, and sendable to another process as JSON."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from qd.config.table import CONNECTION, environ_name
from qd.errors import ConfigError
from qd.options import kinds
from qd.options.drivers import BARE, DRIVERS
from qd.options.tables import WorkOptions
from qd.redaction import passwords_in, register_secrets

PROVIDER = re.compile(r"[?&]credentials=([^&#]+)")


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """One [connections.NAME]. url None: nobody named a server. credentials: what provides user and password, as
    MODULE:ATTRIBUTE, which `url` contains, too. retry_after: seconds, at least 1. table: of a database. connections: of
    failover, those that it tries."""

    name: str
    driver: str = "redis"
    url: str | None = field(default=None, repr=False)  # it may hold a password
    credentials: str = ""
    table: str = "jobs"
    connections: tuple[str, ...] = ()
    prefix: str = ""
    queue: str = "default"
    retry_after: float = 30.0
    url_origin: str = "built in"


@dataclass(frozen=True, slots=True)
class LaravelSettings:
    """Where Laravel's own cache keeps its restart and pause keys, "" for not at all; and whether its maintenance mode is
    obeyed: down, that of the cache; down_file, the path of the file, "" for none."""

    cache_url: str = field(default="", repr=False)
    cache_prefix: str = ""
    down: bool = False
    down_file: str = ""


@dataclass(frozen=True, slots=True)
class FailedSettings:
    """The failed store of each queue and its bounds. keep: seconds; max_count: None for any number; database: the url of the
    copy, "" for none."""

    enabled: bool = True
    keep: float = 30 * 86400.0
    max_count: int | None = None
    max_bytes: int = 64 << 20
    database: str = field(default="", repr=False)  # it may hold a password


@dataclass(frozen=True, slots=True)
class SigningSettings:
    """keys: "ID:SECRET" each, the first one signs, none: nothing is signed or checked. require: unsigned is refused.
    files: where keys were read from; children are not told."""

    keys: tuple[str, ...] = field(default=(), repr=False)
    require: bool = True
    files: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class EntrySettings:
    """One [schedule.entries.NAME], in file and line. args: JSON, "" for none. every, timeout: seconds, None and 0 for none.

    What fits together is looked at by qd.schedule.declare.
    """

    name: str
    file: str
    line: int
    job: str = ""
    args: str = ""
    queue: str = ""
    connection: str = ""
    call: str = ""
    shell: str = ""
    qd: str = ""
    cron: str = ""
    every: float | None = None
    timezone: str = ""
    environments: tuple[str, ...] = ()
    missed: str = "skip"
    without_overlapping: bool = False
    on_every_host: bool = False
    even_in_maintenance_mode: bool = False
    in_background: bool = False
    timeout: float = 0.0
    output_to: str = ""
    append: bool = False


@dataclass(frozen=True, slots=True)
class ScheduleSettings:
    """timezone: an IANA name. late, lease: seconds. entries: in the order of the file."""

    timezone: str = "UTC"
    late: float = 60.0
    lease: float = 15.0
    entries: tuple[EntrySettings, ...] = ()


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that was configured. root: the folder of the file, or the current one; it comes first on sys.path."""

    root: Path
    file: Path | None
    app: str
    imports: tuple[str, ...]
    env: str  # "" where nothing says it
    default: str
    control: str
    connections: Mapping[str, ConnectionSettings]
    work: WorkOptions
    laravel: LaravelSettings | None
    failed: FailedSettings
    signing: SigningSettings
    schedule: ScheduleSettings
    max_payload: int  # bytes, 0: any
    max_depth: int  # brackets open at once, 0: any
    origins: Mapping[str, str]  # "worker.timeout" -> "qd.toml:12"

    def connection(self, name: str | None = None) -> ConnectionSettings:
        """The connection of that name, None or "": the default one. Raises ConfigError: not known, or without a url."""
        name = name or self.default
        check_connection(name, self.connections)
        found = self.connections[name]
        if found.url is None and found.driver in DRIVERS and found.driver not in BARE:
            raise ConfigError(self._no_url(found.name))
        return found

    def parts(self, name: str | None = None) -> list[str]:
        """The connections that jobs sent to this one go to, the first one first. Raises ConfigError: it is not known."""
        return sent_to(self.connection(name).name, self.connections)

    def _no_url(self, name: str) -> str:
        place = f"[connections.{name}] of {self.file.name if self.file else 'qd.toml'}"
        return (
            f"connection '{name}' has no url: set {environ_name(CONNECTION['url'], name)}, or write it into {place}; "
            f'there url = "embedded:" starts a private server for this project{self.unfound}'
        )

    @property
    def unfound(self) -> str:
        """The end of a message about what is not configured: that there was no file, and where. "" where there was one."""
        if self.file:
            return ""
        return f" (no qd.toml in {self.root}, the current folder: start in that of qd.toml, or set QD_CONFIG)"


def provider_of(url: str | None) -> str:
    """The name of what provides user and password for this url, "" for nothing. It comes with the app."""
    found = PROVIDER.search(url or "")
    return unquote(found[1]) if found else ""


def with_provider(url: str, name: str) -> str:
    """The same url; connections/redis/credentials.py reads it."""
    return f"{url}{'&' if '?' in url else '?'}credentials={name}"


def check_connection(name: str, known: Collection[str], where: str = "") -> None:
    """Raises ConfigError with the known connections unless `name` is one; `where` says who asked for it."""
    if name not in known:
        near = kinds.did_you_mean(name, known)
        raise ConfigError(f"unknown connection '{name}'{where}{near} (known: {', '.join(known)})")


def sent_to(name: str, connections: Mapping[str, ConnectionSettings]) -> list[str]:
    """The connections of failover in their order, those of one among them too; any other itself."""
    found = connections[name]
    if found.driver != "failover":
        return [name]
    return list(dict.fromkeys(each for part in found.connections for each in sent_to(part, connections)))


def check_work(settings: Settings) -> None:
    """Raises ConfigError when the connection that is worked on has no jobs to work on."""
    found = settings.connections[settings.work.connection]
    if found.driver in BARE and not settings.work.only_schedule:
        way = f"work on {' or '.join(found.connections)}" if found.connections else "name another one with -c"
        raise ConfigError(f"`qd work` on connection '{found.name}' ({found.driver}): {BARE[found.driver]}; {way}")


def hide_secrets(settings: Settings) -> None:
    """Nothing that this process shows from now on has them in it."""
    urls = [connection.url or "" for connection in settings.connections.values()]
    urls += [settings.laravel.cache_url] if settings.laravel and settings.laravel.cache_url else []
    urls += [settings.failed.database]
    register_secrets([password for url in urls for password in passwords_in(url)])
    register_secrets([key.partition(":")[2] for key in settings.signing.keys])


def to_json(settings: Settings) -> bytes:
    """The whole of it, secrets too: for a pipe between qd's own processes."""
    import json

    return json.dumps({**asdict(settings), "connections": _plain(settings.connections)}, default=str).encode()


def _plain(connections: Mapping[str, ConnectionSettings]) -> dict[str, Any]:
    return {name: asdict(connection) for name, connection in connections.items()}


def from_json(data: bytes) -> Settings:
    """The settings that `to_json` wrote, equal to the ones before."""
    import json

    given = json.loads(data)
    work: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in given["work"].items()
    }
    given["root"] = Path(given["root"])
    given["file"] = Path(given["file"]) if given["file"] else None
    given["imports"] = tuple(given["imports"])
    given["connections"] = {
        name: ConnectionSettings(**{**each, "connections": tuple(each["connections"])})
        for name, each in given["connections"].items()
    }
    given["work"] = WorkOptions(**work)
    given["laravel"] = LaravelSettings(**given["laravel"]) if given["laravel"] else None
    given["failed"] = FailedSettings(**given["failed"])
    given["signing"] = SigningSettings(tuple(given["signing"]["keys"]), given["signing"]["require"])
    given["schedule"] = _schedule(given["schedule"])
    settings = Settings(**given)
    hide_secrets(settings)
    return settings


def _schedule(given: dict[str, Any]) -> ScheduleSettings:
    entries = [{**each, "environments": tuple(each["environments"])} for each in given["entries"]]
    return ScheduleSettings(**{**given, "entries": tuple([EntrySettings(**each) for each in entries])})
