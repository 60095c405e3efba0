"""`qd work` under the real supervisord, with the shipped program file: only paths, user and options are replaced."""

from __future__ import annotations

import getpass
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.deployment import Deployed, Supervisord, paused, push, ran, shipped
from tests.support.processes import titled
from tests.support.project import SOURCE
from tests.support.redis import Client
from tests.support.servers.redis import Server
from tests.support.waiting import eventually

Start = Callable[..., Supervisord]


@pytest.fixture
def shop(tmp_path: Path, server: Server) -> Deployed:
    return Deployed(tmp_path / "shop", server.url, sys.executable)


@pytest.fixture
def start(shop: Deployed, tmp_path: Path) -> Iterator[Start]:
    """start("--once", stopasgroup="true"): supervisord with qd as shipped, with more options to `qd work`."""
    running: list[Supervisord] = []
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)

    def begin(*options: str, **keys: str) -> Supervisord:
        replace = [("/srv/shop", str(shop.root)), ("user=shop", f"user={getpass.getuser()}")]
        replace += [("/var/log/supervisor", str(shop.root)), ("qd.toml\n", " ".join(["qd.toml", *options]) + "\n")]
        replace += [(f"\n{key}=", f"\n{key}={value} ;") for key, value in keys.items()]
        env = {key: value for key, value in os.environ.items() if not key.startswith(("QD_", "SUPERVISOR", "NOTIFY"))}
        env |= {"PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1", "XDG_RUNTIME_DIR": str(runtime)}
        running.append(Supervisord(shipped("qd.conf", replace), env))
        return running[-1].__enter__()

    yield begin
    for supervisord in running:
        print(shop.log(), file=sys.stderr)
        supervisord.__exit__()


def wait_for(shop: Deployed, line: str, seconds: float = 15.0) -> None:
    eventually(lambda: line in ran(shop.root), seconds, what=f"{line!r} from a job")


def new_release_runs(shop: Deployed, redis: Client, line: str, job: str, **data: object) -> None:
    """A job that is pushed again and again is run by the new release, which the line shows."""

    def runs() -> bool:
        push(redis, job, data)
        return line in ran(shop.root)

    eventually(runs, 20, every=0.2, what=f"{line!r} of the new release")


def test_file_as_shipped_runs_jobs_and_stops_clean(start: Start, shop: Deployed, redis: Client) -> None:
    supervisord = start()
    supervisord.started()
    push(redis, "note", {"text": "a"})
    wait_for(shop, "note a 1")
    assert supervisord.ctl("stop", "qd").returncode == 0
    assert "stopped: qd (exit status 0)" in supervisord.log
    assert supervisord.troubles() == []
    log = shop.log()
    assert all(word in log for word in ("master.started", "job.done", "master.stopped"))


def test_qd_restart_brings_new_code_by_a_respawn(start: Start, shop: Deployed, redis: Client) -> None:
    supervisord = start()
    first = supervisord.started()
    push(redis, "note", {"text": "a"})
    wait_for(shop, "note a 1")
    shop.release("2")
    done = shop.qd("restart")
    assert done.returncode == 0, done.stderr
    second = supervisord.started(2)
    assert first.pid != second.pid
    push(redis, "note", {"text": "b"})
    wait_for(shop, "note b 2")
    assert "exited: qd (exit status 0; expected)" in supervisord.log
    assert supervisord.troubles() == []


def test_reload_runs_the_new_release_in_the_same_program(start: Start, shop: Deployed, redis: Client) -> None:
    supervisord = start()
    supervisord.started()
    push(redis, "note", {"text": "a"})
    wait_for(shop, "note a 1")
    shop.release("2")
    assert supervisord.ctl("signal", "HUP", "qd").returncode == 0

    new_release_runs(shop, redis, "note b 2", "note", text="b")
    assert len(supervisord.starts()) == 1
    assert supervisord.troubles() == []


def test_jobs_run_in_the_folder_of_the_release_also_after_a_reload(start: Start, shop: Deployed, redis: Client) -> None:
    supervisord = start()  # its own PWD, which qd inherits, is another folder
    supervisord.started()
    push(redis, "where", {})
    wait_for(shop, f"where {shop.root}/releases/1")
    shop.release("2")
    assert supervisord.ctl("signal", "HUP", "qd").returncode == 0

    new_release_runs(shop, redis, f"where {shop.root}/releases/2", "where")


def test_app_that_leaves_a_thread_is_reloaded_all_the_same(
    start: Start, shop: Deployed, redis: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAVE_A_THREAD", "1")
    supervisord = start()
    supervisord.started()
    shop.release("2")
    assert supervisord.ctl("signal", "HUP", "qd").returncode == 0

    new_release_runs(shop, redis, "note b 2", "note", text="b")
    log = shop.log()
    assert "left-behind" in log
    assert " ERROR " not in log


def test_stop_when_empty_on_an_empty_queue_starts_again_and_again(start: Start) -> None:
    supervisord = start("--stop-when-empty")
    supervisord.started(4, seconds=120)
    assert supervisord.log.count("exited: qd (exit status 0; expected)") >= 3
    assert supervisord.troubles() == []


@pytest.mark.slow
def test_stop_when_empty_never_ends_in_fatal_in_two_minutes(start: Start) -> None:
    supervisord = start("--stop-when-empty")
    end = time.monotonic() + 120
    eventually(lambda: supervisord.troubles() or time.monotonic() > end, 130, every=1)
    assert supervisord.troubles() == []
    assert 20 < len(supervisord.starts()) <= 80  # no hot loop either


def test_memory_exit_of_the_whole_program_is_respawned(start: Start, shop: Deployed, redis: Client) -> None:
    push(redis, "grow", {"megabytes": 40})  # waits for the program: it is over its limit as soon as it can be
    supervisord = start("--no-respawn", "--memory", "20M")
    supervisord.started(2)
    assert "exited: qd (exit status 12;" in supervisord.log
    push(redis, "note", {"text": "after"})
    wait_for(shop, "note after 1")
    assert supervisord.troubles() == []


def test_killed_master_leaves_no_orphan_and_its_job_runs_again(start: Start, shop: Deployed, redis: Client) -> None:
    supervisord = start()
    master = supervisord.started()
    push(redis, "wait", {"text": "a"})
    wait_for(shop, "begin a 1")
    family = [master, *master.children(recursive=True)]
    assert len(family) > 1
    master.kill()
    supervisord.started(2)
    assert psutil.wait_procs(family, timeout=5)[1] == []
    eventually(lambda: ran(shop.root).count("begin a 1") == 2, 20, what="the job once more")
    (shop.root / "go-a").touch()
    wait_for(shop, "end a 1")
    assert ran(shop.root).count("end a 1") == 1
    assert len(supervisord.starts()) == 2


def test_usr2_pauses_and_cont_resumes(start: Start, shop: Deployed, redis: Client) -> None:
    supervisord = start()
    supervisord.started()
    push(redis, "note", {"text": "a"})
    wait_for(shop, "note a 1")
    for _ in range(2):  # set, not toggled
        assert supervisord.ctl("signal", "USR2", "qd").returncode == 0
    eventually(lambda: paused(redis, ""), 20, what="a master that reports a pause")
    push(redis, "note", {"text": "b"})
    assert paused(redis, "")
    assert redis.call("LLEN", "queues:default") == 1
    assert supervisord.ctl("signal", "CONT", "qd").returncode == 0
    wait_for(shop, "note b 1")
    eventually(lambda: not paused(redis, ""), 20, what="a master that reports no pause")


def test_stop_with_stopasgroup_lets_the_current_job_finish(start: Start, shop: Deployed, redis: Client) -> None:
    supervisord = start(stopasgroup="true")
    supervisord.started()
    push(redis, "wait", {"text": "a"})
    wait_for(shop, "begin a 1")
    stop = supervisord.begin("stop", "qd")
    eventually(lambda: "STOPPING" in supervisord.ctl("status", "qd").stdout, 20, what="STOPPING")
    (shop.root / "go-a").touch()
    assert stop.wait(20) == 0
    assert ran(shop.root) == ["begin a 1", "end a 1"]
    assert "stopped: qd (exit status 0)" in supervisord.log
    assert redis.call("ZCARD", "queues:default:reserved") == 0
    assert supervisord.troubles() == []


def test_stop_hands_an_unfinished_job_back_before_supervisord_kills(
    start: Start, shop: Deployed, redis: Client
) -> None:
    supervisord = start("--stop-timeout", "1")
    supervisord.started()
    push(redis, "wait", {"text": "a"})
    wait_for(shop, "begin a 1")
    assert supervisord.ctl("stop", "qd").returncode == 0
    assert "stopped: qd (exit status 0)" in supervisord.log
    assert supervisord.troubles() == []
    assert redis.call("LLEN", "queues:default") == 1
    assert b'"attempts":0' in redis.call("LINDEX", "queues:default", 0)


def test_one_term_while_qd_stops_by_itself_lets_the_job_finish(start: Start, shop: Deployed, redis: Client) -> None:
    supervisord = start()
    supervisord.started()
    push(redis, "wait", {"text": "a"})
    wait_for(shop, "begin a 1")
    assert shop.qd("restart").returncode == 0
    eventually(lambda: "master.stopping" in shop.log(), 20, what="a master that drains")
    began = time.monotonic()
    eventually(lambda: time.monotonic() > began + 1.2)  # signals within a second are one, so let it pass
    stop = supervisord.begin("stop", "qd")
    eventually(lambda: "STOPPING" in supervisord.ctl("status", "qd").stdout, 20, what="STOPPING")
    with pytest.raises(subprocess.TimeoutExpired):
        stop.wait(3)  # more than a job has after the second TERM
    (shop.root / "go-a").touch()
    assert stop.wait(20) == 0
    assert ran(shop.root) == ["begin a 1", "end a 1"]
    assert "stopped: qd (exit status 0)" in supervisord.log


def test_term_ends_the_wait_for_the_least_uptime(start: Start, shop: Deployed) -> None:
    supervisord = start("--stop-when-empty", "--min-uptime", "600")
    supervisord.started()
    eventually(lambda: "master.stopping" in shop.log(), 20, what="an empty queue")
    assert supervisord.ctl("stop", "qd").returncode == 0
    assert "stopped: qd (exit status 0)" in supervisord.log
    assert supervisord.troubles() == []


def test_redis_away_at_the_start_is_waited_for(start: Start, shop: Deployed) -> None:
    with Server() as late:
        shop.point(late.url)
        late.kill()
        supervisord = start()
        program = supervisord.started()
        eventually(lambda: len(program.children(recursive=True)) > 1, 20, what="workers, with Redis away")
        late.start()
        with late.client() as redis:
            push(redis, "note", {"text": "a"})
            wait_for(shop, "note a 1", 30)
            # An ack whose answer is missed would hold up the end until the stop's deadline.
            eventually(lambda: len(idle(program)) == 2, what="workers that know of the ack")
        assert len(supervisord.starts()) == 1
        assert supervisord.troubles() == []


def idle(program: psutil.Process) -> list[psutil.Process]:
    return [child for child in program.children(recursive=True) if "waiting on" in titled(child)]


def test_wrong_configuration_is_tried_again_ever_more_slowly(start: Start, shop: Deployed) -> None:
    shop.break_config()
    supervisord = start()
    eventually(lambda: len(supervisord.starts()) >= 3, 20, what="3 starts")
    assert "exited: qd (exit status 78; not expected)" in supervisord.log
    assert "FATAL" not in supervisord.log


def test_stopping_supervisord_stops_qd(start: Start, shop: Deployed, redis: Client) -> None:
    supervisord = start()
    master = supervisord.started()
    family = [master, *master.children(recursive=True)]
    os.kill(supervisord.pid, signal.SIGTERM)
    assert psutil.wait_procs(family, timeout=20)[1] == []
    eventually(lambda: "stopped: qd (exit status 0)" in supervisord.log, 20)
