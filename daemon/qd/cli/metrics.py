"""`qd metrics`: the totals of all hosts, once, in the text format of Prometheus (version 0.0.4) or as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import click

from qd.cli import context, output

if TYPE_CHECKING:
    from qd.store.statistics import Name, Numbers

OUTCOMES = ("done", "failed", "released", "timed_out", "crashed", "cancelled", "lease_lost", "handed_back")
QUANTILES = {"p50_s": 0.5, "p95_s": 0.95, "p99_s": 0.99}
ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@click.command("metrics")
@context.options
def command() -> None:
    """Print what became of jobs and their times, for Prometheus.

    The counters of all hosts since statistics are kept, up to 10 s old. With -c only those of this connection.
    """
    from qd.store.statistics import totals

    found = context.settings()
    context.given().only_looks = True
    numbers = totals(context.store(found, found.control))
    if context.given().connection:
        places = context.places(found)
        numbers = {name: each for name, each in numbers.items() if name.connection in places}
    if context.given().json:
        output.document({"schema": 1, "jobs": [row(name, numbers[name]) for name in sorted(numbers)]})
        return
    for line in lines(numbers):
        output.say(line)


def row(name: Name, numbers: Numbers) -> dict[str, Any]:
    outcomes = {word: getattr(numbers, word) for word in OUTCOMES}
    running = max(0, numbers.started - sum(outcomes.values()))
    times = {"wait": times_of(numbers.wait, numbers.wait_ms), "run": times_of(numbers.run, numbers.run_ms)}
    return {**name._asdict(), "started": numbers.started, "running": running, "outcomes": outcomes, **times}


def times_of(buckets: Sequence[int], sum_ms: int) -> dict[str, Any]:
    from qd.store.statistics import quantile

    return {
        "count": sum(buckets),
        "sum_s": sum_ms / 1000,
        **{key: quantile(buckets, q) for key, q in QUANTILES.items()},
    }


def lines(numbers: dict[Name, Numbers]) -> Iterator[str]:
    """The text format 0.0.4."""
    labels = {
        name: ",".join(f'{key}="{value.translate(ESCAPES)}"' for key, value in name._asdict().items())
        for name in numbers
    }
    yield from head("qd_jobs_started_total", "counter", "Attempts that were started.")
    for name in sorted(numbers):
        yield f"qd_jobs_started_total{{{labels[name]}}} {numbers[name].started}"
    yield from head("qd_jobs_total", "counter", "Attempts that have ended, by outcome.")
    for name in sorted(numbers):
        for word in OUTCOMES:
            yield f'qd_jobs_total{{{labels[name]},outcome="{word}"}} {getattr(numbers[name], word)}'
    yield from histogram(
        "qd_job_wait_seconds",
        "From the creation of a job to its first start, in whole seconds.",
        {labels[name]: (numbers[name].wait, numbers[name].wait_ms) for name in sorted(numbers)},
    )
    yield from histogram(
        "qd_job_run_seconds",
        "How long attempts ran.",
        {labels[name]: (numbers[name].run, numbers[name].run_ms) for name in sorted(numbers)},
    )


def histogram(metric: str, text: str, rows: dict[str, tuple[Sequence[int], int]]) -> Iterator[str]:
    """rows: labels -> buckets and sum in ms."""
    from qd.store.statistics import BOUNDS

    bounds = [*(f"{bound:.10g}" for bound in BOUNDS), "+Inf"]
    yield from head(metric, "histogram", text)
    for labels, (buckets, sum_ms) in rows.items():
        for bound, count in zip(bounds, accumulate(buckets), strict=True):
            yield f'{metric}_bucket{{{labels},le="{bound}"}} {count}'
        yield f"{metric}_sum{{{labels}}} {sum_ms / 1000:.10g}"
        yield f"{metric}_count{{{labels}}} {sum(buckets)}"


def head(metric: str, kind: str, text: str) -> tuple[str, str]:
    return f"# HELP {metric} {text}", f"# TYPE {metric} {kind}"
