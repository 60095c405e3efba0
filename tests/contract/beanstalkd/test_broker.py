"""The beanstalkd backend: pipelined puts with one answer each, draining servers, and waits."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from qd.drivers.beanstalkd.broker import MANY, MUCH, Beanstalkd
from qd.errors import ServerBusy, TooLarge
from tests.support.servers.beanstalkd import Beanstalkd as Server
from tests.support.servers.beanstalkd import installed
from tests.support.waiting import eventually


@contextmanager
def talking(server: Server) -> Iterator[Beanstalkd]:
    backend = Beanstalkd(server.url, 90)
    yield backend
    backend.close()


def bodies(server: Server) -> Iterator[bytes]:
    with server.client() as client:
        client.watch("q")
        for _ in range(client.stats_tube("q")["current-jobs-ready"]):
            yield client.reserve(timeout=0).body


def test_each_put_of_many_has_its_own_answer() -> None:
    """In order, across several writes, with jobs in the middle that the server never accepts."""
    installed()
    jobs = [b"%d" % number for number in range(2 * MANY + 5)]
    jobs[7], jobs[MANY - 1], jobs[MANY + 1] = b"x" * 3000, b"x" * 3000, b"y" * 1500
    jobs[MANY + 20 : MANY + 20] = [b"%d:" % number + b"z" * 1990 for number in range(2 * MUCH // 1990)]
    with Server("-z", "2000") as server, talking(server) as backend:
        errors = backend.send("q", [(body, 0.0) for body in jobs])
        assert [type(each) for each in errors] == [TooLarge if len(body) > 2000 else type(None) for body in jobs]
        assert list(bodies(server)) == [body for body in jobs if len(body) <= 2000]


def test_a_draining_server_rejects_puts_and_still_delivers() -> None:
    """The connection stays usable, and jobs already queued can be reserved and deleted."""
    installed()
    with Server() as server, talking(server) as backend:
        assert backend.send("q", [(b"before", 0.0)]) == [None]
        with server.client() as client:
            os.kill(int(client.stats()["pid"]), signal.SIGUSR1)
        eventually(lambda: isinstance(backend.send("q", [(b"after", 0.0)])[0], ServerBusy))
        errors = backend.send("q", [(b"%d" % number, 0.0) for number in range(3 * MANY)])
        assert {str(each) for each in errors} == {
            f"beanstalkd at 127.0.0.1:{server.port} is draining (USR1) and accepts no new jobs"
        }
        delivery = backend.reserve(["q"], 0.0)
        assert delivery is not None
        assert delivery.body == b"before"
        backend.delete("q", delivery.id, delivery.handle)
        assert backend.deleted(wait=True) == [("q", delivery.id)]


def test_a_wait_may_last_longer_than_the_answer_timeout(beanstalkd: Server) -> None:
    """The answer timeout starts when the server's wait is over, even if no descriptor can end the wait."""
    with talking(beanstalkd) as backend:
        backend.connection.patience(5.0, 2.5)
        assert backend.reserve(["q"], 3.0) is None
        assert backend.connection.life == 1, "the connection was replaced"
        assert backend.send("q", [(b"1", 0.0)]) == [None]
        assert backend.connection.life == 1, "the connection was replaced"
