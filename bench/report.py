"""Renders samples as the page RESULTS.md. No I/O: `python bench/report.py` renders the last run again."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

Sample = dict[str, float]
Samples = dict[str, dict[str, list[Sample]]]
US = ("qd auto", "qd", "qd concurrency=100", "qd concurrency=500", "qd concurrency=1000")
"""Names of our own column: ratios refer to the first that a table has."""
RIGHT = "--:"


@dataclass(frozen=True)
class Column:
    """One metric of one measure: its title, format and which direction is better."""

    measure: str
    metric: str
    title: str
    form: str
    more_is_better: bool = False


@dataclass(frozen=True)
class Table:
    """A table of the page: a peer in each row."""

    title: str
    columns: list[Column]
    note: str = ""


TABLES = [
    Table(
        "Drain: no-op jobs, one job at a time",
        [
            Column("drain", "drain", "drain, 1 worker, jobs/s", "{:,.0f}", True),
            Column("two", "two", "drain, 2 workers, jobs/s", "{:,.0f}", True),
            Column("drain", "worker_us", "worker CPU per job, µs", "{:,.0f}"),
            Column("drain", "server_us", "Redis CPU per job, µs", "{:,.1f}"),
            Column("drain", "round_trip_us", "a round trip to Redis (PING) before that drain, µs", "{:,.1f}"),
            Column("commands", "wire", "commands per job on the wire", "{:.1f}"),
            Column("commands", "commands", "including those inside scripts", "{:.1f}"),
        ],
        "Sidekiq and celery acknowledge a job before it runs: a killed worker loses it. qd, Laravel, BullMQ run it again.",
    ),
    Table(
        "Fair shares: what prefetching costs others",
        [
            Column("naps", "naps", "10 ms jobs, 2 workers, jobs/s", "{:,.1f}", True),
            Column("naps", "naps_unfair", "longest idle time while the other starts 2 jobs, ms", "{:.1f}"),
            Column("urgent", "urgent_p50", "high priority beside a drain of 1 ms jobs, p50, ms", "{:.2f}"),
            Column("urgent", "urgent_p99", "p99, ms", "{:.2f}"),
        ],
    ),
    Table(
        "Many jobs at once in one process",
        [
            Column("io", "io", "no-op coroutines, jobs/s", "{:,.0f}", True),
            Column("io", "io_worker_us", "worker CPU per job, µs", "{:,.0f}"),
            Column("io", "io_server_us", "Redis CPU per job, µs", "{:,.1f}"),
        ],
    ),
    Table(
        "1,000 jobs that await one second, in one process",
        [
            Column("sleep", "sleep", "all of them, s", "{:.2f}"),
            Column("sleep", "sleep_pss", "memory (PSS of the tree) meanwhile, MB", "{:.1f}"),
        ],
    ),
    Table(
        "Waiting: pickup and delayed jobs",
        [
            Column("pickup", "pickup_p50", "pickup on an idle queue, p50, ms", "{:.2f}"),
            Column("pickup", "pickup_p99", "p99, ms", "{:.2f}"),
            Column("late", "late_p50", "lateness of a delayed job, p50, ms", "{:.1f}"),
            Column("late", "late_p99", "p99, ms", "{:.1f}"),
            Column("late", "early", "started too early, %", "{:.0f}"),
        ],
    ),
    Table(
        "Enqueue, one producer",
        [
            Column("enqueue", "enqueue", "one call per job, jobs/s", "{:,.0f}", True),
            Column("enqueue", "enqueue_bulk", "enqueue in bulk, jobs/s", "{:,.0f}", True),
            Column("enqueue", "enqueue_gather", "awaited in a gather, jobs/s", "{:,.0f}", True),
        ],
    ),
    Table(
        "Idle, memory and start",
        [
            Column("idle", "idle_wire", "idle: commands per second, all processes", "{:.2f}"),
            Column("idle", "idle_wire_max", "of the busiest process", "{:.2f}"),
            Column("idle", "idle_cpu", "idle: CPU of the whole tree, %", "{:.3f}"),
            Column("memory", "pss_1", "memory (PSS of the tree), 1 worker, MB", "{:.1f}"),
            Column("memory", "pss_8", "memory (PSS of the tree), 8 workers, MB", "{:.1f}"),
            Column("start", "start", "cold start to the first job, s", "{:.3f}"),
        ],
    ),
    Table(
        "A worker with many jobs dies",
        [
            Column("kill", "kill", "kill -9 of the worker with 500 jobs: all wait again after, s", "{:.2f}"),
            Column("kill", "kill_lost", "lost", "{:.0f}"),
            Column("kill", "kill_spent", "with an attempt spent", "{:.0f}"),
            Column("kill_tree", "tree", "kill -9 of all processes: all wait again after the new start, s", "{:.2f}"),
            Column("kill_tree", "tree_lost", "lost", "{:.0f}"),
            Column("kill_tree", "tree_spent", "with an attempt spent", "{:.0f}"),
            Column("blocked", "blocked", "one of 100 jobs blocks the loop, timeout 2 s: settled after, s", "{:.2f}"),
            Column("blocked", "blocked_lost", "others lost", "{:.0f}"),
            Column("blocked", "blocked_spent", "others with an attempt spent", "{:.0f}"),
        ],
    ),
]

TITLES = {
    "pickup_p99": "pickup on an idle queue, p99, ms",
    "late_p99": "lateness of a delayed job, p99, ms",
    "urgent_p99": "high priority beside a drain of 1 ms jobs, p99, ms",
    "io": "no-op coroutines, many at once, jobs/s",
    "sleep": "1,000 x await sleep(1), s",
    "sleep_pss": "memory meanwhile, MB",
    "enqueue": "enqueue, one call per job, jobs/s",
    "enqueue_gather": "adispatch in a gather, jobs/s",
    "idle_wire_max": "idle: commands per second of the busiest process",
    "kill_lost": "lost by that kill",
    "kill_spent": "with an attempt spent by that kill",
    "tree_lost": "lost by that kill of all processes",
    "tree_spent": "with an attempt spent by that kill of all processes",
    "blocked_spent": "others of the 100 with an attempt spent",
}
"""Of metrics whose title in the table is too short for the table of goals."""


@dataclass(frozen=True)
class Goal:
    """What `ours` must reach: `at_most` or at least `bound`, times the figure of `peer` if one is named. `peer` and `ours`
    match a row by its begin; US stands for the default."""

    metric: str
    bound: float
    peer: str | None = None
    ours: str | None = None
    at_most: bool = True

    def words(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.bound:,g}{f' x {self.peer}' if self.peer else ''}"


EARLIER = "qd 3172d90"
GOALS = [
    Goal("drain", 1.0, "Sidekiq", "qd prefetch=1", at_most=False),
    Goal("drain", 1.7, "Sidekiq", at_most=False),
    Goal("drain", 3.2, "Laravel", at_most=False),
    Goal("two", 2, "Sidekiq", at_most=False),
    Goal("server_us", 12),
    Goal("worker_us", 40),
    Goal("server_us", 0.7, EARLIER, "qd prefetch=1"),
    Goal("worker_us", 60, ours="qd prefetch=1"),
    Goal("naps", 0.98, "qd prefetch=1", "qd auto", at_most=False),
    Goal("naps_unfair", 10, ours="qd auto"),
    Goal("urgent_p99", 12),
    Goal("io", 1, "BullMQ", "qd concurrency", at_most=False),
    Goal("sleep", 1.3, ours="qd concurrency"),
    Goal("sleep_pss", 90, ours="qd concurrency"),
    Goal("pickup_p50", 0.9),
    Goal("pickup_p99", 1.5),
    Goal("pickup_p50", 0.9, ours="qd concurrency"),
    Goal("pickup_p99", 1.5, ours="qd concurrency"),
    Goal("late_p50", 3),
    Goal("late_p99", 10),
    Goal("enqueue", 1, "Laravel", at_most=False),
    Goal("enqueue_bulk", 180_000, at_most=False),
    Goal("enqueue_gather", 15_000, at_most=False),
    Goal("kill", 1, ours="qd concurrency"),
    Goal("kill_lost", 0, ours="qd concurrency"),
    Goal("kill_spent", 0, ours="qd concurrency"),
    Goal("tree", 1, ours="qd concurrency"),
    Goal("tree_lost", 0, ours="qd concurrency"),
    Goal("tree_spent", 0, ours="qd concurrency"),
    Goal("blocked", 2.6, ours="qd concurrency"),
    Goal("blocked_spent", 0, ours="qd concurrency"),
    Goal("idle_wire_max", 1),
    Goal("idle_cpu", 0.3),
    Goal("pss_1", 55),
    Goal("pss_8", 85),
    Goal("start", 0.4),
]

HEAD = """\
# Results

Made by `make bench`; README.md in this folder explains each figure. Each cell is the median of the rounds; in brackets
behind a peer's number is qd's number (the first row) divided by it. **Compare the ratios**: the same machine may be twice
as fast an hour later, but this run measured all peers in turn. ↑ more is better, ↓ less is better.
"""


def render(facts: dict[str, str], samples: Samples) -> str:
    """The whole page, without rows and columns that have no sample."""
    parts = [HEAD, _table(["", ""], [[name, value] for name, value in facts.items()])]
    shown = [table for table in TABLES if _rows(table, samples)]
    parts += [f"## {table.title}\n\n{_compared(table, samples)}" for table in shown]
    if any(label.startswith("qd") for label in _labels(samples)):
        parts.append("## Goals\n\n" + _goals(samples))
    parts += ["## Idle, by process\n\n" + _idle(samples)] if samples.get("idle") else []
    parts.append("## Every round\n")
    parts += [f"{table.title}\n\n{_each(table, samples)}" for table in shown]
    return "\n".join(parts)


def medians(samples: Samples, column: Column) -> dict[str, float]:
    """Row -> the median of its rounds."""
    return {label: median(values) for label, values in _values(samples, column).items()}


def column_of(metric: str) -> Column:
    return next(column for table in TABLES for column in table.columns if column.metric == metric)


def _labels(samples: Samples) -> list[str]:
    return [label for measured in samples.values() for label in measured]


def _values(samples: Samples, column: Column) -> dict[str, list[float]]:
    measured = samples.get(column.measure, {})
    found = {label: [s[column.metric] for s in taken if column.metric in s] for label, taken in measured.items()}
    return {label: values for label, values in found.items() if values}


def _columns(table: Table, samples: Samples) -> list[Column]:
    return [column for column in table.columns if _values(samples, column)]


def _rows(table: Table, samples: Samples) -> list[str]:
    """Ours first, then the others in the order of the run."""
    found = list(dict.fromkeys(label for column in table.columns for label in _values(samples, column)))
    return sorted(found, key=lambda label: not label.startswith("qd"))


def _compared(table: Table, samples: Samples) -> str:
    columns, rows = _columns(table, samples), _rows(table, samples)
    ours = next((name for name in US if name in rows), None)
    lines = [[f"**{row}**" if row == ours else row, *(_cell(samples, c, row, ours) for c in columns)] for row in rows]
    head = ["", *(f"{column.title} {'↑' if column.more_is_better else '↓'}" for column in columns)]
    return _table(head, lines) + (f"\n{table.note}\n" if table.note else "")


def _cell(samples: Samples, column: Column, row: str, ours: str | None) -> str:
    found = medians(samples, column)
    if row not in found:
        return "-"
    shown = column.form.format(found[row])
    if row == ours:
        return f"**{shown}**"
    return f"{shown} ({_ratio(found[ours] / found[row])})" if ours in found and found[row] > 0 else shown


def _ratio(ratio: float) -> str:
    size = abs(ratio)
    return f"{ratio:.{0 if size >= 10 else 1 if size >= 2 else 2 if size >= 0.1 else 4}f} x"


def _goals(samples: Samples) -> str:
    lines = []
    for goal in GOALS:
        column = column_of(goal.metric)
        found = medians(samples, column)
        ours = _row(found, goal.ours) if goal.ours else next((name for name in US if name in found), None)
        theirs = _row(found, goal.peer) if goal.peer else ours
        if ours is None or theirs is None:
            continue
        reached = found[ours] / found[theirs] if goal.peer else found[ours]
        met = reached <= goal.bound if goal.at_most else reached >= goal.bound
        shown = _ratio(reached) if goal.peer else column.form.format(reached)
        lines.append([TITLES.get(goal.metric, column.title), ours, goal.words(), shown, "yes" if met else "**no**"])
    return _table(["", "of", "goal", "reached", "met"], lines)


def _row(found: dict[str, float], begin: str) -> str | None:
    return next((label for label in found if label.startswith(begin)), None)


def _idle(samples: Samples) -> str:
    lines = []
    for peer, taken in samples["idle"].items():
        for name, rate in (taken[-1] if taken else {}).items():
            if name.startswith("wire:"):
                lines.append([peer, f"`{name.removeprefix('wire:')}`", f"{rate:.2f}"])
    return _table(["", "process, by its connection's name", "commands/s"], lines)


def _each(table: Table, samples: Samples) -> str:
    columns = _columns(table, samples)
    lines = [
        [row, *(" · ".join(c.form.format(value) for value in _values(samples, c).get(row, [])) for c in columns)]
        for row in _rows(table, samples)
    ]
    return _table(["", *(column.title for column in columns)], lines)


def _table(head: list[str], lines: list[list[str]]) -> str:
    rule = ["---", *[RIGHT for _ in head[1:]]]
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, rule, *lines]) + "\n"


if __name__ == "__main__":
    last = json.loads(Path(sys.argv[1] if len(sys.argv) > 1 else ".venv-bench/last.json").read_text())
    print(render(last["facts"], last["samples"]))
