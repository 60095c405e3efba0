"""A beanstalkd as a Broker.

tube     a queue
body     a payload
put      priority 1024 unless the url has another, delay in whole seconds rounded up, TTR = retry_after
id       the server's number of the job and a digest of its body: a server that restarts without its binlog numbers jobs from
         1 again, and no job may be mistaken for another
delete   sent without waiting: its answer is read before the next answer that is waited for
touch    by a thread of the worker, since only the connection that has reserved a job may touch it. The thread starts with
         the first job. Code that holds the GIL for longer than the TTR stops this thread too; then beanstalkd delivers the
         job again, and the qd worker that receives it sees that it is running, and releases it
"""

from __future__ import annotations

import math
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

import greenstalk

from qd.drivers.base import ClientIdentity
from qd.drivers.beanstalkd.client import BeanstalkdConnection, Client, ReservedJob
from qd.drivers.broker.base import Delivery, QueueCounts
from qd.drivers.broker.queue import BrokerQueue
from qd.drivers.keyspace.base import chunked_by_size
from qd.drivers.types import Gaps
from qd.drivers.urls import BeanstalkdUrl, refused_name
from qd.errors import ConfigError, ConnectionLost, QdError, ServerRefused, TooLarge

if TYPE_CHECKING:
    from qd.config.settings import ConnectionSettings, Settings

LIMITS: Gaps = {
    "head": "a job that qd hands back goes to the end of its queue",
    "delay": "the delay of a new job is rounded up to whole seconds; delays of retries and keyed jobs are exact",
    "find": "a job that waits in beanstalkd cannot be found or cancelled by its id; one that is running, has failed, has a "
    "key or waits for its next attempt can",
    "memory": "beanstalkd stores jobs only; locks, failed jobs, pauses and batches are on the control connection",
}
COUNTS = re.compile(rb"^(?:ttr|reserves|timeouts|releases|buries): (\d+)", re.M)  # of stats-job, in its order
CLOSING = 0.3  # seconds in which beanstalkd detects that a connection has ended
MAX_DELAY = 2.0**32 - 1  # seconds
MANY, MUCH = 100, 1 << 16  # jobs, and bytes, that are put before the first answer is read
TOUCHES = 6  # checks in the time to run of a job; one that was not touched since the last check is touched
SHORTEST = 0.1  # seconds between two checks, at least
PATIENCE = 1.0  # seconds to connect, and for each answer: a start does not wait for a server that hangs


class Touched(NamedTuple):
    """A job, the `life` of the connection that has reserved it, and its time to run in seconds."""

    job: int
    life: int
    seconds: float


class Beanstalkd:
    limits = LIMITS
    max_delay = MAX_DELAY
    counts_ended = True
    slow = False

    def __init__(self, url: str, retry_after: float) -> None:
        self.connection = BeanstalkdConnection(url)
        self.ttr = max(1, math.ceil(retry_after))
        self._lock = threading.RLock()  # the toucher uses the connection too
        self._toucher = Toucher(self._touch)
        self._deletes = Deletes(self.connection)
        self._reserved = dict[str, Touched]()  # by id, of
        self._reserved_life = 0  # the connection with this `life`

    @contextmanager
    def _client(self) -> Iterator[Client]:
        with self._lock, self.connection as client:
            self._deletes.settle()
            yield client

    def check(self, queue: str) -> None:
        if why := refused_name(queue):
            raise ServerRefused(why)

    # -- sending

    def send(self, queue: str, jobs: Sequence[tuple[bytes, float]]) -> list[QdError | None]:
        errors, priority = list[QdError | None](), self.connection.target.priority
        for some in chunked_by_size(jobs, lambda job: len(job[0]), MANY, MUCH):
            puts = [(priority, math.ceil(delay), self.ttr, len(payload), payload) for payload, delay in some]
            try:
                with self._client() as client:
                    self.connection.use(client, queue)
                    self.connection.write(b"".join([b"put %d %d %d %d\r\n%b\r\n" % put for put in puts]))
                    for _ in some:
                        errors.append(self.connection.inserted())
                error = errors[-1]
            except QdError as broken:
                error = broken
            if error is not None and not isinstance(error, TooLarge):
                return [*errors, *[error] * (len(jobs) - len(errors))]
        return errors

    # -- reserving

    def reserve(self, queues: Sequence[str], seconds: float, wake: int = -1) -> Delivery | None:
        if seconds:
            with self._client() as client:
                self.connection.watch(client, tuple(queues))
                job = self.connection.reserve(seconds, wake)
                return self._delivery(client, job, queues[0] if len(queues) == 1 else "") if job else None
        with self._lock, self.connection as client:
            for queue in queues:
                job = self._first_of(client, queue, queues)
                if job is not None:
                    return self._delivery(client, job, queue)
        return None

    def _first_of(self, client: Client, queue: str, queues: Sequence[str]) -> ReservedJob | None:
        """Watch only this queue: of several watched tubes beanstalkd would deliver the job that was put first."""
        if self.connection.watched != (queue,):
            self._deletes.settle()
            if len(queues) > 1 and not self._ready(client, queue):
                return None
            self.connection.watch(client, (queue,))
        self._deletes.send(b"reserve-with-timeout 0\r\n")
        self._deletes.read()
        job = self.connection.reserved()
        self._deletes.check_not_found()
        return job

    def _ready(self, client: Client, queue: str) -> int:
        try:
            return client.stats_tube(queue)["current-jobs-ready"]
        except greenstalk.NotFoundError:
            return 0

    def _delivery(self, client: Client, job: ReservedJob, queue: str) -> Delivery:
        (number, body), life = job, self.connection.life
        attempts, crashes, ttr = 0, 0, self.ttr
        if not queue or b'"attempts"' not in body:
            text = self.connection.stats_of(number)
            ttr, reserves, timeouts, releases, buries = (int(each) for each in COUNTS.findall(text))
            queue = queue or str(client.stats_job(number)["tube"])
            attempts, crashes = releases + timeouts, max(0, reserves - 1 - releases - timeouts - buries)
        if self._reserved_life != life:
            self._reserved.clear()  # a broken connection had reserved them
            self._reserved_life = life
        id = id_of(number, body)
        self._reserved[id] = Touched(number, life, float(ttr))
        return Delivery(queue, id, str(number), body, attempts, crashes)

    def keep_reserved(self, delivery: Delivery | None) -> None:
        """Only a worker's connection, whose progress is watched, needs this."""
        watched = delivery is not None and self.connection.about is not None
        self._toucher.keep(self._reserved_job(delivery.id) if watched and delivery is not None else None)

    def extend(self, delivery: Delivery) -> bool:
        held = self._reserved_job(delivery.id)
        with suppress(greenstalk.NotFoundError):
            return held is not None and self._touch(held)
        self._reserved.pop(delivery.id, None)
        return False

    def _reserved_job(self, id: str) -> Touched | None:
        """The job, if this connection has it reserved."""
        held = self._reserved.get(id)
        return held if held is not None and held.life == self.connection.life else None

    def _touch(self, held: Touched) -> bool:
        with self._lock:
            if held.life != self.connection.life:
                return False
            with self._client() as client:
                client.touch(greenstalk.Job(held.job, b""))
            return True

    # -- answers

    def delete(self, queue: str, id: str, handle: str, *, soon: bool = False) -> None:
        """If this connection has not reserved the job, check first that the number still means it."""
        with self._lock:
            ours = self._reserved_job(id)
            self._reserved.pop(id, None)
            if ours is None:
                if not self.exists(queue, id) or self._delete(int(handle)):
                    self._deletes.gone.append((queue, id))
                return
            self._deletes.add(queue, id, ours)
            if not soon:
                with self.connection:
                    self._deletes.send()

    def _delete(self, number: int) -> bool:
        """Returns False if a worker has it reserved, which will notice. If that worker was just killed, beanstalkd makes the
        job ready as soon as it detects that the connection has ended, so try for CLOSING seconds."""
        until = time.monotonic() + CLOSING
        with self._client() as client:
            while True:
                with suppress(greenstalk.NotFoundError):
                    client.delete(number)
                    return True
                try:
                    client.stats_job(number)
                except greenstalk.NotFoundError:
                    return True
                if time.monotonic() > until:
                    return False
                time.sleep(0.01)

    def deleted(self, wait: bool = False) -> list[tuple[str, str]]:
        if wait and self._deletes.pending:
            with self._client():
                pass
        found, self._deletes.gone = self._deletes.gone, []
        return found

    def release(self, delivery: Delivery, delay: float) -> None:
        held = self._reserved_job(delivery.id)
        self._reserved.pop(delivery.id, None)
        if held is None:
            return
        with self._client() as client, suppress(greenstalk.NotFoundError):
            priority = client.stats_job(int(delivery.handle))["pri"]
            client.release(greenstalk.Job(int(delivery.handle), b""), priority, math.ceil(delay))

    def renew(self, held: Sequence[tuple[str, str, str]]) -> None:
        """Only the connection that has reserved a job can touch it."""

    def exists(self, queue: str, id: str) -> bool | None:
        with self._client() as client, suppress(greenstalk.NotFoundError):
            job = client.peek(number_of(id))
            return id_of(job.id, job.body) == id
        return False

    # -- looking

    def counts(self, queue: str) -> QueueCounts:
        found = QueueCounts(0, 0, 0)
        if refused_name(queue):
            return found
        with self._client() as client, suppress(greenstalk.NotFoundError):
            stats = client.stats_tube(queue)
            found = QueueCounts(
                stats["current-jobs-ready"], stats["current-jobs-delayed"], stats["current-jobs-reserved"]
            )
            if found.ready:
                self.connection.use(client, queue)
                return found._replace(oldest=float(client.stats_job(client.peek_ready())["age"]))
        return found

    def queues(self) -> Sequence[str]:
        with self._client() as client:
            return tuple(client.tubes())

    def clear(self, queue: str, forget: Callable[[bytes], None]) -> int:
        counts, count = self.counts(queue), 0
        for peek in [Client.peek_ready] * counts.ready + [Client.peek_delayed] * counts.delayed:
            with self._client() as client, suppress(greenstalk.NotFoundError):
                self.connection.use(client, queue)
                job = peek(client)
                client.delete(job)
                forget(job.body)
                count += 1
        return count

    def close(self) -> None:
        self._toucher.keep(None)
        with self._lock:
            self.connection.close()


class Deletes:
    """Deletes of jobs that a connection has reserved. gone: (queue, id) of jobs that are certainly deleted."""

    def __init__(self, connection: BeanstalkdConnection) -> None:
        self.connection = connection
        self.gone = list[tuple[str, str]]()
        self._unsent = list[tuple[Touched, tuple[str, str]]]()
        self._begun = list[tuple[Touched, tuple[str, str]]]()
        self._not_found = list[tuple[str, str]]()

    def add(self, queue: str, id: str, held: Touched) -> None:
        """The next `send` sends it."""
        self._unsent.append((held, (queue, id)))

    def send(self, command: bytes = b"") -> None:
        """Write the added deletes and then `command` in one piece. If the connection broke meanwhile, the new one has
        reserved none of these jobs: a keeper checks them."""
        if self._unsent:
            ours = [each for each in self._unsent if each[0].life == self.connection.life]
            self._unsent.clear()
            self._begun += ours
            command = b"".join([b"delete %d\r\n" % held.job for held, _ in ours]) + command
        if command:
            self.connection.write(command)

    @property
    def pending(self) -> bool:
        return bool(self._unsent or self._begun or self._not_found)

    def read(self) -> None:
        """Read the answers, which come before any other. After a break none come: a keeper checks the jobs."""
        if not self._begun:
            return
        begun, self._begun = self._begun, []
        for held, job in begun:
            if held.life == self.connection.life:
                (self.gone if self.connection.line() == b"DELETED" else self._not_found).append(job)

    def check_not_found(self) -> None:
        """A job that could not be deleted is gone, or another worker has it reserved and will notice."""
        if not self._not_found:
            return
        jobs, self._not_found = self._not_found, []
        for queue, id in jobs:
            try:
                self.connection.stats_of(number_of(id))
            except greenstalk.NotFoundError:
                self.gone.append((queue, id))

    def settle(self) -> None:
        self.send()
        self.read()
        self.check_not_found()


class Toucher:
    """Keeps one job reserved. touch: returns False or raises if there is nothing to keep any more."""

    def __init__(self, touch: Callable[[Touched], bool]) -> None:
        self._touch = touch
        self._job: Touched | None = None
        self._touched_at = 0.0
        self._shortest = 0.0  # the shortest time to run that was seen, in seconds: how often the thread checks
        self._wake = threading.Condition(threading.Lock())
        self._pid = 0

    def keep(self, job: Touched | None) -> None:
        self._touched_at, self._job = time.monotonic(), job
        if job is None:
            return
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._shortest = job.seconds
            self._wake = threading.Condition(threading.Lock())
            threading.Thread(target=self._run, name="qd-touch", daemon=True).start()
        elif job.seconds < self._shortest:
            with self._wake:
                self._shortest = job.seconds
                self._wake.notify()

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())  # leave all signals to the main thread
        while True:
            with self._wake:
                self._wake.wait(max(SHORTEST, self._shortest / TOUCHES))
            job, touched_at = self._job, self._touched_at
            if job is None or time.monotonic() - touched_at < job.seconds / TOUCHES:
                continue
            try:
                kept = self._touch(job)
            except Exception:
                kept = False
            if self._job is job:
                if kept:
                    self._touched_at = time.monotonic()
                else:
                    self._job = None


def id_of(number: int, body: bytes) -> str:
    return f"{number}.{blake2b(body, digest_size=8).hexdigest()}"


def number_of(id: str) -> int:
    """The server's number of the job."""
    return int(id.partition(".")[0])


# -- how a connection is opened, and what is checked about its tubes at the start


def open_queue(settings: Settings, at: ConnectionSettings, who: ClientIdentity) -> BrokerQueue:
    try:
        backend = Beanstalkd(at.url or "", at.retry_after)
    except ConfigError as error:
        raise ConfigError(f"url of connection '{at.name}' ({at.url_origin}): {error}") from None
    return BrokerQueue(settings, at, who, backend)


def start_warnings(at: ConnectionSettings, queues: Sequence[str], tries: int) -> list[str]:
    """Warnings about the server and these tubes. None if the server is unreachable: workers wait for it later."""
    connection = BeanstalkdConnection(at.url or "")
    connection.patience(PATIENCE, PATIENCE)
    try:
        with connection as client:
            warnings = [buried(client, connection.target, queue) for queue in queues if not refused_name(queue)]
            if not client.stats()["binlog-current-index"]:
                lost = "jobs are lost when it stops; start it with -b and a folder"
                warnings.insert(0, f"beanstalkd at {connection.place} has no binlog: {lost}")
            return [warning for warning in warnings if warning]
    except (ConnectionLost, ServerRefused):
        return []
    finally:
        connection.close()


def buried(client: Client, server: BeanstalkdUrl, queue: str) -> str:
    """A warning about jobs that another program has buried in this tube, or ""."""
    with suppress(greenstalk.NotFoundError):
        if count := client.stats_tube(queue)["current-jobs-buried"]:
            what = "a job" if count == 1 else f"{count} jobs"
            way = f"type `use {queue}` and `kick {count}` into `nc -C {server.host} {server.port}`"
            return f"tube '{queue}' has {what} that another program has buried: no worker runs it before a kick ({way})"
    return ""
