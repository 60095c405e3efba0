"""The failed store while processes are killed: workers that write a record, and `qd failed retry`."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from qd.payload.build import make
from qd.store.failed_jobs_table import signed_off
from tests.support.payloads import push
from tests.support.processes import QD, Procs
from tests.support.project import SOURCE, MakeProject, Project
from tests.support.redis import Client
from tests.support.waiting import eventually

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.leaves("queues:*")]

JOBS = """
@app.job("fails")
def fails(n: int) -> None:
    raise ValueError(f"number {n}")
"""
SCHEMA = """CREATE TABLE failed_jobs (id INTEGER PRIMARY KEY AUTOINCREMENT, uuid TEXT UNIQUE, connection TEXT, queue TEXT,
payload TEXT, exception TEXT, failed_at TIMESTAMP)"""
READ_ALL = """
local k = 'queues:default'
return {redis.call('LRANGE', k, 0, -1), redis.call('ZRANGE', k .. ':reserved', 0, -1),
    redis.call('ZRANGE', k .. ':delayed', 0, -1), redis.call('HVALS', k .. ':failed')}
"""


def numbers(payloads: list[bytes]) -> list[int]:
    return [int(payload.partition(b'"n":')[2].split(b"}")[0]) for payload in payloads]


def copies(redis: Client) -> Counter[int]:
    """The number of copies of each job, read in one step."""
    return Counter([n for place in redis.call("EVAL", READ_ALL, 0) for n in numbers(place)])


# Kill at every n-th line: every single line takes more than a minute.
EACH = pytest.mark.parametrize("each", [3, pytest.param(1, marks=pytest.mark.slow)])


def killed(shop: Project, file: Path, each: int, *words: str, **env: str) -> Procs:
    command = [sys.executable, "-m", "tests.support.faults", "each-line", str(file), *words]
    path = os.pathsep.join([shop.env()["PYTHONPATH"], str(SOURCE.parent)])
    procs = Procs(command, cwd=shop.root, env=shop.env(PYTHONPATH=path, LINES_EACH=str(each), **env))
    shop.started.append(procs)
    return procs


@EACH
def test_workers_killed_while_writing_a_record_leave_each_job_in_one_place(
    each: int, project: MakeProject, redis: Client
) -> None:
    shop, count = project(jobs=JOBS), 500 // each
    file = shop.run / "lines"
    for n in range(count):
        push(redis, "fails", n=n)
    # prefetch 1: the kills are counted in `turn`
    work = killed(shop, file, each, "work", "-w", "1", "--max-crashes", "100000", "--prefetch", "1")
    all_jobs = Counter(range(count))

    def over() -> bool:
        assert copies(redis) == all_jobs
        return int(redis.call("HLEN", "queues:default:failed")) == count

    eventually(over, 400, every=0.05, what="all failed")
    work.stop()
    lines = file.read_text().splitlines()
    file.unlink()
    assert len(lines) == len(set(lines)) > 100 // each
    assert {line.split(":")[0] for line in lines} > {"worker/settle.py", "worker/connection.py"}
    records = [json.loads(value.partition(b"\n")[0]) for value in redis.call("HVALS", "queues:default:failed")]
    # After a kill during listeners or failed(), the next worker buries the job and records how the previous worker died.
    assert {record["error"] for record in records} <= {"ValueError", "AttemptsExceeded"}
    assert sum(record["error"] == "ValueError" for record in records) > count // 2
    assert sum(record["crashes"] for record in records) < len(
        lines
    )  # the others were killed after writing their record


def bury_many(redis: Client, count: int, ago: float = 0.0) -> None:
    """Write `count` small records, as a worker does, with their SQL copies marked as written."""
    began = time.time() - ago - count / 1000
    for at in range(0, count, 1000):
        some, index = list[bytes | str](), list[bytes | str]()
        for n in range(at, min(at + 1000, count)):
            raw = make("fails", b'{"n":%d}' % n, created_at=1, uuid=f"u{n}").replace(
                b'"attempts":0', b'"attempts":1,"rsv":"T.0.1.-"'
            )
            line = json.dumps(
                {
                    "id": f"T.0.{n}.1",
                    "uuid": f"u{n}",
                    "copied": False,
                    "job": "fails",
                    "error": "ValueError",
                    "reason": "x",
                    "attempts": 1,
                }
            )
            some += [f"T.0.{n}.1", line.replace("false", "true ").encode() + b"\n" + raw]
            index += [repr(began + n / 1000), f"T.0.{n}.1"]
        redis.call("HSET", "queues:default:failed", *some)
        redis.call("ZADD", "queues:default:failed_at", *index)


@EACH
def test_a_retry_killed_at_any_line_neither_loses_nor_doubles_jobs(
    each: int, project: MakeProject, redis: Client
) -> None:
    shop, count = project(jobs=JOBS), 1200
    file = shop.run / "lines"
    bury_many(redis, count)
    retry = killed(shop, file, each, "failed", "retry", "--all")
    all_jobs = Counter(range(count))

    def over() -> bool:
        assert copies(redis) == all_jobs
        return retry.process.poll() is not None

    eventually(over, 300, every=0.5, what="a completed retry")
    assert retry.wait() == 0
    lines = file.read_text().splitlines()
    file.unlink()
    assert len(lines) == len(set(lines)) > 100 // each
    assert any(line.startswith("store/failed.py") for line in lines)
    assert sorted(numbers(redis.call("LRANGE", "queues:default", 0, -1))) == list(range(count))
    assert not redis.call("EXISTS", "queues:default:failed", "queues:default:failed_at")


@EACH
def test_a_retry_with_sql_copies_killed_at_any_line_neither_loses_nor_doubles_jobs(
    each: int, project: MakeProject, redis: Client
) -> None:
    table, count = (shop := project(jobs=JOBS)).run / "failed.sqlite", 400
    shop.config(f'[failed]\ndatabase = "sqlite:///{table}"\n')
    bury_many(redis, count, ago=7200)
    with closing(sqlite3.connect(table)) as database:
        database.execute(SCHEMA)
        for n in range(count):
            raw = make("fails", b'{"n":%d}' % n, created_at=1, uuid=f"u{n}").decode()
            result = signed_off("ValueError: x", f"T.0.{n}.1")
            row = (
                f"u{n}",
                "redis",
                "default",
                raw,
                result,
                time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(time.time() - 3600)),
            )
            database.execute("INSERT INTO failed_jobs VALUES (NULL, ?, ?, ?, ?, ?, ?)", row)
        database.commit()
    file = shop.run / "lines"
    retry = killed(shop, file, each, "failed", "retry", "--all", LINES_OF="store/failed_jobs_table.py")
    assert retry.wait(300) == 0
    lines = file.read_text().splitlines()
    file.unlink()
    assert any(line.startswith("store/failed_jobs_table.py") for line in lines)
    with closing(sqlite3.connect(table)) as database:
        assert database.execute("SELECT count(*) FROM failed_jobs").fetchone() == (0,)
    table.unlink()
    assert sorted(numbers(redis.call("LRANGE", "queues:default", 0, -1))) == list(range(count))
    assert not redis.call("EXISTS", "queues:default:failed", "queues:default:failed_at")


def peak(process: psutil.Process) -> int:
    """The peak memory of the process in bytes; 0 if it has ended."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return 0
    found = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(found[0].split()[1]) * 1024 if found else 0


@pytest.mark.parametrize("count", [20_000, pytest.param(300_000, marks=pytest.mark.slow)])
def test_a_large_retry_killed_halfway_neither_loses_nor_doubles_jobs(
    count: int, project: MakeProject, redis: Client
) -> None:
    shop = project(jobs=JOBS)
    bury_many(redis, 1000)
    small = run(shop, redis, 1000)
    redis.call("DEL", "queues:default", "queues:default:notify")
    bury_many(redis, count)
    large = run(shop, redis, count, kills=(count // 4, count // 2))
    assert sorted(numbers(redis.call("LRANGE", "queues:default", 0, -1))) == list(range(count))
    assert redis.call("LLEN", "queues:default:notify") == count
    assert not redis.call("EXISTS", "queues:default:failed", "queues:default:failed_at")
    assert large < small + (24 << 20), f"{small >> 20} MB for 1,000 and {large >> 20} MB for {count}"


def run(shop: Project, redis: Client, count: int, kills: tuple[int, ...] = ()) -> int:
    """Retry all, with a kill -9 each time this number of jobs is ready again. Returns the peak memory."""
    most = 0
    for kill in (*kills, None):
        slow = [] if kill is None else ["--rate", str(count // 5)]  # slow enough to be killed before it completes
        command = subprocess.Popen(
            [*QD, "failed", "retry", "--all", *slow], cwd=shop.root, env=shop.env(), stdout=subprocess.DEVNULL
        )
        process = psutil.Process(command.pid)
        while command.poll() is None:
            most = max(most, peak(process))
            if kill is not None and redis.call("LLEN", "queues:default") >= kill:
                command.kill()
            time.sleep(0.01)
        assert command.returncode == (0 if kill is None else -9)
        moved, kept = redis.call("LLEN", "queues:default"), redis.call("HLEN", "queues:default:failed")
        assert moved + kept == count
    return most
