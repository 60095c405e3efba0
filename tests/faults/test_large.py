"""Payloads of many megabytes: row 25. They run, cost their worker a few times their size and the master nothing; a payload
over the limit is stored unread."""

from __future__ import annotations

import hashlib
import json
import time

import psutil
import pytest

from qd.payload.build import make
from tests.support.payloads import failed, push, push_raw
from tests.support.processes import Procs
from tests.support.project import MakeProject
from tests.support.redis import Client
from tests.support.servers.redis import Server
from tests.support.waiting import eventually
from tests.support.witness import JOBS, Witness

MB = 1 << 20
FIRST_JOB = 12 * MB  # memory that a worker needs for its first job of any size
LARGE = (
    JOBS
    + """
import hashlib

@app.job("large", timeout=0)
def large(text: str) -> None:
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    peak = int(status["VmHWM"].split()[0]) * 1024  # before the job makes a copy
    note("large", hashlib.sha256(text.encode()).hexdigest(), peak)
"""
)
ROW = pytest.mark.fault(
    "25",
    "payloads of 1, 16 and 50 MB; one of 30 (or 500) MB over the limit; 10,000 equal ones; names in any script",
    "their worker uses at most three times the payload, the master nothing; payloads that are too large are stored unread",
)


def grown(process: psutil.Process, before: int) -> int:
    return int(process.memory_info().rss) - before


@ROW
@pytest.mark.parametrize("size", [MB, 16 * MB, 50 * MB], ids=lambda size: f"{size // MB} MB")
def test_a_large_payload_runs_in_three_times_its_size(project: MakeProject, size: int) -> None:
    # A separate server, which frees its buffers at the end.
    with Server() as server, Client(str(server.socket), timeout=60) as redis:
        shop = project(jobs=LARGE, url=server.url, config='[worker]\nmemory = "0"\n')
        witness = Witness(shop)
        work = shop.work("-w", "1", QD_MAX_PAYLOAD=str(size + MB))
        (worker,) = ready(work)
        master = psutil.Process(work.pid)
        before, of_master = worker.memory_info().rss, master.memory_info().rss
        text = "a" * size
        push_raw(redis, make("large", json.dumps({"text": text}).encode(), created_at=int(time.time())))
        (line,) = witness.wait("large", seconds=60)
        _, digest, peak = line.split()
        assert digest == hashlib.sha256(text.encode()).hexdigest()
        times = (int(peak) - before - FIRST_JOB) / size
        assert times <= 3, f"a payload of {size // MB} MB took {times:.1f} times its size"
        assert grown(master, of_master) < 4 * MB
        assert all(len(line.encode()) <= 500 for line in work.lines)
        work.stop()


def ready(work: Procs) -> list[psutil.Process]:
    work.wait_line("master.ready")
    return eventually(lambda: work.children("waiting on"), what="an idle worker")


@ROW
@pytest.mark.parametrize(
    "size", [30 * MB, pytest.param(500 * MB, marks=pytest.mark.slow)], ids=lambda size: f"{size // MB} MB"
)
def test_a_payload_over_the_limit_is_stored_unread_and_the_next_jobs_run(project: MakeProject, size: int) -> None:
    with Server() as server, Client(str(server.socket), timeout=60) as redis:
        shop = project(jobs=LARGE, url=server.url)
        witness, work = Witness(shop), shop.work("-w", "1")
        (worker,) = ready(work)
        before = worker.memory_info().rss
        raw = make("large", json.dumps({"text": "a" * size}).encode(), created_at=int(time.time()))
        push_raw(redis, raw)
        push(redis, "quick", count=10)
        witness.wait("quick", 10, seconds=60)
        ((record, kept),) = failed(redis)
        assert kept == raw
        assert "times max_payload" in record["reason"]
        assert not witness.starting("large")
        assert grown(worker, before) < FIRST_JOB
        work.stop()
