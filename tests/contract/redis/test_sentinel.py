"""Sentinels and servers with TLS of a private authority, client certificates and users; discovery of the primary."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from qd.drivers.redis import sentinel as sentinels
from qd.drivers.redis.connection import RedisConnection
from qd.drivers.redis.sentinel import Primary, shown
from qd.errors import ConnectionLost, NeedsMending, Unreachable, WrongPassword
from tests.support.network import Certificates, FakeServer, always
from tests.support.programs import missing, redis_server
from tests.support.servers.redis import Server, free_port
from tests.support.servers.running import Running
from tests.support.servers.sentinel import Sentinel
from tests.support.waiting import eventually

OF_SERVER, OF_SENTINEL = "of-the-server", "of-the-sentinels"


class Guarded(Running):
    """A sentinel with TLS only, required client certificates and one user, w. primary: the TLS port of the primary."""

    name = "redis-sentinel"

    def __init__(self, certificates: Certificates, primary: int) -> None:
        super().__init__()
        self.port = free_port()
        lines = ["port 0", f"tls-port {self.port}", "bind 127.0.0.1", f"dir {self.folder}", "tls-replication yes"]
        lines += [f"unixsocket {self.folder / 's.sock'}", *tls_lines(certificates)]
        lines += [f"user w on >{OF_SENTINEL} +sentinel +auth &* ~*", "user default off"]
        lines += [f"sentinel monitor shop 127.0.0.1 {primary} 1", "sentinel auth-user shop sentinel"]
        lines += [f"sentinel auth-pass shop {OF_SERVER}"]
        (self.folder / "sentinel.conf").write_text("\n".join(lines) + "\n")

    def command(self) -> list[str]:
        return [str(redis_server()), str(self.folder / "sentinel.conf"), "--sentinel"]

    def answers(self) -> bool:
        return (self.folder / "s.sock").exists()


def tls_lines(certificates: Certificates) -> list[str]:
    files = (("cert", "server.crt"), ("key", "server.key"), ("ca-cert", "ca.crt"))
    return [f"tls-{option}-file {certificates.path(name)}" for option, name in files]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def guarded(certificates: Certificates) -> Iterator[Guarded]:
    """A primary with TLS, client certificates and users, and its sentinel."""
    port = free_port()
    options = [word for line in tls_lines(certificates) for word in f"--{line}".split()]
    server = Server("--tls-port", str(port), "--tls-replication", "yes", *options)
    try:
        server.start()
    except RuntimeError as error:
        server.stop()
        missing(f"a redis-server built with TLS ({error})")
    with server.client() as client:
        client.call("ACL", "SETUSER", "carol", "on", f">{OF_SERVER}", "~queues:*", "+@all")
        client.call("ACL", "SETUSER", "sentinel", "on", f">{OF_SERVER}", "allchannels", "+@all")
    watcher = Guarded(certificates, port)
    watcher.start()
    yield watcher
    watcher.stop()
    server.stop()


def url(
    guarded: Guarded, certificates: Certificates, *, user: str = "carol", word: str = OF_SERVER, **more: str
) -> str:
    asked = {
        "sentinel_username": "w",
        "sentinel_password": OF_SENTINEL,
        "ssl_ca_certs": certificates.path("ca.crt"),
        "ssl_certfile": certificates.path("client.crt"),
        "ssl_keyfile": certificates.path("client.key"),
        **more,
    }
    query = "&".join(f"{key}={value}" for key, value in asked.items() if value)
    return f"rediss+sentinel://{user}:{word}@127.0.0.1:{guarded.port}/shop?{query}"


def asked(text: str) -> object:
    wire = RedisConnection(text, connect_timeout=60.0, timeout=60.0)
    try:
        return wire.call("ACL", "WHOAMI")
    finally:
        wire.close()


@pytest.mark.usefixtures("patient")
def test_tls_certificates_and_users_work_together(guarded: Guarded, certificates: Certificates) -> None:
    assert eventually(lambda: asked(url(guarded, certificates)), what="the primary") == b"carol"


@pytest.mark.usefixtures("patient")
def test_each_credential_is_needed(guarded: Guarded, certificates: Certificates) -> None:
    wrong: list[tuple[str, type[Exception], str]] = [
        (url(guarded, certificates, sentinel_password="wr0ng"), WrongPassword, "sentinel 127.0.0.1:.* refuses"),
        (url(guarded, certificates, sentinel_password="", sentinel_username=""), WrongPassword, "refuses"),
        (url(guarded, certificates, word="wr0ng"), WrongPassword, "WRONGPASS"),
        (url(guarded, certificates, ssl_certfile="", ssl_keyfile=""), ConnectionLost, "sentinel 127.0.0.1"),
        (
            url(guarded, certificates, ssl_ca_certs=certificates.path("server.crt")),
            ConnectionLost,
            "certificate is refused",
        ),
        (url(guarded, certificates).replace("rediss+", "redis+"), ConnectionLost, "no sentinel names"),
    ]
    for text, kind, expected in wrong:
        with pytest.raises(kind, match=expected) as raised:
            asked(text)
        assert OF_SERVER not in str(raised.value)
        assert OF_SENTINEL not in str(raised.value)
        assert "\n" not in str(raised.value)


# -- discovery


def never_reply(client: socket.socket) -> None:
    while client.recv(1 << 16):
        pass


def address(liar: FakeServer) -> str:
    return liar.url.removeprefix("redis://")


def before(sentinel: Sentinel, liar: FakeServer) -> str:
    """The url with a fake sentinel in front."""
    return sentinel.url.replace("://", f"://{address(liar)},")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each sentinel a long timeout."""
    monkeypatch.setattr(sentinels, "QUERY_TIME", 20.0)


@pytest.mark.usefixtures("patient")
def test_an_unreachable_sentinel_is_tried_last_from_then_on(sentinel: Sentinel) -> None:
    found = Primary(sentinel.url.replace("://", "://127.0.0.1:1,"))
    for _ in range(2):
        found.locate(60.0)
        assert found.port == sentinel.primary.port
        assert found.sentinels[-1] == ("127.0.0.1", 1)


def test_a_silent_sentinel_is_tried_last(sentinel: Sentinel) -> None:
    with FakeServer(never_reply) as silent:
        found = Primary(before(sentinel, silent))
        found.locate(60.0)
        assert shown(found.sentinels[0]) != address(silent)


@pytest.mark.usefixtures("patient")
def test_a_server_that_is_not_a_primary_is_rejected(sentinel: Sentinel) -> None:
    """A sentinel that was cut off still names the old primary."""
    replica = next(node for node in sentinel.nodes if node is not sentinel.primary)
    reply = f"*2\r\n$9\r\n127.0.0.1\r\n${len(str(replica.port))}\r\n{replica.port}\r\n".encode()
    with FakeServer(always(reply)) as stale:
        wire = RedisConnection(before(sentinel, stale), connect_timeout=60.0, timeout=60.0)
        with pytest.raises(Unreachable, match="is a slave: no primary is there yet"):
            wire.call("PING")
        assert wire.call("PING") == b"PONG"  # another sentinel had the right address
        assert wire.target.port == sentinel.primary.port
        wire.close()


def test_an_unknown_service_name_needs_an_operator(sentinel: Sentinel) -> None:
    with pytest.raises(NeedsMending, match=r"knows no primary called 'shop' \(known: qd\)"):
        Primary(sentinel.url.replace("/qd/", "/shop/")).find_primary(60.0)


def test_a_hung_sentinel_is_not_queried_repeatedly_for_a_new_primary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sentinels, "RESTS", 1000.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = Primary(f"redis+sentinel://127.0.0.1:{silent.getsockname()[1]}/shop")
        assert [target.replaced(0.2) for _ in range(3)] == [""] * 3
        silent.setblocking(False)
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):
            silent.accept()
