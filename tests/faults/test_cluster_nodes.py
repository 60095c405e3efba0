"""A node of a cluster is killed while `qd work` runs, and comes back: its queues wait, the others continue."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from qd.config.settings import ConnectionSettings
from qd.drivers.cluster.queue import ClusterQueue
from tests.support.project import MakeProject
from tests.support.reliability import Figures
from tests.support.servers.cluster import Cluster
from tests.support.servers.redis import Server
from tests.support.waiting import eventually
from tests.support.witness import JOBS, Witness

pytestmark = pytest.mark.xdist_group("cluster")
EACH = 40
LEASE = 2  # seconds; without a keeper for half of them, no worker reserves a job


@pytest.fixture
def partial_cluster(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster whose nodes serve their slots even while other slots are not covered."""
    for node in cluster.nodes:
        require_full_coverage(node, "no")
    yield cluster
    for node in cluster.nodes:
        require_full_coverage(node, "yes")


def require_full_coverage(node: Server, whole: str) -> None:
    with node.client() as client:
        client.call("CONFIG", "SET", "cluster-require-full-coverage", whole)


@pytest.mark.fault(
    "45",
    "a node of a cluster is killed, and comes back; meanwhile a worker dies and another master starts",
    "its jobs wait, those of the other nodes go on at once; each of them ran once",
)
def test_the_queues_of_other_nodes_are_still_served(
    partial_cluster: Cluster, project: MakeProject, figures: Figures
) -> None:
    cluster = partial_cluster
    found = {cluster.node_of(f"queues:{{{name}}}").port: name for name in "abcdefghijklmnop"}
    gone, *others = (found[node.port] for node in cluster.nodes)
    shop = project(jobs=JOBS, url=cluster.url, config=f"retry_after = {LEASE}")
    witness = Witness(shop)
    work = shop.work("-w", "2", gone, *others)
    work.wait_line("master.ready")
    producer = ClusterQueue(ConnectionSettings(name="redis", url=cluster.url))
    dead = cluster.node_of(f"queues:{{{gone}}}")
    pushed(producer, gone, range(EACH))
    eventually(lambda: len(ran(witness)) >= EACH and answered(producer, gone), 30)
    dead.kill()
    work.wait_line("redis.away", 30)
    pushed(producer, others[0], range(100, 100 + EACH))
    pushed(producer, others[1], range(200, 200 + EACH))
    began = time.monotonic()
    eventually(lambda: len(ran(witness)) >= 3 * EACH, 30, what="the jobs of the other nodes")
    figures.add(back=[time.monotonic() - began])
    eventually(lambda: answered(producer, *others), 30, what="workers without a job")
    work.child("worker 0").kill()
    work.wait_line("worker.died")
    pushed(producer, others[0], range(400, 401), LEASE)  # no worker reserves it without a keeper
    eventually(lambda: 400 in ran(witness), 30, what="a job after the death of a worker")
    work.stop()
    work = shop.work("-w", "2", gone, *others)
    pushed(producer, others[0], range(500, 500 + EACH))
    eventually(lambda: len(ran(witness)) >= 4 * EACH + 1, 30, what="the jobs of a master that started meanwhile")
    dead.start()
    cluster.settled()
    work.wait_line("redis.back", 30)
    pushed(producer, gone, range(300, 300 + EACH))
    eventually(lambda: len(ran(witness)) >= 5 * EACH + 1, 30, what="the jobs of the node that is back")
    producer.close()
    work.stop()
    firsts = (0, 100, 200, 300, 500)
    assert sorted(ran(witness)) == sorted([400, *[n for first in firsts for n in range(first, first + EACH)]])


def pushed(producer: ClusterQueue, name: str, numbers: range, delay: float | None = None) -> None:
    from tests.contract.kinds import job_of

    producer.push_many([(name, job_of("quick", n), delay) for n in numbers])


def answered(producer: ClusterQueue, *names: str) -> bool:
    """Whether no job of these queues is reserved."""
    return not any(producer.sizes(name).reserved for name in names)


def ran(witness: Witness) -> list[int]:
    return [int(line.split()[1]) for line in witness.starting("quick ")]
