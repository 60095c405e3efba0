"""Each log line has a timestamp."""

from __future__ import annotations

import json
import time

import pytest

from qd.log import as_json, as_text, local

AT = 1_763_800_000


@pytest.fixture(autouse=True)
def four_hours_east(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TZ", "<+04>-4")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_each_line_has_its_own_timestamp():
    lines = [as_text(AT + more, "info", "worker", "job.done", {}) for more in (0.001, 0.5, 0.999, 1, 61.25, 0.5)]
    assert [line.partition(" INFO ")[0] for line in lines] == [
        "2025-11-22 12:26:40.001+04:00",
        "2025-11-22 12:26:40.500+04:00",
        "2025-11-22 12:26:40.999+04:00",
        "2025-11-22 12:26:41.000+04:00",
        "2025-11-22 12:27:41.250+04:00",
        "2025-11-22 12:26:40.500+04:00",
    ]


@pytest.mark.parametrize(
    ("zone", "shown"),
    [
        ("UTC0", "08:26:40.000+00:00"),
        ("<+0530>-5:30", "13:56:40.000+05:30"),
        ("<-0330>3:30", "04:56:40.000-03:30"),
        ("CET-1CEST,M3.5.0,M10.5.0/3", "09:26:40.000+01:00"),
    ],
)
def test_the_offset_is_that_of_the_zone_at_that_time(monkeypatch: pytest.MonkeyPatch, zone: str, shown: str):
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    local.cache_clear()  # the offset is cached per second
    assert as_text(AT, "info", "worker", "job.done", {}).startswith(f"2025-11-22 {shown} INFO ")


def test_json_lines_use_utc():
    lines = [json.loads(as_json(AT + more, "info", "worker", "job.done", {})) for more in (0.5, 1, 0.25)]
    assert [line["time"] for line in lines] == [
        "2025-11-22T08:26:40.500Z",
        "2025-11-22T08:26:41.000Z",
        "2025-11-22T08:26:40.250Z",
    ]
