"""Laravel signs with the code of docs/php.md, and qd accepts the signatures."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.php.laravel import JOBS, PREFIX, Laravel
from tests.support.project import Project
from tests.support.redis import Client

Projects = Callable[..., Project]
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "php.md").read_text()
KEY = "2026b:a-secret-of-both-sides"
DATA = [
    None,
    {},
    {"n": 1, "text": 'é/ü "q" \\ \u2028 \x01 🙂', "empty": [], "nested": {"deep": [[], [1, 2.5], {"none": None}]}},
    {"micros": 1795224705123456, "many": list(range(2000))},
]


@pytest.fixture
def signing(laravel: Laravel, tmp_path: Path) -> Laravel:
    (sample,) = re.findall(
        r"<!-- run: tests/php/test_signed.py -->\n```php\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE
    )
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
