"""Which parts of a command are packed, and how often."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from qd.config.settings import ConnectionSettings
from qd.drivers.keyspace.base import Arg, Script
from qd.drivers.keyspace.queue import KeyspaceQueue
from qd.drivers.redis import protocol

SENT: dict[str, tuple[Callable[[KeyspaceQueue], None], list[Arg]]] = {
    "push": (lambda queue: queue.push("packing", b"{}"), [b"{}"]),
    "later": (lambda queue: queue.later("packing", b"{}", 5.0), [5.0, b"{}"]),
}


class Space:
    """Packs the scripts it should run, and answers that one job was added."""

    def run(self, script: Script, names: Sequence[str], args: Sequence[Arg]) -> int:
        protocol.evalsha(script, names, args)
        return 1


@pytest.mark.parametrize("how", SENT)
def test_the_keys_of_a_queue_are_packed_once(how: str, monkeypatch: pytest.MonkeyPatch):
    send, expected = SENT[how]
    space: Any = Space()
    queue = KeyspaceQueue(ConnectionSettings("redis"), space)
    send(queue)
    packed = list[list[Arg]]()

    def noted(args: Sequence[Arg], before: bytes) -> bytes:
        packed.append(list(args))
        return b""

    monkeypatch.setattr(protocol, "packed_items", noted)
    send(queue)
    assert packed == [expected]
