"""`make bench` compares qd with its peers on one Redis, in turn, and writes bench/RESULTS.md and the charts.

    python bench/run.py [--measures drain,pickup] [--peers qd,laravel] [--rounds 3] [--quick] [--before COMMIT]

A partial run prints its table and leaves RESULTS.md unchanged, unless --write is given. --before adds an earlier qd to the
run, from a worktree of its own.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import charts
import lineup
import report
from lineup import Peer
from measures import MEASURES, QUICK, Sample, Scale
from stage import Stage

from server import Server

RAW = lineup.VENV / "last.json"
Samples = dict[str, dict[str, list[Sample]]]


def main() -> int:
    args = arguments(list(lineup.peers()))
    with checked_out(args.before) as before:
        everyone = lineup.peers(before)
        chosen = args.peers + (["before"] if before else [])
        lineup.install(set(chosen))
        absent = {key: why for key in chosen if (why := everyone[key].absent())}
        peers = [peer for key, peer in everyone.items() if key in chosen and key not in absent]
        for key, why in absent.items():
            log(f"{key} is skipped: {why}")
        with tempfile.TemporaryDirectory(prefix="qd-bench-") as folder, Server(Path(folder)) as server:
            stage = Stage(Path(folder), server)
            facts = describe(server, args)
            samples, broken = measure(stage, peers, args.measures, args.rounds, QUICK if args.quick else Scale())
            facts["load after"] = f"{os.getloadavg()[0]:.2f}"
            facts |= {f"without {key}": why for key, why in absent.items()}
            if broken:
                print_logs(Path(folder))
    text = report.render(facts, samples)
    RAW.parent.mkdir(exist_ok=True)
    RAW.write_text(json.dumps({"facts": facts, "samples": samples}, indent=1))
    print(text)
    if args.write or (whole(args) and not broken):
        page = lineup.BENCH / "RESULTS.md"
        _, head, rest = page.read_text().partition("## The schedule\n")  # made by other programs of this folder
        page.write_text(text + ("\n" if head else "") + head + rest)
        charts.write(facts, samples)
    else:
        log("RESULTS.md is unchanged: this was a partial run, or some measures failed (--write overrides)")
    return 1 if broken else 0


@contextmanager
def checked_out(commit: str | None) -> Iterator[Peer | None]:
    """qd of an earlier commit, in a worktree that exists as long as the run."""
    if commit is None:
        yield None
        return
    git = ["git", "-C", str(lineup.ROOT)]
    name = subprocess.run([*git, "rev-parse", "--short", f"{commit}^{{commit}}"], capture_output=True, text=True)
    if name.returncode:
        sys.exit(f"error: no commit {commit!r} in this repository")
    with tempfile.TemporaryDirectory(prefix="qd-bench-") as folder:
        tree = Path(folder) / "earlier"
        subprocess.run([*git, "worktree", "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            yield lineup.earlier_qd(name.stdout.strip(), tree)
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(tree)], check=True)


def arguments(known: list[str]) -> argparse.Namespace:
    def some(all_of_them: list[str]) -> Any:
        def chosen(text: str) -> list[str]:
            names = text.split(",")
            if unknown := [name for name in names if name not in all_of_them]:
                raise argparse.ArgumentTypeError(f"unknown {', '.join(unknown)} (known: {', '.join(all_of_them)})")
            return names

        return chosen

    parser = argparse.ArgumentParser(prog="bench/run.py", description="compare qd with its peers on this machine")
    parser.add_argument("--measures", type=some(list(MEASURES)), default=list(MEASURES), help=", ".join(MEASURES))
    parser.add_argument("--peers", type=some(known), default=known, help=", ".join(known))
    parser.add_argument("--rounds", type=int, default=3, help="how often each peer is measured (3)")
    parser.add_argument("--quick", action="store_true", help="few jobs and samples: a smoke test, not a measurement")
    parser.add_argument("--before", metavar="COMMIT", help="compare with qd of this commit, too")
    parser.add_argument("--write", action="store_true", help="write RESULTS.md even after a partial run")
    return parser.parse_args()


def whole(args: argparse.Namespace) -> bool:
    """A peer that cannot be installed here is named on the page, and does not make the run a partial one."""
    everyone = list(lineup.peers())
    return args.measures == list(MEASURES) and args.peers == everyone and args.rounds >= 3 and not args.quick


def measure(
    stage: Stage, peers: list[Peer], measures: list[str], rounds: int, scale: Scale
) -> tuple[Samples, list[str]]:
    """Peers take turns inside each measure of each round, so that a drift of the machine affects all of them alike."""
    samples: Samples = {name: {} for name in measures}
    broken = []
    for number in range(1, rounds + 1):
        for name in measures:
            measured = MEASURES[name]
            if measured.once and number > 1:
                continue
            for peer in (peer for peer in peers if name in peer.measures):
                stage.clear()
                began = time.monotonic()
                label = f"{peer.name} {peer.setups[measured.setup].note}".strip()
                try:
                    sample = measured.take(stage, peer, scale)
                except (TimeoutError, RuntimeError) as error:
                    broken.append(f"{name} {label}: {error}")
                    log(f"round {number} {name:9} {label:18} failed: {error}")
                    continue
                samples[name].setdefault(label, []).append(sample)
                shown = " ".join(f"{metric}={value:.4g}" for metric, value in sample.items())
                log(f"round {number} {name:9} {label:18} {time.monotonic() - began:5.1f} s  {shown}")
    return samples, broken


def describe(server: Server, args: argparse.Namespace) -> dict[str, str]:
    """The facts a reader needs to judge the numbers."""
    cpu = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "?")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{os.cpu_count()} CPUs, {cpu.split(':')[-1].strip()}, {memory:.0f} GiB, Linux {platform.release()}",
        "redis": f"{server.version()}, tcp on loopback, nothing on disk",
        **lineup.versions(),
        "rounds": f"{args.rounds}{' (quick: not for comparison)' if args.quick else ''}",
        "load before": f"{os.getloadavg()[0]:.2f}",
    }


def print_logs(folder: Path) -> None:
    for log in sorted(folder.glob("*.log")):
        if tail := log.read_text(errors="replace").splitlines()[-20:]:
            print(f"--- {log.name}", *tail, sep="\n", file=sys.stderr)


def log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
