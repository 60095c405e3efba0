"""The web application: orders reports and shows them."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from qd.contrib.fastapi import lifespan
from reports import build, queue

app = FastAPI(title="Reports", lifespan=lifespan(queue))


@app.get("/")
async def index() -> dict[str, str]:
    return {"order": "POST /reports/MONTH", "fetch": "GET /reports/ID"}


@app.post("/reports/{month}", status_code=202)
async def order(month: int) -> dict[str, str]:
    return {"id": (await build.adispatch(month)).id}


@app.get("/reports/{id}")
async def fetch(id: str) -> dict[str, Any]:
    handle = build.handle(id)
    status = await handle.astatus()
    return {"status": status, "report": await handle.aresult(5) if status == "done" else None}
