"""qd.contrib.fastapi with the real FastAPI: endpoints that send, a loop that is not blocked, connections that are closed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated

import httpx
import pytest
from fastapi import Depends, FastAPI

from qd import Qd
from qd.contrib.fastapi import get_qd, lifespan
from qd.errors import ConfigError
from tests.support.redis import Client
from tests.support.servers.redis import Server
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("clean_redis")


def shop(qd: Qd, inner=None) -> FastAPI:
    app = FastAPI(lifespan=lifespan(qd, inner))

    @qd.job("welcome")
    def welcome(to: str) -> None: ...

    @app.post("/async/{to}")
    async def in_loop(to: str) -> str:
        return (await welcome.adispatch(to)).id

    @app.post("/sync/{to}")
    def in_thread(to: str) -> str:
        return welcome.dispatch(to).id

    @app.post("/depends/{to}")
    def depends(to: str, queue: Annotated[Qd, Depends(get_qd)]) -> str:
        return queue.queue("mail").push("welcome", {"to": to}).id

    @app.get("/alive")
    async def alive() -> str:
        return "yes"

    return app


def serving(app: FastAPI, visit: Callable[[httpx.AsyncClient], Awaitable[None]]) -> None:
    """Call `visit` with a client during the lifespan of the app, as a server runs it."""

    async def main() -> None:
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://shop") as client,
        ):
            await visit(client)

    asyncio.run(main())


def producers(redis: Client) -> set[str]:
    """The IDs of the current connections; those of an earlier test may still be closing."""
    return {line.split()[0] for line in redis.text("CLIENT", "LIST").splitlines() if "cmd=client" not in line}


def test_endpoints_send_and_the_lifespan_closes_the_connections_of_all_threads(server: Server, redis: Client):
    before, others = producers(redis), set(threading.enumerate())

    async def visit(client: httpx.AsyncClient) -> None:
        for path in ("/async/a", "/sync/b", "/depends/c"):
            assert (await client.post(path)).status_code == 200
        assert producers(redis) - before
        held.extend(set(threading.enumerate()) - others)  # the end of a thread would close its connection too

    held: list[threading.Thread] = []
    app = shop(Qd(server.url))
    closed = app.router.lifespan_context

    @asynccontextmanager
    async def looked_at(app):
        async with closed(app):
            yield
        eventually(lambda: not producers(redis) - before, what="every connection closed while its thread lives")
        assert all(thread.is_alive() for thread in held)

    app.router.lifespan_context = looked_at
    serving(app, visit)
    assert held
    assert redis.call("LLEN", "queues:default") == 2
    assert redis.call("LLEN", "queues:mail") == 1
    redis.call("FLUSHALL")


def test_a_slow_server_does_not_block_the_loop(server: Server, redis: Client):
    def command_is_sent() -> bool:
        return any("cmd=evalsha" in line or "cmd=eval" in line for line in redis.text("CLIENT", "LIST").splitlines())

    async def visit(client: httpx.AsyncClient) -> None:
        redis.call("CLIENT", "PAUSE", 60_000, "WRITE")
        sending = asyncio.create_task(client.post("/async/a"))
        await asyncio.to_thread(eventually, command_is_sent)
        assert (await client.get("/alive")).json() == "yes"
        assert not sending.done()
        redis.call("CLIENT", "UNPAUSE")
        assert (await sending).status_code == 200

    try:
        serving(shop(Qd(server.url)), visit)
    finally:
        redis.call("CLIENT", "UNPAUSE")
    assert redis.call("LLEN", "queues:default") == 1
    redis.call("FLUSHALL")


def test_an_inner_lifespan_runs(server: Server):
    events: list[object] = []

    @asynccontextmanager
    async def own(app):
        events.append("begin")
        yield
        events.append(isinstance(app.state.qd, Qd))

    async def visit(client: httpx.AsyncClient) -> None:
        events.append((await client.get("/alive")).json())

    serving(shop(Qd(server.url), own), visit)
    assert events == ["begin", "yes", True]


def test_the_state_of_an_inner_lifespan_is_passed_on():
    @asynccontextmanager
    async def own(app):
        yield {"pool": 7}

    async def main() -> None:
        async with lifespan(Qd("redis://localhost:1"), own)(FastAPI()) as state:
            assert state == {"pool": 7}

    asyncio.run(main())


def test_a_broken_configuration_raises_at_startup(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("QD_REDIS_URL", "REDIS_URL"):
        monkeypatch.delenv(name, raising=False)

    async def visit(client: httpx.AsyncClient) -> None:
        pytest.fail("the app started")

    with pytest.raises(ConfigError, match="connection 'redis' has no url"):
        serving(shop(Qd()), visit)


def test_get_qd_without_the_lifespan_raises_with_a_hint():
    app = FastAPI()

    @app.get("/")
    def index(queue: Annotated[Qd, Depends(get_qd)]) -> None: ...

    async def visit(client: httpx.AsyncClient) -> None:
        await client.get("/")

    with pytest.raises(RuntimeError, match=r"FastAPI\(lifespan="):
        serving(app, visit)
