"""Maintenance mode as this host sees it: the note of `qd down`, and Laravel's own where [laravel] says so. The workers
read it on the scoreboard, `qd status` in the report.

Laravel's holds every queue: it knows no --allow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qd.log import Log
from qd.process import allowed
from qd.process.scoreboard import H, Scoreboard
from qd.store.laravel import down_file
from qd.store.stamps import Down, read_down

if TYPE_CHECKING:
    from qd.config import Settings
    from qd.keeper.laravel import LaravelKeys


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
        self._allow = () if theirs or not raw else self._note.allow[: allowed.MOST]
        allowed.tell(self.board, self._down, self._allow)
        return theirs

    def holds(self, queue: str) -> bool:
        """Whether nothing is taken from this queue, by the last `tell`."""
        return self._down and queue not in self._allow

    def _laravels(self) -> str:
        if self.file is not None and self.file.exists():
            return self.file.path
        return self.laravel.down if self.laravel is not None else ""
