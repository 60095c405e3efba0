"""qd health: each reason separately, what is not a reason, and the exit codes. Reports have the keepers' format."""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hiredis
import pytest
from click.testing import Result

from qd.cli import diagnosis
from qd.cli.state import State
from qd.process import liveness, proc
from qd.store.masters import MasterReport
from tests.cli.conftest import Run, document, done, report
from tests.support.processes import QD
from tests.support.project import Project
from tests.support.redis import Client
from tests.support.servers.postgres import Postgres
from tests.support.servers.redis import Server, free_port
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("still")
PAYLOAD = '{"uuid":"u","job":"%s","data":{},"attempts":0,"createdAt":%d}'
OBJECT = r"Illuminate\\Queue\\CallQueuedHandler@call"
WAITING = {"slot": 0, "pid": 414, "state": "waiting", "job": None}
BUSY = {"slot": 1, "pid": 415, "state": "busy", "job": "mail.welcome", "queue": "high"}


def server_time(redis: Client) -> float:
    return float(redis.text("TIME")[0])


def push(redis: Client, queue: str = "mail", *, age: float = 60, job: str = "mail.welcome", count: int = 1) -> None:
    payload = PAYLOAD % (job, int(server_time(redis) - age))
    redis.call("RPUSH", f"queues:{queue}", *[payload] * count)


def reasons(qd: Run, *words: str) -> list[tuple[str, str]]:
    """(kind, text) of each reason. Checks that the exit code and the text output agree."""
    result = qd("health", "--json", *words)
    found = json.loads(result.stdout)
    assert result.exit_code == (1 if found["reasons"] else 0)
    assert found["ok"] is not bool(found["reasons"])
    plain = qd("health", *words)
    assert plain.exit_code == result.exit_code
    lines = [line for line in plain.stdout.splitlines() if not line.startswith("warn: ")]
    assert len(lines) == max(1, len(found["reasons"]))
    return [(reason["kind"], reason["text"]) for reason in found["reasons"]]


def reason(qd: Run, *words: str) -> tuple[str, str]:
    (found,) = reasons(qd, *words)
    return found


# -- healthy


def test_an_empty_server_without_a_master_is_healthy_only_with_allow_none(qd: Run, redis: Client) -> None:
    message = "no master runs on any host; start `qd work`, or pass --allow-none if that is intended"
    assert reason(qd) == ("no-master", message)
    assert reason(qd, "mail") == ("no-master", message)
    assert done(qd("health", "--allow-none")) == "ok: no master reports, 0 jobs ready\n"
    report(redis, queues=[])  # a master that runs only the schedule
    assert reasons(qd) == []
    done(qd("restart"))
    redis.call("DEL", "qd:masters")
    assert reasons(qd) == []  # the masters are restarting


def test_fewer_masters_than_expected(qd: Run, redis: Client) -> None:
    way = "start `qd work` where it is missing (`qd status` names those that run)"
    assert reason(qd, "--expect", "1") == ("masters", f"0 masters of the 1 expected; {way}")
    report(redis)
    assert reasons(qd, "--expect", "1") == []
    assert reason(qd, "--expect", "2") == ("masters", f"1 master of the 2 expected; {way}")
    report(redis, "T2", host="app-2", seen_at=server_time(redis) - 100)
    assert [kind for kind, _ in reasons(qd, "--expect", "2")] == ["masters", "silent-master"]
    assert qd("health", "--expect", "0").exit_code == 2
    assert qd("health", "--expect", "1", "--allow-none").exit_code == 2


def test_masters_that_keep_up_are_healthy(qd: Run, redis: Client) -> None:
    push(redis, age=3, count=2)
    report(redis, workers=[WAITING, BUSY])
    assert done(qd("health")).startswith("ok: 1 master with 2 workers, 2 jobs ready, the oldest for ")
    found = document(qd("health", "--json"))
    (mail,) = [queue for queue in found["queues"] if queue["name"] == "mail"]
    assert 3 <= mail.pop("oldest_age_s") < 30
    assert mail == {
        "connection": "redis", "name": "mail", "ready": 2, "failed": 0, "failed_bytes": 0, "dropped": 0,
        "dropped_at": None, "paused": False, "workers": 2,
    }  # fmt: skip
    assert (found["ok"], found["masters"], found["workers"], found["down"]) == (True, 1, 2, False)


def test_failed_jobs_are_counted_and_are_not_a_reason(qd: Run, redis: Client) -> None:
    redis.call("HSET", "queues:default:failed", "1", "{}", "2", "{}")
    assert done(qd("health", "--allow-none")) == "ok: no master reports, 0 jobs ready, 2 failed and kept\n"
    push(redis, "default", age=3)
    output = done(qd("health", "--allow-none"))
    assert re.fullmatch(r"ok: no master reports, 1 job ready, the oldest for [\d.]+s, 2 failed and kept\n", output)
    assert [queue["failed"] for queue in document(qd("health", "--json", "--allow-none"))["queues"]] == [2]


def test_dropped_failed_jobs_are_a_warning(qd: Run, redis: Client) -> None:
    at = server_time(redis)
    redis.call("HSET", "queues:default:failed", "T.1.1.1", "{}\n{}")
    redis.call("ZADD", "queues:default:failed_at", at, "T.1.1.1", -5, "bytes", -2000, "dropped", -at + 90, "dropped_at")
    message = "2000 failed jobs of queue 'default' dropped to make room for newer ones, the last 1m 3"
    way = "raise [failed] max_bytes (or max_count), or retry or forget some: qd failed list -q default"
    well, warned = done(qd("health", "--allow-none")).splitlines()
    assert well == "ok: no master reports, 0 jobs ready, 1 failed and kept, 2000 failed and dropped"
    assert warned.startswith(f"warn: {message}")
    assert warned.endswith(f" ago; {way}")
    found = document(qd("health", "--json", "--allow-none"))
    assert (found["ok"], len(found["warnings"]), found["queues"][0]["dropped"]) == (True, 1, 2000)
    assert [line for line in done(qd("status")).splitlines() if line.startswith(f"warn: {message}")]
    (queue,) = document(qd("status", "--json"))["queues"]
    assert (queue["failed_bytes"], queue["dropped"], queue["dropped_at"]) == (5, 2000, pytest.approx(at - 90, abs=0.01))

    redis.call("ZADD", "queues:default:failed_at", -at + 86_401, "dropped_at")
    (well,) = done(qd("health", "--allow-none")).splitlines()
    assert well.endswith("2000 failed and dropped"), "a drop more than a day ago is not a warning"


@pytest.mark.parametrize(
    ("limits", "used"),
    [
        ('max_bytes = "10M"', ""), ('max_bytes = "5M"', "80% of their limits (2 of them, 4.0 MB)"),
        ("max_count = 3", ""), ("max_count = 2", "100% of their limits (2 of them, 4.0 MB)"),
        ("max_count = 2\nenabled = false", ""),
    ],
)  # fmt: skip
def test_a_nearly_full_failed_store_is_a_warning(
    qd: Run, redis: Client, configured: Callable[[str], None], limits: str, used: str
) -> None:
    configured(f"[failed]\n{limits}\n")
    redis.call("HSET", "queues:default:failed", "1", "{}", "2", "{}")
    redis.call("ZADD", "queues:default:failed_at", 1, "1", 2, "2", -(4 << 20), "bytes")
    lines = done(qd("health", "--allow-none")).splitlines()
    assert len(lines) == (2 if used else 1)
    assert used in lines[-1]


def test_a_job_without_a_timeout_that_runs_for_more_than_an_hour_is_a_warning(qd: Run, redis: Client) -> None:
    now = server_time(redis)
    payload = '{"id":"J1","job":"mail.all","data":{},"attempts":1,"rsv":"T1.1.5.0","createdAt":1}'
    redis.call("ZADD", "queues:mail:reserved", now + 60, payload)
    runs = {"slot": 1, "pid": 415, "state": "busy", "job": "mail.all", "queue": "mail"}
    report(redis, workers=[{**runs, "since": now - 3 * 3600}])
    fact = "worker 1 of mail@app-1 (pid 411) has run mail.all for 3h without a timeout"
    assert warned(qd) == [f"{fact}; `qd cancel J1` if it hangs"]
    assert f"warn: {fact}; `qd cancel J1` if it hangs\n" in done(qd("status"))
    push(redis)
    limit = "queue 'mail': 1 ready, more than 0"
    assert (
        reasons(qd, "--max-ready", "0")[0][1] == f"{limit} (all workers are busy, {fact}); `qd cancel J1` if it hangs"
    )
    report(redis, workers=[{**runs, "since": now - 3 * 3600, "timeout": 4 * 3600}])
    assert warned(qd) == []
    report(redis, workers=[{**runs, "since": now - 3000}])
    assert warned(qd) == []


# -- jobs that no worker takes


def test_waiting_jobs_without_a_master(qd: Run, redis: Client, configured: Callable[[str], None]) -> None:
    configured('[worker]\nqueues = ["mail"]\n')
    push(redis, count=3)
    kind, text = reason(qd, "--allow-none")
    assert kind == "unserved"
    assert text == "queue 'mail': 3 ready and no master runs; start `qd work mail`"
    assert [kind for kind, _ in reasons(qd)] == ["no-master", "unserved"]
    report(redis, workers=[WAITING])  # the fix
    assert reasons(qd) == []


def test_new_jobs_and_a_pending_restart_have_a_grace_period(qd: Run, redis: Client) -> None:
    report(redis, queues=["high"])
    push(redis, "default", age=1)
    assert reasons(qd) == []
    push(redis, "mail", age=100)
    assert reason(qd, "mail")[0] == "unserved"
    done(qd("restart"))
    assert reasons(qd, "mail") == []


def test_only_the_named_queue_is_checked(qd: Run, redis: Client) -> None:
    push(redis, "other")
    report(redis, queues=["mail"])
    assert reasons(qd, "mail") == []
    assert reason(qd, "other")[0] == "unserved"
    push(redis, "mail", count=5)
    assert reasons(qd, "elsewhere", "--max-ready", "1") == []


def test_a_queue_known_only_by_its_keys_is_unserved(qd: Run, redis: Client) -> None:
    """No master serves it and no file names it, while all masters are healthy."""
    report(redis, workers=[WAITING], queues=["default"])
    push(redis, count=3)
    way = "start `qd work mail`, or add it to the queues of a pool that runs"
    way += "; if only PHP serves it, name the queues to check instead: `qd health QUEUE...`, `qd alerts QUEUE...`"
    assert reason(qd) == ("unserved", f"queue 'mail': 3 ready and no worker serves it; {way}")
    over = f"its oldest job waits for 1m, longer than 30s (no worker serves it); {way}"
    assert reasons(qd, "--max-age", "30s")[1] == ("max-age", f"queue 'mail': {over}")
    redis.call("ZADD", "queues:mail:reserved", server_time(redis) + 60, "{}")  # a PHP worker's
    assert reasons(qd) == []
    assert reason(qd, "--max-age", "30s")[1].endswith("(only PHP workers serve it); add PHP workers")
    redis.call("ZADD", "queues:mail:reserved", server_time(redis) - 1, "{}")  # it has died
    assert reason(qd)[0] == "unserved"


def test_an_expired_lease_without_a_worker_is_unserved(qd: Run, redis: Client) -> None:
    report(redis, workers=[WAITING], queues=["default"])
    now, payload = server_time(redis), PAYLOAD % ("mail.welcome", 1)
    redis.call("ZADD", "queues:mail:reserved", now + 60, payload)
    assert reasons(qd) == []
    redis.call("ZADD", "queues:mail:reserved", now - 120, payload)
    kind, text = reason(qd)
    assert kind == "unserved"
    assert re.match(r"queue 'mail': 1 reserved, the first lease ended 2m( \ds)? ago, and no worker serves it; ", text)
    warning = r"^warn: no qd worker serves mail, where the lease of a job ended 2m( \ds)? ago;"
    assert re.search(warning, done(qd("status")), re.M)


def test_a_due_delayed_job_without_a_worker_is_unserved(
    qd: Run, redis: Client, configured: Callable[[str], None]
) -> None:
    configured('[worker]\nqueues = ["mail"]\n')
    report(redis, workers=[WAITING], queues=["default"])
    now, payload = server_time(redis), PAYLOAD % ("mail.welcome", 1)
    redis.call("ZADD", "queues:mail:delayed", now + 60, payload)
    assert reasons(qd) == []
    redis.call("ZADD", "queues:mail:delayed", now - 5, payload)
    assert reasons(qd) == []  # a worker may be starting
    redis.call("ZADD", "queues:mail:delayed", now - 120, payload)
    kind, text = reason(qd)
    assert kind == "unserved"
    assert re.match(
        r"queue 'mail': 1 delayed, the first due 2m( \ds)? ago, and no worker serves it; start `qd work mail`,", text
    )
    assert [kind for kind, _ in reasons(qd, "--max-age", "1m")] == ["unserved", "max-age"]
    assert re.search(
        r"^warn: no qd worker serves mail, where a delayed job was due 2m( \ds)? ago$", done(qd("status")), re.M
    )
    assert re.search(r"work on mail: 1 delayed, the first due .* and no worker serves it", qd("doctor").stdout)
    redis.call("ZADD", "queues:mail:reserved", now + 60, "{}")  # a PHP worker's
    assert reasons(qd) == []
    redis.call("DEL", "queues:mail:reserved")
    report(redis, workers=[WAITING], queues=["default", "mail"])
    assert reasons(qd) == []


def test_a_queue_of_a_pool_on_another_connection(
    qd: Run, redis: Client, configured: Callable[[str], None], server: Server
) -> None:
    configured(f'[connections.other]\nurl = "{server.tcp_url}?db=3"\n[pools.b]\nconnection = "other"\nqueues = ["b"]\n')
    report(redis)
    redis.call("SELECT", 3)
    push(redis, "b")
    redis.call("SELECT", 0)
    assert reason(qd)[1].startswith("queue 'b': 1 ready and no worker serves it")


def test_the_hint_matches_the_cause(qd: Run, redis: Client) -> None:
    now = server_time(redis)
    push(redis)

    def hint() -> str:
        return dict(reasons(qd, "--max-ready", "0"))["max-ready"].partition("more than 0")[2]

    report(redis, workers=[BUSY])
    assert hint() == " (all workers are busy); add workers"
    report(redis, workers=[WAITING])
    assert hint() == "; add workers"
    report(redis, workers=[WAITING], state="paused")
    assert hint() == " (mail@app-1 (pid 411) is paused); CONT to a paused master resumes it"
    redis.call("HSET", "qd:fleet", "pause:pool:mail", "{}", "pause:pool:other", "{}")
    assert hint() == " (mail@app-1 (pid 411) is paused); `qd resume --pool mail`"
    redis.call("DEL", "qd:fleet")
    report(redis, workers=[], stuck={"mail": now - 60})
    assert hint() == " (mail@app-1 (pid 411) has no worker that is up); see the `worker.` lines of its log"
    assert [kind for kind, _ in reasons(qd)] == ["stuck"]
    report(redis, workers=[WAITING], seen_at=now - 60)
    expected = " (mail@app-1 (pid 411), which serves it, has not reported for 1m); start `qd work mail`"
    assert hint() == expected
    assert [kind for kind, _ in reasons(qd)] == ["silent-master", "unserved"]


def test_a_queue_without_progress_is_stuck(qd: Run, redis: Client) -> None:
    now = server_time(redis)
    push(redis, count=12)
    report(redis, workers=[WAITING, {**WAITING, "slot": 1}], stuck={"mail": now - 14})
    kind, text = reason(qd)
    assert kind == "stuck"
    assert "queue 'mail': 12 ready and nothing taken for 14s by the 2 workers of mail@app-1 (pid 411)" in text
    assert "qd status" in text


@pytest.mark.parametrize(
    "fields",
    [
        {"stuck": {"mail": -4}},
        {"stuck": {}},
        {"stuck": {"mail": -60}, "workers": [BUSY]},
        {"stuck": {"mail": -60}, "state": "paused"},
        {"stuck": {"mail": -60}, "state": "stopping"},
    ],
    ids=["too short", "over", "all are busy", "paused by a signal", "stopping"],
)
def test_waiting_jobs_are_not_stuck_if(fields: dict[str, Any], qd: Run, redis: Client) -> None:
    now = server_time(redis)
    push(redis)
    stuck = {queue: now + ago for queue, ago in fields["stuck"].items()}
    report(redis, **{"workers": [WAITING], **fields, "stuck": stuck})
    assert reasons(qd) == []


def test_a_queue_is_not_stuck_while_one_of_its_masters_takes_jobs(qd: Run, redis: Client) -> None:
    now = server_time(redis)
    push(redis)
    report(redis, "T1", workers=[WAITING], stuck={"mail": now - 60})
    report(redis, "T2", workers=[WAITING], host="app-2", stuck={})
    assert reasons(qd) == []
    report(redis, "T2", workers=[WAITING], host="app-2", stuck={"mail": now - 30})
    assert reason(qd)[0] == "stuck"


def test_a_paused_queue_and_maintenance_are_not_a_reason(qd: Run, redis: Client) -> None:
    push(redis)
    report(redis, workers=[WAITING], stuck={"mail": server_time(redis) - 60})
    assert reason(qd)[0] == "stuck"
    qd("pause", "mail")
    assert reasons(qd) == []
    assert "paused: mail" in done(qd("health"))
    qd("resume", "mail")
    qd("down")
    assert reasons(qd) == []
    assert "maintenance mode" in done(qd("health"))
    qd("down", "--allow", "other")
    report(redis, workers=[WAITING], stuck={"mail": server_time(redis) - 60}, state="down")
    assert reasons(qd) == []
    qd("down", "--allow", "mail")
    assert reason(qd)[0] == "stuck"  # this queue is served
    qd("up")
    report(redis, workers=[WAITING], stuck={"mail": server_time(redis) - 60}, state="down", laravel_down="/f/down")
    assert reasons(qd) == []
    assert "Laravel's maintenance mode" in done(qd("health"))
    assert document(qd("health", "--json"))["down"] is True
    assert reason(qd, "--max-ready", "0")[1].endswith(" (Laravel's maintenance mode); `php artisan up`")


# -- jobs for PHP


def test_an_object_job_without_a_php_worker_is_a_reason(qd: Run, redis: Client) -> None:
    now = server_time(redis)
    push(redis, job=OBJECT)
    report(redis, workers=[WAITING], stuck={"mail": now - 14})
    kind, text = reason(qd)
    assert kind == "php"
    assert "queue 'mail': 1 ready and the first is a PHP job that no PHP worker takes" in text
    assert r"; move it: `qd move mail --to PHP-QUEUE --job 'Illuminate\Queue\CallQueuedHandler'`, start a" in text
    assert "queue:work" not in text  # a PHP worker on this queue would fail and delete the jobs of Python
    redis.call("ZADD", "queues:mail:reserved", now + 60, PAYLOAD % (OBJECT, now))  # a PHP worker is active
    assert reason(qd)[0] == "stuck"
    report(redis, workers=[WAITING], stuck={})
    assert reasons(qd) == []


def test_an_object_job_that_waits_for_a_minute_is_a_reason(qd: Run, redis: Client) -> None:
    push(redis, job=OBJECT, age=70)
    report(redis, workers=[WAITING])
    assert reason(qd)[0] == "php"
    redis.call("DEL", "queues:mail")
    push(redis, job=OBJECT, age=40)
    assert reasons(qd) == []


def put_back(redis: Client, id: str, *, ago: float, job: str = OBJECT, queue: str = "mail", due: float = 40) -> str:
    """Add a delayed job that a worker first put back `ago` seconds ago. Returns its payload."""
    now = server_time(redis)
    text = f'{{"uuid":"{id}","job":"{job}","data":{{}},"attempts":0,"held":{now - ago:.0f},"rsv":"T.0.1.-"}}'
    redis.call("ZADD", f"queues:{queue}:delayed", now + due, text)
    return text


@pytest.mark.parametrize("place", ["head", "tail", "delayed"])
def test_the_verdict_about_object_jobs_is_steady_while_qd_puts_one_after_the_other_back(
    qd: Run, redis: Client, place: str
) -> None:
    """Each one that it takes ends `stuck`; these payloads have no creation time."""
    report(redis, workers=[WAITING], stuck={})
    fresh = '{"uuid":"%s","job":"%s","data":{},"attempts":0}'
    redis.call("RPUSH", "queues:mail", *(fresh % (each, OBJECT) for each in "abc"))
    assert reasons(qd) == []
    text = put_back(redis, "old", ago=70)
    if place != "delayed":
        redis.call("DEL", "queues:mail:delayed")
        redis.call("LPUSH" if place == "head" else "RPUSH", "queues:mail", text)
    kind, text = reason(qd)
    assert (kind, "the first is a PHP job that no PHP worker takes" in text) == ("php", True)


def test_an_object_job_that_was_put_back_is_a_reason_though_none_is_ready(qd: Run, redis: Client) -> None:
    report(redis, workers=[WAITING])
    put_back(redis, "new", ago=50)
    assert reasons(qd) == []
    put_back(redis, "old", ago=70, due=50)
    kind, text = reason(qd)
    assert (kind, text.split(";")[0]) == (
        "php",
        "queue 'mail': a PHP job was put back 1m 10s ago, and no PHP worker takes it",
    )
    push(redis)
    assert [kind for kind, _ in reasons(qd)] == ["php"]
    redis.call("ZADD", "queues:mail:reserved", server_time(redis) + 60, PAYLOAD % (OBJECT, 1))  # a PHP worker is active
    assert reasons(qd) == []
    redis.call("DEL", "queues:mail:reserved")
    done(qd("pause", "mail"))
    assert reasons(qd) == []


@pytest.mark.parametrize("job", [OBJECT, r"App\\Jobs\\Report@fire"])
def test_a_job_that_qd_move_has_sent_to_a_queue_of_php_is_no_problem_while_it_is_delayed(
    qd: Run, redis: Client, job: str
) -> None:
    report(redis, workers=[WAITING])
    put_back(redis, "J1", ago=70, job=job, queue="php")
    assert reasons(qd) == []
    assert warned(qd) == []
    put_back(redis, "J2", ago=70, job=job)
    assert len(reasons(qd) if job == OBJECT else warned(qd)) == 1


# -- jobs that no worker can run, and paused masters: warnings


def warned(qd: Run) -> list[str]:
    found = qd("health")
    assert found.exit_code == 0
    lines = [line.removeprefix("warn: ") for line in found.stdout.splitlines()[1:]]
    shown = done(qd("status"))
    assert all(f"warn: {line}" in shown for line in lines)
    assert document(qd("health", "--json"))["warnings"] == lines
    return lines


def test_jobs_that_were_put_back_because_no_worker_can_run_them_are_a_warning(qd: Run, redis: Client) -> None:
    report(redis, workers=[WAITING])
    put_back(redis, "J1", ago=240, job="mail.gone")
    way = "`qd why J1` shows the cause; deploy the code that fits before unroutable_ttl ends"
    one = f"queue 'mail': 1 job was put back because no worker can run it, first 4m ago; {way}"
    assert warned(qd) == [one]
    put_back(redis, "J2", ago=60, job="mail.lost", due=20)
    several = f"queue 'mail': 2 jobs were put back because no worker can run them, the first 4m ago; {way}"
    assert warned(qd) == [several]
    done(qd("pause", "--job", "mail.lost"))
    assert warned(qd) == [one]
    done(qd("pause", "--job", "mail.gone"))
    assert warned(qd) == []


def test_a_delayed_job_is_no_warning(qd: Run, redis: Client) -> None:
    report(redis, workers=[WAITING])
    redis.call("ZADD", "queues:mail:delayed", server_time(redis) + 60, PAYLOAD % ("mail.welcome", 1))
    assert warned(qd) == []


def test_ready_jobs_of_masters_that_are_all_paused_are_a_warning(qd: Run, redis: Client) -> None:
    report(redis, state="paused", workers=[WAITING])
    assert warned(qd) == []
    push(redis)
    way = "CONT to a paused master resumes it"
    assert warned(qd) == [f"queue 'mail': 1 ready and mail@app-1 (pid 411) is paused; {way}"]
    report(redis, "T2", workers=[WAITING], pid=412)
    assert warned(qd) == []
    redis.call("HDEL", "qd:masters", "T2")
    done(qd("pause", "mail"))
    assert warned(qd) == []


@pytest.mark.parametrize("key", ["queues:php", "queues:php:delayed"])
def test_a_queue_that_only_php_serves_is_never_advice_to_start_qd(
    qd: Run, redis: Client, configured: Callable[[str], None], key: str
) -> None:
    report(redis, workers=[WAITING], queues=["default"])
    now = server_time(redis)

    def waits(age: float, job: str) -> None:
        redis.call("DEL", key)
        payload = PAYLOAD % (job, int(now - age))
        redis.call(*(("RPUSH", key) if key == "queues:php" else ("ZADD", key, now - age)), payload)

    waits(40, r"App\\Jobs\\Report@fire")
    assert reasons(qd) == []
    assert "no qd worker serves" not in done(qd("status"))
    waits(70, r"App\\Jobs\\Report@fire")
    kind, text = reason(qd)
    assert kind == "php"
    assert "`php artisan queue:work --queue=php`" in text
    assert "qd work" not in text
    redis.call("ZADD", "queues:php:reserved", now + 60, PAYLOAD % ("x", now))  # a PHP worker is active
    assert reasons(qd) == []
    redis.call("DEL", "queues:php:reserved")
    waits(70, "reports.monthly")
    assert reason(qd)[1].endswith(
        "; if only PHP serves it, name the queues to check instead: `qd health QUEUE...`, `qd alerts QUEUE...`"
    )
    assert reasons(qd, "default") == []
    configured('[worker]\nqueues = ["php"]\n')
    waits(70, r"App\\Jobs\\Report@fire")  # the queue is qd's: Python may declare this name
    assert reason(qd)[0] == "unserved"


# -- masters, workers and keepers


def test_repeated_worker_crashes_are_a_reason(qd: Run, redis: Client) -> None:
    now = server_time(redis)
    report(redis, crashes=[now - 70, now - 61, now - 25, now - 20, now - 10, now - 5])
    assert reasons(qd) == []
    report(redis, crashes=[now - n for n in (35, 34, 33, 32, 31)])  # for more than two checks of `qd alerts`
    kind, text = reason(qd)
    assert kind == "crashes"
    assert "mail@app-1 (pid 411): 5 workers crashed in the last minute; see `worker.died` and `job.killed`" in text
    assert "worker.died" in text


def test_new_code_that_a_master_refused_is_a_warning(qd: Run, redis: Client) -> None:
    """Its pool works, so it is no reason. `qd status` warns of it too."""
    report(redis, refused="ImportError: no x; fix it", refused_at=server_time(redis) - 120)
    fact = r"warn: mail@app-1 refused new code 2m( \d+s)? ago and runs the old: ImportError: no x; fix it"
    assert reasons(qd) == []
    for command in ("health", "status"):
        assert [line for line in done(qd(command)).splitlines() if re.fullmatch(fact, line)]
    report(redis)
    assert "refused" not in done(qd("health")) + done(qd("status"))


def test_a_silent_worker_is_a_reason(qd: Run, redis: Client) -> None:
    report(redis, workers=[WAITING, BUSY], silent=[1])
    assert reason(qd)[0] == "silent-worker"
    assert "worker 1 (pid 415) stopped answering" in reason(qd)[1]


def test_a_hung_master_is_a_reason(qd: Run, redis: Client) -> None:
    report(redis, master_silent=9.9)
    assert reasons(qd) == []
    report(redis, master_silent=12.4)
    message = "the master has not answered for 12s, though its keeper reports; kill -9 411 on app-1, its supervisor"
    assert reason(qd) == ("hung-master", f"mail@app-1 (pid 411): {message} restarts it")
    assert f"warn: mail@app-1 (pid 411): {message} restarts it" in done(qd("status")).splitlines()
    assert "  hangs for 12s  " in done(qd("status"))


def test_a_silent_master_is_a_reason(qd: Run, redis: Client) -> None:
    now = server_time(redis)
    report(redis, seen_at=now - 3)
    assert reasons(qd) == []
    report(redis, seen_at=now - 100)
    kind, text = reason(qd)
    assert kind == "silent-master"
    remedy = "if it died, start `qd work` there, which requeues its jobs and deletes this report"
    assert f"mail@app-1 (pid 411): its keeper has not reported for 1m 40s; {remedy}" in text
    token = text.rpartition(" ")[2]
    redis.call("HDEL", "qd:masters", token)  # the fix
    assert reasons(qd, "--allow-none") == []


def test_the_fix_for_a_silent_master_names_the_key_with_its_prefix(
    qd: Run, redis: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    report(redis, seen_at=server_time(redis) - 100)
    redis.call("RENAME", "qd:masters", "shop:qd:masters")
    monkeypatch.setenv("QD_REDIS_PREFIX", "shop:")
    assert reason(qd)[1].endswith(": HDEL shop:qd:masters T1")
    assert "HDEL shop:qd:masters T1" in qd("doctor").stdout


def test_the_fix_for_a_silent_master_in_a_database_names_no_command_of_redis() -> None:
    gone = MasterReport(token="T1", host="app-1", pid=411, booted_at=0, seen_at=0)
    (found,) = diagnosis.of_master(gone, State(100, None, None, [gone], [], in_database=True))
    assert found.kind == "silent-master"
    assert found.text.endswith("other masters do both, the report within 1h")


@pytest.mark.parametrize(
    ("key", "command"), [("queues:mail", "SET"), ("queues:mail:delayed", "SET"), ("queues:mail:failed", "RPUSH")]
)
def test_a_key_of_another_type_is_named_with_the_fix(qd: Run, redis: Client, key: str, command: str) -> None:
    report(redis, queues=["mail", "images"])
    push(redis, "images", count=7)
    redis.call(command, key, "x")
    fix = rf"{key} is a \w+ and not a \w+; delete or rename it, or change `prefix`"
    for name in ("status", "queues"):
        shown = done(qd(name))
        assert re.search(rf"^mail .* {fix}$", shown, re.M), shown
        assert re.search(r"^images +7 ", shown, re.M), shown
    assert re.search(fix, done(qd("queues", "mail")))
    (kind, text), *others = reasons(qd)
    assert (kind, others) == ("unreadable", [])
    assert re.fullmatch(f"queue 'mail': {fix}", text)
    mail, _ = [queue for queue in document(qd("status", "--json"))["queues"] if queue["name"] in ("mail", "images")]
    assert re.fullmatch(fix, mail["error"])


def test_a_shared_key_of_another_type_is_named_with_the_fix(qd: Run, redis: Client) -> None:
    redis.call("SET", "qd:masters", "x")
    fix = "qd:masters is a string and not a hash; delete or rename it, or change `prefix`"
    for name in ("status", "queues", "health"):
        found = qd(name)
        assert (found.exit_code, fix in found.stderr) == (1, True), found.output
    assert f"redis.keys: {fix.replace('; ', ' -> ')}" in qd("doctor").stdout


def test_a_replaced_master_is_not_a_reason(qd: Run, redis: Client) -> None:
    now = server_time(redis)
    report(redis, "T1", host="pod-a", seen_at=now - 100)
    report(redis, "T2", host="pod-b", booted_at=now - 200)
    assert reason(qd)[0] == "silent-master"
    report(redis, "T2", host="pod-b", booted_at=now - 90)
    assert reasons(qd) == []


def test_repeated_keeper_restarts_are_a_reason(qd: Run, redis: Client) -> None:
    now = server_time(redis)
    report(redis, booted_at=now - 86400, keeper_restarts=6)
    assert reasons(qd) == []
    report(redis, booted_at=now - 180, keeper_restarts=6)
    kind, text = reason(qd)
    assert (kind, "its keeper ended 6 times in 3m" in text) == ("keeper", True)


# -- a server that refuses writes

REFUSING = {
    "NOREPLICAS": ("CONFIG", "SET", "min-replicas-to-write", 1),
    "READONLY": ("REPLICAOF", "127.0.0.1", "1"),
    "OOM": ("CONFIG", "SET", "maxmemory", 1),
    "MISCONF": ("PING",),
}


@pytest.mark.parametrize("word", REFUSING)
def test_a_server_that_rejects_writes_is_named_instead_of_its_keepers(
    word: str, project: Callable[..., Project]
) -> None:
    with Server("--appendonly", "yes", "--appendfsync", "no") as own, own.client() as client:
        shop = project("@app.job('mail.welcome')\ndef welcome() -> None: ...\n", url=own.url)
        push(client, "default")
        report(client, seen_at=server_time(client) - 60, queues=["default"])
        assert "its keeper has not reported" in shop.quick("health").stdout
        client.call(*REFUSING[word])
        if word == "MISCONF":  # its disk is full
            (log,) = own.folder.glob("appendonlydir/*.incr.aof")
            assert own.process is not None
            resource.prlimit(own.process.pid, resource.RLIMIT_FSIZE, (log.stat().st_size, resource.RLIM_INFINITY))
            eventually(lambda: refuses(client), what="a server that rejects writes")
        found = shop.quick("health")
        assert (found.exit_code, found.stdout.count("\n"), found.stderr) == (1, 1, "")
        assert found.stdout.startswith("connection redis: the server refuses writes: ")
        assert word in found.stdout
        assert f"warn: {found.stdout}" in shop.quick("status").stdout
        over = shop.quick("health", "--max-age", "5s").stdout.splitlines()[1]
        assert over.endswith("(no master can report); fix the server that refuses writes")
        looked = shop.qd("doctor")
        failed = [line for line in looked.stdout.splitlines() if line.startswith("fail") and word in line]
        assert (looked.returncode, "has not reported" in looked.stdout) == (1 if word == "READONLY" else 69, False)
        assert failed[-1].startswith("fail  redis.role: " if word == "READONLY" else "fail  redis.writes: ")


def test_a_full_server_is_named_while_its_masters_still_report(project: Callable[..., Project]) -> None:
    with Server() as own, own.client() as client:
        shop = project("@app.job('mail.welcome')\ndef welcome() -> None: ...\n", url=own.url)
        report(client, seen_at=server_time(client) + 600, queues=["default"])
        assert shop.quick("health").exit_code == 0
        client.call("CONFIG", "SET", "maxmemory", "900kb")
        assert refuses(client)
        found = shop.quick("health")
        assert (found.exit_code, found.stdout.count("\n")) == (1, 1)
        assert re.fullmatch(
            r"connection redis: the server refuses writes: OOM, [\d.]+ MB used, maxmemory is 0\.9 MB \(noeviction\); "
            r"let workers make room, or raise maxmemory\n",
            found.stdout,
        )
        assert f"warn: {found.stdout}" in shop.quick("status").stdout
        client.call("CONFIG", "SET", "maxmemory", "900mb")
        assert shop.quick("health").exit_code == 0


def test_a_database_that_rejects_writes_is_named(
    project: Callable[..., Project], postgres: Postgres, postgres_url: str
) -> None:
    shop = project(url=postgres_url)
    assert shop.quick("migrate").exit_code == 0
    assert shop.quick("health", "--allow-none").exit_code == 0
    name = postgres_url.rpartition("/")[2].partition("?")[0]
    postgres.run(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    found = shop.quick("health", "--allow-none")
    assert (found.exit_code, found.stdout.count("\n"), found.stderr) == (1, 1, "")
    assert found.stdout.startswith("connection redis: the server refuses writes: the database at ")
    assert "in a read-only transaction; it is a replica, or a failover is under way" in found.stdout


FULL = (  # an INSERT needs a page, a DELETE of no row does not
    "CREATE FUNCTION no_space() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF length(NEW.value) > 8192 THEN"
    " RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END IF; RETURN NEW; END $$",
    "CREATE TRIGGER no_space BEFORE INSERT ON qd_names FOR EACH ROW EXECUTE FUNCTION no_space()",
)


def test_a_database_with_a_full_disk_is_named(
    project: Callable[..., Project], postgres: Postgres, postgres_url: str
) -> None:
    shop = project(url=postgres_url)
    name = postgres_url.rpartition("/")[2].partition("?")[0]
    assert shop.quick("migrate").exit_code == 0
    assert shop.quick("health", "--allow-none").exit_code == 0
    assert postgres.run("SELECT count(*) FROM qd_names WHERE kind = 'string'", name) == [(0,)]
    for statement in FULL:
        postgres.run(statement, name)
    found = shop.quick("health", "--allow-none")
    assert "could not extend file: No space left on device" in found.stdout
    assert found.stdout.endswith("; free its disk\n")


def refuses(client: Client) -> bool:
    with suppress(hiredis.ReplyError):
        client.call("SET", "full", "x")
        return False
    return True


def test_health_accepts_a_replica(project: Callable[..., Project]) -> None:
    with Server() as own, own.client() as client:
        shop = project(url=own.url)
        report(client, seen_at=server_time(client) + 600)
        client.call("REPLICAOF", "127.0.0.1", "1")
        assert shop.quick("health").stdout.startswith("ok: 1 master ")


def test_health_writes_nothing(qd: Run, redis: Client) -> None:
    report(redis)
    before = redis.keys()
    assert reasons(qd) == []
    assert redis.keys() == before


# -- limits


def test_more_ready_jobs_than_max_ready(qd: Run, redis: Client) -> None:
    report(redis, workers=[WAITING])
    push(redis, count=4)
    assert reasons(qd, "--max-ready", "4") == []
    assert reason(qd, "--max-ready", "3") == ("max-ready", "queue 'mail': 4 ready, more than 3; add workers")
    qd("pause", "mail")
    held = "queue 'mail': 4 ready, more than 3 (it is paused); `qd resume mail`"
    assert reason(qd, "--max-ready", "3")[1] == held
    assert reason(qd, "--max-age", "30s")[1].endswith("longer than 30s (it is paused); `qd resume mail`")
    qd("resume", "mail")
    qd("down")
    assert reason(qd, "--max-ready", "3")[1].endswith("(maintenance mode); `qd up`")


def test_a_job_older_than_max_age(qd: Run, redis: Client) -> None:
    report(redis, workers=[WAITING])
    push(redis, age=192)
    assert reasons(qd, "--max-age", "5m") == []
    kind, text = reason(qd, "--max-age", "90s")
    assert kind == "max-age"
    assert "queue 'mail': its oldest job waits for 3m 12s" in text


def test_a_silent_or_missing_scheduler_is_a_reason(qd: Run, redis: Client) -> None:
    report(redis, workers=[WAITING], schedulers=[{"slot": 7, "pid": 416, "state": "waiting"}], silent=[7])
    kind, text = reason(qd)
    assert (kind, "scheduler 7 (pid 416) stopped answering" in text) == ("silent-worker", True)
    now = server_time(redis)
    report(redis, workers=[WAITING], unscheduled=now - 2)  # one is starting
    assert reasons(qd) == []
    report(redis, workers=[WAITING], unscheduled=now - 60)
    kind, text = reason(qd)
    assert kind == "scheduler"
    assert "mail@app-1 (pid 411): no scheduler for 1m" in text


def test_each_reason_is_a_line(qd: Run, redis: Client) -> None:
    push(redis, age=192, count=4)
    report(redis, workers=[WAITING], silent=[0], stuck={"mail": server_time(redis) - 60})
    found = reasons(qd, "--max-ready", "3", "--max-age", "90s")
    assert [kind for kind, _ in found] == ["silent-worker", "stuck", "max-ready", "max-age"]


# -- exit codes, and no hanging


def test_an_unreachable_redis_exits_with_69(qd: Run, folder: Path) -> None:
    (folder / "qd.toml").write_text(f'[connections.redis]\nurl = "redis://127.0.0.1:{free_port()}/0"\n')
    result = qd("health")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (69, "", 1)


def test_an_invalid_file_exits_with_78_and_an_invalid_option_with_2(qd: Run, folder: Path) -> None:
    assert qd("health", "--max-ready", "-1").exit_code == 2
    assert qd("health", "--max-age", "soon").exit_code == 2
    (folder / "qd.toml").write_text("[worker]\ntimout = 1\n")
    assert qd("health").exit_code == 78


def test_an_embedded_server_is_not_started(qd: Run, folder: Path) -> None:
    (folder / "qd.toml").write_text('[connections.redis]\nurl = "embedded:"\n')
    result = qd("health")
    assert (result.exit_code, "is not running" in result.stderr) == (69, True)
    assert not (folder / ".qd" / "embedded" / "address").exists()


def test_the_read_only_user_of_the_security_page_can_run_health(project: Callable[..., Project]) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/how-to/acl.md").read_text()
    found = re.search(r"^ACL (SETUSER qd-looker .*)$", page, re.MULTILINE)
    assert found
    with Server() as own, own.client() as client:
        client.call("ACL", *found[1].split())
        push(client, "default")
        shop = project(url=own.tcp_url.replace("//", "//qd-looker:LOOKER-PASSWORD@"))
        asked = shop.qd("health")
        assert (asked.returncode, asked.stderr) == (1, "")
        assert "1 ready and no master runs" in asked.stdout


def test_a_server_that_never_replies_exits_with_69_within_seconds(project: Callable[..., Project]) -> None:
    """It accepts the connection and never replies, as behind some firewalls."""
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        shop = project(url=f"redis://127.0.0.1:{mute.getsockname()[1]}/0")
        found = shop.qd("health", seconds=30)
        assert (found.returncode, found.stderr.count("\n")) == (69, 1)


HANGING_LOOKUP = """
import ctypes, socket
libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
libc.pthread_mutex_lock(mutex)
socket.getaddrinfo = lambda *_, **__: libc.pthread_mutex_lock(mutex)
"""


def test_a_name_lookup_that_hangs_in_c_exits_with_69_within_seconds(
    project: Callable[..., Project], tmp_path: Path
) -> None:
    """Python handles no signal while it is blocked in C."""
    shop = project(url="redis://redis.example:6379/0")
    (tmp_path / "sitecustomize.py").write_text(HANGING_LOOKUP)
    found = shop.qd("health", seconds=30, PYTHONPATH=f"{tmp_path}{os.pathsep}{shop.env()['PYTHONPATH']}")
    assert (found.returncode, found.stdout) == (69, "")
    assert found.stderr == "qd: no answer within 8 s: the server, its name, or the app's import hangs\n"


def test_health_imports_neither_rich_nor_the_worker(project: Callable[..., Project], server: Server) -> None:
    shop = project()
    shop.fresh = True  # the test checks its imports
    code = "import sys\nsys.modules['opentelemetry'] = None  # redis-py imports all of it where it is installed\n"
    code += "from qd.cli.main import main\nsys.argv = ['qd', 'health', '--allow-none']\n"
    code += "try:\n    main()\nfinally:\n"
    code += (
        "    print(*[n for n in ('rich', 'qd.worker', 'qd.master', 'qd.app', 'jobs', 'psutil') if n in sys.modules])"
    )
    done = shop.python(code)
    assert done.stdout.splitlines()[1:] == [""], (QD, done.stdout)


# -- --live: files, and no server


@pytest.fixture
def sign(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """sign(pool="mail", age=12, ...): the liveness file of a master (this process), written that long ago; the clock is
    stopped."""
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(folder))
    pid, now = os.getpid(), time.time()
    monkeypatch.setattr(liveness, "time", SimpleNamespace(time=lambda: now))

    def write(pool: str = "", age: float = 0.5, keeper: float = 0.1, at: str = "") -> Path:
        live = liveness.Live(pid, proc.start_time(pid), pool, 2, True, keeper, folder=at)
        liveness.write(live, {"RUNTIME_DIRECTORY": str(folder)})
        file = liveness.path(folder, pool, pid)
        os.utime(file, (now - age,) * 2)
        return file

    return write


def lives(qd: Run, *words: str) -> tuple[int, str]:
    result = qd("health", "--live", *words)
    assert result.stderr == ""
    return result.exit_code, result.stdout


def test_live_needs_no_url_file_or_app(qd: Run, folder: Path, sign: Callable[..., Path]) -> None:
    (folder / "qd.toml").write_text("nonsense")
    code, output = lives(qd)
    assert (code, output) == (
        1,
        f"no master runs here: no liveness file in {folder}; start `qd work`, as this user\n",
    )
    sign()
    assert lives(qd) == (0, "ok: 1 master here\n")
    found = document(qd("health", "--live", "--json"))
    assert (found["ok"], found["masters"][0]["pid"], found["reasons"]) == (True, os.getpid(), [])


def test_live_checks_one_pool(qd: Run, sign: Callable[..., Path]) -> None:
    sign("mail")
    assert lives(qd, "--pool", "mail")[0] == 0
    code, output = lives(qd, "--pool", "default")
    assert (code, "no master of pool default runs here" in output) == (1, True)
    sign(age=60)
    assert lives(qd, "--pool", "mail")[0] == 0
    assert lives(qd)[0] == 1


def test_live_says_where_masters_of_other_projects_run(qd: Run, sign: Callable[..., Path]) -> None:
    sign(at=os.getcwd())
    assert lives(qd) == (0, "ok: 1 master here\n")
    sign("blog", at="/srv/blog")
    assert lives(qd) == (0, f"ok: 2 masters here: 1 in /srv/blog, 1 in {os.getcwd()}\n")
    assert lives(qd, "--pool", "blog") == (0, "ok: 1 master here: 1 in /srv/blog\n")


def test_live_works_in_a_folder_that_was_deleted(
    qd: Run, sign: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign(at="/srv/blog")
    (tmp_path / "old").mkdir()
    monkeypatch.chdir(tmp_path / "old")
    (tmp_path / "old").rmdir()
    assert lives(qd) == (0, "ok: 1 master here: 1 in /srv/blog\n")


def test_live_fails_for_a_hung_master(qd: Run, sign: Callable[..., Path]) -> None:
    sign(age=3)
    assert lives(qd)[0] == 0
    sign(age=12)
    code, output = lives(qd)
    assert code == 1
    assert re.match(rf"default \(pid {os.getpid()}\): the master has not reported for 12s", output)


def test_live_fails_for_a_master_without_its_keeper(qd: Run, sign: Callable[..., Path]) -> None:
    sign(keeper=20)
    assert lives(qd)[0] == 0
    sign(keeper=70)
    code, output = lives(qd)
    assert code == 1
    assert re.search(r"its keeper is silent for 1m [1-5]\ds", output)


def test_the_liveness_file_of_a_dead_master_is_ignored(qd: Run, folder: Path, sign: Callable[..., Path]) -> None:
    file = sign(age=1)
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    text = file.read_text().replace(f'"pid":{os.getpid()}', f'"pid":{int(dead.stdout)}')
    file.rename(folder / f"default.{int(dead.stdout)}.live").write_text(text)
    assert lives(qd)[0] == 1


def test_live_accepts_no_other_checks(qd: Run) -> None:
    assert qd("health", "--live", "mail").exit_code == 2
    assert qd("health", "--live", "--max-ready", "3").exit_code == 2
    assert qd("health", "--live", "--allow-none").exit_code == 2
    assert qd("health", "--live", "--expect", "2").exit_code == 2
    assert qd("health", "--pool", "mail").exit_code == 2


def test_live_imports_no_configuration_and_no_driver(project: Callable[..., Project]) -> None:
    shop = project()
    shop.fresh = True  # the test checks its imports
    code = "import sys\nsys.modules['opentelemetry'] = None  # redis-py imports all of it where it is installed\n"
    code += "from qd.cli.main import main\nsys.argv = ['qd', 'health', '--live']\ntry:\n    main()\n"
    code += "finally:\n    print(*[n for n in ('qd.config', 'qd.drivers', 'hiredis', 'ssl') if n in sys.modules])"
    done = shop.python(code.replace("finally", "except SystemExit"))
    assert done.stdout.splitlines()[1:] == [""]


# -- docs/reference/cli/qd-health.md


PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "cli" / "qd-health.md").read_text()


def test_the_page_shows_what_it_says(qd: Run, redis: Client) -> None:
    push(redis, count=12, age=20)
    report(redis, queues=["default"])
    assert f"    $ qd health\n    {failed(qd('health'))}" in PAGE
    redis.call("DEL", "queues:mail")
    four = [{**WAITING, "slot": slot} for slot in range(4)]
    report(redis, "T1", workers=four)
    report(redis, "T2", workers=four, host="app-2")
    push(redis, count=12, age=3)
    output = re.sub(r"[3-9]\.0s$", "3.0s", done(qd("health", "--max-age", "5m")).rstrip())
    assert f"    $ qd health --max-age 5m\n    {output}\n" in PAGE


def failed(result: Result) -> str:
    assert (result.exit_code, result.stderr) == (1, "")
    return result.stdout


def test_the_page_names_each_kind_of_reason() -> None:
    code = (Path(diagnosis.__file__)).read_text()
    table = re.search(r"^\| `kind` in JSON .*?\n\n", PAGE, re.MULTILINE | re.DOTALL)
    assert table
    rows = [name for row in table[0].strip().splitlines()[2:] for name in re.findall(r"`([\w-]+)`", row.split("|")[1])]
    assert sorted(rows) == sorted(set(re.findall(r'(?:Reason\(\s*|Untaken\(\s*|kind = )"([\w-]+)"', code)))


def test_the_cron_line_of_the_page_prints_only_problems(
    project: Callable[..., Project], tmp_path: Path, redis: Client
) -> None:
    (line,) = re.findall(r"^    \*/5 \* \* \* \*  (.*)$", PAGE, re.MULTILINE)
    shop, programs = project(), tmp_path / "bin"
    programs.mkdir()
    for name, text in (("qd", f'exec {shlex.join(QD)} "$@"'), ("mail", 'echo "$@"; cat')):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    env = shop.env(PATH=f"{programs}:{os.environ['PATH']}")

    def run() -> str:
        command = ["sh", "-c", line.replace("/srv/shop", str(shop.root))]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False).stdout

    report(redis, seen_at=server_time(redis) + 600)  # fresh for the duration of the test
    assert run() == ""
    shop.config("[worker]\ntimout = 1\n")
    assert run().startswith("-s qd ops@example.org\nqd: unknown key 'timout' in qd.toml:")
