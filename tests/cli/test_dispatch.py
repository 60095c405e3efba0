"""qd dispatch, run, jobs, clear and cancel."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from qd import Qd
from qd.cli.dispatch import given_data, typed, value_of
from tests.cli.conftest import Run, document, done
from tests.support.project import Project
from tests.support.redis import Client
from tests.support.waiting import eventually

Projects = Callable[..., Project]
JOBS = """
@app.job("mail.welcome", queue="mail", tries=5, backoff=[1, 5], timeout=30)
def welcome(to: str, count: int = 1) -> str:
    print(to, count, flush=True)
    return f"sent to {to}"

@app.job("whole", raw=True)
def whole(data) -> None:
    print(json.dumps(data) if False else repr(data), flush=True)

@app.job("boom")
def boom() -> None:
    inner()

def inner() -> None:
    raise ValueError("no such thing")

@app.job("later")
async def later() -> list[int]:
    return [1, 2]

@app.job("gives.up")
def gives_up() -> None:
    current_job().fail("why not")
"""


def sent(redis: Client, key: str) -> list[dict[str, object]]:
    return [json.loads(payload) for payload in redis.text("LRANGE", key, 0, -1)]


# -- arguments


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("ada@example.org", "ada@example.org"), ("7", 7), ('"7"', "7"), ("1e3", 1000.0), ("true", True), ("null", None),
        ("[1]", [1]), ('{"a": 1}', {"a": 1}), ("", ""), ("NaN", "NaN"), ("Infinity", "Infinity"), ("007", "007"),
        ("{", "{"), ("[" * 100_000, "[" * 100_000), ("a=b", "a=b"),
    ],
    ids=lambda value: str(value)[:12],
)  # fmt: skip
def test_a_value_is_parsed_as_json_if_valid_else_taken_as_text(text: str, value: object) -> None:
    assert value_of(text) == value
    assert given_data((f"key={text}",), None) == {"key": value}


@pytest.mark.parametrize(
    "words",
    [("mail",), ("=1",), ("a=1", "a=2"), ("a=1", "--data", "{}"), ("--data", "{"), ("--data", "[NaN]")],
    ids=["no equals", "no name", "twice", "both ways", "no json", "nan"],
)
def test_ambiguous_arguments_are_wrong_usage(qd: Run, redis: Client, words: tuple[str, ...]) -> None:
    result = qd("dispatch", "x", *words)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert redis.keys() == []


# -- dispatch without an app


def test_without_an_app_a_job_is_sent_unchecked(qd: Run, redis: Client) -> None:
    output = done(qd("dispatch", "mail.welcome", "to=ada", "count=2"))
    (payload,) = sent(redis, "queues:default")
    assert (payload["job"], payload["data"], payload["attempts"]) == ("mail.welcome", {"to": "ada", "count": 2}, 0)
    assert output == f"sent mail.welcome {payload['id']} to default\n"
    assert redis.call("LLEN", "queues:default:notify") == 1


def test_a_delayed_job_is_due_later(qd: Run, redis: Client) -> None:
    found = document(qd("dispatch", "x", "--queue", "q", "--delay", "5m", "--count", "3", "--json"))
    assert (found["name"], found["queue"], len(set(found["ids"]))) == ("x", "q", 3)
    scores = redis.text("ZRANGE", "queues:q:delayed", 0, -1, "WITHSCORES")[1::2]
    now = float(redis.text("TIME")[0])
    assert [290 < float(score) - now <= 301 for score in scores] == [True] * 3


def test_a_php_job_is_sent_unchecked_even_with_an_app(qd: Run, redis: Client, folder: Path) -> None:
    with (folder / "qd.toml").open("a") as file:
        file.write('[qd]\napp = "nowhere:app"\n')
    done(qd("dispatch", r"App\Jobs\Report@fire", "--queue", "php", "--data", "[1]"))
    (payload,) = sent(redis, "queues:php")
    assert (payload["job"], payload["data"]) == (r"App\Jobs\Report@fire", [1])


# -- with an app


def test_a_waiting_unique_job_is_not_sent_again_and_reported(project: Projects, redis: Client) -> None:
    shop = project('@app.job("once", unique="once")\ndef once() -> None: ...\n')
    twice = document_of(shop.qd("dispatch", "once", "--count", "3", "--json"))
    (payload,) = sent(redis, "queues:default")
    id = payload["id"]
    assert twice == (0, {"name": "once", "queue": "default", "ids": [id], "skipped": 2, "held_by": [id]})
    again = shop.qd("dispatch", "once")
    assert (again.returncode, again.stdout) == (1, f"not sent: once {id} waits or runs already (the job is unique)\n")
    again = shop.qd("dispatch", "once", "--count", "2")
    assert (again.returncode, again.stdout.startswith("not sent 2 times: once")) == (1, True)
    none = document_of(shop.qd("dispatch", "once", "--json"))
    assert none == (1, {"name": "once", "queue": "default", "ids": [], "skipped": 1, "held_by": [id]})
    assert redis.call("LLEN", "queues:default") == 1


def document_of(ended: CompletedProcess[str]) -> tuple[int, object]:
    return ended.returncode, json.loads(ended.stdout)


def test_with_an_app_the_declaration_sets_queue_and_options(project: Projects, redis: Client) -> None:
    shop = project(JOBS)
    result = shop.qd("dispatch", "mail.welcome", "to=ada")
    (payload,) = sent(redis, "queues:mail")
    assert (result.returncode, result.stdout) == (0, f"sent mail.welcome {payload['id']} to mail\n")
    assert {key: payload[key] for key in ("maxTries", "timeout", "backoff", "data")} == {
        "maxTries": 5, "timeout": 30, "backoff": "1,5", "data": {"to": "ada"},
    }  # fmt: skip
    assert shop.qd("dispatch", "mail.welcome", "to=ada", "--count", "1500", "--queue", "q").returncode == 0
    assert redis.call("LLEN", "queues:q") == 1500


@pytest.mark.parametrize(
    ("word", "arrives"),
    [
        ("to=5", "5"), ("to=true", "true"), ("to=null", "null"), ("to=[1]", "[1]"), ('to="5"', "5"), ("to=1e3", "1e3"),
        ("count=5", 5), ("count=five", "five"), ("price=1.10", Decimal("1.10")), ('tags=["5"]', ["5"]), ("note=null", None),
        ("price=0.12345678901234567890", Decimal("0.12345678901234567890")), ("note=7", "7"), ("folder=2031", "2031"),
        ("either=5", 5), ("either=a", "a"), ("any=5", 5), ("more=5", "5"),
    ],
    ids=str,
)  # fmt: skip
def test_a_value_is_read_as_the_type_that_the_job_declares(word: str, arrives: object) -> None:
    app = Qd("redis://nowhere.invalid")

    @app.job("types")
    def types(
        to: str = "",
        count: int = 0,
        price: Decimal | None = None,
        tags: list[str] | None = None,
        note: str | None = None,
        folder: Path | None = None,
        either: int | str = 0,
        any: Any = None,
        **rest: str,
    ) -> None: ...

    declared = app._registry.get("types")
    assert declared is not None
    key, _, text = word.partition("=")
    assert json.loads(typed(declared, {key: text}), parse_float=Decimal) == {key: arrives}


def test_a_number_for_a_text_is_sent_as_text(project: Projects, redis: Client) -> None:
    result = project(JOBS).qd("dispatch", "mail.welcome", "to=5", "count=5")
    assert (result.returncode, result.stderr) == (0, "")
    (payload,) = sent(redis, "queues:mail")
    assert payload["data"] == {"to": "5", "count": 5}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("mail.welcom", "to=ada"), "did you mean 'mail.welcome'?"),
        (("mail.welcome", "tp=ada"), "'tp'"),
        (("mail.welcome",), "needs parameter 'to', which was not given (to=...)\n"),
        (("nope",), "no job is called 'nope' (`qd declared` lists them)\n"),
        (("mail.welcome", "to=7", "count=seven"), "argument 'count' is of the wrong type: expected int, got str"),
        (("mail.welcome", "--data", "[1]"), ""),
    ],
    ids=["name", "parameter", "missing", "no such name", "type", "shape"],
)
def test_a_job_that_does_not_match_its_declaration_is_not_sent(
    project: Projects, redis: Client, words: tuple[str, ...], expected: str
) -> None:
    result = project(JOBS).qd("dispatch", *words)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.stderr
    assert expected in result.stderr
    assert redis.keys() == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import no_such_module\napp = 1\n", "No module named 'no_such_module' ({root}/jobs.py:1)"),
        ("app = 1\n", "'app' in module jobs is an int, not a qd.Qd; the module has none\n"),
        (
            "class Web: ...\nfrom qd import Qd\none, app = Qd(), Web()\n",
            "is a Web, not a qd.Qd; the module has 'one'\n",
        ),
        (
            "from qd import Qd\nmy_app = Qd()\n",
            "module jobs has no 'app', which should be a qd.Qd; the module has 'my_app'\n",
        ),
        ("from qd import Qd\napp = Qd(imports=['gone'])\n", "No module named 'gone'"),
        ("app = 1 / 0\n", "ZeroDivisionError"),
        ("raise SystemExit(0)\napp = 1\n", "SystemExit"),
        ("app = 1\ndef f(:\n", "does not import: SyntaxError: invalid syntax ({root}/jobs.py:2)\n"),
        (
            "from qd import Qd\napp = Qd()\n@app.job('g', tries='many')\ndef g() -> None: ...\n",
            "qd: option tries of job 'g': 'many' is not a whole number, 0 or more ({root}/jobs.py:3)\n",
        ),
        (
            "from qd import Qd\napp = Qd()\n" + "@app.job('g')\ndef g() -> None: ...\n" * 2,
            "at {root}/jobs.py:3 and at {root}/jobs.py:5; rename one\n",
        ),
    ],
    ids=[
        "import",
        "not a Qd",
        "another class",
        "no such name",
        "imports",
        "raises",
        "leaves",
        "syntax",
        "declaration",
        "twice",
    ],
)
def test_an_app_that_fails_to_import_prints_one_line_and_exits_with_78(
    project: Projects, source: str, expected: str
) -> None:
    shop = project(source)
    result = shop.qd("declared")
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (78, "", 1), result.stderr
    assert expected.format(root=shop.root) in result.stderr


def test_declared_and_run_exit_with_78_without_an_app(qd: Run) -> None:
    for words in (("declared",), ("run", "x")):
        result = qd(*words)
        assert result.exit_code == 78
        assert "--app MODULE:ATTR" in result.stderr or "QD_APP" in result.stderr


def test_the_url_of_the_app_is_used_if_no_other_is_set(project: Projects, redis: Client) -> None:
    shop = project("from qd import Qd\napp = Qd()\n")
    (shop.root / "qd.toml").write_text('[qd]\napp = "jobs:app"\n')
    assert shop.qd("pause", "mail").returncode == 78
    (shop.root / "jobs.py").write_text(f"from qd import Qd\napp = Qd({shop.url!r})\n")
    assert shop.qd("pause", "mail").returncode == 0
    assert redis.keys() == ["qd:events", "queues:mail:paused"]


# -- run


def test_run_executes_the_job_here_and_prints_its_result(project: Projects, clean_redis: Client) -> None:
    shop = project(JOBS)
    result = shop.qd("run", "mail.welcome", "to=ada", "count=2")
    assert (result.returncode, result.stdout, result.stderr) == (0, "ada 2\nsent to ada\n", "")
    assert shop.qd("run", "later").stdout == "[1, 2]\n"
    assert json.loads(shop.qd("run", "later", "--json").stdout) == {"name": "later", "result": [1, 2]}
    assert shop.qd("run", "whole", "--data", '[1, "a"]').stdout == "[1, 'a']\n"


def test_a_job_that_raises_shows_its_own_traceback(project: Projects) -> None:
    result = project(JOBS).qd("run", "boom")
    assert (result.returncode, result.stdout) == (1, "")
    lines = result.stderr.splitlines()
    assert lines[-1] == "ValueError: no such thing"
    assert [line.rpartition(" in ")[2] for line in lines if line.startswith("  File ")] == ["boom", "inner"]


def test_a_job_that_calls_fail_prints_one_line(project: Projects) -> None:
    result = project(JOBS).qd("run", "gives.up")
    assert (result.returncode, result.stderr) == (1, "qd: why not\n")


# -- jobs


def test_jobs_lists_what_the_app_declares(project: Projects) -> None:
    shop = project(JOBS)
    result = shop.qd("declared")
    assert result.returncode == 0
    (row,) = [line.split() for line in result.stdout.splitlines() if line.startswith("mail.welcome")]
    assert row[:5] == ["mail.welcome", "mail", "tries=5", "timeout=30s", "backoff=1s,5s"]
    assert row[5].startswith(f"{shop.root}/jobs.py:")
    found = {job["name"]: job for job in json.loads(shop.qd("declared", "--json").stdout)["jobs"]}
    assert sorted(found) == ["boom", "gives.up", "later", "mail.welcome", "whole"]
    assert (found["later"]["async"], found["boom"]["async"]) == (True, False)
    assert found["mail.welcome"]["options"] == {"queue": "mail", "tries": 5, "timeout": 30.0, "backoff": [1.0, 5.0]}


VERSIONS = """
def from_v1(data):
    return data

@app.job("priced", version=2, upgrade={1: from_v1})
def priced(n: int) -> None: ...
"""


def test_jobs_lists_versions(project: Projects) -> None:
    shop = project(JOBS + VERSIONS)
    assert "  version=2 upgrade=jobs.from_v1  " in shop.qd("declared").stdout
    found = {job["name"]: job["options"] for job in json.loads(shop.qd("declared", "--json").stdout)["jobs"]}
    assert found["priced"] == {"version": 2, "upgrade": ["jobs.from_v1"]}


def test_jobs_lists_how_jobs_are_retried(project: Projects) -> None:
    shop = project("""
        from qd import Backoff

        @app.job("grows", backoff="exponential", jitter=0, retry_on=ConnectionError)
        def grows() -> None: ...

        @app.job("tuned", backoff=Backoff(5, jitter=0.5), fail_on=(ValueError, KeyError))
        def tuned() -> None: ...
    """)
    listed = shop.qd("declared").stdout
    assert "backoff=exponential jitter=0.0 retry_on=builtins.ConnectionError" in listed
    assert "backoff=Backoff(first=5.0, factor=2.0, max=600.0, jitter=0.5) jitter=0.5" in listed
    found = {job["name"]: job["options"] for job in json.loads(shop.qd("declared", "--json").stdout)["jobs"]}
    assert found["grows"] == {"backoff": "exponential", "jitter": 0.0, "retry_on": ["builtins.ConnectionError"]}
    assert found["tuned"]["fail_on"] == ["builtins.ValueError", "builtins.KeyError"]


STAGES = """
from functools import partial
from qd.middleware import (
    ConcurrencyLimit, FailOnException, RateLimited, SkipIf, SkipIfBatchCancelled, ThrottlesExceptions, WithoutOverlapping
)

def mine(job, call_next):
    return call_next()

class Timed:
    def __call__(self, job, call_next):
        return call_next()

def closed(job):
    return False

@app.job("a.mine", middleware=[mine, partial(mine), Timed()])
def a() -> None: ...

@app.job("b.shipped", middleware=[
    RateLimited("stripe", 100, per=60), RateLimited("mail", key="to:{to}"), ConcurrencyLimit("crm", 5),
    WithoutOverlapping(), WithoutOverlapping("to:{to}", shared=True, drop=True),
    ThrottlesExceptions(10, 60, 300, key=closed),
    SkipIf(closed), SkipIfBatchCancelled(), FailOnException(ValueError, KeyError),
])
def b(to: str) -> None: ...
"""


def test_jobs_names_the_middleware(project: Projects) -> None:
    shop = project(STAGES)
    result = shop.qd("declared")
    assert result.returncode == 0, result.stderr
    assert "middleware=jobs.mine, jobs.mine, jobs.Timed " in result.stdout
    assert " at 0x" not in result.stdout
    found = {
        job["name"]: job["options"]["middleware"] for job in json.loads(shop.qd("declared", "--json").stdout)["jobs"]
    }
    assert found["a.mine"] == ["jobs.mine", "jobs.mine", "jobs.Timed"]
    assert found["b.shipped"] == [
        "RateLimited('stripe', 100 per 60 s)",
        "RateLimited('mail', key='to:{to}')",
        "ConcurrencyLimit('crm', 5)",
        "WithoutOverlapping()",
        "WithoutOverlapping('to:{to}', shared=True, drop=True)",
        "ThrottlesExceptions(10 within 60 s, wait 300 s, key=jobs.closed)",
        "SkipIf(jobs.closed)",
        "SkipIfBatchCancelled()",
        "FailOnException(ValueError, KeyError)",
    ]


def test_an_app_without_jobs_prints_a_hint_about_imports(project: Projects) -> None:
    result = project().qd("declared")
    assert (result.returncode, result.stdout) == (0, "")
    assert "imports" in result.stderr


# -- clear


def test_clear_deletes_waiting_jobs_and_never_running_ones(qd: Run, clean_redis: Client) -> None:
    for key in ("queues:mail", "queues:mail:notify"):
        clean_redis.call("RPUSH", key, "{}", "{}")
    for key in ("queues:mail:delayed", "queues:mail:reserved"):
        clean_redis.call("ZADD", key, 2**40, "{}")
    names = clean_redis.keys()
    before = [clean_redis.call("DUMP", name) for name in names]
    assert done(qd("clear", "mail", "--dry-run")) == "mail: 3 would be deleted\n"
    shown = document(qd("clear", "mail", "--dry-run", "--json"))
    assert shown == {"queue": "mail", "connection": "redis", "deleted": 0, "would": 3}
    assert clean_redis.keys() == names
    assert [clean_redis.call("DUMP", name) for name in names] == before
    assert done(qd("clear", "mail", "--yes")) == "mail: 3 deleted\n"
    assert clean_redis.keys() == ["qd:events", "queues:mail:reserved"]
    assert document(qd("clear", "mail", "--yes", "--json")) == {"queue": "mail", "connection": "redis", "deleted": 0}
    clean_redis.call("DEL", "queues:mail:reserved")


# -- cancel

KEYED = """
@app.job("shop.remind", queue="mail")
def remind(order_id: int) -> None: ...
"""


def test_cancel_removes_the_job_waiting_under_a_key(project: Projects, clean_redis: Client) -> None:
    shop = project(JOBS + KEYED)
    shop.python("from jobs import remind\nremind.using(key='order:42', delay=600).dispatch(42)")
    other = shop.qd("cancel", "--job", "shop.remind", "--key", "order:43")
    assert (other.returncode, other.stdout) == (1, "")
    assert other.stderr == "no shop.remind waits under order:43 in mail\n"
    assert shop.qd("cancel", "--job", "shop.remind", "--key", "order:42", "-q", "elsewhere").returncode == 1
    found = shop.qd("cancel", "--job", "shop.remind", "--key", "order:42", "--json")
    assert found.returncode == 0
    assert json.loads(found.stdout) == {
        "job": "shop.remind",
        "key": "order:42",
        "queue": "mail",
        "connection": "redis",
        "cancelled": True,
    }
    assert clean_redis.keys() == ["qd:events"]
    assert shop.qd("cancel", "--job", "shop.remind", "--key", "order:42").returncode == 1


def test_cancel_by_key_needs_no_app_if_queue_and_connection_are_given(project: Projects, clean_redis: Client) -> None:
    shop = project(JOBS + KEYED)
    words = ["cancel", "--job", "shop.remind", "--key", "order:42", "-q", "mail"]
    shop.python("from jobs import remind\nremind.using(key='order:42', delay=600).dispatch(42)")
    shop.jobs("import nothing.of.that.name")
    assert shop.qd(*words).returncode == 78
    assert shop.qd(*words, "-c", "redis").returncode == 0
    assert clean_redis.keys() == ["qd:events"]


def test_cancel_needs_no_app(qd: Run, clean_redis: Client) -> None:
    assert qd("cancel", "--job", "shop.remind", "--key", "order:42", "-q", "mail").exit_code == 1
    assert qd("cancel", "--job", "shop.remind").exit_code == 2


def test_a_dispatched_job_runs(project: Projects) -> None:
    shop = project(JOBS)
    work = shop.work("mail", "-w", "1")
    work.wait_line("master.ready")
    shop.qd("dispatch", "mail.welcome", "to=ada")
    eventually(lambda: work.output == ["ada 1"], 20)
    work.stop()


def test_a_queue_is_only_cleared_after_a_confirmation(qd: Run, redis: Client) -> None:
    assert qd("dispatch", "mail.welcome", "--queue", "mail").exit_code == 0
    for words, answer in (([], None), (["--json"], "mail\n"), ([], "yes\n")):
        assert qd("clear", "mail", *words, typed=answer).exit_code == 2
    assert redis.call("LLEN", "queues:mail") == 1
    assert qd("clear", "mail", typed="mail\n").exit_code == 0
    assert redis.call("LLEN", "queues:mail") == 0
