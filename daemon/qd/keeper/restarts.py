"""Restarts that somebody has asked for, by a stamp of ours or by Laravel's key: told to the master, each once."""

from __future__ import annotations

from qd.keeper.laravel import LaravelKeys
from qd.log import Log
from qd.process import talk
from qd.process.hands import Hands
from qd.process.scoreboard import H, now
from qd.store.stamps import Restart

OURS = 5.0  # seconds after a stamp that names no value in which one change of Laravel's key counts as written with it


class Restarts:
    """Moments are of the clock of the server where the stamp stands."""

    def __init__(self, hands: Hands, laravel: LaravelKeys | None, log: Log) -> None:
        self.hands, self.laravel, self.log = hands, laravel, log
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
        imported = self.hands.board.header(H.FORKED_AT)
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
                self.hands.voice.tell(talk.Restart(rolling=asked.rolling, at=at))
        if self._laravel_asks:
            self._laravel_asks = False
            if asked is None or not self._wrote(asked, server_now):
                self.hands.voice.tell(talk.Restart(rolling=False))

    def _wrote(self, asked: Restart, server_now: float) -> bool:
        """Whether the `qd restart` that left this stamp wrote what Laravel's key holds now. Then the stamp is enough."""
        if asked.laravel is not None:
            return self.laravel is not None and self.laravel.restart == b"%d" % asked.laravel
        if asked == self._matched or abs(server_now - asked.at) > OURS:
            return False
        self._matched = asked
        return True
