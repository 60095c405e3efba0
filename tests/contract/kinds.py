"""The drivers under test: how each is configured, restarted and inspected. One suite tests them all (test_every_driver.py,
test_every_worker.py). The gaps listed here must equal those that the driver declares."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from qd.config.load import load
from qd.drivers.base import Connector
from qd.drivers.connections import open_queue
from qd.drivers.types import Gap, Reserved, Sizes
from qd.payload.build import make
from qd.payload.format import read
from tests.support.payloads import push_many
from tests.support.processes import Procs
from tests.support.project import Project
from tests.support.servers.beanstalkd import Beanstalkd
from tests.support.servers.cluster import Cluster
from tests.support.servers.mariadb import MariaDb
from tests.support.servers.postgres import Postgres
from tests.support.servers.redis import KEEPS, Server, Valkey
from tests.support.servers.sentinel import Sentinel
from tests.support.servers.sqs import Sqs
from tests.support.waiting import eventually

IMPORTING = ("dispatch",)  # commands that import the app: in a process of their own
NAME = "main"  # the connection under test
LEASE = 3  # seconds, in tests that wait until a lease expires


@dataclass(frozen=True)
class Served:
    """A server for one test. table: the keys of [connections.main]. restart: kills and restarts it, or the closest
    equivalent. env: the environment of its clients. control: the url of the control connection, if the server has no
    keyspace. migrates: `qd migrate` creates its tables."""

    table: Mapping[str, object]
    restart: Callable[[], object]
    env: Mapping[str, str] = field(default_factory=dict)
    control: str = ""
    migrates: bool = False


@dataclass(frozen=True)
class Kind:
    """fixture: the name of the fixture that returns its Served. limits: the gaps it declares. largest: bytes of a payload,
    0: any. many: waiting jobs in one of the tests. refuses: payloads of test_every_worker.HOSTILE that it rejects."""

    name: str
    fixture: str
    limits: frozenset[Gap] = frozenset()
    largest: int = 0
    many: int = 20_000
    refuses: frozenset[str] = frozenset()


KINDS = (
    Kind("redis", "on_redis"),
    Kind("valkey", "on_valkey"),
    Kind("sentinel", "on_sentinel"),
    Kind("cluster", "on_cluster", frozenset({"ends"})),
    Kind(
        "sqs",
        "on_sqs",
        frozenset({"order", "head", "delay", "find", "clear", "sizes", "memory"}),
        largest=1 << 20,
        many=60,
        refuses=frozenset({"nothing", "no text", "nul bytes"}),
    ),
    Kind("beanstalkd", "on_beanstalkd", frozenset({"head", "delay", "find", "memory"})),
    Kind("postgres", "on_postgres", frozenset({"delay"}), refuses=frozenset({"no text", "nul bytes"})),
    Kind("mariadb", "on_mariadb", frozenset({"delay"}), refuses=frozenset({"no text", "nul bytes"})),
    Kind("sqlite", "on_sqlite", frozenset({"delay"}), refuses=frozenset({"no text", "nul bytes"})),
)

# To a worker these are Redis behind a url: the same client, scripts and gaps. The tests of features and workers run on them
# in `make soak` only, except those of faults. test_every_driver.py always has every kind.
LIKE_REDIS = frozenset({"valkey", "sentinel"})

JOBS = """
import hashlib
from qd.middleware import ConcurrencyLimit

def note(*words):
    fd = os.open("notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, (" ".join(map(str, [*words, time.monotonic()])) + "\\n").encode())
    os.close(fd)

@app.job("quick", tries=5)
def quick(n: int, seconds: float = 0.0) -> None:
    note("S", n, current_job().attempt, os.getpid())
    time.sleep(seconds)
    note("E", n, current_job().attempt, os.getpid())

@app.job("held", tries=5)
def held(n: int) -> None:
    note("S", n, current_job().attempt, os.getpid())
    end = time.monotonic() + 120
    while not Path("go").exists() and time.monotonic() < end:
        time.sleep(0.01)
    note("E", n, current_job().attempt, os.getpid())

@app.job("dies", tries=5)
def dies(n: int) -> None:
    note("S", n, current_job().attempt, os.getpid())
    if not Path("died").exists():
        Path("died").touch()
        os.kill(os.getpid(), 9)
    note("E", n, current_job().attempt, os.getpid())

@app.job("poison", timeout=0, middleware=[ConcurrencyLimit("crm", 2)])
def poison(n: int) -> None:
    note("S", n)
    if n < 0:
        os.kill(os.getpid(), 9)
    note("E", n)

@app.job("crosses", tries=1)
def crosses(n: int) -> None:
    # It ends some milliseconds after a whole second, at about the time when the keeper renews its lease.
    note("S", n, current_job().attempt, os.getpid())
    time.sleep(1.0 - time.time() % 1.0 + (2 + n % 8 * 2) / 1000)
    note("E", n, current_job().attempt, os.getpid())

@app.job("read", tries=1)
def read_text(n: int, text: str) -> None:
    note("E", n, hashlib.sha256(text.encode()).hexdigest(), len(text))

@app.job("boom", tries=2, backoff=0)
def boom(n: int) -> None:
    note("S", n, current_job().attempt, os.getpid())
    if not Path("fixed").exists():
        raise ValueError("this job is still broken")
    note("E", n, current_job().attempt, os.getpid())
"""
FILES = {"notes", "go", "died", "fixed"}


class Shop(Project):
    """A project whose only connection is the one under test."""

    def __init__(self, root: Path, served: Served) -> None:
        self.served = served
        self.table: dict[str, object] = {**served.table, "retry_after": 300}
        super().__init__(root, "", JOBS)
        self.allowed |= FILES

    def config(self, more: str = "") -> None:
        lines = [f"{key} = {json.dumps(value)}" for key, value in self.table.items()]
        section = f'[connections.control]\nurl = "{self.served.control}"\n' if self.served.control else ""
        control = "control" if section else NAME
        head = f'[qd]\napp = "jobs:app"\ndefault = "{NAME}"\ncontrol = "{control}"\n\n{section}'
        (self.root / "qd.toml").write_text(f"{head}\n[connections.{NAME}]\n" + "\n".join([*lines, "", more]))

    def env(self, **more: str) -> dict[str, str]:
        return super().env(**self.served.env, **more)

    def lease(self, seconds: int = LEASE) -> None:
        """Set the lease: how long a job stays with a silent host."""
        self.table["retry_after"] = seconds
        self.config()

    # -- what the jobs have written

    @property
    def notes(self) -> list[list[str]]:
        path = self.root / "notes"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def noted(self, kind: str, n: int | None = None) -> list[list[str]]:
        return [note for note in self.notes if note[0] == kind and n in (None, int(note[1]))]

    def wait_noted(self, kind: str, n: int, count: int = 1) -> list[str]:
        """The `count`-th note of this kind of job n."""
        found = eventually(
            lambda: len(self.noted(kind, n)) >= count and self.noted(kind, n), 40, what=f"note {kind} {n} no. {count}"
        )
        return found[count - 1]

    def go(self) -> None:
        """Let the jobs `held` end."""
        (self.root / "go").touch()


@dataclass
class Tried:
    """A driver under test: its project, its server, and its connections in this process."""

    kind: Kind
    served: Served
    shop: Shop
    opened: list[Connector] = field(default_factory=list)

    def can(self, what: Gap) -> bool:
        return what not in self.kind.limits

    def fitting(self, text: str) -> str:
        """The part of the text that fits into the largest payload even if each letter is escaped."""
        return text[: self.kind.largest // 7] if self.kind.largest else text

    def connect(self, slot: int = 1, token: str = "Tok3nTok3n") -> Connector:
        """A connection that reserves as this slot of this master; closed at the end."""
        settings = load(self.shop.root / "qd.toml", environ=self.shop.env())
        self.opened.append(open_queue(settings, None, token=token, slot=slot, patience=20.0))
        return self.opened[-1]

    def push(self, *numbers: int, job: str = "quick", queue: str = "default", **more: object) -> None:
        producer = self.connect(token="", slot=0)
        push_many(producer, [(queue, job_of(job, n, **more), None) for n in numbers])
        producer.close()

    def sizes(self, queue: str = "default") -> Sizes:
        """Query the sizes over a new connection, as a command does."""
        queue_of_command = self.connect(token="", slot=0)
        try:
            return queue_of_command.sizes(queue)
        finally:
            queue_of_command.close()

    def empty(self, queue: str = "default") -> bool:
        """Whether no job waits and none runs."""
        found = self.sizes(queue)
        return (found.ready, found.delayed, found.reserved) == (0, 0, 0)

    def command(self, *words: str) -> str:
        """The output of `qd ...`, which must succeed."""
        done = self.shop.quick(*words) if words[0] not in IMPORTING else self.shop.qd(*words)
        code = done.exit_code if isinstance(done, Result) else done.returncode
        assert code == 0, done.stderr
        return done.stdout

    def failed(self) -> list[dict[str, Any]]:
        """Records of the failed store, as the command lists them."""
        found: list[dict[str, Any]] = json.loads(self.command("failed", "list", "--json"))
        return found

    def close(self) -> None:
        for queue in self.opened:
            with suppress(Exception):
                queue.close()


def job_of(name: str, n: int, **more: object) -> bytes:
    return make(name, json.dumps({"n": n, **more}).encode(), created_at=int(time.time()))


def take(queue: Connector, *queues: str) -> Reserved:
    """Wait for the next job: a backend may need some time."""
    found = eventually(lambda: queue.turn(None, queues or ("default",)).reserved, what="a job")
    return found


def drained(queue: Connector, count: int, *queues: str) -> Iterator[Reserved]:
    """Reserve `count` jobs, each acked with the turn that reserves the next, and check that none is left."""
    done: Reserved | None = None
    for _ in range(count):
        done = following(queue, done, queues or ("default",))
        yield done
    assert done is None or queue.ack(done)
    assert queue.turn(None, queues or ("default",)).reserved is None


def following(queue: Connector, done: Reserved | None, queues: Sequence[str]) -> Reserved:
    turn = queue.turn(done, queues)
    assert turn.acked is (None if done is None else True)
    return turn.reserved if turn.reserved is not None else take(queue, *queues)


def number(held: Reserved) -> int:
    return int(json.loads(bytes(read(held.member).data))["n"])


def ready(shop: Shop, *arguments: str, workers: int = 1) -> Procs:
    """`qd work` whose workers are ready."""
    work = shop.work("-w", str(workers), *arguments)
    work.wait_line("master.ready", 30)
    return work


# --- the servers, as fixtures that return a Served


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
