"""Laravel's own keys in its cache: how `qd restart`, `pause`, `resume` reach PHP workers, and whether it is down itself.

The store is the cache's Redis, its prefix the cache's (`cache_prefix`). Names and values as Laravel 13 keeps them
(Illuminate/Queue/Worker.php, Queue/QueueManager.php, Cache/KeyspaceStore.php): numbers as plain text, else serialized.
"""

from __future__ import annotations

import os

from qd.store.base import Store

RESTART = "illuminate:queue:restart"
DOWN = "illuminate:foundation:down"  # 9 and later, with the cache as the driver of maintenance mode
PAUSED_ALL = "illuminate:queues:paused"
TRUE = b"b:1;"


def paused(connection: str, queue: str) -> str:
    return f"illuminate:queue:paused:{connection}:{queue}"


def next_restart(store: Store) -> int:
    """The value for `restart` to write: whole seconds, never the value that is there, because workers look for a change
    only."""
    before, now = store.get(RESTART)[0], int(store.now())
    if before is not None and before.isdigit() and len(before) < 12:
        now = max(now, int(before) + 1)
    return now


def restart(store: Store, value: int) -> None:
    """Every PHP worker leaves after the job in hand."""
    store.put(RESTART, b"%d" % value)


def pause(store: Store, connection: str, queue: str, seconds: float | None = None) -> None:
    """Laravel 13 and later skip the queue; older releases know no pause."""
    store.put(paused(connection, queue), TRUE, seconds)


def pause_all(store: Store, seconds: float | None = None) -> None:
    """All queues of all connections."""
    store.put(PAUSED_ALL, TRUE, seconds)


def resume(store: Store, connection: str, queue: str) -> bool:
    """Whether it was paused by itself; the pause of all queues is another one."""
    return store.take(paused(connection, queue)) is not None


def resume_all(store: Store) -> bool:
    return store.take(PAUSED_ALL) is not None


def down(store: Store) -> bool:
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
