"""One queue for PHP and Python: which side runs which jobs, and signals that neither lose nor double jobs."""

from __future__ import annotations

import json
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable

from tests.php.laravel import JOBS, PREFIX, Laravel, Ran
from tests.support.processes import Procs
from tests.support.project import Project
from tests.support.redis import Client

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
