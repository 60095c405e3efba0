"""What a reload may change while jobs of the old configuration run: one keeper renews all their leases."""

from __future__ import annotations

import json

import pytest

from qd.log import Log
from qd.master import keeper_process
from qd.master.keeper_process import place_of
from qd.options.drivers import WITH_KEYSPACE
from qd.process.scoreboard import H, Scoreboard

URLS = {"redis": "redis://a/0", "database": "sqlite:////a", "beanstalkd": "beanstalkd://a", "sqs": "sqs://eu-west-1"}


def settings(driver: str, *, control: str = "redis://c/0", name: str = "work") -> str:
    same = {"prefix": "", "table": "jobs", "retry_after": 5.0}
    return json.dumps(
        {
            "control": "control",
            "work": {"connection": name},
            "connections": {
                name: {"name": name, "driver": driver, "url": URLS[driver], **same},
                "control": {"name": "control", "driver": "redis", "url": control, **same},
            },
        }
    )


@pytest.mark.parametrize("driver", URLS)
def test_leases_move_with_the_control_connection_if_they_are_stored_there(driver: str) -> None:
    moved = place_of(settings(driver)) != place_of(settings(driver, control="redis://d/0"))
    assert moved == (driver not in WITH_KEYSPACE)


@pytest.mark.parametrize("driver", URLS)
def test_renaming_a_connection_moves_leases_stored_on_the_control_connection(driver: str) -> None:
    moved = place_of(settings(driver)) != place_of(settings(driver, name="renamed"))
    assert moved == (driver not in WITH_KEYSPACE)


def test_a_starting_keeper_has_more_time_before_it_counts_as_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    killed, board, seconds = list[int](), Scoreboard(), 1
    monkeypatch.setattr(keeper_process, "now", lambda: seconds * 10**9)
    monkeypatch.setattr(keeper_process, "kill_group", killed.append)
    watched = keeper_process.KeeperProcess(board, Log("master", write=lambda line: None))
    watched.settings = settings("database")

    def until(second: int) -> list[int]:
        nonlocal seconds
        while seconds < second:
            watched.watch(lambda *_: 77, set())
            seconds += 1
        return killed

    assert until(15) == []  # its driver is being loaded
    board.set_header(H.KEEPER_ALIVE, 15 * 10**9)
    assert until(18) == []
    assert until(22) == [77]
    watched.died(9, expected=True)
