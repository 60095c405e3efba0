"""The table of docs/reference/commands.md: which commands work on which driver, with its real server."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from qd.cli import main, top
from qd.cli.top import View
from qd.cli.top.screen import Top
from qd.options.drivers import DRIVERS
from tests.cli.conftest import Run

PAGE = (Path(main.__file__).resolve().parents[3] / "docs" / "reference" / "commands.md").read_text()
ROWS = re.findall(r"^\| `qd ([\w ]+)` \| (.*?) ?\| (.*?) \|$", PAGE.partition("<!-- commands on")[2], re.MULTILINE)
KINDS = (*DRIVERS, "sentinel", "cluster")
ID, LATER = "(id)", "(later)"  # in WORDS: of a ready and of a delayed job
WORDS = {
    "why": ["why", ID, "--json"],
    "peek": ["peek", "mail", "--json"],
    "queues": ["queues", "mail", "--json"],
    "top": ["top"],
    "wait": ["wait", "other", "--empty", "--json"],
    "failed summary": ["failed", "summary", "--json"],
    "promote": ["promote", LATER],
    "move": ["move", "mail", "--to", "low", "--yes"],
    "batch list": ["batch", "list", "--json"],
    "locks list": ["locks", "list", "--json"],
}
UNFINDABLE = ("why", "promote")  # they exit with 1 where a waiting job cannot be found


def test_no_row_names_a_driver_twice() -> None:
    assert [command for command, *_ in ROWS] == list(WORDS)
    for command, *cells in ROWS:
        found = re.findall(rf"\b(?:{'|'.join(KINDS)})\b", " ".join(cells))
        assert sorted(found) == sorted(set(found)), command


@pytest.mark.parametrize("kind", [pytest.param(each, marks=pytest.mark.xdist_group(each)) for each in KINDS])
def test_commands_work_or_refuse_in_one_line_as_the_table_says(
    qd: Run,
    configured: Callable[[str], None],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    configured(table(kind, request, monkeypatch) + '[qd]\ndefault = "x"\ncontrol = "redis"\n')
    if kind == "database":
        assert qd("migrate").exit_code == 0
    ids = {ID: "x", LATER: "x"}
    for name, delay in ((ID, "0"), (LATER, "10m")) if kind != "sync" else ():
        sent = qd("dispatch", "mail.welcome", "--queue", "mail", "--delay", delay)
        assert sent.exit_code == 0
        ids[name] = sent.stdout.split()[2]
    monkeypatch.setattr(top, "on_terminal", lambda: True)
    monkeypatch.setattr(Top, "show", lambda screen: print(json.dumps({"top": lines_with_jobs(screen.view)})))
    for command, limited, refuses in ROWS:
        result = qd(*[ids.get(word, word) for word in WORDS[command]])
        if re.search(rf"\b{kind}\b", refuses):
            assert result.exit_code in (2, 78), (command, result.output)
            assert (result.stdout, result.stderr.count("\n")) == ("", 1), (command, result.output)
        elif re.search(rf"\b{kind}\b", limited) and command in UNFINDABLE:
            assert result.exit_code == 1, (command, result.output)
        else:
            assert result.exit_code == 0, (command, result.output)
            assert (
                command not in ("peek", "queues", "top") or json.loads(result.stdout)[command.replace("peek", "jobs")]
            )


def lines_with_jobs(view: View) -> list[str]:
    return [line.name for line in view.state.queues if line.sizes.ready]


def table(kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The lines of qd.toml for the connection x."""
    if kind in ("null", "sync", "failover"):
        return f'[connections.x]\ndriver = "{kind}"\n' + 'connections = ["redis"]\n' * (kind == "failover")
    if kind == "database":
        return '[connections.x]\nurl = "sqlite:///jobs.sqlite"\n'
    server = request.getfixturevalue("server" if kind == "redis" else kind)
    if kind == "sqs":
        for name, value in server.env.items():
            monkeypatch.setenv(name, value)
        for queue in ("mail", "other"):
            server.client().create_queue(QueueName=queue)
    return f'[connections.x]\nurl = "{server.url}"\nqueue = "mail"\n'
