"""qd status: text and JSON."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
from collections.abc import Callable

import pytest

from tests.cli.conftest import Run, document, done, report
from tests.support import warm
from tests.support.processes import QD
from tests.support.project import Project
from tests.support.redis import Client

pytestmark = pytest.mark.usefixtures("still")


PAYLOAD = '{"job":"mail.welcome","data":{},"createdAt":%d}'


def fill(redis: Client) -> float:
    """Two ready jobs on mail, the oldest 192 s old, one delayed, one reserved, one failed. Returns the server's time."""
    now = float(redis.text("TIME")[0])
    redis.call("RPUSH", "queues:mail", PAYLOAD % (now - 192), PAYLOAD % now)
    redis.call("ZADD", "queues:mail:delayed", now + 60, "{}")
    redis.call("ZADD", "queues:mail:reserved", now + 60, "{}")
    redis.call("HSET", "queues:mail:failed", "1", "{}")
    return now


def reserved(id: str, turn: int, job: str = "mail.welcome") -> str:
    """A payload that worker 1 of the master in report() has reserved."""
    return json.dumps({"job": job, "data": {}, "id": id, "rsv": f"T1.1.{turn}.1"}, separators=(",", ":"))


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_an_empty_server(qd: Run) -> None:
    assert done(qd("status")).splitlines()[0] == "no master reports"
    found = document(qd("status", "--json"))
    assert (found["masters"], found["down"], found["restart"]) == ([], None, None)
    assert [queue["name"] for queue in found["queues"]] == ["default"]


def test_masters_and_workers_are_listed(qd: Run, redis: Client) -> None:
    now = fill(redis)
    busy = {
        "slot": 1,
        "pid": 415,
        "state": "busy",
        "job": "mail.welcome",
        "queue": "mail",
        "since": now - 70,
        "done": 9,
    }
    idle = {
        "slot": 0,
        "pid": 414,
        "start": None,
        "state": "waiting",
        "job": None,
        "queue": None,
        "since": None,
        "done": 3,
    }
    report(redis, workers=[idle, busy])
    # Of several, the one that began first is running.
    redis.call("ZADD", "queues:mail:reserved", now + 60, reserved("id-2", 9), now + 61, reserved("id-1", 8))
    redis.call(
        "ZADD", "queues:mail:reserved", now + 62, reserved("other", 1, job="mail.other"), now + 63, '{"rsv":"x"}'
    )
    shown = rows(done(qd("status")))
    assert ["mail", "app-1", "411", "1h", "2", "1", "running", "1"] in shown
    assert [
        "mail",
        "app-1",
        "1",
        "415",
        "busy",
        "mail.welcome",
        "mail",
        "1m",
        "10s",
        "9",
        "id-1",
    ] in shown  # the one that began first
    assert ["mail", "app-1", "0", "414", "waiting", "-", "-", "-", "3", "-"] in shown
    assert ["mail", "2", "1", "5", "1", "3m", "12s", "2"] in shown
    assert not [line for line in shown if line[:1] == ["warn:"]]


def test_a_master_without_a_pool_is_shown_in_pool_default_as_in_its_log(qd: Run, redis: Client) -> None:
    report(redis, pool="", workers=[{"slot": 0, "pid": 414, "state": "waiting", "done": 3}])
    shown = rows(done(qd("status")))
    assert ["default", "app-1", "411"] in [line[:3] for line in shown]
    assert ["default", "app-1", "0", "414", "waiting", "-", "-", "-", "3", "-"] in shown
    assert document(qd("status", "--json"))["masters"][0]["pool"] == ""


def test_the_first_report_of_a_master_shows_no_uptime(qd: Run, redis: Client) -> None:
    report(redis, booted_at=0.0)
    assert ["mail", "app-1", "411", "-", "0", "0", "running", "1"] in rows(done(qd("status")))


def test_schedulers_and_their_runs_are_listed(qd: Run, redis: Client) -> None:
    now = fill(redis)
    facts = {"pid": 416, "state": "busy", "entries": 12, "runs": 3, "run": "backup", "since": now - 70}
    idle = {"slot": 3, "pid": 417, "state": "waiting", "entries": 12, "runs": 0, "run": None, "since": None}
    report(redis, schedulers=[{"slot": 2, "start": 7, **facts}])
    report(redis, "T2", pool="schedule", pid=500, schedulers=[{"start": 8, **idle}], silent=[3], queues=[])
    shown = rows(done(qd("status")))
    assert ["mail", "app-1", "416", "busy", "12", "backup", "and", "2", "more", "1m", "10s"] in shown
    assert ["schedule", "app-1", "417", "silent", "12", "-", "-"] in shown
    assert ["mail", "app-1", "411", "1h", "0", "0", "running", "1"] in shown
    found = document(qd("status", "--json"))["masters"]
    assert [master["schedulers"] for master in found] == [[{"slot": 2, **facts}], [idle]]


def test_the_json_document(qd: Run, redis: Client) -> None:
    now = fill(redis)
    facts = report(redis, workers=[{"slot": 1, "pid": 415, "state": "busy", "job": "j", "queue": "mail", "since": now}])
    found = document(qd("status", "--json"))
    (master,) = found["masters"]
    assert {key: master[key] for key in ("host", "pid", "pool", "state", "queues")} == {
        key: facts[key] for key in ("host", "pid", "pool", "state", "queues")
    }
    assert (master["silent"], master["workers"][0]["job"]) == (False, "j")
    (mail,) = [queue for queue in found["queues"] if queue["name"] == "mail"]
    assert 192 <= mail.pop("oldest_age_s") < 200
    counts = {"ready": 2, "delayed": 1, "reserved": 1, "failed": 1}
    kept = {"failed_bytes": 0, "dropped": 0, "dropped_at": None, "error": None}
    assert mail == {"connection": "redis", "name": "mail", **counts, "workers": 1, "paused": None, "php": False, **kept}


def test_crashed_and_silent_workers_are_shown(qd: Run, redis: Client) -> None:
    now = float(redis.text("TIME")[0])
    idle = {"slot": 2, "pid": 414, "state": "waiting", "done": 3}
    report(redis, workers=[idle], silent=[2], crashes=[now - 3.0] * 8, keeper_restarts=1, stuck={"mail": now})
    shown = rows(done(qd("status")))
    assert ["mail", "app-1", "2", "414", "silent", "-", "-", "-", "3", "-"] in shown
    warning = "warn: 8 or more workers of mail@app-1 (pid 411) crashed within the last minute"
    assert warning in done(qd("status")).splitlines()
    report(redis, workers=[idle], crashes=[now - 3.0])
    one = "warn: 1 worker of mail@app-1 (pid 411) crashed within the last minute"
    assert one in done(qd("status")).splitlines()
    report(redis, workers=[idle], silent=[2], crashes=[now - 3.0] * 8, keeper_restarts=1, stuck={"mail": now})
    (master,) = document(qd("status", "--json"))["masters"]
    assert (master["silent"], master["silent_workers"], master["keeper_restarts"]) == (False, [2], 1)
    assert (master["stuck"], master["took_at"], master["crashes"]) == ({"mail": now}, None, [now - 3.0] * 8)


def test_an_object_job_at_the_head_is_for_php(qd: Run, redis: Client) -> None:
    report(redis, workers=[{"slot": 0}])
    redis.call("RPUSH", "queues:mail", r'{"job":"Illuminate\\Queue\\CallQueuedHandler@call","data":{}}')
    (mail,) = [queue for queue in document(qd("status", "--json"))["queues"] if queue["name"] == "mail"]
    assert mail["php"]
    warning = "warn: the next job of mail is a PHP job, which only a PHP worker takes; move it: "
    warning += r"`qd move mail --to PHP-QUEUE --job 'Illuminate\Queue\CallQueuedHandler'`"
    assert done(qd("status")).splitlines()[-1] == warning
    redis.call("LPUSH", "queues:mail", PAYLOAD % 1)
    assert "warn:" not in done(qd("status"))


def test_a_pause_is_shown_with_who_and_why(qd: Run, redis: Client) -> None:
    report(redis)
    done(qd("pause", "mail", "--for", "10m", "--reason", "db upgrade"))
    (line,) = [line for line in done(qd("status")).splitlines() if line.startswith("mail") and "paused" in line]
    assert "for 9m 5" in line or "for 10m" in line
    assert line.endswith('more: "db upgrade"')
    (paused,) = [queue["paused"] for queue in document(qd("status", "--json"))["queues"] if queue["name"] == "mail"]
    assert paused["reason"] == "db upgrade"
    assert "@" in paused["by"]
    assert round(paused["until"] - paused["at"]) == 600


def test_a_pause_set_by_hand_is_shown(qd: Run, redis: Client) -> None:
    redis.call("SET", "queues:mail:paused", "1")
    (mail,) = [queue for queue in document(qd("status", "--json"))["queues"] if queue["name"] == "mail"]
    assert mail["paused"] == {"by": "", "reason": "", "at": None, "until": None}
    assert any(line.endswith("paused") for line in done(qd("status")).splitlines())


def test_maintenance_is_shown_with_who_and_why(qd: Run) -> None:
    done(qd("down", "--reason", "moving"))
    assert done(qd("status")).splitlines()[0].endswith('just now: "moving"; `qd up` ends it')
    assert document(qd("status", "--json"))["down"]["reason"] == "moving"


def test_a_silent_master_is_shown_and_its_workers_do_not_count(qd: Run, redis: Client) -> None:
    now = fill(redis)
    report(redis, seen_at=now - 192, workers=[{"slot": 0, "pid": 1}])
    output = done(qd("status"))
    assert "silent for 3m 1" in output
    report(redis, "T2", seen_at=now - 6)
    assert re.search(r"silent for \d\.\ds", done(qd("status")))
    redis.call("HDEL", "qd:masters", "T2")
    assert "warn: the master with pid 411 on app-1 has not reported for 3m 1" in output
    assert "warn: no qd worker serves mail, where 2 jobs wait" in output
    redis.call("LPOP", "queues:mail")
    assert "warn: no qd worker serves mail, where 1 job waits\n" in done(qd("status"))


def test_ages_of_a_silent_master_refer_to_its_last_report(qd: Run, redis: Client) -> None:
    seen = float(redis.text("TIME")[0]) - 600
    busy = {"slot": 1, "pid": 415, "state": "busy", "job": "mail.welcome", "queue": "mail", "since": seen - 70}
    run = {"slot": 2, "pid": 416, "state": "busy", "entries": 3, "runs": 1, "run": "backup", "since": seen - 50}
    report(redis, seen_at=seen, booted_at=seen - 7200, workers=[busy], schedulers=[run])
    shown = rows(done(qd("status")))
    assert ["mail", "app-1", "411", "2h", "1", "1", "silent", "for", "10m", "1"] in shown
    assert ["mail", "app-1", "1", "415", "busy", "mail.welcome", "mail", "1m", "10s", "0", "-"] in shown
    assert ["mail", "app-1", "416", "busy", "3", "backup", "50s"] in shown


def test_an_unreadable_report_does_not_hide_others(qd: Run, redis: Client) -> None:
    report(redis)
    redis.call("HSET", "qd:masters", "T2", "{", "T3", '{"token":"T3"}', "T4", "[" * 100_000)
    assert [master["token"] for master in document(qd("status", "--json"))["masters"]] == ["T1"]


def test_names_from_the_server_are_printed_without_escape_sequences(qd: Run, redis: Client) -> None:
    report(redis, pool="\x1b[31m", host="a\nb")
    redis.call("RPUSH", b"queues:\x1b]0;x\xff", "{}")
    assert "\x1b" not in done(qd("status"))
    json.loads(done(qd("status", "--json")))


def test_queues_are_found_by_their_keys_under_the_prefix(
    qd: Run, redis: Client, configured: Callable[[str], None]
) -> None:
    configured('prefix = "shop*:"\n[pools.night]\nqueues = ["reports"]\n')
    redis.call("RPUSH", "shop*:queues:lost", "{}")
    redis.call("HSET", "shop*:queues:dead:letters:failed", "1", "{}")
    redis.call("HSET", "shop*:queues:lost:keyed", "order:1", "x")
    redis.call("RPUSH", "shopX:queues:other", "{}")
    names = [queue["name"] for queue in document(qd("status", "--json"))["queues"]]
    assert names == ["reports", "default", "dead:letters", "lost"]


def test_status_of_one_connection(qd: Run, redis: Client) -> None:
    report(redis)
    report(redis, "T2", connection="other", queues=["q"])
    found = document(qd("status", "--json", "-c", "redis"))
    assert [master["token"] for master in found["masters"]] == ["T1"]


def test_the_table_fits_a_narrow_terminal(project: Callable[..., Project], redis: Client) -> None:
    shop = project()
    redis.call("RPUSH", f"queues:{'a-long-name-' * 5}", "{}")
    code, text = on_a_terminal([*QD, "status"], 70, shop)
    lines = text.splitlines()
    assert code == 0
    assert max(map(len, lines[:-1])) <= 70
    assert "a-long-name-" * 5 in "".join(line.split()[0] for line in lines[3:])


def on_a_terminal(command: list[str], columns: int, shop: Project) -> tuple[int, str]:
    """Exit code and output of a program on a pseudo-terminal."""
    ours, theirs = pty.openpty()
    program = warm.Popen(command, cwd=shop.root, env=shop.env(COLUMNS=str(columns)), stdout=theirs, stdin=theirs)
    os.close(theirs)
    output = b""
    with contextlib.suppress(OSError):  # a terminal whose other end is closed
        while chunk := os.read(ours, 4096):
            output += chunk
    os.close(ours)
    return program.wait(60), output.decode()


# --- the schedule


@pytest.mark.leaves("qd:schedule:paused")
def test_status_shows_paused_schedule_entries(qd: Run, clean_redis: Client) -> None:
    now = float(clean_redis.text("TIME")[0])
    assert document(qd("status", "--json"))["schedule"] == {"paused": {}}
    note = json.dumps({"by": "ana@app-1", "reason": "disk full", "at": now - 60})
    clean_redis.call("HSET", "qd:schedule:paused", "tidy", note)
    assert done(qd("status")).startswith(
        'the entry tidy of the schedule is paused by ana@app-1 1m ago: "disk full"; `qd '
    )
    clean_redis.call("HSET", "qd:schedule:paused", "*", note)
    assert "\nall entries of the schedule are paused by ana@app-1 1m ago" in done(qd("status"))
    paused = document(qd("status", "--json"))["schedule"]["paused"]
    assert (paused.keys(), paused["*"]["reason"]) == ({"*", "tidy"}, "disk full")
