"""A reply that never completes, and a large reply that takes long."""

from __future__ import annotations

import pytest

from qd.drivers.redis.connection import RedisConnection
from qd.errors import ConnectionLost
from tests.support.network import FakeServer, in_parts


def test_a_reply_that_arrives_too_slowly_times_out() -> None:
    with FakeServer(in_parts(b"$100\r\n", b"x", 102, pause=0.05)) as liar:
        wire = RedisConnection(
            liar.url, timeout=1.0
        )  # the whole reply takes five seconds, each part a twentieth of one
        with pytest.raises(ConnectionLost, match="no answer in time"):
            wire.call("PING")
        assert not wire.connected


def test_a_large_reply_may_take_longer_than_the_timeout() -> None:
    part = b"x" * (1 << 15) + b"\r\n"
    whole = b"*60\r\n" + b"$%d\r\n" % (1 << 15)
    with FakeServer(in_parts(whole, part + b"$%d\r\n" % (1 << 15), 59, pause=0.07, tail=part)) as liar:
        wire = RedisConnection(
            liar.url, timeout=4.0
        )  # the parts take at least 4.1, and the machine may stall during one of them
        assert [len(item) for item in wire.call("LRANGE", "a", 0, -1)] == [1 << 15] * 60
        wire.close()
