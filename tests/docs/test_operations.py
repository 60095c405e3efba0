"""The pages on operation name lines of the shipped files, deadlines and log events that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from qd.options.tables import WorkOptions

ROOT = Path(__file__).resolve().parents[2]
HOW_TO = ROOT / "docs" / "how-to"
DEADLINE = re.compile(r"(?:stopwaitsecs|TimeoutStopSec|stop_grace_period|terminationGracePeriodSeconds)(?:=|: )(\d+)")


def first_column(page: str, title: str) -> list[str]:
    """The first cell of each row in all tables whose first column has this title."""
    text = (HOW_TO / page).read_text()
    tables = re.findall(rf"^\| {title} \|.*\n\| ---.*\n((?:\|.*\n)+)", text, re.MULTILINE)
    return [row.split(" | ")[0].removeprefix("| ") for table in tables for row in table.splitlines()]


@pytest.mark.parametrize(("page", "file"), [("deploy-supervisord.md", "qd.conf"), ("deploy-systemd.md", "qd@.service")])
def test_the_shipped_file_has_each_line_that_matters(page: str, file: str) -> None:
    shipped = (ROOT / "supervisor" / file).read_text()
    lines = [line for cell in first_column(page, "line") for line in re.findall("`(.*?)`", cell)]
    assert len(lines) > 5
    assert [line for line in lines if line not in shipped] == []


def test_every_deadline_is_the_stop_timeout_and_10_seconds() -> None:
    found = [
        (page.name, int(seconds))
        for page in HOW_TO.glob("*.md")
        for seconds in DEADLINE.findall(page.read_text())
        if page.name != "deploy-supervisord.md" or seconds != "10"  # supervisord's own default
    ]
    assert len(found) > 3
    assert {seconds for _, seconds in found} == {int(WorkOptions().stop_timeout) + 10}, found


def test_each_log_event_in_the_table_of_restart_loops_is_in_the_reference() -> None:
    named = set(re.findall("`.*?`", (ROOT / "docs" / "reference" / "log-events.md").read_text()))
    events = {
        event for cell in first_column("restart-loops.md", "log line") for event in re.findall(r"`(\w+\.\w+)`", cell)
    }
    assert len(events) > 10
    of_each_child = {event: "CHILD." + event.partition(".")[2] for event in events}
    assert [event for event, name in of_each_child.items() if not {f"`{event}`", f"`{name}`"} & named] == []
