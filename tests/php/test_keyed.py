"""Keyed jobs with a real Laravel worker, which moves due jobs to ready and does not support keys."""

from __future__ import annotations

from collections.abc import Callable

from tests.php.laravel import JOBS, PREFIX, Laravel
from tests.support.project import Project
from tests.support.redis import Client
from tests.support.waiting import eventually

Projects = Callable[..., Project]
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
    said = shop.python(ASK, **laravel.qd_env).stdout.strip()
    assert said == "[True, True, True, True, True, False] True True"
    work = shop.work("q", "-w", "2", **laravel.qd_env)
    laravel.wait_ran(2, name="remind")
    eventually(lambda: redis("HLEN", f"{PREFIX}queues:q:keyed") == 2, 20)  # the moved and the new job
    eventually(lambda: redis("LLEN", ready) == 19, 20)  # jobs of PHP: keyed jobs without an entry are dropped
    work.stop()
    assert sorted(ran.data["order"] for ran in laravel.ran("remind")) == [4, 5]
    assert redis("ZCARD", delayed) == 2
    assert not [payload for payload in redis("LRANGE", ready, 0, -1) if b'"job":"remind"' in payload]
