"""The servers of the drivers under test (kinds.py), as fixtures that return a Served."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.contract.kinds import Served
from tests.support.servers.beanstalkd import Beanstalkd
from tests.support.servers.cluster import Cluster
from tests.support.servers.mariadb import MariaDb
from tests.support.servers.postgres import Postgres
from tests.support.servers.redis import KEEPS, Server, Valkey
from tests.support.servers.sentinel import Sentinel
from tests.support.servers.sqs import Sqs

LOCKED = 3.0  # seconds for which another program locks the SQLite file


def killed_and_started(server: Any) -> Callable[[], object]:
    def again() -> None:
        server.kill()
        server.start()

    return again


@pytest.fixture(scope="session")
def shared_durable_redis() -> Iterator[Server]:
    with Server(*KEEPS) as server:
        yield server


@pytest.fixture
def durable_redis(shared_durable_redis: Server) -> Iterator[Server]:
    """Like `server`, with persistence: it keeps its data when it is killed."""
    with shared_durable_redis.client() as client:
        client.call("FLUSHALL")
        yield shared_durable_redis
        client.close()  # it may have been killed meanwhile
        client.call("FLUSHALL")


@pytest.fixture
def on_redis(durable_redis: Server) -> Served:
    return Served({"driver": "redis", "url": durable_redis.url}, killed_and_started(durable_redis))


@pytest.fixture
def on_valkey(valkey: Valkey) -> Served:
    return Served({"driver": "redis", "url": valkey.url}, killed_and_started(valkey))


@pytest.fixture
def on_sentinel(sentinel: Sentinel) -> Served:
    """The primary is killed, and a replica replaces it."""
    return Served({"url": sentinel.url}, sentinel.failover)


@pytest.fixture
def on_cluster(cluster: Cluster) -> Served:
    """All nodes are killed and restarted."""

    def again() -> None:
        cluster.kill()
        cluster.start()

    return Served({"url": cluster.url}, again)


@pytest.fixture
def on_postgres(postgres: Postgres, postgres_url: str) -> Served:
    return Served({"url": postgres_url}, killed_and_started(postgres), migrates=True)


@pytest.fixture
def on_mariadb(mariadb: MariaDb, mariadb_url: str) -> Served:
    return Served({"url": mariadb_url}, killed_and_started(mariadb), migrates=True)


@pytest.fixture
def on_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Served:
    """There is no server: another program locks the file for a while."""
    path = tmp_path_factory.mktemp("sqlite") / "jobs.sqlite"
    return Served({"url": f"sqlite:///{path}"}, lambda: locked(path), migrates=True)


def locked(path: Path) -> None:
    with closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        threading.Event().wait(LOCKED)
        other.execute("ROLLBACK")


@pytest.fixture
def on_beanstalkd(beanstalkd: Beanstalkd, tmp_path_factory: pytest.TempPathFactory) -> Served:
    path = tmp_path_factory.mktemp("control") / "qd.sqlite"
    return Served({"url": beanstalkd.url}, killed_and_started(beanstalkd), control=f"sqlite:///{path}", migrates=True)


@pytest.fixture
def on_sqs(sqs: Sqs, durable_redis: Server) -> Served:
    """moto has no persistence: it is suspended for a while."""
    client = sqs.client()
    for name in ("default", "other", "high", "low"):
        client.create_queue(QueueName=name)
    client.close()
    return Served({"url": sqs.url}, lambda: sqs.stands_still(LOCKED), env=sqs.credentials, control=durable_redis.url)
