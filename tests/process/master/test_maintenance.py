"""Maintenance mode on running `qd work`: several hosts, allowed queues, an end by itself, --once."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.support.deployment import push
from tests.support.keeper import wait_for_beat, wait_for_reports
from tests.support.processes import QD, Procs, titled
from tests.support.programs import program
from tests.support.project import MakeProject, Project, idle
from tests.support.redis import Client
from tests.support.servers.redis import Server
from tests.support.waiting import eventually
from tests.support.witness import JOBS, Witness

pytestmark = pytest.mark.usefixtures("clean_redis")

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "maintenance.md"
HELD = (
    JOBS
    + """
@app.job("held")
def held_job() -> None:
    note("start")
    held()
    note("end")
"""
)


def is_down(work: Procs) -> bool:
    return titled(psutil.Process(work.pid)).endswith(", down")


def all_down(*works: Procs) -> None:
    """Until each of them knows. The promise is 2 s; a loaded machine may take longer to show it."""
    for work in works:
        eventually(partial(is_down, work), 20, what="a master that shows down")


def done(shop: Project, *words: str) -> str:
    ran = shop.quick(*words)
    assert ran.exit_code == 0, ran.stderr
    return ran.stdout


def shows(shop: Project, text: str) -> None:
    """Until `qd status` shows it. A report may be a second old."""
    eventually(lambda: text in done(shop, "status"), 20, what=f"{text!r} in `qd status`")


def numbers(witness: Witness) -> list[int]:
    return sorted(int(line.split()[1]) for line in witness.starting("quick"))


# -- the whole of it


def test_every_host_finishes_running_jobs_and_holds_the_others_until_up(
    shop: Project, witness: Witness, redis: Client
) -> None:
    shop.allowed.add("go")
    shop.jobs(HELD)
    hosts = [idle(shop, "--sleep", "60", workers=2), idle(shop, "--sleep", "60", workers=2)]
    push(redis, "held", {})
    witness.wait("start")
    assert "maintenance mode is on until `qd up`\n" in shop.qd("down", "--reason", "a migration").stdout
    all_down(*hosts)
    for number in range(50):
        push(redis, "quick", {"n": number})
    wait_for_beat(redis)
    (shop.root / "go").touch()
    witness.wait("end")
    wait_for_beat(redis)
    assert not witness.starting("quick")
    eventually(lambda: redis.call("ZCARD", "queues:default:reserved") == 0)  # the server has the end of the job, too
    assert redis.call("LLEN", "queues:default") == 50
    assert '"a migration"' in done(shop, "status")
    done(shop, "up")
    witness.wait("quick", 50)
    assert numbers(witness) == list(range(50))
    for host in hosts:
        host.stop()


def test_until_ends_it_by_itself(shop: Project, witness: Witness, redis: Client) -> None:
    work = idle(shop, "--sleep", "60")
    done(shop, "down", "--until", "10m")
    all_down(work)
    push(redis, "quick", {})
    wait_for_beat(redis)
    assert not witness.lines
    assert 0 < redis.call("PTTL", "qd:down") <= 600_000
    redis.call("PEXPIRE", "qd:down", 1)
    witness.wait("quick")
    assert redis.call("EXISTS", "qd:down") == 0
    assert done(shop, "up") == "maintenance mode was not on\n"
    work.stop()


@pytest.fixture
def durable() -> object:
    with Server("--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


def test_a_restarted_server_has_not_forgotten_it(project: MakeProject, durable: Server) -> None:
    shop = project(JOBS, url=durable.url)
    witness = Witness(shop)
    work = idle(shop)
    done(shop, "down", "--until", "1h", "--allow", "high")
    all_down(work)
    durable.kill()
    work.wait_line("redis.away")
    durable.start()
    work.wait_line("redis.back")
    client = durable.client()
    push(client, "quick", {})
    wait_for_beat(client)
    assert not witness.lines
    assert "but for high" in done(shop, "status")
    assert 0 < client.call("PTTL", "qd:down") <= 3_600_000
    done(shop, "up")
    witness.wait("quick")
    work.stop()
    client.close()


# -- allowed queues


def test_allowed_queues_go_on_whatever_their_place_on_a_host(shop: Project, witness: Witness, redis: Client) -> None:
    hosts = [idle(shop, "a", "high", "--sleep", "60"), idle(shop, "high", "b", "--sleep", "60")]
    third = idle(shop, "c", "--sleep", "60")
    done(shop, "down", "--allow", "high,mail")
    all_down(*hosts, third)
    for number, queue in enumerate(["a", "b", "c", *["high"] * 10]):
        push(redis, "quick", {"n": number}, queue)
    witness.wait("quick", 10)
    wait_for_beat(redis)
    assert numbers(witness) == list(range(3, 13))
    assert hosts[0].child("waiting on high")
    assert third.child(" down")
    assert ", but for high, mail; `qd up` ends it" in done(shop, "status")
    done(shop, "up")
    witness.wait("quick", 13, 20)  # long before --sleep is over
    for host in (*hosts, third):
        host.stop()


def test_the_call_that_takes_from_an_open_queue_acks_the_job_of_a_shut_queue(
    shop: Project, witness: Witness, redis: Client
) -> None:
    shop.allowed.add("go")
    shop.jobs(HELD)
    work = idle(shop, "low", "high")
    push(redis, "held", {}, "low")
    witness.wait("start")
    done(shop, "down", "--allow", "high")
    all_down(work)
    push(redis, "quick", {"n": 1}, "low")
    push(redis, "quick", {"n": 2}, "high")
    (shop.root / "go").touch()
    witness.wait("quick")
    eventually(lambda: redis.call("ZCARD", "queues:low:reserved") + redis.call("ZCARD", "queues:high:reserved") == 0)
    assert (numbers(witness), redis.call("LLEN", "queues:low")) == ([2], 1)
    done(shop, "up")
    witness.wait("quick", 2)
    work.stop()


def test_a_second_down_takes_the_place_of_the_first_on_every_host(
    shop: Project, witness: Witness, redis: Client
) -> None:
    work = idle(shop, "a", "b")
    done(shop, "down", "--allow", "a", "--reason", "first")
    all_down(work)
    push(redis, "quick", {"n": 1}, "a")
    witness.wait("quick")
    output = done(shop, "down", "--allow", "b")
    assert "it was already on by" in output
    assert 'but for a: "first"; this replaces it' in output
    push(redis, "quick", {"n": 2}, "b")
    witness.wait("quick", 2)
    push(redis, "quick", {"n": 3}, "a")
    wait_for_beat(redis)
    assert numbers(witness) == [1, 2]
    done(shop, "up")
    witness.wait("quick", 3)
    work.stop()


def test_a_reload_that_reorders_the_queues_still_takes_only_from_the_allowed_queue(
    project: MakeProject, redis: Client
) -> None:
    shop = project(JOBS, '[worker]\nqueues = ["high", "low"]\n')
    witness = Witness(shop)
    work = idle(shop)
    done(shop, "down", "--allow", "high")
    all_down(work)
    shop.config('[worker]\nqueues = ["low", "new", "high"]\n')
    work.signal(signal.SIGHUP)
    work.wait_line("master.reloaded")
    for number, queue in enumerate(("low", "new", "high")):
        push(redis, "quick", {"n": number}, queue)
    witness.wait("quick")
    wait_for_beat(redis)
    assert numbers(witness) == [2]
    done(shop, "up")
    witness.wait("quick", 3)
    work.stop()


# -- who comes later


def test_a_new_keeper_and_a_new_worker_know_it_before_anything_is_taken(
    shop: Project, witness: Witness, redis: Client
) -> None:
    done(shop, "down", "--allow", "high")
    push(redis, "quick", {"n": 1}, "low")
    push(redis, "quick", {"n": 2}, "high")
    work = shop.work("low", "high", "-w", "1")
    witness.wait("quick")
    work.child("qd: keeper").kill()
    work.wait_line("keeper.died")
    work.child("qd: keeper")
    work.child("waiting on high").kill()
    push(redis, "quick", {"n": 3}, "high")
    witness.wait("quick", 2)
    wait_for_beat(redis)
    assert numbers(witness) == [2, 3]
    done(shop, "up")
    witness.wait("quick", 3)
    work.stop()


# -- those that leave by themselves


@pytest.mark.parametrize("workers", ["1", "0"], ids=["master", "inline"])
def test_once_sleeps_and_leaves_without_a_job(shop: Project, witness: Witness, redis: Client, workers: str) -> None:
    done(shop, "down", "--allow", "high")
    push(redis, "quick", {"n": 1})
    push(redis, "quick", {"n": 2}, "high")
    began = time.monotonic()
    shop.work("-w", workers, "--once", "--sleep", "1").ends_clean()
    assert time.monotonic() - began >= 1.0
    assert not witness.lines
    shop.work("high", "-w", workers, "--once").ends_clean()
    assert numbers(witness) == [2]
    done(shop, "up")
    redis.call("DEL", "queues:default", "queues:default:notify")


@pytest.mark.parametrize("workers", ["2", "0"], ids=["master", "inline"])
def test_stop_when_empty_leaves_what_is_shut(shop: Project, witness: Witness, redis: Client, workers: str) -> None:
    done(shop, "down", "--allow", "high")
    push(redis, "quick", {"n": 1})
    push(redis, "quick", {"n": 2}, "high")
    work = shop.work("default", "-w", workers, "--stop-when-empty")
    work.ends_clean()
    assert work.matches('stopping reason="the queues are empty or held by maintenance mode"')
    assert not witness.lines
    shop.work("default", "high", "-w", workers, "--stop-when-empty").ends_clean()
    assert numbers(witness) == [2]
    work = shop.work("default", "-w", workers, "--stop-when-empty", "--force")
    work.ends_clean()
    assert work.matches('stopping reason="the queues are empty"')
    assert numbers(witness) == [1, 2]
    done(shop, "up")


# -- what may stand in the key


def test_an_unreadable_note_in_the_key_shuts_every_queue(shop: Project, witness: Witness, redis: Client) -> None:
    redis.call("SET", "qd:down", "")
    push(redis, "quick", {}, "high")
    work = shop.work("high", "-w", "1")
    all_down(work)
    redis.call("SET", "qd:down", '{"allow": "high", "until": 1e999, "by": "\\u001b[2J", "reason": "a\\nb"}')
    wait_for_beat(redis)
    assert work.child(" down")
    assert done(shop, "status").startswith('maintenance mode by \\x1b[2J: "a\\nb"; `qd up` ends it\n')
    assert not witness.lines
    assert done(shop, "up") == "maintenance mode is off\n"
    witness.wait("quick")
    work.stop()


def test_a_key_of_another_type_is_no_note_and_stops_no_beat(shop: Project, witness: Witness, redis: Client) -> None:
    redis.call("RPUSH", "qd:down", "x")
    push(redis, "quick", {})
    shop.work_off()
    assert len(witness.lines) == 1
    redis.call("DEL", "qd:down")


# -- Laravel's own


KEY = "cache:illuminate:foundation:down"
# As newer releases write it where the driver of maintenance mode is the cache: the payload of `artisan down`, serialized.
PAYLOAD = 'a:6:{s:6:"except";a:0:{}s:8:"redirect";N;s:5:"retry";N;s:7:"refresh";N;s:6:"secret";N;s:6:"status";i:503;}'


def test_laravels_key_shuts_every_queue_if_it_is_configured(project: MakeProject, redis: Client) -> None:
    shop = project(JOBS)
    shop.config(f'[laravel]\ncache_url = "{shop.url}"\ncache_prefix = "cache:"\ndown = true\n')
    witness = Witness(shop)
    redis.call("SET", KEY, PAYLOAD)
    push(redis, "quick", {})
    work = shop.work("-w", "1")
    all_down(work)
    shows(shop, "Laravel's maintenance mode on")
    shows(shop, "`php artisan up` ends it")
    done(shop, "down", "--allow", "default")
    wait_for_beat(redis)
    assert not witness.lines  # Laravel's knows no allowed queues
    assert "Laravel's own still holds (illuminate:foundation:down" in shop.qd("up").stderr
    redis.call("DEL", KEY)
    witness.wait("quick")
    assert "Laravel" not in eventually(lambda: output if "Laravel" not in (output := done(shop, "status")) else "", 20)
    work.stop()


def test_laravels_key_is_ignored_if_it_is_not_configured(project: MakeProject, redis: Client) -> None:
    shop = project(JOBS)
    shop.config(f'[laravel]\ncache_url = "{shop.url}"\ncache_prefix = "cache:"\n')
    witness = Witness(shop)
    redis.call("SET", KEY, PAYLOAD)
    push(redis, "quick", {})
    shop.work_off()
    assert len(witness.lines) == 1
    assert done(shop, "down")
    assert redis.text("GET", KEY) == PAYLOAD
    redis.call("DEL", KEY, "qd:down")


def test_laravels_file_holds_this_host_while_it_is_there(
    project: MakeProject, redis: Client, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("framework")
    file = folder / "down"
    file.write_text('{"except": [], "redirect": null, "retry": null, "secret": null, "status": 503, "template": null}')
    shop = project(JOBS)
    witness = Witness(shop)
    free = idle(shop, "other")
    shop.config(f'[laravel]\ndown_file = "{file}"\n')
    push(redis, "quick", {})
    work = shop.work("-w", "1")
    all_down(work)
    assert not witness.lines
    push(redis, "quick", {}, "other")
    witness.wait("quick")  # the other host has no such file
    shows(shop, str(file))
    file.unlink()
    witness.wait("quick", 2)
    folder.rmdir()
    work.wait_line("laravel.down_file.*does not exist")
    wait_for_beat(redis)
    assert len(work.matches("laravel.down_file")) == 1
    free.stop()
    work.stop()


def test_laravels_key_counts_on_while_its_cache_is_away(project: MakeProject, redis: Client) -> None:
    with Server() as cache:
        shop = project(JOBS, f'[laravel]\ncache_url = "{cache.url}"\ndown = true\n')
        witness = Witness(shop)
        client = cache.client()
        client.call("SET", KEY.removeprefix("cache:"), PAYLOAD)
        client.close()
        work = shop.work("-w", "1")
        all_down(work)
        cache.kill()
        work.wait_line("laravel.away")
        push(redis, "quick", {})
        wait_for_reports(redis, 1.5)
        assert is_down(work)
        assert not witness.lines
        work.stop()
        redis.call("DEL", "queues:default", "queues:default:notify")


def test_the_file_is_looked_for_below_the_folder_of_the_configuration(project: MakeProject, redis: Client) -> None:
    shop = project(JOBS, '[laravel]\ndown_file = "down"\n')
    shop.allowed.add("down")
    (shop.root / "down").touch()
    push(redis, "quick", {})
    shop.work("-w", "1", "--once", "--sleep", "0.1").ends_clean()
    witness = Witness(shop)
    assert not witness.lines
    (shop.root / "down").unlink()
    shop.work("-w", "1", "--once").ends_clean()
    assert len(witness.lines) == 1


BEAT = """
app.schedule(lambda: note("beat"), every=0.2, name="beat")
"""


@pytest.mark.leaves("qd:ticks", "qd:schedule:*")
def test_the_schedule_says_whose_maintenance_it_is_and_with_force_runs_all_the_same(
    project: MakeProject, redis: Client
) -> None:
    shop = project(JOBS + BEAT, '[laravel]\ndown_file = "down"\n')
    shop.allowed.add("down")
    witness = Witness(shop)
    (shop.root / "down").touch()

    def scheduled(*words: str) -> Procs:
        shop.started.append(Procs([*QD, "schedule", "work", *words], cwd=shop.root, env=shop.env()))
        return shop.started[-1]

    work = scheduled()
    work.wait_line('schedule.skipped entry=beat .*reason="Laravel\'s maintenance mode"')
    done(shop, "down", "--reason", "new disks")
    work.wait_line('schedule.skipped entry=beat .*reason="maintenance mode by .*: new disks"')
    work.stop()
    assert not witness.lines
    forced = scheduled("--force")
    witness.wait("beat", 2)
    assert not forced.matches("schedule.skipped")
    forced.stop()
    done(shop, "up")


# -- waiting for the end of what runs


BACKUP = """
def backup() -> None:
    note("begin")
    held()

app.schedule(backup, every=0.2).without_overlapping()
"""


@pytest.mark.leaves("qd:ticks", "qd:schedule:*", "qd:overlap:*")
def test_the_line_that_waits_until_nothing_runs_waits_for_a_run_of_the_schedule(
    project: MakeProject, redis: Client
) -> None:
    """Runs the check of the loop in the docs, once per call."""
    program("jq")
    (line,) = re.findall(r"until (qd status --json \| jq -e '.*' > /dev/null); do", PAGE.read_text())

    def nothing_runs(shop: Project) -> bool:
        command = ["sh", "-c", line.replace("qd ", " ".join(QD) + " ", 1)]
        ran = subprocess.run(command, cwd=shop.root, env=shop.env(), check=False)
        return {0: True, 1: False}[ran.returncode]

    shop = project(HELD + BACKUP)
    shop.allowed |= {"go", "witness"}
    witness = Witness(shop)
    work = shop.work("-w", "1")
    witness.wait("begin")
    assert not nothing_runs(shop)  # no maintenance yet
    done(shop, "down")
    all_down(work)
    wait_for_beat(redis)
    assert not nothing_runs(shop)
    (shop.root / "go").touch()
    eventually(lambda: nothing_runs(shop), 20, every=0.2)
    done(shop, "up")
    work.stop()
