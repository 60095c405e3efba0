"""On a cluster a worker is killed at lines of qd that it executes while the end of its job has effects on other nodes: the
next job of a chain, the count of a batch and its callbacks, a lock. A job sent twice would appear twice with the same count
of crashes: see test_batches_and_chains.py."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from qd import Qd
from qd.drivers.cluster.queue import ClusterQueue
from tests.faults.test_batches_and_chains import SHOP
from tests.support.faults import LineKill
from tests.support.payloads import producer
from tests.support.project import MakeProject
from tests.support.reliability import Figures
from tests.support.servers.cluster import Cluster
from tests.support.waiting import eventually
from tests.support.witness import Witness

pytestmark = pytest.mark.xdist_group("cluster")
NAMES = {"a", "b", "next", "then", "finally", "unique"}
UNIQUE = """
@app.job("once", queue="c", unique="n", tries=1)
def once(run: int, name: str) -> None:
    note(f"{run}.", name, json.loads(current_job().payload).get("crashes", 0))
"""


@pytest.fixture
def app(cluster: Cluster) -> Iterator[Qd]:
    with producer(cluster.url) as made:
        yield made


@pytest.fixture
def once(app: Qd) -> Any:
    @app.job("once", queue="c", unique="n", tries=1)
    def once(run: int, name: str) -> None: ...

    return once


def queues(cluster: Cluster) -> tuple[str, str, str]:
    """The queue c, and two queues on the other nodes."""
    others = [node for node in cluster.nodes if node is not cluster.node_of("queues:{c}")]
    found = {cluster.node_of(f"queues:{{{name}}}").port: name for name in "defghijklmnop"}
    return "c", found[others[0].port], found[others[1].port]


@pytest.mark.fault(
    "44",
    "kill -9 at lines of qd while the end of a job does something on other nodes of a cluster (chain, batch, lock)",
    "each is sent once, counts are exact, the lock is free",
)
@pytest.mark.parametrize("every", [997, pytest.param(29, marks=pytest.mark.slow)])
def test_effects_on_other_nodes_are_applied_once_if_their_worker_is_killed_at_any_line(
    cluster: Cluster, app: Qd, step: Any, once: Any, project: MakeProject, figures: Figures, every: int
) -> None:
    shop = project(jobs=SHOP + UNIQUE, url=cluster.url)
    c, d, e = queues(cluster)
    kill, witness, number, lines = LineKill(shop), Witness(shop), 1, list[str]()
    work = kill.work("--max-crashes", "5", c, d, e)

    def seen(run: int) -> list[tuple[str, ...]]:
        return [tuple(text.split()[1:]) for text in witness.starting(f"{run}. ")]

    def ran(run: int) -> bool:
        return {name for name, _ in seen(run)} == NAMES

    while True:
        kill.arm(number)
        callbacks = {
            "then": step.using(queue=d).bind(number, "then"),
            "finally_": step.using(queue=e).bind(number, "finally"),
        }
        app.batch(step.using(queue=c).bind(number, "a"), step.using(queue=d).bind(number, "b"), **callbacks).dispatch()
        app.chain(once.bind(number, "unique"), step.using(queue=e).bind(number, "next")).dispatch()
        how, line = kill.met()
        eventually(partial(ran, number), 30, what=f"all jobs after {line}")
        eventually(lambda: idle(app, c, d, e), 30, what=f"an idle cluster after a kill at {line}")
        found = seen(number)
        assert len(set(found)) == len(found), f"killed at {line}, and sent twice: {found}"
        if how == "all":
            break
        lines.append(line)
        number += every
    work.stop()
    figures.add(kills=len(lines), lines=len(set(lines)))
    assert lines


def idle(app: Qd, *names: str) -> bool:
    """Whether no job waits or runs, no effect is pending and no lock is held."""
    queue = app.connections.get(None)
    assert isinstance(queue, ClusterQueue)
    wire, sizes = queue.connection, [queue.sizes(name) for name in names]
    ends = [wire.send(wire.plain("EXISTS", f"queues:{{{name}}}:ends")) for name in names]
    waits = [size.ready + size.delayed + size.reserved for size in sizes]
    return not any((*waits, *ends, wire.call("EXISTS", "qd:unique:once:n")))
