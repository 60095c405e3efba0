"""Events of a job for browsers, in Starlette and FastAPI: server-sent events, as an EventSource reads them.

@api.get("/jobs/{id}/events")
async def events(id: str, request: Request) -> StreamingResponse:
    return sse(app.handle(id), request)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import StreamingResponse

from qd.arguments.values import encode
from qd.jobs.plan import EventStream, Handle

HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # for proxies: no copy, no buffer (nginx)


def sse(handle: Handle[Any], request: Request, *, keep_alive: float = 15.0) -> StreamingResponse:
    """A response that streams the events of a job, and at its end `event: end` with its status: `{"status": "done"}`.

    Args:
        handle: Of the job.
        request: If it has the header Last-Event-ID, as an EventSource sends it after a break, the stream resumes there.
        keep_alive: Seconds without an event after which a comment is sent, so that no proxy closes the connection.

    Example:
        `return sse(app.handle(id), request)`
    """
    last = request.headers.get("last-event-id", "")
    stream = handle.events(since=int(last) if last.isdecimal() and len(last) < 16 else 0)
    return StreamingResponse(written(stream, keep_alive), headers=HEADERS, media_type="text/event-stream")


async def written(stream: EventStream, keep_alive: float) -> AsyncGenerator[bytes]:
    events = aiter(stream)
    task = asyncio.ensure_future(anext(events, None))
    try:
        while True:
            if not (await asyncio.wait([task], timeout=keep_alive))[0]:
                yield b": still there\n\n"
            elif (event := task.result()) is None:
                break
            else:
                yield b"id: %d\ndata: %s\n\n" % (event.number, encode(event.data))
                task = asyncio.ensure_future(anext(events, None))
        yield b'event: end\ndata: {"status":"%s"}\n\n' % (stream.status or "unknown").encode()
    finally:
        task.cancel()
