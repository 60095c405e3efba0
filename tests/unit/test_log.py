"""A line of the log says when it was written."""

from __future__ import annotations

import json
import time

import pytest

from qd.log import as_json, as_text

AT = 1_763_800_000


@pytest.fixture(autouse=True)
def four_hours_east(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TZ", "<+04>-4")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_each_line_has_its_own_moment():
    lines = [as_text(AT + more, "info", "worker", "job.done", {}) for more in (0.001, 0.5, 0.999, 1, 61.25, 0.5)]
    assert [line[:23] for line in lines] == [
        "2025-11-22 12:26:40.001",
        "2025-11-22 12:26:40.500",
        "2025-11-22 12:26:40.999",
        "2025-11-22 12:26:41.000",
        "2025-11-22 12:27:41.250",
        "2025-11-22 12:26:40.500",
    ]


def test_for_programs_it_is_utc():
    lines = [json.loads(as_json(AT + more, "info", "worker", "job.done", {})) for more in (0.5, 1, 0.25)]
    assert [line["time"] for line in lines] == [
        "2025-11-22T08:26:40.500Z",
        "2025-11-22T08:26:41.000Z",
        "2025-11-22T08:26:40.250Z",
    ]
