"""One suite for every driver. A place is a way to reach Redis. No test may leave a key behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from qd.config.settings import ConnectionSettings
from qd.drivers.base import ClientIdentity
from qd.drivers.redis.queue import RedisQueue
from tests.contract.kinds import (  # noqa: F401  fixtures
    KINDS,
    LIKE_REDIS,
    Kind,
    Served,
    Shop,
    Tried,
    durable_redis,
    on_beanstalkd,
    on_cluster,
    on_mariadb,
    on_postgres,
    on_redis,
    on_sentinel,
    on_sqlite,
    on_sqs,
    on_valkey,
    shared_durable_redis,
)
from tests.contract.spaces import (  # noqa: F401  fixtures
    database,
    mariadb_space,
    observer,
    postgres_space,
    sqlite_space,
    stand,
    store,
)
from tests.support.redis import Seen
from tests.support.servers.redis import Server

Connect = Callable[..., RedisQueue]
QUEUES = ("a", "b", "c")  # the queues of the tests, emptied at the end


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

    def make(slot: int = 1, *, token: str = "Tok3nTok3n", turns: int = 0, **bounds: Any) -> RedisQueue:
        opened.append(RedisQueue(settings, ClientIdentity(token, slot, turns), **bounds))
        return opened[-1]

    yield make
    for queue in opened:
        queue.close()


@pytest.fixture
def queue(connect: Connect) -> RedisQueue:
    return connect()


@pytest.fixture
def seen(place: Place, server: Server, connect: Connect, request: pytest.FixtureRequest) -> Iterator[Seen]:
    """A view of the server's keys. Checks at the end that no key is left, except for waiting jobs."""
    client = server.client()
    witness = Seen(client, place.prefix, place.db)
    yield witness
    for name in QUEUES:
        connect().clear(name)
    allowed = [place.prefix + pattern for mark in request.node.iter_markers("leaves") for pattern in mark.args]
    left = [key for key in witness.every_key() if not any(fnmatch(key, pattern) for pattern in allowed)]
    client.close()
    assert not left, f"keys left in Redis: {left}"


# -- every driver (kinds.py)


@pytest.fixture(params=[pytest.param(kind, id=kind.name, marks=pytest.mark.xdist_group(kind.name)) for kind in KINDS])
def kind(request: pytest.FixtureRequest) -> Kind:
    """The tests of one kind run in one test process, so that its server starts once."""
    found: Kind = request.param
    return found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow what kinds.py says of LIKE_REDIS."""
    for item in items:
        kind = item.callspec.params.get("kind") if hasattr(item, "callspec") else None
        only_its_client = item.path.name == "test_every_worker.py" or item.path.parent.name == "features"
        like = isinstance(kind, Kind) and kind.name in LIKE_REDIS
        if only_its_client and like and not item.get_closest_marker("fault"):
            item.add_marker("slow")


@pytest.fixture
def tried(
    kind: Kind, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Tried]:
    """The driver under test, on an empty server."""
    served: Served = request.getfixturevalue(kind.fixture)
    for name, value in served.env.items():
        monkeypatch.setenv(name, value)
    tried = Tried(kind, served, Shop(tmp_path, served))
    if served.migrates:
        tried.command("migrate")
    yield tried
    tried.close()
    tried.shop.close()
