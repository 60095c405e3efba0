"""Payloads that are malformed or have no handler here: stored and logged; they kill no worker and block no other job."""

from __future__ import annotations

import base64
import json
import os
import pickle
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qd.payload.build import make
from tests.support.payloads import failed, hostile, malformed, push, push_raw
from tests.support.processes import Procs, waiting
from tests.support.project import MakeProject, Project, ready
from tests.support.redis import FAILED, Client
from tests.support.waiting import eventually
from tests.support.witness import JOBS, Witness

pytestmark = pytest.mark.usefixtures("clean_redis")
ROW_24 = pytest.mark.fault(
    "24",
    "some 500 malformed payloads, cut, nested, of wrong types, no text at all, in every list of the queue",
    "each is kept once, byte for byte; no worker dies; those behind them run; no line of the log is long or forged",
)
ROW_25 = pytest.mark.fault("25", "10,000 equal payloads; names in any script", "each is a job of its own")
LONGEST_LINE = 500  # bytes; a traceback has lines of its own

TYPED = (
    JOBS
    + """
from typing import Any

@app.job("typed")
def typed(number: int, text: str = "") -> None:
    note("typed", number)

@app.job("large")
def large(text: str) -> None:
    note("large", len(text))

@app.job("größe.テスト.🐘 mit Leerzeichen")
def unicode(名前: str) -> None:
    note("unicode", 名前)

@app.job("mail.welcome", tries=0)
def welcome(**anything: Any) -> None:
    note("welcome")
"""
)


@pytest.fixture
def shop(project: MakeProject) -> Project:
    return project(jobs=TYPED)


def held_of(redis: Client, key: str = "queues:default:delayed") -> dict[str, object]:
    """The one delayed payload, read."""
    (member,) = eventually(lambda: redis.call("ZRANGE", key, "0", "-1"), what=f"a payload in {key}")
    read: dict[str, object] = json.loads(member)
    return read


# -- what is no payload


@FAILED
@ROW_24
def test_each_malformed_payload_is_kept_once_unchanged_and_the_jobs_behind_it_run(
    shop: Project, witness: Witness, redis: Client
) -> None:
    work = ready(shop)
    workers = waiting(work)
    corpus = list(dict(malformed(cut_every=40)).values())
    for number, raw in enumerate(corpus):
        if number % 20 == 0:
            push(redis, "quick", n=number)
        if number % 7 == 0 and raw not in corpus[:number]:
            redis.call("ZADD", "queues:default:delayed", str(time.time()), raw)
        else:
            push_raw(redis, raw)
    push(redis, "quick", count=10, n=-1)
    witness.wait("quick -1", 10, seconds=30)
    kept = eventually(lambda: (found := failed(redis)) and len(found) >= len(corpus) and found, 20)
    assert sorted(raw for _, raw in kept) == sorted(corpus)
    assert {record["error"] for record, _ in kept} == {"Malformed"}
    assert waiting(work) == workers, "a worker died of a payload"
    bounded(work)
    work.stop()


UNREAD = "not a JSON object with a count of attempts"
CAUSES = {
    b"not json": UNREAD,
    b"[1]": UNREAD,
    b'{"data":{},"attempts":0}': "job: is missing",
    b'{"job":5,"data":{},"attempts":0}': "job: expected str, got int",
    b'{"job":"quick","data":{},"attempts":0,"timeout":"never"}': "timeout: expected int | null, got str",
}


@FAILED
def test_the_log_names_queue_record_and_cause_of_each_malformed_payload(shop: Project, redis: Client) -> None:
    push_raw(redis, *CAUSES, queue="mail")
    work = ready(shop, "mail")
    work.wait_line("job.malformed ", count=len(CAUSES))
    for record, raw in failed(redis, "mail"):
        line = f'job.malformed queue=mail id={record["id"]} error="Malformed: {CAUSES[raw]}"'
        assert len(work.matches(re.escape(line))) == 1, line
    work.stop()


@FAILED
@pytest.mark.leaves("queues:default", "queues:default:delayed", "queues:default:notify")  # what is held, and its turn
@ROW_24
def test_odd_payloads_kill_no_worker_and_each_stays_in_one_place(
    shop: Project, witness: Witness, redis: Client, mode: str
) -> None:
    work = ready(shop, "--log-level", "debug")
    workers = waiting(work)
    corpus = [raw for name, raw in hostile(cut_every=1000) if name not in dict(malformed(cut_every=1000))]
    push_raw(redis, *corpus)
    push(redis, "quick", count=10)
    witness.wait("quick", 10, seconds=30)
    work.wait_line("job.done .*job=quick", count=10)

    def accounted() -> bool:
        done = len(work.matches(r"job.done .*job=mail"))
        held = int(redis.call("ZCARD", "queues:default:delayed"))
        return done + len(failed(redis)) + held == len(corpus)

    eventually(accounted, what="every odd payload done, failed or held")
    assert not work.matches("worker.died"), "a worker died of a payload"
    if mode != "concurrency":  # there, a worker that has run a job with an unanswered mark leaves
        assert waiting(work) == workers
    bounded(work)
    work.stop()


def bounded(work: Procs) -> None:
    """No payload floods the log, forges a line or speaks to the terminal."""
    for line in work.lines:
        assert len(line.encode()) <= LONGEST_LINE, f"{len(line)} characters: {line[:200]} ... {line[-100:]}"
        assert line.isprintable(), repr(line)


# -- jobs that no worker here can run


def test_the_log_says_what_to_do_about_a_name_like_no_other(shop: Project, redis: Client) -> None:
    push(redis, "shop.other.bare")
    work = ready(shop)
    way = r"declared; add its module to `imports`, or `qd restart --rolling`\)"
    work.wait_line(rf"WARN.*job.released .*job=shop.other.bare .*{way}")
    push(redis, r"App\Jobs\Report@fire")
    work.wait_line(
        r"job.released .*Report@fire' is declared in this app \(it is a PHP class: if PHP workers serve this"
    )
    work.stop()
    redis.call("DEL", "queues:default:delayed")


@FAILED
def test_an_unknown_name_is_held_spends_nothing_and_is_failed_after_the_ttl_naming_near_misses(
    shop: Project, witness: Witness, redis: Client
) -> None:
    work = ready(shop)
    push(redis, "typd", number=1)
    push(redis, "quick")
    work.wait_line("job.released .*job=typd .*delay=1.000 .*did you mean 'typed'")
    held = held_of(redis)
    assert held["attempts"] == 0
    assert held["held"]
    witness.wait("quick")
    work.wait_line("job.released .*job=typd", count=2)
    work.stop()
    work = ready(shop, "--unroutable-ttl", "1s")  # it is over
    work.wait_line("job.failed .*job=typd .*UnknownJob.*did you mean 'typed'", 20)
    ((record, raw),) = failed(redis)
    assert (record["error"], record["attempts"]) == ("UnknownJob", 0)  # an unknown name costs none
    assert b'"data":{"number": 1}' in raw
    assert b'"attempts":0,' in raw
    work.stop()


@FAILED
@pytest.mark.parametrize("data", [{}, {"number": 1, "nmber": 2}], ids=["missing", "unknown"])
def test_a_parameter_of_another_version_is_held_and_then_failed(
    shop: Project, witness: Witness, redis: Client, data: dict[str, Any]
) -> None:
    work = ready(shop, "--unroutable-ttl", "1s")
    push(redis, "typed", **data)
    name = "number" if not data else "nmber"
    work.wait_line(f"job.released .*job=typed .*delay=1.000 .*{name}")
    work.wait_line(f"job.failed .*job=typed .*UnknownParameters.*{name}", 20)
    ((_, raw),) = failed(redis)
    assert b'"attempts":0,' in raw
    assert not witness.lines
    work.stop()


@pytest.mark.leaves("qd:restart")
def test_a_job_that_is_known_after_a_deploy_runs(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=JOBS)
    witness = Witness(shop)
    work = ready(shop)
    push(redis, "typed", number=7)
    work.wait_line("job.released .*job=typed")
    shop.jobs(TYPED)
    assert shop.qd("restart", "--rolling").returncode == 0
    assert witness.wait("typed") == ["typed 7"]
    work.wait_line("job.done .*job=typed .*attempt=1")
    work.stop()


def waiting_payloads(redis: Client) -> list[bytes]:
    """Return ready and delayed payloads. A job may move between the two calls, or be reserved."""
    ready, delayed = (
        redis.call("LRANGE", "queues:default", 0, -1),
        redis.call("ZRANGE", "queues:default:delayed", 0, -1),
    )
    return [*ready, *delayed]


@FAILED
@pytest.mark.parametrize("value", ["seven", None, [1], 1.5])
def test_a_value_of_the_wrong_type_fails_at_once_naming_the_parameter(
    shop: Project, witness: Witness, redis: Client, value: object
) -> None:
    work = ready(shop, "--tries", "5")
    push(redis, "typed", number=value)
    work.wait_line("job.failed .*job=typed .*WrongType.*number")
    assert not work.matches("job.released")
    ((record, _),) = failed(redis)
    assert "number" in record["reason"]
    assert "int" in record["reason"]
    work.stop()


@pytest.mark.leaves("queues:default:delayed", "queues:default", "queues:default:notify")
def test_an_object_job_of_laravel_is_never_failed_and_its_data_stays(
    shop: Project, witness: Witness, redis: Client
) -> None:
    data = {
        "commandName": "App\\Jobs\\Ship",
        "command": 'O:13:"App\\Jobs\\Ship":1:{s:2:"id";i:7;}',
        "list": [],
        "n": 2**60,
    }
    raw = make("Illuminate\\Queue\\CallQueuedHandler@call", json.dumps(data).encode(), created_at=int(time.time()))
    work = ready(shop, "--unroutable-ttl", "1s", "--max-crashes", "1")
    push_raw(redis, raw)
    push(redis, "quick", count=10)
    witness.wait("quick", 10)
    redis.call("ZADD", "queues:default:delayed", "1", raw.replace(b"Ship", b"Fly!"))
    push(redis, "quick", count=10)
    witness.wait("quick", 20)
    eventually(lambda: redis.call("LLEN", "queues:default:notify") <= 2)
    for payload in eventually(lambda: (found := waiting_payloads(redis)) and len(found) == 2 and found):
        assert json.dumps(data).encode() in payload.replace(b"Fly!", b"Ship")
        assert b'"attempts":0' in payload
    assert not failed(redis)
    work.stop()


# -- what is beyond max_payload and max_depth


@FAILED
def test_a_payload_of_50_megabytes_never_reaches_a_worker(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=TYPED, config='[failed]\nmax_bytes = "200M"\n')  # room for both payloads
    witness, work = Witness(shop), ready(shop)
    (worker,) = waiting(work)
    before = worker.memory_info().rss
    huge = make("large", b'{"text":"%b"}' % (b"x" * 50_000_000), created_at=int(time.time()))
    push_raw(redis, huge)
    push(redis, "quick", count=10)
    redis.call("ZADD", "queues:default:delayed", "1", huge.replace(b"xx", b"yy"))
    push(redis, "quick", count=10)
    witness.wait("quick", 20)
    push(redis, "large", text="small")
    witness.wait("large 5")
    assert witness.starting("large") == [witness.starting("large 5")[0]]
    eventually(lambda: redis.call("HLEN", "queues:default:failed") == 2, what="both in the failed store")
    assert sorted(raw for _, raw in failed(redis)) == sorted([huge, huge.replace(b"xx", b"yy")])
    assert all("max_payload" in record["reason"] for record, _ in failed(redis))
    assert waiting(work) == [worker], "a worker died of a payload"
    assert worker.memory_info().rss - before < 20_000_000
    work.stop()


@FAILED
@pytest.mark.parametrize("levels", [513, 1100, 900_000])
def test_a_payload_that_is_nested_too_deep_is_buried_before_it_is_decoded(
    shop: Project, witness: Witness, redis: Client, levels: int
) -> None:
    deep = b'{"job":"mail.welcome","data":%b%b,"attempts":0}' % (b"[" * (levels - 1), b"]" * (levels - 1))
    fits = b'{"job":"mail.welcome","data":{"a":%b%b},"attempts":0}' % (b"[" * 510, b"]" * 510)
    push_raw(redis, deep, fits)
    shop.work_off("--log-level", "error")
    assert witness.lines == ["welcome"]
    ((record, raw),) = failed(redis)
    assert (raw, record["error"]) == (deep, "Malformed")
    assert record["reason"] == "nested deeper than max_depth = 512"


# -- names that are none of ours

EVIL = (
    "os.system",
    "posix.system",
    "builtins.eval",
    "subprocess.Popen",
    "__import__",
    "jobs.note",
    "jobs:app",
    "evil.run",
    "evil",
    "../evil",
    "mail.welcome.__globals__",
    "Illuminate\\Foundation\\Console\\Kernel@call",
    "pickle.loads",
)


@FAILED
@pytest.mark.leaves("queues:default", "queues:default:delayed", "queues:default:notify")
@pytest.mark.fault(
    "40",
    "pickles, PHP objects, names like os.system; unsigned and changed payloads; users with few rights; a search for secrets",
    "no forbidden job runs; each is rejected with a reason; no unneeded right is required; no secret appears anywhere",
)
def test_nothing_in_a_payload_is_imported_unpickled_or_evaluated(
    shop: Project, witness: Witness, redis: Client, tmp_path: Path
) -> None:
    """Each of these writes a file in a worker that does more with a payload than look its name up."""
    trap = tmp_path / "trap"
    (shop.root / "evil.py").write_text(f"open({str(trap)!r}, 'w').close()\ndef run(*a, **k): ...\n")
    shop.allowed |= {"evil.py", "__pycache__"}
    shop.jobs(
        TYPED + "\n@app.job('any', raw=True)\ndef any_(data: Any) -> None:\n    note('any', type(data).__name__)\n"
    )

    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, (f"touch {trap}",)

    bomb = pickle.dumps(Bomb())
    php = f'O:8:"Bomb":1:{{s:3:"run";s:{len(str(trap)) + 6}:"touch {trap}";}}'
    yaml = f"!!python/object/apply:os.system ['touch {trap}']"
    texts = [base64.b64encode(bomb).decode(), php, yaml, f"__import__('os').system('touch {trap}')", f"$(touch {trap})"]
    push_raw(redis, bomb, php.encode(), yaml.encode(), bomb + b'{"job":"any","attempts":0}')
    for name in EVIL:
        push_raw(redis, json.dumps({"job": name, "data": f"touch {trap}", "attempts": 0}).encode())
    for text in texts:
        push_raw(redis, json.dumps({"job": "any", "data": {"command": text, "data": text}, "attempts": 0}).encode())
        push_raw(redis, json.dumps({"job": "any", "data": text, "attempts": 0}).encode())
    work = ready(shop)
    witness.wait("any", 2 * len(texts))
    held: Callable[[], set[str]] = lambda: {match[1] for match in work.matches("job.released .*no job '([^']*)'")}  # noqa: E731
    eventually(lambda: len(held()) == len(EVIL), what="each of them held")
    work.stop()
    assert not trap.exists()
    assert len(failed(redis)) == 4
    assert len(waiting_payloads(redis)) == len(EVIL)


# -- large, strange and equal ones, which are right


@ROW_25
def test_names_in_any_script_run(shop: Project, witness: Witness, redis: Client) -> None:
    work = ready(shop)
    push(redis, "größe.テスト.🐘 mit Leerzeichen", 名前="値 🐘")
    assert witness.wait("unicode") == ["unicode 値 🐘"]
    work.wait_line("job.done .*größe.テスト.🐘 mit Leerzeichen")
    work.stop()


@ROW_25
def test_equal_payloads_are_as_many_jobs(shop: Project, witness: Witness, redis: Client) -> None:
    raw = make("quick", b"{}", created_at=int(time.time()))
    push_raw(redis, *[raw] * 10_000)
    work = shop.work("-w", "2", "--stop-when-empty", "--log-level", "warning")
    work.ends_clean(seconds=120)
    assert len(witness.starting("quick")) == 10_000
    assert work.lines == []
