"""Draws the results as SVG: docs/images/*.svg. `python bench/charts.py [FILE] [FOLDER]` draws the last run again.

A chart has horizontal bars, the best one first, ours in color. It has no background, and its colors follow the light or dark
mode of the reader.
"""

import json
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from lineup import ROOT
from report import Samples, column_of, medians

FOLDER = ROOT / "docs" / "images"
WIDTH, LEFT, RIGHT = 760, 210, 140  # of the picture; left and right of the bars
TOP, ROW, BAR = 92, 30, 18
STYLE = """\
text { font-family: -apple-system, "Segoe UI", "Noto Sans", Helvetica, Arial, sans-serif; fill: #1f2328; font-size: 13px }
.title { font-size: 17px; font-weight: 600 }
.quiet { fill: #656d76; font-size: 12px }
.ours { font-weight: 600 }
.axis { stroke: #d1d9e0 }
.a { fill: #afb8c1 } .b { fill: #d5dbe1 }
.a.ours { fill: #0969da } .b.ours { fill: #80b8f5 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .quiet { fill: #8d96a0 }
  .axis { stroke: #3d444d }
  .a { fill: #59636e } .b { fill: #3a424b }
  .a.ours { fill: #4493f8 } .b.ours { fill: #245ea8 }
}"""


class Bar(NamedTuple):
    """parts: lengths of its one or two pieces. shown: the text at its end. note: in small print behind the name."""

    name: str
    parts: Sequence[float]
    shown: str
    note: str = ""


class Chart(NamedTuple):
    """legend: what the two pieces of a bar are; empty if there is one."""

    title: str
    subtitle: str
    bars: list[Bar]
    legend: tuple[str, ...] = ()


def drawn(chart: Chart) -> str:
    """The SVG of a chart."""
    longest = max(sum(bar.parts) for bar in chart.bars)
    scale = (WIDTH - LEFT - RIGHT) / longest
    top = TOP if chart.legend else TOP - 24
    height = top + ROW * len(chart.bars) + 12
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
        f' role="img" aria-label="{escape(chart.title)}">',
        f"<style>\n{STYLE}\n</style>",
        f'<text class="title" x="12" y="26">{escape(chart.title)}</text>',
        f'<text class="quiet" x="12" y="47">{escape(chart.subtitle)}</text>',
    ]
    x = LEFT
    for kind, words in zip("ab", chart.legend, strict=False):
        lines.append(f'<rect class="{kind} ours" x="{x}" y="64" width="12" height="12" rx="2"/>')
        lines.append(f'<text class="quiet" x="{x + 18}" y="74">{escape(words)}</text>')
        x += 40 + round(6.4 * len(words))
    for number, bar in enumerate(chart.bars):
        lines += _row(bar, top + ROW * number, scale)
    bottom = top + ROW * len(chart.bars)
    lines.append(f'<line class="axis" x1="{LEFT}" y1="{top - 4}" x2="{LEFT}" y2="{bottom}"/>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def _row(bar: Bar, y: int, scale: float) -> list[str]:
    ours = " ours" if bar.name.startswith("qd") else ""
    base = y + 14
    note = f'<tspan class="quiet" dx="6">{escape(bar.note)}</tspan>' if bar.note else ""
    name = f'<tspan class="{ours.strip()}">{escape(bar.name)}</tspan>{note}'
    lines = [f'<text x="{LEFT - 10}" y="{base}" text-anchor="end">{name}</text>']
    x = float(LEFT)
    for kind, part in zip("ab", bar.parts, strict=False):
        width = max(1.0, part * scale)
        lines.append(f'<rect class="{kind}{ours}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}"/>')
        x += width
    lines.append(f'<text class="{ours.strip()}" x="{x + 8:.1f}" y="{base}">{escape(bar.shown)}</text>')
    return lines


# --- the charts

NOTES = {"Sidekiq": "at most once", "celery": "acks before it runs"}
FAR = 30  # times as good as a peer: it is named, not drawn, so that the others can be compared


def charts(facts: dict[str, str], samples: Samples) -> dict[str, Chart]:
    """File name -> chart, of those for which there are samples."""
    when = f"{facts['date'].split()[0]}, {facts['machine'].split(',')[0]}, commit {facts['qd']}"
    found = {
        "drain.svg": Chart(
            "No-op jobs per second, one worker process, one job at a time",
            f"Higher is better. {when}.",
            _bars(samples, ["drain"], "{:,.0f}", more_is_better=True),
        ),
        "cost.svg": Chart(
            "CPU time per no-op job, in microseconds",
            f"Lower is better. {when}.",
            _bars(samples, ["worker_us", "server_us"], "{:,.0f} + {:,.0f}"),
            ("worker", "Redis"),
        ),
        "memory.svg": Chart(
            "Memory of one and of eight workers, in MB",
            f"PSS of all processes, idle after some jobs. Lower is better. {when}.",
            _bars(samples, ["pss_1", "pss_8"], "{:,.0f} / {:,.0f} MB", stacked=False),
            ("1 worker", "7 more"),
        ),
        "concurrency.svg": Chart(
            "No-op coroutines per second, one process",
            f"100 at a time, BullMQ 50. Higher is better. {when}.",
            _bars(samples, ["io"], "{:,.0f}", more_is_better=True),
        ),
        "sleep.svg": Chart(
            "1,000 jobs that await one second, in one process: memory",
            f"PSS of all processes; in brackets the time until all have ended. {when}.",
            _bars(samples, ["sleep_pss", "sleep"], "{:,.0f} MB ({:.2f} s)", drawn_parts=1),
        ),
    }
    return {name: _without_outliers(chart) for name, chart in found.items() if chart.bars}


def _without_outliers(chart: Chart) -> Chart:
    """Without bars so long, or so short, that the others could not be compared. The subtitle names them."""
    lengths = [sum(bar.parts) for bar in chart.bars]  # the best one first
    near = [max(length, lengths[0]) <= FAR * min(length, lengths[0]) for length in lengths]
    left_out = [f"{bar.name} {bar.shown}" for bar, shown in zip(chart.bars, near, strict=True) if not shown]
    bars = [bar for bar, shown in zip(chart.bars, near, strict=True) if shown]
    return chart._replace(bars=bars, subtitle=" ".join([chart.subtitle, *_omitted(left_out)]))


def _omitted(names: list[str]) -> list[str]:
    return [f"Not drawn: {', '.join(names)}."] if names else []


def _bars(
    samples: Samples,
    metrics: list[str],
    form: str,
    *,
    more_is_better: bool = False,
    stacked: bool = True,
    drawn_parts: int = 2,
) -> list[Bar]:
    """A bar of each row that has all metrics. stacked: the second one is added to the first; else it includes it."""
    figures = [medians(samples, column_of(metric)) for metric in metrics]
    rows = [row for row in figures[0] if all(row in found for found in figures) and not _earlier(row)]
    bars = []
    for row in rows:
        values = [found[row] for found in figures]
        parts = values if stacked else [values[0], *(max(0.0, value - values[0]) for value in values[1:])]
        bars.append(Bar(_name(row), parts[:drawn_parts], form.format(*values), NOTES.get(row, "")))
    return sorted(bars, key=lambda bar: sum(bar.parts), reverse=more_is_better)


def _earlier(row: str) -> bool:
    """Whether it is an earlier commit of qd, which a run may include."""
    return row.startswith("qd ") and not row.startswith(("qd auto", "qd prefetch", "qd concurrency"))


def _name(row: str) -> str:
    """Without what its setup says, which the chart says for all; but qd auto and qd prefetch=1 are two."""
    return row if row.startswith(("qd auto", "qd prefetch")) else row.split()[0]


def write(facts: dict[str, str], samples: Samples, folder: Path = FOLDER) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, chart in charts(facts, samples).items():
        paths.append(folder / name)
        paths[-1].write_text(drawn(chart))
    return paths


if __name__ == "__main__":
    last = json.loads(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / ".venv-bench" / "last.json").read_text())
    for path in write(last["facts"], last["samples"], Path(sys.argv[2]) if len(sys.argv) > 2 else FOLDER):
        print(path)
