"""The reference pages are complete: options of qd and of jobs, commands, gaps of drivers, frequencies of the schedule."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import pytest

from qd import Qd, config
from qd.cli import init, main
from qd.config.settings import SECTIONS
from qd.errors import DeclarationError
from qd.jobs.plan import Options, SendOptions
from qd.jobs.policy import limits_of
from qd.options.drivers import DRIVERS
from qd.options.tables import JOB_KINDS, WORK, JobOptions
from qd.payload.format import HOLD, Payload
from qd.schedule.builder import Frequencies, Scheduled, Words
from qd.schedule.entry import CallTask
from scripts import reference
from tests.cli.test_main import leaves
from tests.support.pages import ROOT

# --- configuration.md and conf/qd.toml


SAMPLE = (ROOT / "conf" / "qd.toml").read_text()
FILES = {f"#{row.name} = " for rows in SECTIONS.values() for row in rows.values() if row.file_of}
ROWS = [(section, row) for section, rows in {**SECTIONS, "worker": WORK}.items() for row in rows.values()]


@pytest.mark.parametrize("choice", [choice for row in WORK.values() for choice in row.choices])
def test_each_choice_is_named_in_the_sample(choice):
    assert choice in SAMPLE


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """The sample with every example and default uncommented."""
    path = tmp_path_factory.mktemp("conf") / "qd.toml"
    lines = (line for line in SAMPLE.splitlines(keepends=True) if not line.startswith(tuple(FILES)))
    path.write_text(re.sub(r"^#(?=\[|\w+ = )", "", "".join(lines), flags=re.MULTILINE))
    return config.load(path, environ={}, pool="mail")


def test_the_unchanged_sample_sets_nothing(tmp_path):
    (tmp_path / "qd.toml").write_text(SAMPLE)
    found = config.load(tmp_path / "qd.toml", environ={})
    assert set(found.origins.values()) == {"built in"}


def test_the_sample_names_the_file_of_each_secret():
    assert [line for line in FILES if f"\n{line}" not in SAMPLE] == []


IN_FILE = [each for each in ROWS if each[1].in_file and not each[1].file_of and "pools" not in each[0]]


@pytest.mark.parametrize(("section", "row"), IN_FILE)
def test_each_key_is_in_the_sample_with_its_default(section, row, sample):
    """For a key without a default, the sample has an example."""
    name = "cleanup" if "entries" in section else "redis"
    dotted = f"{section.replace('NAME', name)}.{row.name}"
    assert "qd.toml:" in sample.origins[dotted]
    written = re.search(
        rf"^#{row.name} = (.*)$", SAMPLE[SAMPLE.index(f"[{dotted.rpartition('.')[0]}]") :], re.MULTILINE
    )
    assert written
    if not row.auto and row.default not in ("", (), None) and row.name != "queue":
        assert row.read(tomllib.loads(written[0].lstrip("#"))[row.name]) == row.default


# -- facts that occur in several places

PATIENCE = {
    "stopwaitsecs": r"^(?:\| `)?stopwaitsecs=(\d+)",
    "TimeoutStopSec": r"^(?:\| `)?TimeoutStopSec=(\d+)",
    "stop_grace_period": r"^(?:\| `| +)stop_grace_period: (\d+)",
    "terminationGracePeriodSeconds": r"^(?:\| `| +)terminationGracePeriodSeconds: (\d+)",
}
PAGES = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("supervisor/*"), *ROOT.glob("examples/**/*.conf"), ROOT / "README.md"]


@pytest.mark.parametrize("word", PATIENCE)
def test_the_stop_timeout_of_supervisors_is_the_same_in_every_file(word):
    """The pages and the shipped files have the value that qd init prints for the default --stop-timeout."""
    found = {
        f"{page.relative_to(ROOT)}: {number}": int(number)
        for page in PAGES
        for number in re.findall(PATIENCE[word], page.read_text(), re.MULTILINE)
    }
    assert found
    assert set(found.values()) == {init.patience(WORK["stop_timeout"].default)}, found


def test_messages_do_not_refer_to_pages_that_the_wheel_does_not_contain():
    texts = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.value}"
        for path in ROOT.glob("daemon/qd/**/*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert len(texts) > 1000
    assert [text for text in texts if "docs/" in text or "README" in text] == []


def test_the_platforms_on_the_page_equal_those_of_the_package():
    page = (ROOT / "docs" / "tutorial" / "first-job.md").read_text()
    rows = re.findall(r"^\| (\w+) \| (?:production|development|dispatching)", page, re.MULTILINE)
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    systems = [each.rpartition(" :: ")[2] for each in classifiers if each.startswith("Operating System")]
    assert rows == [name.replace("MacOS", "macOS") for name in systems]


# --- job-options.md


JOB_OPTIONS = {
    name: (where, shown, default, unit)
    for name, where, shown, default, unit in re.findall(
        r"^\| `(\w+)` \| (\w+) \| (.*?) \| (.*?) \| (.*?) ?\| .+ \|$",
        (ROOT / "docs" / "reference" / "job-options.md").read_text(),
        re.MULTILINE,
    )
}
TYPES = {
    "str": "`str`",
    "int": "`int`",
    "bool": "`bool`",
    "float": "`float`",
    "Duration": "duration",
    "Duration | datetime": "duration or `datetime`",
    "Duration | Sequence[Duration] | Backoff | Literal['exponential']": 'duration, list, `Backoff` or `"exponential"`',
    "type[Exception] | Sequence[type[Exception]]": "exception classes",
    "Sequence[str]": "list of `str`",
    "Literal['start', 'done']": '`"start"` or `"done"`',
    "Sequence[Middleware]": "list of callables",
    "Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]]": "dict of functions",
}
VALUES: dict[str, object] = {
    "`str`": "mail",
    "`int`": 2,
    "`bool`": True,
    "`float`": 0.5,
    "duration": 5,
    "duration or `datetime`": 5,
    'duration, list, `Backoff` or `"exponential"`': "exponential",
    "exception classes": ValueError,
    "list of `str`": ["mail"],
    '`"start"` or `"done"`': "start",
    "list of callables": [lambda job, call_next: call_next()],
    "dict of functions": {1: dict},
}


TOGETHER: dict[str, dict[str, object]] = {"upgrade": {"version": 2}, "version": {"upgrade": {1: dict}}}


def given(name: str) -> dict[str, object]:
    return {name: VALUES[JOB_OPTIONS[name][1]], **TOGETHER.get(name, {})}


def one_argument(data: dict[str, object]) -> None: ...


def accepts(name: str) -> str:
    """Where qd accepts the option: both, job or using."""
    app: Any = Qd()
    found = ""
    with suppress(DeclarationError):
        app.job("declared", **given(name))(one_argument)
        found = "job"
    with suppress(DeclarationError):
        app.job("sent")(one_argument).using(**{name: given(name)[name]})
        found = "both" if found else "using"
    return found


def test_the_table_of_job_options_has_each_option_with_its_type() -> None:
    annotations = {**Options.__annotations__, **SendOptions.__annotations__}
    types = {name: TYPES[getattr(each, "__forward_arg__", each)] for name, each in annotations.items()}
    assert {name: row[1] for name, row in JOB_OPTIONS.items()} == types
    assert set(JOB_KINDS) < set(JOB_OPTIONS)


@pytest.mark.filterwarnings("ignore::qd.jobs.job.NeverSent")
@pytest.mark.parametrize("name", JOB_OPTIONS)
def test_the_table_of_job_options_says_where_an_option_may_be_set(name: str) -> None:
    assert accepts(name) == JOB_OPTIONS[name][0]


@pytest.mark.parametrize("name", JOB_OPTIONS)
def test_a_default_of_a_job_option_is_that_of_the_worker_if_it_has_one(name: str) -> None:
    _, kind, default, unit = JOB_OPTIONS[name]
    if name != "connection" and (row := WORK.get(name)):
        assert default == f"`{row.flag}`, {row.shown}"
    assert unit.startswith("seconds") == ("duration" in kind)


def test_the_default_of_unique_for_is_that_of_the_payload() -> None:
    assert int(JOB_OPTIONS["unique_for"][2]) == HOLD


PRECEDENCE = [".using()", "@app.job()", "qd work flags", "environment variables", "qd.toml", "built-in defaults"]


def test_the_page_lists_the_sources_of_options_by_precedence() -> None:
    text = " ".join((ROOT / "docs" / "reference" / "job-options.md").read_text().split())
    found = text.partition("Precedence, highest first: ")[2].partition("defaults. ")[0] + "defaults"
    found = re.sub(r" \[computed options\]\(\S+\) of a class job,|`", "", found)
    assert found.split(", ") == PRECEDENCE


@pytest.mark.parametrize("removed", range(len(PRECEDENCE)))
def test_options_have_the_precedence_that_the_page_lists(removed: int, tmp_path: Path) -> None:
    """Each source sets its place in the list; without the first ones, the next one decides."""
    path = tmp_path / "qd.toml"
    path.write_text("[worker]\ntries = 50\n" if removed < 5 else "")
    flags, environ = {"tries": 30} if removed < 3 else {}, {"QD_TRIES": "40"} if removed < 4 else {}
    work = config.load(path, environ=environ, flags=flags).work
    declared = JobOptions.read({"tries": 20} if removed < 2 else {})
    sent = JobOptions.read({"tries": 10} if removed < 1 else {}).over(declared)
    places = [10, 20, 30, 40, 50, WORK["tries"].default]
    assert limits_of(Payload(job="mail", maxTries=sent.tries), declared, work).tries == places[removed]


# --- commands.md and the generated pages


DOCS = ROOT / "docs" / "reference"
PAGE = (DOCS / "commands.md").read_text()
COMMANDS = leaves()
PAGES_GENERATED = reference.pages()


@pytest.mark.parametrize("page", PAGES_GENERATED, ids=lambda page: page.stem)
def test_a_generated_page_is_fresh(page: Path) -> None:
    text = page.read_text() if page.exists() else ""
    assert text == PAGES_GENERATED[page], f"{page.name} is stale: run `make reference`"


def test_no_page_describes_an_unknown_command() -> None:
    assert {page.name for page in (DOCS / "cli").iterdir()} == {f"qd-{name}.md" for name in main.COMMANDS}


@pytest.mark.parametrize(("path", "one"), COMMANDS, ids=[path for path, _ in COMMANDS])
def test_the_text_by_hand_names_no_unknown_option(path: str, one: click.Command) -> None:
    page = (DOCS / "cli" / f"qd-{path.split()[0]}.md").read_text()
    every = {flag for _, other in COMMANDS for option in other.params for flag in option.opts} | {"--queue", "--help"}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", reference.by_hand(page)[path])) <= every


def test_the_table_of_tasks_names_every_command() -> None:
    tasks = PAGE.partition("## Options of all commands")[0]
    assert [path for path, _ in COMMANDS if f"`qd {path}" not in tasks] == []


def test_the_examples_of_tasks_are_valid_command_lines() -> None:
    """Each one is parsed: its command, arguments and options exist."""
    found = re.findall(r"\[`qd ([^`]+)`\]", PAGE.partition("## Options of all commands")[0])
    assert len(found) > 50
    for line in found:
        words = shlex.split(line.partition(" > ")[0])
        command = main.command
        context = click.Context(command, info_name="qd")
        while isinstance(command, click.Group):
            assert words, line
            _, command, words = command.resolve_command(context, words)  # type: ignore[assignment]
            context = click.Context(command, parent=context)
        assert {word for word in words if word.startswith("-")} <= {
            flag for option in command.params for flag in option.opts
        }, line


# --- what drivers lack


def test_every_driver_has_its_limits_on_a_page() -> None:
    drivers = {found.driver for found in reference.a_connection_of_each_driver().connections.values()}
    assert drivers == {*DRIVERS}


def test_redis_and_sentinel_lack_nothing() -> None:
    names = {*reference.a_connection_of_each_driver().connections}
    assert names - {*reference.driver_limits()} == {"redis", "sentinel"}


# --- schedule.md


PAGE_SCHEDULE = (ROOT / "docs" / "how-to" / "schedule.md").read_text()
ROWS_SCHEDULE = re.findall(r"^\| `(\w+\(.*\))` \| `([^`]+)` \|", PAGE_SCHEDULE, re.MULTILINE)
ELSEWHERE = {"tuesdays", "wednesdays", "thursdays", "fridays", "saturdays", "sundays", "every"}


def new() -> Scheduled:
    return Scheduled(CallTask(print), "print", ("here", 1), {})


@pytest.mark.parametrize(("word", "expression"), ROWS_SCHEDULE)
def test_a_frequency_has_the_expression_on_the_page(word, expression):
    entry = eval(f"new().{word}", {"new": new})
    assert entry._timing("UTC").text == expression


def public(kind):
    return {name for name in vars(kind) if not name.startswith("_") and inspect.isfunction(getattr(kind, name))}


def test_every_frequency_has_a_row():
    assert len(ROWS_SCHEDULE) > 40
    listed = set(re.findall(r"\w+(?=\()", " ".join(word for word, _ in ROWS_SCHEDULE)))
    assert public(Frequencies) == listed | ELSEWHERE


def test_every_keyword_of_an_entry_is_on_the_page():
    for word in Words.__annotations__:
        assert f"{word}=" in PAGE_SCHEDULE


@pytest.mark.parametrize(
    ("day", "number"),
    [("tuesdays", 2), ("wednesdays", 3), ("thursdays", 4), ("fridays", 5), ("saturdays", 6), ("sundays", 0)],
)
def test_days_of_the_week(day, number):
    assert getattr(new().at("8:00"), day)()._expression == f"0 8 * * {number}"
    assert new().days(day[:-1], day[:3].upper()).at("8:00")._expression == f"0 8 * * {number},{number}"
