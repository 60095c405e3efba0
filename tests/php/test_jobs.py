"""Jobs from Laravel to qd and back: payload bytes, retries on both sides, payloads of old releases, signatures."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.php.laravel import JOBS, PREFIX, RESTART, Laravel, data_of
from tests.support.project import Project
from tests.support.redis import Client

# --- the rig alone, so that other failures are about qd


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


# --- payloads and retries


Projects = Callable[..., Project]

RICH = {
    "user": 7,
    "note": 'é/ü "q" \\ \u2028 \u0001 🙂',
    "empty": [],
    "nested": {"deep": [[], [1, 2.5], {"none": None}], "yes": True},
    "price": 0.1,
    "micros": 1795224705123456,
}

RICH_JOBS = (
    JOBS
    + """
@app.job("podcasts.transcode")
def transcode(user: int, note: str, empty: list[int], nested: dict[str, object], price: float, micros: int) -> None:
    seen()
    witness({"user": user, "note": note, "empty": empty, "nested": nested, "price": price, "micros": micros})


@app.job("podcasts.sweep")
def sweep() -> None:
    seen()
    witness(None)
"""
)

AGAIN_JOBS = (
    JOBS
    + """
@app.job("shared.again", tries=0)
def again(items: list[object] = [], empty: list[int] = [], whole: int = 0) -> None:
    seen()
    witness({"items": items, "empty": empty, "whole": whole})
    if current_job().attempt < 5:
        current_job().release()
"""
)


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_jobs_pushed_by_php_run_with_their_data(laravel: Laravel, project: Projects, redis: Client) -> None:
    laravel.push({"name": "podcasts.transcode", "data": RICH, "queue": "q"})
    laravel.push({"name": "podcasts.transcode", "data": RICH, "queue": "q", "delay": 1})
    (pushed,) = redis("LRANGE", f"{PREFIX}queues:q", 0, -1)
    shop = project(RICH_JOBS, laravel.qd_config)
    work = shop.work("q", "-w", "2", **laravel.qd_env)
    ran = laravel.wait_ran(2)
    work.stop()
    assert [r.data for r in ran] == [RICH, RICH]
    members = laravel.members.read_bytes().splitlines()
    assert {sha(data_of(member)) for member in members} == {sha(data_of(pushed))}
    assert len(laravel.ran()) == 2


@pytest.mark.parametrize("data", ["", [], None])
def test_jobs_pushed_by_php_without_data_run_without_arguments(
    laravel: Laravel, project: Projects, data: object
) -> None:
    laravel.push({"name": "podcasts.sweep", "data": data, "queue": "q"})
    shop = project(RICH_JOBS, laravel.qd_config)
    shop.work("q", "--once", **laravel.qd_env).ends_clean()
    assert [(r.name, r.attempt) for r in laravel.ran()] == [("podcasts.sweep", 1)]


def test_php_runs_the_string_jobs_that_python_pushes(laravel: Laravel, project: Projects, redis: Client) -> None:
    shop = project(JOBS, laravel.qd_config)
    shop.python(
        r"""
        from jobs import app
        data = {"month": 7, "note": "é/ü 🙂", "empty": [], "price": 2.5}
        app.queue("q").push(r"App\Jobs\Report@fire", data)
        app.queue("q").push(r"App\Jobs\Report@fire", data, delay=1)
        """,
        **laravel.qd_env,
    )
    worker = laravel.worker("q")
    ran = laravel.wait_ran(2)
    worker.stop()
    assert [r.name for r in ran] == [r"App\Jobs\Report@fire"] * 2
    assert ran[0].data == {"month": 7, "note": "é/ü 🙂", "empty": [], "price": 2.5}
    assert {r.pid for r in ran} == {worker.pid}
    assert redis.text("KEYS", "*queues:q*") in ([], [f"{PREFIX}queues:q:notify"])


def test_php_runs_each_of_two_equal_delayed_payloads(laravel: Laravel, project: Projects, redis: Client) -> None:
    """The second one ends with white space: see later.lua."""
    shop = project(JOBS, laravel.qd_config)
    shop.python(
        r"""
        from jobs import app
        for _ in range(2):
            app.queue("q").push_raw(rb'{"job":"App\\Jobs\\Report@fire","data":{"month":7},"id":"i","attempts":0}', delay=1)
        """,
        **laravel.qd_env,
    )
    worker = laravel.worker("q")
    ran = laravel.wait_ran(2)
    worker.stop()
    assert [(r.name, r.data) for r in ran] == [(r"App\Jobs\Report@fire", {"month": 7})] * 2
    assert redis.text("KEYS", "*queues:q*") in ([], [f"{PREFIX}queues:q:notify"])


def retried(laravel: Laravel, shop: Project, redis: Client, data: object) -> tuple[bytes, list[bytes]]:
    """Attempts 1, 2, 4, 5 by qd, 3 by Laravel's worker, which re-encodes. Returns the data as pushed and as qd got it."""
    laravel.push({"name": "shared.again", "data": data, "queue": "q"})
    pushed = data_of(redis("LINDEX", f"{PREFIX}queues:q", 0))
    for _ in range(2):
        shop.work("q", "--once", **laravel.qd_env).ends_clean()
    laravel.worker("q", max_jobs=1, tries=0).ends_clean()
    for _ in range(2):
        shop.work("q", "--once", **laravel.qd_env).ends_clean()
    assert [r.attempt for r in laravel.ran()] == [1, 2, 3, 4, 5]
    assert redis("LLEN", f"{PREFIX}queues:q") == redis("ZCARD", f"{PREFIX}queues:q:reserved") == 0
    return pushed, [data_of(member) for member in laravel.members.read_bytes().splitlines()]


def test_retries_in_both_languages_keep_the_data_bytes(laravel: Laravel, project: Projects, redis: Client) -> None:
    shop = project(AGAIN_JOBS, laravel.qd_config)
    # One key per object, no empty array, no long number: data that PHP's pop script does not change.
    pushed, had = retried(laravel, shop, redis, {"items": ["é/ü", [1, 2.5], {"none": None}]})
    assert [sha(data) for data in had] == [sha(pushed)] * 4


def test_laravels_worker_waits_as_a_backoff_of_python_says(laravel: Laravel, project: Projects, redis: Client) -> None:
    """PHP knows no job of this name, so each attempt fails."""
    backoff = "from qd import Backoff\n\n@app.job('nobody.knows', tries=4, backoff=Backoff(1, 3))\ndef nobody(): ...\n"
    shop = project(JOBS + backoff, laravel.qd_config)
    shop.python("from jobs import nobody\nnobody.using(queue='q').dispatch()", **laravel.qd_env)
    assert json.loads(redis("LINDEX", f"{PREFIX}queues:q", 0))["backoff"] == "1,3,9"
    due_at = time.time() - 1
    for wait in (1, 3, 9):
        earliest = float(due_at)
        laravel.worker("q", max_jobs=1).ends_clean()
        member, due_at = redis.text("ZRANGE", f"{PREFIX}queues:q:delayed", 0, -1, "WITHSCORES")
        assert int(earliest) + wait <= float(due_at) <= time.time() + wait, member


def test_data_re_encoded_by_php_is_kept_and_converted_to_the_declared_types(
    laravel: Laravel, project: Projects, redis: Client
) -> None:
    shop = project(AGAIN_JOBS, laravel.qd_config)
    pushed, had = retried(laravel, shop, redis, {"empty": [], "whole": 100_000_000_000_000})
    assert had[0] == had[1] == pushed
    assert had[2] == had[3] != pushed
    assert b'"empty":{}' in had[2]
    assert b'"whole":1e+14' in had[2]
    ours = [r.data for r in laravel.ran() if r.attempt != 3]
    assert ours == [{"items": [], "empty": [], "whole": 100_000_000_000_000}] * 4


# String jobs as pushed by releases before 8, which had no `backoff` and `retryUntil`.
SHAPES: dict[str, dict[str, object]] = {
    "5.5": {"displayName": "N", "job": "shared.note", "maxTries": None, "timeout": None},
    "5.8": {"displayName": "N", "job": "shared.note", "maxTries": 2, "delay": None, "timeout": 30},
    "6": {"displayName": "N", "job": "shared.note", "maxTries": None, "delay": 1, "timeout": None, "timeoutAt": None},
    "7": {
        "uuid": "7b3a1f9e-1111-4222-8333-444455556666",
        "displayName": "N",
        "job": "shared.note",
        "maxTries": None,
        "maxExceptions": None,
        "delay": None,
        "timeout": None,
        "timeoutAt": 4_000_000_000,
    },
}


def old_payload(release: str, job_id: str, **more: object) -> str:
    tail = {"data": {"release": release, "empty": []}, "id": job_id, "attempts": 0}
    return json.dumps({**SHAPES[release], **more, **tail}, separators=(",", ":"))


def test_payloads_of_laravel_5_to_7_run(laravel: Laravel, project: Projects, redis: Client) -> None:
    for number, release in enumerate(SHAPES):
        redis("RPUSH", f"{PREFIX}queues:q", old_payload(release, f"id{number}"))
    shop = project(JOBS, laravel.qd_config)
    shop.work("q", "-w", "1", "--stop-when-empty", **laravel.qd_env).ends_clean()
    assert [(r.id, r.data) for r in laravel.ran()] == [
        (f"id{number}", {"release": release, "empty": []}) for number, release in enumerate(SHAPES)
    ]


def test_the_old_names_of_backoff_and_deadline_are_obeyed(laravel: Laravel, project: Projects, redis: Client) -> None:
    past, future = int(time.time()) - 60, int(time.time()) + 3600
    redis("RPUSH", f"{PREFIX}queues:q", old_payload("7", "late", timeoutAt=past))
    redis("RPUSH", f"{PREFIX}queues:q", old_payload("6", "fails", job="shared.fails", delay=1000, timeoutAt=future))
    source = JOBS + '\n@app.job("shared.fails")\ndef fails(**data):\n    witness(data)\n    raise ValueError("no")\n'
    shop = project(source, laravel.qd_config)
    shop.work("q", "-w", "1", "--stop-when-empty", **laravel.qd_env).ends_clean()
    assert [r.id for r in laravel.ran()] == ["fails"]
    (record,) = redis("HVALS", f"{PREFIX}queues:q:failed")
    assert b'"id":"late"' in record
    member, due_at = redis.text("ZRANGE", f"{PREFIX}queues:q:delayed", 0, -1, "WITHSCORES")
    assert re.search('"id":"fails"', member)
    assert 900 < float(due_at) - time.time() <= 1100  # with its jitter


# --- chains, unique jobs


def test_the_last_php_job_of_a_chain_hands_over_to_python(laravel: Laravel, project: Projects) -> None:
    shop = project(JOBS, laravel.qd_config)
    laravel.push({"queue": "q", "data": 1, "chain": "HandOver"})
    laravel.worker("q", stop_when_empty=True).ends_clean()
    work = shop.work("python", "-w", "1", **laravel.qd_env)
    ran = laravel.wait_ran(3)
    work.stop()
    assert [one.name for one in ran] == [r"App\Jobs\Invoice", r"App\Jobs\HandOver", "shared.note"]
    assert ran[2].data == {"order_id": 7}


def test_a_string_job_in_a_chain_fails_the_job_before_it_after_its_run(laravel: Laravel) -> None:
    laravel.push({"queue": "q", "data": 1, "chain": "shared.note"})
    worker = laravel.worker("q", stop_when_empty=True, tries=3)
    worker.ends_clean()
    assert worker.matches('Error: Attempt to assign property "chained" on string')
    assert [one.attempt for one in laravel.ran()] == [1, 2, 3]


UNIQUE = (
    JOBS
    + """
@app.job("shop.charge", queue="q", unique="order:{order_id}")
def charge(order_id: int) -> None:
    witness(order_id)
"""
)


def test_a_push_of_php_takes_no_lock_of_a_unique_job(laravel: Laravel, project: Projects) -> None:
    shop = project(UNIQUE, laravel.qd_config)
    shop.python("from jobs import charge\ncharge.dispatch(7)\ncharge.dispatch(7)", **laravel.qd_env)
    laravel.push({"name": "shop.charge", "data": {"order_id": 7}, "queue": "q"})
    work = shop.work("q", "-w", "1", "--stop-when-empty", **laravel.qd_env)
    work.ends_clean()
    assert [one.data for one in laravel.ran()] == [7, 7]


# --- signed jobs


PAGE = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "laravel.md").read_text()
KEY = "2026b:a-secret-of-both-sides"
DATA = [
    None,
    {},
    {"n": 1, "text": 'é/ü "q" \\ \u2028 \x01 🙂', "empty": [], "nested": {"deep": [[], [1, 2.5], {"none": None}]}},
    {"micros": 1795224705123456, "many": list(range(2000))},
]


@pytest.fixture
def signing(laravel: Laravel, tmp_path: Path) -> Laravel:
    (sample,) = re.findall(r"<!-- run: tests/php/test_jobs.py -->\n```php\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    provider = tmp_path / "provider.php"
    provider.write_text(f"<?php\n{sample}")
    laravel.settings |= {"RIG_PROVIDER": str(provider), "JOB_SIGNING_KEY": KEY}
    return laravel


@pytest.fixture
def shop(signing: Laravel, project: Projects) -> Project:
    return project(JOBS, signing.qd_config + f'[signing]\nkeys = ["{KEY}"]\n')


def test_jobs_signed_by_laravel_run_and_changed_ones_do_not(signing: Laravel, shop: Project, redis: Client) -> None:
    jobs = [{"name": "shared.note", "queue": "q", **({} if data is None else {"data": data})} for data in DATA]
    signing.push(*jobs, {"name": "shared.note", "data": DATA[2], "queue": "q", "delay": 1})
    changed = redis("LPOP", f"{PREFIX}queues:q").replace(b'"data":""', b'"data":{"n":2}')
    redis("RPUSH", f"{PREFIX}queues:q", changed)
    work = shop.work("q", "-w", "1", **signing.qd_env)
    ran = signing.wait_ran(4)
    work.wait_line("job.failed .*SignatureRefused: its signature does not match")
    work.stop()
    assert [one.data for one in ran] == [{}, DATA[2], DATA[3], DATA[2]]
    assert redis("HLEN", f"{PREFIX}queues:q:failed") == 1


def test_object_jobs_are_not_signed_and_php_runs_them(signing: Laravel) -> None:
    ids = signing.push({"queue": "q"}, {"queue": "q"})
    php = signing.worker("q", stop_when_empty=True)
    php.ends_clean()
    assert [one.id for one in signing.ran(r"App\Jobs\Invoice")] == ids


def test_php_runs_jobs_signed_by_python(signing: Laravel, shop: Project, redis: Client) -> None:
    shop.python("from jobs import app\napp.queue('q').push('shared.note', {'n': 1})", **signing.qd_env)
    assert json.loads(redis("LINDEX", f"{PREFIX}queues:q", 0))["sig"].startswith("v2.2026b.")
    php = signing.worker("q", stop_when_empty=True)
    php.ends_clean()
    assert [one.data for one in signing.ran("shared.note")] == [{"n": 1}]
