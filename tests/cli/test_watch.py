"""`--watch N`: the command runs again, with its own connections, and prints one document a line with --json."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from qd.cli import state
from qd.errors import ConnectionLost
from tests.cli.conftest import Run, report
from tests.support.payloads import push
from tests.support.redis import Client


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """between(f, g): what happens before the second and third run; then Ctrl-C."""

    def steps(*acts: Callable[[], object]) -> None:
        left = list(acts)

        def sleep(seconds: float) -> None:
            assert seconds == 2
            if not left:
                raise KeyboardInterrupt
            left.pop(0)()

        monkeypatch.setattr("qd.cli.context.time.sleep", sleep)

    return steps


@pytest.mark.parametrize("words", [["status"], ["queues", "mail"], ["job", "nobody"]])
def test_each_run_is_one_line_of_json(qd: Run, redis: Client, between: Callable[..., None], words: list[str]) -> None:
    push(redis, "mail.welcome", queue="mail")
    between(lambda: push(redis, "mail.welcome", queue="mail"))
    result = qd(*words, "--watch", "2", "--json")
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert (result.exit_code, len(found)) == (130, 2)
    if words[0] == "queues":
        assert [each["queues"][0]["ready"] for each in found] == [1, 2]


def test_a_server_that_is_away_is_tried_again_and_no_connection_is_left(
    qd: Run, redis: Client, between: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    report(redis)
    clients = [len(redis.text("CLIENT", "LIST").splitlines())]
    read, tries = state.read_state, list[int]()

    def count() -> None:
        clients.append(len(redis.text("CLIENT", "LIST").splitlines()))

    def away_once(*words: Any, **named: Any) -> Any:
        tries.append(1)
        if len(tries) == 2:
            raise ConnectionLost("the server is away")
        return read(*words, **named)

    monkeypatch.setattr("qd.cli.status.read_state", away_once)
    between(count, count)
    result = qd("status", "--watch", "2")
    assert (result.exit_code, result.stdout.count("mail  app-1")) == (130, 2)
    assert result.stderr.strip() == "qd: the server is away; trying again"
    assert set(clients) == {clients[0]}


def test_without_json_documents_stay_as_they_are(qd: Run) -> None:
    assert qd("status", "--json").stdout.startswith("{\n")
    assert qd("status", "--watch", "0").exit_code == 2
