"""A keeper hears of each break: behind it another server may stand, or the same with leases that nobody could renew."""

from __future__ import annotations

import pytest

from qd.drivers.types import BeatRequest
from qd.errors import ConnectionLost, ServerBusy
from tests.contract.conftest import ONE
from tests.contract.keyspace.test_queue import job

ASKED = BeatRequest("Tok3nTok3n", "", 30.0, True, 1e12, [1])
pytestmark = pytest.mark.parametrize("place", ONE, indirect=True)


def cut(queue, server) -> None:
    """Its connection is closed by the server, long after it was used last."""
    number = queue.connection.call("CLIENT", "ID")
    with server.client() as client:
        client.call("CLIENT", "KILL", "ID", number)
    queue.connection._used -= 5


def test_a_keeper_is_told_that_an_idle_connection_was_closed(queue, seen, server):
    queue.beat(["a"], ASKED)
    cut(queue, server)
    with pytest.raises(ConnectionLost, match="closed the connection"):
        queue.beat(["a"], ASKED)
    assert queue.beat(["a"], ASKED).reclaimed == 0


def test_a_producer_is_not(queue, seen, server):
    queue.push("a", job(1))
    cut(queue, server)
    queue.push("a", job(2))
    assert queue.sizes("a").ready == 2


@pytest.mark.parametrize("send", [lambda q: q.push("a", job(1)), lambda q: q.post_one("a")], ids=["push", "post"])
def test_who_meets_a_replica_looks_for_the_primary_anew(queue, seen, server, send):
    """By whatever call: READONLY is the last that is heard of a connection."""
    queue.post_one = lambda name: queue.push_many([(name, job(1), None), (name, job(2), None)])
    queue.sizes("a")
    with server.client() as client:
        client.call("REPLICAOF", "127.0.0.1", "1")
        try:
            with pytest.raises(ServerBusy, match="READONLY"):
                send(queue)
            assert not queue.connection.connected
        finally:
            client.call("REPLICAOF", "NO", "ONE")
