"""Qd(redis=client): which parameters of a redis-py client are copied, and which clients are refused."""

from __future__ import annotations

import ssl
import subprocess
import sys
from typing import Any, cast

import pytest
import redis
import redis.asyncio
from redis.cluster import ClusterNode
from redis.credentials import UsernamePasswordCredentialProvider
from redis.sentinel import Sentinel

from qd import Qd
from qd.drivers.redis import credentials
from qd.drivers.redis.client_url import url_of
from qd.drivers.redis.sentinel import Primary, target_of
from qd.drivers.redis_driver import parsed
from qd.errors import ConfigError


class Provider(UsernamePasswordCredentialProvider):
    """Compares by identity."""


WORDS = {"username": "me", "password": "p@ss:w/rd"}
CLIENTS: list[tuple[redis.Redis, str]] = [
    (redis.Redis(), "redis://localhost:6379/0"),
    (redis.Redis("h", 7, 3, **WORDS), "redis://me:p%40ss%3Aw%2Frd@h:7/3"),  # type: ignore[arg-type]
    (redis.Redis("::1", password=cast(Any, b"bytes")), "redis://:bytes@[::1]:6379/0"),
    (redis.Redis.from_url("redis://me:secret@h:1/2?health_check_interval=2"), "redis://me:secret@h:1/2"),
    (redis.Redis(unix_socket_path="/run/r s.sock", db=2), "unix:///run/r%20s.sock?db=2"),
    (redis.Redis.from_url("unix://me:secret@/run/r.sock?db=4"), "unix://me:secret@/run/r.sock?db=4"),
    (redis.Redis("h", decode_responses=True, socket_timeout=0.1, client_name="web"), "redis://h:6379/0"),
    (redis.Redis("h", ssl=True), "rediss://h:6379/0"),
    (redis.Redis("h", ssl=True, ssl_cert_reqs="none"), "rediss://h:6379/0?ssl_cert_reqs=none"),
    (redis.Redis("h", ssl=True, ssl_check_hostname=False), "rediss://h:6379/0?ssl_check_hostname=false"),
    (redis.Redis("h", ssl=True, ssl_ca_certs="/ca a.pem"), "rediss://h:6379/0?ssl_ca_certs=%2Fca+a.pem"),
    (redis.Redis("h", ssl=True, ssl_min_version=ssl.TLSVersion.TLSv1_3), "rediss://h:6379/0?ssl_min_version=772"),
]


@pytest.mark.parametrize(("client", "url"), CLIENTS)
def test_the_url_has_the_parameters_of_the_client(client: redis.Redis, url: str) -> None:
    assert url_of(client) == url
    assert Qd(redis=client)._code_settings == {"url": url}


def test_a_password_arrives_as_the_client_has_it() -> None:
    login = target_of(url_of(redis.Redis("h", **WORDS))).login  # type: ignore[arg-type]
    assert (login.user, login.password) == ("me", "p@ss:w/rd")


def test_the_tls_options_are_applied() -> None:
    client = redis.Redis("h", ssl=True, ssl_check_hostname=False, ssl_min_version=ssl.TLSVersion.TLSv1_3)
    tls = parsed(url_of(client)).tls
    assert tls is not None
    assert (tls.check_hostname, tls.verify_mode, tls.minimum_version) == (
        False,
        ssl.CERT_REQUIRED,
        ssl.TLSVersion.TLSv1_3,
    )


def test_the_same_sentinels_are_queried_for_the_primary() -> None:
    watched = Sentinel(
        [("s1", 26379), ("::1", 7)],
        sentinel_kwargs={"username": "w", "password": "watch"},
        password="secret",
        db=3,
    )
    url = url_of(watched.master_for("my master"))
    found = target_of(url)
    assert isinstance(found, Primary)
    assert (found.sentinels, found.service, found.db) == ([("s1", 26379), ("::1", 7)], "my master", 3)
    assert (found.login.password, found._login) == ("secret", ("w", "watch"))
    assert (found.tls, found._sentinel_tls) == (None, None)


@pytest.mark.parametrize(("servers", "sentinels"), [(True, False), (False, True), (True, True), (False, False)])
def test_servers_and_sentinels_need_not_both_have_tls(servers: bool, sentinels: bool) -> None:
    watched = Sentinel([("s1", 26379)], sentinel_kwargs={"ssl": sentinels}, ssl=servers)
    found = target_of(url_of(watched.master_for("shop")))
    assert isinstance(found, Primary)
    assert (found.tls is not None, found._sentinel_tls is not None) == (servers, sentinels)


class OfCluster(redis.RedisCluster):
    """A cluster client that has not connected."""

    def __init__(self, **kwargs: Any) -> None:
        nodes = {node.name: node for node in (ClusterNode("c1", 7001), ClusterNode("127.0.0.1", 7002))}
        self.nodes_manager = cast(Any, type("Nodes", (), {"startup_nodes": nodes, "connection_kwargs": kwargs}))()

    def __del__(self) -> None:
        pass


def test_a_cluster_is_reached_through_the_same_nodes() -> None:
    assert url_of(OfCluster(password="secret")) == "redis+cluster://:secret@c1:7001,127.0.0.1:7002"
    kind = redis.SSLConnection
    assert url_of(OfCluster(connection_class=kind)) == "rediss+cluster://c1:7001,127.0.0.1:7002"


def test_the_credential_provider_is_called_and_not_copied() -> None:
    provider = Provider("me", "secret")
    url = url_of(redis.Redis("h", credential_provider=provider))
    assert url == url_of(redis.Redis("h", credential_provider=provider))
    assert "secret" not in url
    assert target_of(url).login.ask("h:6379/0") == ("me", "secret")


def test_each_provider_has_its_own_name() -> None:
    names = {credentials.add(Provider("a", "b")), credentials.add(Provider("a", "c"))}
    assert len(names) == 2


class OwnConnection(redis.Connection):
    """A custom class, which qd cannot copy."""


OWN_POOL = redis.ConnectionPool(connection_class=OwnConnection)
SERVICE = Sentinel([("s1", 26379)])
DIFFERENT = Sentinel([("s1", 26379)], sentinel_kwargs={"ssl": True, "ssl_ca_certs": "/a.pem"}, ssl=True)
WATCHED = Sentinel([("s1", 26379)], sentinel_kwargs={"credential_provider": Provider("me", "secret99")})
REFUSED: list[tuple[Any, str]] = [
    (redis.asyncio.Redis(), "redis.asyncio"),
    (redis.asyncio.Redis(ssl=True), "redis.asyncio"),
    (SERVICE.slave_for("shop"), "queues need the primary: use master_for()"),
    (SERVICE, "object of type Sentinel"),
    (redis.ConnectionPool(), "object of type ConnectionPool"),
    ("redis://h", "object of type str"),
    (redis.Redis(connection_pool=OWN_POOL), "OwnConnection"),
    (redis.Redis(redis_connect_func=print), "use a credential_provider"),
    (redis.Redis(ssl=True, ssl_validate_ocsp=True), "does not support ssl_validate_ocsp of"),
    (DIFFERENT.master_for("shop"), "TLS options of servers and sentinels differ"),
    (WATCHED.master_for("shop"), "not a credential_provider"),
    (redis.Redis(password="secret99\udc80"), "password of the client is not UTF-8"),
    (redis.Redis(password=cast(Any, b"secret99\xff")), "password of the client is not UTF-8"),
]


@pytest.mark.parametrize(("client", "message"), REFUSED)
def test_unsupported_clients_are_refused_when_the_app_is_created(client: Any, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Qd(redis=client)
    assert message in str(raised.value)
    assert "secret99" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_url_and_a_client_cannot_be_combined() -> None:
    with pytest.raises(ConfigError, match="not both"):
        Qd("redis://h/0", redis=redis.Redis())


@pytest.mark.parametrize(
    "code",
    [
        "import qd; qd.Qd('redis://h/0').settings",
        "from qd.drivers.redis_driver import parsed; parsed('redis://h/0'); parsed('rediss+sentinel://h/s')",
        "import qd.master.master, qd.daemon, qd.cli.main",
    ],
)
def test_redis_py_is_not_loaded_without_a_connection(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {code}; print('redis' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False\n"
