"""A keeper is notified of each broken connection: there may be another server now, or expired leases."""

from __future__ import annotations

import pytest

from qd.drivers.types import BeatRequest
from qd.errors import ConnectionLost, ServerBusy
from tests.contract.conftest import ONE
from tests.contract.keyspace.test_queue import job

REQUEST = BeatRequest("Tok3nTok3n", "", 30.0, True, 1e12, [1])
pytestmark = pytest.mark.parametrize("place", ONE, indirect=True)


def cut(queue, server) -> None:
    """The server closes the connection, some time after its last use."""
    number = queue.connection.call("CLIENT", "ID")
    with server.client() as client:
        client.call("CLIENT", "KILL", "ID", number)
    queue.connection._used -= 5


def test_a_keeper_is_notified_that_an_idle_connection_was_closed(queue, seen, server):
    queue.beat(["a"], REQUEST)
    cut(queue, server)
    with pytest.raises(ConnectionLost, match="closed the connection"):
        queue.beat(["a"], REQUEST)
    assert queue.beat(["a"], REQUEST).reclaimed == 0


def test_a_producer_is_not_notified_that_an_idle_connection_was_closed(queue, seen, server):
    queue.push("a", job(1))
    cut(queue, server)
    queue.push("a", job(2))
    assert queue.sizes("a").ready == 2


@pytest.mark.parametrize("send", [lambda q: q.push("a", job(1)), lambda q: q.post_one("a")], ids=["push", "post"])
def test_a_connection_to_a_replica_is_closed_after_readonly(queue, seen, server, send):
    """After any call: a connection is not used again after READONLY."""
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
