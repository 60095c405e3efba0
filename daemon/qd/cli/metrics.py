"""`qd metrics`: the numbers of the whole fleet for other programs, in the text format of Prometheus (0.0.4), as JSON, and
for KEDA; printed once, or served by HTTP with --listen:

    /metrics       everything that `qd metrics` prints
    /keda/QUEUE    for KEDA's metrics-api scaler; ?connection=NAME
    /healthz       200 while this process serves, also while the server is away

The text and http.server take fewer lines than prometheus-client would, and `qd metrics` needs no extra package. A read opens
connections of its own and closes them, so that nothing has to be repaired after an outage. The same answer is read at
most once a second; requests that come meanwhile wait for it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler
from itertools import accumulate
from socket import AF_INET6
from socketserver import ThreadingTCPServer
from typing import Any, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

import click

from qd.cli import context, output
from qd.cli.state import State, note_unknown, read_state, server_memory
from qd.config.settings import Settings
from qd.drivers.keyspace import keys
from qd.errors import ConfigError, QdError, ServerRefused
from qd.log import Log
from qd.process.scoreboard import ALIVE
from qd.store import schedule
from qd.store.base import KeyspaceStore
from qd.store.statistics import BOUNDS, Name, Numbers, quantile, totals

T = TypeVar("T")
OUTCOMES = ("done", "failed", "released", "timed_out", "crashed", "cancelled", "lease_lost", "handed_back")
MASTER_STATES = ("running", "paused", "down", "stopping", "silent")
WORKER_STATES = tuple(state.name.lower() for state in ALIVE)
ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
FRESH = 1.0  # seconds for which an answer is given again
PATIENCE = 2.0  # seconds for a connection, and for each reply
MOST = 300  # answers that are kept: queue names come from the URL
TEXT, JSON = "text/plain; version=0.0.4; charset=utf-8", "application/json"
QUANTILES = {"p50_s": 0.5, "p95_s": 0.95, "p99_s": 0.99}


@click.command("metrics")
@click.option("--listen", metavar="HOST:PORT", help="Serve /metrics, /keda/QUEUE and /healthz until TERM or Ctrl-C.")
@click.option("--keda", metavar="QUEUE", help="Print the JSON for KEDA: how many jobs of QUEUE need a worker now.")
@context.options
def command(listen: str | None, keda: str | None) -> None:
    """Print metrics of jobs, queues and workers, for Prometheus.

    The counters of all hosts are up to 10 s old; queues, workers and servers are read now. With -c: only this connection.
    """
    if listen is not None and (keda is not None or context.given().json):
        raise click.UsageError("--listen serves both formats: it goes with neither --keda nor --json")
    found = context.settings()
    context.given().only_looks = True
    if listen is not None:
        serve(found, listen)
    elif keda is not None:
        answer = keda_of(found, keda)
        if not answer["value"]:
            note_unknown(found, context.places(found), keda)
        output.document(answer)
    elif context.given().json:
        numbers = counted(found)
        output.document({"schema": 1, "jobs": [row(name, numbers[name]) for name in sorted(numbers)]})
    else:
        for line in lines_of(found)[0]:
            output.say(line)


def row(name: Name, numbers: Numbers) -> dict[str, Any]:
    outcomes = {word: getattr(numbers, word) for word in OUTCOMES}
    running = max(0, numbers.started - sum(outcomes.values()))
    times = {"wait": times_of(numbers.wait, numbers.wait_ms), "run": times_of(numbers.run, numbers.run_ms)}
    return {**name._asdict(), "started": numbers.started, "running": running, "outcomes": outcomes, **times}


def times_of(buckets: Sequence[int], sum_ms: int) -> dict[str, Any]:
    quantiles = {key: quantile(buckets, q) for key, q in QUANTILES.items()}
    return {"count": sum(buckets), "sum_s": sum_ms / 1000, **quantiles}


def counted(found: Settings) -> dict[Name, Numbers]:
    """The totals; with -c of its connections."""
    numbers = totals(context.store(found, found.control))
    if not context.given().connection:
        return numbers
    places = context.places(found)
    return {name: each for name, each in numbers.items() if name.connection in places}


# -- Prometheus


def lines_of(found: Settings) -> tuple[list[str], State]:
    """The lines of the text format, and the state they are from. Raises ConnectionLost, ServerRefused."""
    numbers, state = counted(found), read_state(found)
    store = context.store(found, found.control)
    lines = [*of_jobs(numbers), *of_queues(state), *of_fleet(state), *of_schedule(store)]
    return [*lines, *of_servers(found, state)], state


def of_jobs(numbers: dict[Name, Numbers]) -> Iterator[str]:
    names = {name: name._asdict() for name in sorted(numbers)}
    started = [(labels, numbers[name].started) for name, labels in names.items()]
    yield from metric("qd_jobs_started_total", "Attempts that were started.", started, "counter")
    outcomes = [(labels | {"outcome": word}, name, word) for name, labels in names.items() for word in OUTCOMES]
    ended = [(labels, getattr(numbers[name], word)) for labels, name, word in outcomes]
    yield from metric("qd_jobs_total", "Attempts that have ended, by outcome.", ended, "counter")
    wait = {name: (numbers[name].wait, numbers[name].wait_ms) for name in names}
    text = "From the moment at which a job is due to its first start."
    yield from histogram("qd_job_wait_seconds", text, wait)
    run = {name: (numbers[name].run, numbers[name].run_ms) for name in names}
    yield from histogram("qd_job_run_seconds", "How long attempts ran.", run)


def of_queues(state: State) -> Iterator[str]:
    lines = [({"connection": line.connection, "queue": line.name}, line) for line in state.queues if not line.error]
    words = ("ready", "delayed", "reserved", "failed")
    sizes = [({**labels, "state": word}, getattr(line.sizes, word)) for labels, line in lines for word in words]
    yield from metric("qd_queue_jobs", "Jobs of a queue.", sizes)
    # Without an age: the next job does not tell when it was created.
    aged = [(labels, line.sizes) for labels, line in lines if line.sizes.oldest_age or not line.sizes.ready]
    ages = [(labels, sizes.oldest_age or 0) for labels, sizes in aged]
    yield from metric("qd_queue_oldest_age_seconds", "Age of the next ready job; 0 if there is none.", ages)
    paused = [(labels, line.paused is not None) for labels, line in lines]
    yield from metric("qd_queue_paused", "1 while the queue is paused.", paused)
    serve = [(labels, line.workers) for labels, line in lines]
    yield from metric("qd_queue_workers", "Workers that serve the queue, busy or not.", serve)


def of_fleet(state: State) -> Iterator[str]:
    heard = [(one, one.silent(state.now)) for one in state.masters]
    masters = Counter((one.pool_title, "silent" if silent else one.state) for one, silent in heard)
    workers = Counter((one.pool_title, each.state) for one, silent in heard if not silent for each in one.workers)
    crashes = Counter({one.pool_title: 0 for one, _ in heard})
    for one, silent in heard:
        crashes[one.pool_title] += 0 if silent else len(one.crashes)
    for name, text, states, counts in (
        ("qd_masters", "Masters that report, or have been silent for 10 s.", MASTER_STATES, masters),
        ("qd_workers", "Workers of masters that report.", WORKER_STATES, workers),
    ):
        rows = [({"pool": pool, "state": word}, counts[pool, word]) for pool in sorted(crashes) for word in states]
        yield from metric(name, text, rows)
    recent = [({"pool": pool}, count) for pool, count in sorted(crashes.items())]
    text = "Workers that crashed in the last 60 s, at most 8 of a master."
    yield from metric("qd_worker_recent_crashes", text, recent)
    longest = dict.fromkeys(sorted(crashes), 0.0)
    for one, silent in heard:
        began = [] if silent else [each.since for each in one.workers if each.job and each.since is not None]
        longest[one.pool_title] = max([longest[one.pool_title], *(state.now - at for at in began)])
    text = "How long the running job that began first has run; 0 if none runs."
    yield from metric("qd_longest_job_seconds", text, [({"pool": pool}, each) for pool, each in longest.items()])
    yield from metric("qd_maintenance", "1 during maintenance mode.", [({}, state.down is not None)])


def of_schedule(store: KeyspaceStore) -> Iterator[str]:
    lasts = [({"entry": entry}, one) for entry, one in sorted(schedule.last(store).items())]
    late = [(labels, one.late) for labels, one in lasts]
    yield from metric("qd_schedule_late_seconds", "From its tick to the start of an entry's last run.", late)
    ended = [(labels, one.ended) for labels, one in lasts]
    yield from metric("qd_schedule_last_run_timestamp_seconds", "Unix time at which its last run ended.", ended)
    failed = [(labels, one.outcome == "failed") for labels, one in lasts]
    yield from metric("qd_schedule_last_run_failed", "1 if an entry's last run failed.", failed)


def of_servers(found: Settings, state: State) -> Iterator[str]:
    places = list(dict.fromkeys([state.control, *(line.connection for line in state.queues)]))
    yield from servers(places, list(state.away))
    redis = [place for place in places if found.connection(place).driver == "redis"]
    memory = [(place, server_memory(context.store(found, place).space)) for place in redis]
    used = [({"connection": place}, each[0]) for place, each in memory if each]
    yield from metric("qd_server_memory_bytes", "Memory that a Redis uses.", used)
    most = [({"connection": place}, each[1]) for place, each in memory if each and each[1]]
    yield from metric("qd_server_memory_max_bytes", "Its maxmemory; missing if it has no limit.", most)


def servers(up: Sequence[str], down: Sequence[str]) -> Iterator[str]:
    rows = [({"connection": place}, value) for places, value in ((up, 1), (down, 0)) for place in places]
    yield from metric("qd_server_up", "1 if the server of a connection answers.", rows)


def metric(name: str, text: str, rows: Iterable[tuple[dict[str, str], float]], kind: str = "gauge") -> Iterator[str]:
    """rows: labels and value."""
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
    for labels, value in rows:
        yield f"{name}{{{labels_of(labels)}}} {value:.15g}"


def histogram(name: str, text: str, rows: Mapping[Name, tuple[Sequence[int], int]]) -> Iterator[str]:
    """rows: buckets and sum in ms."""
    bounds = [*(f"{bound:.10g}" for bound in BOUNDS), "+Inf"]
    yield from metric(name, text, (), "histogram")
    for key, (buckets, sum_ms) in rows.items():
        labels = labels_of(key._asdict())
        for bound, count in zip(bounds, accumulate(buckets), strict=True):
            yield f'{name}_bucket{{{labels},le="{bound}"}} {count}'
        yield f"{name}_sum{{{labels}}} {sum_ms / 1000:.10g}"
        yield f"{name}_count{{{labels}}} {sum(buckets)}"


def labels_of(labels: dict[str, str]) -> str:
    return ",".join(f'{key}="{value.translate(ESCAPES)}"' for key, value in labels.items())


# -- KEDA


def keda_of(found: Settings, queue: str, connection: str | None = None) -> dict[str, Any]:
    """The jobs of a queue that need a worker now. Due delayed jobs count: without a worker, no keeper makes them ready.

    Raises ConfigError for an unknown connection, ConnectionLost, ServerRefused.
    """
    ready = reserved = due = 0
    wait = 0.0
    for place in found.parts(connection) if connection else context.places(found):
        sizes, store = context.queue(found, place).sizes(queue), context.store(found, place)
        ready, reserved = ready + sizes.ready, reserved + sizes.reserved
        wait = max(wait, sizes.oldest_age or 0.0)
        if hasattr(store.space, "connection"):  # a database: due jobs are ready
            continue
        now, delayed = store.now(), store.prefix + keys.delayed(queue)
        if count := store.space.call("ZCOUNT", delayed, "-inf", now):
            due += count
            wait = max([wait, *(now - float(at) for at in store.space.call("ZRANGE", delayed, 0, 0, "WITHSCORES")[1:])])
    parts = {"ready": ready, "reserved": reserved, "due": due}
    return {"schema": 1, "queue": queue, "value": ready + reserved + due, "wait_s": round(wait, 3), **parts}


# -- HTTP


class Exporter:
    """Reads for all requests, one after another."""

    def __init__(self, found: Settings, log: Log) -> None:
        self.found, self.log = found, log
        self._command = click.get_current_context()
        self._lock = threading.Lock()
        self._kept = dict[tuple[str | None, ...], tuple[float, Any]]()
        self._away = dict[str, str]()

    def answer(self, target: str) -> tuple[int, str, str]:
        """Status, content type and body of a GET."""
        parts = urlsplit(target)
        if parts.path == "/healthz":
            return 200, TEXT, "ok\n"
        if parts.path == "/metrics":
            return 200, TEXT, "\n".join(self._fresh((), self._metrics)) + "\n"
        queue = unquote(parts.path.removeprefix("/keda/"))
        if not parts.path.startswith("/keda/") or not queue:
            return 404, TEXT, "/metrics, /keda/QUEUE or /healthz\n"
        connection = parse_qs(parts.query).get("connection", [None])[-1]
        status, document = self._fresh((queue, connection), lambda: self._keda(queue, connection))
        return status, JSON, json.dumps(document) + "\n"

    def _fresh(self, key: tuple[str | None, ...], read: Callable[[], T]) -> T:
        with self._lock:
            if key not in self._kept or time.monotonic() - self._kept[key][0] >= FRESH:
                if len(self._kept) >= MOST:
                    self._kept.clear()
                with click.Context(self._command.command, parent=self._command):  # its end closes the connections
                    answer = read()
                self._kept[key] = time.monotonic(), answer
            kept: T = self._kept[key][1]
            return kept

    def _metrics(self) -> list[str]:
        try:
            lines, state = lines_of(self.found)
        except ServerRefused as error:  # it answers, but not to this user
            self._report({**self._away, self.found.control: str(error)})
            return [*servers([self.found.control], [])]
        except QdError as error:
            self._report({**self._away, self.found.control: str(error)})
            return [*servers([], [self.found.control])]
        self._report(state.away)
        return lines

    def _keda(self, queue: str, connection: str | None) -> tuple[int, dict[str, Any]]:
        try:
            return 200, keda_of(self.found, queue, connection)
        except ConfigError as error:
            return 404, {"schema": 1, "error": str(error)}
        except QdError as error:  # KEDA keeps the number of workers, or uses its `fallback`
            return 503, {"schema": 1, "error": str(error)}

    def _report(self, away: dict[str, str]) -> None:
        """A line for each change."""
        for place in away.keys() - self._away:
            self.log.warning("exporter.server_away", connection=place, error=away[place])
        for place in self._away.keys() - away:
            self.log.info("exporter.server_back", connection=place)
        self._away = dict(away)


class Server(ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True


def serve(found: Settings, address: str) -> None:
    """Serve until TERM. address: HOST:PORT; port 0: any. Raises ConfigError if it cannot be used."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"--listen {address}: write HOST:PORT, for example 127.0.0.1:9600 or [::]:9600")
    context.given().patience, context.given().only_looks = PATIENCE, True
    exporter = Exporter(found, Log("exporter", format=found.work.log_format, level=found.work.log_level))
    Server.address_family = AF_INET6 if "[" in host else Server.address_family

    class Request(BaseHTTPRequestHandler):
        timeout = 10.0  # seconds for a client to send its request

        def do_GET(self) -> None:
            status, kind, text = exporter.answer(self.path)
            body = text.encode("utf-8", "replace")
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    try:
        server = Server((host.strip("[]"), int(port)), Request)
    except (OSError, OverflowError) as error:
        number = error.errno if isinstance(error, OSError) else None
        why = os.strerror(number) if number is not None and number > 0 else str(error)
        raise ConfigError(f"--listen {address}: {why}; choose another address") from error
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with server:
        exporter.log.info("exporter.listening", address=f"{host}:{server.server_address[1]}")
        server.serve_forever()
