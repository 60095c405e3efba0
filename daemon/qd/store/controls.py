"""The restart stamp, pauses of queues and maintenance mode, for all hosts.

`qd restart`, `pause`, `resume`, `down` and `up` write here; workers, keepers and `qd status` read. The read_* functions
parse bytes that the caller has fetched. Unreadable bytes count as set: a queue that was paused by hand stays paused.

The functions at the end handle Laravel's own keys in its cache, through which `qd restart`, `pause` and `resume` reach PHP
workers. Their store has the cache's Redis and prefix (`cache_prefix`). Names and values are those of Laravel 13
(Illuminate/Queue/Worker.php, Queue/QueueManager.php, Cache/RedisStore.php): numbers as plain text, else serialized.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from qd.drivers.keyspace import keys
from qd.store.base import Store

ROLLING = " rolling"
LARAVEL = "_"  # before the value of Laravel's key

# names and values of Laravel
RESTART = "illuminate:queue:restart"  # if it changes, every PHP worker exits after its current job
DOWN = "illuminate:foundation:down"  # 9 and later, with the cache as the driver of maintenance mode
PAUSED_ALL = "illuminate:queues:paused"  # all queues of all connections; as laravel_paused
TRUE = b"b:1;"


@dataclass(frozen=True, slots=True)
class Restart:
    """Masters that run code loaded before `at` (unix seconds, the store's clock) restart; rolling: worker by worker.

    laravel: the value the same command writes to Laravel's restart key; 0: nothing.
    """

    at: float
    rolling: bool = False
    laravel: int = 0


@dataclass(frozen=True, slots=True)
class Pause:
    """Workers take no job from this queue. until: unix seconds; None: until `qd resume`."""

    by: str = ""
    reason: str = ""
    at: float | None = None
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Down(Pause):
    """Maintenance mode: workers take jobs only from the allowed queues, except with `qd work --force`. until: as of a pause;
    None: until `qd up`."""

    allow: tuple[str, ...] = ()


def by_and_why(note: Pause) -> str:
    """` by ana@app-1: db upgrade`, as far as it is known."""
    return (f" by {note.by}" if note.by else "") + (f": {note.reason}" if note.reason else "")


# -- restart


def restart(store: Store, *, rolling: bool = False, laravel: int = 0) -> Restart:
    """Write the stamp. It is never deleted, since a missing stamp means no restart."""
    stamp = Restart(round(store.now(), 6), rolling, laravel)
    store.put(keys.RESTART, restart_text(stamp).encode())
    return stamp


def restart_text(stamp: Restart) -> str:
    return f"{stamp.at:.6f}{LARAVEL}{stamp.laravel}{ROLLING if stamp.rolling else ''}"


def last_restart(store: Store) -> Restart | None:
    return read_restart(store.get(keys.RESTART)[0])


def read_restart(raw: bytes | None) -> Restart | None:
    """None: there is no stamp, or it is unreadable (better no restart than an endless one)."""
    text = (raw or b"").decode("utf-8", "replace")
    moment, named, value = text.removesuffix(ROLLING).partition(LARAVEL)
    try:
        at, laravel = float(moment), int(value) if named else 0
    except ValueError:
        return None
    return Restart(at, text.endswith(ROLLING), laravel) if 0 < at < 1e12 else None


# -- pause


def pause(store: Store, queue: str, *, by: str, reason: str = "", seconds: float | None = None) -> Pause:
    """Once this returns, no worker on any host takes a job from `queue`."""
    note = new_pause(store, by, reason, seconds)
    store.put(keys.paused(queue), json.dumps(asdict(note)).encode(), seconds)
    return note


def new_pause(store: Store, by: str, reason: str, seconds: float | None) -> Pause:
    """A pause that begins now, by the store's clock."""
    now = round(store.now(), 3)
    return Pause(by, reason, now, None if seconds is None else round(now + seconds, 3))


def resume(store: Store, queue: str) -> Pause | None:
    """End the pause and wake a waiting worker. Returns the pause; None: the queue was not paused."""
    raw = store.take(keys.paused(queue))
    if raw is None:
        return None
    store.token(keys.notify(queue))
    return read_pause(raw)


def paused(store: Store, queues: Iterable[str]) -> dict[str, Pause]:
    """The paused queues among `queues`."""
    names = list(dict.fromkeys(queues))
    found = zip(names, store.get(*[keys.paused(name) for name in names]), strict=True)
    return {name: read_pause(raw) for name, raw in found if raw is not None}


def read_pause(raw: bytes) -> Pause:
    note = _read(raw)
    return Pause(_text(note, "by"), _text(note, "reason"), _time(note, "at"), _time(note, "until"))


# -- down


def down(store: Store, *, by: str, reason: str = "", seconds: float | None = None, allow: Iterable[str] = ()) -> Down:
    """Start maintenance mode, until `up` or for `seconds`. Replaces an earlier one."""
    note = Down(**asdict(new_pause(store, by, reason, seconds)), allow=tuple(allow))
    store.put(keys.DOWN, json.dumps(asdict(note)).encode(), seconds)
    return note


def up(store: Store) -> Down | None:
    """End maintenance mode. Returns its note; None: it was not on."""
    raw = store.take(keys.DOWN)
    return None if raw is None else read_down(raw)


def is_down(store: Store) -> Down | None:
    raw = store.get(keys.DOWN)[0]
    return None if raw is None else read_down(raw)


def read_down(raw: bytes) -> Down:
    listed = _read(raw).get("allow")
    allow = [name for name in listed if isinstance(name, str) and name] if isinstance(listed, list) else []
    return Down(**asdict(read_pause(raw)), allow=tuple(dict.fromkeys(allow)))


# -- the notes as JSON


def _read(raw: bytes) -> dict[str, Any]:
    try:
        note = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return note if isinstance(note, dict) else {}


def _text(note: dict[str, Any], key: str) -> str:
    return note[key] if isinstance(note.get(key), str) else ""


def _time(note: dict[str, Any], key: str) -> float | None:
    found = note.get(key)
    if not isinstance(found, int | float) or isinstance(found, bool):
        return None
    return float(found) if 0 < found < 1e12 else None


# -- Laravel's keys


def laravel_paused(connection: str, queue: str) -> str:
    """Laravel 13 and later skip the queue while it is TRUE; older releases have no pause."""
    return f"illuminate:queue:paused:{connection}:{queue}"


def next_restart(store: Store) -> int:
    """The value to write into RESTART: whole seconds, and never the current value, since workers only detect a change."""
    before, now = store.get(RESTART)[0], int(store.now())
    if before is not None and before.isdigit() and len(before) < 12:
        now = max(now, int(before) + 1)
    return now


def truthy(value: bytes | None) -> bool:
    return value not in (None, b"b:0;", b"0", b"")


def down_file(path: str) -> tuple[bool, str]:
    """Whether the file of `php artisan down` exists, and an error if that is unknown, else ""."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return False, "" if os.path.isdir(os.path.dirname(path)) else "its folder does not exist"
    except (OSError, ValueError) as error:
        return False, str(getattr(error, "strerror", None) or error)
    return True, ""
