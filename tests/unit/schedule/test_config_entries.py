"""[schedule.entries.NAME] in qd.toml: parsed, checked against the app, errors reported with their line."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest

from qd import DeclarationError, Qd, config
from qd.config.settings import Settings
from qd.errors import ConfigError
from qd.schedule.entry import CallTask, QdTask, ShellTask


def refill() -> None: ...


class Shop:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.app = Qd()

        @self.app.job("shop.cleanup", queue="low")
        def cleanup(days: int, before: datetime | None = None, *, kind: str = "all") -> None: ...

        self.cleanup = cleanup

    def configure(self, text: str) -> Settings:
        (self.folder / "qd.toml").write_text(f'[connections.redis]\nurl = "redis://h"\n[schedule]\n{text}')
        self.app.settings = config.load(self.folder / "qd.toml", environ={})
        return self.app.settings

    def only(self, text: str):
        self.configure(text)
        (entry,) = self.app.schedule.entries()
        return entry


@pytest.fixture
def shop(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Shop(tmp_path)


def test_an_entry_can_be_a_job_with_arguments(shop):
    entry = shop.only("""
        [schedule.entries.cleanup]
        job = "shop.cleanup"
        args = {days = 7, before = 2026-11-21T07:00:00Z}
        queue = "high"
        cron = "0 3 * * *"
        timezone = "Europe/Berlin"
        environments = ["production"]
        missed = "once"
        without_overlapping = true
    """)
    assert (entry.name, entry.kind, entry.timing.text, entry.timing.zone) == (
        "cleanup",
        "job",
        "0 3 * * *",
        "Europe/Berlin",
    )
    assert (entry.environments, entry.missed, entry.alone) == (("production",), "once", True)
    assert entry.origin == ("qd.toml", 5)
    parcel = entry.task.message()
    assert (parcel.name, parcel.queue) == ("shop.cleanup", "high")
    assert json.loads(parcel.data) == {"days": 7, "before": "2026-11-21T07:00:00+00:00"}


def test_an_entry_can_be_a_function_a_shell_line_or_a_command(shop):
    shop.configure(f"""
        entries.refill = {{call = "{__name__}:refill", every = "10s", on_every_host = true, in_background = true}}
        entries."du -s" = {{shell = "du -s *", every = 90, output_to = "/tmp/du", append = true, timeout = "5m"}}
        entries.forget = {{qd = "failed forget --older-than 30d", cron = "@weekly", even_in_maintenance_mode = true}}
    """)
    refilled, du, forget = shop.app.schedule.entries()
    assert refilled.task == CallTask(refill)
    assert (refilled.every_host, refilled.background, refilled.timing.text) == (True, True, "every 10s")
    assert (du.name, du.task) == ("du -s", ShellTask("du -s *"))
    assert (du.output, du.append, du.timeout) == (Path("/tmp/du"), True, 300.0)
    assert (forget.task, forget.in_maintenance) == (QdTask(("failed", "forget", "--older-than", "30d")), True)


def test_entries_of_the_code_come_first_and_no_two_have_one_name(shop):
    shop.app.schedule(refill).daily().name("refill")
    shop.configure("entries.refill = {shell = 'true', every = 1}")
    with pytest.raises(
        DeclarationError, match=r"qd.toml:4 is wrong: .*test_config_entries.py:\d+ has the name 'refill'"
    ):
        shop.app.schedule.entries()
    shop.configure("entries.other = {shell = 'true', every = 1}")
    for _ in range(2):
        assert [entry.name for entry in shop.app.schedule.entries()] == ["refill", "other"]


def test_entries_survive_serialization(shop):
    found = shop.configure(
        "entries.a = {job = 'shop.cleanup', args = {days = 7}, environments = ['a', 'b'], every = 1}"
    )
    assert config.from_json(config.to_json(found)) == found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[schedule.entries.a]\njob = 'x'\ncorn = '* * * * *'", "'corn' in qd.toml:6 [schedule.entries.a] (did you mean"),
        ("entries.a = {when = 'x'}", "unknown key 'when' in qd.toml:4 [schedule.entries.a] (known: job, args, queue, "),
        ("[schedule.entries.a]\n[schedule.entries.a]", "qd.toml:5:20: [schedule.entries.a] is defined twice: rename one"),
        ("entrys.a = {shell = 'ls', every = 1}", "'entrys' in qd.toml:4 [schedule] (did you mean 'entries'?)"),
        ("[schedule.entries]\na = 5", "schedule.entries.a in qd.toml:5 must be a table of keys"),
        ("[schedule.entries.a]\nevery = 'often'", "every in qd.toml:5 [schedule.entries.a]: 'often' is not a duration"),
        ("[schedule.entries.a]\nevery = 0", "0 is too small (at least 0.01)"),
        ("[schedule.entries.a]\ntimezone = 'Europe/Berln'", "zone 'Europe/Berln' (did you mean 'Europe/Berlin'?)"),
        ("[schedule.entries.a]\nmissed = 'onse'", "'onse' is not one of skip, once, all (did you mean 'once'?)"),
        ("[schedule.entries.a]\nargs = 7", "args in qd.toml:5 [schedule.entries.a]: 7 is not a table of arguments"),
    ],
)  # fmt: skip
def test_a_wrong_key_is_reported_with_its_line(shop, text, expected):
    with pytest.raises(ConfigError) as error:
        shop.configure(text)
    assert expected in str(error.value)


SHELL = "shell = 'ls'"


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("every = 1", "nothing says what it runs: add job, call, shell or qd"),
        ("shell = 'ls', qd = 'declared', every = 1", "shell and qd both say what it runs"),
        (SHELL, "nothing says when it runs: add cron or every"),
        (f"{SHELL}, every = 1, cron = '* * * * *'", "cron and every both say when"),
        (f"{SHELL}, every = 1, queue = 'a'", "queue does not go with shell, it is for jobs"),
        ("job = 'shop.cleanup', every = 1, timeout = 5", "timeout does not go with job, a job is run by a worker"),
        (f"{SHELL}, every = 1, append = true", "append needs a file: add output_to"),
        (f"{SHELL}, cron = '61 * * * *'", "61"),
        (f"{SHELL}, cron = '0 0 31 2 *'", "never comes"),
        ("job = 'shop.cleanup', every = 1, connection = 'nope'", "unknown connection 'nope'"),
        ("qd = '\"', every = 1", "cannot be read"),
        (f"{SHELL}, every = 0.0105", "whole milliseconds"),
    ],
)  # fmt: skip
def test_contradicting_keys_are_found_without_the_app(shop, keys, expected):
    from qd.schedule.declare import check

    settings = shop.configure(f"\n\nentries.a = {{{keys}}}")
    with pytest.raises(DeclarationError) as error:
        check(settings.schedule.entries[0], settings)
    assert "qd.toml:6" in str(error.value)
    assert "[schedule.entries.a]" in str(error.value)
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("job = 'shop.clean_up'", "no job is called 'shop.clean_up' (did you mean 'shop.cleanup'?)"),
        ("job = 'shop.cleanup'", "job 'shop.cleanup' needs days: write args = {days = ...}"),
        ("job = 'shop.cleanup', args = {days = 'many'}", "days"),
        ("job = 'shop.cleanup', args = {dyas = 7}", "dyas"),
        ("call = 'shop.stock'", "is not a function (write 'shop.stock:refill')"),
        ("call = 'no_such_module:f'", "does not import: ModuleNotFoundError"),
        ("call = 'os.path:no_such'", "does not import: AttributeError"),
        ("call = 'json:dumps'", "takes arguments"),
    ],
)
def test_keys_that_do_not_fit_the_app_are_refused(shop, keys, expected):
    shop.configure(f"entries.a = {{{keys}, every = 1}}")
    with pytest.raises(DeclarationError) as error:
        shop.app.schedule.entries()
    assert "qd.toml:4" in str(error.value)
    assert expected in str(error.value)


def test_pyproject_entries_are_read_from_tool_qd(shop):
    (shop.folder / "pyproject.toml").write_text("""
        [tool.qd.connections.redis]
        url = "redis://h"
        [tool.qd.schedule.entries.disk]
        shell = "df"
        every = 60
    """)
    shop.app.settings = config.load(shop.folder / "pyproject.toml", environ={})
    (entry,) = shop.app.schedule.entries()
    assert (entry.name, entry.origin) == ("disk", ("pyproject.toml", 4))
