"""qd with FastAPI (and Starlette): a lifespan that checks the configuration first and closes the connections last.

app = FastAPI(lifespan=lifespan(queue))
async def endpoint(queue: Annotated[Qd, Depends(get_qd)]): await welcome.adispatch(...)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any

from fastapi import FastAPI
from starlette.requests import HTTPConnection

from qd.app import Qd

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


def lifespan(qd: Qd, inner: Lifespan | None = None) -> Lifespan:
    """For FastAPI(lifespan=...). inner: your own lifespan, which runs inside this one.

    Reads the settings at the start, so that the server does not start with an invalid configuration (ConfigError). Closes
    the connections of all threads at the end.
    """

    @asynccontextmanager
    async def around(app: FastAPI) -> AsyncGenerator[Any]:
        settings = await asyncio.to_thread(lambda: qd.settings)
        settings.connection(None)
        app.state.qd = qd
        try:
            async with inner(app) if inner else nullcontext() as state:
                yield state
        finally:
            await asyncio.to_thread(qd.connections.close_all)

    return around


def get_qd(connection: HTTPConnection) -> Qd:
    """A dependency: the Qd that `lifespan` was given."""
    qd = getattr(connection.app.state, "qd", None)
    if not isinstance(qd, Qd):
        raise RuntimeError("get_qd found no Qd: make the app with FastAPI(lifespan=qd.contrib.fastapi.lifespan(queue))")
    return qd
