"""`qd work` under a real systemd, with the unit as shipped: the rig provides /srv/shop, the user and the pools."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import deployment
from tests.support.deployment import SCHEDULE, Deployed, paused, push, ran, shipped
from tests.support.keeper import wait_for_reports
from tests.support.programs import program
from tests.support.redis import Client
from tests.support.servers.redis import Server
from tests.support.waiting import eventually

pytestmark = pytest.mark.xdist_group("systemd")

TIMED = ("timed", "timed-watched", "timed-drain")  # instances that run `qd schedule work`
POOLS = (
    *TIMED,
    "main",
    "paused",
    "killed",
    "watched",
    "pinged",
    "empty",
    "fat",
    "drain",
    "broken",
    "plain",
    "seen",
    "unseen",
)
SHARED = {"unseen": "seen"}  # pool -> the queue it works, where that is another pool's
CONFIG = "\n".join(f'[pools.{name}]\nqueues = ["{SHARED.get(name, name)}"]\nworkers = 2\n' for name in POOLS) + SCHEDULE
ENVIRONMENT = {
    "empty": "QD_STOP_WHEN_EMPTY=1",
    "fat": "QD_NO_RESPAWN=1\nQD_MEMORY=20M",
    "drain": "QD_STOP_TIMEOUT=0",
    "broken": "QD_TIMEOUT=soon",
    "timed": "QD_ENV=schedule",
    "timed-watched": "QD_ENV=schedule",
    "timed-drain": "QD_ENV=schedule\nQD_STOP_TIMEOUT=0",
}
SCHEDULER = (
    "[Service]\nExecStart=\n"
    "ExecStart=/srv/shop/current/.venv/bin/qd schedule work --config /srv/shop/current/qd.toml --pool %i\n"
)
# What would take too long to wait for; all else is as shipped.
DROP_INS = {
    "watched": "[Service]\nWatchdogSec=2\nRestartSec=100ms",
    "pinged": "[Service]\nWatchdogSec=4",  # which a master that is held up for a moment bears
    "empty": "[Service]\nRestartSec=100ms",
    "drain": "[Service]\nTimeoutStopSec=2",
    "seen": "[Service]\nUser=qd-seen\nDynamicUser=yes",  # a user of its own; sees no other's processes
    "unseen": "[Service]\nUser=qd-unseen\nDynamicUser=yes",
    "timed": SCHEDULER + "RestartSec=100ms",
    "timed-watched": SCHEDULER + "WatchdogSec=2\nRestartSec=100ms",
    "timed-drain": SCHEDULER + "TimeoutStopSec=2\nRestartSec=100ms",
}


class Pool:
    """One instance of the unit, started by its name, stopped at the end; its jobs write below its StateDirectory."""

    def __init__(self, rig: deployment.SystemdRig, name: str) -> None:
        self.rig, self.name, self.unit = rig, name, f"qd@{name}.service"
        self.home = rig.path(f"/var/lib/qd/{name}")

    def show(self, name: str) -> str:
        return self.rig.show(self.unit, name)

    def state(self) -> str:
        return self.rig.state(self.unit)

    def restarted(self, count: int = 1, seconds: float = 20.0) -> None:
        """Waits until systemd has started it again `count` times and it is ready."""
        eventually(
            lambda: int(self.show("NRestarts")) >= count and self.state() == "active",
            seconds,
            every=0.05,
            what=f"restart {count} of {self.unit}",
        )

    def wait_for(self, line: str, seconds: float = 15.0) -> None:
        eventually(lambda: line in ran(self.home), seconds, what=f"{line!r} from a job of {self.name}")


@pytest.fixture(scope="module")
def shop(shared_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Deployed:
    folder = tmp_path_factory.mktemp("srv")
    made = Deployed(folder / "shop", shared_server.tcp_url, deployment.python_inside()[0], CONFIG)
    folder.chmod(0o755)
    return made


@pytest.fixture(scope="module")
def rig(shop: Deployed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[deployment.SystemdRig]:
    deployment.require_systemd()
    units, etc = tmp_path_factory.mktemp("units"), tmp_path_factory.mktemp("etc")
    (units / "qd@.service").write_text(shipped("qd@.service"))
    for name, text in DROP_INS.items():
        (units / f"qd@{name}.service.d").mkdir()
        (units / f"qd@{name}.service.d" / "test.conf").write_text(text + "\n")
    for name, text in ENVIRONMENT.items():
        (etc / f"{name}.env").write_text(text + "\n")
    mounts = [*deployment.python_inside()[1], f"{shop.root}:/srv/shop:ro", f"{etc}:/etc/qd:ro"]
    with deployment.SystemdRig(tmp_path_factory.mktemp("rig") / "rig", units, mounts) as booted:
        yield booted


@pytest.fixture
def pool(rig: deployment.SystemdRig, redis: Client, request: pytest.FixtureRequest) -> Iterator[Pool]:
    """The instance that @pytest.mark.parametrize("pool", [...], indirect=True) names, started."""
    started = Pool(rig, request.param)
    rig.systemctl("start", started.unit)
    yield started
    print(rig.journal(started.unit))
    rig.systemctl("stop", started.unit)


def instance(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("pool", [name], indirect=True)


# --- the file itself -------------------------------------------------------------------------------------------------


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The shipped unit, with a program that exists."""
    program("systemd-analyze")
    (tmp_path / "qd@.service").write_text(shipped("qd@.service", [("/srv/shop/current/.venv/bin/qd", "/bin/true")]))
    return tmp_path / "qd@.service"


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_unit_has_no_key_that_systemd_passes_over(unit: Path) -> None:
    done = analyze("verify", unit)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")  # warnings alone leave the exit code at 0


def test_unit_is_well_contained(unit: Path) -> None:
    done = analyze("security", "--offline=true", "--threshold=15", unit)  # 15 = an exposure of 1.5
    assert done.returncode == 0, done.stdout


# --- booted ----------------------------------------------------------------------------------------------------------


@instance("main")
def test_start_returns_when_workers_are_ready_and_they_run_jobs(pool: Pool, redis: Client) -> None:
    assert pool.state() == "active"
    assert len(pool.rig.pids(pool.unit)) >= 3  # the master and two workers
    assert "2" in pool.show("StatusText")
    push(redis, "note", {"text": "a"}, "main")
    pool.wait_for("note a 1")
    assert pool.show("NRestarts") == "0"


@instance("main")
def test_log_lines_arrive_in_the_journal_one_by_one(pool: Pool) -> None:
    lines = pool.rig.run("journalctl", "-u", pool.unit, "-o", "json", "--no-pager").stdout.splitlines()
    ours = [json.loads(line) for line in lines if json.loads(line).get("_TRANSPORT") == "stdout"]
    assert any("master[" in entry["MESSAGE"] for entry in ours)
    assert all("\n" not in entry["MESSAGE"] for entry in ours)


@instance("plain")
def test_reload_runs_the_new_release_and_the_unit_stays_up(pool: Pool, shop: Deployed, redis: Client) -> None:
    push(redis, "note", {"text": "a"}, "plain")
    pool.wait_for("note a 1")
    master = pool.show("MainPID")
    shop.release("2")
    try:
        pool.rig.systemctl("reload", pool.unit)

        def new_code() -> bool:
            push(redis, "note", {"text": "b"}, "plain")
            return "note b 2" in ran(pool.home)

        eventually(new_code, 20, every=0.2, what="a job run by the new release")
        eventually(lambda: pool.state() == "active", 20, what="the end of the reload")
        push(redis, "where", {}, "plain")
        pool.wait_for("where /srv/shop/releases/2")
        assert (pool.show("MainPID"), pool.show("NRestarts"), pool.show("Result")) == (master, "0", "success")
    finally:
        shop.back_to("1")


@instance("watched")
def test_stuck_master_is_ended_by_the_watchdog_and_replaced(pool: Pool, redis: Client) -> None:
    family = pool.rig.pids(pool.unit)
    pool.rig.systemctl("kill", "-s", "STOP", "--kill-whom=main", pool.unit)
    pool.restarted(1)
    assert "Watchdog timeout" in pool.rig.journal(pool.unit)
    assert not set(family) & set(pool.rig.pids(pool.unit))
    push(redis, "note", {"text": "a"}, "watched")
    pool.wait_for("note a 1")


@instance("pinged")
def test_master_that_only_waits_pings_the_watchdog(pool: Pool) -> None:
    before = int(pool.show("WatchdogTimestampMonotonic"))
    eventually(lambda: int(pool.show("WatchdogTimestampMonotonic")) > before + 3_000_000, 20, what="3 s of pings")
    assert pool.state() == "active"


@instance("paused")
def test_stop_while_paused_takes_no_further_job_and_succeeds(pool: Pool, redis: Client) -> None:
    pool.rig.systemctl("kill", "-s", "USR2", pool.unit)  # to every process of the unit, as systemctl does unasked
    eventually(lambda: paused(redis, "paused"), 20, what="a master that reports a pause")
    eventually(lambda: "paused" in pool.show("StatusText"), 20, what="a status line with the pause")
    push(redis, "note", {"text": "a"}, "paused")
    pool.rig.systemctl("stop", pool.unit)  # TERM, and at once CONT
    assert (pool.state(), pool.show("Result")) == ("inactive", "success")
    assert redis.call("LLEN", "queues:paused") == 1
    assert ran(pool.home) == []


@instance("paused")
def test_cont_resumes(pool: Pool, redis: Client) -> None:
    pool.rig.systemctl("kill", "-s", "USR2", "--kill-whom=main", pool.unit)
    eventually(lambda: paused(redis, "paused"), 20, what="a master that reports a pause")
    push(redis, "note", {"text": "b"}, "paused")
    pool.rig.systemctl("kill", "-s", "CONT", "--kill-whom=main", pool.unit)
    pool.wait_for("note b 1")


@instance("killed")
def test_killed_master_is_replaced_and_its_job_runs_again(pool: Pool, redis: Client) -> None:
    push(redis, "wait", {"text": "a"}, "killed")
    pool.wait_for("begin a 1")
    family = pool.rig.pids(pool.unit)
    pool.rig.systemctl("kill", "-s", "KILL", "--kill-whom=main", pool.unit)
    pool.restarted(1)
    assert pool.show("NRestarts") == "1"
    assert not [pid for pid in family if pool.rig.path(f"/proc/{pid}").exists()]
    eventually(lambda: ran(pool.home).count("begin a 1") == 2, 20, what="the job once more")
    (pool.home / "go-a").touch()
    pool.wait_for("end a 1")


@instance("seen")
def test_a_master_whose_processes_cannot_be_seen_is_not_taken_for_dead(pool: Pool, redis: Client) -> None:
    """Both share host, boot and pid namespace; only what their units hide from each other keeps one from asking."""
    push(redis, "wait", {"text": "long"}, "seen")
    pool.wait_for("begin long 1")
    other = Pool(pool.rig, "unseen")
    pool.rig.systemctl("start", other.unit)
    try:
        first, second = eventually(lambda: of_the_host(redis), 20, what="two reports of one host")
        assert first["ns"] == second["ns"]
        one, two = (pool.rig.path(f"/proc/{unit.show('MainPID')}").stat().st_uid for unit in (pool, other))
        assert one != two
        push(redis, "note", {"text": "short"}, "seen")
        eventually(lambda: "note short 1" in ran(pool.home) + ran(other.home), 20, what="a job of one of them")
        wait_for_reports(redis, 1.5)  # the second has looked for dead masters since
        (pool.home / "go-long").touch()
        pool.wait_for("end long 1")
        assert not [line for line in ran(pool.home) + ran(other.home) if line.startswith("begin")][1:]
        assert "requeued" not in pool.rig.journal(other.unit)
    finally:
        pool.rig.systemctl("stop", other.unit)


def of_the_host(redis: Client) -> list[dict[str, Any]] | None:
    """The reports of the pools seen and unseen, once both are there."""
    reports = [json.loads(text) for text in redis.hash("qd:masters").values()]
    found = [report for report in reports if report["pool"] in ("seen", "unseen")]
    return found if len(found) == 2 else None


@instance("drain")
def test_drain_that_outlasts_the_stop_timeout_asks_for_more_time(pool: Pool, redis: Client) -> None:
    push(redis, "wait", {"text": "a"}, "drain")
    pool.wait_for("begin a 1")
    pool.rig.systemctl("stop", "--no-block", pool.unit)
    eventually(lambda: pool.state() == "deactivating", 20)
    asked = time.monotonic()
    eventually(lambda: time.monotonic() > asked + 4 or pool.state() != "deactivating", 20, every=0.1)  # twice the limit
    assert pool.state() == "deactivating"
    (pool.home / "go-a").touch()
    eventually(lambda: pool.state() == "inactive", 20, what="the end of the drain")
    assert pool.show("Result") == "success"
    assert ran(pool.home) == ["begin a 1", "end a 1"]


# --- qd schedule work


def ticks(pool: Pool, release: str = "1") -> None:
    """Ticks go on."""
    before = ran(pool.home).count(f"tick {release}")
    eventually(lambda: ran(pool.home).count(f"tick {release}") > before + 1, 20, what=f"ticks by release {release}")


@instance("timed")
def test_the_scheduler_alone_is_ready_reloads_pauses_and_restarts(
    pool: Pool, rig: deployment.SystemdRig, shop: Deployed, redis: Client
) -> None:
    (pool.home / "go-hold").touch()
    assert pool.state() == "active"
    assert "scheduler" in pool.show("StatusText")
    ticks(pool)
    master = pool.show("MainPID")
    shop.release("3")
    try:
        rig.systemctl("reload", pool.unit)
        ticks(pool, "3")
        assert (pool.show("MainPID"), pool.show("NRestarts")) == (master, "0")
    finally:
        shop.back_to("1")
    rig.systemctl("kill", "-s", "USR2", "--kill-whom=main", pool.unit)
    eventually(lambda: paused(redis, "timed"), 20, what="a master that reports a pause")
    rig.systemctl("kill", "-s", "CONT", "--kill-whom=main", pool.unit)
    ticks(pool, "3")
    assert shop.qd("restart").returncode == 0
    pool.restarted(1)
    ticks(pool)
    assert pool.show("Result") == "success"


@instance("timed-watched")
def test_stuck_and_killed_masters_of_a_scheduler_leave_nothing_and_are_replaced(
    pool: Pool, rig: deployment.SystemdRig
) -> None:
    for count, number in ((1, "STOP"), (2, "KILL")):
        ticks(pool)
        family = rig.pids(pool.unit)
        rig.systemctl("kill", "-s", number, "--kill-whom=main", pool.unit)
        pool.restarted(count)
        assert not [pid for pid in family if rig.path(f"/proc/{pid}").exists()]
    assert "Watchdog timeout" in rig.journal(pool.unit)
    ticks(pool)
    (pool.home / "go-hold").touch()


@instance("timed-drain")
def test_a_run_that_outlasts_the_stop_timeout_asks_for_more_time(pool: Pool, rig: deployment.SystemdRig) -> None:
    pool.wait_for("begin hold 1")
    rig.systemctl("stop", "--no-block", pool.unit)
    eventually(lambda: pool.state() == "deactivating", 20)
    asked = time.monotonic()
    eventually(lambda: time.monotonic() > asked + 4 or pool.state() != "deactivating", 20, every=0.1)  # twice the limit
    assert pool.state() == "deactivating"
    (pool.home / "go-hold").touch()
    eventually(lambda: pool.state() == "inactive", 20, what="the end of the drain")
    assert pool.show("Result") == "success"
    assert ran(pool.home)[-1] == "end hold 1"


@instance("fat")
def test_memory_exit_is_restarted_and_is_no_failure(pool: Pool, redis: Client) -> None:
    push(redis, "grow", {"megabytes": 40}, "fat")
    pool.restarted(1)
    eventually(lambda: "master.stopped jobs=1 handed_back=0 exit=12" in pool.rig.journal(pool.unit), 20, what="exit 12")
    journal = pool.rig.journal(pool.unit)
    assert "Failed with result" not in journal
    assert "Deactivated successfully" in journal


def test_wrong_configuration_is_not_tried_again(rig: deployment.SystemdRig, redis: Client) -> None:
    done = rig.run("systemctl", "start", "qd@broken")
    assert done.returncode != 0
    eventually(lambda: rig.state("qd@broken") == "failed", 20)
    assert (rig.show("qd@broken", "NRestarts"), rig.show("qd@broken", "ExecMainStatus")) == ("0", "78")


@instance("empty")
def test_stop_when_empty_restarts_without_end(pool: Pool) -> None:
    pool.restarted(6, seconds=120)  # a start limit would have ended it at 5 in 10 s
    assert pool.show("Result") == "success"
    assert "start-limit" not in pool.rig.journal(pool.unit)


@pytest.mark.slow
@instance("empty")
def test_stop_when_empty_restarts_for_two_minutes(pool: Pool) -> None:
    end = time.monotonic() + 120
    eventually(lambda: time.monotonic() > end or pool.state() == "failed", 130, every=1)
    assert pool.show("Result") == "success"
    assert 5 < int(pool.show("NRestarts")) < 90  # beyond any start limit, and with RestartSec between them


def test_rig_leaves_the_machine_as_it_was(rig: deployment.SystemdRig) -> None:
    assert rig.run("hostname").stdout.strip() == "rig"
    assert os.uname().nodename != "rig"
    assert not Path("/srv/shop").exists() or not Path("/srv/shop/releases/1/jobs.py").exists()


# --- qd health --live, qd doctor -------------------------------------------------------------------------------------


@instance("plain")
def test_the_probe_of_the_page_finds_the_sign_of_life_of_a_unit(pool: Pool) -> None:
    """setpriv replaces the sudo of the page, which the rig does not have."""
    user = ["setpriv", "--reuid=shop", "--clear-groups", "env", f"RUNTIME_DIRECTORY=/run/qd/{pool.name}"]
    probe = [*user, "/srv/shop/current/.venv/bin/qd", "health", "--live"]
    eventually(
        lambda: pool.rig.run(*probe).stdout.startswith("ok: 1 master here"), 20, every=0.2, what="a sign of life"
    )
    pool.rig.systemctl("stop", pool.unit)
    probed = pool.rig.run(*probe)
    assert (probed.returncode, "no master runs here" in probed.stdout) == (1, True)


@instance("plain")
def test_doctor_judges_loaded_units_with_their_drop_ins(pool: Pool) -> None:
    folder, file = pool.rig.path(f"/run/systemd/system/{pool.unit}.d"), "/srv/shop/current/qd.toml"
    what = ["/srv/shop/current/.venv/bin/qd", "doctor", "--json", "--config", file]

    def status_of_unit() -> tuple[str, str]:
        checks = json.loads(pool.rig.run("env", "HOME=/root", *what).stdout)["checks"]
        return next((each["sign"], each["value"]) for each in checks if each["what"] == pool.unit)

    assert status_of_unit() == ("ok", "Restart=always, KillMode=mixed")
    folder.mkdir()
    (folder / "mine.conf").write_text("[Service]\nKillMode=control-group\n")
    pool.rig.systemctl("daemon-reload")
    sign, message = status_of_unit()
    assert (sign, message.startswith("KillMode=control-group: a stop sends TERM to every process")) == ("fail", True)
    (folder / "mine.conf").unlink()
    pool.rig.systemctl("daemon-reload")
    assert status_of_unit()[0] == "ok"
