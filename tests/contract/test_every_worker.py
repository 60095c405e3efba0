"""One suite for every driver, second half: the real `qd work` and the commands, real signals, against the real server."""

from __future__ import annotations

import hashlib
import json
import signal
import time
from itertools import groupby

import pytest

from qd.errors import QdError
from qd.payload.format import read
from tests.contract.kinds import JOBS, LEASE, NAME, Tried, job_of, ready, take
from tests.support.processes import waiting
from tests.support.reliability import Figures
from tests.support.waiting import eventually

HOSTILE = {
    "nothing": b"",
    "no json": b"{",
    "a list": b"[1, 2]",
    "null": b"null",
    "no text": b'\xff\xfe{"job":"quick"}',
    "nul bytes": b"\x00\x00",
    "deep": b'{"job":"quick","data":' + b"[" * 3000 + b"]" * 3000 + b',"attempts":0}',
    "no job": b'{"data":{},"attempts":0}',
    "a job that is no text": b'{"job":7,"data":{},"attempts":0}',
    "attempts that are no number": b'{"job":"quick","data":{"n":1},"attempts":"many"}',
}


def shown(tried: Tried, *words: str) -> dict:
    found: dict = json.loads(tried.command(*words, "--json"))
    return found


def queue_row(tried: Tried, name: str = "default") -> dict:
    return next(row for row in shown(tried, "status")["queues"] if row["name"] == name)


# -- health


def test_health_finds_an_unserved_queue(tried: Tried) -> None:
    tried.push(1, queue="low")
    named = () if tried.can("sizes") else ("low",)  # SQS cannot list queues
    eventually(lambda: tried.sizes("low").ready == 1)
    none = tried.shop.quick("health", "--max-ready", "0", *named)
    assert (none.exit_code, none.stderr) == (1, "")
    first, *_, last = none.stdout.splitlines()  # SQS reports no age: there the job counts as old
    assert [first, last] == [
        "no master runs on any host; start `qd work`, or pass --allow-none if that is intended",
        "queue 'low': 1 ready, more than 0 (no master runs); start `qd work low`",
    ]
    work = ready(tried.shop, "default")
    eventually(lambda: shown(tried, "status")["masters"])
    other = tried.shop.quick("health", "--max-ready", "0", *named)
    assert "queue 'low': 1 ready, more than 0 (no worker serves it); start `qd work low`, or" in other.stdout
    assert (other.exit_code, tried.shop.quick("health", "default", "--expect", "1").exit_code) == (1, 0)
    work.stop()


# -- statistics


def test_metrics_count_the_jobs_that_ran(tried: Tried) -> None:
    def done() -> int:
        return sum(row["outcomes"]["done"] for row in shown(tried, "metrics")["jobs"] if row["job"] == "quick")

    before = done()
    tried.push(*range(5))
    work = ready(tried.shop)
    for n in range(5):
        tried.shop.wait_noted("E", n)
    eventually(tried.empty)
    work.stop()
    assert done() - before == len(tried.shop.noted("E"))


# -- crashes


@pytest.mark.fault("60", "kill -9 of a worker in its job", "it runs again at once, in another worker")
def test_the_job_of_a_killed_worker_runs_again(tried: Tried, figures: Figures) -> None:
    tried.push(1, job="dies")
    work = ready(tried.shop)
    end = tried.shop.wait_noted("E", 1)
    first, second = tried.shop.noted("S", 1)
    figures.add(connection=tried.kind.name, back=[float(second[-1]) - float(first[-1])])
    assert end[2] == "1" or not tried.can("counts")
    work.wait_line(r'worker.died .*how="signal 9 \(SIGKILL\)')
    eventually(tried.empty)
    work.stop()


def test_a_killed_worker_costs_the_jobs_that_it_had_fetched_nothing(tried: Tried) -> None:
    count = min(200, tried.kind.many // 2)
    tried.push(*range(count))
    tried.push(count, job="dies")
    tried.push(*range(count + 1, 2 * count))
    work = ready(tried.shop)
    work.wait_line(r'worker.died .*how="signal 9 \(SIGKILL\)')
    eventually(tried.empty, 60)
    work.stop()
    assert sorted(int(note[1]) for note in tried.shop.noted("E")) == list(range(2 * count))
    assert {note[2] for note in tried.shop.noted("E")} == {"1"} or not tried.can("counts")


@pytest.mark.fault(
    "61", "kill -9 of master and workers, and a new start", "their unfinished jobs run again (from the start)"
)
def test_the_job_of_a_killed_tree_runs_again(tried: Tried, figures: Figures) -> None:
    tried.shop.lease()
    tried.push(1, job="held")
    tried.push(2)
    first = ready(tried.shop)
    tried.shop.wait_noted("S", 1)
    first.process.kill()
    first.sweep()
    tried.shop.go()
    began = time.monotonic()
    work = ready(tried.shop)
    tried.shop.wait_noted("E", 1)
    tried.shop.wait_noted("E", 2)
    eventually(tried.empty)
    assert len(tried.shop.noted("S", 1)) == 2
    figures.add(connection=tried.kind.name, back=[float(tried.shop.noted("S", 1)[1][-1]) - began])
    work.stop()


def test_jobs_buried_after_crashes_free_their_lock_places(tried: Tried) -> None:
    """Without a timeout a place would stay taken for a day."""
    work = ready(tried.shop, "--max-crashes", "1")
    tried.push(-1, -2, job="poison")
    work.wait_line("job.failed", 30, count=2)
    tried.push(1, job="poison")
    tried.shop.wait_noted("E", 1)
    eventually(tried.empty)
    work.stop()
    assert not work.matches("job.released")


# -- leases


def test_a_renewed_lease_keeps_its_job_and_an_expired_one_is_reclaimed(tried: Tried) -> None:
    """The first job outlasts its lease while another worker waits for a job of another host. The lease is long enough for a
    machine that stalls for some seconds: some servers do not wait for a keeper."""
    tried.shop.lease(2 * LEASE)
    elsewhere = tried.connect(token="ElseWhere1")
    tried.push(2)
    take(elsewhere)
    tried.push(1, seconds=3.0 * LEASE)  # one and a half leases
    work = ready(tried.shop, workers=2)
    tried.shop.wait_noted("E", 2)
    tried.shop.wait_noted("E", 1)
    eventually(tried.empty)
    assert sorted(note[1] for note in tried.shop.noted("S")) == ["1", "2"]
    assert not work.matches("lease.lost|lease_lost")
    work.stop()


@pytest.mark.parametrize("rounds", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_a_job_that_ends_while_its_lease_is_renewed_is_done(tried: Tried, rounds: int) -> None:
    tried.shop.lease()
    workers = 8
    tried.push(*range(workers * rounds), job="crosses")
    work = ready(tried.shop, workers=workers)
    eventually(lambda: len(tried.shop.noted("E")) >= workers * rounds, 30 + 3 * rounds, what="the end of each job")
    eventually(tried.empty, 3 * LEASE)
    work.stop()
    assert sorted(int(note[1]) for note in tried.shop.noted("S")) == list(range(workers * rounds))
    assert tried.failed() == []
    assert not work.matches("lease.lost|lease_lost|lease.expired")


# -- server failures


@pytest.mark.fault("62", "the server is killed amid 200 jobs, and comes back", "all are done (from when it is back)")
def test_workers_continue_after_a_restart_of_the_server(tried: Tried, figures: Figures) -> None:
    tried.shop.lease(3 * LEASE)  # long enough for a machine that stalls for a moment
    tried.push(*range(200), seconds=0.005)
    work = ready(tried.shop, workers=2)
    eventually(lambda: len(tried.shop.noted("E")) >= 40, 60)
    tried.served.restart()
    back = time.monotonic()
    eventually(lambda: {int(note[1]) for note in tried.shop.noted("E")} == set(range(200)), 90)
    eventually(tried.empty, 60)
    tried.push(1000)
    tried.shop.wait_noted("E", 1000)
    work.stop()
    twice = len(tried.shop.noted("E")) - 201
    if tried.kind.name != "sentinel":  # a failover loses acks that were not replicated
        assert twice <= 2, "more jobs ran twice than were running at the restart"
    first = min(float(note[-1]) for note in tried.shop.noted("S") if float(note[-1]) >= back)
    figures.add(connection=tried.kind.name, doubles=twice, back=[first - back])


# -- declared queues

MAIL = """
@app.job("mail", queue="other")
def mail(n: int) -> None:
    note("S", n, current_job().attempt, os.getpid())
"""


def test_without_arguments_the_declared_queues_are_served_in_turn(tried: Tried) -> None:
    """--sleep is longer than the test waits, so the push wakes the worker at the end."""
    stays = getattr(tried.connect(), "stays", 1)  # jobs of one queue in a row
    tried.shop.jobs(JOBS + MAIL)
    tried.push(*range(stays + 2))
    tried.push(*range(100, 102 + stays), job="mail", queue="other")
    work = tried.shop.work("-w", "1", "--sleep", "90")
    work.wait_line("master.started .* queues=default,other ")
    eventually(lambda: len(tried.shop.noted("S")) == 2 * stays + 4, 40, what="all jobs")
    mail = [int(note[1]) >= 100 for note in tried.shop.noted("S")]
    assert [len([*run]) for _, run in groupby(mail)][:2] == [stays, stays], mail
    waiting(work, 1)
    tried.push(200, job="mail", queue="other")
    tried.shop.wait_noted("S", 200)
    eventually(lambda: tried.empty() and tried.empty("other"))
    work.stop()


# -- signals and pauses


def test_a_stopping_worker_finishes_its_job_and_reserves_no_other(tried: Tried) -> None:
    tried.push(1, job="held")
    tried.push(2)
    work = ready(tried.shop)
    tried.shop.wait_noted("S", 1)
    work.signal(signal.SIGTERM)
    work.wait_line("master.stopping")
    tried.shop.go()
    work.ends_clean()
    assert [note[:2] for note in tried.shop.notes] == [["S", "1"], ["E", "1"]]
    assert (tried.sizes().ready, tried.sizes().reserved) == (1, 0)


def test_a_job_interrupted_at_the_stop_timeout_is_handed_back_without_an_attempt(tried: Tried) -> None:
    tried.push(1, job="held")
    work = ready(tried.shop, "--stop-timeout", "0.5")
    tried.shop.wait_noted("S", 1)
    work.stop()
    eventually(lambda: tried.sizes().ready == 1)
    tried.shop.go()
    tried.shop.work_off()
    assert tried.shop.wait_noted("E", 1)[2] == "1" or not tried.can("counts")
    assert tried.empty()


def test_a_paused_queue_is_not_served_until_it_is_resumed_and_a_signal_ends_a_wait(tried: Tried) -> None:
    work = ready(tried.shop, "default", "other", "--sleep", "600")
    tried.command("pause", "default")
    tried.push(1)
    tried.push(2, queue="other")
    tried.shop.wait_noted("E", 2)
    tried.push(3, queue="other")
    tried.shop.wait_noted("E", 3)
    assert not tried.shop.noted("S", 1)
    assert tried.sizes().ready == 1
    tried.command("resume", "default")
    tried.shop.wait_noted("E", 1)
    waiting(work, seconds=30)
    work.stop()


# -- payloads and failures


def test_a_worker_logs_the_gaps_of_its_connection_and_jobs_get_unicode_and_a_megabyte(tried: Tried) -> None:
    texts = {1: "Grüße, 世界 \U0001f600 \x01", 2: tried.fitting("é" * 450_000)}
    for n, text in texts.items():
        tried.push(n, job="read", text=text)
    work = tried.shop.work_off()
    reported = {
        match[1] for match in work.matches(r"connection\.unsupported connection=main what=(\w+) meaning=\"?\w+")
    }
    assert reported == tried.kind.limits
    for n, text in texts.items():
        (note,) = tried.shop.noted("E", n)
        assert note[2:4] == [hashlib.sha256(text.encode()).hexdigest(), str(len(text))]
    assert tried.empty()


def test_unreadable_payloads_are_stored_once_and_the_next_job_runs(tried: Tried) -> None:
    producer, sent = tried.connect(token="", slot=0), []
    for what, raw in HOSTILE.items():
        if what not in tried.kind.refuses:
            producer.push("default", raw)
            sent.append(what)
        else:
            with pytest.raises(QdError):
                producer.push("default", raw)
    tried.push(1)
    work = tried.shop.work_off()
    assert len(tried.shop.noted("E", 1)) == 1
    assert tried.empty()
    kept = tried.failed()
    assert len(kept) == len(sent), work.tail()
    whole = {record.get("payload", record.get("payload_base64")) for record in kept}
    assert len(whole) == len(sent)


def test_a_failed_job_is_stored_and_runs_when_it_is_retried(tried: Tried) -> None:
    tried.shop.lease()  # SQS may deliver the retried job to the abandoned poll of the first worker
    tried.push(1, job="boom")
    tried.shop.work_off()
    assert [note[2] for note in tried.shop.noted("S", 1)] == ["1", "2"]
    (record,) = tried.failed()
    assert (record["job"], record["error"], record["attempts"]) == ("boom", "ValueError", 2)
    tried.command("failed", "retry", record["id"])
    tried.shop.work_off()
    (again,) = tried.failed()
    assert (again["id"], again["failures"], again["first_failed_at"]) == (record["id"], 2, record["failed_at"])
    assert again["record"] != record["record"]
    (tried.shop.root / "fixed").touch()
    tried.command("failed", "retry", record["id"])
    work = ready(tried.shop)
    tried.shop.wait_noted("E", 1)
    eventually(tried.empty)
    work.stop()
    assert [note[2] for note in tried.shop.noted("E", 1)] == ["1"]
    assert tried.failed() == []
    assert tried.empty()


# -- the commands


def test_commands_dispatch_count_and_clear(tried: Tried) -> None:
    tried.push(1)
    tried.command("dispatch", "quick", "n=2", "--delay", "600")
    row = queue_row(tried)
    assert (row["ready"], row["delayed"]) == (1, 1)
    assert shown(tried, "clear", "default", "--yes")["deleted"] == (2 if tried.can("clear") else 1)
    assert tried.empty() or not tried.can("clear")


def test_a_waiting_job_is_found_by_id_and_cancelled(tried: Tried) -> None:
    payload = job_of("quick", 1)
    tried.connect(token="", slot=0).later("default", payload, 600)
    id = str(read(payload).id)
    if not tried.can("find"):
        for command in ("job", "cancel"):
            done = tried.shop.quick(command, id)
            assert done.exit_code != 0
            assert NAME in done.stderr, done.stderr
        return
    assert shown(tried, "job", id)["status"] == "delayed"
    tried.command("cancel", id)
    assert tried.empty()


def test_a_broker_without_a_keyspace_needs_a_control_connection(tried: Tried) -> None:
    if tried.can("memory"):
        space, prefix = tried.connect().kept
        assert space.call("EXISTS", f"{prefix}nothing") == 0
        return
    lines = [f"{key} = {json.dumps(value)}" for key, value in tried.shop.table.items()]
    alone = "\n".join(["[qd]", 'app = "jobs:app"', f"[connections.{NAME}]", *lines])
    (tried.shop.root / "qd.toml").write_text(alone)
    done = tried.shop.qd("work", "--stop-when-empty")
    assert done.returncode == 78
    (line,) = [line for line in done.stderr.splitlines() if " ERROR " in line]
    assert f"connection '{NAME}'" in line
    assert "as control of [qd]" in line
