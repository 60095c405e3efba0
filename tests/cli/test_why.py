"""qd why: what keeps a job from running, in one word and a sentence."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from typing import get_args

import pytest

from qd import Qd
from qd.cli import why
from qd.payload.build import make
from tests.cli.conftest import Run, document, done, report
from tests.support.payloads import push_laravel, store_failed_job
from tests.support.project import MakeProject
from tests.support.redis import Client
from tests.support.servers.redis import Server

WORKER = {"slot": 0, "pid": 415, "state": "waiting"}
BUSY = WORKER | {"state": "busy", "job": "mail.digest", "queue": "mail"}


@pytest.fixture
def app(server: Server) -> Qd:
    return Qd(server.url)


@pytest.fixture
def delayed(redis: Client) -> Callable[..., str]:
    """Adds a job that is due in a minute, with these keys in its payload. Returns its id."""

    def add(**more: object) -> str:
        fields = json.loads(make("mail.welcome", b"{}", uuid="u-1", id="id-1", created_at=1)) | more
        due = float(redis.text("TIME")[0]) + 60
        redis.call("ZADD", "queues:mail:delayed", due, json.dumps(fields, separators=(",", ":")))
        return "id-1"

    return add


def causes(qd: Run, id: str) -> list[str]:
    shown = document(qd("why", id, "--json"))
    found = [each["cause"] for each in shown["findings"]]
    assert (shown["cause"], set(found) - set(get_args(why.Cause))) == (found[0], set())
    return found


def test_a_ready_job_has_its_position_and_its_workers(qd: Run, app: Qd, redis: Client) -> None:
    first, second = [app.queue("mail").push("mail.welcome") for _ in range(2)]
    assert causes(qd, first.id) == ["no-worker"]
    assert done(qd("why", second.id)).splitlines() == [
        "no-worker   no worker takes jobs from mail: start `qd work mail`; "
        "if only PHP serves it, start a PHP worker instead",
        "queued      1 job of mail ahead of it",
    ]
    report(redis, workers=[WORKER])
    assert causes(qd, first.id) == ["next"]
    assert causes(qd, second.id) == ["queued"]
    report(redis, workers=[BUSY])
    assert done(qd("why", first.id)) == "busy        first in mail, and its only worker runs another job\n"
    report(redis, workers=[BUSY, {**BUSY, "slot": 2}])
    assert "its 2 workers run other jobs" in done(qd("why", first.id))


@pytest.mark.leaves("qd:job:*", "qd:events")
def test_a_cancelled_job_whose_end_is_kept_has_not_failed(qd: Run, app: Qd) -> None:
    @app.job("mail.kept", queue="mail", result_ttl=60)
    def kept() -> None: ...

    id = kept.dispatch().id
    done(qd("cancel", id))
    assert done(qd("why", id)).startswith("cancelled   it was cancelled ")


@pytest.mark.parametrize("command", ["why", "job"])
def test_the_beginning_of_an_id_is_enough_if_one_job_has_it(
    qd: Run, delayed: Callable[..., str], command: str, redis: Client
) -> None:
    delayed(id="abcdef-1", uuid="u-1")
    assert document(qd(command, "abcdef", "--json"))["id"] == "abcdef-1"
    delayed(id="abcdef-2", uuid="u-2")
    several = qd(command, "abcdef")
    assert (several.exit_code, "the ids of 2 jobs begin with 'abcdef': abcdef-1, abcdef-2" in several.stderr) == (
        2,
        True,
    )
    assert document(qd(command, "abcdef-2", "--json"))["id"] == "abcdef-2"
    short = qd(command, "abcde")
    assert (short.exit_code, "give at least 6 characters" in short.stderr) == (1, True)
    assert qd(command, "abcdefg").exit_code == 1


def test_commands_in_hints_are_quoted_for_a_shell(qd: Run, app: Qd, redis: Client) -> None:
    waits = app.queue("low prio").push("it's mail").id
    done(qd("pause", "--job", "it's mail"))
    done(qd("pause", "low prio"))
    shown = done(qd("why", waits))
    assert shlex.join(["qd", "resume", "--job", "it's mail"]) in shown
    assert "`qd resume 'low prio'`" in shown
    assert "`qd work 'low prio'`" in shown
    status = done(qd("status"))
    assert shlex.join(["qd", "resume", "--job", "it's mail"]) in status


@pytest.mark.parametrize("state", ["paused", "stopping"])
def test_a_master_that_takes_no_jobs_is_named(qd: Run, app: Qd, redis: Client, state: str) -> None:
    report(redis, workers=[WORKER], state=state)
    assert f"mail@app-1 is {state}" in done(qd("why", app.queue("mail").push("mail.welcome").id))


def test_a_silent_master_and_one_of_another_connection_do_not_count(qd: Run, app: Qd, redis: Client) -> None:
    report(redis, workers=[WORKER], seen_at=1)
    report(redis, "T2", workers=[WORKER], connection="other")
    assert causes(qd, app.queue("mail").push("mail.welcome").id) == ["no-worker"]


def test_pauses_and_maintenance_are_causes_with_their_reason(qd: Run, app: Qd, redis: Client) -> None:
    report(redis, workers=[WORKER])
    handle = app.queue("mail").push("mail.welcome")
    assert qd("pause", "mail", "--reason", "db upgrade").exit_code == 0
    assert '"db upgrade"; `qd resume mail` ends it' in done(qd("why", handle.id))
    assert qd("down").exit_code == 0
    assert causes(qd, handle.id) == ["down", "paused"]
    assert qd("down", "--allow", "mail").exit_code == 0
    assert causes(qd, handle.id) == ["paused"]


def test_an_object_job_of_laravel_waits_for_php(qd: Run, redis: Client) -> None:
    push_laravel(redis, r"Illuminate\Queue\CallQueuedHandler@call", queue="mail", id="php")
    assert causes(qd, "php") == ["php"]
    assert "qd move" not in done(qd("why", "php"))
    report(redis, workers=[WORKER])
    assert r"; move it: `qd move mail --to PHP-QUEUE --job 'Illuminate\Queue\CallQueuedHandler@call'`" in done(
        qd("why", "php")
    )


def test_the_job_of_a_php_class_waits_for_php_unless_qd_serves_its_queue(qd: Run, redis: Client) -> None:
    push_laravel(redis, r"App\Jobs\Report@fire", queue="mail", id="report")
    assert causes(qd, "report") == ["php"]
    report(redis, workers=[WORKER])
    assert causes(qd, "report") == ["next"]


def test_a_queue_that_qd_may_not_serve_comes_with_a_word_about_php(
    qd: Run, redis: Client, configured: Callable[[str], None]
) -> None:
    push_laravel(redis, "reports.monthly", queue="php", id="plain")
    push_laravel(redis, r"App\Jobs\Report@fire", queue="php", id="report")
    assert "; if only PHP serves it, start a PHP worker instead\n" in done(qd("why", "plain"))
    assert done(qd("status")).splitlines()[-1].endswith("2 jobs wait; if only PHP serves it, none is needed")
    configured('[worker]\nqueues = ["php"]\n')
    assert causes(qd, "report")[0] == "no-worker"
    assert "PHP" not in done(qd("why", "plain")) + done(qd("status"))


def test_a_php_class_that_qd_has_put_back_is_named(qd: Run, redis: Client, delayed: Callable[..., str]) -> None:
    held = int(redis.text("TIME")[0]) - 90
    delayed(held=held)
    assert "PHP" not in done(qd("why", "id-1")).splitlines()[0]
    redis.call("DEL", "queues:mail:delayed")
    delayed(held=held, job=r"App\Jobs\Report@fire")
    assert "it is a PHP class" not in done(qd("why", "id-1"))  # it was moved to a queue of PHP
    assert causes(qd, "id-1") == ["delayed", "php"]
    report(redis, workers=[WORKER])
    way = r"it is a PHP class: if PHP workers serve this queue, stop serving it with qd; else move the job to one of theirs"
    way += r": `qd move mail --to PHP-QUEUE --job mail.welcome`"  # its displayName
    assert f"; if no Python code declares it, {way}" in done(qd("why", "id-1")).splitlines()[0]


def test_positions_beyond_10000_are_not_counted(qd: Run, app: Qd, redis: Client) -> None:
    raw = make("mail.welcome", b"{}", created_at=1)
    for _ in range(10):
        redis.call("RPUSH", "queues:mail", *[raw] * 1000)
    report(redis, workers=[WORKER])
    near = app.queue("mail").push("mail.welcome")
    far = app.queue("mail").push("mail.welcome")
    assert "10,000 jobs of mail ahead of it" in done(qd("why", near.id))
    assert done(qd("why", far.id)) == "queued      behind more than 10,000 jobs of mail\n"
    assert document(qd("why", far.id, "--json"))["ahead"] is None


def test_a_delayed_job_says_why_it_is_delayed(qd: Run, redis: Client, delayed: Callable[..., str]) -> None:
    report(redis, workers=[WORKER])
    assert causes(qd, delayed()) == ["delayed"]
    redis.call("DEL", "queues:mail:delayed")
    assert causes(qd, delayed(attempts=2, rsv="T1.3.7.2a")) == ["retry"]
    redis.call("DEL", "queues:mail:delayed")
    assert causes(qd, delayed(held=int(redis.text("TIME")[0]) - 90)) == ["unknown-job"]
    assert "knew 'mail.welcome' or had its key, or its parameters do not fit, or" in done(qd("why", "id-1"))
    redis.call("DEL", "queues:mail:delayed")
    delayed(held=int(redis.text("TIME")[0]) - 90, job_version=3)
    assert "no worker that took it knew 'mail.welcome' in version 3 or had" in done(qd("why", "id-1"))
    redis.call("DEL", "queues:mail:delayed")
    delayed(held=int(redis.text("TIME")[0]) - 90, job=r"Illuminate\Queue\CallQueuedHandler@call")
    assert causes(qd, "id-1") == ["php"]


def test_a_job_that_the_app_here_cannot_run_says_why(
    project: MakeProject, redis: Client, delayed: Callable[..., str]
) -> None:
    shop = project(jobs='@app.job("mail.welcome", version=1)\ndef welcome(to: str) -> None: ...\n')
    held = int(redis.text("TIME")[0]) - 90

    def why(**more: object) -> str:
        redis.call("DEL", "queues:mail:delayed")
        return shop.qd("why", delayed(held=held, **more)).stdout

    said = why(data={"to": "a", "zzz": 1})
    assert said.startswith("unknown-job it was put back: job 'mail.welcome' has no parameter 'zzz', since 1m")
    assert "job 'mail.welcome' needs parameter 'to', which the payload lacks, since" in why(data={})
    assert "no job 'mail.welcom' is declared in this app (did you mean 'mail.welcome'?), since" in why(
        job="mail.welcom"
    )
    assert "declares version 1 of job 'mail.welcome', and the payload has version 3" in why(
        data={"to": "a"}, job_version=3
    )
    assert "no worker that took it knew 'mail.welcome' or had its key" in why(data={"to": "a"})
    report(redis, workers=[WORKER])
    said = why(job=r"App\Jobs\Report@fire")
    assert (said.count("it is a PHP class"), said.count("`qd move mail --to PHP-QUEUE")) == (1, 1)
    redis.call("DEL", "queues:mail:delayed")


def test_a_job_over_its_rate_limit_names_the_limit(qd: Run, redis: Client, delayed: Callable[..., str]) -> None:
    report(redis, workers=[WORKER])
    redis.call("ZADD", "qd:rate:{stripe}:turns", 9e15, "u-1")
    redis.call("ZADD", "qd:rate:{other}:turns", 9e15, "u-2")
    assert causes(qd, delayed()) == ["limited"]
    assert "over the limit 'stripe'; due in" in done(qd("why", "id-1"))


def test_an_overlapping_job_names_the_lock_and_its_holder(qd: Run, redis: Client, delayed: Callable[..., str]) -> None:
    report(redis, workers=[WORKER])
    redis.call("HSET", "qd:lock:mail.welcome:7", "u-9", "9000000000000 T1.3.7")
    redis.call("HSET", "qd:lock:mail.welcomes", "u-8", "9000000000000 T1.3.7")
    assert causes(qd, delayed(attempts=0, rsv="T1.3.7.0a")) == ["overlapping"]
    assert "job u-9 holds the lock 'mail.welcome:7'" in done(qd("why", "id-1"))
    redis.call("HSET", "qd:lock:mail.welcome:7", "u-9", "1000 T1.3.7")  # over
    assert causes(qd, "id-1") == ["delayed"]


def test_an_overdue_job_has_the_causes_of_a_ready_one(qd: Run, redis: Client) -> None:
    redis.call("ZADD", "queues:mail:delayed", 1, make("mail.welcome", b"{}", id="late", created_at=1))
    assert causes(qd, "late") == ["no-worker"]
    report(redis, workers=[WORKER])
    assert causes(qd, "late") == ["queued"]
    assert "moves it to the end of mail" in done(qd("why", "late"))


def test_a_failed_payload_that_is_no_job_is_found_by_the_id_of_its_record(qd: Run, redis: Client) -> None:
    store_failed_job(redis, "x1aZ-09", raw=b"nonsense", error="Malformed", reason="not JSON", uuid=None, job=None)
    assert (
        done(qd("why", "x1aZ-09")) == "failed      in the failed store: Malformed: not JSON (qd failed show x1aZ-09)\n"
    )
    facts = document(qd("why", "x1aZ-09", "--json"))
    assert (facts["cause"], facts["status"], facts["job"]) == ("failed", "failed", None)


def test_running_ended_and_unknown_jobs(qd: Run, redis: Client) -> None:
    raw = make("mail.welcome", b"{}", id="runs", created_at=1).replace(
        b'"attempts":0', b'"attempts":1,"rsv":"T1.3.7.1"'
    )
    redis.call("ZADD", "queues:mail:reserved", 9e9, raw)
    assert causes(qd, "runs") == ["orphaned"]
    report(redis, workers=[{"slot": 3, "pid": 415, "state": "busy"}])
    assert causes(qd, "runs") == ["running"]
    redis.call("HSET", "qd:job:ended", "status", "done", "value", "1", "at", redis.text("TIME")[0])
    assert causes(qd, "ended") == ["done"]
    result = qd("why", "nobody")
    assert (result.exit_code, result.stdout.split()[0]) == (1, "unknown")
    assert "or was sent with another prefix or server" in result.stdout
    assert json.loads(qd("why", "nobody", "--json").stdout)["cause"] == "unknown"


def test_a_failed_job_says_how_to_look_at_it(qd: Run, app: Qd, redis: Client) -> None:
    handle = app.queue("mail").push("mail.welcome")
    payload = redis.call("LPOP", "queues:mail")
    record = json.dumps({"id": "r1", "error": "ValueError", "reason": "out of paper"}).encode()
    redis.call("HSET", "queues:mail:failed", "r1", record + b"\n" + payload)
    redis.call("ZADD", "queues:mail:failed_at", 1, "r1")
    assert f"ValueError: out of paper (qd failed show {handle.id})" in done(qd("why", handle.id))


@pytest.mark.parametrize("command", ["why", "job"])
def test_a_broken_queue_is_skipped_and_named(qd: Run, app: Qd, redis: Client, command: str) -> None:
    redis.call("SET", "queues:broken", "x")
    found = qd(command, app.queue("mail").push("mail.welcome").id)
    assert found.exit_code == 0
    assert found.stderr in ("", NOT_SEARCHED)  # the search may end before it
    found = qd(command, "none")
    assert (found.exit_code, found.stderr.splitlines()[0] + "\n") == (1, NOT_SEARCHED)


WAY_OUT = "delete or rename it, or change `prefix`"
NOT_SEARCHED = f"qd: queue broken was not searched: queues:broken is a string and not a list; {WAY_OUT}\n"


@pytest.mark.parametrize("command", ["why", "job"])
def test_a_long_name_of_another_program_is_cut_with_its_length(qd: Run, redis: Client, command: str) -> None:
    text = make("n" * 3_000_000, b"{}", uuid="u-1", id="id-1", created_at=1)
    redis.call("RPUSH", "queues:mail", text)
    lines = done(qd(command, "id-1")).splitlines()
    assert max(map(len, lines)) < 600
    assert document(qd(command, "id-1", "--json"))["job"] == "n" * 3_000_000
