"""MONITOR shows the calls on the page redis-calls for one job, and the table of keys has every key."""

from __future__ import annotations

import inspect
import re
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from qd.drivers.keyspace import keys
from tests.support.project import Project
from tests.support.servers.redis import Server
from tests.support.waiting import eventually

ONCE_A_MINUTE = "client EVALSHA queues:mail:failed"  # the keeper's check of failed jobs, described below the beat
DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "explanation" / "redis-calls.md").read_text()
KEYS = (DOCS / "reference" / "keys.md").read_text()


class Monitor:
    """The lines of MONITOR as `client|lua COMMAND first-key`."""

    def __init__(self, server: Server) -> None:
        self.lines: list[tuple[str, str]] = []
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.connect(str(server.socket))
        self._sock.sendall(b"MONITOR\r\n")
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        with self._sock.makefile(errors="replace") as file:
            for line in file:
                self.lines.append((line, seen(line)))

    def close(self) -> None:
        self._sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._sock.close()


def seen(line: str) -> str:
    """`lua LPOP queues:mail`: the first argument that is a key replaces the rest."""
    words = re.findall(r'"((?:[^"\\]|\\.)*)"', line)
    caller = "lua" if re.search(r"\[\d+ lua\]|^ *\d* *lua ", line) else "client"
    key = next((word for word in words[1:] if word.startswith(("queues:", "qd:"))), "")
    return " ".join([caller, *words[:1], key]).rstrip()


@pytest.fixture
def monitor(server: Server):
    one = Monitor(server)
    yield one
    one.close()


def test_monitor_shows_one_job_as_on_the_page(project: Callable[..., Project], monitor: Monitor) -> None:
    shop = project("@app.job('mail.welcome', queue='mail')\ndef welcome(to: str) -> None:\n    print(to, flush=True)\n")
    shop.qd("dispatch", "mail.welcome", "to=x", "--queue", "other")  # the first one loads the script
    work = shop.work("mail", "-w", "1", "--sleep", "10m", "--prefetch", "1")
    eventually(lambda: "client BLPOP queues:mail:notify" in recorded(monitor), 60)
    so_far = len(beats(monitor))
    eventually(lambda: len(beats(monitor)) > so_far, 60)  # a beat during the push would wake the worker once more
    shop.qd("dispatch", "mail.welcome", "to=ada@example.org")
    wait, push = "client BLPOP queues:mail:notify", "lua RPUSH queues:mail:notify"
    eventually(lambda: push in recorded(monitor) and wait in recorded(monitor)[recorded(monitor).index(push) :], 60)
    work.stop()
    found = recorded(monitor)
    pushed = found.index(push)
    first = max(i for i in range(pushed) if found[i] == wait)  # a beat may wake the worker before the push
    again = found.index(wait, pushed)
    block = PAGE.partition("<!-- recorded")[2].partition("| line |")[0]
    expected = [seen(line) for line in block.splitlines() if re.match(r" {4}\d+ ", line)]
    assert found[first : again + 1] == expected


def recorded(monitor: Monitor) -> list[str]:
    """The lines about the job, without the beats of the keeper."""
    kept, beat = list[str](), False
    for line, call in list(monitor.lines):
        if call.startswith("client"):
            beat = call == ONCE_A_MINUTE or not call.startswith(("client EVALSHA queues:", "client BLPOP"))
        if not beat and re.match(r"\+?\d", line):
            kept.append(call)
    return kept


def test_monitor_shows_a_beat_as_on_the_page(project: Callable[..., Project], monitor: Monitor) -> None:
    """Not each beat renews and reports, so the lease is short enough for many that do both."""
    work = project(config='retry_after = "3s"\n').work("mail", "-w", "1")
    block = PAGE.partition("## The keeper's beat")[2].partition("| line |")[0]
    expected = [seen(line) for line in block.splitlines() if line.startswith("    ")]

    def shown() -> bool:
        found = beats(monitor)
        assert expected in found, found
        return True

    eventually(shown, 60)
    work.stop()


def beats(monitor: Monitor) -> list[list[str]]:
    """Each script call of the keeper, with the commands that it ran inside the server."""
    found: list[list[str]] = []
    for _, call in list(monitor.lines):
        if call.startswith("client"):
            found.append([])
        if found:
            found[-1].append(call)
    return [lines for lines in found if lines[0] == "client EVALSHA qd:restart"]


def test_the_table_has_every_key() -> None:
    rows = re.findall(r"^\| `((?:queues|qd):\S+)` \| (?:string|hash|list|set|zset) \| \S", KEYS, re.MULTILINE)
    assert len(rows) == len(re.findall(r"^\| `(?:queues|qd):", KEYS, re.MULTILINE))
    made = {name for name in vars(keys).values() if isinstance(name, str) and name.startswith("qd:")}
    for _, key in inspect.getmembers(keys, inspect.isfunction):
        made.add(str(key(*["X" for _ in inspect.signature(key).parameters])))
    made = {name for name in made if name.startswith(("queues:", "qd:"))}
    assert {re.sub("NAME:TEXT|[A-Z]{2,}", "X", row) for row in rows} == made
