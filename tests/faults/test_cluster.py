"""Redis Cluster: a node is killed while `qd work` runs, and comes back. Its queues wait, the others continue; answers for
its jobs are left on other nodes; effects on other nodes are applied once, whichever process is killed."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from qd import Qd
from qd.config.settings import ConnectionSettings
from qd.drivers.cluster.queue import ClusterQueue
from tests.faults.test_batches_and_chains import SHOP as BATCH_SHOP
from tests.support.faults import LineKill
from tests.support.payloads import producer, push_many
from tests.support.processes import Procs
from tests.support.project import MakeProject
from tests.support.reliability import Figures
from tests.support.servers.cluster import Cluster
from tests.support.servers.redis import Server
from tests.support.waiting import eventually
from tests.support.witness import JOBS, Witness

pytestmark = pytest.mark.xdist_group("cluster")


# --- a node is killed


EACH = 40
LEASE = 2  # seconds; without a keeper for half of them, no worker reserves a job


@pytest.fixture
def partial_cluster(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster whose nodes serve their slots even while other slots are not covered."""
    for node in cluster.nodes:
        require_full_coverage(node, "no")
    yield cluster
    cluster.whole()
    for node in cluster.nodes:
        require_full_coverage(node, "yes")


def require_full_coverage(node: Server, whole: str) -> None:
    with node.client() as client:
        client.call("CONFIG", "SET", "cluster-require-full-coverage", whole)


@pytest.mark.fault(
    "45",
    "a node of a cluster is killed, and comes back; meanwhile a worker dies and another master starts",
    "its jobs wait, jobs on the other nodes continue at once; each job ran once",
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

    push_many(producer, [(name, job_of("quick", n), delay) for n in numbers])


def answered(producer: ClusterQueue, *names: str) -> bool:
    """Whether no job of these queues is reserved."""
    return not any(producer.sizes(name).reserved for name in names)


def ran(witness: Witness) -> list[int]:
    return [int(line.split()[1]) for line in witness.starting("quick ")]


# --- answers for an unreachable node


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


def kill(work: Procs, victim: str) -> None:
    if victim == "workers":
        for number in range(len(HOWS)):
            work.child(f"worker {number}").kill()
        work.wait_line("worker.died", count=len(HOWS))
    elif victim == "keeper":
        work.child("keeper").kill()
        work.wait_line("keeper.died")
    elif victim == "master":
        work.kill()
        eventually(lambda: not work.session(), 20, what="the end of the master and its children")


@pytest.mark.fault(
    "45a",
    "a node of a cluster is unreachable when its jobs end in all workers; then workers, keeper or master are killed",
    "workers run jobs of other nodes after a second; the answers are applied when the node is back: 0 lost, 0 doubled",
)
@pytest.mark.parametrize(
    "victim",
    [
        "workers",
        "master",
        *[pytest.param(victim, marks=pytest.mark.slow) for victim in ("none", "keeper", "hung node")],
    ],
)
def test_workers_leave_answers_for_an_unreachable_node_and_continue(
    partial_cluster: Cluster,
    app: Qd,
    jobs: Any,
    project: MakeProject,
    figures: Figures,
    victim: str,
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
    if victim == "hung node":
        process.send_signal(signal.SIGSTOP)
    else:
        dead.kill()
    witness.go()
    app.dispatch(*[quick.using(queue=(here, there)[n % 2]).bind(n) for n in range(MANY)])
    eventually(lambda: len(seen(witness, "quick")) == MANY, 30, what="the jobs of the other nodes")
    work.wait_line("job.answer_left", count=len(HOWS))
    queue = app.connections.get(None)
    assert isinstance(queue, ClusterQueue)
    eventually(lambda: answered(queue, here, there), 20, what="the answers for the nodes that are there")
    kill(work, victim)
    if victim == "master":
        work = shop.work("-w", str(len(HOWS)), gone, here, there)
        work.wait_line("master.ready")
    quick.using(queue=there, delay=LEASE).dispatch(MANY)
    eventually(lambda: len(seen(witness, "quick")) == MANY + 1, 30, what="a job later")
    assert len(seen(witness, "begun")) == len(HOWS)
    if victim == "hung node":
        process.send_signal(signal.SIGCONT)
    else:
        dead.start()
    cluster.settled()
    eventually(lambda: seen(witness, "after") == ["batch"], 40, what="the end of the batch")
    eventually(lambda: empty(app, gone, here, there), 30, what="queues and notes that are empty")
    work.stop()
    assert sorted(seen(witness, "begun")) == ["done 1", "fails 1", "released 1", "released 2"]
    assert sorted(int(line.split()[0]) for line in seen(witness, "quick")) == [*range(MANY + 1)]
    assert not work.matches("lease_lost|lease.expired|job.requeued")
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


def test_the_beat_that_reaches_a_node_again_renews_its_leases(
    partial_cluster: Cluster, app: Qd, jobs: Any, project: MakeProject
) -> None:
    """Not only a third of the lease later: a host that had not lost this node would reclaim its jobs meanwhile."""
    cluster, (ends, _, _) = partial_cluster, jobs
    found = {cluster.node_of(f"queues:{{{name}}}").port: name for name in "abcdefghijklmnop"}
    keeps = cluster.node_of("qd:masters")
    node = next(node for node in cluster.nodes if node is not keeps)
    gone, here, lease = found[node.port], found[keeps.port], 60
    shop = project(jobs=SHOP, url=cluster.url, config=f"retry_after = {lease}")
    witness = Witness(shop)
    work = shop.work("-w", "1", gone, here)
    ends.using(queue=gone).dispatch("done")
    eventually(lambda: seen(witness, "begun"), 30, what="the job")

    def until() -> float:
        with node.client() as client:
            return float(client.text("ZRANGE", f"queues:{{{gone}}}:reserved", 0, 0, "WITHSCORES")[1])

    before = until()
    assert node.process is not None
    node.process.send_signal(signal.SIGSTOP)
    work.wait_line("redis.away", 30)
    node.process.send_signal(signal.SIGCONT)
    eventually(lambda: until() > before, 30, what="a renewed lease")
    assert until() - before < lease / 3 - 1
    witness.go()
    eventually(lambda: empty(app, gone, here), 30, what="queues that are empty")
    work.stop()
    assert not work.matches("lease_lost|lease.expired|job.requeued")


# --- workers killed during effects on other nodes


NAMES = {"a", "b", "next", "then", "finally", "unique"}
UNIQUE = """
@app.job("once", queue="c", unique="n", tries=1)
def once(run: int, name: str) -> None:
    note(f"{run}.", name, json.loads(current_job().payload).get("crashes", 0))
"""


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
    "kill -9 at lines of qd while the end of a job has effects on other nodes of a cluster (chain, batch, lock)",
    "each job is sent once, counts are exact, the lock is free",
)
@pytest.mark.modes("1", "prefetch", why="it kills at lines of the thread that does everything; row 57 has several")
@pytest.mark.parametrize("every", [997, pytest.param(29, marks=pytest.mark.slow)])
def test_effects_on_other_nodes_are_applied_once_if_their_worker_is_killed_at_any_line(
    cluster: Cluster, app: Qd, step: Any, once: Any, project: MakeProject, figures: Figures, every: int
) -> None:
    shop = project(jobs=BATCH_SHOP + UNIQUE, url=cluster.url)
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
