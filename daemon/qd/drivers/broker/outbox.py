"""The outbox: what the steps of the borrowed keyspace have pushed (the next of a chain, callbacks, keyed and unique jobs,
ticks, what is tried again), on its way to the server that keeps the jobs.

    queues:Q, queues:Q:delayed   in the borrowed keyspace: where every step pushes
    outbox.lua                   what is due, in order -> queues:Q:qd-sending; one sender at a time
    backend.send                 then the next outbox.lua takes away what was sent

What a sender leaves that did not come back (it died, or its connection broke) may have been sent: it is sent again, and
noted in queues:Q:qd-resent, so that the worker that is given the second one drops it. What the server will never take goes
to the failed store.

Batches and ticks where their jobs go through an outbox: counted and claimed as everywhere, then sent on.

Who sends an outbox, so named that others on its host can tell that it is dead.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from typing import NamedTuple

from qd.drivers.broker.base import Broker
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import Arg, Keyspace, script
from qd.drivers.keyspace.records import KeptBatches, KeptTicks
from qd.drivers.keyspace.sending import spoken
from qd.drivers.types import Answers, Claim, Claimed, Effect, Entry, NewBatch, Push, ends
from qd.errors import ConnectionLost, Malformed, NeverTaken, QdError, ServerBusy, ServerRefused
from qd.payload.format import read
from qd.process import proc

FEW, MOST, MUCH = 10, 100, 1 << 20  # jobs that are sent at a time: at first and at least, at most; and bytes
QUICK, SLOW = 0.2, 1.0  # seconds for as many: then more at a time, or fewer
BUDGET = 0.5  # seconds that whoever sends gives to it at a time: a keeper's beats go on, and a caller has his answer
OUT = (keys.ready, keys.delayed, keys.notify, keys.keyed, keys.sending, keys.sender, keys.paused, keys.resent)
RESENT = 86400  # seconds for which a second one may still turn up
WAITING = (keys.ready, keys.delayed, keys.sending)


class Sent(NamedTuple):
    """jobs: how many were. more: there are others, and the time was over."""

    jobs: int
    more: bool


class Outbox:
    def __init__(self, space: Keyspace, prefix: str, backend: Broker) -> None:
        self.space, self.prefix, self.backend = space, prefix, backend
        self._pid, self._who, self._noted = 0, "", set[str]()
        self._slice, self._first = FEW, ""

    def note(self, queues: Iterable[str]) -> None:
        """Before something is pushed for them: so that keepers know where to look, of queues that nobody here works on."""
        fresh = [queue for queue in dict.fromkeys(queues) if queue not in self._noted]
        if fresh:
            self.space.call("HSET", self.prefix + keys.OUTBOX, *[word for queue in fresh for word in (queue, 1)])
            self._noted.update(fresh)

    def known(self) -> list[str]:
        """Every queue that was noted."""
        return [raw.decode("utf-8", "surrogateescape") for raw in self.space.call("HKEYS", self.prefix + keys.OUTBOX)]

    def waiting(self, queues: Sequence[str]) -> list[str]:
        """Those of them that have something to send. One call."""
        if not queues:
            return []
        names = [self.prefix + kind(queue) for queue in queues for kind in WAITING]
        return [queues[int(place) - 1] for place in script("outbox_waiting").call(self.space, names)]

    def forward(self, queue: str, until: float | None = None) -> Sent:
        """Send what is due, unless another is at it, until that moment (monotonic; None: for BUDGET seconds). Raises as the
        server, and as the space."""
        names, jobs = [self.prefix + kind(queue) for kind in OUT], 0
        until = time.monotonic() + BUDGET if until is None else until
        done: Sequence[bytes] = ()
        while payloads := self._next(names, done):
            began = time.monotonic()
            said = self.backend.send(queue, [(payload, 0.0) for payload in payloads])
            done, error = self._settled(queue, payloads, said)
            jobs += len(done)
            if error is not None:
                self._leave(names, done)
                raise error
            self._slice = next_slice(self._slice, time.monotonic() - began)
            if time.monotonic() > until:
                self._leave(names, done)
                return Sent(jobs, more=True)
        return Sent(jobs, more=False)

    def forward_all(self, queues: Sequence[str], refused: Callable[[str, QdError], None]) -> bool:
        """Also what one has left that was sending it and died. For BUDGET seconds; the queue that is left then is the first
        one the next time. refused: told of queues that the server does not have, or takes nothing for now; they hold up
        no other. Returns whether there is more."""
        until, waiting = time.monotonic() + BUDGET, self.waiting(queues)
        first = waiting.index(self._first) if self._first in waiting else 0
        for queue in waiting[first:] + waiting[:first]:
            self._first = queue
            try:
                sent = self.forward(queue, until)
                if not sent.jobs and not sent.more and self._left_by_the_dead(queue):
                    self.forward(queue, until)
            except (ServerRefused, ServerBusy) as error:
                refused(queue, error)
            if time.monotonic() > until:
                return True
        return False

    def _left_by_the_dead(self, queue: str) -> bool:
        names = [self.prefix + kind(queue) for kind in (keys.sending, keys.sender, keys.resent)]
        sender = self.space.call("GET", names[1]) or b""
        return is_dead(sender.decode("utf-8", "replace")) and bool(
            script("outbox_leave").call(self.space, names, sender, 0)
        )

    def try_to_forward(self, queues: Iterable[str]) -> None:
        """At once, where that can be had: they are kept, and a keeper looks at them within a second or so."""
        until = time.monotonic() + BUDGET
        with suppress(ConnectionLost):
            for queue in queues:
                with suppress(ServerRefused):
                    self.forward(queue, until)
                if time.monotonic() > until:
                    return

    def _next(self, names: Sequence[str], done: Sequence[bytes]) -> list[bytes]:
        """What is to be sent. done: of what this gave last, those that were sent."""
        if self._pid != os.getpid():  # a copy that was forked is another sender
            self._pid, self._who = os.getpid(), own_name()
        ms = round(2000 * (1 + self.backend.timeout))
        args: list[Arg] = [
            self._who,
            ms,
            len(done),
            self._slice,
            MUCH,
            self.prefix + keys.unique(""),
            *map(digest, done),
        ]
        left, *payloads = script("outbox").call(self.space, names, *args)
        found: list[bytes] = payloads
        if left and found:
            self._note_resent(names[7], found)
        return found

    def _note_resent(self, name: str, payloads: Sequence[bytes]) -> None:
        counts = Counter(map(digest, payloads))
        notes: list[tuple[Arg, ...]] = [("HSET", name, each, count) for each, count in counts.items()]
        for reply in self.space.call_many([*notes, ("EXPIRE", name, RESENT)]):
            if isinstance(reply, Exception):
                raise reply

    def _settled(
        self, queue: str, payloads: Sequence[bytes], said: Sequence[QdError | None]
    ) -> tuple[list[bytes], QdError | None]:
        """Those that were sent, from the first on, and why the one behind them was not. What never will be is failed."""
        done = list[bytes]()
        for payload, error in zip(payloads, said, strict=True):
            if isinstance(error, NeverTaken):
                self._fail(queue, payload, error)
            elif error is not None:
                return done, error
            else:
                done.append(payload)
        return done, None

    def _leave(self, names: Sequence[str], done: Sequence[bytes]) -> None:
        own = (names[4], names[5], names[7])
        script("outbox_leave").call(self.space, own, self._who, len(done), *map(digest, done))

    def _fail(self, queue: str, payload: bytes, error: QdError) -> None:
        """As a job that fails: a record, and its end for its lock, its chain, its batch. Then it is taken out of what is
        being sent; whoever is killed in between leaves it to the next sender, who does the same."""
        id, kind = f"outbox.{digest(payload)}", type(error).__name__
        record = {"id": id, "queue": queue, "error": kind, "reason": str(error), "failed_at": round(time.time(), 3)}
        effects: Sequence[Effect] = ()
        with suppress(Malformed):
            known = read(payload)
            record |= {"uuid": known.uuid, "job": known.job, "attempts": known.attempts, "crashes": known.crashes}
            value = json.dumps({"error": kind, "message": str(error)}).encode()
            effects = ends(known, "failed", f"{queue} {id}", value)
        self.note([effect.queue for effect in effects if isinstance(effect, Push)])
        names = [self.prefix + keys.failed(queue), self.prefix + keys.failed_at(queue)]
        script("adopt").call(self.space, names, id, json.dumps(record).encode(), payload)
        more, words = spoken(effects, self.prefix)
        own = (keys.sending(queue), keys.notify(queue), keys.keyed(queue), *more)
        script("drop").call(self.space, [self.prefix + name for name in own], "ready", payload, "", "", 0, *words)


def next_slice(jobs: int, took: float) -> int:
    """How many to send at a time, when so many have taken so many seconds: long before another takes the sender for dead."""
    return min(MOST, jobs * 2) if took < QUICK else max(FEW, jobs // 2) if took > SLOW else jobs


def digest(payload: bytes) -> str:
    """No two payloads of different jobs have the same."""
    return blake2b(payload, digest_size=12).hexdigest()


class PushedBatches(KeptBatches):
    def __init__(self, outbox: Outbox) -> None:
        super().__init__(outbox.space, outbox.prefix)
        self._outbox = outbox

    def send(self, batch: NewBatch, jobs: Sequence[Entry]) -> None:
        self._outbox.note([*queues_of(jobs), *[callback.queue for callback in batch.callbacks.values()]])
        super().send(batch, jobs)
        self._outbox.try_to_forward(queues_of(jobs))

    def add(self, id: str, jobs: Sequence[Entry]) -> None:
        self._outbox.note(queues_of(jobs))
        super().add(id, jobs)
        self._outbox.try_to_forward(queues_of(jobs))


class PushedTicks(KeptTicks):
    def __init__(self, outbox: Outbox) -> None:
        super().__init__(outbox.space, outbox.prefix)
        self._outbox = outbox

    def begin(self, claims: Sequence[Claim]) -> Answers:
        queues = list(dict.fromkeys([claim.queue for claim in claims if claim.queue]))
        self._outbox.note(queues)
        return partial(self._forwarded, queues, super().begin(claims))

    def _forwarded(self, queues: Sequence[str], answers: Answers) -> list[Claimed]:
        taken = answers()
        self._outbox.try_to_forward(queues)
        return taken


def queues_of(jobs: Sequence[Entry]) -> list[str]:
    return list(dict.fromkeys([job.queue for job in jobs]))


def own_name() -> str:
    """HOST BOOT NAMESPACE PID START RANDOM, with slashes between."""
    pid = os.getpid()
    parts = (here(), str(pid), str(proc.start_time(pid) or ""), secrets.token_hex(6))
    return "/".join(parts)


def here() -> str:
    return "/".join((socket.gethostname().replace("/", "_"), proc.boot_id(), proc.pid_namespace()))


def is_dead(name: str) -> bool:
    """For certain: of this host, boot and pid namespace, and not there any more."""
    place, pid, start, _ = name.rsplit("/", 3) if name.count("/") >= 3 else ("", "", "", "")
    if place != here() or not (pid.isdecimal() and start.isdecimal()):
        return False
    return proc.alive(int(pid), int(start)) is False
