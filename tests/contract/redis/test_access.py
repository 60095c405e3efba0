"""Access: passwords, ACL users with minimal rights, TLS with a private certificate authority, urls."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qd.config.settings import ConnectionSettings
from qd.drivers.base import ClientIdentity
from qd.drivers.redis import acl
from qd.drivers.redis.connection import RedisConnection
from qd.drivers.redis.queue import RedisQueue
from qd.drivers.types import LaneTurn, Released
from qd.errors import ConfigError, ConnectionLost, ServerRefused, Unusable, WrongPassword
from qd.payload.reservation import answered, saving
from tests.contract.keyspace.test_queue import job, take
from tests.support.keeper import beat
from tests.support.network import Certificates
from tests.support.payloads import push_many
from tests.support.programs import missing
from tests.support.redis import Client, Seen
from tests.support.servers.redis import Server, free_port

Open = Callable[[str], RedisQueue]
SECRET = "s3cret/with:all@kinds?"
QUOTED = "s3cret%2Fwith%3Aall%40kinds%3F"

# The commands that each kind of process needs, and no others.
PRODUCER = "+evalsha +eval +time +rpush +zadd"
WORKER = f"{PRODUCER} +lindex +lpop +lpush +lrem +llen +blpop +zrem +zscore +zcard +zrange +zrangebyscore"
WORKER += " +zremrangebyrank +hget +hset +hdel +hlen +exists +ltrim +lrange +zmscore +hmget +hkeys"
KEEPER = f"{WORKER} +hgetall +expire +get"


@pytest.fixture
def connect() -> Iterator[Open]:
    """connect(url): a connection, closed at the end."""
    opened: list[RedisQueue] = []

    def make(url: str) -> RedisQueue:
        settings = ConnectionSettings(name="redis", url=url, retry_after=30.0)
        opened.append(RedisQueue(settings, ClientIdentity("Tok3nTok3n", 1, title="qd:test:worker")))
        return opened[-1]

    yield make
    for queue in opened:
        queue.close()


@pytest.fixture
def seen(redis: Client) -> Seen:
    return Seen(redis)


def url_of(server: Server, user: str = "", password: str = "") -> str:
    return f"redis://{user}:{password}@127.0.0.1:{server.port}/0"


# -- passwords and users


@pytest.fixture
def locked(server: Server, redis: Client) -> Iterator[Server]:
    """A password for the default user, and the user carol with the same password."""
    redis.call("ACL", "SETUSER", "carol", "on", f">{SECRET}", "~queues:*", "+@all", "-flushall")
    redis.call("CONFIG", "SET", "requirepass", SECRET)
    yield server
    redis.call("CONFIG", "SET", "requirepass", "")
    redis.call("ACL", "DELUSER", "carol")


@pytest.mark.parametrize("user", ["", "default", "carol"])
def test_the_right_password_is_accepted(locked, connect, user):
    queue = connect(url_of(locked, user, QUOTED))
    queue.push("a", job(1))
    assert queue.ack(take(queue))


def test_a_password_is_accepted_over_a_unix_socket(locked, connect):
    queue = connect(f"unix://carol:{QUOTED}@{locked.socket}?db=2")
    queue.push("a", job(1))
    assert queue.ack(take(queue))


@pytest.mark.parametrize(
    ("user", "password", "word"),
    [
        ("", "", "NOAUTH|unauthenticated"),
        ("", "wr0ng", "WRONGPASS"),
        ("carol", "wr0ng", "WRONGPASS"),
        ("nobody", "wr0ng", "WRONGPASS"),
    ],
)
def test_a_wrong_password_is_an_error_that_does_not_show_it(locked, connect, user, password, word):
    queue = connect(url_of(locked, user, password) if password else locked.tcp_url)
    for call in (lambda: queue.push("a", job(1)), lambda: queue.turn(None, ["a"]), lambda: queue.sizes("a")):
        with pytest.raises(WrongPassword, match=word) as caught:
            call()
        assert "wr0ng" not in str(caught.value)


def test_a_password_for_a_server_without_one_is_an_error(server, connect):
    with pytest.raises(WrongPassword, match="without any password"):
        connect(url_of(server, "", QUOTED)).push("a", job(1))


@pytest.fixture
def users(server: Server, redis: Client) -> Iterator[Callable[[str], str]]:
    """users("+get ..."): the url of a user with only these commands, on qd's keys."""

    def make(commands: str) -> str:
        redis.call("ACL", "SETUSER", "narrow", "reset", "on", ">pw", "~queues:*", "~qd:*", "-@all", *commands.split())
        return url_of(server, "narrow", "pw")

    yield make
    redis.call("ACL", "DELUSER", "narrow")


@pytest.mark.fault(
    "40",
    "pickles, PHP objects, names like os.system; unsigned and changed payloads; users with few rights; a search for secrets",
    "no forbidden job runs; each is rejected with a reason; no unneeded right is required; no secret appears anywhere",
)
def test_a_producer_needs_only_the_listed_commands(users, connect, seen):
    queue = connect(users(PRODUCER))
    queue.push("a", job(1))
    queue.later("a", job(2), 0.5)
    push_many(queue, [("a", job(3), None), ("a", job(4), 9.0)])
    assert seen.everywhere("a").total() == 4
    for call in (lambda: queue.clear("a"), lambda: queue.turn(None, ["a"]), lambda: queue.connection.call("FLUSHALL")):
        with pytest.raises((ServerRefused, WrongPassword), match=r"NOPERM|can't run this command|has no permissions"):
            call()
    assert seen.everywhere("a").total() == 4


@pytest.mark.fault(
    "40",
    "pickles, PHP objects, names like os.system; unsigned and changed payloads; users with few rights; a search for secrets",
    "no forbidden job runs; each is rejected with a reason; no unneeded right is required; no secret appears anywhere",
)
def test_a_worker_needs_only_the_listed_commands(users, connect, seen):
    queue = connect(users(WORKER))
    push_many(queue, [("a", job(n), None) for n in range(6)] + [("a", b"not JSON", None)])
    assert queue.ack(take(queue))
    held = take(queue)
    assert queue.held(["a"]) == held
    assert queue.release(held, Released(answered(held.member, held.mark), 0.5))
    held = take(queue)
    assert queue.release(held, Released(answered(held.member, held.mark), head=True))
    held = take(queue)
    assert queue.checkpoint(held, saving(held.member, held.mark, b"7"))
    (mine,) = seen.reserved("a")
    assert queue.bury(held._replace(member=mine), b"{}", b"raw")
    seen.call("ZADD", "a", "delayed", 1, job(9))
    seen.call("LPUSH", "a", "", rb'{"job":"Illuminate\\Queue\\CallQueuedHandler@call","attempts":0}')
    done = None
    while (turn := queue.turn(done, ["a"])).reserved is not None:
        done = turn.reserved
    assert seen.tokens("a")
    queue.wait(["a"], 5, -1)
    read, write = os.pipe()
    os.write(write, b"\0")
    queue.push("a", job(10))
    queue.wait(["a"], 5, read)  # a token is put back
    queue.death("a", "Tok3nTok3n.1.1")
    assert queue.sizes("a").ready == 2
    push_many(queue, [("a", job(n), None) for n in range(20, 40)])
    held_lanes = queue.turn_lanes(LaneTurn(("a",), lanes=(1, 2))).jobs
    assert queue.held_lanes(("a",), (1, 2)) == list(held_lanes)
    assert queue.turn_lanes(LaneTurn(("a",), done=held_lanes[:1], back=held_lanes[1:])).lost == ()
    queue.leave_lanes()
    os.close(read)
    os.close(write)


LACKING = [
    "zadd",
    "hset",
    "lpop",
    "lrem",
    "zrem",
    "hdel",
    "exists",
    "lindex",
    "zrangebyscore",
    "zremrangebyrank",
    "rpush",
]


@pytest.mark.parametrize("command", LACKING)
@pytest.mark.parametrize("head", ["a job", "a job of PHP", "no payload", "a due one"])
def test_a_reservation_without_a_needed_right_changes_nothing(users, connect, server, seen, command: str, head: str):
    php = rb'{"job":"Illuminate\\Queue\\CallQueuedHandler@call","attempts":0}'
    front = {"a job": [], "a job of PHP": [php], "no payload": [b"not JSON"], "a due one": []}[head]
    if head == "a due one":
        seen.call("ZADD", "a", "delayed", 1, job(1))
    else:
        seen.call("RPUSH", "a", "", *front, job(1), job(2))
    before = seen.everywhere("a")
    narrow = connect(users(WORKER + f" -{command}"))
    refused = 0
    for _ in range(3):
        try:
            narrow.turn(None, ["a"])
            break  # this head does not need the command
        except (ServerRefused, WrongPassword):
            refused += 1
            assert seen.everywhere("a") == before
    queue = connect(server.tcp_url)
    queue.owner, queue.base = "Tok3nTok3n/2", "Tok3nTok3n.2."  # another worker: the first may have reserved one
    while (turn := queue.turn(None, ["a"])).reserved is not None:
        queue.ack(turn.reserved)
    if refused:
        assert seen.everywhere("a").total() == len(front)
        assert len(seen.failed("a")) == (head == "no payload")


def test_a_keeper_needs_only_the_listed_commands(users, connect, seen):
    queue = connect(users(KEEPER))
    push_many(queue, [("a", job(1), None), ("a", job(2), None)])
    held = take(queue)
    seen.call("ZADD", "a", "delayed", 1, job(3))
    seen.call("ZADD", "a", "reserved", 1, job(4))
    seen.call("RPUSH", "a", "notify", *["1"] * 300)
    done = beat(queue, "a", slots=[1], report="{}")
    assert (done.reclaimed, done.lost) == (1, [])
    queue.note_death("a", "Tok3nTok3n.1.1", b"{}")
    assert queue.owners("a") == [queue.owner]
    assert queue.give_back("a", queue.owner, held.member, Released(held.member))
    assert queue.connection.call("HGETALL", "qd:masters")


@pytest.mark.parametrize("commands", ["", PRODUCER, f"{KEEPER} -expire", f"{KEEPER} -lpop -lpush -sadd"])
def test_the_check_of_rights_leaves_nothing_behind(users, connect, redis, commands: str):
    lacks = acl.missing(connect(users(commands)).connection, "", "a")
    assert {"sadd", "expire", "lpop"} & lacks
    left = {key: redis.call("PTTL", key) for key in redis.call("KEYS", "*")}
    gone = -2  # expired meanwhile
    assert all(ms == gone or 0 <= ms <= 5000 for ms in left.values()), left
    for key in left:
        redis.call("DEL", key)


def test_forbidden_keys_are_not_reported_as_missing_commands(server, connect, redis):
    redis.call("ACL", "SETUSER", "narrow", "reset", "on", ">pw", "+@all", "~queues:a")
    try:
        assert acl.missing(connect(url_of(server, "narrow", "pw")).connection, "", "a") == set()
    finally:
        redis.call("ACL", "DELUSER", "narrow")


def test_a_connection_sets_its_name(server, connect, seen):
    connect(server.tcp_url).turn(None, ["a"])
    assert " name=qd:test:worker " in seen.client.text("CLIENT", "LIST")


# -- TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module", params=["no", "yes"], ids=["server certificate", "client certificates"])
def tls(request: pytest.FixtureRequest, certificates: Certificates) -> Iterator[tuple[int, str]]:
    """(port, whether clients need a certificate) of a server with TLS."""
    port = free_port()
    options = ["--tls-port", str(port), "--tls-auth-clients", request.param]
    for option, name in (("cert", "server.crt"), ("key", "server.key"), ("ca-cert", "ca.crt")):
        options += [f"--tls-{option}-file", certificates.path(name)]
    server = Server(*options)
    try:
        server.start()
    except RuntimeError as error:
        server.stop()
        missing(f"a redis-server built with TLS ({error})")
    yield port, request.param
    server.stop()


def tls_url(port: int, certificates: Certificates, clients: str, *, ca: str = "ca.crt", host: str = "127.0.0.1") -> str:
    url = f"rediss://{host}:{port}/1?ssl_ca_certs={certificates.path(ca)}"
    own = f"&ssl_certfile={certificates.path('client.crt')}&ssl_keyfile={certificates.path('client.key')}"
    return url + (own if clients == "yes" else "")


def test_jobs_are_pushed_and_worked_off_over_tls(tls, certificates, connect):
    queue = connect(tls_url(tls[0], certificates, tls[1]))
    queue.wait(["a"], 0.05, -1)
    push_many(queue, [("a", job(n), None) for n in range(2000)])
    queue.push("a", b'{"job":"t","data":"%b","attempts":0}' % (b"x" * 1_000_000))
    done, lengths = None, []
    while (turn := queue.turn(done, ["a"])).reserved is not None:
        assert turn.acked is not False
        done = turn.reserved
        lengths.append(len(done.member))
    assert len(lengths) == 2001
    assert lengths[-1] > 1_000_000


def test_a_wait_over_tls_is_not_ended_by_session_tickets(tls, certificates, connect):
    settings = ConnectionSettings(name="redis", url=tls_url(tls[0], certificates, tls[1]), retry_after=30.0)
    queue = RedisQueue(
        settings, ClientIdentity("Tok3nTok3n", 1)
    )  # without a name nothing is sent first: session tickets arrive during the wait
    queue.connection.timeout = 0.3
    read, write = os.pipe()
    queue.connection.send(b"*3\r\n$5\r\nBLPOP\r\n$4\r\nnone\r\n$1\r\n0\r\n")
    assert queue.connection.readable(0.2, read) is False
    os.write(write, b"\0")
    queue.wait(["none"], 30.0, read)
    queue.close()
    os.close(read)
    os.close(write)


def test_a_certificate_of_an_unknown_authority_is_rejected(tls, certificates, connect):
    port, clients = tls
    other = "server.crt"  # some certificate that has not signed the server's
    for url in (tls_url(port, certificates, clients, ca=other), f"rediss://127.0.0.1:{port}"):
        with pytest.raises(Unusable, match=r"certificate is refused: (self-signed|unable)"):
            connect(url).push("a", job(1))


def test_a_certificate_for_another_host_is_rejected(tls, certificates, connect):
    port, clients = tls
    with pytest.raises(Unusable, match=r"certificate is refused: Hostname mismatch"):
        connect(tls_url(port, certificates, clients, host="localhost")).push("a", job(1))


def test_certificate_checks_can_be_disabled_explicitly(tls, certificates, connect):
    port, clients = tls
    url = tls_url(port, certificates, clients, host="localhost")
    queue = connect(url.replace(certificates.path("ca.crt"), certificates.path("client.crt")) + "&ssl_cert_reqs=none")
    queue.push("a", job(1))
    assert queue.ack(take(queue))


def test_a_client_without_its_certificate_is_rejected(tls, certificates, connect):
    port, clients = tls
    queue = connect(tls_url(port, certificates, "no"))
    if clients == "no":
        queue.push("a", job(1))
        assert queue.ack(take(queue))
    else:
        with pytest.raises(ConnectionLost, match=r"requires a client certificate|reset"):
            queue.push("a", job(1))


def test_an_unknown_database_number_is_a_configuration_error(server, connect):
    with pytest.raises(Unusable, match="has no such database"):
        connect(f"{server.url}?db=99").push("a", job(1))


def test_a_plain_connection_to_a_tls_port_fails(tls, certificates, connect):
    with pytest.raises(ConnectionLost):
        connect(f"redis://127.0.0.1:{tls[0]}").push("a", job(1))


# -- urls


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://h", "unknown kind of url 'http:'"),
        ("redis://h:port", "needs a number as port"),
        ("redis://h/name", "needs a number as port and as database"),
        ("unix:///r.sock?db=x", "needs a number"),
        ("rediss://h?ssl_ca_cert=/x", r"unknown option 'ssl_ca_cert'.*did you mean 'ssl_ca_certs'\?"),
        ("redis://h?password=s3cret", "unknown option 'password'"),
        ("rediss://h?ssl_cert_reqs=maybe", "is neither required nor none"),
        ("rediss://h?ssl_ca_certs=/nowhere/ca", r"cannot be read \(ssl_ca_certs=/nowhere/ca\): no such file"),
        ("rediss://h?ssl_certfile=/nowhere/c", r"cannot be read \(ssl_certfile=/nowhere/c\)"),
    ],
)
def test_an_invalid_url_is_a_configuration_error(url, expected):
    with pytest.raises(ConfigError, match=expected) as caught:
        RedisConnection(url)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("redis://", "localhost:6379/0"),
        ("redis://h:7/3", "h:7/3"),
        ("redis://h?db=4", "h:6379/4"),
        ("redis://[::1]:7", "::1:7/0"),
        ("rediss://u:p@h", "h:6379/0"),
        ("unix:///a%20b/r.sock?db=2", "unix:/a b/r.sock"),
    ],
)
def test_the_target_of_a_url_names_host_port_and_database(url, place):
    assert RedisConnection(url).target.place == place


def test_a_missing_unix_socket_is_an_error(tmp_path: Path):
    with pytest.raises(ConnectionLost, match=r"nothing\.sock does not answer: no such file"):
        RedisConnection(f"unix://{tmp_path}/nothing.sock").call("PING")
