"""The rig alone: PHP pushes and PHP runs, so that a failure in the other files is about qd."""

from __future__ import annotations

import re

from tests.php.laravel import PREFIX, RESTART, Laravel
from tests.support.redis import Client


def test_php_runs_jobs_of_php_and_fails_an_unknown_name(laravel: Laravel, redis: Client) -> None:
    ids = laravel.push(
        {"name": r"App\Jobs\Report@fire", "data": {"note": "é", "none": []}, "queue": "q"},
        {"name": "shared.note", "queue": "q", "count": 20, "number": "n"},
        {"data": {"amount": 9}, "queue": "q", "count": 5},
        {"name": "nobody.knows", "queue": "q"},
    )
    worker = laravel.worker("q", stop_when_empty=True)
    worker.ends_clean()
    ran = laravel.ran()
    assert [r.id for r in ran] == ids[:-1]
    assert ran[0].data == {"note": "é", "none": []}
    assert {r.name for r in ran[-5:]} == {r"App\Jobs\Invoice"}
    assert worker.matches(f"^failed nobody.knows {re.escape(ids[-1])}$")
    assert redis.keys() == []


def test_a_job_released_by_php_is_delayed_as_re_encoded_by_its_pop_script(laravel: Laravel, redis: Client) -> None:
    laravel.push({"name": "shared.again", "data": {"list": [], "whole": 1.0}, "queue": "q"})
    laravel.worker("q", max_jobs=1).ends_clean()
    (member,) = redis.text("ZRANGE", f"{PREFIX}queues:q:delayed", 0, -1)
    assert '"attempts":1' in member
    assert '"list":{}' in member


def test_the_php_worker_exits_when_the_restart_key_appears(laravel: Laravel) -> None:
    worker = laravel.worker("q")
    laravel.cache(restart=True)
    worker.ends_clean()
    assert int(laravel.cache(get=RESTART).strip('"')) > 1_700_000_000
