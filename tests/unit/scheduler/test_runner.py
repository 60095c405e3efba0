"""The page of memory between a run and its scheduler: what is told comes over, what is scribbled harms nobody."""

from __future__ import annotations

import time

import pytest

from qd.scheduler.runner import HEAD, SIZE, Outcome, RunRecord, Stage


@pytest.fixture
def record() -> RunRecord:
    return RunRecord()


def test_what_a_run_tells_comes_over(record: RunRecord):
    assert (record.stage, record.outcome) == (Stage.BEFORE, None)
    record.enter(Stage.BODY)
    assert time.monotonic_ns() - record.since < 60e9
    outcome = Outcome(1.5, 3, "exit code 3", "Traceback\n")
    record.settle(outcome)
    assert (record.stage, record.outcome) == (Stage.AFTER, outcome)
    record.enter(Stage.OVER)
    assert (record.stage, record.outcome) == (Stage.OVER, outcome)


def test_what_is_no_text_and_what_is_too_long_is_told_as_far_as_it_can_be(record: RunRecord):
    record.settle(Outcome(0.0, None, "caf\udce9", "x" * 2 * SIZE))
    assert record.outcome == Outcome(0.0, None, "caf\\udce9")


@pytest.mark.parametrize(
    "page", [b"\xff" * SIZE, b"\x7f" * SIZE, HEAD.pack(99, 2**62, 5) + b"[[[[[", HEAD.pack(2, 0, 2) + b"{}"]
)
def test_what_is_scribbled_over_it_counts_as_not_told(record: RunRecord, page: bytes):
    began = time.monotonic_ns()
    record._page[: len(page)] = page
    assert record.stage in Stage
    assert record.outcome is None
    assert record.since <= began
