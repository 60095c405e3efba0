"""A job writes over the memory that all processes of a program share: row 37."""

from __future__ import annotations

import pytest

from tests.support.clock import eventually
from tests.support.ledger import JOBS, Ledger
from tests.support.project import MakeProject, Project, Start
from tests.support.reliability import Figures

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.leaves("queues:*:deaths")]

SCRIBBLES = (
    JOBS
    + """
import random
from qd.process.scoreboard import SLOT_BYTES, SLOTS

def board():
    "Where the shared memory stands: the one anonymous mapping of that size."
    size = -(-(SLOTS + 1) * SLOT_BYTES // 4096) * 4096
    for line in open("/proc/self/maps"):
        first, last = (int(word, 16) for word in line.split()[0].split("-"))
        if "/dev/zero" in line and last - first == size:
            return first, size

def noise(draw, kind, size):
    if kind == "bytes":
        return draw.randbytes(size)
    if kind == "ones":
        return b"\\xff" * size
    if kind == "zeros":
        return bytes(size)
    return b"".join(draw.randrange(9).to_bytes(8, "little") for _ in range(size // 8))

@app.job("scribble", tries=5)
def scribble(n: int, seed: int, kind: str) -> None:
    mark("S", n)
    draw = random.Random(seed)
    at, size = board()
    if seed % 2:  # a part of it, else all
        offset = draw.randrange(0, 4096, 8)
        at, size = at + offset, draw.randrange(8, 4096, 8)
    ctypes.memmove(at, noise(draw, kind, size), size)
    mark("E", n)
"""
)
KINDS = ("bytes", "words", "ones", "zeros")


@pytest.fixture
def shop(project: MakeProject) -> Project:
    return project(jobs=SCRIBBLES)


@pytest.mark.fault(
    "37",
    "a job writes noise over the memory that its program's processes share",
    "the master goes on, ends nobody else's job, and has its workers again; no job is lost or doubled",
)
@pytest.mark.parametrize(
    "seeds", [pytest.param(20, id="20 times"), pytest.param(200, id="200 times", marks=pytest.mark.slow)]
)
def test_scribbling_over_shared_memory_harms_no_other_job(
    seeds: int, start: Start, ledger: Ledger, figures: Figures
) -> None:
    work = start("--max-crashes", "1000", workers=3)
    for seed in range(seeds):
        beside = ledger.push(seconds=0.3)
        ledger.wait_start(beside[0])
        ledger.push(job="scribble", seed=seed, kind=KINDS[seed // 2 % len(KINDS)])
        ledger.wait_all(20)
        assert len(ledger.starts(beside[0])) == 1, f"seed {seed}: a neighbour's job was ended"
        if seed % 5 == 4:  # deaths are settled through the same memory
            for worker in work.children("qd: worker"):
                ledger.kill(worker.pid)
            ledger.push(3)
            ledger.wait_all(20)
    eventually(lambda: len(work.children("waiting on")) == 3, 20, what="three workers again")
    work.stop()
    ledger.conserve()
    figures.tell(ledger)
