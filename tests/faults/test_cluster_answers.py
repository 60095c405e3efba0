"""A node of a cluster is unreachable when its jobs end: their workers leave the answers on other nodes and continue there.
Nothing is lost and nothing runs twice, whichever process is killed before the node is back."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from qd import Qd
from qd.drivers.cluster.queue import ClusterQueue
from tests.faults.test_cluster_nodes import LEASE, partial_cluster  # noqa: F401
from tests.support.payloads import producer
from tests.support.processes import Procs
from tests.support.project import MakeProject
from tests.support.reliability import Figures
from tests.support.servers.cluster import Cluster
from tests.support.waiting import eventually
from tests.support.witness import JOBS, Witness

pytestmark = pytest.mark.xdist_group("cluster")
SHOP = (
    JOBS
    + """
@app.job("ends", tries=3, unique="{how}")
def ends(how: str) -> None:
    attempt = current_job().attempt
    note("begun", how, attempt)
    held()
    if how == "fails":
        current_job().fail("as it should")
    if how == "released" and attempt == 1:
        current_job().release(1)

@app.job("after")
def after(name: str) -> None:
    note("after", name)
"""
)
HOWS = ("done", "fails", "released")
MANY = 30


@pytest.fixture
def app(cluster: Cluster) -> Iterator[Qd]:
    with producer(cluster.url) as made:
        yield made


@pytest.fixture
def jobs(app: Qd) -> Any:
    @app.job("ends", tries=3, unique="{how}")
    def ends(how: str) -> None: ...

    @app.job("after")
    def after(name: str) -> None: ...

    @app.job("quick")
    def quick(n: int) -> None: ...

    return ends, after, quick


def kill(work: Procs, whom: str) -> None:
    if whom == "workers":
        for number in range(len(HOWS)):
            work.child(f"worker {number}").kill()
        work.wait_line("worker.died", count=len(HOWS))
    elif whom == "keeper":
        work.child("keeper").kill()
        work.wait_line("keeper.died")
    elif whom == "master":
        work.kill()
        eventually(lambda: not work.session(), 20, what="the end of the master and its children")


@pytest.mark.fault(
    "45a",
    "a node of a cluster is away when jobs of it end in all workers; then workers, keeper or master are killed",
    "workers run the jobs of other nodes after a second; the answers are given when the node is back: 0 lost, 0 doubled",
)
@pytest.mark.parametrize(
    "whom",
    ["workers", "master", *[pytest.param(whom, marks=pytest.mark.slow) for whom in ("nobody", "keeper", "hung node")]],
)
def test_workers_leave_answers_for_an_unreachable_node_and_continue(
    partial_cluster: Cluster,  # noqa: F811
    app: Qd,
    jobs: Any,
    project: MakeProject,
    figures: Figures,
    whom: str,
) -> None:
    cluster, (ends, after, quick) = partial_cluster, jobs
    found = {cluster.node_of(f"queues:{{{name}}}").port: name for name in "abcdefghijklmnop"}
    keeps = cluster.node_of("qd:masters")  # masters report there
    dead = next(node for node in cluster.nodes if node is not keeps)
    gone, (here, there) = found[dead.port], [found[node.port] for node in cluster.nodes if node is not dead]
    shop = project(jobs=SHOP, url=cluster.url, config=f"retry_after = {LEASE}")
    witness = Witness(shop)
    work = shop.work("-w", str(len(HOWS)), gone, here, there)
    work.wait_line("master.ready")
    app.batch(
        *[ends.using(queue=gone).bind(how) for how in HOWS],
        allow_failures=True,
        finally_=after.using(queue=here).bind("batch"),
    ).dispatch()
    eventually(lambda: len(seen(witness, "begun")) == len(HOWS), 30, what="a job in each worker")
    assert dead.process is not None
    process = dead.process
    if whom == "hung node":
        process.send_signal(signal.SIGSTOP)
    else:
        dead.kill()
    witness.go()
    app.dispatch(*[quick.using(queue=(here, there)[n % 2]).bind(n) for n in range(MANY)])
    eventually(lambda: len(seen(witness, "quick")) == MANY, 30, what="the jobs of the other nodes")
    work.wait_line("job.answer_left", count=len(HOWS))
    kill(work, whom)
    if whom == "master":
        work = shop.work("-w", str(len(HOWS)), gone, here, there)
        work.wait_line("master.ready")
    quick.using(queue=there, delay=LEASE).dispatch(MANY)
    eventually(lambda: len(seen(witness, "quick")) == MANY + 1, 30, what="a job later")
    assert len(seen(witness, "begun")) == len(HOWS)
    if whom == "hung node":
        process.send_signal(signal.SIGCONT)
    else:
        dead.start()
    cluster.settled()
    eventually(lambda: seen(witness, "after") == ["batch"], 40, what="the end of the batch")
    eventually(lambda: empty(app, gone, here, there), 30, what="queues and notes that are empty")
    work.stop()
    assert sorted(seen(witness, "begun")) == ["done 1", "fails 1", "released 1", "released 2"]
    assert sorted(int(said.split()[0]) for said in seen(witness, "quick")) == [*range(MANY + 1)]
    assert not work.matches("lease_lost|lease.expired|job.requeued")
    queue = app.connections.get(None)
    assert queue.sizes(gone).failed == 1
    for how in HOWS:
        assert queue.free(f"ends:{how}", "anybody") is False
        assert ends.using(queue=here).dispatch(how) is not None


def seen(witness: Witness, word: str) -> list[str]:
    return [line.split(" ", 1)[1] for line in witness.starting(f"{word} ")]


def empty(app: Qd, *names: str) -> bool:
    queue = app.connections.get(None)
    assert isinstance(queue, ClusterQueue)
    sizes = [queue.sizes(name) for name in names]
    ends = [queue.connection.send(queue.connection.plain("EXISTS", f"queues:{{{name}}}:ends")) for name in names]
    return not any((*[size.ready + size.delayed + size.reserved for size in sizes], *ends))
