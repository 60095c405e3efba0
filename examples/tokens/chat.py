"""A chat whose answers are written by jobs, token by token, and read by the browser as they come.

POST /answers                 sends a job that asks the model
GET /answers/ID/events        streams its tokens; a browser that loses its connection resumes where it was
DELETE /answers/ID            cancels it: the job stops between two tokens
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, StreamingResponse

from qd import Qd, current_job
from qd.contrib.fastapi import lifespan
from qd.contrib.sse import sse

queue = Qd()
web = FastAPI(lifespan=lifespan(queue))


async def model(prompt: str) -> AsyncIterator[str]:
    """Stands for a client of a language model: fifty tokens a second."""
    text = f"You asked: {prompt}. A job writes this answer, and you may close this page meanwhile: reload it, and "
    for word in (text + "the answer goes on where it is by now. " * 20).split():
        await asyncio.sleep(0.02)
        yield word + " "


@queue.job("chat.answer", tries=3, timeout=300)
async def answer(prompt: str) -> None:
    """If its worker dies, the next attempt writes the answer again. Its first event tells the page to begin anew."""
    job = current_job()
    job.emit({"attempt": job.attempt})
    async for token in model(prompt):
        job.emit({"token": token})


@web.post("/answers")
async def ask(prompt: str) -> dict[str, str]:
    return {"id": (await answer.adispatch(prompt)).id}


@web.get("/answers/{id}/events")
async def events(id: str, request: Request) -> StreamingResponse:
    return sse(queue.handle(id), request)


@web.delete("/answers/{id}")
async def cancel(id: str) -> dict[str, bool]:
    return {"cancelled": await queue.handle(id).acancel()}


@web.get("/")
def page() -> HTMLResponse:
    return HTMLResponse((Path(__file__).parent / "page.html").read_text())
