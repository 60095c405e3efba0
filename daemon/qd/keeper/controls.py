"""The keeper's side of store/controls.py: restart, pause and maintenance, requested with qd or with Laravel.

LaravelKeys    Laravel's keys in the cache that [laravel] names. The restart key is a time of another clock: any change
               means restart. A queue that Laravel 13 has paused is mirrored into qd's own pause for a few seconds, so
               that the reserve script sees it. The cache may be another server; it does no harm if it is unreachable.
Restarts       reports each restart, requested by qd's stamp or by Laravel's key, to the master once
FleetOrders    pauses, restarts and sizes for a part of the fleet: store/fleet.py
Maintenance    `qd down`, and Laravel's maintenance mode if [laravel] enables it, which shuts every queue (no --allow).
               Workers read it on the scoreboard, `qd status` in the report.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from qd.drivers.base import KeeperConnector
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import Keyspace
from qd.drivers.redis_driver import opened
from qd.errors import ConnectionLost, ServerRefused
from qd.log import Log
from qd.master.code import ChildContext
from qd.process import channels, scoreboard
from qd.process.scoreboard import H, Scoreboard, now
from qd.store.base import fields_of
from qd.store.controls import DOWN, PAUSED_ALL, RESTART, Down, Restart, down_file, laravel_paused, read_down, truthy
from qd.store.fleet import Fleet, Scale, Target, read_fields

if TYPE_CHECKING:
    from qd.config.settings import Settings


MIRROR = 4000  # ms until a mirrored pause expires; refreshed each second
AGAIN = 10.0  # seconds until an unreachable cache is tried again: the beats must not wait for it
UNSEEN = object()
GONE = "the key of queue:restart is gone (cache cleared, or Redis came back empty)"


class LaravelKeys:
    def __init__(self, cache: Keyspace, prefix: str, settings: Settings, queue: KeeperConnector, log: Log) -> None:
        self.cache, self.queue, self.queues, self.log = cache, queue, settings.work.queues, log
        connection = settings.work.connection
        names = [RESTART, DOWN, PAUSED_ALL, *(laravel_paused(connection, queue) for queue in self.queues)]
        self._names = [prefix + name for name in names]
        self.restart: object = UNSEEN  # the restart key when last read: bytes, or None if missing
        self._obeys_down = settings.laravel is not None and settings.laravel.down
        self.down = ""  # the name of the key while Laravel is in maintenance; unchanged while the cache is unreachable
        self._unseen = "Laravel's restart and pause keys" + (", and its maintenance mode" if self._obeys_down else "")
        self._away_until: float | None = None

    @classmethod
    def of(cls, settings: Settings, queue: KeeperConnector, log: Log) -> LaravelKeys | None:
        laravel = settings.laravel
        if laravel is None or not laravel.cache_url:
            return None
        cache = opened(laravel.cache_url, name="qd:laravel", patience=1.0)
        return cls(cache, laravel.cache_prefix, settings, queue, log)

    def restart_changed(self) -> bool:
        """Read all keys once; mirror the pauses. True: the restart key has changed since it was last read."""
        if self._away_until is not None and time.monotonic() < self._away_until:
            return False
        try:
            stamp, down, all_paused, *paused = self.cache.call("MGET", *self._names)
        except (ConnectionLost, ServerRefused) as error:
            if self._away_until is None:
                self.log.warning("laravel.away", error=str(error), unseen=self._unseen)
            self._away_until = time.monotonic() + AGAIN
            return False
        if self._away_until is not None:
            self._away_until = None
            self.log.info("laravel.back")
        self.down = DOWN if self._obeys_down and truthy(down) else ""
        for queue, value in zip(self.queues, paused, strict=True):
            if truthy(value) or truthy(all_paused):
                self._mirror(queue)
        changed = self.restart is not UNSEEN and stamp != self.restart
        self.restart = stamp
        return changed

    def _mirror(self, queue: str) -> None:
        """Set qd's own pause, unless the queue was paused with qd: that note and its reason stay."""
        space, prefix = self.queue.kept
        name = prefix + keys.paused(queue)
        note = json.dumps({"by": "Laravel", "reason": "queue:pause", "at": None, "until": None})
        fresh = space.call("SET", name, note, "NX", "PX", MIRROR)
        if not fresh and b'"by": "Laravel"' in (space.call("GET", name) or b""):
            space.call("PEXPIRE", name, MIRROR)


class Restarts:
    """Times are of the clock of the server that has the stamp."""

    def __init__(self, context: ChildContext, laravel: LaravelKeys | None, log: Log) -> None:
        self.context, self.laravel, self.log = context, laravel, log
        self.forked = 0.0  # when the serving code was imported; 0: that clock is not known yet
        self._import = 0  # H.FORKED_AT of that import
        self._reported: Restart | None = None
        self._laravel_asks = False

    def look(self) -> None:
        """Check Laravel's key, before the stamp is read: `qd restart` writes the stamp first, so if its value is in the
        key, the stamp is there, too."""
        if self.laravel is not None and self.laravel.restart_changed():
            self._laravel_asks = True

    def obey(self, stamp: Restart | None, server_now: float, first: bool) -> None:
        """On a keeper's first beat, ignore a stamp from the future: it was written by a clock that is ahead, and would
        restart every new master until the server's clock has passed it."""
        imported = self.context.board.header(H.FORKED_AT)
        if self._import != imported:
            self._import, self.forked = imported, server_now - (now() - imported) / 1e9
        if stamp is not None and stamp != self._reported:
            self._reported = stamp
            if first and stamp.at > server_now:
                way = "not obeyed: a clock ahead of this server's has written it; `qd restart` writes a new one"
                self.log.warning("restart.ahead", seconds=stamp.at - server_now, reason=way)
            elif stamp.at > self.forked:
                at = now() - int((server_now - stamp.at) * 1e9)
                self.context.sender.send(channels.Restart(rolling=stamp.rolling, at=at))
        if self._laravel_asks:
            self._laravel_asks = False
            # The `qd restart` that wrote the stamp may also have written the value of Laravel's key: the stamp suffices.
            if stamp is None or self.laravel is None or self.laravel.restart != b"%d" % stamp.laravel:
                gone = self.laravel is not None and self.laravel.restart is None
                self.context.sender.send(
                    channels.Restart(rolling=False, by=GONE if gone else "queue:restart of Laravel")
                )


class FleetOrders:
    """Those for this host, its pool and its jobs."""

    def __init__(self, settings: Settings, context: ChildContext) -> None:
        self.context, self.board = context, context.board
        self._pool = settings.work.pool or "default"
        self._places = (Target("host", socket.gethostname()), Target("pool", self._pool))
        self._fleet = Fleet()
        self._scaled: Scale | None = None

    def update(self, flat: Sequence[bytes], server_now: float) -> None:
        """flat: the fields and values of the hash."""
        self._fleet = read_fields(fields_of(flat), server_now)
        self.board.set_header(H.HELD, int(any(place in self._fleet.pauses for place in self._places)))
        scoreboard.set_paused_jobs(self.board, self._fleet.jobs())

    def newest(self, stamp: Restart | None) -> Restart | None:
        """This restart of all masters, or a later one of this host or pool."""
        stamps = [each for place in self._places if (each := self._fleet.restarts.get(place)) is not None]
        return max([*stamps, *([stamp] if stamp is not None else [])], key=lambda each: each.at, default=None)

    def resize(self, forked: float) -> None:
        """Report a new size of the pool to the master, once. forked: when the serving code was imported; an order from
        before that is over."""
        scale = self._fleet.scales.get(self._pool)
        if scale is not None and scale != self._scaled and scale.at > forked:
            self._scaled = scale
            self.context.sender.send(channels.Resize(workers=scale.workers))


class Maintenance:
    def __init__(self, settings: Settings, laravel: LaravelKeys | None, board: Scoreboard, log: Log) -> None:
        path = settings.laravel.down_file if settings.laravel else ""
        self.board, self.laravel, self.log = board, laravel, log
        self.file, self._file_error = path, ""  # the file that `php artisan down` creates
        self._raw, self._note = "", Down()
        self._down, self._allow = False, tuple[str, ...]()

    def update(self, raw: str | None) -> str:
        """raw: the note of `qd down`, "" for none, None if it was not read yet; then the state set by the previous keeper
        stays. Returns the key or file of Laravel's maintenance mode that is in force here, or ""."""
        if raw is None and self.board.header(H.DOWN):
            self._down = True
            return self._laravel_down()
        if raw is None:
            raw = ""
        if raw != self._raw:
            self._raw, self._note = raw, read_down(raw.encode("utf-8", "replace"))
        laravel = self._laravel_down()
        self._down = bool(raw or laravel)
        self._allow = () if laravel or not raw else self._note.allow[: scoreboard.MAX_OPEN_QUEUES]
        scoreboard.set_open_queues(self.board, self._down, self._allow)
        return laravel

    def shuts(self, queue: str) -> bool:
        """Whether no job is taken from this queue since the last `update`."""
        return self._down and queue not in self._allow

    def _laravel_down(self) -> str:
        if self.file:
            found, error = down_file(self.file)  # only its existence counts
            if error and error != self._file_error:
                way = "not obeyed until its folder can be read"
                self.log.warning("laravel.down_file", path=self.file, error=error, way=way)
            self._file_error = error
            if found:
                return self.file
        return self.laravel.down if self.laravel is not None else ""
