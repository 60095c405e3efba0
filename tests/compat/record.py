"""Records what this version of qd writes, for later versions to read: tests/compat/golden/qd-VERSION (see recorded.py).

    python -m tests.compat.record [VERSION]

Once for each release (RELEASING.md); a recording is never changed afterwards.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import qd
from qd.drivers.database.schema import VERSION
from tests.compat.recorded import (
    BUSY,
    CONFIG,
    GOLDEN,
    JOBS,
    KEYS,
    KINDS,
    MEANWHILE,
    READY,
    WITH,
    dump_postgres,
    dump_redis,
    dump_sqlite,
    witnessed,
)
from tests.support.project import Project
from tests.support.servers.beanstalkd import Beanstalkd
from tests.support.servers.postgres import NAME, Postgres, binary
from tests.support.servers.redis import Server
from tests.support.servers.sqs import Sqs
from tests.support.waiting import eventually

FILES = ("failed.sqlite", "jobs.sqlite")
FAILED_JOBS = """
CREATE TABLE failed_jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL, uuid VARCHAR NOT NULL, connection TEXT NOT NULL, queue TEXT NOT NULL,
    payload TEXT NOT NULL, exception TEXT NOT NULL, failed_at DATETIME DEFAULT CURRENT_TIMESTAMP NOT NULL
);
CREATE UNIQUE INDEX failed_jobs_uuid_unique ON failed_jobs (uuid);
"""  # as a migration of Laravel makes it


@contextmanager
def shop(url: str, config: str = CONFIG, root: Path | None = None) -> Iterator[Project]:
    root = root or Path(tempfile.mkdtemp(prefix="qd-record-"))
    project = Project(root, url, JOBS, config)
    project.allowed |= {"witness", "broken", *(path + more for path in FILES for more in ("", "-shm", "-wal"))}
    try:
        yield project
    finally:
        project.close()
        shutil.rmtree(root)


def payloads(server: Server) -> dict[str, bytes]:
    """One of each kind, in the queue of its name."""
    with shop(server.url) as project, server.client() as redis:
        for kind, sent in KINDS.items():
            project.python(f"from jobs import *\n{sent}", seconds=60, **WITH.get(kind, {}))
        return {kind: redis.call("LINDEX", f"queues:{kind}", 0) for kind in KINDS}


def busy(project: Project, golden: Path, store: str) -> dict[str, Any]:
    """Let a worker run jobs of every kind, and kill all of its processes in the middle of one. Returns ids."""
    (project.root / "broken").touch()
    failed = sqlite3.connect(project.root / "failed.sqlite")
    failed.executescript(FAILED_JOBS)
    if not project.url.startswith("unix"):
        assert project.qd("migrate").returncode == 0
    assert project.qd("pause", "paused", "--reason", "the provider is down").returncode == 0
    work = project.work("-w", "3", "default", "paused")
    work.wait_line("master.ready", 60)
    ids: dict[str, str] = json.loads(project.python(BUSY).stdout)

    def settled() -> bool:
        queues = json.loads(project.qd("queues", "--json").stdout)
        (default,) = [each for each in queues["queues"] if each["name"] == "default"]
        counted = "boom" in project.qd("metrics").stdout  # keepers write them every ten seconds
        assert set(witnessed(project.root)) == MEANWHILE
        assert (default["ready"], default["delayed"], default["reserved"], default["failed"]) == (0, 8, 1, 3), default
        return counted and failed.execute("SELECT count(*) FROM failed_jobs").fetchone() == (3,)

    eventually(settled, 90, every=0.5, what="every job in its place")
    work.sweep()
    failed.close()
    project.python(READY)
    (golden / f"failed-{store}.sql").write_text(dump_sqlite(project.root / "failed.sqlite"))
    return {"ids": ids, "recorded_at": time.time()}


def bodies() -> dict[str, dict[str, Any]]:
    """What is sent to the brokers, with Redis as the control connection."""
    found: dict[str, dict[str, Any]] = {}
    with Server() as server, Beanstalkd() as beanstalkd, Sqs() as sqs:
        client = sqs.client()
        where = client.create_queue(QueueName="default")["QueueUrl"]
        for name, url in (("beanstalkd", beanstalkd.url), ("sqs", sqs.url)):
            config = f'[connections.{name}]\nurl = "{url}"\n'
            with shop(server.url, config) as project:
                jobs = ('tuned.using(**at).dispatch("x")', "Report(month=7).using(**at).dispatch()")
                lines = ["from jobs import *", f'at = {{"connection": "{name}"}}', *jobs]
                project.python("\n".join(lines), seconds=60, **sqs.credentials)
        with beanstalkd.client() as tubes:
            tubes.watch("default")
            found["beanstalkd"] = {"bodies": [tubes.reserve(5).body.decode() for _ in range(2)]}
        got = client.receive_message(QueueUrl=where, MaxNumberOfMessages=10, MessageAttributeNames=["All"])
        found["sqs"] = {"bodies": [message["Body"] for message in got["Messages"]]}
        client.close()
    return found


def record(version: str) -> None:
    golden = GOLDEN / f"qd-{version}"
    (golden / "payloads").mkdir(parents=True)
    facts: dict[str, Any] = {"version": version, "tables": VERSION}

    with Server() as server:
        for kind, payload in payloads(server).items():
            (golden / "payloads" / f"{kind}.json").write_bytes(payload + b"\n")

    with Server() as server, shop(server.url) as project, server.client() as redis:
        facts["redis"] = busy(project, golden, "redis")
        (golden / "redis.json").write_text(json.dumps(dump_redis(redis), indent=1) + "\n")

    root = Path(tempfile.mkdtemp(prefix="qd-record-"))
    with shop(f"sqlite:///{root}/jobs.sqlite", root=root) as project:
        facts["sqlite"] = busy(project, golden, "sqlite")
        (golden / "sqlite.sql").write_text(dump_sqlite(root / "jobs.sqlite"))

    with Postgres() as postgres:
        url = postgres.fresh_database()
        with shop(url) as project:
            facts["postgres"] = busy(project, golden, "postgres")
        text = dump_postgres(binary("pg_dump"), postgres.folder, postgres.port, NAME, url.rpartition("/")[2])
        (golden / "postgres.sql").write_text(text)

    for name, found in bodies().items():
        (golden / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    (golden / "facts.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    for name in [name for name in os.environ if name.startswith("QD_") or name in KEYS]:
        del os.environ[name]
    record(sys.argv[1] if len(sys.argv) > 1 else qd.__version__)
