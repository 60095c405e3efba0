"""Laravel's own keys for restart, pause and, where [laravel] wants it, maintenance, obeyed when it names their cache.

The restart key is a foreign clock's whole second: any change since the first look means restart. A queue that Laravel 13
has paused is mirrored into qd's own pause for a few seconds, again and again, so that the reserve script sees it. The
cache may be another server than the queue's: that it is away harms nothing.

Restarts that somebody has asked for, by a stamp of ours or by Laravel's key: told to the master, each once.

Maintenance mode as this host sees it: the note of `qd down`, and Laravel's own where [laravel] says so. The workers
read it on the scoreboard, `qd status` in the report.

Laravel's holds every queue: it knows no --allow.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from qd.drivers.base import KeeperConnector
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import Keyspace
from qd.drivers.redis.driver import opened
from qd.errors import ConnectionLost, QdError, ServerRefused
from qd.log import Log
from qd.master.code import ChildContext
from qd.process import channels, scoreboard
from qd.process.scoreboard import H, Scoreboard, now
from qd.store.controls import DOWN, Down, Restart, down_file, read_down, truthy

if TYPE_CHECKING:
    from qd.config.settings import Settings


RESTART = "illuminate:queue:restart"
ALL_PAUSED = "illuminate:queues:paused"
PAUSED = "illuminate:queue:paused:{connection}:{queue}"
MIRROR = 4000  # ms a mirrored pause lives; refreshed each second
AGAIN = 10.0  # seconds until a cache that was away is tried again: the beat must not wait for it each time
UNSEEN = object()


class LaravelKeys:
    def __init__(self, wire: Keyspace, prefix: str, settings: Settings, queue: KeeperConnector, log: Log) -> None:
        self.wire, self.queue, self.queues, self.log = wire, queue, settings.work.queues, log
        connection = settings.work.connection
        names = [RESTART, DOWN, ALL_PAUSED, *(PAUSED.format(connection=connection, queue=q) for q in self.queues)]
        self._names = [prefix + name for name in names]
        self.restart: object = UNSEEN  # the restart key at the last look: bytes, None: it is not there
        self._obeys_down = settings.laravel is not None and settings.laravel.down
        self.down = ""  # the key while it says so; what it said last while the cache is away
        self._unseen = "Laravel's restart and pause keys" + (", and its maintenance mode" if self._obeys_down else "")
        self._away_until: float | None = None

    @classmethod
    def of(cls, settings: Settings, queue: KeeperConnector, log: Log) -> LaravelKeys | None:
        laravel = settings.laravel
        if laravel is None or not laravel.cache_url:
            return None
        wire = opened(laravel.cache_url, name="qd:laravel", patience=1.0)
        return cls(wire, laravel.cache_prefix, settings, queue, log)

    def restart_changed(self) -> bool:
        """Look once at all keys; mirror the pauses. True: the restart key is not what it was at the last look."""
        if self._away_until is not None and time.monotonic() < self._away_until:
            return False
        try:
            stamp, down, all_paused, *paused = self.wire.call("MGET", *self._names)
        except (ConnectionLost, ServerRefused) as error:
            return self._lost(error)
        self._back()
        self.down = DOWN if self._obeys_down and truthy(down) else ""
        for queue, value in zip(self.queues, paused, strict=True):
            if truthy(value) or truthy(all_paused):
                self._mirror(queue)
        changed = self.restart is not UNSEEN and stamp != self.restart
        self.restart = stamp
        return changed

    def _lost(self, error: QdError) -> bool:
        if self._away_until is None:
            self.log.warning("laravel.away", error=str(error), unseen=self._unseen)
        self._away_until = time.monotonic() + AGAIN
        return False

    def _back(self) -> None:
        if self._away_until is not None:
            self._away_until = None
            self.log.info("laravel.back")

    def _mirror(self, queue: str) -> None:
        """qd's own pause, unless somebody has paused it with qd: his word and reason stay."""
        space, prefix = self.queue.kept
        name = prefix + keys.paused(queue)
        note = json.dumps({"by": "Laravel", "reason": "queue:pause", "at": None, "until": None})
        fresh = space.call("SET", name, note, "NX", "PX", MIRROR)
        if not fresh and b'"by": "Laravel"' in (space.call("GET", name) or b""):
            space.call("PEXPIRE", name, MIRROR)


OURS = 5.0  # seconds after a stamp that names no value in which one change of Laravel's key counts as written with it


class Restarts:
    """Moments are of the clock of the server where the stamp stands."""

    def __init__(self, context: ChildContext, laravel: LaravelKeys | None, log: Log) -> None:
        self.context, self.laravel, self.log = context, laravel, log
        self.forked = 0.0  # when the serving code was imported; 0: no beat has shown that clock yet
        self._import = 0  # which import that was, as the board tells it
        self._told: Restart | None = None
        self._laravel_asks = False
        # The stamp of a former release that one change of Laravel's key was attributed to.
        self._matched: Restart | None = None

    def look(self) -> None:
        """Check Laravel's key. Before the stamp is read: `qd restart` leaves the stamp first, so a value that it wrote never
        comes without the stamp."""
        if self.laravel is not None and self.laravel.restart_changed():
            self._laravel_asks = True

    def clock(self, server_now: float) -> None:
        """It is this late there: when the code was imported is reckoned once for each import."""
        imported = self.context.board.header(H.FORKED_AT)
        if self._import != imported:
            self._import, self.forked = imported, server_now - (now() - imported) / 1e9

    def obey(self, asked: Restart | None, server_now: float, first: bool) -> None:
        """first: this keeper's first look. A stamp of a clock ahead of this one stood there before it, and would restart
        every new master until this clock has passed it."""
        self.clock(server_now)
        if first:
            self._matched = asked  # its change of the key came right after it, before this look
        if asked is not None and asked != self._told:
            self._told = asked
            if first and asked.at > server_now:
                way = "not obeyed: a clock ahead of this server's has written it; `qd restart` writes a new one"
                self.log.warning("restart.ahead", seconds=asked.at - server_now, reason=way)
            elif asked.at > self.forked:
                at = now() - int((server_now - asked.at) * 1e9)
                self.context.sender.send(channels.Restart(rolling=asked.rolling, at=at))
        if self._laravel_asks:
            self._laravel_asks = False
            if asked is None or not self._wrote(asked, server_now):
                self.context.sender.send(channels.Restart(rolling=False))

    def _wrote(self, asked: Restart, server_now: float) -> bool:
        """Whether the `qd restart` that left this stamp wrote what Laravel's key holds now. Then the stamp is enough."""
        if asked.laravel is not None:
            return self.laravel is not None and self.laravel.restart == b"%d" % asked.laravel
        if asked == self._matched or abs(server_now - asked.at) > OURS:
            return False
        self._matched = asked
        return True


class DownFile:
    """The file that `php artisan down` makes: that it exists counts. Of a folder that nobody may read it is said once."""

    def __init__(self, path: str, log: Log) -> None:
        self.path, self.log = path, log
        self._told = ""

    def exists(self) -> bool:
        found, why = down_file(self.path)
        if why and why != self._told:
            self.log.warning(
                "laravel.down_file", path=self.path, error=why, way="not obeyed until it can be looked for"
            )
        self._told = why
        return found


class Maintenance:
    def __init__(self, settings: Settings, laravel: LaravelKeys | None, board: Scoreboard, log: Log) -> None:
        path = settings.laravel.down_file if settings.laravel else ""
        self.board, self.laravel = board, laravel
        self.file = DownFile(path, log) if path else None
        self._raw, self._note = "", Down()
        self._down, self._allow = False, tuple[str, ...]()

    def tell(self, raw: str | None) -> str:
        """raw: the note of `qd down`, "" for none, None if it was not read yet: then what the keeper before has told holds.
        Returns which of Laravel's holds this host, "" for none."""
        if raw is None and self.board.header(H.DOWN):
            self._down = True
            return self._laravels()
        if raw is None:
            raw = ""
        if raw != self._raw:
            self._raw, self._note = raw, read_down(raw.encode("utf-8", "replace"))
        theirs = self._laravels()
        self._down = bool(raw or theirs)
        self._allow = () if theirs or not raw else self._note.allow[: scoreboard.MAX_OPEN_QUEUES]
        scoreboard.set_open_queues(self.board, self._down, self._allow)
        return theirs

    def holds(self, queue: str) -> bool:
        """Whether nothing is taken from this queue, by the last `tell`."""
        return self._down and queue not in self._allow

    def _laravels(self) -> str:
        if self.file is not None and self.file.exists():
            return self.file.path
        return self.laravel.down if self.laravel is not None else ""
