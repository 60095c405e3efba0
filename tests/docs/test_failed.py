"""docs/failed.md: its job fails under the real `qd work`, and its commands print what the page shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from qd.payload.format import read
from tests.support.pages import sample_program
from tests.support.payloads import failed, push
from tests.support.project import MakeProject, Project
from tests.support.redis import FAILED, Client

pytestmark = [pytest.mark.usefixtures("clean_redis"), FAILED]

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "failed.md").read_text()
CONSOLE = re.search(r"^```console\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
TASKS = re.findall(r"^\|[^|]*\| `(qd failed [^`]*)`", PAGE.partition("\n## ")[0], re.MULTILINE)


@pytest.fixture
def shop(project: MakeProject, redis: Client) -> Project:
    found = project(jobs=sample_program(PAGE))
    push(redis, "mail.welcome", to="nobody@example.org")
    found.work_off()
    return found


def test_the_console_block_shows_the_output_of_the_commands(shop: Project, redis: Client) -> None:
    assert CONSOLE
    listing, head, row, show = CONSOLE[1].splitlines()
    ((_, raw),) = failed(redis)
    done = shop.qd(*shlex.split(listing)[2:])
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[0].split() == head.split()
    # Everything except the ID and the time, which differ from the page.
    id = said[1].split()[0]
    assert (len(id), len(row.split()[0])) == (32, 32)
    assert read(raw).id == id
    assert said[1].split()[1:7] == row.split()[1:7]
    assert row.split()[7:8] == ["3"] == said[1].split()[7:8]
    assert said[1].endswith((" ago", "just now"))
    *words, short = shlex.split(show)[2:]
    assert len(short) == 4
    done = shop.qd(*words, id[:4])
    assert done.returncode == 0, done.stderr
    assert "ValueError: no such user" in done.stdout
    assert "nobody@example.org" in done.stdout


def test_each_command_of_the_tasks_runs(shop: Project, redis: Client) -> None:
    assert len(TASKS) == 7
    for command in TASKS:
        ((_, raw),) = failed(redis)
        done = shop.qd(*[read(raw).id or "" if word == "ID" else word for word in shlex.split(command)[1:]])
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        if command == "qd failed retry ID":
            assert not failed(redis)
            shop.work_off()
