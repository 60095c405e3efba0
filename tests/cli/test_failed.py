"""qd failed list and show."""

from __future__ import annotations

import json
import re
import time
from base64 import b64decode

import pytest

from qd.drivers.types import NO_JOB
from qd.payload.build import as_pushed
from qd.store import failed as kept
from tests.cli.conftest import Run, document, done
from tests.support.payloads import store_failed_job
from tests.support.redis import Client

NOW = time.time()


def ids(qd: Run, *words: str) -> list[str]:
    """The IDs of the listed records."""
    return [record["record"] for record in document(qd("failed", "list", "--json", *words))]


def test_the_list_shows_all_queues_newest_first(qd: Run, redis: Client) -> None:
    for n, queue in enumerate(("mail", "reports", "mail")):
        store_failed_job(redis, f"T.0.{n}.1", queue=queue, at=NOW - 100 + n)
    assert ids(qd) == ["T.0.2.1", "T.0.1.1", "T.0.0.1"]
    assert ids(qd, "--limit", "2") == ["T.0.2.1", "T.0.1.1"]
    table = done(qd("failed", "list")).splitlines()
    assert table[0].split() == ["id", "queue", "job", "error", "reason", "attempts", "failed"]
    assert [line.split()[0] for line in table[1:]] == ["job-T.0.2.1", "job-T.0.1.1", "job-T.0.0.1"]


def test_a_record_in_json_has_its_fields_and_payload(qd: Run, redis: Client) -> None:
    raw = store_failed_job(redis, "T.0.1.3", at=1_700_000_000.25, crashes=1)
    store_failed_job(
        redis, "T.0.2.m0", at=1_700_000_001.5, raw=b"\xff{", uuid=None, job=None, error="Malformed", attempts=0
    )
    odd, whole = document(qd("failed", "list", "--json"))
    assert whole == {
        "id": "job-T.0.1.3", "record": "T.0.1.3", "failures": 1, "first_failed_at": 1_700_000_000.25,
        "uuid": "uuid-T.0.1.3", "queue": "mail", "job": "mail.welcome", "error": "ValueError",
        "reason": "no such user", "attempts": 3, "crashes": 1, "failed_at": 1_700_000_000.25, "payload": raw.decode(),
    }  # fmt: skip
    assert b64decode(odd["payload_base64"]) == b"\xff{"
    assert (odd["id"], odd["record"]) == ("T.0.2.m0", "T.0.2.m0")
    assert (odd["uuid"], odd["job"], odd["failed_at"], "payload" in odd) == (None, None, 1_700_000_001.5, False)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b'{"job":"a","id":{},"attempts":0}', "id: expected str | null, got object"),
        (b'{"job":"a","attempts":-5}', "attempts: expected int >= 0"),
        (b"[1]", "expected object, got array"),
        (b"\xff\xfe", "not JSON: invalid character (byte 0)"),
        (b'{"job":"a","data":{}}', NO_JOB),
    ],
)
def test_list_and_show_say_what_is_wrong_in_a_payload_that_is_no_job(
    qd: Run, redis: Client, raw: bytes, reason: str
) -> None:
    store_failed_job(redis, "T.0.2.m0", raw=raw, uuid=None, job=None, error="Malformed", reason=NO_JOB, attempts=0)
    assert [record["reason"] for record in document(qd("failed", "list", "--json"))] == [reason]
    assert reason in done(qd("failed", "list"))
    assert f"error:       Malformed: {reason}\n" in done(qd("failed", "show", "T.0.2.m0"))


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["-q", "reports"], "c"), (["-q", "mail", "-q", "reports"], "dcba"), (["--queue", "nobody"], ""),
        (["--job", "mail.welcome"], "ba"), (["--job", "mail.*"], "dba"), (["--job", "mail"], ""),
        (["--error", "KeyError"], "d"), (["--error", "*Error"], "dcba"), (["--error", "Key"], ""),
        (["--text", "SUCH user"], "cba"), (["--text", "in their_code"], "d"), (["--text", '"to": "a"'], "a"),
        (["--since", "25m"], "dc"), (["--until", "25m"], "ba"), (["--older-than", "25m"], "ba"),
        (["--since", "35m", "--until", "15m"], "cb"), (["--since", "2000-01-01", "--job", "mail.*"], "dba"),
        (["--until", "2000-01-01T10:00+01:00"], ""), (["--older-than", "15m", "--text", "such"], "cba"),
    ],
)  # fmt: skip
def test_only_records_that_match_all_filters_are_listed(qd: Run, redis: Client, words: list[str], found: str) -> None:
    now = time.time()
    store_failed_job(redis, "a", at=now - 2400)
    store_failed_job(redis, "b", at=now - 1800)
    store_failed_job(redis, "c", at=now - 1200, queue="reports", job="report")
    store_failed_job(
        redis, "d", at=now - 600, job="mail.later", error="KeyError", reason="x", trace="File in their_code"
    )
    assert "".join(ids(qd, *words)) == found


def test_an_empty_list_is_reported(qd: Run, redis: Client) -> None:
    assert done(qd("failed", "list", "--json")) == "[]\n"
    empty = qd("failed", "list")
    assert (empty.exit_code, empty.stdout, empty.stderr) == (0, "", "nothing has failed\n")
    assert qd("failed", "list", "--job", "x").stderr == "no failed job matches\n"


def test_a_table_is_cut_after_a_hundred_rows_with_a_note(qd: Run, redis: Client) -> None:
    for n in range(102):
        store_failed_job(redis, f"r{n}", at=NOW - n)
    cut = qd("failed", "list")
    assert (len(cut.stdout.splitlines()), cut.stderr) == (101, "the newest 100 of more; --limit 0 shows all\n")
    assert len(done(qd("failed", "list", "--limit", "0")).splitlines()) == 103
    assert len(ids(qd)) == 102


def test_paging_lists_each_record_once_even_if_many_failed_at_the_same_time(
    qd: Run, redis: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "PAGE", 4)
    monkeypatch.setattr(kept, "LIGHT", 2000)
    for n in range(3):
        store_failed_job(redis, f"new{n}", at=NOW - n)
    for n in range(30):
        store_failed_job(redis, f"same{n}", at=NOW - 10)
    for n in range(3):
        store_failed_job(redis, f"old{n}", at=NOW - 20 - n)
    found = ids(qd)
    assert len(found) == len(set(found)) == 36
    assert (found[:3], found[-3:]) == (["new0", "new1", "new2"], ["old0", "old1", "old2"])


def test_invalid_records_are_listed(qd: Run, redis: Client) -> None:
    for name, value in (("x", b""), ("y", b"{}"), ("z", b'{"attempts":"many"}\nraw'), ("w", b"[" * 5000 + b"\n\xff")):
        redis.call("HSET", "queues:mail:failed", name, value)
        redis.call("ZADD", "queues:mail:failed_at", NOW, name)
    redis.call("ZADD", "queues:mail:failed_at", NOW, "gone")
    redis.call("SET", "queues:odd:failed_at", "no index")
    assert sorted(ids(qd)) == ["w", "x", "y", "z"]
    assert "(its record cannot be read)" in done(qd("failed", "list"))


@pytest.mark.parametrize("word", ["job-T.0.17.3", "job-T.0.1", "uuid-T.0.17.3", "T.0.17.3", "T.0.1"])
def test_show_prints_all_fields(qd: Run, redis: Client, word: str) -> None:
    death = {"verdict": "timeout", "signal": "SIGKILL", "exit": None, "peak": 412_000_000, "took": 61.5, "oom": False}
    death["stack"] = "File jobs.py, line 7 in stuck\x1b[2J"
    store_failed_job(redis, "T.0.17.3", trace="Traceback\n  here", death=death, crashes=2)
    store_failed_job(redis, "T.0.2.3")
    text = done(qd("failed", "show", word))
    for part in (
        "T.0.17.3",
        "uuid-T.0.17.3",
        "mail",
        "SIGKILL",
        "412M",
        "1m 1s",
        "timeout",
        "  here",
        "line 7 in stuck",
    ):
        assert part in text
    assert '"to": "T.0.17.3"' in text
    assert "\x1b" not in text
    shown = document(qd("failed", "show", word, "--json"))
    assert (shown["id"], shown["record"]) == ("job-T.0.17.3", "T.0.17.3")
    assert (shown["trace"], shown["death"]["peak"]) == ("Traceback\n  here", 412_000_000)
    assert json.loads(shown["payload"])["job"] == "mail.welcome"


def test_show_of_an_unknown_id_fails(qd: Run, redis: Client) -> None:
    store_failed_job(redis, "T.0.1.1")
    missing = qd("failed", "show", "T.9")
    assert (missing.exit_code, missing.stdout) == (1, "")
    assert missing.stderr == "qd: no failed job 'T.9' (`qd failed list` shows them)\n"
    assert qd("failed", "show", "T.0.1.1", "-q", "other").exit_code == 1


def test_an_ambiguous_id_is_rejected_with_the_matching_ids(qd: Run, redis: Client) -> None:
    store_failed_job(redis, "T.0.1.1")
    store_failed_job(redis, "T.0.2.1")
    several = qd("failed", "show", "T.0")
    assert several.exit_code == 2
    assert "means 2 failed jobs" in several.output
    assert "T.0.2.1" in several.output
    assert "T.0.1.1" in done(qd("failed", "show", "T.0.1.1"))


@pytest.mark.parametrize("verb", ["show", "retry", "forget"])
def test_two_records_of_one_job_are_selected_by_record_id(qd: Run, redis: Client, verb: str) -> None:
    raw = store_failed_job(redis, "T.0.1.1")
    store_failed_job(redis, "T.0.2.1", queue="reports", raw=raw, uuid="uuid-T.0.1.1")
    for word in ("job-T.0.1.1", "job-T", "uuid-T.0.1.1"):
        several = qd("failed", verb, word)
        assert several.exit_code == 2
        hint = "is the id of 2 failed jobs; name one by its record instead (T.0.2.1 of queue reports, T.0.1.1 of queue mail)"
        assert hint in " ".join(several.output.replace("│", " ").split())
    assert document(qd("failed", "list", "--json"))[0]["record"] == "T.0.2.1"
    done(qd("failed", verb, "T.0.2.1"))
    if verb != "show":
        done(qd("failed", verb, "job-T.0.1.1"))
        assert ids(qd) == []


def test_the_number_of_failures_of_a_retried_job_is_shown(qd: Run, redis: Client) -> None:
    first = store_failed_job(redis, "T.0.1.1", at=NOW - 7200)
    done(qd("failed", "retry", "job-T.0.1.1"))
    for at, id in ((NOW - 3600, "T.0.2.1"), (NOW - 60, "T.0.3.1")):
        sent = redis.call("LPOP", "queues:mail")
        store_failed_job(redis, id, at=at, raw=sent)
        (found,) = document(qd("failed", "list", "--json"))
        if id == "T.0.2.1":
            done(qd("failed", "retry", "job-T.0.1.1"))
    assert (found["id"], found["record"], found["failures"]) == ("job-T.0.1.1", "T.0.3.1", 3)
    assert (found["first_failed_at"], found["failed_at"]) == (round(NOW - 7200, 3), round(NOW - 60, 3))
    assert re.search(r"failed: +3 times, first \S+ \S+ \(2h .*ago\), last ", done(qd("failed", "show", "job-T.0.1.1")))
    pushed = [re.sub(rb'"createdAt":\d+', b"", as_pushed(raw)) for raw in (sent, first)]
    assert pushed[0] == pushed[1], "no other byte has changed"


@pytest.mark.parametrize("word", ["yesterday", "", "-1h", "2026-13-01"])
def test_an_invalid_time_is_a_usage_error(qd: Run, redis: Client, word: str) -> None:
    assert qd("failed", "list", "--since", word).exit_code == 2
