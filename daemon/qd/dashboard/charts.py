"""Charts as SVG text, without scripts and style attributes: colors and fonts come from classes of style.css."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

from qd.cli.output import duration

Values = Sequence[float | None]
WIDE, HIGH = 400, 170  # the chart's own units
LEFT, RIGHT, TOP, BOTTOM = 54, 64, 18, 20  # around the plot
NEAR = 40  # units between two marks with texts of their own


class Line(NamedTuple):
    """kind: a class of style.css, s1 to s6 or fail."""

    name: str
    values: Values
    kind: str


class Mark(NamedTuple):
    """Something that happened at `at` (unix seconds). kind: deploy or pause."""

    at: float
    text: str
    kind: str
    title: str


def sparkline(values: Values, kind: str = "s1", *, bars: bool = False) -> Markup:
    """A small line, or bars, without axes; the value beside it says what it is."""
    known = [value for value in values if value is not None]
    top, step, drawn = max([1e-9, *known]), 120 / max(1, len(values) - 1), ""
    tops = [(n * step, 22 * value / top) for n, value in enumerate(values) if value is not None]
    if bars:
        wide = max(1.0, step * 0.7)
        drawn = "".join(
            f'<rect x="{x:.1f}" y="{24 - y:.1f}" width="{wide:.1f}" height="{y:.1f}"/>' for x, y in tops if y
        )
    elif tops:
        drawn = f'<polyline points="{" ".join(f"{x:.1f},{23 - y:.1f}" for x, y in tops)}"/>'
    head = f'<svg class="spark {kind}" viewBox="0 0 120 24" preserveAspectRatio="none" aria-hidden="true">'
    return Markup(f"{head}{drawn}</svg>")


def chart(
    title: str,
    times: Sequence[float],
    lines: Sequence[Line],
    marks: Sequence[Mark] = (),
    *,
    log: bool = False,
    unit: str = "",
    high: int = HIGH,
) -> Markup:
    """Lines over time with axes. times: unix seconds, one per value. log: the logarithm of values. unit: s, or none."""
    known = [value for line in lines for value in line.values if value is not None and (value > 0 or not log)]
    low, most = bounds(known, log)

    def x(at: float) -> float:
        span = max(1.0, times[-1] - times[0]) if times else 1.0
        return LEFT + (WIDE - LEFT - RIGHT) * (at - (times[0] if times else 0)) / span

    def y(value: float) -> float:
        part = math.log(max(value, low) / low) / math.log(most / low) if log else value / most
        return TOP + (high - TOP - BOTTOM) * (1 - min(1.0, part))

    parts = [f'<svg class="chart" viewBox="0 0 {WIDE} {high}" role="img"><title>{escape(title)}</title>']
    for value in ticks(low, most, log):
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDE - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>')
        parts.append(
            f'<text class="axis end" x="{LEFT - 6}" y="{y(value) + 4:.1f}">{escape(shown(value, unit))}</text>'
        )
    for at in hours(times):
        clock = time.strftime("%H:%M", time.gmtime(at))  # live.js shows it in the zone of the viewer
        parts.append(f'<text class="axis mid" x="{x(at):.1f}" y="{high - 5}" data-at="{at}">{clock}</text>')
    groups = list[list[Mark]]()  # marks that are too close for a text each share one
    for mark in marks:
        if times and times[0] <= mark.at <= times[-1] + 60:
            if groups and x(min(mark.at, times[-1])) - x(min(groups[-1][0].at, times[-1])) < NEAR:
                groups[-1].append(mark)
            else:
                groups.append([mark])
    for group in groups:
        first, place = group[0], f"{x(min(group[0].at, times[-1])):.1f}"
        text = first.text if len(group) == 1 else f"{len(group)} events"
        kind, title = first.kind if len(group) == 1 else "", "; ".join(mark.title for mark in group)
        parts.append(f'<g class="mark {kind}"><title>{escape(title)}</title>')
        parts.append(f'<line x1="{place}" x2="{place}" y1="{TOP}" y2="{high - BOTTOM}"/>')
        parts.append(f'<text class="axis mid" x="{place}" y="{TOP - 6}">{escape(text)}</text></g>')
    for line, label in zip(lines, labels([last(line.values) for line in lines], y), strict=True):
        values = [None if log and not value else value for value in line.values]  # a logarithm has no zero
        for points in segments(times, values):
            drawn = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in points)
            parts.append(f'<polyline class="line {line.kind}" points="{drawn}"/>')
        if label is not None:
            parts.append(
                f'<text class="label {line.kind}" x="{WIDE - RIGHT + 5}" y="{label + 4:.1f}">{escape(line.name[:10])}</text>'
            )
    return Markup("".join([*parts, "</svg>"]))


def labels(values: Sequence[float | None], y: object) -> list[float | None]:
    """The heights of the labels at the right ends, at least 12 apart."""
    assert callable(y)
    wanted = sorted((y(value), n) for n, value in enumerate(values) if value is not None)
    found, before = dict[int, float](), -math.inf
    for at, n in wanted:
        before = found[n] = max(at, before + 12)
    return [found.get(n) for n in range(len(values))]


def bounds(known: Sequence[float], log: bool) -> tuple[float, float]:
    if log:
        low, high = min(known, default=1.0), max(known, default=10.0)
        return 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high * 1.0001))
    top = max(known, default=0.0)
    step = 10 ** math.floor(math.log10(top)) if top > 0 else 1.0
    return 0.0, max(1.0, math.ceil(top / step) * step)


def ticks(low: float, high: float, log: bool) -> list[float]:
    if not log:
        return [0.0, high / 2, high]
    powers = round(math.log10(high / low))
    return [low * 10**n for n in range(0, powers + 1, max(1, powers // 4))]


def hours(times: Sequence[float]) -> list[float]:
    """Moments for the axis: about four round ones."""
    if len(times) < 2:
        return []
    span = times[-1] - times[0]
    step = next((each for each in (300, 600, 900, 1800, 3600, 7200) if span / each <= 4.5), 14400)
    first = math.ceil(times[0] / step) * step
    return [*range(int(first), int(times[-1]) + 1, step)]


def segments(times: Sequence[float], values: Values) -> list[list[tuple[float, float]]]:
    """The points of a line, cut where there is no value."""
    found, current = list[list[tuple[float, float]]](), list[tuple[float, float]]()
    for at, value in zip(times, values, strict=True):
        if value is None:
            found, current = [*found, current], []
        else:
            current.append((at, value))
    return [each for each in (*found, current) if each]


def last(values: Values) -> float | None:
    return next((value for value in reversed(values) if value is not None), None)


def shown(value: float, unit: str) -> str:
    if unit == "s" and value >= 60:
        return duration(value)
    steps: tuple[tuple[float, str], ...] = (
        ((1, "s"), (0.001, "ms")) if unit == "s" else ((1e6, "M"), (1000, "k"), (1, ""))
    )
    size, word = next((step for step in steps if value >= step[0]), steps[-1])
    return f"{value / size:.3g}{word if value else ''}"
