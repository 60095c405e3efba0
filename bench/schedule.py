"""Measures the cost of 10,000 schedule entries: `python bench/schedule.py [--entries 10000] [--seconds 60] [--write]`.

Each case runs one real `qd schedule work` on a separate Redis. CPU is that of the scheduler process, from /proc. Lateness
is what its log reports (schedule.sent late=): from the tick until Redis has the job, both by Redis's clock. --write
updates the section in RESULTS.md.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import psutil
from tree import cpu_seconds

from server import Server

PAGE = Path(__file__).parent / "RESULTS.md"
HEAD = "## The schedule\n"
CASES = {
    "none of them due": '"0 3 * * *"',
    "spread over the hour, by the second": 'f"{n % 60} {n // 60 % 60} * * * *"',
    "spread over the minutes of the hour": 'f"{n % 60} * * * *"',
    "all of them once a minute, at one second": '"* * * * *"',
}
JOBS = """
from qd import Qd

app = Qd()


@app.job("report")
def report(number: int) -> None: ...


for n in range({entries}):
    app.schedule(report.bind(n), cron={cron}, name=f"entry {{n}}")
"""
LATE = re.compile(rb"schedule\.sent .* late=([\d.]+)")


def put(head: str, text: str) -> None:
    """Write the section that begins with `head` in place of the old one, or at the end."""
    before, found, after = PAGE.read_text().partition(head)
    _, following, rest = after.partition("\n## ") if found else ("", "", "")
    PAGE.write_text(before.rstrip() + "\n\n" + text + (following + rest if following else ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of each case")
    parser.add_argument("--write", action="store_true", help="update the section in RESULTS.md")
    args = parser.parse_args()
    rows = [row(title, *watched(cron, args.entries, args.seconds)) for title, cron in CASES.items()]
    text = section(rows, args.entries, args.seconds)
    print(text)
    if args.write:
        put(HEAD, text)


def watched(cron: str, entries: int, seconds: float) -> tuple[float, list[float]]:
    """CPU of the scheduler in percent of one core, and the lateness of its jobs in ms, sorted."""
    with tempfile.TemporaryDirectory(prefix="qd-bench-") as name, Server(Path(name)) as server:
        folder, log = Path(name), Path(name) / "log"
        (folder / "jobs.py").write_text(JOBS.format(entries=entries, cron=cron))
        (folder / "qd.toml").write_text('[qd]\napp = "jobs:app"\n')
        env = {**os.environ, "QD_REDIS_URL": server.url, "PYTHONPATH": str(PAGE.parents[1] / "daemon")}
        with log.open("wb") as lines:
            command = [sys.executable, "-m", "qd", "schedule", "work"]
            work = subprocess.Popen(command, cwd=folder, env=env, stdout=lines, stderr=lines)
        try:
            scheduler = found(work.pid, log)
            server_has(server, entries)
            before, seen = cpu_seconds([scheduler]), len(log.read_bytes())
            time.sleep(seconds)
            share = 100 * (cpu_seconds([scheduler]) - before) / seconds
        finally:
            work.terminate()
            work.wait(30)
        return share, sorted(1000 * float(late) for late in LATE.findall(log.read_bytes()[seen:]))


def found(master: int, log: Path) -> psutil.Process:
    for _ in range(300):
        for child in psutil.Process(master).children(recursive=True):
            with suppress(psutil.Error):  # a child that has just ended
                if " ".join(child.cmdline()).startswith("qd: scheduler"):
                    return child
        time.sleep(0.1)
    sys.exit(f"no scheduler started within 30 s: {log.read_text()}")


def server_has(server: Server, entries: int) -> None:
    """Wait until the scheduler has registered all entries and is past its first seconds."""
    for _ in range(300):
        if server.client.call("HLEN", "qd:ticks") == entries:
            time.sleep(2.0)
            return
        time.sleep(0.1)
    sys.exit("the scheduler did not register all entries within 30 s")


def row(title: str, share: float, late: list[float]) -> list[str]:
    if len(late) < 2:
        return [title, f"{share:.2f}", "-", "-", "-", "-"]
    cuts = statistics.quantiles(late, n=100)
    return [title, f"{share:.2f}", f"{len(late):,}", f"{cuts[49]:.0f}", f"{cuts[98]:.0f}", f"{late[-1]:.0f}"]


def section(rows: list[list[str]], entries: int, seconds: float) -> str:
    head = ["", "CPU, % of a core", "jobs sent", "late p50, ms", "late p99, ms", "latest, ms"]
    lines = [head, ["---", *["--:"] * 5], *rows]
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    text = f"Made by `python bench/schedule.py --write` on {when}, load {os.getloadavg()[0]:.2f}: one\n"
    text += f"`qd schedule work`, {entries:,} entries, each of which sends a job; each case ran for {seconds:.0f} s.\n"
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        text += "The machine had other work, with lower priority than this (`chrt -f 10`).\n"
    return f"{HEAD}\n{text}\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


if __name__ == "__main__":
    main()
