"""The measures. Each function takes one sample of one peer (metric -> number); run.py calls them in turn."""

import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import psutil
import tree
from lineup import Peer
from stage import Producer, Stage, Stamp, Workers

from server import Monitor

Sample = dict[str, float]
SETTLED = 2.0  # seconds after its first job until a worker counts as idle
EIGHT = 8


@dataclass(frozen=True)
class Scale:
    """The size of the samples: factor 1 for the real run, less for a smoke test."""

    factor: float = 1.0
    samples: int = 150
    idle: float = 10.0
    span: float = 6.0
    starts: int = 4
    pings: int = 2000

    def jobs(self, full: int) -> int:
        return max(20, int(full * self.factor))


QUICK = Scale(factor=0.02, samples=20, idle=3.0, span=3.0, starts=1, pings=200)


class Drained(NamedTuple):
    """A drain from its first to its last job. server_us: Redis CPU per job. round_trip: of a PING just before, in us."""

    turns: int
    first: Stamp
    last: Stamp
    server_us: float
    round_trip: float

    def speed(self) -> float:
        """Jobs per second."""
        return self.turns / ((self.last.started - self.first.started) / 1e9)

    def worker_us(self) -> float:
        """CPU time of the worker per job."""
        return (self.last.cpu - self.first.cpu) / 1e3 / self.turns


def drained(stage: Stage, peer: Peer, scale: Scale, setup: str, kind: str, jobs: int) -> Drained:
    """A queue that is full before the workers start: a first job, `jobs` of a kind, a last job."""
    jobs = scale.jobs(jobs)
    with stage.producer(peer) as producer:
        producer.ask("stamp", label="first")
        producer.ask("bulk", jobs=jobs, kind=kind)
        producer.ask("stamp", label="last")
        round_trip = stage.server.round_trip(scale.pings)
        with stage.workers(peer, setup) as workers:
            (first,) = stage.stamps(1)
            server_before = stage.server.cpu()
            (last,) = stage.stamps(1)
            server = stage.server.cpu() - server_before
            if peer.leaves and setup != "io":
                workers.wait()
            producer.emptied()
    return Drained(jobs + 1, first, last, server * 1e6 / (jobs + 1), round_trip)


def drain(stage: Stage, peer: Peer, scale: Scale) -> Sample:
    """No-op jobs per second: one process, one job at a time."""
    found = drained(stage, peer, scale, "drain", "noop", peer.jobs)
    sample = {"drain": found.speed(), "worker_us": found.worker_us()}
    return sample | {"server_us": found.server_us, "round_trip_us": found.round_trip}


def two(stage: Stage, peer: Peer, scale: Scale) -> Sample:
    """The same with two worker processes."""
    found = drained(stage, peer, scale, "two", "noop", peer.jobs)
    return {"two": found.speed(), "two_server_us": found.server_us}


def io(stage: Stage, peer: Peer, scale: Scale) -> Sample:
    """No-op coroutines per second: one process that runs many jobs at once."""
    found = drained(stage, peer, scale, "io", "anoop", peer.io)
    return {"io": found.speed(), "io_worker_us": found.worker_us(), "io_server_us": found.server_us}


def sleep(stage: Stage, peer: Peer, scale: Scale) -> Sample:
    """Jobs that await one second, as many as a process may run at once: from the first begin to the last end; memory of the
    tree meanwhile."""
    jobs = scale.jobs(1000)
    with stage.producer(peer) as producer:
        producer.ask("bulk", jobs=jobs, kind="sleep")
        with stage.workers(peer, "sleep") as workers:
            (first,) = stage.stamps(1)
            time.sleep(0.8)
            memory = tree.pss_bytes(workers.family())
            *_, last = stage.stamps(2 * jobs - 1)
    return {"sleep": (last.started - first.started) / 1e9, "sleep_pss": memory / 1e6}


def naps(stage: Stage, peer: Peer, scale: Scale) -> Sample:
    """Jobs of 10 ms on two workers: jobs per second, and the longest time that one of them had nothing to do while the
    other started two more jobs."""
    jobs = max(100, scale.jobs(1000))
    with stage.producer(peer) as producer:
        producer.ask("bulk", jobs=jobs, kind="nap10")
        with stage.workers(peer, "two"):
            runs = sorted((nap.cpu, nap.started, nap.at) for nap in stage.stamps(jobs))  # begin, end, process
    begins, ends = [run[0] for run in runs], [run[1] for run in runs]
    longest = 0.0
    for process in {run[2] for run in runs}:
        own = [run for run in runs if run[2] == process]
        others = [run[0] for run in runs if run[2] != process]
        for before, after in zip(own, [*own[1:], (ends[-1], 0, 0)], strict=True):
            if sum(before[1] < began < after[0] for began in others) >= 2:
                longest = max(longest, (after[0] - before[1]) / 1e6)
    return {"naps": jobs / ((max(ends) - begins[0]) / 1e9), "naps_unfair": longest}


def urgent(stage: Stage, peer: Peer, scale: Scale) -> Sample:
    """Milliseconds from the push of a job of high priority to its first line, while the only worker drains jobs of 1 ms from
    a queue of low priority."""
    with stage.producer(peer) as producer:
        producer.ask("bulk", jobs=40 * scale.samples, kind="nap1")
        producer.ask("urgent", label="ready")
        with stage.workers(peer, "ranked"):
            waits = []
            for number in range(-5, scale.samples):
                stamp = next(stamp for stamp in stage.stamps(1 << 30) if stamp.label != "nap")
                if number > -5:
                    waits.append((stamp.started - stamp.at) / 1e6)
                time.sleep(random.uniform(0.01, 0.02))
                producer.ask("urgent", label=str(number))
            if producer.ask("size") < 2:
                raise RuntimeError("the queue of low priority ran empty")
    return {"urgent_p50": quantile(waits[4:], 0.50), "urgent_p99": quantile(waits[4:], 0.99)}


def enqueue(stage: Stage, peer: Peer, scale: Scale) -> Sample:
    """Jobs per second that one producer sends: one call per job, in bulk, and awaited calls in a gather."""
    with stage.producer(peer) as producer:
        producer.ask("single", jobs=scale.jobs(500))
        found = {"enqueue": scale.jobs(peer.single) / producer.ask("single", jobs=scale.jobs(peer.single))}
        if peer.bulk:
            stage.clear()
            found["enqueue_bulk"] = scale.jobs(peer.bulk) / producer.ask("bulk", jobs=scale.jobs(peer.bulk))
        if peer.gathers:
            stage.clear()
            producer.ask("gathered", jobs=scale.jobs(500))
            found["enqueue_gather"] = scale.jobs(10_000) / producer.ask("gathered", jobs=scale.jobs(10_000))
    return found


def pickup(stage: Stage, peer: Peer, scale: Scale) -> Sample:
    """Milliseconds from just before the push to the job's first line, the worker idle at each push."""
    with stage.producer(peer) as producer, stage.workers(peer, "one"):
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
    with stage.producer(peer) as producer, stage.workers(peer, "later"):
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
    with stage.producer(peer) as producer, stage.workers(peer, "one") as workers:
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
    for count, setup in ((1, "one"), (EIGHT, "many")):
        stage.clear()
        with stage.producer(peer) as producer, stage.workers(peer, setup) as workers:
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
            with stage.workers(peer, "one"):
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
        with stage.workers(peer, "drain"):
            first, last = stage.stamps(2)
            seen = monitor.stop()
    between = [command for command in seen if first.wall <= command.at * 1e9 <= last.wall]
    wire = Counter(command.name for command in between if command.client)
    turns = jobs + 1
    found = {"wire": sum(wire.values()) / turns, "commands": len(between) / turns}
    return found | {f"wire:{name}": count / turns for name, count in wire.items()}


# --- a worker that runs many jobs dies

HELD = 500
PAUSED = "queues:default:paused"
MANY = 100


def kill(stage: Stage, peer: Peer, scale: Scale) -> Sample:
    """KILL the only worker while it runs 500 jobs. The queue is paused, so that they wait until the measure has seen it."""
    with stage.producer(peer) as producer, stage.workers(peer, "kill") as workers:
        hang(stage, producer, HELD)
        began = time.monotonic()
        for process in workers.family():
            if title(process).startswith("qd: worker"):
                process.kill()
        return {"kill": waiting_again(stage, began)} | prefixed("kill", ran_again(stage, HELD))


def kill_tree(stage: Stage, peer: Peer, scale: Scale) -> Sample:
    """KILL master, keeper and worker at once, and start them again: from the new start."""
    with stage.producer(peer) as producer:
        with stage.workers(peer, "kill") as workers:
            hang(stage, producer, HELD)
            workers.kill()
        began = time.monotonic()
        with stage.workers(peer, "kill"):
            return {"tree": waiting_again(stage, began)} | prefixed("tree", ran_again(stage, HELD))


def blocked(stage: Stage, peer: Peer, scale: Scale) -> Sample:
    """One of a hundred jobs blocks the event loop for ever; its timeout is 2 s. Seconds until it is in the failed store."""
    with stage.producer(peer) as producer, stage.workers(peer, "io"):
        hang(stage, producer, MANY - 1, pause=False)
        (stage.folder / "again").touch()
        producer.ask("bulk", jobs=1, kind="block")
        (stamp,) = stage.stamps(1)
        client = stage.server.client
        until(lambda: client.call("HLEN", "queues:default:failed") == 1, "the blocking job is not in the failed store")
        settled = time.monotonic_ns()
        return {"blocked": (settled - stamp.started) / 1e9} | prefixed("blocked", ran_again(stage, MANY - 1, failed=1))


def hang(stage: Stage, producer: Producer, jobs: int, pause: bool = True) -> None:
    """Wait until the worker runs that many jobs, and pause the queue."""
    (stage.folder / "again").unlink(missing_ok=True)
    producer.ask("bulk", jobs=jobs, kind="hang")
    list(stage.stamps(jobs))
    if pause:
        stage.server.client.call("SET", PAUSED, '{"by":"bench","reason":null,"at":0,"until":null}')


def waiting_again(stage: Stage, began: float) -> float:
    """Seconds until all held jobs wait in the queue."""
    client = stage.server.client

    def waiting() -> bool:
        suspects = client.call("LLEN", "queues:default:suspects")
        return int(client.call("LLEN", "queues:default")) + int(suspects) == HELD

    until(waiting, f"{HELD} jobs do not wait again")
    return time.monotonic() - began


def ran_again(stage: Stage, jobs: int, failed: int = 0) -> Sample:
    """Let the jobs run to their end. lost: those that did not start; spent: those that had used up an attempt, or failed."""
    (stage.folder / "again").touch()
    stage.server.client.call("DEL", PAUSED)
    labels = []
    with suppress(TimeoutError):
        for stamp in stage.stamps(jobs, patience=30):
            labels.append(stamp.label)
    more = int(stage.server.client.call("HLEN", "queues:default:failed")) - failed
    return {"lost": jobs - len(labels), "spent": sum(label != "attempt1" for label in labels) + more}


def until(holds: Callable[[], bool], complaint: str, patience: float = 60.0) -> None:
    deadline = time.monotonic() + patience
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{complaint} after {patience:g} s")
        time.sleep(0.002)


def title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def prefixed(name: str, sample: Sample) -> Sample:
    return {f"{name}_{metric}": value for metric, value in sample.items()}


def quantile(values: list[float], share: float) -> float:
    """The smallest value that is not below `share` of all."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Measure(NamedTuple):
    """setup: of the peer's workers, whose note belongs to the figures. once: in the first round only: it hardly varies."""

    take: Callable[[Stage, Peer, Scale], Sample]
    setup: str = "one"
    once: bool = False


MEASURES = {
    "drain": Measure(drain, "drain"),
    "two": Measure(two, "two"),
    "naps": Measure(naps, "two"),
    "urgent": Measure(urgent, "ranked"),
    "io": Measure(io, "io"),
    "sleep": Measure(sleep, "sleep"),
    "enqueue": Measure(enqueue),
    "pickup": Measure(pickup),
    "late": Measure(late, "later"),
    "idle": Measure(idle, once=True),
    "memory": Measure(memory, once=True),
    "start": Measure(start),
    "commands": Measure(commands, "drain", once=True),
    "kill": Measure(kill, "kill"),
    "kill_tree": Measure(kill_tree, "kill"),
    "blocked": Measure(blocked, "io"),
}
