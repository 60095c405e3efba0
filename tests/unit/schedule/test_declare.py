"""app.schedule: what can be declared, and what is refused, with file and line."""

from __future__ import annotations

import functools
import re
import sys
from datetime import UTC, datetime, timedelta

import click
import pytest

from qd import DeclarationError, Job
from qd.cli.main import command
from qd.schedule import declare
from qd.schedule.entry import CallTask, JobTask, QdTask, ShellTask
from tests.support.fakes import FakeQd


@pytest.fixture
def app():
    return FakeQd()


@pytest.fixture
def report(app: FakeQd):
    @app.job("shop.report")
    def report(month: int = 1, *, kind: str = "short") -> None: ...

    return report


def tick() -> None: ...


async def atick() -> None: ...


def only(app):
    (entry,) = app.schedule.entries()
    return entry


def here():
    """File and number of the line after the caller's."""
    frame = sys._getframe(1)
    return f"{frame.f_code.co_filename}:{frame.f_lineno + 1}"


# --- tasks and their names


def test_a_job_call_is_named_after_its_job_and_arguments(app, report):
    app.schedule(report.bind(7)).daily()
    entry = only(app)
    assert (entry.kind, entry.name, entry.timing.text) == ("job", "shop.report(7)", "0 0 * * *")
    assert isinstance(entry.task, JobTask)


@pytest.mark.parametrize(
    ("args", "kwargs", "name"),
    [
        ((), {}, "shop.report"),
        ((7,), {}, "shop.report(7)"),
        ((), {"month": 7}, "shop.report(7)"),
        ((), {"kind": "long"}, "shop.report(kind=long)"),
        ((7,), {"kind": "very long"}, 'shop.report(7, kind="very long")'),
    ],
)
def test_the_name_of_an_entry_contains_its_arguments(app, report, args, kwargs, name):
    app.schedule(report.bind(*args, **kwargs)).daily()
    assert only(app).name == name


def test_a_bare_job_runs_with_its_defaults(app, report):
    app.schedule(report, cron="@daily")
    assert (only(app).kind, only(app).name) == ("job", "shop.report")


def test_a_class_job_and_a_chain_can_be_entries(app, report):
    @app.job("shop.sweep")
    class Sweep(Job[None]):
        days: int = 7

        def handle(self) -> None: ...

    app.schedule(Sweep(days=8)).daily()
    app.schedule(app.chain(report.bind(7), Sweep())).daily()
    assert [entry.name for entry in app.schedule.entries()] == [
        "shop.sweep(days=8)",
        "chain of shop.report, shop.sweep",
    ]


def test_a_long_name_is_shortened_and_stays_unique(app, report):
    app.schedule(report.bind(kind="x" * 100)).daily()
    app.schedule(report.bind(kind="x" * 101)).daily()
    names = [entry.name for entry in app.schedule.entries()]
    assert [len(name) for name in names] == [64, 64]
    assert names[0] != names[1]


def test_the_name_of_an_entry_contains_no_password(app, report):
    app.schedule.shell("pg_dump postgres://shop:geheim@db/shop").daily()
    app.schedule(report.bind(kind="redis://:geheim@h/0")).daily()
    command, job = app.schedule.entries()
    assert command.name == "pg_dump postgres://shop:***@db/shop"
    assert command.task.line.endswith("shop:geheim@db/shop")
    assert job.name == "shop.report(kind=redis://:***@h/0)"


def test_each_tick_has_a_new_payload(app, report):
    app.schedule(report.bind(7)).daily()
    task = only(app).task
    one, other = task.message(), task.message()
    assert (one.name, one.queue, one.data) == ("shop.report", "default", b'{"month":7}')
    assert one.uuid != other.uuid


def test_functions_are_named_after_their_module(app):
    app.schedule(tick, every=10)
    app.schedule(atick).every(timedelta(minutes=1))
    first, second = app.schedule.entries()
    assert (first.kind, first.name, first.timing.text) == ("call", f"{__name__}.tick", "every 10s")
    assert (second.name, second.timing.text) == (f"{__name__}.atick", "every 60s")
    assert first.task == CallTask(tick)


def test_a_shell_line_is_used_as_is_and_parameters_are_quoted(app):
    app.schedule.shell(
        "du -s * | mail root", "a b", 7, {"--file": "x y", "force": True, "no": None, "tag": [1, 2]}
    ).daily()
    line = "du -s * | mail root 'a b' 7 '--file=x y' --force --tag=1 --tag=2"
    assert only(app).task == ShellTask(line)
    assert only(app).kind == "shell"
    app.schedule.shell("true", cron="* * * * *")
    assert app.schedule.entries()[1].name == "true"


def test_an_entry_can_be_a_qd_command(app):
    app.schedule.qd("failed forget --older-than 30d", {"queue": "mail"}).weekly()
    assert only(app).task == QdTask(("failed", "forget", "--older-than", "30d", "--queue=mail"))
    assert only(app).name == "qd failed forget --older-than 30d --queue=mail"


# --- options


def test_all_options_of_a_run_are_stored(app, tmp_path):
    scheduled = (
        app.schedule(tick)
        .name("nightly")
        .weekdays()
        .at("7:30")
        .timezone("Europe/Berlin")
        .environments("production", "staging")
        .missed("all")
        .without_overlapping()
        .on_every_host()
        .in_background()
        .even_in_maintenance_mode()
        .timeout(timedelta(minutes=5))
        .append_output_to(tmp_path / "out")
        .before(tick)
        .after(atick)
        .then(tick)
        .on_success(tick)
        .on_failure(tick)
    )
    entry = only(app)
    assert (entry.name, entry.timing.text, entry.timing.zone) == ("nightly", "30 7 * * 1-5", "Europe/Berlin")
    assert (entry.environments, entry.missed) == (("production", "staging"), "all")
    assert (entry.alone, entry.every_host, entry.background, entry.in_maintenance) == (True, True, True, True)
    assert (entry.timeout, entry.output, entry.append) == (300.0, tmp_path / "out", True)
    assert (entry.before, entry.after) == ((tick,), (atick, tick))
    assert (entry.on_success, entry.on_failure) == ((tick,), (tick,))
    assert repr(scheduled).startswith("<scheduled nightly at ")


def test_keywords_have_the_same_effect_as_methods(app, report):
    app.schedule(report, every=10, timezone="Europe/Berlin", overlap=False, missed="once", name="often")
    entry = only(app)
    assert (entry.name, entry.alone, entry.missed, entry.timing.text) == ("often", True, "once", "every 10s")


def test_entries_use_the_configured_time_zone_unless_they_set_one(app):
    from dataclasses import replace

    app.settings = replace(app.settings, schedule=replace(app.settings.schedule, timezone="Asia/Tokyo"))
    app.schedule(tick).daily()
    app.schedule(atick).timezone("UTC").daily()
    assert [entry.timing.zone for entry in app.schedule.entries()] == ["Asia/Tokyo", "UTC"]


def test_entries_can_be_limited_to_environments(app):
    app.schedule(tick).daily().environments(["production"])
    app.schedule(atick).daily()
    assert [entry.runs_in("production") for entry in app.schedule.entries()] == [True, True]
    assert [entry.runs_in("") for entry in app.schedule.entries()] == [False, True]


# --- errors


BAD = {
    "hour": (lambda app: app.schedule(tick).at("25:00"), r"'25:00' is not a time of day \(write '13:00'\)"),
    "minute": (lambda app: app.schedule(tick).hourly_at(75), r"75 is not a valid minute \(0 to 59\)"),
    "several": (lambda app: app.schedule(tick).hourly_at([0, 60]), r"60 is not a valid minute"),
    "none": (lambda app: app.schedule(tick).hourly_at([]), r"empty list"),
    "text": (lambda app: app.schedule(tick).hourly_at("*/5"), r"'\*/5' is not a valid minute"),
    "hour as a text": (lambda app: app.schedule(tick).at("24"), r"'24' is not a time of day"),
    "range of days": (lambda app: app.schedule(tick).days("5-1"), r"'5-1' is not a range of days of the week"),
    "range without an end": (lambda app: app.schedule(tick).days("1-"), r"'' is not a day of the week"),
    "day": (lambda app: app.schedule(tick).monthly_on(32), r"32 is not a valid day of a month"),
    "weekday": (
        lambda app: app.schedule(tick).weekly_on("munday"),
        r"'munday' is not a day of the week .*'sunday'|'monday'",
    ),
    "no days": (lambda app: app.schedule(tick).days(), r"needs a day"),
    "month": (lambda app: app.schedule(tick).yearly_on(13), r"13 is not a valid month"),
    "zone": (lambda app: app.schedule(tick, timezone="Europe/Berln"), r"unknown time zone .*'Europe/Berlin'"),
    "summer time": (
        lambda app: app.schedule(tick, timezone="CEST"),
        r"unknown time zone 'CEST' \(write Europe/Berlin\)",
    ),
    "step": (
        lambda app: app.schedule(tick, cron="*/70 * * * *"),
        r"a step of 70 is larger than the minute \(60\): .* every",
    ),
    "zero": (lambda app: app.schedule(tick, every=0), r"every 0.* not a valid interval"),
    "negative": (lambda app: app.schedule(tick).every(-1), r"not a duration"),
    "tiny": (lambda app: app.schedule(tick).every(seconds=0.001), r"every 0.001 .*not a valid interval"),
    "a text": (lambda app: app.schedule(tick).every("5m"), r"'5m' is text: write 300"),
    "cron": (lambda app: app.schedule(tick).cron("61 * * * *"), r"61"),
    "four": (lambda app: app.schedule(tick, cron="* * * *"), r"4 fields"),
    "never": (lambda app: app.schedule(tick, cron="0 0 31 2 *"), r"never comes"),
    "missed": (lambda app: app.schedule(tick, missed="onse"), r"'onse'.*did you mean 'once'"),
    "overlap": (lambda app: app.schedule(tick, overlap="no"), r"overlap='no'"),
    "word": (lambda app: app.schedule(tick, crn="* * * * *"), r"unknown keyword 'crn' \(did you mean 'cron'\?\)"),
    "both": (lambda app: app.schedule(tick).every(10).daily(), r"every\(...\) counts seconds"),
    "both again": (lambda app: app.schedule(tick).daily().every(10), r"every\(...\) counts seconds"),
    "name": (lambda app: app.schedule(tick).name(" "), r"' ' is not a name"),
    "star": (lambda app: app.schedule(tick).name("*"), r"'\*' is not a name"),
    "environments": (lambda app: app.schedule(tick).environments(), r"does not name environments"),
    "no time": (lambda app: app.schedule(tick).between("8:00", "8:00"), r"8:00 to 8:00 is empty"),
    "async filter": (lambda app: app.schedule(tick).when(atick), r"when\(atick\) is async"),
    "filter": (lambda app: app.schedule(tick).skip("yes"), r"skip\('yes'\) cannot be called"),
    "hook": (lambda app: app.schedule(tick).before(len), r"before\(len\) cannot be called"),
    "timeout": (lambda app: app.schedule(tick).timeout("5m"), r"timeout: '5m' is text"),
    "output": (lambda app: app.schedule(tick).output_to(""), r"does not name a file"),
    "arguments": (lambda app: app.schedule(len), r"len takes arguments"),
    "class": (lambda app: app.schedule(dict), r"dict is a class"),
    "no function": (lambda app: app.schedule(7), r"7 cannot be run"),
    "line": (lambda app: app.schedule.shell(" "), r"not a command line"),
    "parameter": (lambda app: app.schedule.shell("ls", True), r"True is not a parameter"),
    "qd": (lambda app: app.schedule.qd(""), r"not a command of qd"),
    "not a command of qd's": (
        lambda app: app.schedule.qd("nosuch"),
        r"wrong: unknown command 'nosuch' of qd \(known: work",
    ),
    "a typing error": (
        lambda app: app.schedule.qd("failed froget"),
        r"unknown command 'froget' of qd \(did you mean 'forget'",
    ),
    "half a command": (lambda app: app.schedule.qd("schedule"), r"qd schedule names no command \(known: clear-locks"),
    "no end": (lambda app: app.schedule.qd("work", {"workers": 2}), r"`qd work` does not end"),
    "no end either": (lambda app: app.schedule.qd("qd schedule work"), r"`qd schedule work` does not end"),
    "quotes": (lambda app: app.schedule.qd("failed 'x"), r"cannot be read"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_is_refused_at_the_declaration(app, case):
    declare, expected = BAD[case]
    with pytest.raises(DeclarationError, match=expected) as error:
        declare(app)
    assert "\n" not in str(error.value)
    assert f"{__file__}:{declare.__code__.co_firstlineno}" in str(error.value)


LATE = {
    "no frequency": (lambda app: app.schedule(tick), r"nothing says when it runs: add .daily\(\)"),
    "days only": (lambda app: app.schedule(tick).weekdays(), r"it has days but no time"),
    "never": (lambda app: app.schedule(tick).yearly_on(2, 30), r"never comes"),
    "a lambda": (lambda app: app.schedule(lambda: None).daily(), r"wrong: a lambda has no name"),
    "a partial": (
        lambda app: app.schedule(functools.partial(print, 7)).daily(),
        r"a partial of print has no name",
    ),
}


@pytest.mark.parametrize("case", LATE)
def test_contradictions_are_refused_when_entries_are_read(app, case):
    declare, expected = LATE[case]
    declare(app)
    with pytest.raises(DeclarationError, match=expected) as error:
        app.schedule.entries()
    assert f"{__file__}:{declare.__code__.co_firstlineno}" in str(error.value)


def test_a_lambda_with_a_name_is_an_entry(app):
    app.schedule(lambda: None).daily().name("nothing")
    assert only(app).name == "nothing"


def test_a_duplicate_explicit_name_is_refused_with_both_places(app):
    first = here()
    app.schedule(tick).name("nightly")
    second = here()
    with pytest.raises(DeclarationError, match="'nightly' already") as error:
        app.schedule(atick).name("nightly")
    assert first in str(error.value)
    assert re.search(rf"{re.escape(__file__)}:{int(second.rpartition(':')[2]) + 1}", str(error.value))


@pytest.mark.parametrize(("word", "meant"), [("dailyAt", "daily_at"), ("everyFiveMinutes", "every_five_minutes")])
def test_a_laravel_method_name_suggests_qds_name(app, word, meant):
    with pytest.raises(AttributeError, match=rf"no method '{word}' \(did you mean '{meant}'\?\)"):
        getattr(app.schedule(tick), word)
    assert not hasattr(app.schedule(tick), "_nothing")


def test_a_duration_is_shown_as_written(app):
    app.schedule(tick).every(hours=6)
    assert only(app).timing.text == "every 6h"


def test_the_known_commands_match_the_command_line():
    context = click.Context(command)
    found = {name: command.get_command(context, name) for name in command.list_commands(context)}
    assert set(declare.COMMANDS) == set(found)
    groups = {name: set(one.list_commands(context)) for name, one in found.items() if isinstance(one, click.Group)}
    assert {name: set(inner) for name, inner in declare.GROUPS.items()} == groups


def test_two_entries_of_one_job_need_a_name_and_both_places_are_named(app, report):
    first = here()
    app.schedule(report.bind(7)).daily()
    app.schedule(report.bind(7)).weekly()
    with pytest.raises(DeclarationError, match=r"the name 'shop.report\(7\)', too") as error:
        app.schedule.entries()
    assert first in str(error.value)


@pytest.mark.parametrize(
    ("word", "given"),
    [
        ("in_background", ()),
        ("timeout", (5,)),
        ("output_to", ("x",)),
        ("before", (tick,)),
        ("after", (tick,)),
        ("on_success", (tick,)),
        ("on_failure", (tick,)),
    ],
)
def test_options_of_runs_are_refused_for_jobs(app, report, word, given):
    with pytest.raises(DeclarationError, match=f"{word} is for runs, and a job is run by a worker"):
        getattr(app.schedule(report), word)(*given)


def test_jobs_that_no_scheduler_can_send_are_refused(app: FakeQd, report):
    @app.job
    def needs(month: int): ...

    def refuse(what, expected):
        with pytest.raises(DeclarationError, match=expected):
            app.schedule(what)

    refuse(needs, "is missing argument 'month'")
    refuse(report.dispatch, "give the job itself, job.bind")
    refuse(report.using(delay=datetime.now(UTC)).bind(), "give its delay in seconds")
    refuse(app.batch(report.bind()), "a batch is several jobs")
    refuse(FakeQd().job("other")(tick), "does not belong to this app")


def test_a_job_has_one_lock(app: FakeQd, report):
    for what, expected in [
        (app.chain(report.bind(), report.bind()), "a chain is several"),
        (report.using(unique="all").bind(), "its job has unique="),
        (report.using(key="a").bind(), "its job has key="),
    ]:
        app = FakeQd()
        app._registry.add(report._plan.declared)
        app.schedule(what).daily().without_overlapping()
        with pytest.raises(DeclarationError, match=expected):
            app.schedule.entries()


def test_an_unknown_connection_is_reported_with_the_line(app, report):
    line = here()
    app.schedule(report.using(connection="othr").bind()).daily()
    with pytest.raises(DeclarationError, match=r"unknown connection 'othr' \(did you mean 'other'\?\)") as error:
        app.schedule.entries()
    assert line in str(error.value)


def test_a_cron_expression_replaces_earlier_timing(app):
    app.schedule(tick).every_ten_seconds().mondays().cron("5 4 * * *")
    assert only(app).timing.text == "5 4 * * *"
