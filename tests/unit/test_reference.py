"""The reference and the sample are complete: each option stands there, with its names, unit and default."""

import re
import tomllib
from pathlib import Path

import pytest

from qd import config
from qd.config.table import SECTIONS
from qd.options import WORK

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
    """The sample with every example and default made to count."""
    path = tmp_path_factory.mktemp("conf") / "qd.toml"
    path.write_text(re.sub(r"^#(?=\[|\w+ = )", "", SAMPLE, flags=re.MULTILINE))
    return config.load(path, environ={}, pool="mail")


def test_the_sample_as_it_stands_changes_nothing(tmp_path):
    (tmp_path / "qd.toml").write_text(SAMPLE)
    found = config.load(tmp_path / "qd.toml", environ={})
    assert set(found.origins.values()) == {"built in"}


@pytest.mark.parametrize(("section", "row"), [each for each in ROWS if each[1].in_file and "pools" not in each[0]])
def test_each_key_stands_in_the_sample_with_its_default(section, row, sample):
    """Keys without a default have an example."""
    name = "cleanup" if "entries" in section else "redis"
    dotted = f"{section.replace('NAME', name)}.{row.name}"
    assert "qd.toml:" in sample.origins[dotted]
    written = re.search(
        rf"^#{row.name} = (.*)$", SAMPLE[SAMPLE.index(f"[{dotted.rpartition('.')[0]}]") :], re.MULTILINE
    )
    assert written
    if not row.auto and row.default not in ("", (), None) and row.name != "queue":
        assert row.read(tomllib.loads(written[0].lstrip("#"))[row.name]) == row.default
