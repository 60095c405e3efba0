"""Renders samples as the page RESULTS.md. No I/O: `python bench/report.py` renders the last run again."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

Sample = dict[str, float]
Samples = dict[str, dict[str, list[Sample]]]
US = "qd"


@dataclass(frozen=True)
class Row:
    """One metric of one measure: its title, format and which direction is better."""

    measure: str
    metric: str
    title: str
    form: str
    more_is_better: bool = False


ROWS = [
    Row("drain", "drain", "drain, one process, one job at a time, jobs/s", "{:,.0f}", True),
    Row("drain", "worker_us", "worker CPU per job, µs", "{:,.0f}"),
    Row("drain", "server_us", "Redis CPU per job, µs", "{:,.0f}"),
    Row("drain", "round_trip_us", "a round trip to Redis (PING) before that drain, µs", "{:,.1f}"),
    Row("commands", "wire", "commands per job on the wire", "{:.1f}"),
    Row("commands", "commands", "commands per job, including those inside scripts", "{:.1f}"),
    Row("enqueue", "enqueue", "enqueue, one producer, one call per job, jobs/s", "{:,.0f}", True),
    Row("enqueue", "enqueue_bulk", "enqueue in bulk, jobs/s", "{:,.0f}", True),
    Row("pickup", "pickup_p50", "pickup on an idle queue, p50, ms", "{:.2f}"),
    Row("pickup", "pickup_p99", "pickup on an idle queue, p99, ms", "{:.2f}"),
    Row("late", "late_p50", "lateness of a delayed job, p50, ms", "{:.1f}"),
    Row("late", "late_p99", "lateness of a delayed job, p99, ms", "{:.1f}"),
    Row("late", "early", "delayed jobs that started too early, %", "{:.0f}"),
    Row("idle", "idle_wire", "idle: commands per second, all processes", "{:.2f}"),
    Row("idle", "idle_wire_max", "idle: commands per second of the busiest process", "{:.2f}"),
    Row("idle", "idle_cpu", "idle: CPU of the whole tree, %", "{:.3f}"),
    Row("memory", "pss_1", "memory (PSS of the tree), 1 worker, MB", "{:.1f}"),
    Row("memory", "pss_8", "memory (PSS of the tree), 8 workers, MB", "{:.1f}"),
    Row("start", "start", "cold start to the first job, s", "{:.3f}"),
]


@dataclass(frozen=True)
class Goal:
    """What qd must reach: `at_most` or at least `bound`, times the peer's number when `peer` is named."""

    metric: str
    bound: float
    peer: str | None = None
    at_most: bool = True

    def words(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.bound:g}{f' x {self.peer}' if self.peer else ''}"


GOALS = [
    Goal("drain", 2, "Laravel", at_most=False),
    Goal("drain", 5, "celery", at_most=False),
    Goal("enqueue", 1, "Laravel", at_most=False),
    Goal("enqueue_bulk", 180_000, at_most=False),
    Goal("pickup_p50", 1),
    Goal("pickup_p99", 3),
    Goal("late_p50", 3),
    Goal("late_p99", 10),
    Goal("idle_wire_max", 1),
    Goal("idle_cpu", 0.3),
    Goal("pss_1", 60),
    Goal("pss_8", 110),
    Goal("start", 0.4),
]

HEAD = """\
# Results

Made by `make bench`; README.md in this folder explains each line. Each cell is the median of the rounds; in brackets
behind a peer's number is qd's number divided by it. **Compare the ratios**: the same machine may be twice as fast an hour
later, but this run measured all peers in turn. ↑ more is better, ↓ less is better.
"""


def render(facts: dict[str, str], samples: Samples) -> str:
    """The whole page, without rows and columns that have no sample."""
    medians = {(row.metric, peer): value for row in ROWS for peer, value in _medians(samples, row).items()}
    peers = list(dict.fromkeys(peer for peer, taken in _columns(samples) if taken))
    parts = [HEAD, _facts(facts), "## Side by side\n\n" + _side_by_side(medians, peers)]
    if US in peers:
        parts.append("## Goals\n\n" + _goals(medians))
    parts += ["## Idle, by process\n\n" + _idle(samples)] if samples.get("idle") else []
    parts.append("## Every round\n\n" + _rounds(samples, peers))
    return "\n".join(parts)


def _columns(samples: Samples) -> list[tuple[str, list[Sample]]]:
    return [column for measured in samples.values() for column in measured.items()]


def _medians(samples: Samples, row: Row) -> dict[str, float]:
    return {peer: median(values) for peer, values in _values(samples, row).items() if values}


def _values(samples: Samples, row: Row) -> dict[str, list[float]]:
    measured = samples.get(row.measure, {})
    return {peer: [s[row.metric] for s in taken if row.metric in s] for peer, taken in measured.items()}


def _facts(facts: dict[str, str]) -> str:
    return _table(["", ""], [[name, value] for name, value in facts.items()])


def _side_by_side(medians: dict[tuple[str, str], float], peers: list[str]) -> str:
    lines = []
    for row in ROWS:
        if not any((row.metric, peer) in medians for peer in peers):
            continue
        arrow = "↑" if row.more_is_better else "↓"
        lines.append([f"{row.title} {arrow}", *(_cell(medians, row, peer) for peer in peers)])
    return _table(["", *peers], lines)


def _cell(medians: dict[tuple[str, str], float], row: Row, peer: str) -> str:
    value, ours = medians.get((row.metric, peer)), medians.get((row.metric, US))
    if value is None:
        return "-"
    shown = row.form.format(value)
    if peer == US:
        return f"**{shown}**"
    return f"{shown} ({_ratio(ours / value)})" if ours is not None and value > 0 else shown


def _ratio(ratio: float) -> str:
    size = abs(ratio)
    return f"{ratio:.{0 if size >= 10 else 1 if size >= 1 else 2 if size >= 0.1 else 4}f} x"


def _goals(medians: dict[tuple[str, str], float]) -> str:
    titles = {row.metric: row for row in ROWS}
    lines = []
    for goal in GOALS:
        ours, theirs = medians.get((goal.metric, US)), medians.get((goal.metric, goal.peer or US))
        if ours is None or theirs is None:
            continue
        reached = ours / theirs if goal.peer else ours
        met = reached <= goal.bound if goal.at_most else reached >= goal.bound
        shown = _ratio(reached) if goal.peer else titles[goal.metric].form.format(reached)
        lines.append([titles[goal.metric].title, goal.words(), shown, "yes" if met else "**no**"])
    return _table(["", "goal", "reached", "met"], lines)


def _idle(samples: Samples) -> str:
    lines = []
    for peer, taken in samples["idle"].items():
        for name, rate in (taken[-1] if taken else {}).items():
            if name.startswith("wire:"):
                lines.append([peer, f"`{name.removeprefix('wire:')}`", f"{rate:.2f}"])
    return _table(["", "process, by its connection's name", "commands/s"], lines)


def _rounds(samples: Samples, peers: list[str]) -> str:
    lines = []
    for row in ROWS:
        values = _values(samples, row)
        if any(values.values()):
            lines.append([row.title, *(" · ".join(row.form.format(v) for v in values.get(p, [])) for p in peers)])
    return _table(["", *peers], lines)


def _table(head: list[str], lines: list[list[str]]) -> str:
    rule = ["---", *["--:" for _ in head[1:]]]
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, rule, *lines]) + "\n"


if __name__ == "__main__":
    last = json.loads(Path(sys.argv[1] if len(sys.argv) > 1 else ".venv-bench/last.json").read_text())
    print(render(last["facts"], last["samples"]))
