"""The outbox: what the steps of the borrowed keyspace have pushed (the next of a chain, callbacks, keyed and unique jobs,
ticks, what is tried again), on its way to the server that keeps the jobs.

    queues:Q, queues:Q:delayed   in the borrowed keyspace: where every step pushes
    outbox.lua                   what is due, in order -> queues:Q:qd-sending; one sender at a time
    backend.send                 then the next outbox.lua takes away what was sent

What a sender leaves that did not come back (it died, or its connection broke) may have been sent: it is sent again, and
noted in queues:Q:qd-resent, so that the worker that is given the second one drops it. What the server will never take goes
to the failed store.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b

from qd.connectors.borrowed.backend import Backend
from qd.connectors.borrowed.senders import is_dead, own_name
from qd.connectors.keyspace import keys
from qd.connectors.keyspace.base import Arg, Keyspace
from qd.connectors.scripts import script
from qd.errors import ConnectionLost, Malformed, QdError, ServerRefused, TooLarge
from qd.payload import read

MOST, MUCH = 100, 1 << 20  # jobs, and bytes, that are sent at a time
OUT = (keys.ready, keys.delayed, keys.notify, keys.keyed, keys.sending, keys.sender, keys.paused, keys.resent)
RESENT = 86400  # seconds for which a second one may still turn up
WAITING = (keys.ready, keys.delayed, keys.sending)


class Outbox:
    def __init__(self, space: Keyspace, prefix: str, backend: Backend) -> None:
        self.space, self.prefix, self.backend = space, prefix, backend
        self._pid, self._who, self._noted = 0, "", set[str]()

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

    def forward(self, queue: str) -> int:
        """Send what is due, unless another is at it. Returns how many were sent. Raises as the server, and as the space."""
        names, count = [self.prefix + kind(queue) for kind in OUT], 0
        done: Sequence[bytes] = ()
        while payloads := self._next(names, done):
            said = self.backend.send(queue, [(payload, 0.0) for payload in payloads])
            sent = self._settled(queue, payloads, said)
            count, done = count + sent, payloads[:sent]
            if sent < len(payloads):
                self._leave(names, sent, said[sent])
        return count

    def forward_all(self, queues: Sequence[str]) -> int:
        """Also what one has left that was sending it and died."""
        count = 0
        for queue in self.waiting(queues):
            count += self.forward(queue) or (self._left_by_the_dead(queue) and self.forward(queue))
        return count

    def _left_by_the_dead(self, queue: str) -> bool:
        names = [self.prefix + kind(queue) for kind in (keys.sending, keys.sender)]
        sender = self.space.call("GET", names[1]) or b""
        return is_dead(sender.decode("utf-8", "replace")) and bool(
            script("outbox_leave").call(self.space, names, sender, 0)
        )

    def try_to_forward(self, queues: Iterable[str]) -> None:
        """At once, where that can be had: they are kept, and a keeper looks at them within a second or so."""
        with suppress(ConnectionLost, ServerRefused):
            for queue in queues:
                self.forward(queue)

    def _next(self, names: Sequence[str], done: Sequence[bytes]) -> list[bytes]:
        """What is to be sent. done: of what this gave last, those that were sent."""
        if self._pid != os.getpid():  # a copy that was forked is another sender
            self._pid, self._who = os.getpid(), own_name()
        ms = round(2000 * (1 + self.backend.timeout))
        args: list[Arg] = [self._who, ms, len(done), MOST, MUCH, self.prefix + keys.unique(""), *map(digest, done)]
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

    def _settled(self, queue: str, payloads: Sequence[bytes], said: Sequence[QdError | None]) -> int:
        """How many from the first on need not be sent any more."""
        for number, (payload, error) in enumerate(zip(payloads, said, strict=True)):
            if isinstance(error, TooLarge):
                self._fail(queue, payload, error)
            elif error is not None:
                return number
        return len(payloads)

    def _leave(self, names: Sequence[str], sent: int, error: QdError | None) -> None:
        script("outbox_leave").call(self.space, (names[4], names[5]), self._who, sent)
        assert error is not None
        raise error

    def _fail(self, queue: str, payload: bytes, error: QdError) -> None:
        id = f"outbox.{secrets.token_hex(8)}"
        record = {
            "id": id,
            "queue": queue,
            "error": "TooLarge",
            "reason": str(error),
            "failed_at": round(time.time(), 3),
        }
        with suppress(Malformed):
            known = read(payload)
            record |= {"uuid": known.uuid, "job": known.job, "attempts": known.attempts, "crashes": known.crashes}
        names = [self.prefix + keys.failed(queue), self.prefix + keys.failed_at(queue)]
        script("adopt").call(self.space, names, id, json.dumps(record).encode(), payload)


def digest(payload: bytes) -> str:
    """No two payloads of different jobs have the same."""
    return blake2b(payload, digest_size=12).hexdigest()
