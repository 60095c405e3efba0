"""The servers that the tests start: each keeps its data over a restart and a SIGKILL, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import psutil
import pytest

from tests.support.servers import beanstalkd, mariadb, postgres, sqs
from tests.support.servers.cluster import Cluster
from tests.support.servers.redis import KEEPS, Valkey
from tests.support.servers.running import Running, alive
from tests.support.servers.sentinel import Sentinel, role


class Kept(NamedTuple):
    """put writes a value; found returns whether it exists."""

    make: Callable[[], Any]
    installed: Callable[[], None]
    put: Callable[[Any], object]
    found: Callable[[Any], object]
    keeps: bool = True


def put_row(server: Any) -> None:
    server.url_kept = server.fresh_database()
    name = database(server.url_kept)
    server.run("CREATE TABLE kept (word VARCHAR(20))", name)
    server.run("INSERT INTO kept VALUES ('é 😀')", name)


def database(url: str) -> str:
    return url.rpartition("/")[2].partition("?")[0]


def row(server: Any) -> object:
    return server.run("SELECT word FROM kept", database(server.url_kept)) == [("é 😀",)]


def put_job(server: beanstalkd.Beanstalkd) -> None:
    with server.client() as client:
        client.use("kept")
        client.put(b"x" * 1_000_000)


def job(server: beanstalkd.Beanstalkd) -> object:
    with server.client() as client:
        client.use("kept")
        return bool(client.peek_ready().body == b"x" * 1_000_000)


def put_queue(server: sqs.Sqs) -> None:
    client = server.client()
    client.create_queue(QueueName="kept")
    client.close()


def queue(server: sqs.Sqs) -> object:
    client = server.client()
    try:
        return bool(client.list_queues().get("QueueUrls"))
    finally:
        client.close()


EACH = {
    "postgres": Kept(postgres.Postgres, postgres.installed, put_row, row),
    "mariadb": Kept(mariadb.MariaDb, mariadb.installed, put_row, row),
    "beanstalkd": Kept(beanstalkd.Beanstalkd, beanstalkd.installed, put_job, job),
    "sqs": Kept(sqs.Sqs, sqs.installed, put_queue, queue, keeps=False),
}


def family(server: Running) -> list[psutil.Process]:
    assert server.process is not None
    first = psutil.Process(server.process.pid)
    return [first, *first.children(recursive=True)]


def serves(server: Running) -> bool:
    try:
        return server.answers()
    except Exception:  # for example connection refused
        return False


@pytest.mark.parametrize("name", EACH)
def test_a_server_keeps_its_data_and_leaves_no_process_and_no_file(name: str) -> None:
    each = EACH[name]
    each.installed()
    server = each.make()
    with server:
        each.put(server)
        assert each.found(server)
        port, ran = server.port, family(server)
        server.restart()
        assert bool(each.found(server)) is each.keeps
        ran += family(server)
        server.kill()
        assert not any(map(alive, ran))
        assert not serves(server)
        server.start()
        assert server.port == port
        assert bool(each.found(server)) is each.keeps
        ran += family(server)
    assert not any(map(alive, ran))
    assert not server.folder.exists()


@pytest.mark.parametrize("name", ["postgres", "mariadb"])
def test_a_fresh_database_is_empty_and_can_be_dropped(name: str, request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue(name)
    first, second = server.fresh_database(), server.fresh_database()
    server.run("CREATE TABLE kept (word INT)", database(first))
    tables = "SELECT count(*) FROM information_schema.tables WHERE table_name = 'kept'"
    assert server.run(f"{tables} AND '{database(first)}' IN (table_schema, table_catalog)", database(first)) == [(1,)]
    assert server.run(f"{tables} AND '{database(second)}' IN (table_schema, table_catalog)", database(second)) == [(0,)]
    for url in (first, second):
        server.drop(url)
    with pytest.raises(Exception, match=database(first)):
        server.run("SELECT 1", database(first))


def test_beanstalkd_can_be_emptied(beanstalkd: beanstalkd.Beanstalkd) -> None:
    with beanstalkd.client() as client:
        client.use("a")
        client.put(b"ready")
        client.put(b"delayed", delay=60)
        client.watch("a")
        client.bury(client.reserve(timeout=0))
        client.put(b"another")
    beanstalkd.empty()
    with beanstalkd.client() as client:
        assert client.tubes() == ["default"]


# -- Valkey, Cluster, Sentinel


def processes(servers: Iterable[Any]) -> list[psutil.Process]:
    return [psutil.Process(each.process.pid) for each in servers]


def gone(servers: Iterable[Any], ran: list[psutil.Process]) -> bool:
    return not any(map(alive, ran)) and not any(each.folder.exists() for each in servers)


def test_valkey_is_really_valkey_and_keeps_its_data() -> None:
    with Valkey(*KEEPS) as server, server.client() as client:
        assert "valkey_version" in client.text("INFO", "server")
        client.call("SET", "a", "1")
        ran = processes([server])
        server.kill()
        server.start()
        client.close()
        assert client.call("GET", "a") == b"1"
        ran += processes([server])
    assert gone([server], ran)


def test_a_cluster_has_a_third_of_the_slots_on_each_node_and_keeps_its_data() -> None:
    with Cluster() as cluster:
        ran = processes(cluster.nodes)
        held = {node.port: key for key in "abcdefghij" if (node := cluster.node_of(key))}
        assert len(held) == 3
        for key in held.values():
            with cluster.node_of(key).client() as client:
                client.call("SET", key, "1")
        cluster.nodes[0].kill()
        cluster.nodes[0].start()
        cluster.settled()
        cluster.kill()
        cluster.start()
        assert cluster.keys() == sorted(held.values())
        ran += processes(cluster.nodes)
    assert gone(cluster.nodes, ran)


def test_a_failover_promotes_a_replica_and_the_old_primary_returns_as_a_replica() -> None:
    with Sentinel() as sentinel:
        each = [*sentinel.nodes, *sentinel.watchers]
        ran, first = processes(each), sentinel.primary
        with first.client() as client:
            client.call("SET", "a", "1")
            assert client.call("WAIT", 2, 10_000) == 2
        second = sentinel.failover()
        assert second is not first
        assert (role(first), role(second)) == ("slave", "master")
        with second.client() as client:
            assert client.call("GET", "a") == b"1"
        ran += processes(each)
    assert gone(each, ran)
