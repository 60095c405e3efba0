"""`qd schedule work` under the real supervisord, with the shipped program file and another word in its command."""

from __future__ import annotations

import getpass
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.deployment import SCHEDULE, Deployed, Supervisord, paused, ran, shipped
from tests.support.processes import titled
from tests.support.project import SOURCE
from tests.support.redis import Client
from tests.support.servers.redis import Server
from tests.support.waiting import eventually


@pytest.fixture
def shop(tmp_path: Path, server: Server) -> Deployed:
    return Deployed(tmp_path / "shop", server.url, sys.executable, SCHEDULE)


@pytest.fixture
def supervisord(shop: Deployed, tmp_path: Path) -> Iterator[Supervisord]:
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    replace = [("/srv/shop", str(shop.root)), ("user=shop", f"user={getpass.getuser()}")]
    replace += [("/var/log/supervisor", str(shop.root)), ("/qd work ", "/qd schedule work ")]
    env = {key: value for key, value in os.environ.items() if not key.startswith(("QD_", "SUPERVISOR", "NOTIFY"))}
    env |= {"PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1", "XDG_RUNTIME_DIR": str(runtime)}
    env |= {"QD_ENV": "schedule"}
    with Supervisord(shipped("qd.conf", replace), env) as started:
        yield started
        print(shop.log(), file=sys.stderr)


def ticks(shop: Deployed, release: str = "1") -> int:
    return ran(shop.root).count(f"tick {release}")


def more(shop: Deployed, release: str = "1") -> None:
    """Ticks go on."""
    before = ticks(shop, release)
    eventually(lambda: ticks(shop, release) > before + 1, 20, what=f"ticks run by release {release}")


def test_it_runs_entries_and_stops_clean_when_what_runs_is_over(supervisord: Supervisord, shop: Deployed) -> None:
    master = supervisord.started()
    more(shop)
    assert "qd: master [schedule] scheduler" in titled(master)
    eventually(lambda: "begin hold 1" in ran(shop.root), 20, what="a run")
    stop = supervisord.begin("stop", "qd")
    eventually(lambda: "master.stopping" in shop.log(), 20, what="a master that drains")
    (shop.root / "go-hold").touch()
    assert stop.wait(20) == 0
    assert "end hold 1" in ran(shop.root)  # it was waited for
    assert "stopped: qd (exit status 0)" in supervisord.log
    assert supervisord.troubles() == []


def test_restart_and_reload_run_the_new_release(supervisord: Supervisord, shop: Deployed) -> None:
    (shop.root / "go-hold").touch()
    first = supervisord.started()
    more(shop)
    shop.release("2")
    assert supervisord.ctl("signal", "HUP", "qd").returncode == 0
    more(shop, "2")
    assert len(supervisord.starts()) == 1
    shop.release("3")
    done = shop.qd("restart", "--wait", "40")
    assert done.returncode == 0, done.stderr
    assert supervisord.started(2).pid != first.pid
    more(shop, "3")
    assert "exited: qd (exit status 0; expected)" in supervisord.log
    assert supervisord.troubles() == []


def test_pause_resume_and_an_early_restart(supervisord: Supervisord, shop: Deployed, redis: Client) -> None:
    """A restart within startsecs is no failed start: it stays for its least uptime."""
    (shop.root / "go-hold").touch()
    eventually(lambda: redis.hash("qd:masters"), 20, what="a report of the first start")
    assert shop.qd("restart").returncode == 0
    supervisord.started(2)
    for _ in range(2):  # set, not toggled
        assert supervisord.ctl("signal", "USR2", "qd").returncode == 0
    eventually(lambda: paused(redis, "schedule"), 20, what="a master that reports a pause")
    assert supervisord.ctl("signal", "CONT", "qd").returncode == 0
    more(shop)
    assert supervisord.troubles() == []


def test_killed_master_leaves_nothing_running_and_is_started_again(
    supervisord: Supervisord, shop: Deployed, redis: Client
) -> None:
    master = supervisord.started()
    eventually(lambda: "begin hold 1" in ran(shop.root), 20, what="a run")
    family = [master, *master.children(recursive=True)]
    assert [each for each in family if "qd: run hold" in titled(each)]
    master.send_signal(signal.SIGKILL)
    supervisord.started(2)
    assert psutil.wait_procs(family, timeout=5)[1] == []
    more(shop)
    reports = lambda: [json.loads(raw)["schedulers"] for raw in redis.hash("qd:masters").values()]  # noqa: E731
    eventually(
        lambda: [[report["entries"] for report in one] for one in reports()] == [[2]], 20, what="its report alone"
    )
    (shop.root / "go-hold").touch()
