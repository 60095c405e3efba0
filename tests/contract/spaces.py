"""The keyspaces under test: Redis, and the tables of a database. No test may leave a name behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any

import pytest

from qd.drivers.database.connection import DatabaseConnection
from qd.drivers.database.keyspace import DatabaseKeyspace
from qd.drivers.database.schema import migrate
from qd.drivers.keyspace.base import Keyspace
from qd.drivers.redis.connection import RedisConnection
from qd.store.base import KeyspaceStore
from tests.support.servers.mariadb import MariaDb
from tests.support.servers.postgres import Postgres
from tests.support.servers.redis import Server

DATABASES = ("sqlite", "postgres", "mariadb")
NAMES = ("redis", *DATABASES)


@dataclass
class Stand:
    """A kind of keyspace. open() returns a new connection, closed at the end."""

    name: str
    make: Callable[[], Keyspace]
    opened: list[Keyspace] = field(default_factory=list)

    def open(self) -> Keyspace:
        self.opened.append(self.make())
        return self.opened[-1]

    def store(self, prefix: str = "app_") -> KeyspaceStore:
        return KeyspaceStore(self.open(), prefix)

    def close(self) -> None:
        while self.opened:
            self.opened.pop().close()


class Observer:
    """A separate client of the same keyspace."""

    def __init__(self, space: Keyspace) -> None:
        self.space = space

    def call(self, *words: Any) -> Any:
        return self.space.call(*words)

    def text(self, *words: Any) -> Any:
        found = self.call(*words)
        return [each.decode() for each in found] if isinstance(found, list) else found.decode()

    def names(self) -> list[str]:
        """Every name that has not expired."""
        found, at = list[str](), b"0"
        while True:
            at, some = self.call("SCAN", at, "COUNT", 1000)
            found += [name.decode() for name in some]
            if at == b"0":
                return sorted(found)


def migrated(url: str) -> str:
    link = DatabaseConnection(url, timeout=30)
    migrate(link, "jobs")
    link.close()
    return url


@pytest.fixture(scope="session")
def sqlite_space(tmp_path_factory: pytest.TempPathFactory) -> str:
    return migrated(f"sqlite:///{tmp_path_factory.mktemp('space') / 'qd.sqlite'}")


@pytest.fixture(scope="session")
def postgres_space(postgres: Postgres) -> str:
    return migrated(postgres.fresh_database())


@pytest.fixture(scope="session")
def mariadb_space(mariadb: MariaDb) -> str:
    return migrated(mariadb.fresh_database())


def of_database(url: str) -> DatabaseKeyspace:
    return DatabaseKeyspace(DatabaseConnection(url, timeout=20))


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in NAMES])
def stand(request: pytest.FixtureRequest) -> Iterator[Stand]:
    yield from standing(request.param, request)


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in DATABASES])
def database(request: pytest.FixtureRequest) -> Iterator[Stand]:
    """A keyspace on a database."""
    yield from standing(request.param, request)


def standing(name: str, request: pytest.FixtureRequest) -> Iterator[Stand]:
    if name == "redis":
        server: Server = request.getfixturevalue("server")
        found = Stand(name, lambda: RedisConnection(server.url))
    else:
        url: str = request.getfixturevalue(f"{name}_space")
        found = Stand(name, lambda: of_database(url))
        emptied(url)
    yield found
    allowed = [pattern for mark in request.node.iter_markers("leaves") for pattern in mark.args]
    left = [name for name in Observer(found.open()).names() if not any(fnmatch(name, pattern) for pattern in allowed)]
    found.close()
    assert not left, f"names left in {name}: {left}"


def emptied(url: str) -> None:
    link = DatabaseConnection(url, timeout=20)
    for table in ("qd_items", "qd_names"):
        link.query(f"DELETE FROM {table}")
    link.close()


@pytest.fixture
def store(stand: Stand) -> KeyspaceStore:
    return stand.store()


@pytest.fixture
def observer(stand: Stand) -> Observer:
    return Observer(stand.open())
