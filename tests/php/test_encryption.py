"""Encrypted jobs between Laravel and qd, with Laravel's own Encrypter, in both directions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.php.laravel import JOBS, PREFIX, Laravel
from tests.support.project import Project
from tests.support.redis import Client

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "encryption.md").read_text()
KEY = "2026b:MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
DATA = {"card": "4111-1111", "text": 'é/ü "q" \\ \u2028 🙂', "nested": {"deep": [[], [1, 2.5], {"none": None}]}}

OPENS = r"""
namespace App\Jobs {
    use Illuminate\Contracts\Queue\{Job, ShouldBeEncrypted, ShouldQueue};

    final class Opens
    {
        public function fire(Job $job, array $data): void
        {
            witness('opened', $job, \Encrypted::open($data));
            $job->delete();
        }
    }

    final class Sealed implements ShouldBeEncrypted, ShouldQueue
    {
        public $card = '4111-1111';
    }
}
"""
PUSH = r"""<?php
require getenv('RIG_BOOTSTRAP');
$app = application();
$queue = $app['queue']->connection();
$encrypter = new Illuminate\Encryption\Encrypter(str_repeat('k', 16));
$app->instance(Illuminate\Contracts\Encryption\Encrypter::class, $encrypter);
$queue->setContainer($app);
$what = argument()['object'] ?? false;
$what ? $queue->push(new App\Jobs\Sealed, '', 'q') : $queue->push('shared.pay', Encrypted::seal(argument()['data']), 'q');
"""
PAY = (
    JOBS
    + """
@app.job("shared.pay", encrypted=True)
def pay(**data):
    witness(data)
"""
)


@pytest.fixture
def php(laravel: Laravel, tmp_path: Path) -> Laravel:
    (sample,) = re.findall(
        r"<!-- run: tests/php/test_encryption.py -->\n```php\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE
    )
    provider = tmp_path / "provider.php"
    load = "require_once 'Illuminate/Encryption/autoload.php';\n"
    provider.write_text(f"<?php\nnamespace {{\n{load}{sample}}}\n{OPENS}")
    (tmp_path / "push.php").write_text(PUSH)
    rig = Path(__file__).resolve().parent / "rig" / "bootstrap.php"
    laravel.settings |= {"RIG_PROVIDER": str(provider), "JOB_ENCRYPTION_KEY": KEY, "RIG_BOOTSTRAP": str(rig)}
    return laravel


@pytest.fixture
def shop(php: Laravel, project: Callable[..., Project]) -> Project:
    return project(PAY, php.qd_config + f'[encryption]\nkeys = ["{KEY}"]\n')


def pushed(redis: Client) -> str:
    (text,) = redis.text("LRANGE", f"{PREFIX}queues:q", 0, -1)
    return str(text)


def test_qd_runs_what_laravel_has_encrypted(php: Laravel, shop: Project, redis: Client, tmp_path: Path) -> None:
    php._run(str(tmp_path / "push.php"), {"data": DATA})
    assert '"data":{"encrypted":"eyJ' in pushed(redis)
    assert "4111" not in pushed(redis)
    shop.work("q", "--once", **php.qd_env).ends_clean()
    assert [(ran.name, ran.data) for ran in php.ran()] == [("shared.pay", DATA)]


def test_php_decrypts_what_qd_has_encrypted(php: Laravel, shop: Project, redis: Client) -> None:
    shop.python(
        f"import json\nfrom jobs import app\ndata = json.loads({json.dumps(DATA)!r})\n"
        r"app.queue('q').push('App\\Jobs\\Opens@fire', data, encrypted=True)",
        **php.qd_env,
    )
    assert "4111" not in pushed(redis)
    php.worker("q", stop_when_empty=True).ends_clean()
    assert [(ran.name, ran.data) for ran in php.ran()] == [("opened", DATA)]


def test_an_encrypted_object_job_stays_with_php(php: Laravel, shop: Project, redis: Client, tmp_path: Path) -> None:
    php._run(str(tmp_path / "push.php"), {"object": True})
    assert "4111" not in pushed(redis)
    shop.python("from jobs import pay\npay.using(queue='q').dispatch(n=1)", **php.qd_env)
    work = shop.work("q", **php.qd_env)
    assert [ran.data for ran in php.wait_ran(1)] == [{"n": 1}]
    work.stop()
    assert r"CallQueuedHandler@call" in pushed(redis)
    redis("DEL", f"{PREFIX}queues:q", f"{PREFIX}queues:q:notify")
