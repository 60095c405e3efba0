"""Which restarts the keeper reports to its master: stamps of `qd restart`, and changes of Laravel's key by others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from qd.keeper.controls import LaravelKeys, Restarts
from qd.log import Log
from qd.process import channels
from qd.process.scoreboard import now
from qd.store.controls import Restart, read_restart
from tests.support.fakes import settings

BOOTED = 1_795_267_100.0  # the server's clock when the code was imported
ASKED = BOOTED + 10.25
VALUE = b"1795267110"  # Laravel's key: its cache writes an integer
NEWER = b"1795267111"


class Keeper:
    """A keeper that reads Laravel's key and the stamp; `sent`: what it reported to the master."""

    def __init__(self, imported: float = BOOTED) -> None:
        self.sent: list[str] = []
        self.key: bytes | None = None
        self.at, self._first = max(ASKED, imported), True
        sender = SimpleNamespace(send=lambda message: self.sent.append(self.word(message)))
        forked = now() - int((self.at - imported) * 1e9)
        context = SimpleNamespace(board=SimpleNamespace(header=lambda _: forked), sender=sender)
        wire = SimpleNamespace(call=lambda command, *names: [self.key, *[None] * (len(names) - 1)])
        log = Log("keeper", write=lambda _: None)
        keys = LaravelKeys(cast(Any, wire), "cache:", settings(), cast(Any, None), log)
        self._restarts = Restarts(cast(Any, context), keys, log)

    def word(self, message: channels.Restart) -> str:
        gone = "the key of queue:restart is gone (cache cleared, or Redis came back empty)"
        assert message.by == ("qd restart" if message.at else gone if self.key is None else "queue:restart of Laravel")
        return "rolling" if message.rolling else "restart"

    def beat(self, stamp: str, key: bytes | None) -> list[str]:
        """One beat. Returns what the master has been sent so far."""
        self.key = key
        self._restarts.look()
        self._restarts.obey(read_restart(stamp.encode()), self.at, self._first)
        self._first = False
        self.at += 1
        return self.sent


def stamp(value: bytes, way: str = "") -> str:
    return f"{ASKED:.6f}_{value.decode()}{way}"


def test_the_value_written_by_qd_restart_is_not_a_laravel_restart():
    keeper = Keeper()
    assert keeper.beat("", b"1795260000") == []
    assert keeper.beat(stamp(VALUE, " rolling"), VALUE) == ["rolling"]
    assert keeper.beat(stamp(VALUE, " rolling"), VALUE) == ["rolling"]
    assert keeper.beat(stamp(VALUE, " rolling"), NEWER) == ["rolling", "restart"]
    assert keeper.beat(stamp(VALUE, " rolling"), None) == ["rolling", "restart", "restart"]  # cache:clear


def test_a_queue_restart_in_the_same_beat_as_a_rolling_restart_counts():
    keeper = Keeper()
    assert keeper.beat("", b"1795260000") == []
    assert keeper.beat(stamp(VALUE, " rolling"), NEWER) == ["rolling", "restart"]


@pytest.mark.parametrize("value", [VALUE, b"0"])
def test_a_master_that_starts_after_the_qd_restart_obeys_the_next_queue_restart(value: bytes):
    """b"0": `qd restart` ran without [laravel] in its configuration."""
    keeper = Keeper(imported=ASKED + 0.1)
    assert keeper.beat(stamp(value, " rolling"), VALUE) == []
    assert keeper.beat(stamp(value, " rolling"), NEWER) == ["restart"]


def test_a_master_that_starts_between_the_two_writes_does_not_restart_twice():
    keeper = Keeper(imported=ASKED + 0.1)
    assert keeper.beat(stamp(VALUE), b"1795260000") == []
    assert keeper.beat(stamp(VALUE), VALUE) == []
    assert keeper.beat(stamp(VALUE), NEWER) == ["restart"]


def test_a_stamp_contains_laravels_value():
    assert read_restart(stamp(VALUE).encode()) == Restart(ASKED, laravel=int(VALUE))
