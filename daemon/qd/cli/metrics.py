"""`qd metrics`: numbers of all hosts, once, in the text format of Prometheus or as JSON; served by HTTP with --listen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from qd.cli import context, output

if TYPE_CHECKING:
    from qd.store.statistics import Name, Numbers

QUANTILES = {"p50_s": 0.5, "p95_s": 0.95, "p99_s": 0.99}


@click.command("metrics")
@click.option("--listen", metavar="HOST:PORT", help="Serve /metrics, /keda/QUEUE and /healthz until TERM or Ctrl-C.")
@click.option("--keda", metavar="QUEUE", help="Print the JSON for KEDA: how many jobs of QUEUE need a worker now.")
@context.options
def command(listen: str | None, keda: str | None) -> None:
    """Print what became of jobs and their times, for Prometheus.

    The counters of all hosts since statistics are kept, up to 10 s old; queues, workers and servers as they are now. With
    -c only those of this connection.
    """
    from qd.cli import exporter

    if listen is not None and (keda is not None or context.given().json):
        raise click.UsageError("--listen serves both formats: it goes with neither --keda nor --json")
    found = context.settings()
    context.given().only_looks = True
    if listen is not None:
        exporter.serve(found, listen)
    elif keda is not None:
        output.document(exporter.keda(found, keda))
    elif context.given().json:
        numbers = exporter.counted(found)
        output.document({"schema": 1, "jobs": [row(name, numbers[name]) for name in sorted(numbers)]})
    else:
        for line in exporter.read(found)[0]:
            output.say(line)


def row(name: Name, numbers: Numbers) -> dict[str, Any]:
    from qd.cli.exporter import OUTCOMES

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
