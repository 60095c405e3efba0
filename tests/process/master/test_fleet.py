"""`qd pause --job`, `--host` and `--pool`, `qd restart --host` and `qd scale`, seen by a running `qd work`."""

from __future__ import annotations

import json
import signal
import socket
from typing import Any

import pytest

from tests.support.deployment import push
from tests.support.keeper import wait_for_reports
from tests.support.project import Project, idle
from tests.support.redis import Client
from tests.support.waiting import eventually
from tests.support.witness import Witness

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.leaves("qd:fleet", "qd:restart")]
HOST = socket.gethostname()


def master(shop: Project) -> dict[str, Any]:
    """The report of the one that runs; {} before its first."""
    found = json.loads(shop.qd("status", "--json").stdout)["masters"]
    return dict(found[0]) if found else {}


@pytest.mark.parametrize("several", ["--prefetch", "--concurrency"])
def test_a_paused_job_waits_without_an_attempt_and_others_run(
    shop: Project, witness: Witness, redis: Client, several: str
) -> None:
    work = idle(shop, "--unroutable-ttl", "1s", several, "4")
    assert shop.qd("pause", "--job", "quick").returncode == 0
    wait_for_reports(redis, 1.5)
    push(redis, "quick", {"n": 1})
    push(redis, "slow", {"seconds": 0.0})
    witness.wait("start")
    work.wait_line("job.released .*job quick is paused", 20)
    found = json.loads(redis.call("ZRANGE", "queues:default:delayed", 0, 0)[0])
    assert (found["attempts"], found["held"] > 0) == (0, True)
    assert "job quick is paused by" in shop.qd("status").stdout
    assert not witness.starting("quick")
    assert shop.qd("resume", "--job", "quick").returncode == 0
    witness.wait("quick", seconds=30)
    work.stop()


@pytest.mark.parametrize("part", [("--host", HOST), ("--pool", "default")])
def test_a_paused_host_takes_nothing_nor_does_a_master_that_starts_there(
    shop: Project, witness: Witness, redis: Client, part: tuple[str, str]
) -> None:
    work = idle(shop, "--sleep", "60", "--force", workers=2)
    assert shop.qd("pause", *part).returncode == 0
    eventually(lambda: master(shop).get("state") == "paused")
    push(redis, "quick", {"n": 1})
    wait_for_reports(redis, 2.5)
    assert master(shop)["stuck"] == {}
    work.stop()
    work = shop.work("-w", "1", "--sleep", "60", "--force")
    eventually(lambda: master(shop).get("state") == "paused")
    wait_for_reports(redis, 1.5)
    assert not witness.lines
    assert shop.qd("resume", *part).returncode == 0
    witness.wait("quick", seconds=20)
    work.stop()


def test_scale_holds_until_a_reload_or_the_next_start(shop: Project, redis: Client) -> None:
    work = idle(shop, workers=1)
    assert shop.qd("scale", "default", "3").stdout == f"default@{HOST}: 3 workers, 1 configured\n"
    work.wait_line("master.resized workers=3", 20)
    eventually(lambda: len(master(shop)["workers"]) == 3)
    assert "3 (1 configured)" in shop.qd("status").stdout
    work.signal(signal.SIGHUP)
    work.wait_line("master.reloaded workers=1", 20)
    wait_for_reports(redis, 2.5)
    assert len(master(shop)["workers"]) == 1
    work.stop()
    work = idle(shop, workers=1)
    wait_for_reports(redis, 2.5)
    assert len(master(shop)["workers"]) == 1
    work.stop()


def test_only_the_masters_of_a_named_part_restart(shop: Project, redis: Client) -> None:
    work = idle(shop, workers=1)
    assert shop.qd("restart", "--host", "elsewhere", "--pool", "other", "--rolling").returncode == 0
    wait_for_reports(redis, 1.5)
    assert "reload" not in "".join(work.lines)
    assert shop.qd("restart", "--host", HOST, "--rolling", "--wait", "30").returncode == 0
    assert shop.qd("restart", "--pool", "default").returncode == 0
    work.wait_line("master.stopping reason=.qd restart", 20)
    work.ends_clean(code=0)
