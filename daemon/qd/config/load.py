"""Files, environment, code and flags -> Settings. Called by app.py, daemon.py and the commands, once each.

layers.py        one value: who has it first, and where it came from
connections.py   [connections.NAME], the default one and the control connection
here             everything else
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from qd import units
from qd.config import table
from qd.config.connections import Configured, configured, from_root
from qd.config.entries import entries_of, origins_of
from qd.config.file import find
from qd.config.layers import SCHEDULE, Layers
from qd.config.secrets import secret_file, with_secret
from qd.config.settings import (
    FailedSettings,
    LaravelSettings,
    ScheduleSettings,
    Settings,
    SigningSettings,
    check_connection,
    hide_secrets,
)
from qd.errors import ConfigError
from qd.options import WORK, WorkOptions
from qd.options.drivers import BARE

LINGER = 1.5  # seconds a whole `qd work` stays up at least where its supervisor takes a quick exit for a failed start
RESOLVED = ("connection", "queues", "workers", "min_uptime")  # what is built in depends on something else


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
    settings = settings_of(Layers(file, environ, given({"pool": pool, **(flags or {})}), given(code or {})))
    hide_secrets(settings)
    return settings


def unread(code: Mapping[str, object]) -> Settings:
    """What is built in and what Qd(...) was given: no file is read, no variable looked at. For tests."""
    return settings_of(Layers(None, {}, {"workers": 1}, given(code)))


def given(values: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None and value not in ((), [])}


def settings_of(layers: Layers) -> Settings:
    found = configured(layers)
    return Settings(
        root=layers.root,
        file=layers.file.path if layers.file else None,
        app=layers.value("qd.app", table.QD["app"]),
        imports=layers.value("qd.imports", table.QD["imports"], code="imports"),
        env=layers.value("qd.env", table.QD["env"]),
        default=found.default,
        control=found.control,
        connections=found.connections,
        work=work_of(layers, found),
        laravel=laravel_of(layers),
        failed=failed_of(layers),
        signing=signing_of(layers),
        schedule=schedule_of(layers),
        max_payload=layers.value("qd.max_payload", table.QD["max_payload"]),
        max_depth=layers.value("qd.max_depth", table.QD["max_depth"]),
        origins=layers.origins,
    )


def failed_of(layers: Layers) -> FailedSettings:
    held = layers.all("failed", table.FAILED)
    found = FailedSettings(**{**held, "database": from_root(held["database"], layers.root)})
    if found.database and not found.enabled:
        where = layers.origins["failed.database"]
        raise ConfigError(f"{where}: database is a copy of what enabled = false does not keep: leave one of them out")
    return found


def laravel_of(layers: Layers) -> LaravelSettings | None:
    held = layers.all("laravel", table.LARAVEL)
    needs_cache = layers.section("laravel").keys() - {"down_file"} or held["down"]
    if held["cache_url"] is None and needs_cache:
        raise ConfigError(
            f"[laravel]{f' in {layers.file.shown}' if layers.file else ''} has no cache_url (redis://host:6379/1, "
            "as in Laravel's cache connection)"
        )
    if held["down_file"]:
        held["down_file"] = str(layers.root / held["down_file"])
    held["cache_url"] = held["cache_url"] or ""
    return LaravelSettings(**held) if held["cache_url"] or held["down_file"] else None


def signing_of(layers: Layers) -> SigningSettings:
    held = layers.all("signing", table.SIGNING)
    origin = layers.origins["signing.keys"]
    keys = tuple([with_secret(key, layers.root, origin) for key in held["keys"]])
    if len({key.partition(":")[0] for key in keys}) < len(keys):
        raise ConfigError(f"{origin}: two signing keys have the same id (give each one its own)")
    if not keys and held["require"] and layers.origins["signing.require"] != "built in":
        raise ConfigError(
            f'{layers.origins["signing.require"]}: require = true needs signing keys (keys = ["ID:SECRET"])'
        )
    files = [path for key in held["keys"] if (path := secret_file(key, layers.root)) is not None]
    return SigningSettings(keys, held["require"], tuple(map(str, files)))


def schedule_of(layers: Layers) -> ScheduleSettings:
    held = layers.all("schedule", table.SCHEDULE)
    if layers.file is None:
        return ScheduleSettings(**held)
    layers.origins.update(origins_of(layers.file))
    return ScheduleSettings(**held, entries=entries_of(layers.file))


def work_of(layers: Layers, found: Configured) -> WorkOptions:
    check_pool(layers)
    held = layers.all("worker", {name: option for name, option in WORK.items() if name not in RESOLVED})
    held["connection"] = layers.value("worker.connection", WORK["connection"], built_in=found.default)
    check_connection(held["connection"], found.connections, f" ({layers.origins['worker.connection']})")
    if layers.only_schedule and found.connections[held["connection"]].driver in BARE:
        held["connection"] = found.control  # nothing is kept there: the scheduler's keeper looks after what it shares
    own_queue = found.connections[held["connection"]].queue
    held["queues"] = layers.value("worker.queues", WORK["queues"], built_in=(own_queue,))
    held["in_turn"] = layers.origins["worker.queues"] == "built in"
    held["pooled"] = pooled(layers, found, held["connection"])
    held["workers"] = workers_of(layers.value("worker.workers", WORK["workers"], built_in="auto"))
    if held["once"]:  # one job is for one worker
        held["workers"] = min(held["workers"], 1)
    if layers.only_schedule:
        held |= {"only_schedule": True, "workers": 0, "pool": layers.pool}
    held["min_uptime"] = min_uptime(layers, layers.value("worker.min_uptime", WORK["min_uptime"], built_in="auto"))
    return WorkOptions(**held)


def pooled(layers: Layers, found: Configured, connection: str) -> tuple[str, ...]:
    """The queues of this connection that other pools of the file name. Raises ConfigError."""
    queues = list[str]()
    for name, held in layers.section("pools").items():
        place = held.get("connection") or layers.section("worker").get("connection") or found.default
        if name != layers.pool and "queues" in held and place == connection:
            try:
                queues += WORK["queues"].read(held["queues"])
            except ValueError as error:
                where = layers.file.where(f"pools.{name}.queues") if layers.file else f"[pools.{name}]"
                raise ConfigError(f"{where}: {error}") from None
    return tuple(dict.fromkeys(queues))


def check_pool(layers: Layers) -> None:
    pools = layers.section("pools")
    if not layers.pool or layers.pool in pools or (layers.only_schedule and layers.pool == SCHEDULE):
        return
    where = f" in {layers.file.shown}" if layers.file else ""
    known = f" (known: {', '.join(pools)})" if pools else f" (write [pools.{layers.pool}] into qd.toml)"
    raise ConfigError(f"unknown pool '{layers.pool}'{where}{units.did_you_mean(layers.pool, pools)}{known}")


def min_uptime(layers: Layers, value: float | str) -> float:
    if not isinstance(value, str):
        return value
    return LINGER if supervised(layers.environ) else 0.0


def workers_of(value: int | str) -> int:
    from qd.process.vitals import cpus_granted  # producers do not need it

    return value if isinstance(value, int) else cpus_granted()


def supervised(environ: Mapping[str, str]) -> bool:
    """Did supervisord or systemd start this program? SYSTEMD_EXEC_PID is inherited by what a desktop's terminal starts,
    so it counts only where it names this process, or its parent: the template asks too."""
    if environ.get("SUPERVISOR_ENABLED") or environ.get("NOTIFY_SOCKET"):
        return True
    return environ.get("SYSTEMD_EXEC_PID") in (str(os.getpid()), str(os.getppid()))
