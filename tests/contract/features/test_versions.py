"""Versions: a job whose arguments have changed gets the old payloads too, and a payload of newer code waits for it."""

from __future__ import annotations

import json
import time

from qd.payload.build import make
from qd.payload.format import read
from tests.contract.features.conftest import Cell
from tests.contract.kinds import JOBS, Tried, ready
from tests.support.waiting import eventually

FEATURE = "Versions"

SECOND = """
def from_v1(data):
    return {"n": data["n"], "cents": 100 * data["euros"]}

@app.job("priced", version=2, upgrade={1: from_v1}, tries=1)
def priced(n: int, cents: int) -> None:
    note("E", n, current_job().attempt, os.getpid(), cents)
"""
THIRD = SECOND.replace("version=2, upgrade={1: from_v1}", "version=3, upgrade={1: from_v1, 2: from_v2}")
THIRD = THIRD.replace("cents: int", "cents: int, currency: str").replace("cents)", "cents, currency)")
THIRD = 'def from_v2(data):\n    return {**data, "currency": "EUR"}\n' + THIRD


def test_old_payloads_are_upgraded_and_newer_ones_wait_for_new_code(tried: Tried, cell: Cell) -> None:
    assert cell == "works"
    tried.shop.jobs(JOBS + SECOND)
    producer = tried.connect(token="", slot=0)
    for version, data in [(1, {"n": 1, "euros": 7}), (3, {"n": 3, "cents": 5, "currency": "CHF"})]:
        producer.push(
            "default", make("priced", json.dumps(data).encode(), version=version, created_at=int(time.time()))
        )
    tried.command("dispatch", "priced", "n=2", "cents=9")  # a producer writes the version that it declares
    work = ready(tried.shop)
    assert tried.shop.wait_noted("E", 1)[4] == "700"
    assert tried.shop.wait_noted("E", 2)[4] == "9"
    work.wait_line("job.released .*declares version 2 of job 'priced', and the payload has version 3")
    work.stop()
    assert not tried.shop.noted("E", 3)
    tried.shop.jobs(JOBS + THIRD)
    work = ready(tried.shop)
    note = tried.shop.wait_noted("E", 3)
    assert (note[2], note[4:6]) == ("1", ["5", "CHF"]) or not tried.can("counts")
    eventually(tried.empty)
    work.stop()
    assert tried.failed() == []


def test_an_upgrade_that_raises_fails_the_job_and_the_retry_of_fixed_code_runs_it(tried: Tried, cell: Cell) -> None:
    """A failed job keeps its version."""
    assert cell == "works"
    tried.shop.jobs(JOBS + SECOND.replace('100 * data["euros"]', '100 * data["euro"]'))
    tried.push(1, job="priced", euros=7)
    tried.shop.work_off()
    (record,) = tried.failed()
    assert (record["error"], record["attempts"]) == ("WrongType", 1)
    assert "its upgrade from version 1 to 2, from_v1, raised KeyError: 'euro'" in record["reason"]
    tried.shop.jobs(JOBS + SECOND)
    tried.command("failed", "retry", record["id"])
    tried.shop.work_off()
    assert tried.shop.wait_noted("E", 1)[4] == "700"


def test_payloads_of_jobs_without_a_version_stay_as_they_were(tried: Tried, cell: Cell) -> None:
    assert cell == "works"
    tried.shop.jobs(JOBS + SECOND)
    tried.command("dispatch", "quick", "n=1")
    tried.command("dispatch", "priced", "n=2", "cents=9", "--queue", "other")
    plain = eventually(lambda: tried.connect().turn(None, ("default",)).reserved)
    versioned = eventually(lambda: tried.connect(slot=2).turn(None, ("other",)).reserved)
    assert b"job_version" not in plain.member
    assert read(versioned.member).job_version == 2
