"""Flags > environment > code > [pools.NAME] > [worker] > built in: `load` asks them in this order, for every value, and
notes who answered. Called by app.py, daemon.py and the commands, once each."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from qd import units
from qd.config import table
from qd.config.entries import entries_of, origins_of
from qd.config.file import ConfigFile, find
from qd.config.secrets import secret_file, with_secret
from qd.config.settings import (
    ConnectionSettings,
    FailedSettings,
    LaravelSettings,
    ScheduleSettings,
    Settings,
    SigningSettings,
    check_connection,
    hide_secrets,
    sent_to,
)
from qd.errors import ConfigError
from qd.options import WORK, Option, WorkOptions
from qd.options.kinds import BARE, DRIVERS, SCHEMES, scheme_of

LINGER = 1.5  # seconds a whole `qd work` stays up at least where its supervisor takes a quick exit for a failed start
SCHEDULE = "schedule"  # the pool of `qd schedule work` where none is named; it need not be in the file
_OTHER_VARIABLES = {"QD_CONFIG", "QD_POOL", "QD_OWNER"}


def load(
    path: Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
    pool: str | None = None,
    code: Mapping[str, object] | None = None,
) -> Settings:
    """Everything that was configured.

    path: `--config`. environ: os.environ when None. flags: those really given, by the option's long name; "app" too.
    code: what Qd(...) was given, "url" and "imports". None, () and [] are not given. Nothing is connected or imported.
    Raises ConfigError naming the value, its place and the way out; a missing url is first one in `Settings.connection`.
    """
    environ = os.environ if environ is None else environ
    file = find(path, environ)
    settings = _Loading(file, environ, _given({"pool": pool, **(flags or {})}), _given(code or {})).settings()
    hide_secrets(settings)
    return settings


def unread(code: Mapping[str, object]) -> Settings:
    """What is built in and what Qd(...) was given: no file is read, no variable looked at. For tests."""
    return _Loading(None, {}, {"workers": 1}, _given(code)).settings()


def _given(values: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None and value not in ((), [])}


class _Found(NamedTuple):
    value: object
    origin: str


class _Loading:
    """One run of `load`. Each method adds the origins of what it found."""

    def __init__(
        self,
        file: ConfigFile | None,
        environ: Mapping[str, str],
        flags: Mapping[str, object],
        code: Mapping[str, object],
    ) -> None:
        self.file, self.environ, self.flags, self.code = file, environ, flags, code
        self.origins: dict[str, str] = {}

    def settings(self) -> Settings:
        names = list(self._section("connections")) or [self._unnamed()]
        default = self._connection_name("default", names, self._only(names))
        connections = {name: self._connection(name, name == default) for name in names}
        self._check_parts(connections)
        control = self._connection_name("control", names, sent_to(default, connections)[0])
        return Settings(
            root=self._root(),
            file=self.file.path if self.file else None,
            app=self._value("qd.app", table.QD["app"]),
            imports=self._value("qd.imports", table.QD["imports"], code="imports"),
            env=self._value("qd.env", table.QD["env"]),
            default=default,
            control=control,
            connections=connections,
            work=self._work(connections, default, control),
            laravel=self._laravel(),
            failed=self._failed(),
            signing=self._signing(),
            schedule=self._schedule(),
            max_payload=self._value("qd.max_payload", table.QD["max_payload"]),
            max_depth=self._value("qd.max_depth", table.QD["max_depth"]),
            origins=self.origins,
        )

    # --- one value ---

    def _value(self, dotted: str, option: Option, code: str = "", connection: str = "", built_in: object = None) -> Any:
        """The value of one key by the first layer that has it, noted with its origin."""
        places = self._layers(dotted, option, code, connection)
        found = next(places, _Found(option.default if built_in is None else built_in, "built in"))
        self.origins[dotted] = found.origin
        if found.origin == "built in":
            return found.value
        try:
            return option.read(found.value)
        except ValueError as error:
            raise ConfigError(f"{found.origin}: {error}") from None

    def _layers(self, dotted: str, option: Option, code: str, connection: str) -> Iterator[_Found]:
        section, _, key = dotted.rpartition(".")
        if section in ("worker", "qd") and key in self.flags:
            yield _Found(self.flags[key], f"flag {option.flag}" if option.flag else "command line")
        for name in _variables(option, connection):
            if self.environ.get(name):  # an empty one counts as not set, as in most programs
                yield _Found(self.environ[name], f"environment {name}")
        if code in self.code:
            yield _Found(self.code[code], "Qd(...)")
        if self.file is not None:
            yield from self._file_layers(self.file, section, key)

    def _file_layers(self, file: ConfigFile, section: str, key: str) -> Iterator[_Found]:
        pools = [("pools", self.pool)] if section == "worker" and self.pool else []
        for names in (*pools, tuple(section.split(".", 1))):
            if key in (held := file.section(*names)):
                yield _Found(held[key], file.where(".".join((*names, key))))

    def _all(self, section: str, rows: Mapping[str, Option]) -> dict[str, Any]:
        return {name: self._value(f"{section}.{name}", option) for name, option in rows.items()}

    def _section(self, name: str) -> Mapping[str, Any]:
        return self.file.section(name) if self.file else {}

    # --- connections ---

    def _unnamed(self) -> str:
        """The one connection where no file names any: called as the driver is that the url in Qd(url) asks for."""
        url = self.code.get("url")
        return SCHEMES.get(scheme_of(url), "redis") if isinstance(url, str) else "redis"

    @staticmethod
    def _only(names: list[str]) -> str:
        return "redis" if "redis" in names else names[0] if len(names) == 1 else ""

    def _connection_name(self, key: str, names: list[str], built_in: str) -> str:
        name: str = self._value(f"qd.{key}", table.QD[key], built_in=built_in)
        if not name:
            raise ConfigError(
                f'no default connection among {", ".join(names)}: write default = "{names[0]}" below [qd]'
            )
        check_connection(name, names, f" as {key} ({self.origins[f'qd.{key}']})")
        return name

    def _connection(self, name: str, default: bool) -> ConnectionSettings:
        section = f"connections.{name}"
        held = {
            key: self._value(f"{section}.{key}", option, "url" if default and key == "url" else "", name)
            for key, option in table.CONNECTION.items()
        }
        held["driver"] = self._driver(section, held["driver"], held["url"])
        held["url"] = held["url"] and from_root(held["url"], self._root())
        return ConnectionSettings(name=name, **held, url_origin=self.origins[f"{section}.url"])

    def _driver(self, section: str, said: str, url: str | None) -> str:
        """That of the url, unless one is said; both must mean the same."""
        by_url = SCHEMES[scheme_of(url)] if url else ""
        if said in DRIVERS and by_url and said != by_url:
            where = self.origins[f"{section}.driver"]
            kinds = ", ".join(scheme for scheme, driver in SCHEMES.items() if driver == said) or "no url"
            raise ConfigError(
                f"{where}: driver '{said}' does not fit a url of kind '{scheme_of(url or '')}:' (it takes {kinds})"
            )
        return said or by_url or "redis"

    def _check_parts(self, connections: Mapping[str, ConnectionSettings]) -> None:
        """What connections of failover are made of: there, and not of themselves."""
        mixed = {name: found for name, found in connections.items() if found.driver == "failover"}
        for name, found in mixed.items():
            where = self.origins[f"connections.{name}.connections"]
            if not found.connections:
                raise ConfigError(
                    f"connection '{name}' (failover) has no connections: write connections = [\"redis\", ...]"
                )
            for part in found.connections:
                check_connection(part, connections, f" in connections of '{name}' ({where})")
        for name in mixed:
            if name in parts_of(name, mixed):
                where = self.origins[f"connections.{name}.connections"]
                raise ConfigError(
                    f"{where}: connection '{name}' (failover) goes round in a circle: it is a part of itself"
                )

    def _failed(self) -> FailedSettings:
        held = self._all("failed", table.FAILED)
        found = FailedSettings(**{**held, "database": from_root(held["database"], self._root())})
        if found.database and not found.enabled:
            where = self.origins["failed.database"]
            raise ConfigError(
                f"{where}: database is a copy of what enabled = false does not keep: leave one of them out"
            )
        return found

    def _laravel(self) -> LaravelSettings | None:
        held = self._all("laravel", table.LARAVEL)
        needs_cache = self._section("laravel").keys() - {"down_file"} or held["down"]
        if held["cache_url"] is None and needs_cache:
            raise ConfigError(
                f"[laravel]{f' in {self.file.shown}' if self.file else ''} has no cache_url (redis://host:6379/1, "
                "as in Laravel's cache connection)"
            )
        if held["down_file"]:
            held["down_file"] = str(self._root() / held["down_file"])
        held["cache_url"] = held["cache_url"] or ""
        return LaravelSettings(**held) if held["cache_url"] or held["down_file"] else None

    def _signing(self) -> SigningSettings:
        held = self._all("signing", table.SIGNING)
        origin = self.origins["signing.keys"]
        keys = tuple([with_secret(key, self._root(), origin) for key in held["keys"]])
        if len({key.partition(":")[0] for key in keys}) < len(keys):
            raise ConfigError(f"{origin}: two signing keys have the same id (give each one its own)")
        if not keys and held["require"] and self.origins["signing.require"] != "built in":
            raise ConfigError(
                f'{self.origins["signing.require"]}: require = true needs signing keys (keys = ["ID:SECRET"])'
            )
        files = [path for key in held["keys"] if (path := secret_file(key, self._root())) is not None]
        return SigningSettings(keys, held["require"], tuple(map(str, files)))

    def _schedule(self) -> ScheduleSettings:
        held = self._all("schedule", table.SCHEDULE)
        if self.file is None:
            return ScheduleSettings(**held)
        self.origins.update(origins_of(self.file))
        return ScheduleSettings(**held, entries=entries_of(self.file))

    def _root(self) -> Path:
        return self.file.path.parent if self.file else Path.cwd()

    # --- qd work ---

    @property
    def pool(self) -> str:
        named = self.flags.get("pool") or self.environ.get("QD_POOL") or ""
        return str(named or (SCHEDULE if self._only_schedule else ""))

    @property
    def _only_schedule(self) -> bool:
        return bool(self.flags.get("only_schedule"))

    def _work(self, connections: Mapping[str, ConnectionSettings], default: str, control: str) -> WorkOptions:
        self._check_pool()
        held = self._all("worker", {name: option for name, option in WORK.items() if name not in _RESOLVED})
        held["connection"] = self._value("worker.connection", WORK["connection"], built_in=default)
        check_connection(held["connection"], connections, f" ({self.origins['worker.connection']})")
        if self._only_schedule and connections[held["connection"]].driver in BARE:
            held["connection"] = control  # nothing is kept there: the scheduler's keeper looks after what it shares
        own_queue = connections[held["connection"]].queue
        held["queues"] = self._value("worker.queues", WORK["queues"], built_in=(own_queue,))
        held["workers"] = _workers(self._value("worker.workers", WORK["workers"], built_in="auto"))
        if held["once"]:  # one job is for one worker
            held["workers"] = min(held["workers"], 1)
        if self._only_schedule:
            held |= {"only_schedule": True, "workers": 0, "pool": self.pool}
        held["min_uptime"] = self._min_uptime(self._value("worker.min_uptime", WORK["min_uptime"], built_in="auto"))
        return WorkOptions(**held)

    def _check_pool(self) -> None:
        pools = self._section("pools")
        if not self.pool or self.pool in pools or (self._only_schedule and self.pool == SCHEDULE):
            return
        where = f" in {self.file.shown}" if self.file else ""
        known = f" (known: {', '.join(pools)})" if pools else f" (write [pools.{self.pool}] into qd.toml)"
        raise ConfigError(f"unknown pool '{self.pool}'{where}{units.did_you_mean(self.pool, pools)}{known}")

    def _min_uptime(self, value: float | str) -> float:
        if not isinstance(value, str):
            return value
        return LINGER if _supervised(self.environ) else 0.0


def parts_of(name: str, mixed: Mapping[str, ConnectionSettings]) -> set[str]:
    """All that a connection of failover is made of, the parts of its parts too."""
    found, ahead = set[str](), [name]
    while ahead:
        for part in mixed[ahead.pop()].connections:
            if part not in found and part in mixed:
                ahead.append(part)
            found.add(part)
    return found


_RESOLVED = ("connection", "queues", "workers", "min_uptime")  # what is built in depends on something else


def _workers(value: int | str) -> int:
    from qd.process.vitals import cpus_granted  # producers do not need it

    return value if isinstance(value, int) else cpus_granted()


def _supervised(environ: Mapping[str, str]) -> bool:
    """Did supervisord or systemd start this program? SYSTEMD_EXEC_PID is inherited by what a desktop's terminal starts,
    so it counts only where it names this process, or its parent: the template asks too."""
    if environ.get("SUPERVISOR_ENABLED") or environ.get("NOTIFY_SOCKET"):
        return True
    return environ.get("SYSTEMD_EXEC_PID") in (str(os.getpid()), str(os.getppid()))


def from_root(url: str, root: Path) -> str:
    """The same; a file of SQLite that is named without a folder stands in that of qd.toml, wherever a program starts."""
    kind, slashes, path = url.partition(":///")
    if scheme_of(url) != "sqlite" or not path or path.startswith(("/", ":memory:")):
        return url
    return f"{kind}{slashes}{root.resolve() / path}"


# --- the environment -------------------------------------------------------------------------------------------------


def _variables(option: Option, connection: str) -> list[str]:
    """The environment variables of a row, the first one first."""
    names = [table.environ_name(option, connection)] if option.environ else []
    return [*names, "REDIS_URL"] if connection == "redis" and option.name == "url" else names


def strangers(settings: Settings, environ: Mapping[str, str]) -> list[str]:
    """One line for each QD_ variable that nothing here reads: a typing error, most likely. For `qd config check`."""
    rows = (table.QD, WORK, table.LARAVEL, table.FAILED, table.SIGNING, table.SCHEDULE)
    fixed = [option for each in rows for option in each.values()]
    known = {table.environ_name(option) for option in fixed if option.environ} | _OTHER_VARIABLES
    known |= {table.environ_name(option, name) for option in table.CONNECTION.values() for name in settings.connections}
    return [
        f"{name} in the environment is read by nothing{units.did_you_mean(name, known)}"
        for name in sorted(environ)
        if name.startswith("QD_") and name not in known
    ]


def strange_drivers(settings: Settings) -> list[str]:
    """One line for each driver that is none of ours: only the app knows whether it is one of its own."""
    known = ", ".join(DRIVERS)
    return [
        f"driver '{found.driver}' of connection '{found.name}' is none of qd's (known: {known})"
        f"{units.did_you_mean(found.driver, DRIVERS)}: only the app knows whether it is one of its own (app.extend)"
        for found in settings.connections.values()
        if found.driver not in DRIVERS
    ]
