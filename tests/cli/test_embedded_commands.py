"""`qd embedded status` and `stop`, as a user types them."""

from __future__ import annotations

import json

import pytest

START = "from pathlib import Path; from qd import embedded; embedded.resolve('embedded:', Path.cwd())"


@pytest.fixture
def alone(project):
    """A project with a private server of its own."""
    one = project(url="embedded:")
    one.allowed.add(".qd")
    yield one
    one.qd("embedded", "stop")


def test_status_says_no_and_starts_nothing(alone):
    done = alone.qd("embedded", "status")
    assert done.returncode == 1
    assert done.stdout == (
        f"the embedded server of {alone.root} is not running; it starts with the first command that needs it\n"
    )
    assert not (alone.root / ".qd").exists()


def test_status_names_the_server_that_runs(alone):
    alone.python(START)
    done = alone.qd("embedded", "status")
    assert done.returncode == 0
    assert f"data in {alone.root}/.qd/embedded" in done.stdout
    found = json.loads(alone.qd("embedded", "status", "--json").stdout)
    assert found["running"] is True
    assert f"pid {found['pid']}" in done.stdout
    assert found["url"].startswith(f"unix://{alone.run}/qd-")


def test_stop_ends_it_once(alone):
    alone.python(START)
    done = alone.qd("embedded", "stop")
    assert (done.returncode, done.stdout) == (0, f"stopped; the queues are kept in {alone.root}/.qd/embedded\n")
    assert json.loads(alone.qd("embedded", "status", "--json").stdout) == {"running": False}
    done = alone.qd("embedded", "stop")
    assert (done.returncode, done.stdout) == (1, f"the embedded server of {alone.root} was not running\n")
