"""Encrypted jobs on every driver: the real worker runs and retries them, and their plain text is nowhere on the server."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest

from qd.drivers.database.connection import DatabaseConnection
from tests.contract.features.conftest import Cell
from tests.contract.kinds import JOBS, Tried, ready, take
from tests.support.redis import Client
from tests.support.waiting import eventually

FEATURE = "Encryption"
KEY = "2026b:MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
SECRET, OPEN = "4111-1111-1111-1111", "5500-0000-0000-0004"
OURS = """
@app.job("sealed", encrypted=True, tries=2, backoff=0, result_ttl=60)
def sealed(n: int, card: str) -> None:
    if n == 2 and not Path("fixed").exists():
        raise ValueError(card)
    note("E", n, hashlib.sha256(card.encode()).hexdigest(), current_job().arguments["n"])

@app.job("plain", result_ttl=60)
def plain(n: int, card: str) -> None:
    raise ValueError(card)
"""


def stored(tried: Tried, request: pytest.FixtureRequest) -> str:
    """Everything that the server keeps, but for jobs in a broker; then what its control connection keeps."""
    url = str(tried.served.control or tried.served.table["url"])
    if url.partition(":")[0].partition("+")[0] in ("postgresql", "mysql", "sqlite"):
        link = DatabaseConnection(url, timeout=20)
        rows = [link.query(f"SELECT * FROM {table}").all() for table in ("jobs", "qd_items", "qd_names")]
        link.close()
        return repr(rows)
    found = ""
    for client in clients(tried, request):
        with client:
            found += client.everything()
    return found


def clients(tried: Tried, request: pytest.FixtureRequest) -> Sequence[Client]:
    name = tried.kind.name
    if name == "cluster":
        return list(request.getfixturevalue("cluster").clients())
    server = request.getfixturevalue(name if name in ("valkey", "sentinel") else "durable_redis")
    return [(server.primary if name == "sentinel" else server).client()]


def test_the_worker_runs_encrypted_jobs_and_their_plain_text_is_nowhere_on_the_server(
    tried: Tried, cell: Cell, request: pytest.FixtureRequest
) -> None:
    assert cell == "works"
    tried.shop.jobs(JOBS + OURS)
    tried.shop.config(f'[encryption]\nkeys = ["{KEY}"]')
    tried.shop.python(
        "from jobs import plain, sealed\n"
        f"sealed.using(queue='other').dispatch(0, '{SECRET}')\n"
        f"sealed.dispatch(1, '{SECRET}')\nsealed.dispatch(2, '{SECRET}')\nplain.dispatch(3, '{OPEN}')\n"
    )
    queue = tried.connect()
    waiting = take(queue, "other")
    queue.ack(waiting)
    assert b'"data":{"encrypted":"eyJ' in waiting.member
    assert SECRET.encode() not in waiting.member
    assert SECRET not in stored(tried, request)

    work = ready(tried.shop, "default")
    work.wait_line("job.failed", 30, count=2)
    assert tried.shop.wait_noted("E", 1)[2:4] == [hashlib.sha256(SECRET.encode()).hexdigest(), "1"]
    kept = stored(tried, request)
    assert OPEN in kept  # the failed job, its message and its result: this is where to look
    assert SECRET not in kept
    (failed,) = [record for record in tried.failed() if record["job"] == "sealed"]
    assert (failed["error"], failed["reason"]) == ("ValueError", "")

    (tried.shop.root / "fixed").touch()
    tried.command("failed", "retry", failed["id"])
    assert tried.shop.wait_noted("E", 2)[2] == hashlib.sha256(SECRET.encode()).hexdigest()
    eventually(tried.empty)
    assert SECRET not in stored(tried, request)
    work.stop()
    assert OPEN in work.tail(500)
    assert SECRET not in work.tail(500)
