"""Keeps the job in hand reserved: a thread of the worker that touches it, since only the connection that has reserved a job
may do so. There from the first job on.

Code that holds the GIL for longer than the time to run holds this thread up, too: then beanstalkd hands the job out once
more. Who is given it, of qd's workers, sees whose it is, and puts it back.

A beanstalkd as a backend of borrowed/queue.py.

tube     a queue
body     a payload
put      priority 1024 unless the url says another, delay in whole seconds rounded up, TTR = retry_after
id       the server's number of the job and a digest of its body: one that was started anew without its binlog begins to
         count anew, and no job may be taken for another

Deletes whose answers nobody waits for: they are read in front of the next one that is waited for.
"""

from __future__ import annotations

import math
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from hashlib import blake2b
from typing import NamedTuple

import greenstalk

from qd.drivers.beanstalkd.client import BeanstalkdConnection, Client, Handed
from qd.drivers.broker.base import Delivery, Standing
from qd.drivers.types import Gaps
from qd.drivers.urls import refused_name
from qd.errors import QdError, ServerRefused, TooLarge

PART = 3  # of the time to run: how often it is touched in that
LEAST = 0.1  # seconds between two looks, at least


class Touched(NamedTuple):
    """A job, which connection has reserved it, and seconds after which it is not any more if nobody touches it."""

    job: int
    life: int
    seconds: float


class Toucher:
    def __init__(self, touch: Callable[[Touched], bool]) -> None:
        """touch: False, or an error: there is nothing to keep any more."""
        self._touch = touch
        self._held: Touched | None = None
        self._since = 0.0
        self._longest = 0.0  # the shortest time to run that was seen: how often there is something to look at
        self._wake = threading.Condition(threading.Lock())
        self._pid = 0

    def hold(self, held: Touched | None) -> None:
        self._since, self._held = time.monotonic(), held
        if held is None:
            return
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._longest = held.seconds
            self._wake = threading.Condition(threading.Lock())
            threading.Thread(target=self._run, name="qd-touch", daemon=True).start()
        elif held.seconds < self._longest:
            with self._wake:
                self._longest = held.seconds
                self._wake.notify()

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())  # they are the main thread's
        while True:
            with self._wake:
                self._wake.wait(max(LEAST, self._longest / PART / 2))
            held, since = self._held, self._since
            if held is not None and time.monotonic() - since >= held.seconds / PART / 2:
                self._keep(held)

    def _keep(self, held: Touched) -> None:
        try:
            kept = self._touch(held)
        except Exception:
            kept = False
        if self._held is held:
            if kept:
                self._since = time.monotonic()
            else:
                self._held = None


LIMITS: Gaps = {
    "head": "a job that is handed back goes to the end of its queue",
    "delay": "in whole seconds, rounded up, where a job is dispatched with one; exact for what is retried or has a key",
    "find": "a job that waits in beanstalkd is not found by its id, and not cancelled: only one that runs or has failed, or "
    "waits with a key or for its next attempt",
    "memory": "beanstalkd keeps jobs alone: locks, failed jobs, pauses and batches stand in the control connection",
}
Peek = Callable[[Client], "greenstalk.Job[bytes]"]
COUNTS = re.compile(rb"^(?:ttr|reserves|timeouts|releases|buries): (\d+)", re.M)  # of stats-job, in its order
CLOSING = 0.3  # seconds in which beanstalkd sees that a connection has ended
LONGEST = 2.0**32 - 1  # seconds a job may be delayed
MANY, MUCH = 100, 1 << 16  # jobs, and bytes, that are put before the first answer is read


class Beanstalkd:
    limits = LIMITS
    longest = LONGEST
    counts_ended = True
    slow = False

    def __init__(self, url: str, retry_after: float) -> None:
        self.wire = BeanstalkdConnection(url)
        self.ttr = max(1, math.ceil(retry_after))
        self._lock = threading.RLock()  # the connection is the toucher's, too
        self._toucher = Toucher(self._touch)
        self._deletes = Deletes(self.wire)
        self._mine = dict[str, Touched]()  # what is reserved, by its id,
        self._mine_of = 0  # by the connection of this life

    @property
    def timeout(self) -> float:
        return self.wire.timeout

    @property
    def place(self) -> str:
        return self.wire.place

    def patience(self, connect: float, answer: float) -> None:
        self.wire.patience(connect, answer)

    def on_progress(self, call: Callable[[float], None]) -> None:
        self.wire.on_progress(call)

    @contextmanager
    def _talk(self) -> Iterator[Client]:
        with self._lock, self.wire.said() as client:
            self._deletes.settle()
            yield client

    def check(self, queue: str) -> None:
        if why := refused_name(queue):
            raise ServerRefused(why)

    # -- sending

    def send(self, queue: str, jobs: Sequence[tuple[bytes, float]]) -> list[QdError | None]:
        said = list[QdError | None]()
        while len(said) < len(jobs):
            try:
                with self._talk() as client:
                    self.wire.use(client, queue)
                    for _ in range(self._put_some(jobs[len(said) :])):
                        said.append(self.wire.inserted())
                error = said[-1]
            except QdError as broken:
                error = broken
            if error is not None and not isinstance(error, TooLarge):
                return [*said, *[error] * (len(jobs) - len(said))]
        return said

    def _put_some(self, jobs: Sequence[tuple[bytes, float]]) -> int:
        """Write the first of them in one piece, the answers unread. Returns how many."""
        puts, size = list[bytes](), 0
        for payload, delay in jobs[:MANY]:
            numbers = self.wire.target.priority, math.ceil(delay), self.ttr, len(payload)
            puts.append(b"put %d %d %d %d\r\n%b\r\n" % (*numbers, payload))
            size += len(payload)
            if size > MUCH:
                break
        self.wire.write(b"".join(puts))
        return len(puts)

    # -- reserving

    def take(self, queues: Sequence[str], seconds: float, wake: int = -1) -> Delivery | None:
        if seconds:
            with self._talk() as client:
                self.wire.watch(client, tuple(queues))
                job = self.wire.reserve(client, seconds, wake)
                return self._parcel(client, job, queues[0] if len(queues) == 1 else "") if job else None
        with self._lock, self.wire.said() as client:
            for queue in queues:
                job = self._first_of(client, queue, queues)
                if job is not None:
                    return self._parcel(client, job, queue)
        return None

    def _first_of(self, client: Client, queue: str, queues: Sequence[str]) -> Handed | None:
        """Of several queues only one that has a job is watched: else beanstalkd would give what was put first, of any."""
        if self.wire.watched != (queue,):
            self._deletes.settle()
            if len(queues) > 1 and not self._ready(client, queue):
                return None
            self.wire.watch(client, (queue,))
        self._deletes.send(b"reserve-with-timeout 0\r\n")
        self._deletes.read()
        job = self.wire.reserved()
        self._deletes.look_at_doubtful()
        return job

    def _ready(self, client: Client, queue: str) -> int:
        try:
            return client.stats_tube(queue)["current-jobs-ready"]
        except greenstalk.NotFoundError:
            return 0

    def _parcel(self, client: Client, job: Handed, queue: str) -> Delivery:
        (number, body), life = job, self.wire.life
        attempts, crashes, ttr = 0, 0, self.ttr
        if not queue or b'"attempts"' not in body:
            text = self.wire.stats_of(number)
            ttr, reserves, timeouts, releases, buries = (int(each) for each in COUNTS.findall(text))
            queue = queue or str(client.stats_job(number)["tube"])
            attempts, crashes = releases + timeouts, max(0, reserves - 1 - releases - timeouts - buries)
        if self._mine_of != life:
            self._mine.clear()  # they were reserved by a connection that broke
            self._mine_of = life
        id = id_of(number, body)
        self._mine[id] = Touched(number, life, float(ttr))
        return Delivery(queue, id, str(number), body, attempts, crashes)

    def hold(self, parcel: Delivery | None) -> None:
        """Only of a connection that somebody watches: a worker's."""
        watched = parcel is not None and self.wire.about is not None
        self._toucher.hold(self._reserved(parcel.id) if watched and parcel is not None else None)

    def kept(self, parcel: Delivery) -> bool:
        held = self._reserved(parcel.id)
        with suppress(greenstalk.NotFoundError):
            return held is not None and self._touch(held)
        self._mine.pop(parcel.id, None)
        return False

    def _reserved(self, id: str) -> Touched | None:
        """What this very connection has reserved under this id."""
        held = self._mine.get(id)
        return held if held is not None and held.life == self.wire.life else None

    def _touch(self, held: Touched) -> bool:
        with self._lock:
            if held.life != self.wire.life:
                return False
            with self._talk() as client:
                client.touch(greenstalk.Job(held.job, b""))
            return True

    # -- answers

    def drop(self, queue: str, id: str, handle: str, *, soon: bool = False) -> None:
        """What this connection has reserved is deleted by its number; else it is looked at first, whether it is the one."""
        with self._lock:
            ours = self._reserved(id)
            self._mine.pop(id, None)
            if ours is None:
                if not self.there(queue, id) or self._deleted(int(handle)):
                    self._deletes.gone.append((queue, id))
                return
            self._deletes.add(queue, id, ours)
            if not soon:
                with self.wire.said():
                    self._deletes.send()

    def _deleted(self, number: int) -> bool:
        """False: somebody has it reserved, who will find out. The connection of a worker that was just killed is gone in a
        moment: beanstalkd has to see it first, and would then have the job ready again."""
        until = time.monotonic() + CLOSING
        with self._talk() as client:
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

    def gone(self, wait: bool = False) -> list[tuple[str, str]]:
        if wait and self._deletes.pending:
            with self._talk():
                pass
        found, self._deletes.gone = self._deletes.gone, []
        return found

    def put_back(self, parcel: Delivery, delay: float) -> None:
        held = self._reserved(parcel.id)
        self._mine.pop(parcel.id, None)
        if held is None:
            return
        with self._talk() as client, suppress(greenstalk.NotFoundError):
            priority = client.stats_job(int(parcel.handle))["pri"]
            client.release(greenstalk.Job(int(parcel.handle), b""), priority, math.ceil(delay))

    def renewed(self, held: Sequence[tuple[str, str, str]]) -> None:
        """Nobody but who has reserved a job may keep it so."""

    def there(self, queue: str, id: str) -> bool | None:
        with self._talk() as client:
            try:
                job = client.peek(number_of(id))
                return id_of(job.id, job.body) == id
            except greenstalk.NotFoundError:
                return False

    # -- looking

    def standing(self, queue: str) -> Standing:
        if refused_name(queue):
            return Standing(0, 0, 0, None)
        with self._talk() as client:
            try:
                stats = client.stats_tube(queue)
            except greenstalk.NotFoundError:
                return Standing(0, 0, 0, None)
            ready = stats["current-jobs-ready"]
            oldest = self._oldest(client, queue) if ready else None
            return Standing(ready, stats["current-jobs-delayed"], stats["current-jobs-reserved"], oldest)

    def queues(self) -> Sequence[str]:
        with self._talk() as client:
            return tuple(client.tubes())

    def _oldest(self, client: Client, queue: str) -> float | None:
        try:
            self.wire.use(client, queue)
            return float(client.stats_job(client.peek_ready())["age"])
        except greenstalk.NotFoundError:
            return None

    def clear(self, queue: str, forget: Callable[[bytes], None]) -> int:
        there, peeks = self.standing(queue), (Client.peek_ready, Client.peek_delayed)
        counts = zip(peeks, (there.ready, there.delayed), strict=True)
        return sum(self._delete_next(queue, peek, forget) for peek, most in counts for _ in range(most))

    def _delete_next(self, queue: str, peek: Peek, forget: Callable[[bytes], None]) -> int:
        with self._talk() as client, suppress(greenstalk.NotFoundError):
            self.wire.use(client, queue)
            job = peek(client)
            client.delete(job)
            forget(job.body)
            return 1
        return 0

    def within(self, seconds: float) -> AbstractContextManager[None]:
        return self.wire.within(seconds)

    def close(self) -> None:
        self._toucher.hold(None)
        with self._lock:
            self.wire.close()


def id_of(number: int, body: bytes) -> str:
    return f"{number}.{blake2b(body, digest_size=8).hexdigest()}"


class Deletes:
    """What a connection has reserved. gone: (queue, id) of what is deleted for certain."""

    def __init__(self, wire: BeanstalkdConnection) -> None:
        self.wire = wire
        self.gone = list[tuple[str, str]]()
        self._unsent = list[tuple[Touched, tuple[str, str]]]()
        self._begun = list[tuple[Touched, tuple[str, str]]]()
        self._doubtful = list[tuple[str, str]]()  # were not there to delete

    def add(self, queue: str, id: str, held: Touched) -> None:
        """It goes with the next `send`."""
        self._unsent.append((held, (queue, id)))

    def send(self, command: bytes = b"") -> None:
        """Write what was added, and a command behind it, in one piece. A connection that broke meanwhile has reserved none
        of them: a keeper looks after these."""
        if self._unsent:
            ours = [each for each in self._unsent if each[0].life == self.wire.life]
            self._unsent.clear()
            self._begun += ours
            command = b"".join([b"delete %d\r\n" % held.job for held, _ in ours]) + command
        if command:
            self.wire.write(command)

    @property
    def pending(self) -> bool:
        return bool(self._unsent or self._begun or self._doubtful)

    def read(self) -> None:
        """The answers, which come before any other. Those of a connection that broke do not: a keeper looks after these."""
        if not self._begun:
            return
        begun, self._begun = self._begun, []
        for held, its in begun:
            if held.life == self.wire.life:
                (self.gone if self.wire.line() == b"DELETED" else self._doubtful).append(its)

    def look_at_doubtful(self) -> None:
        """What was not there is somebody else's by now, who will find out, or is gone."""
        if not self._doubtful:
            return
        doubtful, self._doubtful = self._doubtful, []
        for queue, id in doubtful:
            try:
                self.wire.stats_of(number_of(id))
            except greenstalk.NotFoundError:
                self.gone.append((queue, id))

    def settle(self) -> None:
        self.send()
        self.read()
        self.look_at_doubtful()


def number_of(id: str) -> int:
    """The server's number of a job, of its id here."""
    return int(id.partition(".")[0])
