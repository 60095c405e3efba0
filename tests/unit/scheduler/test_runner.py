"""Running schedule entries: user code that raises or hangs, and the shared page between a run and its scheduler."""

from __future__ import annotations

import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from qd.process.shield import shield
from qd.scheduler.entry_job import Guard, UserCodeFailed
from qd.scheduler.runner import HEAD, SIZE, Outcome, RunRecord, Stage


def hang() -> None:
    while True:
        try:
            time.sleep(60)
        except Exception:
            continue


def test_the_result_of_user_code_is_returned():
    assert Guard().run(lambda: 7) == 7


@pytest.mark.parametrize("body", [lambda: 1 / 0, sys.exit, lambda: signal.raise_signal(signal.SIGINT)])
def test_any_error_of_user_code_is_reported(body):
    with pytest.raises(
        UserCodeFailed, match=r"raised (ZeroDivisionError: division by zero|SystemExit|KeyboardInterrupt)"
    ):
        Guard().run(body)


def test_user_code_that_hangs_is_interrupted_and_no_timer_is_left():
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(UserCodeFailed, match=r"took longer than 0.05 s"):
        Guard(0.05).run(hang)
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    assert signal.getsignal(signal.SIGALRM) == before


def test_user_code_that_catches_the_first_interruption_is_interrupted_again():
    caught = []

    def stubborn() -> None:
        try:
            time.sleep(60)
        except BaseException as error:
            caught.append(type(error).__name__)
        time.sleep(60)

    with pytest.raises(UserCodeFailed, match="took longer"):
        Guard(0.05).run(stubborn)
    assert caught == ["TooLong"]
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_a_call_to_a_server_is_not_interrupted():
    done = []

    def sends() -> None:
        with shield:
            signal.raise_signal(signal.SIGALRM)  # as the timer of the guard does
            done.append("whole")
        done.append("after")

    with pytest.raises(UserCodeFailed, match="took longer"):
        Guard(60).run(sends)
    assert done == ["whole"]


def test_in_another_thread_user_code_is_called_directly():
    with ThreadPoolExecutor() as pool:
        assert pool.submit(Guard(0.01).run, lambda: 7).result() == 7


@pytest.fixture
def record() -> RunRecord:
    return RunRecord()


def test_the_record_of_a_run_reaches_the_scheduler(record: RunRecord):
    assert (record.stage, record.outcome) == (Stage.BEFORE, None)
    record.enter(Stage.BODY)
    assert time.monotonic_ns() - record.since < 60e9
    outcome = Outcome(1.5, 3, "exit code 3", "Traceback\n")
    record.settle(outcome)
    assert (record.stage, record.outcome) == (Stage.AFTER, outcome)
    record.enter(Stage.OVER)
    assert (record.stage, record.outcome) == (Stage.OVER, outcome)


def test_invalid_or_long_text_is_stored_as_far_as_possible(record: RunRecord):
    record.settle(Outcome(0.0, None, "caf\udce9", "x" * 2 * SIZE))
    assert record.outcome == Outcome(0.0, None, "caf\\udce9")


@pytest.mark.parametrize(
    "page", [b"\xff" * SIZE, b"\x7f" * SIZE, HEAD.pack(99, 2**62, 5) + b"[[[[[", HEAD.pack(2, 0, 2) + b"{}"]
)
def test_an_overwritten_record_counts_as_empty(record: RunRecord, page: bytes):
    began = time.monotonic_ns()
    record._page[: len(page)] = page
    assert record.stage in Stage
    assert record.outcome is None
    assert record.since <= began
