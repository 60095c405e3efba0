"""What operators leave for every host to see: the restart stamp, pauses of queues, maintenance mode.

`qd restart`, `pause`, `resume`, `down` and `up` write here; workers, keepers and `qd status` read. The read_* functions
are for those who fetch the bytes in a call of their own. Bytes that are not ours read as set, with nobody's name: a
queue somebody paused by hand stays paused.

Laravel's own keys in its cache: how `qd restart`, `pause`, `resume` reach PHP workers, and whether it is down itself.

The store is the cache's Redis, its prefix the cache's (`cache_prefix`). Names and values as Laravel 13 keeps them
(Illuminate/Queue/Worker.php, Queue/QueueManager.php, Cache/KeyspaceStore.php): numbers as plain text, else serialized.
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
LARAVEL = "_"  # before the value of Laravel's key; a former release reads both as one number, since float() allows "_"


@dataclass(frozen=True, slots=True)
class Restart:
    """Masters that run code loaded before `at` (unix seconds, the store's clock) restart; rolling: worker by worker.

    laravel: what the same command writes to Laravel's restart key, 0: nothing. None: a former release wrote the stamp, which
    does not name the value.
    """

    at: float
    rolling: bool = False
    laravel: int | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing is taken from this queue. until: unix seconds, None until somebody resumes it."""

    by: str = ""
    reason: str = ""
    at: float | None = None
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Down:
    """Maintenance mode: nothing is taken from any queue but those allowed, except by `qd work --force`. until: unix
    seconds, None until `qd up`; the note vanishes then by itself."""

    by: str = ""
    reason: str = ""
    at: float | None = None
    until: float | None = None
    allow: tuple[str, ...] = ()


def by_and_why(note: Pause | Down) -> str:
    """` by ana@app-1: db upgrade`, as far as it says so."""
    return (f" by {note.by}" if note.by else "") + (f": {note.reason}" if note.reason else "")


# -- restart


def restart(store: Store, *, rolling: bool = False, laravel: int = 0) -> Restart:
    """Leave the stamp. It is never taken away: one that vanished would look like none."""
    stamp = Restart(round(store.now(), 6), rolling, laravel)
    store.put(keys.RESTART, f"{stamp.at:.6f}{LARAVEL}{laravel}{ROLLING if rolling else ''}".encode())
    return stamp


def last_restart(store: Store) -> Restart | None:
    return read_restart(store.get(keys.RESTART)[0])


def read_restart(raw: bytes | None) -> Restart | None:
    """None: there was none, or what is there is no stamp (better no restart than one without end)."""
    text = (raw or b"").decode("utf-8", "replace")
    moment, named, value = text.removesuffix(ROLLING).partition(LARAVEL)
    try:
        at, laravel = float(moment), int(value) if named else None
    except ValueError:
        return None
    return Restart(at, text.endswith(ROLLING), laravel) if 0 < at < 1e12 else None


# -- pause


def pause(store: Store, queue: str, *, by: str, reason: str = "", seconds: float | None = None) -> Pause:
    """From the return of this call on no worker takes a job from `queue`, on any host."""
    now = round(store.now(), 3)
    note = Pause(by, reason, now, None if seconds is None else round(now + seconds, 3))
    store.put(keys.paused(queue), _written(note), seconds)
    return note


def resume(store: Store, queue: str) -> Pause | None:
    """Take the pause away, and wake a waiting worker. Returns what it was; None: the queue was not paused."""
    raw = store.take(keys.paused(queue))
    if raw is None:
        return None
    store.token(keys.notify(queue))
    return read_pause(raw)


def paused(store: Store, queues: Iterable[str]) -> dict[str, Pause]:
    """Those of `queues` that are paused, with who and why."""
    names = list(dict.fromkeys(queues))
    found = zip(names, store.get(*[keys.paused(name) for name in names]), strict=True)
    return {name: read_pause(raw) for name, raw in found if raw is not None}


def read_pause(raw: bytes) -> Pause:
    said = _read(raw)
    return Pause(_text(said, "by"), _text(said, "reason"), _moment(said, "at"), _moment(said, "until"))


# -- down


def down(store: Store, *, by: str, reason: str = "", seconds: float | None = None, allow: Iterable[str] = ()) -> Down:
    """Maintenance mode, until `up`, or for `seconds`. In the place of one that is on."""
    now = round(store.now(), 3)
    note = Down(by, reason, now, None if seconds is None else round(now + seconds, 3), tuple(allow))
    store.put(keys.DOWN, _written(note), seconds)
    return note


def up(store: Store) -> Down | None:
    """End it. Returns what it was; None: it was not on."""
    raw = store.take(keys.DOWN)
    return None if raw is None else read_down(raw)


def is_down(store: Store) -> Down | None:
    raw = store.get(keys.DOWN)[0]
    return None if raw is None else read_down(raw)


def read_down(raw: bytes) -> Down:
    said = _read(raw)
    listed = said.get("allow")
    allow = [name for name in listed if isinstance(name, str) and name] if isinstance(listed, list) else []
    return Down(
        *(_text(said, "by"), _text(said, "reason"), _moment(said, "at"), _moment(said, "until")),
        allow=tuple(dict.fromkeys(allow)),
    )


# -- the notes as JSON


def _written(note: Pause | Down) -> bytes:
    return json.dumps(asdict(note)).encode()


def _read(raw: bytes) -> dict[str, Any]:
    try:
        said = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _text(said: dict[str, Any], key: str) -> str:
    return said[key] if isinstance(said.get(key), str) else ""


def _moment(said: dict[str, Any], key: str) -> float | None:
    found = said.get(key)
    if not isinstance(found, int | float) or isinstance(found, bool):
        return None
    return float(found) if 0 < found < 1e12 else None


RESTART = "illuminate:queue:restart"
DOWN = "illuminate:foundation:down"  # 9 and later, with the cache as the driver of maintenance mode
PAUSED_ALL = "illuminate:queues:paused"
TRUE = b"b:1;"


def laravel_paused(connection: str, queue: str) -> str:
    return f"illuminate:queue:paused:{connection}:{queue}"


def next_restart(store: Store) -> int:
    """The value for `restart` to write: whole seconds, never the value that is there, because workers look for a change
    only."""
    before, now = store.get(RESTART)[0], int(store.now())
    if before is not None and before.isdigit() and len(before) < 12:
        now = max(now, int(before) + 1)
    return now


def laravel_restart(store: Store, value: int) -> None:
    """Every PHP worker leaves after the job in hand."""
    store.put(RESTART, b"%d" % value)


def laravel_pause(store: Store, connection: str, queue: str, seconds: float | None = None) -> None:
    """Laravel 13 and later skip the queue; older releases know no pause."""
    store.put(laravel_paused(connection, queue), TRUE, seconds)


def pause_all(store: Store, seconds: float | None = None) -> None:
    """All queues of all connections."""
    store.put(PAUSED_ALL, TRUE, seconds)


def laravel_resume(store: Store, connection: str, queue: str) -> bool:
    """Whether it was paused by itself; the pause of all queues is another one."""
    return store.take(laravel_paused(connection, queue)) is not None


def resume_all(store: Store) -> bool:
    return store.take(PAUSED_ALL) is not None


def laravel_down(store: Store) -> bool:
    """Whether `php artisan down` is on, where it is kept in the cache."""
    return truthy(store.get(DOWN)[0])


def down_file(path: str) -> tuple[bool, str]:
    """Whether the file that `php artisan down` makes exists, and why nobody knows, "" when that is known."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return False, "" if os.path.isdir(os.path.dirname(path)) else "its folder does not exist"
    except (OSError, ValueError) as error:
        return False, str(getattr(error, "strerror", None) or error)
    return True, ""


def truthy(value: bytes | None) -> bool:
    return value is not None and value not in (b"b:0;", b"0", b"")


def all_paused(store: Store) -> bool:
    return store.get(PAUSED_ALL)[0] is not None
