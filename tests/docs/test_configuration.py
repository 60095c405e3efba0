"""docs/configuration.md and conf/qd.toml are complete: each option with its names, unit and default."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from qd import config
from qd.cli import init_files
from qd.config.table import SECTIONS
from qd.options.tables import WORK

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = (ROOT / "docs" / "configuration.md").read_text()
SAMPLE = (ROOT / "conf" / "qd.toml").read_text()
ROWS = [(section, row) for section, rows in {**SECTIONS, "worker": WORK}.items() for row in rows.values()]


def names(*found):
    return ", ".join(f"`{name}`" for name in found if name)


@pytest.mark.parametrize(("section", "row"), ROWS, ids=lambda each: getattr(each, "name", each))
def test_each_option_has_its_row_in_the_reference(section, row):
    key = names(row.name) if row.in_file else ""
    flags = "words" if row.name == "queues" else names(row.short, row.flag)
    line = f"| {key} | {flags} | {names(row.environ)} | {row.unit} | {row.shown} | {row.help} |"
    assert f"\n{line}\n" in REFERENCE


@pytest.mark.parametrize("choice", [choice for row in WORK.values() for choice in row.choices])
def test_each_choice_is_named_in_the_reference_and_the_sample(choice):
    assert f"`{choice}`" in REFERENCE
    assert choice in SAMPLE


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """The sample with every example and default uncommented."""
    path = tmp_path_factory.mktemp("conf") / "qd.toml"
    path.write_text(re.sub(r"^#(?=\[|\w+ = )", "", SAMPLE, flags=re.MULTILINE))
    return config.load(path, environ={}, pool="mail")


def test_the_unchanged_sample_sets_nothing(tmp_path):
    (tmp_path / "qd.toml").write_text(SAMPLE)
    found = config.load(tmp_path / "qd.toml", environ={})
    assert set(found.origins.values()) == {"built in"}


@pytest.mark.parametrize(("section", "row"), [each for each in ROWS if each[1].in_file and "pools" not in each[0]])
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
PAGES = [*ROOT.glob("docs/*.md"), *ROOT.glob("supervisor/*"), *ROOT.glob("examples/**/*.conf"), ROOT / "README.md"]


@pytest.mark.parametrize("word", PATIENCE)
def test_the_stop_timeout_of_supervisors_is_the_same_in_every_file(word):
    """The pages and the shipped files have the value that qd init prints for the default --stop-timeout."""
    found = {
        f"{page.relative_to(ROOT)}: {number}": int(number)
        for page in PAGES
        for number in re.findall(PATIENCE[word], page.read_text(), re.MULTILINE)
    }
    assert found
    assert set(found.values()) == {init_files.patience(WORK["stop_timeout"].default)}, found


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
    page = (ROOT / "docs" / "getting-started.md").read_text()
    rows = re.findall(r"^\| (\w+) \| (?:production|development|dispatching)", page, re.MULTILINE)
    said = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    systems = [each.rpartition(" :: ")[2] for each in said if each.startswith("Operating System")]
    assert rows == [name.replace("MacOS", "macOS") for name in systems]
