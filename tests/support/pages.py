"""The code samples in docs/, and the tables of schedule-clock.md: what entries do when the clock changes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from qd.schedule.timing import Cron, Every, Timing

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"^# (\S+)\.py$", re.MULTILINE)
PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if SAMPLE.search(page.read_text())]


def sample_program(text: str) -> str:
    """The samples of a page as one program, each on its line in the page; all other lines are empty.

    A sample may be a file, headed `# shop/jobs.py`. Imports of it are left out, since its names are in the program.
    """
    lines, at = [""] * text.count("\n"), 0
    modules = [name.replace("/", ".") for sample in SAMPLE.finditer(text) for name in FILE.findall(sample[1])]
    for sample in SAMPLE.finditer(text):
        at = text.count("\n", 0, sample.start(1))
        code = [
            "" if line.startswith(tuple(f"from {name} import" for name in modules)) else line
            for line in sample[1].splitlines()
        ]
        lines[at : at + len(code)] = code
    return "\n".join(lines)


NIGHTS = {
    "Europe/Berlin": ("2026-03-29", "2026-10-25"),
    "America/New_York": ("2026-03-08", "2026-11-01"),
    "Australia/Lord_Howe": ("2026-10-04", "2026-04-05"),
}
ENTRIES = (
    "30 1 * * *",
    "30 2 * * *",
    "15 2 * * *",
    "*/20 2 * * *",
    "0 * * * *",
    "0 */2 * * *",
    "*/15 * * * *",
    "every(minutes=10)",
)
TABLE_HEAD = "| | the clock is put forward, {} | the clock is put back, {} |\n| --- | --- | --- |\n"


def clock_table(zone: str) -> str:
    """The table of one zone: ticks from 1:00 to 3:00; those after the change are bold."""
    nights = NIGHTS[zone]
    rows = [
        f"| `{entry}` | " + " | ".join(", ".join(ticks(entry, zone, night)) or "-" for night in nights) + " |\n"
        for entry in ENTRIES
    ]
    return TABLE_HEAD.format(*nights) + "".join(rows)


def ticks(entry: str, zone: str, night: str) -> Iterator[str]:
    where = ZoneInfo(zone)
    start = datetime.fromisoformat(f"{night}T01:00").replace(tzinfo=where)
    end = datetime.fromisoformat(f"{night}T03:00").replace(tzinfo=where).timestamp()
    timing: Timing = Every(600) if entry.startswith("every") else Cron(entry, zone)
    at = timing.next_after(start.timestamp() - 1)
    while at is not None and at <= end:
        moment = datetime.fromtimestamp(at, where)
        since = moment.utcoffset() != start.utcoffset()
        yield f"**{moment:%H:%M}**" if since else f"{moment:%H:%M}"
        at = timing.next_after(at)


if __name__ == "__main__":
    for name in NIGHTS:
        print(f"### {name}\n\n{clock_table(name)}")
