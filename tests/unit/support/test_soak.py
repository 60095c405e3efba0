"""The judge of the long run sees what is lost, what ran twice and what ran in two places."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.support.tally import Ended, Tally


def tally_of(root: Path, *lines: str, jobs: int = 1) -> Tally:
    """Lines of the ledger: kind, number, pid, seconds; the master is pid 1."""
    (root / "pushed.0").write_text("".join(f"P {n} plain id{n}\n" for n in range(jobs)))
    words = [line.split() for line in lines]
    (root / "ledger").write_text("".join(f"{k} {n} 1 {pid} 1 {int(float(at) * 1e9)}\n" for k, n, pid, at in words))
    found = Tally(root)
    found.read()
    return found


def test_a_job_that_is_nowhere_is_lost(tmp_path: Path):
    found = tally_of(tmp_path, "S 0 50 1.0", "S 1 51 1.0", "E 1 51 1.5", jobs=3)
    assert found.open(Counter({2: 1})) == [0]


def test_a_second_end_needs_a_reason(tmp_path: Path):
    found = tally_of(tmp_path, "S 0 50 1.0", "E 0 50 2.0", "S 0 51 3.0", "E 0 51 4.0")
    assert [double.reason for double in found.doubles()] == [""]
    found.ended.append(Ended(50, 2.1, "kill of its process"))
    assert [double.reason for double in found.doubles()] == ["kill of its process"]


def test_a_kill_in_the_next_job_is_no_reason(tmp_path: Path):
    found = tally_of(tmp_path, "S 0 50 1.0", "E 0 50 2.0", "S 1 50 2.05", "S 0 51 3.0", "E 0 51 4.0", jobs=2)
    found.ended.append(Ended(50, 2.1, "kill of its process"))
    assert [double.reason for double in found.doubles()] == [""]


def test_two_runs_at_one_moment_are_seen(tmp_path: Path):
    found = tally_of(tmp_path, "S 0 50 1.0", "S 0 51 1.5", "E 0 50 2.0", "E 0 51 2.5")
    assert found.overlaps == [0]


def test_what_was_written_since_the_last_look_is_read_and_no_half_of_a_line(tmp_path: Path):
    found = tally_of(tmp_path, "S 0 50 1.0")
    with (tmp_path / "ledger").open("a") as ledger:
        for text in ("E 0 1 50 1 20", "00000000\n"):
            ledger.write(text)
            ledger.flush()
            found.read()
    assert [run.ended for run in found.runs[0]] == [2.0]
