"""A producer with a real server: the payloads that arrive; forks and threads never share a connection."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator

import pytest

from qd import Job, Qd
from qd.errors import ConnectionLost
from tests.support.project import Project
from tests.support.redis import Client
from tests.support.servers.redis import Server

JOBS = """
import os, sys
from qd import Qd

app = Qd()


@app.job("note", queue="notes")
def note(text: str) -> None: ...


def connection() -> int:
    return app.connections.get(None).connection.call("CLIENT", "ID")
"""


@pytest.fixture
def app(server: Server) -> Iterator[Qd]:
    made = Qd(server.url)
    yield made
    made.connections.close()


def test_ready_and_delayed_jobs_arrive(app: Qd, redis: Client):
    @app.job("note", queue="notes")
    def note(text: str) -> None: ...

    @app.job("count", queue="notes")
    class Count(Job[int]):
        number: int

        def handle(self) -> int:
            return self.number

    first = note.dispatch("one")
    note.using(delay=60).dispatch("two")
    app.dispatch(note.bind("three"), Count(number=4), note.using(delay=120).bind("five"))
    app.queue("notes").push(r"App\Jobs\X@fire", ["six"])
    app.queue("notes").push_raw(b"seven")
    ready = redis.call("LRANGE", "queues:notes", 0, -1)
    assert [json.loads(payload)["data"] for payload in ready[:-1]] == [
        {"text": "one"},
        {"text": "three"},
        {"number": 4},
        ["six"],
    ]
    assert ready[-1] == b"seven"
    assert json.loads(ready[0])["id"] == first.id
    delayed = redis.call("ZRANGE", "queues:notes:delayed", 0, -1)
    assert [json.loads(payload)["data"]["text"] for payload in delayed] == ["two", "five"]
    assert redis.call("LLEN", "queues:notes:notify") == 5
    assert app.queue("notes").size() == 7
    assert app.queue("notes").clear() == 7
    assert redis.keys() == []


def test_an_unreachable_server_raises_and_a_server_that_is_back_does_not():
    with Server() as own:
        app = Qd(own.url)
        queue = app.queue("notes")
        queue.push("a")
        own.kill()
        with pytest.raises(ConnectionLost):
            queue.push("b")
        own.start()
        queue.push("c")
        assert queue.size() == 1
        app.connections.close()


def test_threads_send_side_by_side_on_connections_of_their_own(app: Qd, redis: Client):
    @app.job("note", queue="notes")
    def note(number: int) -> None: ...

    def fifty(first: int) -> None:
        for number in range(first, first + 50):
            note.dispatch(number)

    threads = [threading.Thread(target=fifty, args=(first,)) for first in (0, 50, 100, 150)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sent = [json.loads(payload) for payload in redis.call("LRANGE", "queues:notes", 0, -1)]
    assert sorted(payload["data"]["number"] for payload in sent) == list(range(200))
    assert len({payload["uuid"] for payload in sent}) == len({payload["id"] for payload in sent}) == 200


def test_a_forked_child_sends_on_a_connection_of_its_own(project: Callable[..., Project], redis: Client):
    done = project(jobs=JOBS).python(
        """
        from jobs import *

        note.dispatch("before")
        parents = connection()
        if os.fork() == 0:
            for number in range(100):
                note.dispatch(f"child {number}")
            print(connection() != parents, flush=True)
            os._exit(0)
        for number in range(100):
            note.dispatch(f"parent {number}")
        os.wait()
        print(connection() == parents)
        note.dispatch("after")
        """
    )
    assert done.stdout.split() == ["True", "True"]
    sent = [json.loads(payload) for payload in redis.call("LRANGE", "queues:notes", 0, -1)]
    assert len(sent) == 202
    assert len({payload["uuid"] for payload in sent}) == len({payload["id"] for payload in sent}) == 202


def test_a_dropped_call_is_reported_on_stderr_once_for_its_line(project: Callable[..., Project], redis: Client):
    done = project(jobs=JOBS).python("from jobs import *\nfor _ in range(3): note.bind('lost')\nprint('on')")
    assert done.stdout == "on\n"
    assert done.stderr.count("<string>:2: NeverSent: <call of job note> was never sent") == 1
    assert redis.keys() == []


def test_a_program_that_ends_with_unsent_calls_logs_nothing(project: Callable[..., Project]):
    done = project(jobs=JOBS).python("from jobs import *\nhigh = note.using(queue='high')\ncall = note.bind('x')")
    assert (done.stdout, done.stderr) == ("", "")
