"""A node of a cluster is killed amid the work of `qd work`, and comes back: its queues wait, the others go on."""

from __future__ import annotations

import time

import pytest

from qd.config import ConnectionSettings
from qd.connectors.cluster.queue import ClusterQueue
from tests.support.clock import eventually
from tests.support.project import MakeProject
from tests.support.reliability import Figures
from tests.support.servers.cluster import Cluster
from tests.support.witness import JOBS, Witness

pytestmark = pytest.mark.xdist_group("cluster")
EACH = 40


@pytest.mark.fault(
    "45",
    "a node of a cluster is killed, and comes back; three queues on three nodes",
    "its jobs wait, those of the other nodes go on at once; each of them ran once",
)
def test_the_queues_of_other_nodes_go_on(cluster: Cluster, project: MakeProject, figures: Figures) -> None:
    found = {cluster.node_of(f"queues:{{{name}}}").port: name for name in "abcdefghijklmnop"}
    gone, *others = (found[node.port] for node in cluster.nodes)
    shop = project(jobs=JOBS, url=cluster.url)
    witness = Witness(shop)
    work = shop.work("-w", "2", gone, *others)
    work.wait_line("master.ready")
    producer = ClusterQueue(ConnectionSettings(name="redis", url=cluster.url, retry_after=30.0))
    dead = cluster.node_of(f"queues:{{{gone}}}")
    pushed(producer, gone, range(EACH))
    eventually(lambda: len(ran(witness)) >= EACH, 30)
    dead.kill()
    work.wait_line("redis.away", 30)
    pushed(producer, others[0], range(100, 100 + EACH))
    pushed(producer, others[1], range(200, 200 + EACH))
    began = time.monotonic()
    eventually(lambda: len(ran(witness)) >= 3 * EACH, 30, what="the jobs of the other nodes")
    figures.add(back=[time.monotonic() - began])
    dead.start()
    cluster.settled()
    work.wait_line("redis.back", 30)
    pushed(producer, gone, range(300, 300 + EACH))
    eventually(lambda: len(ran(witness)) >= 4 * EACH, 30, what="the jobs of the node that is back")
    producer.close()
    work.stop()
    assert sorted(ran(witness)) == sorted(n for first in (0, 100, 200, 300) for n in range(first, first + EACH))


def pushed(producer: ClusterQueue, name: str, numbers: range) -> None:
    from tests.contract.kinds import job_of

    producer.push_many([(name, job_of("quick", n), None) for n in numbers])


def ran(witness: Witness) -> list[int]:
    return [int(line.split()[1]) for line in witness.starting("quick ")]
