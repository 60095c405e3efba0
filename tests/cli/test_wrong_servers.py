"""A server at the url that is not Redis: every command prints one line and exits with 69."""

from __future__ import annotations

import json
import socket

import pytest

from qd.config.settings import ConnectionSettings
from qd.drivers.base import ClientIdentity
from qd.drivers.redis.queue import RedisQueue
from qd.errors import ConnectionLost
from tests.support.network import TIME, FakeServer, always
from tests.support.project import MakeProject
from tests.support.witness import JOBS

NONSENSE = {"nil": b"$-1\r\n", "empty": b"*0\r\n", "ok": b"+OK\r\n", "zero": b":0\r\n"}
COMMANDS = (
    ["health"],
    ["status"],
    ["dispatch", "quick"],
    ["restart"],
    ["pause", "default"],
    ["down"],
)


@pytest.mark.parametrize("reply", NONSENSE)
def test_a_server_that_is_not_redis_is_reported_in_one_line(project: MakeProject, reply: str) -> None:
    with FakeServer(always(NONSENSE[reply])) as liar:
        shop = project(jobs=JOBS, url=liar.url)
        for command in COMMANDS:
            done = shop.qd(*command)
            said = done.stdout + done.stderr
            assert (done.returncode, "does not reply as Redis does" in said) == (69, True), f"{command}: {said}"
            assert "Traceback" not in said
            assert len(done.stderr.splitlines()) <= 1, done.stderr
        done = shop.qd("doctor", "--json")
        assert (done.returncode, "Traceback" in done.stderr) == (69, False), done.stderr
        assert "does not reply as Redis does" in json.dumps(json.loads(done.stdout))


def test_a_push_without_a_numeric_reply_raises() -> None:
    def greets(client: socket.socket) -> None:
        """Reply to TIME as Redis does, and with +OK to everything else."""
        while data := client.recv(1 << 16):
            client.sendall(TIME if b"TIME" in data else b"+OK\r\n")

    with FakeServer(greets) as liar:
        queue = RedisQueue(ConnectionSettings(name="redis", url=liar.url), ClientIdentity("Tok3nTok3n", 1))
        for send in (
            lambda: queue.push("a", b"{}"),
            lambda: queue.later("a", b"{}", 1.0),
            lambda: queue.push_many([("a", b"{}", None), ("a", b"{}", None)]),
            lambda: queue.push_many([("a", b"{}", 1.0)]),
        ):
            with pytest.raises(ConnectionLost, match="does not reply as Redis does"):
                send()
