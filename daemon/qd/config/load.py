"""Files, environment, code and flags -> Settings. Called once each by app.py, daemon.py and the commands.

    flags > environment > code > [pools.NAME] > [worker] > built in: each value comes from the first layer that has it

Entries of the schedule ([schedule.entries.NAME]) come from the file only.
"""

from __future__ import annotations

import os
import stat
from binascii import a2b_base64
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from qd.config import settings as sections
from qd.config.file import ConfigFile, find
from qd.config.settings import CONNECTION, QD, SECTIONS, ConnectionSettings, Settings, check_connection
from qd.errors import ConfigError
from qd.options.drivers import BARE, DRIVERS, SCHEMES, scheme_of
from qd.options.kinds import did_you_mean, names_and_weights
from qd.options.tables import WORK, Option, WorkOptions
from qd.redaction import mask_url

ROWS = {**SECTIONS, "worker": WORK}  # also the options that only flags set
SCHEDULE_POOL = "schedule"  # the default pool of `qd schedule work`; it need not be in the file
FROM_FILE = "file:"
SHORTEST = 16  # characters of a signing key
AES_256 = 32  # bytes of an encryption key
LINGER = 1.5  # seconds qd work stays up at least, because its supervisor takes a quick exit for a failed start
RESOLVED = ("connection", "queues", "workers", "prefetch", "min_uptime")  # their built-in values depend on others
OTHERS = {"QD_CONFIG", "QD_ENV_FILE", "QD_POOL", "QD_OWNER", "QD_ACTOR"}  # variables that are not in a table


@dataclass(slots=True)
class Layers:
    """The layers of configuration. origins: the source of each value by its dotted name; it and secret_files grow with each
    lookup."""

    file: ConfigFile | None
    environ: Mapping[str, str]
    flags: Mapping[str, object]
    code: Mapping[str, object]
    origins: dict[str, str] = field(default_factory=dict)
    secret_files: list[str] = field(default_factory=list)

    def value(self, dotted: str, option: Option, code: str = "", connection: str = "", built_in: object = None) -> Any:
        """The value of one key from the first layer that has it; records its origin."""
        otherwise = option.default if built_in is None else built_in
        value, origin = next(self._layers(dotted, option, code, connection), (otherwise, "built in"))
        self.origins[dotted] = origin
        try:
            return value if origin == "built in" else option.read(value)
        except ValueError as error:
            raise ConfigError(f"{origin}: {error}") from None

    def _layers(self, dotted: str, option: Option, code: str, connection: str) -> Iterator[tuple[object, str]]:
        section, _, key = dotted.rpartition(".")
        if section in ("worker", "qd") and key in self.flags:
            yield self.flags[key], f"flag {option.flag}" if option.flag else "command line"
        if option.environ:
            name = sections.environ_name(option, connection)
            file_key = f"{name}_FILE" if option.secret else name
            # An empty variable counts as not set.
            if held := {each: value for each in (name, file_key) if (value := self.environ.get(each))}:
                yield self._held(held, name, file_key, "environment {}".format)
        if code in self.code:
            yield self.code[code], "Qd(...)"
        pools = [("pools", self.pool)] if section == "worker" and self.pool else []
        for names in (*pools, tuple(section.split(".", 1))) if self.file else ():
            assert self.file is not None
            found, file_key = self.file.section(*names), f"{key}_file" if option.secret else key
            if key in found or file_key in found:
                yield self._held(found, key, file_key, partial(self.file.where, *names))
        if connection == "redis" and option.name == "url" and self.environ.get("REDIS_URL"):
            yield self.environ["REDIS_URL"], "environment REDIS_URL"  # last: it is often a cache's

    def _held(
        self, held: Mapping[str, Any], key: str, file_key: str, where: Callable[[str], str]
    ) -> tuple[object, str]:
        """The value of a key in one layer, and its origin. file_key: names a file with the value; for no secret the key."""
        if file_key == key or file_key not in held:
            return held[key], where(key)
        if key in held:
            raise ConfigError(f"{where(file_key)}: {key} and {file_key} are both given, remove one of them")
        path = self.root / str(held[file_key]).strip()
        return self.secret(key, path, where(file_key)), f"{where(file_key)}, file {path}"

    def secret(self, what: str, path: Path, origin: str) -> str:
        """The secret in the file, without white space around it. Raises ConfigError, which never shows it."""
        if path.exists() and not path.is_file() and not path.is_dir():  # reading a FIFO or a device may never end
            raise ConfigError(f"{origin}: cannot read {what} from {path}: it is not a regular file")
        try:
            found = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise ConfigError(f"{origin}: cannot read {what} from {path}: {why}") from None
        if not found:
            raise ConfigError(f"{origin}: {path} is empty, write the value of {what} into it")
        self.secret_files.append(str(path))
        return found

    def all(self, section: str, but: Collection[str] = ()) -> dict[str, Any]:
        rows = [row for row in ROWS[section].values() if row.name not in but and not row.file_of]
        return {row.name: self.value(f"{section}.{row.name}", row) for row in rows}

    def section(self, *names: str) -> Mapping[str, Any]:
        return self.file.section(*names) if self.file else {}

    def named(self, section: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each table in a section whose keys are the user's names: its name, and the values that it sets."""
        rows = SECTIONS[f"{section}.NAME"]
        for name, keys in self.section(*section.split(".")).items():
            assert self.file is not None
            self.origins.update({f"{section}.{name}.{key}": self.file.where(f"{section}.{name}.{key}") for key in keys})
            yield name, {key: rows[key].read(value) for key, value in keys.items()}

    @property
    def root(self) -> Path:
        return self.file.path.parent if self.file else Path.cwd()

    @property
    def pool(self) -> str:
        named = self.flags.get("pool") or self.environ.get("QD_POOL") or ""
        return str(named or (SCHEDULE_POOL if self.only_schedule else ""))

    @property
    def only_schedule(self) -> bool:
        return bool(self.flags.get("only_schedule"))


class Configured(NamedTuple):
    """The connections, and the names of the default and the control connection."""

    connections: dict[str, ConnectionSettings]
    default: str
    control: str


def configured(layers: Layers) -> Configured:
    """Raises ConfigError. A missing url is an error only when the connection is used."""
    url = layers.code.get("url")
    variable = sections.environ_name(CONNECTION["url"], "redis")
    overridden = layers.environ.get(variable) or layers.environ.get(f"{variable}_FILE")
    by_url = SCHEMES.get(scheme_of(url), "redis") if isinstance(url, str) and not overridden else "redis"
    names = list(layers.section("connections")) or [by_url]
    only = "redis" if "redis" in names else names[0] if len(names) == 1 else ""
    default = connection_name(layers, "default", names, only)
    connections = {name: connection_of(layers, name, name == default) for name in names}
    check_parts(layers, connections)
    return Configured(
        connections, default, connection_name(layers, "control", names, sections.sent_to(default, connections)[0])
    )


def connection_name(layers: Layers, key: str, names: list[str], built_in: str) -> str:
    name: str = layers.value(f"qd.{key}", QD[key], built_in=built_in)
    if not name:
        raise ConfigError(f'no default connection among {", ".join(names)}: write default = "{names[0]}" below [qd]')
    check_connection(name, names, f" as {key} ({layers.origins[f'qd.{key}']})")
    return name


def connection_of(layers: Layers, name: str, default: bool) -> ConnectionSettings:
    section = f"connections.{name}"
    held = {
        key: layers.value(f"{section}.{key}", option, "url" if default and key == "url" else "", name)
        for key, option in CONNECTION.items()
        if not option.file_of
    }
    named = "" if layers.origins[f"{section}.driver"] == "built in" else held["driver"]
    held["driver"] = driver_of(layers, section, named, held["url"])
    held["url"] = held["url"] and from_root(held["url"], layers.root)
    if held["credentials"] and held["url"]:
        where = layers.origins[f"{section}.credentials"]
        if held["driver"] != "redis" or scheme_of(held["url"]) == "embedded":
            kinds = "redis://, rediss://, unix:// and their kinds"
            raise ConfigError(f"{where}: credentials are for a Redis url ({kinds})")
        if other := sections.provider_of(held["url"]):
            raise ConfigError(f"{where}: the url has a credential provider, too: '{other}'; remove one of them")
        # drivers/redis reads it from the url
        held["url"] += f"{'&' if '?' in held['url'] else '?'}credentials={held['credentials']}"
    return ConnectionSettings(name=name, **held, url_origin=layers.origins[f"{section}.url"])


def driver_of(layers: Layers, section: str, named: str, url: str | None) -> str:
    """The driver of the url, or the one named; both must agree."""
    by_url = SCHEMES[scheme_of(url)] if url else ""
    if named in DRIVERS and by_url and named != by_url:
        where = layers.origins[f"{section}.driver"]
        kinds = ", ".join(scheme for scheme, driver in SCHEMES.items() if driver == named) or "no url"
        kind = scheme_of(url or "")
        raise ConfigError(f"{where}: driver '{named}' does not match a url of kind '{kind}:' (it takes {kinds})")
    return named or by_url or "redis"


def check_parts(layers: Layers, connections: Mapping[str, ConnectionSettings]) -> None:
    """Check that the connections of failover connections exist and do not contain themselves."""
    mixed = {name: found.connections for name, found in connections.items() if found.driver == "failover"}
    for name, parts in mixed.items():
        where = layers.origins[f"connections.{name}.connections"]
        if not parts:
            example = 'connections = ["redis", ...]'
            raise ConfigError(f"connection '{name}' (failover) has no connections: write {example}")
        for part in parts:
            check_connection(part, connections, f" in connections of '{name}' ({where})")
    if not mixed:
        return
    from graphlib import CycleError, TopologicalSorter

    try:
        TopologicalSorter(mixed).prepare()
    except CycleError as error:
        name = error.args[1][0]
        where = layers.origins[f"connections.{name}.connections"]
        raise ConfigError(f"{where}: connection '{name}' (failover) contains itself") from None


def from_root(url: str, root: Path) -> str:
    """The url; a relative path of an SQLite file is relative to the folder of qd.toml."""
    kind, slashes, path = url.partition(":///")
    if scheme_of(url) != "sqlite" or not path or path.startswith(("/", ":memory:")):
        return url
    return f"{kind}{slashes}{root.resolve() / path}"


def load(
    path: Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
    pool: str | None = None,
    code: Mapping[str, object] | None = None,
) -> Settings:
    """The whole configuration.

    path: `--config`. environ: os.environ if None. flags: those given, by their long names, and "app". code: the arguments
    of Qd(...), "url" and "imports". None, () and [] count as not given. Nothing is connected or imported. Raises ConfigError
    naming the value, its origin and a solution; a missing url is reported by `Settings.connection`.
    """
    environ = os.environ if environ is None else environ
    file = find(path, environ)
    settings = settings_of(Layers(file, environ, given({"pool": pool, **(flags or {})}), given(code or {})))
    sections.hide_secrets(settings)
    return settings


def load_without_app(path: Path | None, flags: Mapping[str, object], pool: str | None = None) -> Settings:
    """As load(), before the app is imported: an unknown connection of `flags` counts as not given if an app is named, whose
    Qd(url) may make it. Such a connection has the name of its driver."""
    try:
        return load(path, flags=flags, pool=pool)
    except ConfigError:
        name = flags.get("connection")
        if name not in DRIVERS:
            raise
        found = load(path, flags={**flags, "connection": None}, pool=pool)
        if not found.app or name in found.connections:
            raise
        return found


def unread(code: Mapping[str, object]) -> Settings:
    """The built-in values and the arguments of Qd(...), without file and environment. For tests."""
    built_in = settings_of(Layers(None, {}, {"workers": 1}, given(code)))
    return replace(built_in, encryption=sections.EncryptionSettings((f"tests:{'A' * 43}=",)))


def given(values: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None and value not in ((), [])}


def settings_of(layers: Layers) -> Settings:
    found = configured(layers)
    return Settings(
        root=layers.root,
        file=layers.file.path if layers.file else None,
        imports=layers.value("qd.imports", QD["imports"], code="imports"),
        **layers.all("qd", but=("imports", "default", "control")),
        **found._asdict(),
        work=work_of(layers, found),
        laravel=laravel_of(layers),
        failed=failed_of(layers),
        signing=signing_of(layers),
        encryption=encryption_of(layers),
        schedule=schedule_of(layers),
        alerts=alerts_of(layers),
        dashboard=sections.DashboardSettings(**layers.all("dashboard")),
        origins=layers.origins,
        secret_files=tuple(dict.fromkeys(layers.secret_files)),
    )


def failed_of(layers: Layers) -> sections.FailedSettings:
    held = layers.all("failed")
    found = sections.FailedSettings(**{**held, "database": from_root(held["database"], layers.root)})
    if found.database and not found.enabled:
        why = "with enabled = false there are no failed jobs to copy to database: remove one of them"
        raise ConfigError(f"{layers.origins['failed.database']}: {why}")
    return found


def laravel_of(layers: Layers) -> sections.LaravelSettings | None:
    held = layers.all("laravel")
    needs_cache = layers.section("laravel").keys() - {"down_file"} or held["down"]
    if not held["cache_url"] and needs_cache:
        where = f" in {layers.file.shown}" if layers.file else ""
        way = "redis://host:6379/1, as in Laravel's cache connection"
        raise ConfigError(f"[laravel]{where} has no cache_url ({way})")
    if held["down_file"]:
        held["down_file"] = str(layers.root / held["down_file"])
    return sections.LaravelSettings(**held) if held["cache_url"] or held["down_file"] else None


def signing_of(layers: Layers) -> sections.SigningSettings:
    way = f"too short (at least {SHORTEST} characters; `openssl rand -hex 32` generates one)"
    found = keyed(layers, "signing", lambda secret: len(secret) >= SHORTEST and secret.isprintable(), way)
    if not found["keys"] and found["require"] and (where := layers.origins["signing.require"]) != "built in":
        raise ConfigError(f'{where}: require = true needs signing keys (keys = ["ID:SECRET"])')
    return sections.SigningSettings(**found)


def encryption_of(layers: Layers) -> sections.EncryptionSettings:
    def is_key(secret: str) -> bool:
        try:
            return len(a2b_base64(secret.removeprefix("base64:"), strict_mode=True)) == AES_256
        except ValueError:
            return False

    way = f"not {AES_256} bytes as base64 (`openssl rand -base64 {AES_256}` generates one)"
    return sections.EncryptionSettings(**keyed(layers, "encryption", is_key, way))


def keyed(layers: Layers, section: str, fits: Callable[[str], bool], way: str) -> dict[str, Any]:
    """The values of a section with keys, with the secrets of their files. way: what a secret is that does not fit."""
    held, origin = layers.all(section), layers.origins[f"{section}.keys"]
    keys = dict[str, str]()
    for id, _, secret in (key.partition(":") for key in held["keys"]):
        if secret.startswith(FROM_FILE):
            path = layers.root / secret.removeprefix(FROM_FILE)
            secret = layers.secret(f"the {section} key {id}", path, origin)
        if not fits(secret):
            raise ConfigError(f"{origin}: the {section} key {id} is {way}")
        if id in keys:
            raise ConfigError(f"{origin}: two {section} keys have the id {id} (give each one its own)")
        keys[id] = secret
    return held | {"keys": tuple([f"{id}:{secret}" for id, secret in keys.items()])}


def schedule_of(layers: Layers) -> sections.ScheduleSettings:
    held = layers.all("schedule")
    entries, file = list[sections.EntrySettings](), layers.file
    for name, own in layers.named("schedule.entries"):
        if "args" in own:
            import json  # only if there are arguments

            # a TOML datetime is sent as ISO 8601, like every datetime
            own["args"] = json.dumps(own["args"], default=lambda at: at.isoformat(), ensure_ascii=False)
        assert file is not None
        entries.append(sections.EntrySettings(name, file.shown, file.line(f"schedule.entries.{name}"), **own))
    return sections.ScheduleSettings(**held, entries=tuple(entries))


def alerts_of(layers: Layers) -> sections.AlertSettings:
    held = layers.all("alerts")
    template, where = held["template"], layers.origins["alerts.template"]
    if template:
        import json

        try:
            json.loads(template.replace("{text}", '""'))
        except ValueError:
            raise ConfigError(f'{where}: the template is not JSON; write {{"text": {{text}}}}') from None
    limits = {name: held[name] for name in SECTIONS["alerts.queues.NAME"]}
    queues = {name: sections.QueueAlerts(**limits | own) for name, own in layers.named("alerts.queues")}
    return sections.AlertSettings(**held, queues=queues)


def work_of(layers: Layers, found: Configured) -> WorkOptions:
    check_pool(layers)
    held = layers.all("worker", but=RESOLVED)
    held["connection"] = layers.value("worker.connection", WORK["connection"], built_in=found.default)
    check_connection(held["connection"], found.connections, f" ({layers.origins['worker.connection']})")
    if layers.only_schedule and found.connections[held["connection"]].driver in BARE:
        held["connection"] = found.control  # it stores no jobs; the keeper serves the control connection instead
    own_queue = found.connections[held["connection"]].queue
    named = layers.value("worker.queues", WORK["queues"], built_in=(own_queue,))
    held["in_turn"] = layers.origins["worker.queues"] == "built in"
    held["queues"], held["weights"] = (named, ()) if held["in_turn"] else names_and_weights(named)
    held["pooled"] = pooled(layers, found, held["connection"])
    held["workers"] = layers.value("worker.workers", WORK["workers"], built_in="auto")
    if held["workers"] == "auto":
        from qd.process.proc import cpus_granted  # producers do not need it

        held["workers"] = cpus_granted()
    if held["once"]:  # one job needs one worker
        held["workers"] = min(held["workers"], 1)
    if layers.only_schedule:
        held |= {"only_schedule": True, "workers": 0, "pool": layers.pool}
    prefetch = layers.value("worker.prefetch", WORK["prefetch"], built_in="auto")
    held["prefetch"] = 0 if isinstance(prefetch, str) else prefetch
    uptime = layers.value("worker.min_uptime", WORK["min_uptime"], built_in="auto")
    held["min_uptime"] = (LINGER if supervised(layers.environ) else 0.0) if isinstance(uptime, str) else uptime
    return WorkOptions(**held)


def pooled(layers: Layers, found: Configured, connection: str) -> tuple[str, ...]:
    """The queues of this connection that other pools in the file serve."""
    queues = list[str]()
    for name, held in layers.section("pools").items():
        place = held.get("connection") or layers.section("worker").get("connection") or found.default
        if name != layers.pool and "queues" in held and place == connection:
            queues += names_and_weights(WORK["queues"].read(held["queues"]))[0]
    return tuple(dict.fromkeys(queues))


def check_pool(layers: Layers) -> None:
    pools = layers.section("pools")
    if not layers.pool or layers.pool in pools or (layers.only_schedule and layers.pool == SCHEDULE_POOL):
        return
    where = f" in {layers.file.shown}" if layers.file else ""
    known = f" (known: {', '.join(pools)})" if pools else f" (write [pools.{layers.pool}] into qd.toml)"
    raise ConfigError(f"unknown pool '{layers.pool}'{where}{did_you_mean(layers.pool, pools)}{known}")


def supervised(environ: Mapping[str, str]) -> bool:
    """Whether supervisord or systemd started this program. A desktop's terminal passes SYSTEMD_EXEC_PID on, so it counts
    only if it names this process or its parent: the template calls this too."""
    if environ.get("SUPERVISOR_ENABLED") or environ.get("NOTIFY_SOCKET"):
        return True
    return environ.get("SYSTEMD_EXEC_PID") in (str(os.getpid()), str(os.getppid()))


def overridden_urls(settings: Settings) -> list[str]:
    """One line per url of the file that a variable overrides with another server. Not for embedded:, which is for
    development and meant to be overridden."""
    file = find(settings.file, {}) if settings.file else None
    lines = list[str]()
    for name, keys in file.section("connections").items() if file else ():
        at, own = settings.connections[name], keys.get("url")
        if not own or not at.url or not at.url_origin.startswith("environment ") or scheme_of(own) == "embedded":
            continue
        if server_of(from_root(own, settings.root)) != server_of(at.url):
            assert file is not None
            where = file.where("connections", name, "url")
            variable = at.url_origin.removeprefix("environment ").partition(",")[0]
            lines.append(f"{variable} overrides url ({where}: {mask_url(own)})")
    return lines


def server_of(url: str) -> tuple[str, str]:
    """Its kind, and the server with the database; not user, password and options."""
    kind, _, rest = url.partition("?")[0].partition(":")
    return kind, rest.rpartition("@")[2].strip("/")


def unknown_variables(settings: Settings, environ: Mapping[str, str]) -> list[str]:
    """One line per QD_ variable that qd does not read: most likely a typo."""
    fixed = [option for rows in ROWS.values() if rows is not CONNECTION for option in rows.values()]
    known = {sections.environ_name(option) for option in fixed if option.environ} | OTHERS
    known |= {sections.environ_name(option, name) for option in CONNECTION.values() for name in settings.connections}
    return [
        f"{name} in the environment is not used by qd{did_you_mean(name, known)}"
        for name in sorted(environ)
        if name.startswith("QD_") and name not in known
    ]


def open_files(settings: Settings) -> dict[str, str]:
    """The files with a secret that other users can read -> one line about each."""
    found = {path: stat.S_IMODE(os.stat(path).st_mode) for path in settings.secret_files}
    return {
        path: f"{path} can be read by {'every user' if mode & 0o004 else 'its group'} (mode {mode:04o})"
        for path, mode in found.items()
        if mode & 0o044
    }


def unknown_drivers(settings: Settings) -> list[str]:
    """One line per driver that is not qd's own: only the app knows whether it is one of the app's."""
    known = ", ".join(DRIVERS)
    return [
        f"driver '{found.driver}' of connection '{found.name}' is not one of qd's (known: {known})"
        f"{did_you_mean(found.driver, DRIVERS)}: only the app knows whether it is one of its own (app.extend)"
        for found in settings.connections.values()
        if found.driver not in DRIVERS
    ]
