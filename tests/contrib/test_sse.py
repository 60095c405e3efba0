"""qd.contrib.sse with a real uvicorn, a real `qd work`, and clients that lose their connection: httpx and Chromium."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, StreamingResponse

from qd import Qd
from qd.contrib.fastapi import lifespan
from qd.contrib.sse import sse
from tests.support.project import MakeProject, Project, ready
from tests.support.redis import FAILED
from tests.support.servers.redis import Server
from tests.support.waiting import eventually

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.leaves("qd:job:*", *FAILED.args)]
JOBS = """
@app.job("write", tries=1)
def write(count: int, fails: bool = False) -> None:
    for n in range(count):
        current_job().emit({"token": f"w{n}", "text": "a\\nb"})
        time.sleep(0.002)
    end = time.monotonic() + 60
    while not Path("go").exists() and time.monotonic() < end:
        time.sleep(0.01)
    if fails:
        raise ValueError("broken")
"""
PAGE = """<!doctype html><script>
const seen = window.seen = [];
const source = new EventSource("/jobs/" + location.hash.slice(1) + "/events");
source.onmessage = event => seen.push([event.lastEventId, JSON.parse(event.data).token]);
source.addEventListener("end", event => { window.ended = JSON.parse(event.data).status; source.close(); });
</script>"""


@pytest.fixture
def shop(project: MakeProject) -> Project:
    found = project(jobs=JOBS)
    found.allowed.add("go")
    return found


class Site:
    """A FastAPI app in a real uvicorn, and how many streams it has open."""

    def __init__(self, queue: Qd) -> None:
        self.queue, self.open, self.resumed = queue, 0, list[str]()
        app = FastAPI(lifespan=lifespan(queue))

        @app.get("/")
        def page() -> HTMLResponse:
            return HTMLResponse(PAGE)

        @app.get("/jobs/{id}/events")
        async def events(id: str, request: Request) -> StreamingResponse:
            self.resumed.append(request.headers.get("last-event-id", ""))
            return sse(queue.handle(id), request, keep_alive=0.3)

        self.server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=5))
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        eventually(lambda: self.server.started)
        self.url = f"http://127.0.0.1:{self.server.servers[0].sockets[0].getsockname()[1]}"

    def send(self, count: int, **more: object) -> str:
        return self.queue.queue("default").push("write", {"count": count, **more}).id

    def drop_connections(self) -> None:
        """As a proxy or network would."""
        loop: Any = next(iter(self.server.servers)).get_loop()
        for each in list(self.server.server_state.connections):
            loop.call_soon_threadsafe(each.transport.abort)

    def close(self) -> None:
        self.server.should_exit = True
        self.thread.join(20)
        assert not self.thread.is_alive()


@pytest.fixture
def site(server: Server) -> Iterator[Site]:
    found = Site(Qd(server.url))
    yield found
    found.close()


def read(
    site: Site, id: str, last: str = "", most: int = 0, silent: Any = None
) -> tuple[list[tuple[int, Any]], list[str]]:
    """A connection: its events as (id, data), and the other lines. Drops the connection after `most` events. silent: called
    with each comment."""
    seen, others, number, kind = list[tuple[int, Any]](), list[str](), "", ""
    headers = {"Last-Event-ID": last} if last else {}
    with httpx.stream("GET", f"{site.url}/jobs/{id}/events", headers=headers, timeout=60) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-cache"
        for line in response.iter_lines():
            name, _, value = line.partition(": ")
            if name == "id":
                number = value
            elif name == "event":
                kind = value
            elif name == "data" and not kind:
                seen.append((int(number), json.loads(value)))
                if len(seen) == most:
                    break
            elif line:
                others.append(line)
                if silent is not None:
                    silent()
    return seen, others


def test_a_client_that_loses_its_connection_resumes_without_loss_or_repeat(shop: Project, site: Site) -> None:
    work = ready(shop)
    id, seen = site.send(300), list[tuple[int, Any]]()
    while len(seen) < 280:
        some, _ = read(site, id, str(seen[-1][0]) if seen else "", most=40)
        seen += some
    (shop.root / "go").touch()
    rest, others = read(site, id, str(seen[-1][0]))
    assert [(n, data["token"]) for n, data in seen + rest] == [(n + 1, f"w{n}") for n in range(300)]
    assert seen[0][1]["text"] == "a\nb"
    assert others[-1] == 'data: {"status":"done"}'
    again, others = read(site, id, "300")
    assert (again, others) == ([], ['data: {"status":"done"}'])
    work.stop()


def test_a_silent_stream_has_comments_and_ends_with_the_failure(shop: Project, site: Site) -> None:
    work = ready(shop)
    id = site.send(2, fails=True)
    seen, others = read(site, id, silent=(shop.root / "go").touch)
    assert [n for n, _ in seen] == [1, 2]
    assert set(others[:-1]) == {": still there"}
    assert others[-1] == 'data: {"status":"failed"}'
    work.stop()


@pytest.mark.parametrize("last", ["x", "-1", "9" * 30, "1.5"])
def test_a_strange_last_event_id_starts_at_the_beginning(shop: Project, site: Site, last: str) -> None:
    work = ready(shop)
    (shop.root / "go").touch()
    id = site.send(3)
    assert [n for n, _ in read(site, id, last)[0]] == [1, 2, 3]
    work.stop()


@pytest.mark.xdist_group("browser")
def test_a_browser_resumes_after_its_connection_was_cut(shop: Project, site: Site, tmp_path: Any) -> None:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    flags = "--headless=new --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"
    for flag in (*flags.split(), f"--user-data-dir={tmp_path / 'profile'}"):
        options.add_argument(flag)
    driver = webdriver.ChromeService(shutil.which("chromedriver") or "")
    browser: Any = webdriver.Chrome(options=options, service=driver)
    try:
        work = ready(shop)
        id = site.send(100)
        browser.get(f"{site.url}/#{id}")
        eventually(lambda: browser.execute_script("return window.seen.length") == 100)
        site.drop_connections()
        eventually(lambda: site.resumed[-1] == "100", 30, what="a new connection of the browser")
        assert site.resumed[0] == ""
        (shop.root / "go").touch()
        assert eventually(lambda: browser.execute_script("return window.ended")) == "done"
        seen = browser.execute_script("return window.seen")
        assert seen == [[str(n + 1), f"w{n}"] for n in range(100)]
        work.stop()
    finally:
        browser.quit()
