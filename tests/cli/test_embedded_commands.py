"""`qd embedded status` and `stop` on the command line."""

from __future__ import annotations

import json

import pytest

START = "from pathlib import Path; from qd.drivers import embedded; embedded.resolve('embedded:', Path.cwd())"


@pytest.fixture
def alone(project):
    """A project with an embedded server."""
    one = project(url="embedded:")
    one.allowed.add(".qd")
    yield one
    one.qd("embedded", "stop")


def test_embedded_status_without_a_server_fails_and_starts_none(alone):
    done = alone.qd("embedded", "status")
    assert done.returncode == 1
    assert done.stdout == f"the embedded server of {alone.root} is not running; `qd work` starts it\n"
    assert not (alone.root / ".qd").exists()


def test_embedded_status_without_an_embedded_connection(project):
    done = project().quick("embedded", "status")
    assert (done.exit_code, done.stdout) == (1, 'no connection here has `url = "embedded:"`, nothing runs\n')


def test_embedded_status_names_the_running_server(alone):
    alone.python(START)
    done = alone.qd("embedded", "status")
    assert done.returncode == 0
    assert f"data in {alone.root}/.qd/embedded" in done.stdout
    found = json.loads(alone.qd("embedded", "status", "--json").stdout)
    assert found["running"] is True
    assert f"pid {found['pid']}" in done.stdout
    assert found["url"].startswith(f"unix://{alone.run}/qd-")


def test_embedded_stop_ends_the_server_once(alone):
    alone.python(START)
    done = alone.qd("embedded", "stop")
    assert (done.returncode, done.stdout) == (0, f"stopped; the queues are kept in {alone.root}/.qd/embedded\n")
    assert json.loads(alone.qd("embedded", "status", "--json").stdout) == {"running": False}
    done = alone.qd("embedded", "stop")
    assert (done.returncode, done.stdout) == (1, f"the embedded server of {alone.root} was not running\n")


def test_read_only_commands_do_not_start_the_embedded_server(alone):
    alone.python(START)
    assert alone.qd("status").returncode == 0
    alone.qd("embedded", "stop")
    said = alone.qd("embedded", "status").stdout
    for command in ("status", "health"):
        done = alone.qd(command)
        assert (command, done.returncode, done.stdout, done.stderr) == (command, 69, "", f"qd: {said}")
    alone.qd("doctor")
    assert json.loads(alone.qd("embedded", "status", "--json").stdout) == {"running": False}


def test_read_only_commands_do_not_start_an_embedded_control_server(alone, server):
    other = f'[connections.redis]\nurl = "{server.url}"\n\n[connections.own]\nurl = "embedded:"\n'
    (alone.root / "qd.toml").write_text(f'[qd]\napp = "jobs:app"\ncontrol = "own"\n\n{other}')
    assert [alone.qd(command).returncode for command in ("status", "health")] == [69, 69]
    assert "`qd work` starts it" in alone.qd("doctor").stdout
    assert alone.qd("embedded", "status").returncode == 1
