"""How long the reads behind `qd status`, `qd top` and the dashboard take on a large system, and whether they hold Redis.

1,000,000 ready jobs, 100,000 failed jobs, 200 queues, 1,000 workers of 50 masters, 8 hours of statistics with 300 names.
Prints the median of each read in ms and the longest command that Redis noted meanwhile (SLOWLOG).
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click
from starlette.testclient import TestClient

from qd.cli import context, state
from qd.cli.diagnosis import HealthThresholds, reasons
from qd.cli.main import command
from qd.dashboard.access import Callback
from qd.dashboard.app import dashboard
from qd.store.statistics import Depth, History, text_of_depth, text_of_numbers

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.support.redis import Client
from tests.support.servers.redis import Server

QUEUES, WORKERS, MASTERS, READY, FAILED, NAMES, MINUTES = 200, 1000, 50, 1_000_000, 100_000, 300, 480
ROUNDS = 7


def fill(client: Client, now: float) -> None:
    job = (
        '{"uuid":"%032d","displayName":"mail.welcome","job":"mail.welcome","data":{"n":%d},"attempts":0,"createdAt":%d}'
    )
    queues = [f"queue{n}" for n in range(QUEUES)]
    for first in range(0, READY, 5000):
        name = "queue0" if first < READY // 2 else random.choice(queues)
        client.call("RPUSH", f"queues:{name}", *[job % (first + n, n, now - 300) for n in range(5000)])
    failed = json.dumps({"job": "mail.welcome", "error": "ValueError", "reason": "no", "attempts": 3})
    for first in range(0, FAILED, 5000):
        ids = [f"f{first + n}" for n in range(5000)]
        client.call(
            "HSET", "queues:queue1:failed", *[word for id in ids for word in (id, f"{failed}\n{job % (1, 1, now)}")]
        )
        client.call(
            "ZADD",
            "queues:queue1:failed_at",
            *[word for n, id in enumerate(ids) for word in (now - FAILED + n, id)],
        )
    for n in range(MASTERS):
        workers = [
            {
                "slot": w,
                "pid": 1000 + w,
                "state": "busy",
                "job": "mail.welcome",
                "queue": queues[w % QUEUES],
                "since": now - w,
                "done": w,
            }
            for w in range(WORKERS // MASTERS)
        ]
        facts = {
            "token": f"T{n}",
            "host": f"app-{n}",
            "pid": 400 + n,
            "start": 5,
            "boot": "b",
            "ns": "7",
            "pool": "web",
        }
        facts |= {
            "version": "1",
            "connection": "redis",
            "queues": queues,
            "booted_at": now - 3600,
            "seen_at": now + 3600,
        }
        report = {**facts, "state": "running", "workers": workers}
        client.call("HSET", "qd:masters", f"T{n}", json.dumps(report))
    words = [0] * 60
    for index in (0, 1, 12, 13, 14, 36, 38, 40):
        words[index] = 1234
    for back in range(MINUTES):
        minute = int(now // 60) - back
        names = [f"redis\x1f{queues[n % QUEUES]}\x1fjob.name{n}" for n in range(NAMES)]
        client.call(
            "HSET", f"qd:{{stats}}:m:{minute}", *[word for name in names for word in (name, text_of_numbers(words))]
        )
        depth = text_of_depth(Depth(1000, 10, 5, 2, 3.5))
        client.call("HSET", f"qd:{{stats}}:q:{minute}", *[word for q in queues for word in (f"redis\x1f{q}", depth)])


def pages(config: Path, client: Client) -> None:
    app = dashboard(context.Given(config=str(config)), Callback(lambda request: ("bench", "write")))
    browser, poller = TestClient(app), app.state.site.poller
    browser.get("/")
    browser.get("/failed")  # reads the failed jobs once

    def page(path: str) -> Callable[[], object]:
        def get() -> object:
            poller._at = 0.0  # with a new read of the servers
            return browser.get(path)

        return get

    for path in ("/", "/queues", "/queues/redis/queue0", "/failed", "/workers", "/metrics", "/events"):
        timed(f"dashboard {path}", page(path), client)


def timed(what: str, read: Callable[[], object], client: Client) -> None:
    client.call("SLOWLOG", "RESET")
    took = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        read()
        took.append(time.perf_counter() - began)
    slow = [(entry[2] / 1000, entry[3][0].decode()) for entry in client.call("SLOWLOG", "GET", 100)]
    longest = max(slow, default=(0.0, "none over 1 ms"))
    print(
        f"{what:40} {statistics.median(took) * 1000:8.1f} ms   longest command {longest[0]:6.2f} ms {longest[1]}",
        flush=True,
    )


def main() -> None:
    with (
        Server("--slowlog-log-slower-than", "1000", "--slowlog-max-len", "1000") as server,
        tempfile.TemporaryDirectory() as folder,
    ):
        config = Path(folder) / "qd.toml"
        config.write_text(f'[connections.redis]\nurl = "{server.url}"\n')
        with server.client() as client:
            began = time.time()
            fill(client, int(began))
            print(f"filled in {time.time() - began:.0f} s, {int(client.text('DBSIZE')):,} keys")
            root = click.Context(command, obj=context.Given(config=str(config)))
            with root:
                found = context.settings()

                def once(read: Callable[[], object]) -> Callable[[], object]:
                    def run() -> object:
                        with click.Context(command, parent=root):
                            return read()

                    return run

                store = context.store(found, found.control)
                timed("read_state", once(lambda: state.read_state(found)), client)
                timed("findings", once(lambda: list(reasons(state.read_state(found), HealthThresholds()))), client)
                timed("History, 5 minutes, first", lambda: History(store, 360).refresh().rates(), client)
                timed("History, 3 hours, first", lambda: History(store, 3 * 3600).refresh(), client)
                kept = History(store).refresh()
                timed("History, 8 hours, next refresh", kept.refresh, client)
                timed("rates", kept.rates, client)
                timed("points, 3 hours", lambda: kept.points(kept.now - 3 * 3600), client)
            pages(config, client)


if __name__ == "__main__":
    main()
