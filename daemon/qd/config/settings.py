"""The resolved configuration: frozen, and sent to other processes as JSON."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
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
    """One [connections.NAME]. url None: not configured. credentials: MODULE:ATTRIBUTE of the provider of user and password,
    which `url` contains too. retry_after: seconds, at least 1. table: for databases. connections: for failover, in order."""

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
    """The url of Laravel's cache, which stores its restart and pause keys, or "". down: obey the maintenance mode in the
    cache; down_file: obey it in the file with this path, "" for none."""

    cache_url: str = field(default="", repr=False)
    cache_prefix: str = ""
    down: bool = False
    down_file: str = ""


@dataclass(frozen=True, slots=True)
class FailedSettings:
    """The limits of each queue's failed store. keep: seconds; max_count: None for any number; database: url of the copy, ""
    for none."""

    enabled: bool = True
    keep: float = 30 * 86400.0
    max_count: int | None = None
    max_bytes: int = 64 << 20
    database: str = field(default="", repr=False)  # it may hold a password


@dataclass(frozen=True, slots=True)
class SigningSettings:
    """keys: "ID:SECRET", the first one signs; without keys nothing is signed or verified. require: refuse unsigned payloads.
    files: where keys were read from."""

    keys: tuple[str, ...] = field(default=(), repr=False)
    require: bool = True
    files: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class EntrySettings:
    """One [schedule.entries.NAME] with its file and line. args: JSON, or "". every, timeout: seconds; None and 0 for none.
    qd.schedule.declare checks which keys fit together."""

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
    """The whole configuration. root: the folder of the file, or the current one; it comes first on sys.path."""

    root: Path
    file: Path | None
    app: str
    imports: tuple[str, ...]
    env: str  # "" if it is not set
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
        """The connection of that name; None or "" for the default one. Raises ConfigError: unknown, or without a url."""
        name = name or self.default
        check_connection(name, self.connections)
        found = self.connections[name]
        if found.url is None and found.driver in DRIVERS and found.driver not in BARE:
            place = f"[connections.{name}] of {self.file.name if self.file else 'qd.toml'}"
            raise ConfigError(
                f"connection '{name}' has no url: set {environ_name(CONNECTION['url'], name)}, or write it into {place}; "
                f'there url = "embedded:" starts a private server for this project{self.unfound}'
            )
        return found

    def parts(self, name: str | None = None) -> list[str]:
        """The connections that accept jobs sent to this one, in order. Raises ConfigError if it is unknown."""
        return sent_to(self.connection(name).name, self.connections)

    @property
    def unfound(self) -> str:
        """The end of a message about a missing setting: there was no file, and where. "" if there was one."""
        if self.file:
            return ""
        return f" (no qd.toml in {self.root}, the current folder: change to the folder of qd.toml, or set QD_CONFIG)"


def provider_of(url: str | None) -> str:
    """The name of the credential provider of this url, "" without one. It comes with the app."""
    found = PROVIDER.search(url or "")
    return unquote(found[1]) if found else ""


def with_provider(url: str, name: str) -> str:
    """The url with a credential provider, which drivers/redis reads."""
    return f"{url}{'&' if '?' in url else '?'}credentials={name}"


def check_connection(name: str, known: Collection[str], where: str = "") -> None:
    """Raises ConfigError with the known connections unless `name` is one; `where`: the origin of the name."""
    if name not in known:
        near = kinds.did_you_mean(name, known)
        raise ConfigError(f"unknown connection '{name}'{where}{near} (known: {', '.join(known)})")


def sent_to(name: str, connections: Mapping[str, ConnectionSettings]) -> list[str]:
    """The connections of a failover connection in order, nested ones included; for others the connection itself."""
    found = connections[name]
    if found.driver != "failover":
        return [name]
    return list(dict.fromkeys(each for part in found.connections for each in sent_to(part, connections)))


MOST_IN_ALL = 20_000  # jobs of one master: the keeper renews their leases


def check_concurrency(work: WorkOptions) -> None:
    """Raises ConfigError for a concurrency that this program cannot have."""
    count = work.concurrency
    if count == 1 or work.only_schedule:
        return
    if work.once or work.rest or not work.workers:
        one = "--once" if work.once else "--rest" if work.rest else "-w 0"
        raise ConfigError(f"concurrency = {count} does not go with {one}, which runs one job at a time: leave out one")
    if work.workers * count > MOST_IN_ALL:
        raise ConfigError(
            f"workers = {work.workers} x concurrency = {count} are more than the {MOST_IN_ALL} jobs of one `qd work` "
            "(start a second one)"
        )
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        raise ConfigError(
            f"concurrency = {count} needs a Python with its global lock: this build is free-threaded (use more workers)"
        )


def check_work(settings: Settings) -> None:
    """Raises ConfigError if the connection of `qd work` stores no jobs, or for an impossible concurrency."""
    check_concurrency(settings.work)
    found = settings.connections[settings.work.connection]
    if found.driver in BARE and not settings.work.only_schedule:
        way = f"work on {' or '.join(found.connections)}" if found.connections else "name another one with -c"
        raise ConfigError(f"`qd work` on connection '{found.name}' ({found.driver}): {BARE[found.driver]}; {way}")


def hide_secrets(settings: Settings) -> None:
    """Register the secrets of the configuration, so that this process redacts them."""
    urls = [connection.url or "" for connection in settings.connections.values()]
    urls += [settings.laravel.cache_url] if settings.laravel and settings.laravel.cache_url else []
    urls += [settings.failed.database]
    register_secrets([password for url in urls for password in passwords_in(url)])
    register_secrets([key.partition(":")[2] for key in settings.signing.keys])


def to_json(settings: Settings) -> bytes:
    """All settings with their secrets, for a pipe between qd's own processes."""
    import json

    import msgspec

    # msgspec's own JSON refuses paths that are not UTF-8
    return json.dumps(msgspec.to_builtins(settings, enc_hook=str)).encode()


def from_json(data: bytes) -> Settings:
    """The settings that `to_json` wrote."""
    import json

    import msgspec

    settings = msgspec.convert(json.loads(data), Settings, dec_hook=lambda kind, value: kind(value))
    hide_secrets(settings)
    return settings
