"""The log as text and as JSON, Python's own logging inside jobs, and the events that listeners get."""

from __future__ import annotations

import json
import os
import re

import pytest

from tests.support.payloads import failed, push_laravel
from tests.support.processes import Procs
from tests.support.project import Project
from tests.support.redis import FAILED, Client
from tests.support.waiting import eventually
from tests.support.witness import JOBS, Witness

pytestmark = pytest.mark.usefixtures("clean_redis")


def documents(work: Procs) -> list[dict[str, object]]:
    """Every line is one JSON object."""
    found: list[dict[str, object]] = [json.loads(line) for line in work.lines]
    for one in found:
        assert list(one)[:5] == ["time", "level", "role", "pid", "event"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(one["time"]))
    return found


LOGGING = (
    JOBS
    + """
import logging

@app.job("logs")
def logs() -> None:
    logging.getLogger("shop.mail").info("sent to %s", "a\\nb")
    logging.debug("not at info")
    logging.getLogger("shop").critical("badly", extra={"job": "mine", "job_id": 7, "order": 42})
    logging.error("%d", "a wrong call of logging")
    try:
        raise KeyError("k")
    except KeyError:
        logging.exception("told")
    note("logged")

from qd import Job

@app.job("hooked", tries=1)
class Hooked(Job[None]):
    def handle(self) -> None:
        raise ValueError("first")

    def failed(self, error: BaseException) -> None:
        raise RuntimeError("second")
"""
)


@FAILED
def test_a_json_log_is_one_object_a_line(shop: Project, witness: Witness, redis: Client) -> None:
    shop.jobs(LOGGING.replace('    logging.error("%d", "a wrong call of logging")\n', ""))
    push_laravel(redis, "logs")
    push_laravel(redis, "hooked")
    found = documents(shop.work_off("--log-format", "json"))
    by_event = {str(one["event"]): one for one in found}
    assert {"master.started", "master.ready", "job.done", "job.failed", "master.stopped"} <= set(by_event)
    assert by_event["master.started"]["workers"] == 1
    failed = by_event["job.failed"]
    assert (failed["job"], failed["level"], failed["id"], failed["attempt"]) == ("hooked", "error", "id-hooked", 1)
    assert "Traceback" in str(failed["trace"])
    assert str(failed["trace"]).endswith("ValueError: first\n")
    records = [one for one in found if one["event"] == "log"]
    assert [(one["message"], one["job"], one["job_id"]) for one in records] == [
        ("sent to a\nb", "logs", "id-logs"),
        ("badly", "logs", "id-logs"),
        ("told", "logs", "id-logs"),
        ("failed() or a listener raised", "hooked", "id-hooked"),
    ]
    assert [one.get("order") for one in records] == [None, 42, None, None]
    assert [one["level"] for one in records] == ["info", "error", "error", "error"]
    assert "RuntimeError: second" in str(records[-1]["trace"])


LOG_JOBS = """
from qd import current_job

@app.job("works")
def works() -> None: ...

@app.job("fails", tries=2)
def fails() -> None:
    raise ValueError("no")

@app.job("waits", tries=2)
def waits() -> None:
    if current_job().attempt == 1:
        current_job().release(0)
"""
ENDS = {"works": ["job.done"], "fails": ["job.released", "job.failed"], "waits": ["job.released", "job.done"]}


@FAILED
@pytest.mark.parametrize("log_jobs", ["all", "failed", "off"])
def test_log_jobs_decides_which_jobs_have_a_line_when_they_end(shop: Project, redis: Client, log_jobs: str) -> None:
    """A payload that cannot be read always has one."""
    shop.jobs(LOG_JOBS)
    shop.config(f'[worker]\nlog_jobs = "{log_jobs}"\n')
    for name in ENDS:
        push_laravel(redis, name)
    redis.call("RPUSH", "queues:default", "not JSON")
    lines = documents(shop.work_off("--log-format", "json"))
    wanted = {"all": ENDS, "failed": {name: [e for e in ends if e != "job.done"] for name, ends in ENDS.items()}}
    for name, ends in wanted.get(log_jobs, {key: list[str]() for key in ENDS}).items():
        assert [one["event"] for one in lines if one.get("job") == name] == ends
    assert [one["level"] for one in lines if one["event"] == "job.malformed"] == ["error"]
    assert len(failed(redis)) == 2


def test_a_failed_import_is_logged_in_json_too(shop: Project) -> None:
    shop.jobs("import nothing_of_that_name\n")
    for more in ((), ("--no-preload",), ("-w", "0")):
        work = shop.work("--log-format", "json", *more)
        work.ends_clean(code=3)
        (failed,) = [one for one in documents(work) if one["event"] == "app.import_failed"]
        assert failed["error"] == "ModuleNotFoundError: No module named 'nothing_of_that_name'"
        assert str(failed["trace"]).splitlines() == [
            "Traceback (most recent call last):",
            f'  File "{shop.root}/jobs.py", line 7, in <module>',
            "    import nothing_of_that_name",
            "ModuleNotFoundError: No module named 'nothing_of_that_name'",
        ]


def test_a_declaration_that_is_refused_is_logged_with_its_line(shop: Project) -> None:
    shop.jobs("@app.job('g', tries='many')\ndef g() -> None: ...\n")
    line = next(n for n, text in enumerate((shop.root / "jobs.py").read_text().splitlines(), 1) if "many" in text)
    for more in ((), ("--no-preload",)):
        work = shop.work("--log-format", "json", *more)
        work.ends_clean(code=3)
        (failed,) = [one for one in documents(work) if one["event"] == "app.import_failed"]
        fact = "option tries of job 'g': 'many' is not a whole number, 0 or more"
        assert failed["error"] == f"{fact} ({shop.root}/jobs.py:{line})"


@FAILED
@pytest.mark.parametrize("level", ["info", "debug"])
def test_a_traceback_has_the_frames_of_qd_at_debug_level_only(shop: Project, redis: Client, level: str) -> None:
    """Of a timeout, which qd raises in the middle of the job."""
    shop.jobs(JOBS + "\n@app.job('long', timeout=0.2, tries=1)\ndef long() -> None:\n    time.sleep(30)\n")
    push_laravel(redis, "long")
    work = shop.work_off("--log-level", level)
    ((record, _),) = failed(redis)
    for text in (str(record["trace"]), "\n".join(work.lines)):
        assert "in long" in text
        assert ("/qd/worker/timeout.py" in text) == (level == "debug")
        assert ("/qd/worker/attempt.py" in text) == (level == "debug")


def test_records_of_an_app_without_handlers_become_lines_that_name_the_job(
    shop: Project, witness: Witness, redis: Client
) -> None:
    shop.jobs(LOGGING)
    push_laravel(redis, "logs")
    work = shop.work_off()
    assert witness.lines == ["logged"]
    assert work.matches(r'INFO  worker\[\d+\] log logger=shop.mail message="sent to a\\nb" job=logs job_id=id-logs')
    assert work.matches("ERROR.* logger=shop message=badly job=logs job_id=id-logs")
    assert work.matches("ERROR.* message=told job=logs")
    assert work.matches("    KeyError: 'k'")
    assert work.matches("--- Logging error ---")
    assert work.matches("job.done .*job=logs")


def test_an_app_with_its_own_format_finds_the_job_on_every_record(
    shop: Project, witness: Witness, redis: Client
) -> None:
    own = (
        "import logging\n"
        "logging.basicConfig(format='own %(levelname)s [%(job)s %(job_id)s] %(message)s', level='INFO')\n"
        "logging.info('at import')\n"
    )
    shop.jobs(LOGGING + own)
    push_laravel(redis, "logs")
    work = shop.work_off("--log-level", "error")
    assert work.matches(r"^own INFO \[None None\] at import")
    assert work.matches(r"^own INFO \[logs id-logs\] sent to a")
    assert work.matches(r"^own CRITICAL \[mine 7\] badly")
    assert not work.matches(r"worker\[\d+\] log ")
    assert witness.lines == ["logged"]


def test_log_level_leaves_out_what_is_below(shop: Project, witness: Witness, redis: Client) -> None:
    push_laravel(redis, "quick")
    assert shop.work_off("--log-level", "warning").lines == []
    push_laravel(redis, "quick")
    assert shop.work_off("--log-level", "debug").matches("DEBUG master.*worker.left")


# -- events

GATED = (
    JOBS
    + """
from qd.events import Looping

@app.on(Looping)
def gate(event: Looping) -> bool:
    return Path("open").exists()
"""
)


def test_a_looping_listener_that_returns_false_idles(shop: Project, witness: Witness, redis: Client) -> None:
    shop.allowed.add("open")
    shop.jobs(GATED)
    work = shop.work("-w", "2")
    push_laravel(redis, "quick")
    eventually(lambda: len(work.children(" idle")) == 2)
    assert not witness.lines
    (shop.root / "open").touch()
    witness.wait("quick")
    os.unlink(shop.root / "open")
    push_laravel(redis, "quick")
    eventually(lambda: len(work.children(" idle")) == 2)
    work.stop()
    shop.qd("clear", "default", "--yes")


PRINTING = """
@app.job("says")
def says() -> None:
    print("said by", os.getpid())

@app.job("dies", tries=1)
def dies() -> None:
    os.kill(os.getpid(), 9)
"""


@FAILED
def test_what_a_job_prints_outlives_its_worker(shop: Project, redis: Client) -> None:
    shop.jobs(PRINTING)
    push_laravel(redis, "says")
    push_laravel(redis, "dies")
    work = shop.work("-w", "1", "--max-crashes", "1", PYTHONUNBUFFERED="")
    pid = work.wait_line(r"worker\.\w+ .*pid=(\d+).*SIGKILL")[1]
    eventually(lambda: work.output == [f"said by {pid}"], what="the line of the job before")
    work.wait_line("job.failed .*job=dies")
    work.stop()


def test_what_a_job_prints_comes_at_once_without_workers(shop: Project, redis: Client) -> None:
    shop.jobs(PRINTING)
    push_laravel(redis, "says")
    work = shop.work("-w", "0", PYTHONUNBUFFERED="")
    eventually(lambda: work.output == [f"said by {work.pid}"], 20, what="the line, while it waits for more")
    work.stop()
