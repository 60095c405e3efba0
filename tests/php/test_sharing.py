"""One queue for PHP and Python: which side runs which jobs; signals and kills that neither lose nor double jobs."""

from __future__ import annotations

import hashlib
import json
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import psutil
import pytest

from tests.php.laravel import JOBS, PREFIX, Laravel, Ran, data_of
from tests.support import ledger as ledgers
from tests.support.ledger import Ledger
from tests.support.processes import Procs
from tests.support.project import Project
from tests.support.redis import Client
from tests.support.reliability import Figures
from tests.support.waiting import eventually

Projects = Callable[..., Project]
SIGNALS = ("TERM", "USR2", "CONT", "HUP")


def assert_each_ran_once(ran: list[Ran], ids: list[str]) -> None:
    counts = Counter(r.id for r in ran)
    twice = {job_id: count for job_id, count in counts.items() if count > 1}
    missing = set(ids) - set(counts)
    assert not twice, f"ran more than once: {twice}"
    assert not missing, f"{len(missing)} never ran: {sorted(missing)[:5]}"


def assert_no_job_left(redis: Client) -> None:
    kinds = ("", ":delayed", ":reserved", ":failed", ":owners")
    left = [key for kind in kinds if redis("EXISTS", key := f"{PREFIX}queues:q{kind}")]
    assert not left, f"jobs left in {left}"


def test_php_and_qd_share_one_queue_and_php_runs_all_object_jobs(
    laravel: Laravel, project: Projects, redis: Client
) -> None:
    shop = project(JOBS, laravel.qd_config)
    work = shop.work("q", "-w", "2", "--sleep", "0.2", **laravel.qd_env)
    laravel.push({"name": "shared.note", "data": {"first": True}, "queue": "q"})
    laravel.wait_ran(1)
    php = laravel.worker("q")
    both = [{"name": "shared.note", "queue": "q", "count": 40, "number": "n"}, {"queue": "q", "count": 40}]
    ids = laravel.push(*both * 25)
    ran = laravel.wait_ran(2001, 60)[1:]
    work.stop()
    php.stop()
    assert_each_ran_once(ran, ids)
    objects = [r for r in ran if r.name == r"App\Jobs\Invoice"]
    assert len(objects) == 1000
    assert {r.pid for r in objects} == {php.pid}
    assert len({r.pid for r in ran if r.name == "shared.note"}) > 1  # both languages ran some
    assert {r.attempt for r in ran} == {1}
    assert_no_job_left(redis)


def test_object_jobs_keep_their_position_until_php_takes_them(
    laravel: Laravel, project: Projects, redis: Client
) -> None:
    """Even if qd is fast and a PHP worker polls rarely, it finds them at the head, in order."""
    shop = project(JOBS, laravel.qd_config)
    work = shop.work("q", "-w", "2", **laravel.qd_env)
    objects = laravel.push({"queue": "q", "count": 90})
    laravel.push({"name": "shared.note", "queue": "q"})
    laravel.wait_ran(1, name="shared.note")  # qd has skipped the object jobs
    assert [json.loads(p)["id"] for p in redis("LRANGE", f"{PREFIX}queues:q", 0, -1)] == objects
    php = laravel.worker("q", stop_when_empty=True)
    php.ends_clean()
    work.stop()
    ran = laravel.ran(r"App\Jobs\Invoice")
    assert [r.id for r in ran] == objects
    assert {(r.pid, r.attempt) for r in ran} == {(php.pid, 1)}
    assert_no_job_left(redis)


def test_more_object_jobs_than_qd_skips_are_handed_back_at_no_cost(
    laravel: Laravel, project: Projects, redis: Client
) -> None:
    objects = laravel.push({"queue": "q", "count": 150})
    laravel.push({"name": "shared.note", "queue": "q"})
    shop = project(JOBS, laravel.qd_config)
    work = shop.work("q", "-w", "1", **laravel.qd_env)
    laravel.wait_ran(1, name="shared.note")
    work.stop()
    php = laravel.worker("q")
    ran = laravel.wait_ran(150, name=r"App\Jobs\Invoice")
    php.stop()
    assert_each_ran_once(ran, objects)
    assert {r.attempt for r in ran} == {1}
    assert_no_job_left(redis)


def test_a_python_job_whose_data_looks_like_an_object_job_runs(laravel: Laravel, project: Projects) -> None:
    data = {"list": [], "job": "Illuminate\\Queue\\CallQueuedHandler@call", "more": {"a": 1}}
    laravel.push({"name": "shared.note", "data": data, "queue": "q"})
    shop = project(JOBS, laravel.qd_config)
    shop.work("q", "-w", "1", "--stop-when-empty", **laravel.qd_env).ends_clean()
    assert [r.data for r in laravel.ran()] == [data]


def test_a_string_job_that_only_php_knows_is_handed_back_at_no_cost(
    laravel: Laravel, project: Projects, redis: Client
) -> None:
    (job_id,) = laravel.push({"name": r"App\Jobs\Report@fire", "data": {"month": 7}, "queue": "q"})
    shop = project(JOBS, laravel.qd_config)
    work = shop.work("q", "-w", "1", **laravel.qd_env)
    work.wait_line("job.released .*Report@fire")
    work.stop()
    php = laravel.worker("q")
    (ran,) = laravel.wait_ran(1)
    php.stop()
    assert (ran.id, ran.attempt, ran.pid, ran.data) == (job_id, 1, php.pid, {"month": 7})
    assert_no_job_left(redis)


STUCK_JOBS = (
    JOBS
    + """
@app.job("stuck.in.php")
def fine(**data):
    witness(data)


@app.job("stuck.in.python")
def stuck(**data):
    witness(data)
    time.sleep(60)
"""
)


def test_qd_runs_the_job_of_a_killed_php_worker(laravel: Laravel, project: Projects, redis: Client) -> None:
    laravel.settings["RIG_RETRY_AFTER"] = "1"
    (job_id,) = laravel.push({"name": "stuck.in.php", "data": {"n": 1}, "queue": "q"})
    php = laravel.worker("q")
    laravel.wait_ran(1)
    php.kill()
    shop = project(STUCK_JOBS, 'retry_after = "1s"\n' + laravel.qd_config)
    work = shop.work("q", "-w", "1", "--tries", "2", **laravel.qd_env)
    ran = laravel.wait_ran(2)
    work.stop()
    assert [(r.id, r.attempt, r.data) for r in ran] == [(job_id, 1, {"n": 1}), (job_id, 2, {"n": 1})]
    assert_no_job_left(redis)


def test_php_runs_the_job_of_a_killed_qd_worker(laravel: Laravel, project: Projects, redis: Client) -> None:
    (job_id,) = laravel.push({"name": "stuck.in.python", "data": {"n": 1}, "queue": "q"})
    shop = project(STUCK_JOBS, laravel.qd_config)
    work = shop.work("q", "-w", "1", **laravel.qd_env)
    laravel.wait_ran(1)
    work.signal(signal.SIGUSR2)  # so that qd does not reserve it again
    work.wait_line("master.paused")
    work.child("stuck.in.python").kill()
    php = laravel.worker("q", tries=0)
    ran = laravel.wait_ran(2)
    php.stop()
    work.stop()
    assert [(r.id, r.attempt, r.data) for r in ran] == [(job_id, 1, {"n": 1}), (job_id, 2, {"n": 1})]
    assert ran[1].pid == php.pid
    assert_no_job_left(redis)


class Storm:
    """Ten signals to a running qd, each after a random number of jobs, drawn with the seed."""

    def __init__(self, start: Callable[[], Procs], laravel: Laravel, seed: int) -> None:
        self.start, self.laravel, self.paused = start, laravel, False
        drawn = random.Random(seed)
        self.plan = sorted((drawn.randrange(200, 9000), drawn.choice(SIGNALS)) for _ in range(10))
        self.work = start()

    def run(self) -> Procs:
        for after, name in self.plan:
            if not self.paused:
                self.laravel.wait_ran(after, 60)
            self.send(name)
        self.work.signal(signal.SIGCONT)
        return self.work

    def send(self, name: str) -> None:
        if name == "TERM":
            self.work.stop()
            self.work, self.paused = self.start(), False
            self.work.child("qd: worker")
            return
        self.work.signal(signal.Signals[f"SIG{name}"])
        if name in ("USR2", "CONT"):
            self.paused = name == "USR2"


def test_ten_signals_during_ten_thousand_jobs_neither_lose_nor_double_jobs(
    laravel: Laravel, project: Projects, redis: Client
) -> None:
    ids: list[str] = []
    entry = {"name": "shared.note", "queue": "q", "count": 10_000, "number": "n"}
    pushing = threading.Thread(target=lambda: ids.extend(laravel.push(entry)))
    shop = project(JOBS, laravel.qd_config)
    storm = Storm(lambda: shop.work("q", "-w", "4", "--log-level", "warning", **laravel.qd_env), laravel, seed=20)
    pushing.start()
    work = storm.run()
    ran = laravel.wait_ran(10_000, 60)
    pushing.join(10)
    work.stop()
    assert len(ids) == 10_000
    assert_each_ran_once(ran, ids)
    assert len(laravel.ran()) == 10_000
    assert_no_job_left(redis)


# --- kills and leases: rows 8b and 39


@pytest.mark.usefixtures("clean_redis")
@pytest.mark.fault(
    "8b",
    "jobs that run for many times retry_after next to a Laravel worker that polls their queue",
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


class KillStorm:
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
    "all run; only jobs running at a kill run twice; qd hands each job the bytes of data that were pushed",
)
def test_killed_workers_of_qd_and_laravel_lose_no_job_of_a_shared_queue(
    laravel: Laravel, project: Projects, redis: Client, figures: Figures
) -> None:
    laravel.settings |= {"RIG_RETRY_AFTER": "3", "RIG_WORK_US": "20000"}
    shop = project(SLOWLY, 'retry_after = "3s"\n' + laravel.qd_config)
    ids = push(shop, laravel, 500)
    pushed = fingerprints(redis("LRANGE", f"{PREFIX}queues:q", 0, -1))
    storm = KillStorm(shop, laravel)
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


# --- keyed jobs


KEYED = (
    JOBS
    + """
@app.job("remind", queue="q")
def remind(order: int) -> None:
    witness({"order": order})
"""
)
SEND = """
from jobs import app, remind
for order in range(1, 6):
    remind.using(key=f"order:{order}", delay=0.05).dispatch(order)
"""
ASK = """
from jobs import app, remind
due = [app.keyed(remind, f"order:{order}").due() is not None for order in range(1, 7)]
print(due, app.keyed(remind, "order:1").cancel(), app.keyed(remind, "order:2").reschedule(600))
remind.using(key="order:3", delay=600).dispatch(30)
"""


def test_keyed_jobs_can_be_changed_after_laravel_has_moved_them_to_ready(
    laravel: Laravel, project: Projects, redis: Client
) -> None:
    """Laravel's worker makes all of them ready; then one is cancelled, one moved and one replaced. The other two run."""
    shop = project(KEYED, laravel.qd_config)
    shop.python(SEND, **laravel.qd_env)
    ready, delayed = f"{PREFIX}queues:q", f"{PREFIX}queues:q:delayed"
    due = float(redis.text("ZRANGE", delayed, -1, -1, "WITHSCORES")[1])
    eventually(lambda: int(redis.text("TIME")[0]) > due, 20)
    laravel.push({"queue": "q", "count": 20})  # jobs of PHP, ahead of those it moves
    laravel.worker("q", max_jobs=1).ends_clean()
    assert (redis("ZCARD", delayed), redis("LLEN", ready)) == (0, 24)
    answers = shop.python(ASK, **laravel.qd_env).stdout.strip()
    assert answers == "[True, True, True, True, True, False] True True"
    work = shop.work("q", "-w", "2", **laravel.qd_env)
    laravel.wait_ran(2, name="remind")
    eventually(lambda: redis("HLEN", f"{PREFIX}queues:q:keyed") == 2, 20)  # the moved and the new job
    eventually(lambda: redis("LLEN", ready) == 19, 20)  # jobs of PHP: keyed jobs without an entry are dropped
    work.stop()
    assert sorted(ran.data["order"] for ran in laravel.ran("remind")) == [4, 5]
    assert redis("ZCARD", delayed) == 2
    assert not [payload for payload in redis("LRANGE", ready, 0, -1) if b'"job":"remind"' in payload]
