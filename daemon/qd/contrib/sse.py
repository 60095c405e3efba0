"""Events of a job for an EventSource in a browser, in Starlette and FastAPI: `return sse(app.handle(id), request)`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import StreamingResponse

from qd.arguments.values import encode
from qd.jobs.plan import Handle


def sse(handle: Handle[Any], request: Request, *, keep_alive: float = 15.0) -> StreamingResponse:
    """A response that streams the events of a job, and at its end `event: end` with its status: `{"status": "done"}`.

    Args:
        handle: Of the job.
        request: With the header Last-Event-ID, which an EventSource sends after a break, the stream resumes there.
        keep_alive: Seconds without an event after which a comment is sent, so that no proxy closes the connection.
    """
    last = request.headers.get("last-event-id", "")
    # Longer ones are no numbers of events: Lua counts exactly up to 2^53.
    stream = handle.events(since=int(last) if last.isdecimal() and len(last) < 16 else 0)
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # for proxies: no copy, no buffer (nginx)

    async def written() -> AsyncGenerator[bytes]:
        events, task = aiter(stream), None
        try:
            while True:
                task = task or asyncio.ensure_future(anext(events, None))
                if not (await asyncio.wait([task], timeout=keep_alive))[0]:
                    yield b": still there\n\n"
                    continue
                event, task = task.result(), None
                if event is None:
                    break
                yield b"id: %d\ndata: %s\n\n" % (event.number, encode(event.data))
            yield b'event: end\ndata: {"status":"%s"}\n\n' % (stream.status or "unknown").encode()
        finally:
            if task is not None:
                task.cancel()

    return StreamingResponse(written(), headers=headers, media_type="text/event-stream")
