"""`qd status` and `qd health` while a node of a cluster is unreachable: they show the other nodes' state and name it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from qd.config.settings import ConnectionSettings
from qd.drivers.cluster.queue import ClusterQueue
from tests.faults.test_cluster import partial_cluster  # noqa: F401
from tests.support.project import MakeProject, Project
from tests.support.servers.cluster import Cluster
from tests.support.servers.redis import Server
from tests.support.waiting import eventually
from tests.support.witness import JOBS

pytestmark = pytest.mark.xdist_group("cluster")


@pytest.fixture
def shop(partial_cluster: Cluster, project: MakeProject) -> Project:  # noqa: F811
    return project(jobs=JOBS, url=partial_cluster.url)


@contextmanager
def nodes_down(cluster: Cluster, *nodes: Server) -> Iterator[None]:
    for node in nodes:
        node.kill()
    try:
        yield
    finally:
        for node in nodes:
            node.start()
        cluster.settled()


def names(cluster: Cluster) -> list[str]:
    """The name of one queue on each node."""
    found = {cluster.node_of(f"queues:{{{name}}}").port: name for name in "abcdefghijklmnop"}
    return [found[node.port] for node in cluster.nodes]


def pushed(cluster: Cluster, *queues: str) -> None:
    producer = ClusterQueue(ConnectionSettings(name="redis", url=cluster.url))
    for queue in queues:
        producer.push(queue, b'{"job":"nobody","data":{}}')
    producer.close()


def test_status_and_health_name_an_unreachable_node_and_show_the_others(cluster: Cluster, shop: Project) -> None:
    gone = next(node for node in cluster.nodes if node is not cluster.node_of("qd:masters"))
    dead, *others = sorted(names(cluster), key=lambda name: cluster.node_of(f"queues:{{{name}}}") is not gone)
    work = shop.work(dead, "-w", "1")
    work.wait_line("master.ready")
    pushed(cluster, *others)
    eventually(lambda: "no master reports" not in shop.quick("status").stdout, what="a report")
    with nodes_down(cluster, gone):
        work.wait_line("redis.away")
        status, health = shop.quick("status"), shop.quick("health")
        document = json.loads(shop.quick("status", "--json").stdout)
        reasons = json.loads(shop.quick("health", "--json").stdout)["reasons"]
    work.stop()
    assert status.exit_code == 0
    assert health.exit_code == 1
    for output in (status.stdout, health.stdout):
        assert f"node 127.0.0.1:{gone.port} of the cluster is unreachable" in output
        assert f"queue {dead}" in output
    assert [*document["nodes_away"]] == [f"127.0.0.1:{gone.port}"]
    assert {line["name"]: line["ready"] for line in document["queues"] if line["ready"]} == dict.fromkeys(others, 1)
    assert len(document["masters"]) == 1
    assert "node" in {reason["kind"] for reason in reasons}


def test_no_master_is_reported_missing_while_the_node_with_the_reports_is_unreachable(
    cluster: Cluster, shop: Project
) -> None:
    gone = cluster.node_of("qd:masters")
    others = [name for name in names(cluster) if cluster.node_of(f"queues:{{{name}}}") is not gone]
    pushed(cluster, *others)
    with nodes_down(cluster, gone):
        status, health = shop.quick("status"), shop.quick("health")
    assert (status.exit_code, health.exit_code) == (0, 1)
    assert "masters: unknown" in status.stdout
    for output in (status.stdout, health.stdout):
        assert f"node 127.0.0.1:{gone.port} of the cluster is unreachable" in output
        assert "masters and their workers" in output
        assert "no master" not in output
        assert "no qd worker" not in output
    assert all(name in status.stdout for name in others)


def test_status_and_health_exit_with_69_if_no_node_answers(cluster: Cluster, shop: Project) -> None:
    with nodes_down(cluster, *cluster.nodes):
        assert [shop.quick(word).exit_code for word in ("status", "health")] == [69, 69]
