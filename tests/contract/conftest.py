"""One suite for every connector: a place is a connector and a way to reach it. Each test ends with no key left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from qd.config import ConnectionSettings
from qd.connectors.redis.queue import RedisQueue
from tests.contract.kinds import KINDS, Kind, Shop, Tried
from tests.support.seen import Seen
from tests.support.server import KEEPS, Server

Connect = Callable[..., RedisQueue]
QUEUES = ("a", "b", "c")  # those that tests use, emptied at the end


class Place(NamedTuple):
    url: Callable[[Server], str]
    prefix: str = ""
    db: int = 0


PLACES = {
    "redis by tcp": Place(lambda server: server.tcp_url),
    "redis by unix socket": Place(lambda server: server.url),
    "redis with a prefix": Place(lambda server: server.url, prefix="my_app_database_"),
    "redis database 3": Place(lambda server: f"redis://127.0.0.1:{server.port}/3", db=3),
}
ONE = ["redis by unix socket"]  # for @pytest.mark.parametrize("place", ONE, indirect=True)


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Place:
    return PLACES[request.param]


@pytest.fixture
def settings(place: Place, server: Server) -> ConnectionSettings:
    return ConnectionSettings(name="redis", url=place.url(server), prefix=place.prefix, retry_after=30.0)


@pytest.fixture
def connect(settings: ConnectionSettings) -> Iterator[Connect]:
    """connect(slot=1, token=..., keep=...): a connection that reserves for this slot; closed at the end."""
    opened: list[RedisQueue] = []

    def make(slot: int = 1, **more: Any) -> RedisQueue:
        opened.append(RedisQueue(settings, **{"token": "Tok3nTok3n", "slot": slot, **more}))
        return opened[-1]

    yield make
    for queue in opened:
        queue.close()


@pytest.fixture
def queue(connect: Connect) -> RedisQueue:
    return connect()


@pytest.fixture
def seen(place: Place, server: Server, connect: Connect, request: pytest.FixtureRequest) -> Iterator[Seen]:
    """The witness. At the end nothing is left below the prefix but what waits, and nothing at all beside it."""
    client = server.client()
    witness = Seen(client, place.prefix, place.db)
    yield witness
    for name in QUEUES:
        connect().clear(name)
    allowed = [place.prefix + pattern for mark in request.node.iter_markers("leaves") for pattern in mark.args]
    left = [key for key in witness.every_key() if not any(fnmatch(key, pattern) for pattern in allowed)]
    client.close()
    assert not left, f"keys left in Redis: {left}"


# -- every connector (kinds.py)


@pytest.fixture(scope="session")
def shared_durable_redis() -> Iterator[Server]:
    with Server(*KEEPS) as server:
        yield server


@pytest.fixture
def durable_redis(shared_durable_redis: Server) -> Iterator[Server]:
    """As `server`, and it keeps what it holds when it is killed."""
    with shared_durable_redis.client() as client:
        client.call("FLUSHALL")
        yield shared_durable_redis
        client.close()  # it may have been killed meanwhile
        client.call("FLUSHALL")


@pytest.fixture(params=[pytest.param(kind, id=kind.name, marks=pytest.mark.xdist_group(kind.name)) for kind in KINDS])
def kind(request: pytest.FixtureRequest) -> Kind:
    """One after the other, those of one kind in one process of tests: its server starts once."""
    found: Kind = request.param
    return found


@pytest.fixture
def tried(
    kind: Kind, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Tried]:
    """The connector under test; its server knows nothing."""
    server = request.getfixturevalue(kind.fixture)
    for name, value in kind.env(server).items():
        monkeypatch.setenv(name, value)
    tried = Tried(kind, server, Shop(tmp_path, kind, server))
    yield tried
    tried.close()
    tried.shop.close()
