"""The outbox: jobs that steps of the borrowed keyspace have pushed (the next of a chain, callbacks, keyed and unique jobs,
ticks, retries), on their way to the broker.

    queues:Q, queues:Q:delayed   in the borrowed keyspace: where every step pushes
    outbox.lua                   due jobs, in order -> queues:Q:qd-sending; one sender at a time
    backend.send                 then the next outbox.lua removes what was sent

A sender that died, or whose connection broke, may have sent what it leaves. Those jobs are sent again and noted in
queues:Q:qd-resent, so that the worker that is given the second copy deletes it. Jobs that the broker will never accept go to
the failed store.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b

from qd.drivers.broker.base import Broker
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import Arg, Keyspace, checked, script
from qd.drivers.keyspace.records import KeptBatches, KeptTicks
from qd.drivers.keyspace.sending import effect_args
from qd.drivers.types import Answers, Claim, Claimed, Effect, Entry, NewBatch, Push, ends
from qd.errors import ConnectionLost, Malformed, NeverTaken, QdError, ServerBusy, ServerRefused
from qd.payload.format import read

FEW, MOST, MUCH = 10, 100, 1 << 20  # jobs sent at a time: at first and at least, at most; and bytes
QUICK, SLOW = 0.2, 1.0  # seconds for one slice: a quicker one is doubled, a slower one halved
BUDGET = 0.5  # seconds a sender spends at a time, so that a keeper's beats continue and a caller returns
OUT = (keys.ready, keys.delayed, keys.notify, keys.keyed, keys.sending, keys.sender, keys.paused, keys.resent)
RESENT = 86400  # seconds for which a second copy may still be delivered
WAITING = (keys.ready, keys.delayed, keys.sending)


class Outbox:
    def __init__(self, space: Keyspace, prefix: str, backend: Broker) -> None:
        self.space, self.prefix, self.backend = space, prefix, backend
        self._pid, self._sender, self._noted = 0, "", set[str]()
        self._slice, self._first = FEW, ""

    def note(self, queues: Iterable[str]) -> None:
        """Called before a push to these queues, so that keepers find them even if no worker here consumes them."""
        fresh = [queue for queue in dict.fromkeys(queues) if queue not in self._noted]
        if fresh:
            self.space.call("HSET", self.prefix + keys.OUTBOX, *[word for queue in fresh for word in (queue, 1)])
            self._noted.update(fresh)

    def known(self) -> list[str]:
        return [raw.decode("utf-8", "surrogateescape") for raw in self.space.call("HKEYS", self.prefix + keys.OUTBOX)]

    def waiting(self, queues: Sequence[str]) -> list[str]:
        """The queues that have something to send. One call."""
        if not queues:
            return []
        names = [self.prefix + kind(queue) for queue in queues for kind in WAITING]
        return [queues[int(place) - 1] for place in script("outbox_waiting").call(self.space, names)]

    def forward(self, queue: str, until: float | None = None) -> None:
        """Send what is due, unless another sender is active, until that monotonic time (None: BUDGET seconds from now).
        Raises the errors of the broker and of the keyspace."""
        names = [self.prefix + kind(queue) for kind in OUT]
        until = time.monotonic() + BUDGET if until is None else until
        done: Sequence[bytes] = ()
        while payloads := self._next(names, done):
            began = time.monotonic()
            errors = self.backend.send(queue, [(payload, 0.0) for payload in payloads])
            done, error = self._sent_of(queue, payloads, errors)
            if error is not None:
                self._leave(names, done)
                raise error
            self._slice = next_slice(self._slice, time.monotonic() - began)
            if time.monotonic() > until:
                return self._leave(names, done)

    def forward_all(self, queues: Sequence[str], refused: Callable[[str, QdError], object]) -> bool:
        """Send these outboxes for BUDGET seconds. The next call starts with the queue at which the time ran out. What a
        sender that died has left is sent when its name expires. refused: called for a queue that the broker does not have or
        accepts nothing for; the others are still sent. Returns whether there is more."""
        until, waiting = time.monotonic() + BUDGET, self.waiting(queues)
        first = waiting.index(self._first) if self._first in waiting else 0
        for queue in waiting[first:] + waiting[:first]:
            self._first = queue
            try:
                self.forward(queue, until)
            except (ServerRefused, ServerBusy) as error:
                refused(queue, error)
            if time.monotonic() > until:
                return True
        return False

    def try_to_forward(self, queues: Iterable[str]) -> None:
        """Send now if possible; if not, a keeper sends the jobs within a second or so."""
        until = time.monotonic() + BUDGET
        with suppress(ConnectionLost):
            for queue in queues:
                with suppress(ServerRefused):
                    self.forward(queue, until)
                if time.monotonic() > until:
                    return

    def _next(self, names: Sequence[str], done: Sequence[bytes]) -> list[bytes]:
        """The payloads to send now. done: payloads of the last call that were sent."""
        if self._pid != os.getpid():  # a forked process is another sender
            self._pid, self._sender = os.getpid(), secrets.token_hex(12)
        ms = round(2000 * (1 + self.backend.connection.timeout))
        args: list[Arg] = [self._sender, ms, len(done), self._slice, MUCH, self.prefix + keys.unique("")]
        left, *payloads = script("outbox").call(self.space, names, *args, *map(digest, done))
        found: list[bytes] = payloads
        if left and found:
            resent, counts = names[7], Counter(map(digest, found))
            notes: list[tuple[Arg, ...]] = [("HSET", resent, each, count) for each, count in counts.items()]
            checked(self.space.call_many([*notes, ("EXPIRE", resent, RESENT)]))
        return found

    def _sent_of(
        self, queue: str, payloads: Sequence[bytes], errors: Sequence[QdError | None]
    ) -> tuple[list[bytes], QdError | None]:
        """The payloads that were sent, up to the first error, and that error. Payloads that are never accepted fail."""
        done = list[bytes]()
        for payload, error in zip(payloads, errors, strict=True):
            if isinstance(error, NeverTaken):
                self._fail(queue, payload, error)
            elif error is not None:
                return done, error
            else:
                done.append(payload)
        return done, None

    def _leave(self, names: Sequence[str], done: Sequence[bytes]) -> None:
        own = (names[4], names[5], names[7])
        script("outbox_leave").call(self.space, own, self._sender, len(done), *map(digest, done))

    def _fail(self, queue: str, payload: bytes, error: QdError) -> None:
        """Record it as a failed job, with the effects for its lock, chain and batch, then remove it from what is being sent.
        If this process is killed in between, the next sender does the same."""
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
        more, options = effect_args(effects, self.prefix)
        own = (keys.sending(queue), keys.notify(queue), keys.keyed(queue), *more)
        script("drop").call(self.space, [self.prefix + name for name in own], "ready", payload, "", "", 0, *options)


def next_slice(jobs: int, took: float) -> int:
    """How many jobs to send next if `jobs` took `took` seconds: a slice ends long before the sender counts as dead."""
    return min(MOST, jobs * 2) if took < QUICK else max(FEW, jobs // 2) if took > SLOW else jobs


def digest(payload: bytes) -> str:
    """Differs for payloads of different jobs."""
    return blake2b(payload, digest_size=12).hexdigest()


class OutboxBatches(KeptBatches):
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


class OutboxTicks(KeptTicks):
    def __init__(self, outbox: Outbox) -> None:
        super().__init__(outbox.space, outbox.prefix)
        self._outbox = outbox

    def begin(self, claims: Sequence[Claim]) -> Answers:
        queues = list(dict.fromkeys([claim.queue for claim in claims if claim.queue]))
        self._outbox.note(queues)
        answers = super().begin(claims)

        def finish() -> list[Claimed]:
            taken = answers()
            self._outbox.try_to_forward(queues)
            return taken

        return finish


def queues_of(jobs: Sequence[Entry]) -> list[str]:
    return list(dict.fromkeys([job.queue for job in jobs]))
