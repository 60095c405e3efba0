"""Laravel's restart and pause keys in its cache: qd obeys what PHP writes, and writes what PHP obeys."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable

import pytest

from tests.php.laravel import JOBS, RESTART, Laravel
from tests.support.project import Project
from tests.support.servers.redis import Server
from tests.support.waiting import eventually

Projects = Callable[..., Project]
ALL = "illuminate:queues:paused"
ONE = "illuminate:queue:paused:redis:q"


APPEARS, CHANGES, VANISHES = (None, {"restart": True}), (1_700_000_000, {"restart": True}), (1, {"forget": RESTART})


@pytest.mark.parametrize(("before", "command"), [APPEARS, CHANGES, VANISHES], ids=["appears", "changes", "vanishes"])
def test_a_change_of_laravels_restart_key_drains_qd(
    laravel: Laravel, project: Projects, before: int | None, command: dict[str, object]
) -> None:
    if before is not None:
        laravel.cache(put=RESTART, value=before)
    shop = project(JOBS, laravel.qd_config)
    laravel.push({"name": "shared.note", "queue": "q"})
    work = shop.work("q", "-w", "2", **laravel.qd_env)
    laravel.wait_ran(1)
    laravel.cache(**command)
    work.ends_clean()
    why = "the key of queue:restart is gone" if "forget" in command else "queue:restart of Laravel"
    assert work.matches(f"master.stopping reason=.{why}")


def test_qd_restart_writes_the_key_that_php_workers_obey(laravel: Laravel, project: Projects) -> None:
    shop = project(JOBS, laravel.qd_config)
    php = laravel.worker("q")
    done = shop.qd("restart")
    assert (done.returncode, done.stderr) == (0, "")
    php.ends_clean()
    assert int(json.loads(laravel.cache(get=RESTART))) > 1_700_000_000


def test_a_rolling_restart_restarts_laravel_workers_and_keeps_qd_masters(laravel: Laravel, project: Projects) -> None:
    shop = project(JOBS, laravel.qd_config)
    work = shop.work("q", "-w", "1", **laravel.qd_env)
    first = work.child("qd: worker")
    php = laravel.worker("q")
    assert shop.qd("restart", "--rolling").returncode == 0
    php.ends_clean()
    work.wait_line("master.reloaded")
    laravel.push({"name": "shared.note", "queue": "q"}, {"name": "shared.note", "queue": "q", "delay": 3})
    ran = laravel.wait_ran(2)  # after two beats of the keeper
    assert first.pid not in {r.pid for r in ran}
    work.stop()


@pytest.mark.parametrize("started", ["before", "after"])
def test_a_queue_restart_right_after_a_rolling_qd_restart_is_obeyed(
    laravel: Laravel, project: Projects, started: str
) -> None:
    """started: the master, before or after the `qd restart`."""
    shop = project(JOBS, laravel.qd_config)
    if started == "before":
        work = shop.work("q", "-w", "1", **laravel.qd_env)
        work.child("qd: worker")
    assert shop.qd("restart", "--rolling").returncode == 0
    written = int(json.loads(laravel.cache(get=RESTART)))
    if started == "after":
        work = shop.work("q", "-w", "1", **laravel.qd_env)
        work.child("waiting on")  # its keeper has read the key
    eventually(lambda: time.time() >= written + 1, what="another second: Laravel's key has whole ones")
    laravel.cache(restart=True)
    assert int(json.loads(laravel.cache(get=RESTART))) > written
    work.ends_clean()


@pytest.mark.parametrize("key", [ALL, ONE], ids=["all", "one"])
def test_qd_does_not_serve_a_queue_paused_by_laravel(laravel: Laravel, project: Projects, key: str) -> None:
    laravel.cache(forever=key)
    shop = project(JOBS, laravel.qd_config)
    laravel.push({"name": "shared.note", "data": {"at": "paused"}, "queue": "q"})
    laravel.push({"name": "shared.note", "data": {"at": "other"}, "queue": "other"})
    work = shop.work("q", "other", "-w", "1", **laravel.qd_env)
    if key == ONE:
        laravel.wait_ran(1)
        assert [r.data["at"] for r in laravel.ran()] == ["other"]
    else:
        work.child("waiting on")  # it has read the key
        assert laravel.ran() == []
    laravel.cache(forget=key)
    laravel.wait_ran(2)
    work.stop()
    assert sorted(r.data["at"] for r in laravel.ran()) == ["other", "paused"]


@pytest.mark.parametrize(("words", "key"), [((), ALL), (("q",), ONE)], ids=["all", "one"])
def test_qd_pause_and_resume_write_the_keys_that_php_workers_obey(
    laravel: Laravel, project: Projects, words: tuple[str, ...], key: str
) -> None:
    shop = project(JOBS, laravel.qd_config)
    assert laravel.cache(get=key) == "null"
    assert shop.qd("pause", *words).returncode == 0
    assert laravel.cache(get=key) == "true"
    assert shop.qd("resume", *words).returncode == 0
    assert laravel.cache(get=key) == "null"


def test_jobs_run_while_the_cache_is_unreachable(laravel: Laravel, project: Projects) -> None:
    with Server() as cache:
        config = laravel.qd_config.replace(str(laravel.server.socket), str(cache.socket))
        shop = project(JOBS, config)
        work = shop.work("q", "-w", "1", **laravel.qd_env)
        work.child("qd: worker")
        cache.kill()
        work.wait_line("laravel.away")
        ids = laravel.push({"name": "shared.note", "queue": "q", "delay": 1}, {"name": "shared.note", "queue": "q"})
        laravel.wait_ran(2)
        work.stop()
    assert {r.id for r in laravel.ran()} == set(ids)
    assert not work.matches("redis.away")


# The payload of `php artisan down`: one of its drivers serializes it into the cache, the other writes it as JSON.
DOWN = "illuminate:foundation:down"
PAYLOAD: dict[str, object] = {
    "except": [],
    "redirect": None,
    "retry": 60,
    "refresh": None,
    "secret": None,
    "status": 503,
    "template": None,
}


def test_laravels_maintenance_mode_in_the_cache_stops_qd_until_artisan_up(laravel: Laravel, project: Projects) -> None:
    laravel.cache(put=DOWN, value=PAYLOAD)
    shop = project(JOBS, laravel.qd_config + "down = true\n")
    laravel.push({"name": "shared.note", "queue": "q"})
    work = shop.work("q", "-w", "1", **laravel.qd_env)
    work.child("qd: worker 0 down")
    assert laravel.ran() == []
    assert f"Laravel's maintenance mode on {socket.gethostname()}: {DOWN};" in shop.qd("status").stdout
    laravel.cache(forget=DOWN)
    laravel.wait_ran(1)
    assert shop.qd("down").returncode == 0
    assert laravel.cache(get=DOWN) == "null"  # `qd down` does not affect the web site
    assert shop.qd("up").returncode == 0
    work.stop()


def test_laravels_maintenance_mode_in_a_file_stops_qd(laravel: Laravel, project: Projects) -> None:
    file = laravel.folder / "down"
    file.write_text(json.dumps(PAYLOAD, indent=4))
    shop = project(JOBS, laravel.qd_config + f'down_file = "{file}"\n')
    laravel.push({"name": "shared.note", "queue": "q"})
    work = shop.work("q", "-w", "1", **laravel.qd_env)
    work.child("qd: worker 0 down")
    assert laravel.ran() == []
    file.unlink()
    laravel.wait_ran(1)
    work.stop()
