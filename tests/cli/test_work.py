"""The flags of `qd work`: only given options are passed on. Laravel's arguments are accepted too."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from qd import config
from qd.cli import context
from qd.cli.work import work_flags
from qd.options.tables import WORK

URL = '[connections.redis]\nurl = "redis://h/0"\n[connections.reports]\n'


@pytest.fixture
def work(tmp_path, monkeypatch):
    """work("high", "-w", "2"): the flags that the command gets, or the usage error it ends with."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.environ", {})
    (tmp_path / "qd.toml").write_text(URL)
    given = []

    @click.command("work")
    @work_flags
    @context.options
    def command(flags):
        given.append(flags)

    def run(*words):
        given.clear()
        result = CliRunner().invoke(command, words)
        return given[0] if given else " ".join(result.stderr.split())

    return run


def test_no_arguments_pass_no_flags(work):
    assert work() == {}


def test_only_given_options_are_parsed_and_passed(work):
    assert work("-w", "2", "--timeout=5m", "--memory", "256M", "--once", "--backoff=1,5,30s", "--pool", "mail") == {
        "workers": 2, "timeout": 300.0, "memory": 256 << 20, "once": True, "backoff": (1.0, 5.0, 30.0), "pool": "mail",
    }  # fmt: skip


def test_an_option_given_with_its_default_value_is_passed(work):
    assert work("--timeout", "60") == {"timeout": 60.0}


@pytest.mark.parametrize("row", WORK.values(), ids=lambda row: row.name)
def test_every_option_has_its_flag_and_help(row):
    command = click.command("work")(work_flags(lambda flags: None))
    text = " ".join(CliRunner().invoke(command, ["--help"]).stdout.split())
    if row.name not in ("queues", "connection"):
        assert f"{row.flag} " in text
        assert f"{row.help[0].upper()}{row.help[1:]}." in text
        assert row.kind == "switch" or f"default: {row.shown}]" in text


def test_flags_reach_the_settings(work, tmp_path):
    flags = work("high", "low", "--tries", "0")
    found = config.load(tmp_path / "qd.toml", environ={"QD_TRIES": "5"}, flags=flags)
    assert (found.work.queues, found.work.tries, found.origins["worker.tries"]) == (("high", "low"), 0, "flag --tries")


def test_arguments_are_queues_in_order(work):
    assert work("high", "default") == {"queues": ("high", "default")}
    assert work("high,default", "high") == {"queues": ("high", "default")}
    assert work("--queue=high,default") == {"queues": ("high", "default")}


def test_queues_may_have_weights(work):
    assert work("high=5", "low=1") == {"queues": ("high=5", "low=1")}
    assert work("--queue=high=5,low=1") == {"queues": ("high=5", "low=1")}
    assert "'low' has no weight, and 'high=5' has: write low=1, or no weights" in work("high=5", "low")
    assert "'reports' names a connection" in work("reports=5")


def test_laravels_arguments_are_accepted(work):
    assert work("redis", "--queue=high,default", "--sleep=3", "--tries=3", "--max-time=3600", "--daemon") == {
        "connection": "redis", "queues": ("high", "default"), "sleep": 3.0, "tries": 3, "max_time": 3600.0,
    }  # fmt: skip
    assert work("--delay=5") == {"backoff": (5.0,)}
    assert work("--delay=5", "--backoff=7") == {"backoff": (7.0,)}
    assert work("--json") == {"log_format": "json"}


def test_an_argument_that_names_a_connection_is_rejected_with_a_hint(work):
    error = work("reports")
    assert "'reports' names a connection" in error
    assert "`qd work -c reports`" in error
    assert "`qd work --queue=reports`" in error
    assert work("-c", "reports", "high") == {"queues": ("high",)}
    assert work("--queue=reports") == {"queues": ("reports",)}


def test_a_second_argument_with_queue_is_rejected(work):
    assert "give one argument, the connection, not 'redis high': qd work redis --queue=low" in work(
        "redis", "high", "--queue=low"
    )


def test_two_different_connections_are_rejected(work):
    assert "two connections, 'redis' and 'reports'" in work("redis", "--queue=low", "-c", "reports")
    assert work("redis", "--queue=low", "-c", "redis") == {"queues": ("low",), "connection": "redis"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--timeout=soon"], "'--timeout': 'soon' is not a duration"),
        (["--backoff=expo"], "'--backoff': 'expo' is neither 'exponential' nor durations (1, 5, 10)"),
        (["--memory=128"], "write '128M' for megabytes"),
        (["--tries=-1"], "'--tries': '-1' is not a whole number"),
        (["--log-format=xml"], "'xml' is not one of text, json"),
        (["--queue=a,,b"], "'' is not a name"),
        (["--timeuot=5"], "--timeuot"),
    ],
)
def test_an_invalid_value_is_wrong_usage(words, expected, work):
    assert expected in work(*words)
