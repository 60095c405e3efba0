"""The tests' own tools: a tool that finds nothing wrong must have been able to."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from tests.support.clock import eventually
from tests.support.peers import missing
from tests.support.procs import Procs
from tests.support.server import Server

ORPHAN = "import os, sys, time\nif os.fork() == 0:\n    time.sleep(60)\nprint('forked', file=sys.stderr, flush=True)\n"


def started(tmp_path, code: str) -> Procs:
    return Procs([sys.executable, "-c", code], cwd=tmp_path, env=dict(os.environ))


def test_child_that_outlives_its_parent_is_found_and_swept(tmp_path):
    procs = started(tmp_path, ORPHAN)
    procs.wait_line("forked")
    with pytest.raises(AssertionError, match="no process left of"):
        procs.ends_clean(orphans=0.1)
    assert len(procs.sweep()) == 1
    assert procs.session() == []


def test_wrong_exit_code_is_no_clean_end(tmp_path):
    procs = started(tmp_path, "raise SystemExit(3)")
    with pytest.raises(AssertionError, match="exit code 3, expected 0"):
        procs.ends_clean()


def test_line_that_cannot_come_any_more_fails_at_once_with_the_log(tmp_path):
    procs = started(tmp_path, "import sys; print('only this', file=sys.stderr)")
    with pytest.raises(RuntimeError, match="only this"):
        procs.wait_line("something else", 60)


def test_lines_are_counted_and_signals_arrive(tmp_path):
    code = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit('term 2'))\n"
    procs = started(tmp_path, code + "print('term 1', file=sys.stderr, flush=True)\nsignal.pause()\n")
    assert procs.wait_line(r"term (\d)")[1] == "1"
    procs.stop(signal.SIGTERM, code=1)
    assert procs.wait_line(r"term (\d)", count=2)[1] == "2"


def test_eventually_tells_what_it_waited_for():
    with pytest.raises(AssertionError, match="not within 0 s: the moon"):
        eventually(lambda: False, 0, what="the moon")


def test_missing_peer_fails_in_ci_and_skips_at_home(monkeypatch):
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="beanstalkd is missing"):
        missing("beanstalkd")
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="beanstalkd is not installed"):
        missing("beanstalkd")


def test_server_keeps_its_port_when_it_is_killed_and_started_again():
    with Server() as server:
        url = server.tcp_url
        server.kill()
        server.start()
        assert server.tcp_url == url
        with server.client() as client:
            assert client.keys() == []


def test_project_runs_in_its_own_folder_with_its_own_server(project, server):
    one = project()
    assert one.python("import os; print(os.getcwd())").stdout.strip() == str(one.root)
    assert server.url in (one.root / "qd.toml").read_text()
