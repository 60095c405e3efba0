"""The report of a soak test, as a Markdown page."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.support import tally
from tests.support.soak import WORKERS, Seat, Soak

ROOT = Path(__file__).resolve().parents[2]


def page(soak: Soak, seed: int) -> str:
    parts = [head(soak, seed), faults(soak), jobs(soak), doubles(soak), processes(soak), redis(soak), log(soak)]
    return "\n".join(parts)


def head(soak: Soak, seed: int) -> str:
    versions = ", ".join(f"the {seat.name} one {version(seat)}" for seat in soak.seats)
    where = f"Python {platform.python_version()}, {len(os.sched_getaffinity(0))} CPUs"
    return (
        "# A long run under every fault\n\n"
        f"Written by `make soak` on {time.strftime('%Y-%m-%d')}: {soak.seconds / 60:.0f} minutes, seed {seed}, {where}. "
        f"Two masters with {WORKERS} workers each on one queue ({versions}), two producers with 15 jobs a second each, "
        "`retry_after` 10 s, Redis with its append-only file synced at every write. In the second half the new master is "
        "not killed any more, so that its growth can be seen.\n"
    )


def version(seat: Seat) -> str:
    folder = Path(seat.path).parent if seat.path else ROOT
    asked = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--exclude=*"]
    said = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return f"{said or 'of no known revision'}" + ("" if seat.path or seat.name == "new" else ", the same code")


def table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "".join(f"| {' | '.join(str(cell) for cell in line)} |\n" for line in lines)


def faults(soak: Soak) -> str:
    return "## What was done\n\n" + table(["fault", "times"], sorted(soak.done.items()))


def jobs(soak: Soak) -> str:
    tally = soak.tally
    kinds = Counter(tally.kinds.values())
    finished = Counter(kind for n, kind in tally.kinds.items() if tally.finished(n))
    failed = Counter(kind for n, kind in tally.kinds.items() if tally.failed[n])
    runs = Counter(tally.kinds.get(n, "unsure") for n, each in tally.runs.items() for _ in each)
    rows = [(kind, count, runs[kind], finished[kind], failed[kind]) for kind, count in sorted(kinds.items())]
    sums = ("all", *(sum(counts.values()) for counts in (kinds, runs, finished, failed)))
    return (
        f"## What became of the jobs\n\n{table(['kind', 'taken', 'runs', 'finished', 'failed'], [*rows, sums])}\n"
        f"Lost: **{len(tally.open(Counter()))}**. In two places at once: **{len(tally.overlaps)}**. "
        f"Pushes that were answered by an error, and may have been taken or not: {len(tally.unsure)}, "
        f"of which {sum(n in tally.runs for n in tally.unsure)} ran.\n"
    )


def doubles(soak: Soak) -> str:
    found = sorted(soak.tally.doubles(), key=lambda double: double.at)
    rows = [(d.n, d.kind, f"{d.at - soak.began:.1f} s", d.reason or "**nobody knows**") for d in found]
    return f"## What ran to its end twice\n\n{len(found)} of all jobs.\n\n" + table(
        ["job", "kind", "first end", "why again"], rows
    )


def processes(soak: Soak) -> str:
    names = ["process", "of them", "most memory", "most files", "longest life", "memory an hour", "files an hour"]
    rows = []
    for seat in soak.seats:
        for role, told in tally.by_role(s for s in soak.samples if s["seat"] == seat.name).items():
            hour = [f"{told['rss_hour']:+.2f} MB", f"{told['fds_hour']:+.2f}"] if "rss_hour" in told else ["", ""]
            seen = [f"{told['rss']:.1f} MB", f"{told['fds']:.0f}", f"{told['life']:.0f} s"]
            rows.append([f"{seat.name} {role}", f"{told['processes']:.0f}", *seen, *hour])
    return "## Memory and files\n\n" + table(names, rows)


def redis(soak: Soak) -> str:
    names = sorted({key for _, found in soak.sizes for key in found})
    rows = []
    for key in names:
        counts = [found.get(key, 0) for _, found in soak.sizes]
        half = len(counts) // 2
        rows.append((f"`{key}`", max(counts[:half], default=0), max(counts[half:], default=0), counts[-1]))
    return "## What stood in Redis\n\n" + table(["key", "most, first half", "most, second half", "last"], rows)


READING = """## How to read it

- A `long` job that failed was killed three times: `max_crashes`. `poison` and `fails` are to fail.
- Numbers of jobs count those too whose push Redis, being away, has answered with an error.
- `job.lease_lost`: a killed Redis had not kept an ack, or a late answer changed nothing.
- `lease.expired`: a job waited for its lease; what its dead worker had reserved reached Redis after its keeper had looked.
- `master.reload_refused`: what imported the code anew was killed.
- `worker.never_born`: its template was killed between the order and the birth; another worker was asked for.
- `queues:default:deaths` keeps 1,000 notes at most, and none for longer than a day.
- Growth is reckoned from processes that lived for some minutes; keepers and templates were killed sooner.
"""


def log(soak: Soak) -> str:
    odd = "".join(f"- {line}\n" for line in soak.odd)
    said = (
        "## What the logs said\n\n" + table(["event", "lines"], soak.events.most_common()) + (f"\n{odd}" if odd else "")
    )
    return said + "\n" + READING
