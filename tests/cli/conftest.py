"""`qd` in this process, through click's runner: `qd("status")` gives output, stderr and the exit code."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result, _NamedTextIOWrapper

from qd.cli import failed
from qd.cli.main import command
from qd.drivers.redis.connection import RedisConnection
from tests.support.redis import Client
from tests.support.servers.redis import Server

Run = Callable[..., Result]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the current one; the environment has no variables of qd."""
    for name in list(os.environ):
        if name.startswith("QD_") or name == "REDIS_URL":
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def configured(folder: Path, server: Server) -> Callable[[str], None]:
    """configured("...") writes qd.toml: the test's server as connection redis, then this text. Without a call, no text."""

    def write(more: str = "") -> None:
        (folder / "qd.toml").write_text(f'[connections.redis]\nurl = "{server.url}"\n{more}')

    write()
    return write


@pytest.fixture
def still(redis: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stops the server's clock for the test and for the `qd` that it runs in this process, so that ages are exact."""
    moment, call, call_many, client_call = (
        redis.call("TIME"),
        RedisConnection.call,
        RedisConnection.call_many,
        Client.call,
    )

    def many(wire: RedisConnection, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        replies = call_many(wire, commands)
        return [moment if command == ("TIME",) else reply for command, reply in zip(commands, replies, strict=True)]

    monkeypatch.setattr(
        RedisConnection, "call", lambda wire, *words: moment if words == ("TIME",) else call(wire, *words)
    )
    monkeypatch.setattr(RedisConnection, "call_many", many)
    monkeypatch.setattr(
        Client, "call", lambda client, *words: moment if words == ("TIME",) else client_call(client, *words)
    )


@pytest.fixture
def qd(configured: object, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command, without the progress messages that any command may print on a busy machine."""
    monkeypatch.setattr(failed, "PROGRESS", 3600.0)

    def run(*words: str, typed: str | None = None) -> Result:
        """typed: on a terminal; None: stdin is none."""
        with monkeypatch.context() as patched:
            if typed is not None:
                patched.setattr(_NamedTextIOWrapper, "isatty", lambda stream: stream.name == "<stdin>")
            return CliRunner().invoke(command, words, prog_name="qd", input=typed)

    return run


def done(result: Result) -> str:
    """The output of a command that exited with 0 and printed nothing on stderr."""
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout


def document(result: Result) -> Any:
    """The JSON document that a command printed."""
    return json.loads(done(result))


def report(redis: Client, token: str = "T1", **fields: Any) -> dict[str, Any]:
    """Write a keeper's report: its master booted an hour ago and reported just now. One worker for each of `workers`."""
    now = float(redis.text("TIME")[0])
    facts = {
        "token": token,
        "host": "app-1",
        "pid": 411,
        "start": 5,
        "boot": "b",
        "ns": "7",
        "pool": "mail",
        "version": "1",
    }
    facts |= {"connection": "redis", "queues": ["mail"], "booted_at": now - 3600, "seen_at": now, "state": "running"}
    facts |= {"workers": []} | fields
    redis.call("HSET", "qd:masters", token, json.dumps(facts))
    return facts


def elsewhere(qd: Run, configured: Callable[[str], None], request: pytest.FixtureRequest, kind: str) -> None:
    """Make a connection of this kind, `other`, the default one; redis is the control connection."""
    url = "sqlite:///jobs.sqlite" if kind == "sqlite" else request.getfixturevalue(kind).url
    configured(f'[connections.other]\nurl = "{url}"\n[qd]\ncontrol = "redis"\ndefault = "other"\n')
    assert qd("migrate").exit_code == 0 or kind != "sqlite"
