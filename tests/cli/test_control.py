"""qd restart, pause, resume, down and up: what they write to Redis and print, and how the running daemon reacts."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable

import pytest

from qd.cli.control import replaced
from qd.store.masters import MasterReport, SchedulerReport, WorkerReport
from tests.cli.conftest import Run, document, done, report
from tests.support.project import Project
from tests.support.redis import Client
from tests.support.servers.redis import Server
from tests.support.waiting import eventually

Projects = Callable[..., Project]
LARAVEL = '[laravel]\ncache_url = "{url}?db=1"\ncache_prefix = "cache:"\n'


def now(redis: Client) -> float:
    seconds, micros = redis.text("TIME")
    return int(seconds) + int(micros) / 1e6


def reports(redis: Client, token: str = "T1", **fields: object) -> None:
    """Write a report that stays fresh for the duration of the test."""
    report(redis, token, **{"seen_at": now(redis) + 600, **fields})


def paused(redis: Client) -> list[str]:
    return list(filter(lambda key: key.endswith(":paused"), redis.keys()))


# -- restart


def test_restart_writes_the_server_time(qd: Run, redis: Client) -> None:
    before = now(redis)
    way = "a `qd work` that starts later has the new code, and does not restart"
    assert done(qd("restart")) == f"restart requested: no master reports\n{way}\n"
    assert before <= float(redis.text("GET", "qd:restart")) <= now(redis)
    done(qd("restart", "--rolling"))
    assert redis.text("GET", "qd:restart").endswith(" rolling")
    assert redis.text("TTL", "qd:restart") == -1


def test_restart_names_the_masters_it_reaches(qd: Run, redis: Client) -> None:
    reports(redis)
    reports(redis, "T2", pool="", host="app-2")
    reports(redis, "T3", pool="gone", seen_at=now(redis) - 60)
    asked, way = done(qd("restart")).splitlines()
    assert asked == "restart requested: mail@app-1, default@app-2"
    assert way == "each `qd work` exits with 0, and its supervisor must start it again; without one use --rolling"
    assert done(qd("restart", "--rolling")) == asked + "\n"
    found = document(qd("restart", "--rolling", "--json"))
    assert found["rolling"] is True
    assert [master["host"] for master in found["masters"]] == ["app-1", "app-2"]


def test_restart_names_the_silent_masters_if_no_other_reports(qd: Run, redis: Client) -> None:
    reports(redis, seen_at=now(redis) - 60)
    asked, silent = done(qd("restart")).splitlines()
    assert asked == "restart requested: no master reports"
    fact = r"mail@app-1, pid 411, has not reported for 1m( \ds)?: if it runs, it restarts once it reaches this server"
    assert re.fullmatch(f"{fact}; to restart it now, send it TERM on its host", silent)
    assert done(qd("restart", "--rolling", "--wait", "0s")).endswith("; to restart it now, send it HUP on its host\n")
    found = document(qd("restart", "--json"))
    assert (found["masters"], [master["pid"] for master in found["silent"]]) == ([], [411])


def test_wait_ends_when_each_master_is_back(qd: Run, redis: Client, server: Server) -> None:
    """Two masters of one pool on one host need two new ones. A master that booted before the stamp, or of another pool,
    does not count."""
    reports(redis)
    reports(redis, "T2", pid=412)
    other = server.client()

    def come_back() -> None:
        eventually(lambda: other.call("EXISTS", "qd:restart"))
        later = now(other) + 1
        reports(other, "T8", pool="other", booted_at=later)
        reports(other, "T9", pid=500, booted_at=later)
        reports(other, "T10", pid=501, booted_at=later)
        other.close()

    thread = threading.Thread(target=come_back)
    thread.start()
    output = done(qd("restart", "--wait", "1m"))
    thread.join()
    assert [line.partition(": ")[0] for line in output.splitlines()] == ["mail@app-1", "mail@app-1"]
    assert sorted(line.rpartition("-> ")[2] for line in output.splitlines()) == ["500", "501"]


def test_a_rolling_restart_reports_what_was_replaced(qd: Run, redis: Client, server: Server) -> None:
    old = [{"slot": slot, "pid": 600 + slot} for slot in range(4)]
    reports(redis, workers=old, schedulers=[{"slot": 9, "pid": 609}])
    other = server.client()

    def come_back() -> None:
        eventually(lambda: other.call("EXISTS", "qd:restart"))
        new = [{"slot": 10 + slot, "pid": 700 + slot} for slot in range(4)]
        busy, leaving = old[0] | {"job": "mail.welcome"}, old[1]
        later = now(other) + 1
        reports(other, booted_at=later, workers=[*new, busy, leaving], schedulers=[{"slot": 19, "pid": 709}])
        other.close()

    thread = threading.Thread(target=come_back)
    thread.start()
    found = document(qd("restart", "--rolling", "--wait", "1m", "--json"))["masters"][0]
    thread.join()
    assert (found["back"], found["new_pid"], found["workers_replaced"]) == (True, 411, 3)
    was, back = (MasterReport("T1", "app-1", 411, 0.0, 0.0, pool="mail") for _ in "12")
    was.workers, was.schedulers = [WorkerReport(slot, 600 + slot) for slot in range(4)], [SchedulerReport(9, 609)]
    back.workers = [WorkerReport(10, 700), WorkerReport(0, 600, job="mail.welcome"), WorkerReport(1, 601)]
    text = "3 workers and the scheduler replaced after 3.1s, pid 411 stays; 1 old worker still to finish a job"
    assert replaced(was, back, "3.1s") == text


def test_wait_names_the_master_that_rejects_the_new_code(qd: Run, redis: Client) -> None:
    reports(redis)
    result = qd("restart", "--rolling", "--wait", "0.2")
    why = "pid 411; see `master.reload_refused` in its log"
    assert (result.exit_code, result.stdout) == (1, f"mail@app-1: not replaced within 0.2s, {why}\n")


def test_wait_ends_with_the_reason_when_a_master_refuses_the_new_code(qd: Run, redis: Client, server: Server) -> None:
    """An earlier refusal does not count."""
    reports(redis, refused="ImportError: old; way", refused_at=now(redis) - 5)
    other = server.client()

    def refuse() -> None:
        eventually(lambda: other.call("EXISTS", "qd:restart"))
        reports(other, refused="ImportError: no x; fix it", refused_at=now(other) + 1)
        other.close()

    thread = threading.Thread(target=refuse)
    thread.start()
    result = qd("restart", "--rolling", "--wait", "1h", "--json")
    thread.join()
    (master,) = json.loads(result.stdout)["masters"]
    assert (result.exit_code, master["back"], master["refused"]) == (1, False, "ImportError: no x; fix it")
    result = qd("restart", "--rolling", "--wait", "1h")
    why = "refused the new code, pid 411 runs the old: ImportError: no x; fix it"
    assert (result.exit_code, result.stdout) == (1, f"mail@app-1: {why}\n")


def test_wait_names_the_master_that_is_not_back(qd: Run, redis: Client) -> None:
    reports(redis)
    result = qd("restart", "--wait", "0.2")
    way = "see its log; only a supervisor starts it again (else use --rolling)"
    assert (result.exit_code, result.stdout) == (1, f"mail@app-1: not back within 0.2s, pid was 411; {way}\n")
    result = qd("restart", "--wait", "0", "--json")
    (master,) = json.loads(result.stdout)["masters"]
    assert result.exit_code == 1
    assert (master.pop("host"), master.pop("pool"), master.pop("pid"), master.pop("back")) == (
        "app-1",
        "mail",
        411,
        False,
    )
    assert master == {"new_pid": None, "after_s": None, "workers_replaced": None, "refused": None}


def test_wait_succeeds_without_masters(qd: Run) -> None:
    assert "none to wait for" in done(qd("restart", "--wait", "5"))


# -- pause and resume


def test_pause_records_who_why_and_until_when(qd: Run, redis: Client) -> None:
    assert done(qd("pause", "mail", "mail", "--for", "10m", "--reason", "db upgrade")) == "mail: paused for 10m\n"
    note = json.loads(redis.text("GET", "queues:mail:paused"))
    assert (note["reason"], "@" in note["by"]) == ("db upgrade", True)
    assert abs(note["at"] - now(redis)) < 60
    assert 540_000 < redis.text("PTTL", "queues:mail:paused") <= 600_000
    done(qd("pause", "mail"))
    assert redis.text("TTL", "queues:mail:paused") == -1


def test_pause_without_a_name_pauses_all_known_queues(
    qd: Run, redis: Client, configured: Callable[[str], None]
) -> None:
    configured('[pools.night]\nqueues = ["reports"]\n')
    reports(redis, queues=["mail", "high"])
    reports(redis, "T2", connection="elsewhere", queues=["other"])
    done(qd("pause"))
    assert paused(redis) == [
        "queues:high:paused",
        "queues:mail:paused",
        "queues:reports:paused",
    ]


def test_pause_without_a_name_fails_if_no_queue_is_known(qd: Run, redis: Client) -> None:
    result = qd("pause")
    assert (result.exit_code, redis.keys()) == (2, [])
    assert result.stderr == "qd: no queue of redis is known (no master reports, no file names one): name one\n"


def test_pause_of_an_unserved_queue_warns_and_pauses(qd: Run, redis: Client) -> None:
    reports(redis)
    result = qd("pause", "mial")
    assert (result.exit_code, result.stdout) == (0, "mial: paused until `qd resume`\n")
    assert result.stderr == "no worker is known to serve 'mial' of redis (did you mean 'mail'?)\n"


def test_pause_for_no_time_is_wrong_usage(qd: Run, redis: Client) -> None:
    assert qd("pause", "mail", "--for", "0").exit_code == 2
    assert qd("pause", "mail", "--for", "soon").exit_code == 2
    assert redis.keys() == []


def test_resume_removes_the_pause_and_wakes_waiting_workers(qd: Run, clean_redis: Client) -> None:
    done(qd("pause", "mail"))
    assert done(qd("resume", "mail")) == "mail: resumed\n"
    assert clean_redis.call("LPOP", "queues:mail:notify") == b"1"
    assert done(qd("resume", "mail")) == "mail: was not paused\n"


def test_resume_without_a_name_resumes_all_paused_queues(qd: Run, redis: Client) -> None:
    done(qd("pause", "mail", "a:b"))
    assert sorted(done(qd("resume")).splitlines()) == ["a:b: resumed", "mail: resumed"]
    assert paused(redis) == []
    assert done(qd("resume")) == "nothing was paused\n"


def test_pause_and_resume_for_programs(qd: Run) -> None:
    (paused,) = document(qd("pause", "mail", "--json"))["paused"]
    assert (paused["queue"], paused["connection"], paused["until"]) == ("mail", "redis", None)
    assert document(qd("resume", "mail", "--json")) == {
        "resumed": [{"queue": "mail", "connection": "redis", "was_paused": True}]
    }


# -- maintenance


def test_down_and_up(qd: Run, clean_redis: Client) -> None:
    assert "was not on" in done(qd("up"))
    done(qd("down", "--reason", "moving"))
    note = json.loads(clean_redis.text("GET", "qd:down"))
    assert (note["reason"], "@" in note["by"]) == ("moving", True)
    assert document(qd("up", "--json"))["was_down"]["reason"] == "moving"


# -- prefix, control, Laravel


def test_all_keys_have_the_prefix(qd: Run, redis: Client, configured: Callable[[str], None]) -> None:
    configured('prefix = "shop:"\n')
    for words in (("restart",), ("pause", "mail"), ("down",)):
        done(qd(*words))
    assert redis.keys() == ["shop:qd:down", "shop:qd:events", "shop:qd:restart", "shop:queues:mail:paused"]


def test_stamps_are_on_the_control_connection_and_pauses_on_that_of_the_queue(
    qd: Run, redis: Client, server: Server, configured: Callable[[str], None]
) -> None:
    configured(f'[connections.steer]\nurl = "{server.url}?db=2"\n[qd]\ncontrol = "steer"\ndefault = "redis"\n')
    for words in (("restart",), ("pause", "mail"), ("down",)):
        done(qd(*words))
    assert redis.keys() == ["queues:mail:paused"]
    redis.call("SELECT", 2)
    assert redis.keys() == ["qd:down", "qd:events", "qd:restart"]


def test_restart_and_pause_also_reach_laravel_workers(
    qd: Run, redis: Client, server: Server, configured: Callable[[str], None]
) -> None:
    configured(LARAVEL.format(url=server.url))
    done(qd("restart"))
    done(qd("pause", "mail", "--for", "10m"))
    stamp = redis.text("GET", "qd:restart")
    redis.call("SELECT", 1)
    first = int(redis.text("GET", "cache:illuminate:queue:restart"))
    assert stamp.endswith(f"_{first}")
    assert abs(first - now(redis)) < 60
    assert redis.text("GET", "cache:illuminate:queue:paused:redis:mail") == "b:1;"
    assert 540 < redis.text("TTL", "cache:illuminate:queue:paused:redis:mail") <= 600
    done(qd("restart"))  # most likely within the same second: PHP workers check for a change
    assert int(redis.text("GET", "cache:illuminate:queue:restart")) > first
    assert done(qd("resume", "mail")) == "mail: resumed\n"
    assert redis.keys() == ["cache:illuminate:queue:restart"]


def test_restart_reaches_masters_even_if_laravels_cache_is_unreachable(
    qd: Run, redis: Client, configured: Callable[[str], None]
) -> None:
    configured(LARAVEL.format(url="redis://127.0.0.1:1"))
    assert qd("restart").exit_code == 69
    assert redis.text("GET", "qd:restart").endswith("_0")


def test_a_pause_of_everything_is_laravels_pause_of_everything(
    qd: Run, redis: Client, server: Server, configured: Callable[[str], None]
) -> None:
    configured(LARAVEL.format(url=server.url))
    done(qd("pause"))
    redis.call("SELECT", 1)
    assert redis.text("GET", "cache:illuminate:queues:paused") == "b:1;"
    assert qd("resume", "mail").stderr.startswith("Laravel's pause of all queues still holds")
    done(qd("resume"))
    assert redis.keys() == []


# -- the daemon


JOBS = '@app.job("note")\ndef note() -> None:\n    print("ran", flush=True)\n'


@pytest.mark.parametrize("end", [("resume", "default"), ("resume",)], ids=["named", "all"])
def test_no_worker_serves_a_paused_queue_until_it_is_resumed(project: Projects, end: tuple[str, ...]) -> None:
    shop = project(JOBS)
    work = shop.work("-w", "2")
    work.wait_line("master.ready")
    assert shop.qd("pause", "default").returncode == 0
    assert shop.qd("dispatch", "note").returncode == 0
    found = json.loads(shop.qd("status", "--json").stdout)
    assert [queue["ready"] for queue in found["queues"]] == [1]
    assert shop.qd(*end).returncode == 0
    eventually(lambda: work.output == ["ran"], 20)
    work.stop()


def test_down_stops_all_queues_and_up_wakes_the_workers(project: Projects) -> None:
    shop = project(JOBS)
    work = shop.work("-w", "1")
    work.wait_line("master.ready")
    shop.qd("down")

    def state() -> str:
        masters = json.loads(shop.qd("status", "--json").stdout)["masters"]
        return str(masters and masters[0]["state"])

    eventually(lambda: state() == "down", 20)
    shop.qd("dispatch", "note")
    shop.qd("up")
    eventually(lambda: work.output == ["ran"], 20)
    work.stop()


def test_a_rolling_restart_replaces_workers_and_a_restart_ends_the_master(project: Projects) -> None:
    shop = project(JOBS)
    work = shop.work("-w", "1")
    work.wait_line("master.ready")
    eventually(
        lambda: any(master["workers"] for master in json.loads(shop.qd("status", "--json").stdout)["masters"]), 20
    )
    back = shop.qd("restart", "--rolling", "--wait", "40s")
    assert (back.returncode, back.stderr) == (0, ""), back.stdout
    assert re.fullmatch(rf"\S+: 1 worker replaced after \S+, pid {work.pid} stays\n", back.stdout)
    assert shop.qd("restart", "--wait", "0").returncode == 1
    work.ends_clean()
