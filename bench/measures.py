"""The measures. Each function takes one sample of one peer (metric -> number); run.py calls them in turn."""

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import tree
from lineup import Peer
from stage import Stage, Workers

from server import Monitor

Sample = dict[str, float]
SETTLED = 2.0  # seconds after its first job until a worker counts as idle
EIGHT = 8


@dataclass(frozen=True)
class Scale:
    """The size of the samples: factor 1 for the real run, less for a smoke test."""

    factor: float = 1.0
    samples: int = 200
    idle: float = 10.0
    span: float = 10.0
    starts: int = 5
    pings: int = 2000

    def jobs(self, full: int) -> int:
        return max(20, int(full * self.factor))


QUICK = Scale(factor=0.02, samples=20, idle=3.0, span=3.0, starts=1, pings=200)


def drain(stage: Stage, peer: Peer, scale: Scale) -> Sample:
    """No-op jobs per second: one process, one job at a time, from the first line of the first job to that of the last."""
    jobs = scale.jobs(peer.jobs)
    with stage.producer(peer) as producer:
        producer.ask("stamp", label="first")
        producer.ask("bulk", jobs=jobs)
        producer.ask("stamp", label="last")
        round_trip = stage.server.round_trip(scale.pings)
        with stage.workers(peer, peer.drain) as workers:
            (first,) = stage.stamps(1)
            server_before = stage.server.cpu()
            (last,) = stage.stamps(1)
            server = stage.server.cpu() - server_before
            if peer.leaves:
                workers.wait()
        producer.emptied()
    turns = jobs + 1
    seconds = (last.started - first.started) / 1e9
    return {
        "drain": turns / seconds,
        "worker_us": (last.cpu - first.cpu) / 1e3 / turns,
        "server_us": server * 1e6 / turns,
        "round_trip_us": round_trip,
    }


def enqueue(stage: Stage, peer: Peer, scale: Scale) -> Sample:
    """Jobs per second that one producer sends: one call per job, and in bulk."""
    with stage.producer(peer) as producer:
        producer.ask("single", jobs=scale.jobs(500))
        found = {"enqueue": scale.jobs(peer.single) / producer.ask("single", jobs=scale.jobs(peer.single))}
        if peer.bulk:
            stage.clear()
            found["enqueue_bulk"] = scale.jobs(peer.bulk) / producer.ask("bulk", jobs=scale.jobs(peer.bulk))
    return found


def pickup(stage: Stage, peer: Peer, scale: Scale) -> Sample:
    """Milliseconds from just before the push to the job's first line, the worker idle at each push."""
    with stage.producer(peer) as producer, stage.workers(peer, peer.one):
        waits = []
        for number in range(-20, scale.samples):
            producer.ask("stamp", label=str(number))
            (stamp,) = stage.stamps(1)
            if number >= 0:
                waits.append((stamp.started - stamp.at) / 1e6)
            time.sleep(random.uniform(0.02, 0.06))
    return {"pickup_p50": quantile(waits, 0.50), "pickup_p99": quantile(waits, 0.99)}


def late(stage: Stage, peer: Peer, scale: Scale) -> Sample:
    """Milliseconds from the due time of a delayed job to its first line. Negative: it started too early."""
    with stage.producer(peer) as producer, stage.workers(peer, peer.later):
        producer.ask("stamp", label="ready")
        list(stage.stamps(1))
        begin = time.time() + 1.5
        due = [int((begin + random.uniform(0, scale.span)) * 1e3) * 1_000_000 for _ in range(scale.samples)]
        producer.ask("later", due=due)
        delays = [(stamp.wall - stamp.at) / 1e6 for stamp in stage.stamps(scale.samples)]
    early = sum(delay < 0 for delay in delays) / len(delays)
    return {"late_p50": quantile(delays, 0.50), "late_p99": quantile(delays, 0.99), "early": 100 * early}


def idle(stage: Stage, peer: Peer, scale: Scale) -> Sample:
    """Commands per second on the wire and CPU of an idle worker; `wire:NAME` is one process, by its connection's name."""
    with stage.producer(peer) as producer, stage.workers(peer, peer.one) as workers:
        warm(stage, producer.ask, 1)
        time.sleep(SETTLED)
        monitor = Monitor(stage.server.port)
        before = tree.cpu_seconds(workers.family())
        time.sleep(scale.idle)
        cpu = tree.cpu_seconds(workers.family()) - before
        wire = Counter(command.client for command in monitor.stop() if command.client)
        processes = by_process(stage, workers, wire)
    rates = {name: count / scale.idle for name, count in processes.items()}
    found = {"idle_wire": sum(rates.values()), "idle_wire_max": max(rates.values(), default=0.0)}
    return found | {"idle_cpu": 100 * cpu / scale.idle} | {f"wire:{name}": rate for name, rate in rates.items()}


def by_process(stage: Stage, workers: Workers, wire: Counter[str]) -> Counter[str]:
    """Commands per client -> commands per process. The name of a process is that of its connection, else its pid."""
    owners, names = tree.ports(workers.family()), stage.server.names()
    found: Counter[str] = Counter()
    for port, process in owners.items():
        called = names.get(port) or f"{process.name()}[{process.pid}]"
        found[called] += wire.get(f"127.0.0.1:{port}", 0)
    return found


def warm(stage: Stage, ask: Callable[..., float], jobs: int) -> None:
    """Run some jobs through the worker, so that lazily loaded modules are loaded."""
    ask("bulk", jobs=20 * jobs)
    for number in range(jobs):
        ask("stamp", label=str(number))
    list(stage.stamps(jobs))


def memory(stage: Stage, peer: Peer, scale: Scale) -> Sample:
    """PSS of the whole tree in MB, with one worker and with eight, after some jobs, idle."""
    found = {}
    for count, argvs in ((1, [peer.one]), (EIGHT, peer.many)):
        stage.clear()
        with stage.producer(peer) as producer, stage.workers(peer, *argvs) as workers:
            warm(stage, producer.ask, 1)
            time.sleep(SETTLED)
            warm(stage, producer.ask, 5 * count)
            producer.emptied()
            found[f"pss_{count}"] = tree.pss_bytes(workers.family()) / 1e6
    return found


def start(stage: Stage, peer: Peer, scale: Scale) -> Sample:
    """Seconds from the start of the process to the first line of a waiting job. The files are in the page cache."""
    taken = []
    with stage.producer(peer) as producer:
        for number in range(-1, scale.starts):
            producer.ask("stamp", label=str(number))
            began = time.monotonic_ns()
            with stage.workers(peer, peer.one):
                (stamp,) = stage.stamps(1)
            if number >= 0:
                taken.append((stamp.started - began) / 1e9)
    return {"start": quantile(taken, 0.50)}


def commands(stage: Stage, peer: Peer, scale: Scale) -> Sample:
    """Redis commands per job: on the wire, and including the commands that scripts call inside the server."""
    jobs = max(200, scale.jobs(1000))
    with stage.producer(peer) as producer:
        producer.ask("stamp", label="first")
        producer.ask("bulk", jobs=jobs)
        producer.ask("stamp", label="last")
        monitor = Monitor(stage.server.port)
        with stage.workers(peer, peer.one):
            first, last = stage.stamps(2)
            seen = monitor.stop()
    between = [command for command in seen if first.wall <= command.at * 1e9 <= last.wall]
    wire = Counter(command.name for command in between if command.client)
    turns = jobs + 1
    found = {"wire": sum(wire.values()) / turns, "commands": len(between) / turns}
    return found | {f"wire:{name}": count / turns for name, count in wire.items()}


def quantile(values: list[float], share: float) -> float:
    """The smallest value that is not below `share` of all."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


MEASURES: dict[str, Callable[[Stage, Peer, Scale], Sample]] = {
    "drain": drain,
    "enqueue": enqueue,
    "pickup": pickup,
    "late": late,
    "idle": idle,
    "memory": memory,
    "start": start,
    "commands": commands,
}
