"""The connection of an event loop: one for all of its tasks; nothing is repeated, mixed up or left open."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
import redis as redis_py
from redis.asyncio.connection import Connection

from qd import Qd, events
from qd.config.load import unread
from qd.config.settings import ConnectionSettings
from qd.drivers.keyspace import keys
from qd.drivers.redis import aio
from qd.drivers.redis.aio import AsyncConnection, AsyncQueue
from qd.drivers.redis.protocol import packed
from qd.errors import ConnectionLost, NoAnswer, QdError, ServerBusy, Unreachable, WrongPassword
from tests.contract.keyspace.test_queue import job
from tests.contract.redis.test_clients import PASSWORD, Rotating, locked, tls  # noqa: F401  fixtures
from tests.support.network import TIME, Certificates, FakeServer, Proxy, always
from tests.support.redis import Client
from tests.support.servers.redis import Server, free_port
from tests.support.servers.sentinel import Sentinel

QUEUE = "queues:default"


def made(url: str | None = None, **options: Any) -> Qd:
    """An app with the job `welcome`."""
    app = Qd(url, **options)
    app.settings = unread(app._code_settings)

    @app.job("welcome", result_ttl=60)
    def welcome(to: str) -> int:
        return len(to)

    return app


def sends(app: Qd, number: int) -> Coroutine[Any, Any, Any]:
    return app.call("welcome", b'{"to":"%d"}' % number).adispatch()


def qds(redis: Client) -> list[str]:
    """The connections that send scripts: those of qd."""
    return [line for line in redis.text("CLIENT", "LIST").splitlines() if "cmd=eval" in line]


def queue_on(url: str, patience: float = 5.0) -> AsyncQueue:
    return AsyncQueue(ConnectionSettings(name="redis", url=url), "", patience)


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.socket) as between:
        yield between


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it to forbid threads from now on."""

    def refused(*about: object) -> Any:
        raise AssertionError("a thread was used")

    def forbid() -> None:
        monkeypatch.setattr(asyncio, "to_thread", refused)
        monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "run_in_executor", refused)
        monkeypatch.setattr("qd.locks.lock.WaiterLimit.threads", property(refused))

    return forbid


# -- ways to a server


def test_redis_py_repeats_nothing_and_checks_nothing(server: Server, monkeypatch: pytest.MonkeyPatch):
    seen, connect = list[Any](), Connection.connect

    async def connected(self: Any) -> None:
        seen.append(self)
        await connect(self)

    monkeypatch.setattr(Connection, "connect", connected)
    monkeypatch.setattr(aio.Unix, "connect", connected)
    for url in (server.url, server.tcp_url):
        asyncio.run(sends(made(url), 1))
    assert [(each.retry.get_retries(), each.health_check_interval) for each in seen] == [(0, 0)] * 2


def carries_a_job(app: Qd, client: Client) -> None:
    async def main() -> None:
        await asyncio.gather(*(sends(app, number) for number in range(20)))

    asyncio.run(main())
    assert client.call("LLEN", QUEUE) == 20


@pytest.mark.parametrize("url", ["{0.url}", "{0.tcp_url}", "redis://localhost:{0.port}"])
def test_jobs_are_sent_over_tcp_and_unix_sockets(server: Server, redis: Client, url: str):
    carries_a_job(made(url.format(server)), redis)


def test_jobs_are_sent_to_a_database(server: Server, redis: Client):
    app = made(f"redis://127.0.0.1:{server.port}/3")
    asyncio.run(sends(app, 1))
    assert redis.call("LLEN", QUEUE) == 0
    redis.call("SELECT", 3)
    assert redis.call("LLEN", QUEUE) == 1


def test_a_credential_provider_is_called_at_each_connect(locked: Server):  # noqa: F811
    provider = Rotating(PASSWORD)
    app = made(redis=redis_py.Redis("127.0.0.1", locked.port, credential_provider=provider))
    for _ in range(2):
        asyncio.run(sends(app, 1))
    assert provider.calls == 2


def test_jobs_are_sent_over_tls_with_a_client_certificate(tls: tuple[int, Certificates]):  # noqa: F811
    port, files = tls
    options = "&".join(
        f"{name}={files.path(file)}"
        for name, file in (("ssl_ca_certs", "ca.crt"), ("ssl_certfile", "client.crt"), ("ssl_keyfile", "client.key"))
    )
    app = made(f"rediss://127.0.0.1:{port}?{options}")

    async def main() -> None:
        await asyncio.gather(*(sends(app, number) for number in range(2000)))

    asyncio.run(main())
    assert app.queue("default").clear() == 2000


def test_jobs_are_sent_to_the_primary_that_sentinels_name(sentinel: Sentinel, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(aio, "IDLE", 0.0)  # the sentinels are queried before each call
    app = made(sentinel.url)

    async def main() -> None:
        await sends(app, 1)
        before = sentinel.primary
        sentinel.failover()  # in this thread: a server dies with the thread that has started it
        assert sentinel.primary is not before
        await asyncio.gather(*(sends(app, number) for number in range(20)))

    asyncio.run(main())
    with sentinel.primary.client() as client:
        assert client.call("LLEN", QUEUE) >= 20


# -- errors


def error_of(send: Callable[[], object]) -> tuple[type, str]:
    with pytest.raises(QdError) as raised:
        send()
    return type(raised.value), str(raised.value)


def full(client: socket.socket) -> None:
    client.sendall(b"-ERR max number of clients reached\r\n")
    client.shutdown(socket.SHUT_WR)
    client.recv(1 << 16)


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        (ServerBusy, full),
        (Unreachable, always(b"+PONG\r\n")),
        (WrongPassword, always(b"-NOAUTH Authentication required.\r\n")),
        (ServerBusy, always(b"-LOADING Redis is loading the dataset in memory\r\n")),
        (Unreachable, lambda client: None),
    ],
)
def test_errors_are_those_of_a_connection_without_asyncio(kind: type, answer: Callable[[socket.socket], None]):
    with FakeServer(answer) as fake:
        app = made(fake.url)
        blocking = error_of(lambda: app.call("welcome", b'{"to":""}').dispatch())
        app.connections.close()
        found = error_of(lambda: asyncio.run(sends(app, 1)))
        assert found[0] is blocking[0] is kind
        assert (
            found[1].partition(" broke: ")[0] == blocking[1].partition(" broke: ")[0]
        )  # reset or closed: either may win


@pytest.mark.parametrize(
    "url", ["redis://127.0.0.1:{}", "unix:///nowhere/{}.sock", "redis://user:word@nowhere.invalid:{}"]
)
def test_a_server_that_is_not_there_is_unreachable(url: str):
    app = made(url.format(free_port()))
    blocking = error_of(lambda: app.call("welcome", b'{"to":""}').dispatch())

    async def main() -> list[Any]:
        return list(await asyncio.gather(*(sends(app, number) for number in range(50)), return_exceptions=True))

    assert {(type(error), str(error)) for error in asyncio.run(main())} == {blocking}
    assert blocking[0] is Unreachable


def test_a_wrong_password_is_refused(locked: Server):  # noqa: F811
    app = made(f"redis://:wrong@127.0.0.1:{locked.port}")
    assert error_of(lambda: asyncio.run(sends(app, 1)))[0] is WrongPassword


def test_after_readonly_the_other_calls_get_their_replies_and_the_next_connects_again():
    connections = list[int]()

    def replica(client: socket.socket) -> None:
        connections.append(1)
        client.recv(1 << 16)
        client.sendall(TIME)
        always(b"-READONLY You can't write against a read only replica.\r\n" if len(connections) == 1 else b":1\r\n")(
            client
        )

    async def main() -> None:
        app = made(fake.url)
        replies = await asyncio.gather(*(sends(app, number) for number in range(20)), return_exceptions=True)
        assert {type(reply) for reply in replies} == {ServerBusy}
        await sends(app, 1)
        app.connections.close()

    with FakeServer(replica) as fake:
        asyncio.run(main())
    assert len(connections) == 2


# -- broken connections


@pytest.mark.parametrize("reply", [1, 100, 350])
def test_a_connection_that_breaks_in_a_gather_repeats_no_job(proxy: Proxy, redis: Client, reply: int):
    app = made(proxy.url)

    async def main() -> list[Any]:
        await sends(app, 0)
        proxy.cut(reply=reply)
        sent = await asyncio.gather(*(sends(app, number) for number in range(500)), return_exceptions=True)
        proxy.heal()
        await sends(app, 0)
        return sent

    sent = asyncio.run(main())
    lost = [each for each in sent if isinstance(each, ConnectionLost)]
    assert lost  # the replies that the reset overtakes, too
    ids = Counter(payload.split('"id":"')[1][:32] for payload in redis.text("LRANGE", QUEUE, 0, -1))
    assert set(ids.values()) == {1}
    assert {each.id for each in sent if not isinstance(each, Exception)} <= set(ids)


def test_a_server_that_hangs_ends_every_wait_and_repeats_nothing(proxy: Proxy, redis: Client):
    async def main() -> None:
        queue = queue_on(proxy.url, 0.3)
        await queue.do(lambda found: found.push("a", job(0)))
        proxy.silence()
        calls = (queue.do(lambda found: found.push("a", job(1))) for _ in range(50))
        lost = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(each) for each in lost} == {NoAnswer}
        assert all("no answer in time (0.3 s); a change may have taken effect" in str(each) for each in lost)
        proxy.heal()
        await queue.do(lambda found: found.push("a", job(2)))
        queue.close()

    asyncio.run(main())
    assert redis.call("LLEN", "queues:a") == 2


def test_a_loop_that_was_blocked_for_longer_than_the_timeout_loses_no_reply(server: Server, redis: Client):
    async def main() -> None:
        queue = queue_on(server.url, 0.2)
        await queue.do(lambda found: found.push("a", job(0)))
        call = asyncio.create_task(queue.do(lambda found: found.push("a", job(1))))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(time.sleep, 0.4)
        await call
        queue.close()

    asyncio.run(main())
    assert redis.call("LLEN", "queues:a") == 2


def test_a_connection_that_the_server_has_closed_is_opened_again(
    server: Server, redis: Client, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(aio, "IDLE", 0.0)
    app = made(server.url)
    with asyncio.Runner() as runner:
        runner.run(sends(app, 1))
        (ours,) = qds(redis)
        redis.call("CLIENT", "KILL", "ID", ours.split()[0].removeprefix("id="))  # while the loop does not run
        runner.run(sends(app, 2))
    assert redis.call("LLEN", QUEUE) == 2


def test_a_timer_that_runs_before_the_reply_is_read_loses_no_reply(server: Server):
    """As in uvloop, which runs timers before it reads, once a blocked loop goes on."""

    async def main() -> None:
        connection = AsyncConnection(server.url, "", 5.0)
        link = await connection.make_usable()
        reply = link.send([packed(("ECHO", "late"))])
        link._flush()
        link.moved -= 60
        link._check()
        assert await reply == [b"late"]
        connection.close()

    asyncio.run(main())


def test_a_reply_without_a_call_closes_the_connection(caplog: pytest.LogCaptureFixture):
    def strange(client: socket.socket) -> None:
        client.recv(1 << 16)
        client.sendall(TIME)
        client.recv(1 << 16)
        client.sendall(b":1\r\n:1\r\n")
        client.recv(1)

    async def main() -> None:
        app = made(fake.url)
        await sends(app, 1)
        await asyncio.sleep(0.05)
        await sends(app, 2)

    with FakeServer(strange) as fake:
        asyncio.run(main())
    assert not caplog.records


# -- many tasks


def test_the_tasks_of_a_loop_share_a_connection(proxy: Proxy, redis: Client):
    app = made(proxy.url)

    async def main() -> None:
        await asyncio.gather(*(sends(app, number) for number in range(500)))

    asyncio.run(main())
    assert proxy.connections == 1
    assert redis.call("LLEN", QUEUE) == 500


def test_a_cancelled_task_takes_no_reply_of_another(server: Server):
    async def main() -> None:
        connection = AsyncConnection(server.url, "", 5.0)

        async def echo(number: int) -> None:
            assert await connection.ask(packed(("ECHO", number))) == b"%d" % number

        await echo(0)
        for turn in range(20):
            tasks = [asyncio.create_task(echo(number)) for number in range(200)]
            for _ in range(turn % 5):
                await asyncio.sleep(0)
            for task in tasks[turn % 3 :: 3]:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(end) for end in ends} <= {type(None), asyncio.CancelledError}
        connection.close()

    asyncio.run(main())


def test_a_cancelled_first_task_leaves_the_connection_to_the_others(proxy: Proxy, redis: Client):
    app = made(proxy.url)

    async def main() -> None:
        tasks = [asyncio.create_task(sends(app, number)) for number in range(3)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.gather(*tasks[1:])

    asyncio.run(main())
    assert proxy.connections == 1
    assert redis.call("LLEN", QUEUE) == 2


def test_a_script_that_the_server_has_forgotten_is_sent_again_and_runs_once(server: Server, redis: Client):
    app = made(server.url)

    async def main() -> None:
        for turn in range(5):
            redis.call("SCRIPT", "FLUSH")
            calls = [asyncio.create_task(sends(app, number)) for number in range(200)]
            while turn % 2 and not redis.call("LLEN", QUEUE):
                await asyncio.sleep(0)
            redis.call("SCRIPT", "FLUSH")
            await asyncio.gather(*calls)

    asyncio.run(main())
    assert redis.call("LLEN", QUEUE) == 1000


# -- what is sent


def test_everything_is_sent_as_without_asyncio(server: Server, redis: Client, no_threads: Callable[[], None]):
    app = made(server.url)
    seen = list[str]()
    app.on(events.JobQueueing)(lambda event: seen.append(f"queueing {event.queue}"))
    app.on(events.JobQueued)(lambda event: seen.append(f"queued {event.queue}"))
    app.on(events.UniqueJobSkipped)(lambda event: seen.append(f"skipped {event.queue}"))

    @app.job("once", unique="{number}")
    def once(number: int) -> None: ...

    def one() -> Any:
        return app.call("welcome", b'{"to":"y"}').using(queue="b")

    def calls() -> list[Any]:
        call = app.call("welcome", b'{"to":"x"}')
        return [call.using(delay=60), call.using(key="k", delay=60), once.bind(7), once.bind(7), one()]

    def found() -> tuple[list[object], list[str]]:
        counts = [
            redis.call(*words) for words in (("LLEN", QUEUE), ("ZCARD", f"{QUEUE}:delayed"), ("LLEN", "queues:b"))
        ]
        told = seen.copy()
        seen.clear()
        redis.call("FLUSHDB")
        return counts, told

    def expected() -> tuple[list[object], list[str]]:
        first = [call.dispatch() for call in calls()]
        app.dispatch(*calls())
        app.chain(one(), catch=one()).dispatch()
        app.batch(one(), then=one()).dispatch()
        assert first[2].id == first[3].id
        return found()

    async def main() -> tuple[list[object], list[str]]:
        await sends(app, 1)
        redis.call("FLUSHDB")
        seen.clear()
        no_threads()
        first = [await call.adispatch() for call in calls()]
        await app.adispatch(*calls())
        await app.chain(one(), catch=one()).adispatch()
        batch = await app.batch(one(), then=one()).adispatch()
        with pytest.raises(TimeoutError, match="1 job left"):
            await batch.aresult(0.01)
        assert first[2].id == first[3].id
        return found()

    assert expected() == asyncio.run(main())


def test_many_jobs_at_a_time_are_made_in_a_thread(server: Server, redis: Client):
    app = made(server.url)
    threads = set[str]()

    @app.payload_hook
    def note(connection: str, queue: str, payload: Any) -> dict[str, Any]:
        threads.add(threading.current_thread().name)
        return {}

    async def main(count: int) -> bool:
        threads.clear()
        await app.adispatch(*(app.call("welcome", b'{"to":"x"}') for _ in range(count)))
        return threads == {threading.current_thread().name}

    assert asyncio.run(app.adispatch()) == []
    assert asyncio.run(main(100))
    assert not asyncio.run(main(101))
    assert redis.call("LLEN", QUEUE) == 201


def test_a_result_is_waited_for_without_threads(server: Server, redis: Client, no_threads: Callable[[], None]):
    app = made(server.url)

    async def main() -> None:
        handle = await sends(app, 1)
        no_threads()
        with pytest.raises(TimeoutError):
            await handle.aresult(0.05)
        waiting = [asyncio.create_task(handle.aresult(20)) for _ in range(100)]
        await asyncio.sleep(0.05)
        redis.call("HSET", keys.kept(handle.id), "status", "done", "value", "3")
        assert await asyncio.gather(*waiting) == [3] * 100

    asyncio.run(main())


def test_locks_and_limiters_use_no_threads(server: Server, redis: Client, no_threads: Callable[[], None]):
    app = made(server.url)

    async def main() -> None:
        await sends(app, 1)
        no_threads()
        async with app.lock("report", ttl=30) as lock:
            assert lock.held
            owner = await lock.aowner()
            assert owner is not None
            assert owner.pid == os.getpid()
            await lock.aextend(60)
            assert not await app.lock("report", ttl=30).aacquire(timeout=0.05)
            waiting = asyncio.create_task(app.lock("report", ttl=30).aacquire())
            while not redis.call("ZCARD", "qd:mutex:{report}:line"):
                await asyncio.sleep(0.01)
        assert await waiting
        async with app.limiter("mail", 1, per=0.05) as limiter:
            assert not await limiter.atry_acquire()
            assert await limiter.aacquire(5)

    asyncio.run(main())


def test_a_lock_is_renewed_while_the_loop_is_blocked(server: Server, redis: Client):
    app = made(server.url)

    async def main() -> None:
        async with app.lock("report", ttl=0.5, renew=True) as lock:
            time.sleep(1)
            assert lock.held
            assert redis.call("EXISTS", "qd:mutex:{report}")

    asyncio.run(main())


# -- loops, threads, processes


def clients(redis: Client) -> int:
    return len(qds(redis))


def test_each_loop_closes_its_connections(server: Server, redis: Client):
    app = made(server.url)
    for number in range(5):
        asyncio.run(sends(app, number))
        assert clients(redis) == 0


def test_a_loop_that_was_closed_without_shutdown_leaves_nothing_open(
    server: Server, redis: Client, recwarn: pytest.WarningsRecorder
):
    app = made(server.url)
    for number in range(5):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(sends(app, number))
        loop.close()
        del loop
    asyncio.run(sends(app, 5))
    gc.collect()  # of those loops that were not collected before
    assert clients(redis) == 0
    assert any(warning.category is ResourceWarning for warning in recwarn)
    assert redis.call("LLEN", QUEUE) == 6


def test_loops_in_several_threads_have_connections_of_their_own(server: Server, redis: Client):
    app, errors = made(server.url), list[BaseException]()

    async def main() -> None:
        for _ in range(20):
            await asyncio.gather(*(sends(app, number) for number in range(20)))

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert errors == []
    assert redis.call("LLEN", QUEUE) == 4 * 400
    assert clients(redis) == 0


def test_close_all_closes_the_connections_of_other_loops(server: Server, redis: Client):
    app = made(server.url)

    async def main() -> None:
        await sends(app, 1)
        assert clients(redis) == 1
        await asyncio.to_thread(app.connections.close_all)
        while clients(redis):
            await asyncio.sleep(0.01)
        await sends(app, 2)
        app.connections.close()
        while clients(redis):
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_forked_process_uses_a_connection_of_its_own(server: Server, redis: Client):
    app = made(server.url)

    async def main() -> None:
        await sends(app, 1)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                asyncio.run(sends(app, 2))
                app.connections.close_all()
                gc.collect()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        await asyncio.gather(*(sends(app, number) for number in range(20)))

    asyncio.run(main())
    assert redis.call("LLEN", QUEUE) == 22
