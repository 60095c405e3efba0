"""User code in the scheduler: what raises or hangs is told, and the scheduler goes on."""

from __future__ import annotations

import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from qd.process.shield import shield
from qd.scheduler.entry_job import Guard, UserCodeFailed


def hang() -> None:
    while True:
        try:
            time.sleep(60)
        except Exception:
            continue


def test_what_it_returns_is_handed_on():
    assert Guard().run(lambda: 7) == 7


@pytest.mark.parametrize("body", [lambda: 1 / 0, sys.exit, lambda: signal.raise_signal(signal.SIGINT)])
def test_whatever_it_raises_is_told(body):
    with pytest.raises(
        UserCodeFailed, match=r"raised (ZeroDivisionError: division by zero|SystemExit|KeyboardInterrupt)"
    ):
        Guard().run(body)


def test_what_hangs_is_ended_and_no_timer_is_left():
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(UserCodeFailed, match=r"took longer than 0.05 s"):
        Guard(0.05).run(hang)
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    assert signal.getsignal(signal.SIGALRM) == before


def test_a_call_to_a_server_is_not_torn_apart():
    done = []

    def sends() -> None:
        with shield:
            until = time.monotonic() + 10
            while shield.overdue is None and time.monotonic() < until:
                pass  # the alarm has come: on a busy host later than it was asked for
            done.append("whole")
        done.append("after")

    with pytest.raises(UserCodeFailed, match="took longer"):
        Guard(0.02).run(sends)
    assert done == ["whole"]


def test_in_another_thread_it_is_called_as_it_is():
    with ThreadPoolExecutor() as pool:
        assert pool.submit(Guard(0.01).run, lambda: 7).result() == 7
