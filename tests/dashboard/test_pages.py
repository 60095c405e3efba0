"""Pages of the dashboard: what they show, hostile values, an unreachable server."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from pathlib import Path

import pytest

from tests.dashboard.conftest import HOSTILE, Open, failed, payload
from tests.support.processes import QD
from tests.support.redis import Client
from tests.support.waiting import eventually as wait

pytestmark = pytest.mark.leaves("*")
PAGES = ("/", "/queues", "/queues/redis/mail", "/failed", "/workers", "/schedule", "/metrics", "/events")


@pytest.mark.usefixtures("incident")
@pytest.mark.parametrize("path", PAGES)
def test_a_page_of_a_fleet_with_problems(board: Open, path: str) -> None:
    answer = board.client.get(path)
    assert answer.status_code == 200, answer.text
    assert "The server does not answer" not in answer.text
    assert "Live</span>" in answer.text


@pytest.mark.usefixtures("clean_redis")
@pytest.mark.parametrize("path", [page for page in PAGES if "mail" not in page])
def test_a_page_without_any_data(board: Open, path: str) -> None:
    assert board.client.get(path).status_code == 200


@pytest.mark.parametrize("path", [*PAGES, "/jobs", "/batches", "/locks"])
def test_a_page_of_a_server_that_only_the_app_names(folder: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "sqlite_app.py").write_text(f"from qd import Qd\n\napp = Qd('sqlite:///{folder}/jobs.sqlite')\n")
    (folder / "qd.toml").write_text('[qd]\napp = "sqlite_app:app"\n')
    monkeypatch.syspath_prepend(folder)
    subprocess.run([*QD, "migrate"], cwd=folder, check=True, capture_output=True)
    answer = Open(folder).client.get(path.replace("redis", "database").replace("/mail", "/default"))
    assert answer.status_code == 200, answer.text
    assert "The server does not answer" not in answer.text


@pytest.mark.usefixtures("incident")
def test_the_overview_shows_findings_tiles_and_queues(board: Open) -> None:
    text = board.client.get("/").text
    assert " warnings <span" in text
    assert "qd resume reports" in text
    assert "1,340" in text  # ready
    assert 'href="/queues/redis/mail"' in text
    assert "on-call: “db upgrade”" in text
    assert "growing by 50/min" in text
    assert 'class="mark pause"' in text


@pytest.mark.usefixtures("incident")
def test_a_failed_job_shows_traceback_and_cause_of_death(board: Open) -> None:
    text = board.client.get("/failed/redis/r1").text
    assert "SIGKILL" in text
    assert "File hung.py, line 57" in text
    assert "peak memory" in text
    assert "Traceback:" in board.client.get("/failed/redis/w1").text
    assert "/failed/redis/w1" in board.client.get("/failed?job=webhooks.deliver&error=ConnectTimeout").text


@pytest.mark.usefixtures("incident")
@pytest.mark.parametrize(
    "path", ["/queues/redis/mail", "/queues/redis/mail?format=json", "/failed/redis/r1", "/failed/redis/r1?format=json"]
)
def test_arguments_called_password_are_hidden(board: Open, path: str) -> None:
    text = board.client.get(path).text
    assert "redacted" in text
    assert "hunter2" not in text


@pytest.mark.parametrize("name", ["a/b", "two words", "😀", "../x", HOSTILE, "100%", "a?b#c"])
def test_any_name_of_a_queue_has_a_page_and_links_that_lead_to_it(board: Open, redis: Client, name: str) -> None:
    redis.call("RPUSH", f"queues:{name}", payload("job.one"))
    from html import unescape
    from re import findall

    links = {unescape(each) for each in findall(r'href="(/queues/[^"]+)"', board.client.get("/").text)}
    own = [link for link in links if "default" not in link]
    assert len(own) == 1
    page = board.client.get(own[0])
    assert page.status_code == 200
    assert "job.one" in page.text
    assert 'href="/static/style.css"' in page.text


def test_hostile_values_are_text(board: Open, redis: Client) -> None:
    redis.call("RPUSH", f"queues:{HOSTILE}", payload(HOSTILE, HOSTILE, tags=[HOSTILE], data={HOSTILE: HOSTILE}))
    redis.call(
        "SET", f"queues:{HOSTILE}:paused", json.dumps({"by": HOSTILE, "reason": HOSTILE, "at": 1, "until": None})
    )
    failed(
        redis,
        HOSTILE,
        "x1",
        1e9,
        HOSTILE,
        error=HOSTILE,
        reason=HOSTILE,
        trace=HOSTILE,
        death={"signal": HOSTILE, "stack": HOSTILE},
    )
    redis.call(
        "RPUSH",
        "qd:events",
        "1 1 1 1 " + json.dumps({"actor": HOSTILE, "what": HOSTILE, "object": {"queue": HOSTILE}, "reason": HOSTILE}),
    )
    from urllib.parse import quote

    for path in (
        *PAGES[:2],
        *PAGES[3:],
        "/failed?job=" + quote(HOSTILE) + "&error=" + quote(HOSTILE),
        f"/queues/redis/{quote(HOSTILE, safe='')}",
        "/failed/redis/x1",
    ):
        answer = board.client.get(path)
        assert answer.status_code == 200
        assert "<img" not in answer.text
        assert "<script>" not in answer.text
        assert "\u202e" not in answer.text


@pytest.mark.parametrize("data", ["x" * 5_000_000, eval("[" * 90 + "]" * 90)], ids=["5 MB", "nested"])
def test_a_large_or_deep_payload_does_not_break_its_page(board: Open, redis: Client, data: object) -> None:
    redis.call("RPUSH", "queues:mail", payload("big", data=data))
    redis.call("RPUSH", "queues:mail", payload("deep").replace('"user":1', '"user":' + "[" * 1000 + "]" * 1000))
    answer = board.client.get("/queues/redis/mail")
    assert answer.status_code == 200
    assert len(answer.text) < 100_000
    assert "2 of 2 looked at" in answer.text


@pytest.mark.usefixtures("incident")
def test_json_documents_and_csv(board: Open) -> None:
    for what in ("status", "overview", "queues", "failed", "workers", "metrics", "events"):
        assert isinstance(board.client.get(f"/api/v1/{what}").json(), dict), what
    assert board.client.get("/api/v1/queues").json()["queues"][0]["connection"] == "redis"
    assert board.client.get("/api/v1/nothing").status_code == 404
    for what in ("queues", "failed", "workers", "events"):
        assert board.client.get(f"/{what}?format=csv").text.count("\n") > 2, what


def test_a_csv_cell_is_never_a_formula(board: Open, redis: Client) -> None:
    for start in "=+-@":
        redis.call("RPUSH", f"queues:{start}1", payload("x"))
    cells = [line.split(",")[1] for line in board.client.get("/queues?format=csv").text.splitlines()[1:]]
    assert {"'=1", "'+1", "'-1", "'@1"} <= set(cells)


def test_a_page_that_has_not_changed_is_not_sent_again(board: Open) -> None:
    tag = board.client.get("/queues").headers["etag"]
    assert board.client.get("/queues", headers={"if-none-match": tag}).status_code == 304
    assert board.logged_in("read").get("/queues", headers={"if-none-match": tag}).status_code == 200


def test_all_viewers_share_one_read(board: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    read, reads = board.poller._look, list[int]()

    def counted() -> object:
        reads.append(1)
        return read()

    monkeypatch.setattr(board.poller, "_look", counted)

    async def look() -> None:
        await asyncio.gather(*[board.poller.current() for _ in range(20)])

    asyncio.run(look())
    assert len(reads) == 1


@pytest.mark.parametrize(
    "path", ["/queues/redis/nothing", "/queues/nothing/x", "/failed/redis/nothing", "/failed/nope/1"]
)
def test_what_is_not_there_is_404(board: Open, path: str) -> None:
    assert board.client.get(path).status_code == 404


def test_only_new_failed_jobs_are_read(board: Open, redis: Client) -> None:
    for n in range(5):
        failed(redis, "mail", f"a{n}", 1e9 + n, "mail.welcome")
    assert "<b>5</b>" in board.client.get("/failed").text
    failed(redis, "mail", "a9", 1e9 + 9, "mail.welcome")
    assert "<b>6</b>" in board.client.get("/failed").text
    for n in range(3):
        failed(redis, "mail", f"b{n}", 1e9 + 20 + n, "mail.welcome")
    redis.call("HDEL", "queues:mail:failed", "b0", "b1", "b2")
    redis.call("ZREM", "queues:mail:failed_at", "b0", "b1", "b2")
    failed(redis, "mail", "c0", 1e9 + 30, "mail.welcome")
    assert "<b>7</b>" in board.client.get("/failed").text
    redis.call("HDEL", "queues:mail:failed", "c0")
    redis.call("ZREM", "queues:mail:failed_at", "c0")
    redis.call("HDEL", "queues:mail:failed", "a9", "a1")
    redis.call("ZREM", "queues:mail:failed_at", "a9", "a1")
    assert "<b>4</b>" in board.client.get("/failed").text


@pytest.mark.usefixtures("incident")
def test_while_the_server_is_away_pages_show_old_numbers_and_recover(
    board: Open, redis: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qd.dashboard import reader
    from qd.errors import ConnectionLost

    assert "1,340" in board.client.get("/").text

    def lost(*_: object, **__: object) -> None:
        raise ConnectionLost("redis at localhost: refused")

    board.read_again()
    with monkeypatch.context() as patch:
        patch.setattr(reader, "read_state", lost)
        for path in ("/", "/queues", "/workers", "/events"):
            answer = board.client.get(path)
            assert (answer.status_code, "refused" in answer.text) == (200, True)
        assert "1,340" in board.client.get("/").text
        board.read_again()
    board.client.get("/")
    assert wait(lambda: "refused" not in board.client.get("/").text)


def test_lists_are_filtered_and_paged(board: Open, redis: Client) -> None:
    for n in range(230):
        redis.call("RPUSH", f"queues:shop{n:03}", payload("job.one"))
    redis.call("RPUSH", "queues:mail", *[payload("job.one") for _ in range(5)])
    overview, first = board.client.get("/").text, board.client.get("/queues").text
    assert overview.count('scope="row"') == 25
    assert "/queues/redis/mail" in overview
    assert first.count('scope="row"') == 100
    assert "1 to 100 of 23" in first
    second = board.client.get("/queues?at=200").text
    assert "shop229" in second
    assert "Next" not in second
    found = board.client.get("/queues?q=SHOP22").text
    assert found.count('scope="row"') == 10
    assert "No queue has" in board.client.get("/queues?q=nothing-like-it").text
    assert len(board.client.get("/api/v1/queues").json()["queues"]) >= 231


def test_the_metrics_of_a_day_come_from_hours_and_are_compared_with_the_day_before(board: Open, redis: Client) -> None:
    hour = int(time.time() // 3600)
    for back in (0, 5, 30, 100):
        redis.call(
            "HSET", f"qd:{{stats}}:h:{hour - back}", "redis\x1fmail\x1fwelcome", f"1 0:{100 + back} 1:{100 + back}"
        )
    day, week = board.client.get("/metrics?range=24h").text, board.client.get("/metrics?range=7d").text
    assert ">205</td>" in day  # 100 + 105
    assert ">+58%</td>" in day  # 130 on the day before
    assert ">535</td>" in week
    assert "No job ran within the last 1h" in board.client.get("/metrics?range=nonsense").text


@pytest.mark.parametrize("data", [[1, 2], ["a", None]])
def test_positional_arguments_of_php_are_a_cell_of_csv(board: Open, redis: Client, data: list[object]) -> None:
    job = {"uuid": "a", "displayName": "App.X", "job": "App.X@fire", "data": data, "id": "php1", "attempts": 0}
    redis.call("RPUSH", "queues:php", json.dumps(job))
    answer = board.client.get("/queues/redis/php?format=csv")
    assert answer.status_code == 200
    assert " ".join(map(str, data)) in answer.text
