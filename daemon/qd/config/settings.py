"""The resolved configuration: frozen, and sent to other processes as JSON. Each option once, at the field that holds it;
SECTIONS has the rows of a file, and those of [worker] and [pools.NAME] from WorkOptions.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from qd.errors import ConfigError
from qd.options import kinds
from qd.options.drivers import BARE, DRIVERS, SEVERAL
from qd.options.tables import WORK, Option, WorkOptions, option, rows_of
from qd.redaction import passwords_in, register_secrets

PROVIDER = re.compile(r"[?&]credentials=([^&#]+)")


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """One [connections.NAME]. url None: not configured; it contains the provider of `credentials`, too."""

    name: str
    driver: str = option(
        "redis", "driver", "driver of the queues: redis (Redis or Valkey), database, beanstalkd, sqs, sync, null, "
        "failover", shown="from the url",
    )  # fmt: skip
    url: str | None = option(
        None, "url", "URL of the server: redis://, rediss://, unix://, redis+sentinel://, redis+cluster:// or embedded:; "
        "postgresql://, mysql:// or sqlite:///; beanstalkd://; sqs://", repr=False, secret=True,
        shown="none; for the connection redis, REDIS_URL",
    )  # fmt: skip
    credentials: str = option(
        "", "reference", "Redis: provider of user and password at each connect, MODULE:ATTRIBUTE, instead of those in "
        "the url"
    )  # fmt: skip
    table: str = option("jobs", "name", "database: Laravel's table of jobs")
    connections: tuple[str, ...] = option((), "names", "failover: the connections to try, in this order")
    prefix: str = option("", "text", "prefix of every key, Laravel's `redis.options.prefix`", shown='""')
    queue: str = option("default", "queue", "default queue")
    retry_after: float = option(
        30.0,
        "span",
        "lease of a running job, renewed while it runs; jobs of a dead host return after this long",
        at_least=1,
    )
    url_origin: str = "built in"


@dataclass(frozen=True, slots=True)
class LaravelSettings:
    """cache_url and down_file: "" for none."""

    cache_url: str = option(
        "", "url", "URL of the Redis with the restart and pause keys of Laravel's cache", repr=False, secret=True
    )
    cache_prefix: str = option("", "text", "prefix of the cache's keys", shown='""')
    down: bool = option(False, "switch", "obey `php artisan down` if its driver is this cache")
    down_file: str = option("", "text", "obey `php artisan down` if it creates this file, storage/framework/down")


@dataclass(frozen=True, slots=True)
class FailedSettings:
    """The limits of each queue's failed store. keep: seconds; max_count: None for any number; database: "" for none."""

    enabled: bool = option(True, "switch", "keep jobs that have failed permanently")
    keep: float = option(30 * 86400.0, "span", "delete a failed job after this long", at_least=1)
    max_count: int | None = option(
        None, "count", "keep at most this many failed jobs per queue, the newest ones", unit="jobs", at_least=1
    )  # fmt: skip
    max_bytes: int = option(
        64 << 20, "size", "keep at most this many bytes of failed jobs per queue, the newest ones", at_least=1
    )
    database: str = option(
        "", "database", "copy failed jobs into Laravel's table failed_jobs there: mysql://, postgresql://, sqlite:///",
        shown="none", repr=False, secret=True,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SigningSettings:
    """keys: "ID:SECRET"; without keys nothing is signed or verified."""

    keys: tuple[str, ...] = option(
        (), "keys", "sign payloads with the first of these keys (ID:SECRET, or ID:file:PATH), accept all of them",
        shown="none", repr=False,
    )  # fmt: skip
    require: bool = option(True, "switch", "with keys, refuse unsigned payloads")


@dataclass(frozen=True, slots=True)
class EncryptionSettings:
    """keys: "ID:SECRET", SECRET being 32 bytes as base64."""

    keys: tuple[str, ...] = option(
        (), "keys", "encrypt jobs with the first of these keys (ID:SECRET, or ID:file:PATH), decrypt with all of them",
        shown="none", repr=False,
    )  # fmt: skip
    keep_messages: bool = option(False, "switch", "keep the messages of errors of encrypted jobs")


@dataclass(frozen=True, slots=True)
class EntrySettings:
    """One [schedule.entries.NAME] with its file and line: one of job, call, shell and qd, and one of cron and every. args:
    JSON, or "". every, timeout: seconds; None and 0 for none. qd.schedule.declare checks which keys fit together."""

    name: str
    file: str
    line: int
    job: str = option("", "name", "send this job")
    args: str = option("", "arguments", "with these arguments, `{days = 7}`")
    queue: str = option("", "queue", "to this queue", shown="the job's own")
    connection: str = option("", "name", "on this connection", shown="the job's own")
    call: str = option("", "name", "call this function, MODULE:FUNCTION")
    shell: str = option("", "text", "run this line with /bin/sh")
    qd: str = option("", "text", "run this qd command, `failed forget --older-than 30d --yes`")
    cron: str = option("", "text", "at these times, `*/5 * * * *`")
    every: float | None = option(None, "span", "at this interval", at_least=0.01)
    timezone: str = option("", "zone", "compute times in this time zone", shown="`timezone` of [schedule]")
    environments: tuple[str, ...] = option(
        (), "names", "only if `env` of [qd], or QD_ENV, is one of these", shown="all"
    )
    missed: str = option("skip", "name", "how to handle missed times", choices=("skip", "once", "all"))
    without_overlapping: bool = option(False, "switch", "skip while an earlier run is active")
    on_every_host: bool = option(False, "switch", "once on every host, instead of once in total")
    even_in_maintenance_mode: bool = option(False, "switch", "also in maintenance mode")
    in_background: bool = option(False, "switch", "in parallel with other entries of the same time; not for jobs")
    timeout: float = option(0.0, "span", "end a run that takes longer, 0: never; not for jobs")
    output_to: str = option("", "name", "write the output of a run to this file; not for jobs", shown="the log")
    append: bool = option(False, "switch", "append to the file")


@dataclass(frozen=True, slots=True)
class ScheduleSettings:
    """timezone: an IANA name. late, lease: seconds. entries: in the order of the file."""

    timezone: str = option("UTC", "zone", "time zone of schedule entries")
    late: float = option(60.0, "span", "a tick that is not taken within this long of its time is missed", at_least=1)
    lease: float = option(
        15.0, "span", "how long an entry without_overlapping stays locked after its scheduler's host has died", at_least=1
    )  # fmt: skip
    entries: tuple[EntrySettings, ...] = ()


@dataclass(frozen=True, slots=True)
class QueueAlerts:
    """When `qd alerts` reports a queue. None: never. failure_rate: percent."""

    max_wait: float | None = option(None, "span", "alert if the oldest ready job has waited longer than this")
    max_ready: int | None = option(None, "count", "alert if more jobs than this are ready", unit="jobs", at_least=1)
    failure_rate: int | None = option(
        None, "count", "alert if more than this share of the jobs that ended within 5 minutes failed, of at least 5 jobs",
        unit="percent", at_least=1, at_most=99,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class AlertSettings(QueueAlerts):
    """What `qd alerts` sends where. "": nowhere. queues: those with limits of their own."""

    webhook: str = option("", "http", "POST alerts to this url as JSON", shown="none", repr=False, secret=True)
    template: str = option(
        "", "text", 'the body of the POST, `{"content": {text}}`; {text} becomes a JSON string', shown="the document"
    )
    exec: str = option("", "text", "run this line with /bin/sh, with the JSON on its stdin", shown="none")
    heartbeat: str = option(
        "", "http", "GET this url once a minute while nothing is wrong, for a dead man's switch",
        shown="none", repr=False, secret=True,
    )  # fmt: skip
    every: float = option(15.0, "span", "check this often", at_least=1)
    queues: Mapping[str, QueueAlerts] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DashboardSettings:
    """Who may see `qd dashboard`. users: "NAME:LEVEL:HASH"."""

    users: tuple[str, ...] = option(
        (), "users", "who may log in, NAME:LEVEL:HASH; LEVEL is read, operate or write, and `qd dashboard --hash` prints "
        "the HASH", shown="the printed link, on loopback only", repr=False, secret=True,
    )  # fmt: skip
    hosts: tuple[str, ...] = option((), "names", "names by which browsers may reach it, besides those of loopback")
    prefix: str = option("", "prefix", "serve it below this path, `/qd`, which a proxy forwards unchanged", shown='""')
    hide: tuple[str, ...] = option(
        ("password", "secret", "token", "api_key", "authorization"), "names",
        "hide the values of arguments whose name contains one of these", repr=False,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Settings:
    """The whole configuration. root: the folder of the file, or the current one; it comes first on sys.path."""

    root: Path
    file: Path | None
    connections: Mapping[str, ConnectionSettings]
    work: WorkOptions
    laravel: LaravelSettings | None
    failed: FailedSettings
    signing: SigningSettings
    encryption: EncryptionSettings
    schedule: ScheduleSettings
    origins: Mapping[str, str]  # "worker.timeout" -> "qd.toml:12"
    # [qd]
    app: str = option("", "name", "the app as MODULE:ATTRIBUTE", flag="--app")
    imports: tuple[str, ...] = option((), "names", "modules that declare jobs")
    env: str = option(
        "", "name", "name of this environment, `production` or `staging`, for schedule entries with `environments`"
    )
    default: str = option(
        "", "name", "default connection", environ="QD_CONNECTION",
        shown="redis, or the only connection there is",
    )  # fmt: skip
    control: str = option(
        "", "name", "connection that stores control state: restarts, pauses, maintenance mode, locks and status",
        shown="the default connection",
    )  # fmt: skip
    max_payload: int = option(
        1 << 20, "size", "largest payload to send; workers accept up to sixteen times this from other programs, 0: no limit"
    )  # fmt: skip
    max_depth: int = option(512, "count", "deepest nesting of a payload, as PHP counts, 0: no limit", unit="levels")
    dashboard: DashboardSettings = field(default_factory=DashboardSettings)
    alerts: AlertSettings = field(default_factory=AlertSettings)
    secret_files: tuple[str, ...] = field(default=(), compare=False, repr=False)  # from which secrets were read

    def connection(self, name: str | None = None) -> ConnectionSettings:
        """The connection of that name; None or "" for the default one. Raises ConfigError: unknown, or without a url."""
        name = name or self.default
        check_connection(name, self.connections)
        found = self.connections[name]
        if found.url is None and found.driver in DRIVERS and found.driver not in BARE:
            place = f"[connections.{name}] of {self.file.name if self.file else 'qd.toml'}"
            in_django = name == self.default and os.environ.get(kinds.DJANGO)
            django = f", write {kinds.IN_DJANGO} into the settings of Django" if in_django else ""
            ways = f"set {environ_name(CONNECTION['url'], name)}{django}, or write it into {place}"
            private = f'there url = "embedded:" starts a private server for this project{self.unfound}'
            raise ConfigError(f"connection '{name}' has no url: {ways}; {private}")
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


WORKER = {name: option for name, option in WORK.items() if option.in_file}
# Section of the file -> its keys. A name in capitals is the user's choice.
SECTIONS: Mapping[str, Mapping[str, Option]] = {
    "qd": rows_of(Settings),
    "connections.NAME": rows_of(ConnectionSettings, "QD_{NAME}_"),  # in capitals, QD_REDIS_URL for [connections.redis]
    "worker": WORKER,
    "pools.NAME": WORKER,
    "laravel": rows_of(LaravelSettings, "QD_LARAVEL_"),
    "failed": rows_of(FailedSettings, "QD_FAILED_"),
    "signing": rows_of(SigningSettings, "QD_SIGNING_"),
    "encryption": rows_of(EncryptionSettings, "QD_ENCRYPTION_"),
    "schedule": rows_of(ScheduleSettings, "QD_SCHEDULE_"),
    "schedule.entries.NAME": rows_of(EntrySettings, ""),
    "alerts": rows_of(AlertSettings, "QD_ALERTS_"),
    "dashboard": rows_of(DashboardSettings, "QD_DASHBOARD_"),
    "alerts.queues.NAME": rows_of(QueueAlerts, ""),
}
QD, CONNECTION = SECTIONS["qd"], SECTIONS["connections.NAME"]


def environ_name(option: Option, connection: str = "") -> str:
    """The environment variable of a row. connection: its name, for the rows of [connections.NAME]."""
    name = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in connection.upper())
    return option.environ.replace("{NAME}", name)


def provider_of(url: str | None) -> str:
    """The name of the credential provider of this url, "" without one. It comes with the app."""
    found = PROVIDER.search(url or "")
    return unquote(found[1]) if found else ""


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


def check_concurrency(settings: Settings) -> None:
    """Raises ConfigError for a concurrency that this program cannot have."""
    work, connection = settings.work, settings.connections[settings.work.connection]
    count = work.concurrency
    if count == 1 or work.only_schedule:
        return
    if work.once or work.rest or not work.workers:
        one = "--once" if work.once else "--rest" if work.rest else "-w 0"
        way = "leave one of them out"
        raise ConfigError(f"concurrency = {count} cannot be combined with {one}, which runs one job at a time: {way}")
    if work.workers * count > MOST_IN_ALL:
        most = f"one `qd work` runs at most {MOST_IN_ALL:,} (start a second one)"
        product = f"{work.workers} workers x concurrency {count} = {work.workers * count:,}"
        raise ConfigError(f"{product} jobs at once: {most}")
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        why = "needs a Python with its global lock: this build is free-threaded (use more workers)"
        raise ConfigError(f"concurrency = {count} {why}")
    if connection.driver in DRIVERS and connection.driver not in SEVERAL:
        raise cannot_run_several(work, connection)


def cannot_run_several(work: WorkOptions, connection: ConnectionSettings) -> ConfigError:
    fact = f"concurrency = {work.concurrency} needs Redis or Valkey, but connection '{connection.name}' uses the driver"
    return ConfigError(f"{fact} '{connection.driver}': leave concurrency at 1 and raise `workers`")


def check_work(settings: Settings) -> None:
    """Raises ConfigError if the connection of `qd work` stores no jobs, or for an impossible concurrency."""
    check_concurrency(settings)
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
    register_secrets([url for url in (settings.alerts.webhook, settings.alerts.heartbeat) if url])
    keys = (*settings.signing.keys, *settings.encryption.keys)
    register_secrets([key.partition(":")[2].removeprefix("base64:") for key in keys])


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
