"""A Laravel worker on the same queue: it does not take jobs that qd runs, and both are killed repeatedly: rows 8, 39."""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import psutil
import pytest

from tests.php.laravel import JOBS, PREFIX, Laravel, data_of
from tests.support import ledger as ledgers
from tests.support.ledger import Ledger
from tests.support.project import Project
from tests.support.redis import Client
from tests.support.reliability import Figures
from tests.support.waiting import eventually

Projects = Callable[..., Project]


@pytest.mark.usefixtures("clean_redis")
@pytest.mark.fault(
    "8b",
    "jobs that run for many times retry_after beside a Laravel worker that polls their queue",
    "each runs once; the Laravel worker finds nothing to take",
)
@pytest.mark.parametrize("seconds", [8, pytest.param(60, marks=pytest.mark.slow)], ids=["8 s", "60 s"])
def test_a_laravel_worker_does_not_take_a_job_that_outlasts_its_lease(
    seconds: int, laravel: Laravel, project: Projects, redis: Client, figures: Figures
) -> None:
    laravel.settings |= {"RIG_PREFIX": "", "RIG_RETRY_AFTER": "1"}
    shop = project(ledgers.JOBS, 'retry_after = "3s"\n')
    ledger = Ledger(shop, redis)
    work = shop.work("-w", "3", "--timeout", "300")
    for how in ("sleep", "cpu", "hold"):
        for n in ledger.push(seconds=seconds, how=how):
            ledger.wait_start(n)
    php = laravel.worker("default")
    ledger.wait_all(seconds + 20)
    assert sorted(note.n for note in ledger.starts()) == ledger.pushed
    php.stop()
    work.stop()
    assert php.lines == ["ready"]
    assert not work.matches("lease")
    ledger.conserve()
    figures.tell(ledger)


SLOWLY = JOBS.replace("def note(**data):\n", "def note(**data):\n    time.sleep(0.02)\n    seen()\n")
DATA = {
    "text": "Grüße €",
    "list": [1, 2, {"a": None}],
    "half": 0.5,
    "big": 12345678901234567,
    "none": [],
    "deep": {"b": [[]]},
}
PUSH = """
import os, sys
sys.path.insert(0, ".")
from jobs import app
for n in range({count}):
    print(app.queue("q").push("shared.note", {data!r} | {{"n": n}}).id)
"""


def push(shop: Project, laravel: Laravel, count: int) -> list[str]:
    """Push `count` jobs from each side. Returns their IDs."""
    entry = {"name": "shared.note", "queue": "q", "data": DATA, "count": count, "number": "n"}
    ours = shop.python(PUSH.format(count=count, data=DATA), **laravel.qd_env).stdout.split()
    return ours + laravel.push(entry)


class Storm:
    """A qd and a Laravel worker on queue `q`, killed at random and replaced."""

    def __init__(self, shop: Project, laravel: Laravel) -> None:
        self.shop, self.laravel, self.draw = shop, laravel, random.Random(39)
        self.kills = {"qd": 0, "php": 0}
        self.last = time.monotonic()
        self.work = shop.work(
            "q", "-w", "3", "--tries", "0", "--max-crashes", "1000", "--sleep", "0.2", **laravel.qd_env
        )
        self.php = laravel.worker("q", tries=0)

    def turn(self) -> None:
        if time.monotonic() - self.last < 0.3:
            return
        self.last = time.monotonic()
        if self.draw.random() < 0.3:
            self.php.kill()
            self.kills["php"] += 1
            self.php = self.laravel.worker("q", tries=0)
        elif workers := self.work.children("qd: worker"):
            with suppress(psutil.NoSuchProcess):  # it has just ended
                self.draw.choice(workers).kill()
                self.kills["qd"] += 1

    def run(self, ids: list[str], seconds: float) -> Counter[str]:
        """Run until each job has run and the queue is empty. Returns the number of runs of each job."""

        def over() -> bool:
            ran = {one.id for one in self.laravel.ran()}
            if not set(ids) <= ran:
                self.turn()
                return False
            return not any(self.standing())

        eventually(over, seconds, every=0.05, what="the end of every job")
        return Counter(one.id for one in self.laravel.ran())

    def standing(self) -> list[int]:
        with self.laravel.server.client() as client:
            return [client.call("EXISTS", f"{PREFIX}queues:q{kind}") for kind in ("", ":delayed", ":reserved")]


def fingerprints(payloads: list[bytes]) -> dict[str, str]:
    """Job id -> sha256 of the bytes of its data."""
    return {json.loads(raw)["id"]: hashlib.sha256(data_of(raw)).hexdigest() for raw in payloads}


@pytest.mark.slow
@pytest.mark.fault(
    "39",
    "qd and a Laravel worker on one queue, both pushed to and both killed with -9 again and again, 2,000 jobs",
    "all run; twice only what was in hand at a kill; qd hands each job the bytes of data that were pushed",
)
def test_killed_workers_of_qd_and_laravel_lose_no_job_of_a_shared_queue(
    laravel: Laravel, project: Projects, redis: Client, figures: Figures
) -> None:
    laravel.settings |= {"RIG_RETRY_AFTER": "3", "RIG_WORK_US": "20000"}
    shop = project(SLOWLY, 'retry_after = "3s"\n' + laravel.qd_config)
    ids = push(shop, laravel, 500)
    pushed = fingerprints(redis("LRANGE", f"{PREFIX}queues:q", 0, -1))
    storm = Storm(shop, laravel)
    ids += push(shop, laravel, 500)
    counts = storm.run(ids, 240)
    storm.work.stop()
    storm.php.stop()
    doubles = [one for one, count in counts.items() if count > 1]
    kills = storm.kills["qd"] + storm.kills["php"]
    assert len(ids) == len(set(ids)) == 2000
    assert len(doubles) <= kills
    assert min(storm.kills.values()) > 3
    seen = fingerprints(laravel.members.read_bytes().splitlines())
    altered = [one for one, text in seen.items() if pushed.get(one, text) != text]
    assert len(altered) <= storm.kills["php"], "only PHP's pop may re-encode data"
    assert len(pushed.keys() & seen.keys()) > 100
    figures.add(lost=len(set(ids) - set(counts)), doubles=len(doubles), kills=kills, altered=len(altered))
