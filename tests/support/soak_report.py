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
        f"{soak.seconds / 60:.0f} minutes with all faults at once. Written by `make soak` on {time.strftime('%Y-%m-%d')}: "
        f"seed {seed}, {where}. Two masters with {WORKERS} workers each serve one queue ({versions}). Two producers "
        "dispatch 15 jobs a second each. `retry_after` is 10 s; Redis syncs its append-only file at every write. In the "
        "second half, the new master is not killed, to show its growth.\n"
    )


def version(seat: Seat) -> str:
    folder = Path(seat.path).parent if seat.path else ROOT
    asked = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--exclude=*"]
    revision = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return f"{revision or 'of no known revision'}" + ("" if seat.path or seat.name == "new" else ", the same code")


def table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "".join(f"| {' | '.join(str(cell) for cell in line)} |\n" for line in lines)


def faults(soak: Soak) -> str:
    return "## Faults\n\n" + table(["fault", "times"], sorted(soak.done.items()))


def jobs(soak: Soak) -> str:
    tally = soak.tally
    kinds = Counter(tally.kinds.values())
    finished = Counter(kind for n, kind in tally.kinds.items() if tally.finished(n))
    failed = Counter(kind for n, kind in tally.kinds.items() if tally.failed[n])
    runs = Counter(tally.kinds.get(n, "unsure") for n, each in tally.runs.items() for _ in each)
    rows = [(kind, count, runs[kind], finished[kind], failed[kind]) for kind, count in sorted(kinds.items())]
    sums = ("all", *(sum(counts.values()) for counts in (kinds, runs, finished, failed)))
    return (
        f"## Results of the jobs\n\n{table(['kind', 'accepted', 'runs', 'finished', 'failed'], [*rows, sums])}\n"
        f"Lost: **{len(tally.open(Counter()))}**. In two places at once: **{len(tally.overlaps)}**. "
        f"Pushes that raised an error, and may or may not have been accepted: {len(tally.unsure)}, "
        f"of which {sum(n in tally.runs for n in tally.unsure)} ran.\n"
    )


def doubles(soak: Soak) -> str:
    found = sorted(soak.tally.doubles(), key=lambda double: double.at)
    rows = [(d.n, d.kind, f"{d.at - soak.began:.1f} s", d.reason or "**unknown**") for d in found]
    return f"## Jobs that finished twice\n\n{len(found)} of all jobs.\n\n" + table(
        ["job", "kind", "first end", "why again"], rows
    )


def processes(soak: Soak) -> str:
    names = ["process", "count", "maximum memory", "maximum files", "longest life", "memory per hour", "files per hour"]
    rows = []
    for seat in soak.seats:
        for role, figures in tally.by_role(s for s in soak.samples if s["seat"] == seat.name).items():
            hour = (
                [f"{figures['rss_hour']:+.2f} MB", f"{figures['fds_hour']:+.2f}"] if "rss_hour" in figures else ["", ""]
            )
            seen = [f"{figures['rss']:.1f} MB", f"{figures['fds']:.0f}", f"{figures['life']:.0f} s"]
            rows.append([f"{seat.name} {role}", f"{figures['processes']:.0f}", *seen, *hour])
    return "## Memory and files\n\n" + table(names, rows)


def redis(soak: Soak) -> str:
    names = sorted({key for _, found in soak.sizes for key in found})
    rows = []
    for key in names:
        counts = [found.get(key, 0) for _, found in soak.sizes]
        half = len(counts) // 2
        rows.append((f"`{key}`", max(counts[:half], default=0), max(counts[half:], default=0), counts[-1]))
    return "## Data in Redis\n\n" + table(["key", "maximum, first half", "maximum, second half", "last"], rows)


READING = """## How to read it

- A `long` job that failed was killed three times: `max_crashes`. `poison` and `fails` must fail.
- The numbers include jobs whose push raised an error because Redis was down.
- `job.lease_lost`: a killed Redis lost an ack, or a late ack had no effect.
- `lease.expired`: a job waited for its lease, because its dead worker's reserve call came after the keeper's check.
- `master.reload_refused`: the process that imported the new code was killed.
- `worker.never_born`: its template was killed between the order and the birth; the master ordered another worker.
- `queues:default:deaths` keeps at most 1,000 notes, for at most a day.
- Growth is computed from processes that lived for some minutes; keepers and templates were killed sooner.
"""


def log(soak: Soak) -> str:
    odd = "".join(f"- {line}\n" for line in soak.odd)
    section = "## Log events\n\n" + table(["event", "lines"], soak.events.most_common()) + (f"\n{odd}" if odd else "")
    return section + "\n" + READING
