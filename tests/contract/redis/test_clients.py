"""Qd(redis=client) uses the server of the client: over TCP, TLS, a unix socket, Sentinel and a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis as redis_py
from redis.cluster import ClusterNode
from redis.credentials import CredentialProvider
from redis.sentinel import Sentinel as Sentinels

from qd import Qd
from qd.config.load import unread
from qd.drivers.base import Connector
from tests.contract.keyspace.test_queue import job
from tests.support.network import Certificates
from tests.support.programs import missing
from tests.support.redis import Client
from tests.support.servers.cluster import Cluster
from tests.support.servers.redis import Server, free_port
from tests.support.servers.sentinel import SERVICE, Sentinel

Opened = Callable[[Any], Connector]

PASSWORD = "s3cret/with:all@kinds?"


class Rotating(CredentialProvider):
    """Returns the current password and counts the calls."""

    def __init__(self, password: str) -> None:
        self.password, self.calls = password, 0

    def get_credentials(self) -> tuple[str, str]:
        self.calls += 1
        return "default", self.password


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Opens the connection of a Qd(redis=client). An app that is collected closes its connections, so the apps are kept."""
    apps: list[Qd] = []

    def open_connection(client: Any) -> Connector:
        app = Qd(redis=client)
        app.settings = unread(app._code_settings)
        apps.append(app)
        return app.connections.get(None)

    yield open_connection
    for app in apps:
        app.connections.close_all()


def carries_a_job(queue: Connector) -> None:
    queue.push("a", job(1))
    assert queue.sizes("a").ready == 1
    assert queue.clear("a") == 1


@pytest.fixture
def locked() -> Iterator[Server]:
    with Server() as server, server.client() as client:
        client.call("CONFIG", "SET", "requirepass", PASSWORD)
        yield server


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Certificates]]:
    """The port of a server that requires client certificates, and the certificates."""
    made, port = Certificates(tmp_path_factory.mktemp("certificates")), free_port()
    options = ["--tls-port", str(port)]
    for option, name in (("cert", "server.crt"), ("key", "server.key"), ("ca-cert", "ca.crt")):
        options += [f"--tls-{option}-file", made.path(name)]
    server = Server(*options)
    try:
        server.start()
    except RuntimeError as error:
        server.stop()
        missing(f"a redis-server built with TLS ({error})")
    yield port, made
    server.stop()


@pytest.mark.parametrize("decode", [False, True])
def test_a_client_over_tcp_with_a_password_and_a_database(locked: Server, decode: bool, opened: Opened) -> None:
    client = redis_py.Redis("127.0.0.1", locked.port, 3, password=PASSWORD, decode_responses=decode, socket_timeout=9)
    queue = opened(client)
    queue.push("a", job(1))
    assert client.llen("queues:a") == 1
    client.close()


def test_a_client_over_a_unix_socket(server: Server, redis: Client, opened: Opened) -> None:
    queue = opened(redis_py.Redis(unix_socket_path=str(server.socket)))
    carries_a_job(queue)


def test_a_client_over_tls_with_a_client_certificate(tls: tuple[int, Certificates], opened: Opened) -> None:
    port, made = tls
    files = {"ssl_ca_certs": made.path("ca.crt"), "ssl_certfile": made.path("client.crt")}
    client = redis_py.Redis("127.0.0.1", port, ssl=True, ssl_keyfile=made.path("client.key"), **files)  # type: ignore[arg-type]
    queue = opened(client)
    carries_a_job(queue)


def test_a_client_over_sentinels(sentinel: Sentinel, opened: Opened) -> None:
    client = Sentinels([("127.0.0.1", each.port) for each in sentinel.watchers]).master_for(SERVICE)
    queue = opened(client)
    carries_a_job(queue)


def test_a_client_over_a_cluster(cluster: Cluster, opened: Opened) -> None:
    host, port = cluster.addresses[0].split(":")
    with redis_py.RedisCluster(startup_nodes=[ClusterNode(host, int(port))]) as client:
        queue = opened(client)
        for name in ("a", "b", "c"):
            queue.push(name, job(1))
            assert client.llen(f"queues:{{{name}}}") == 1 or queue.sizes(name).ready == 1
            queue.clear(name)


def test_the_connections_of_the_client_are_not_used(server: Server, redis: Client, opened: Opened) -> None:
    client = redis_py.Redis(unix_socket_path=str(server.socket))
    queue = opened(client)
    carries_a_job(queue)
    assert client.connection_pool.connection_kwargs["path"] == str(server.socket)
    assert not client.connection_pool._available_connections
    client.close()
    carries_a_job(queue)


def test_a_credential_provider_is_called_at_each_connect(locked: Server, opened: Opened) -> None:
    provider = Rotating(PASSWORD)
    queue = opened(redis_py.Redis("127.0.0.1", locked.port, credential_provider=provider))
    carries_a_job(queue)
    carries_a_job(queue)
    assert provider.calls == 1
    with locked.client() as client:
        client.call("AUTH", PASSWORD)
        client.call("CONFIG", "SET", "requirepass", "another-one")
    provider.password = "another-one"
    queue.close()
    carries_a_job(queue)
    assert provider.calls == 2


def test_a_credential_provider_is_used_for_each_node_of_a_cluster(cluster: Cluster, opened: Opened) -> None:
    provider = Rotating("")
    provider.get_credentials = lambda: ("default", "any: this user has no password")  # type: ignore[method-assign]
    queue = opened(_cluster_client(cluster, provider))
    carries_a_job(queue)


def _cluster_client(cluster: Cluster, provider: CredentialProvider) -> redis_py.RedisCluster:
    host, port = cluster.addresses[0].split(":")
    return redis_py.RedisCluster(startup_nodes=[ClusterNode(host, int(port))], credential_provider=provider)
