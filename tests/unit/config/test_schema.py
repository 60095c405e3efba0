"""The JSON schema of qd.toml says what ConfigFile says: for each key and value, and for whole files."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from qd.config.file import find
from qd.config.schema import schema, text
from qd.config.settings import SECTIONS
from qd.errors import ConfigError
from tests.support.pages import ROOT

SCHEMA = schema()
VALIDATOR = Draft7Validator(SCHEMA)
HASH = f"scrypt${'0' * 32}${'0' * 128}"
VALUES: list[Any] = [
    0, 1, 2, 5, 99, 100, 101, 1000, 1001, 1 << 20, -1, 0.5, 1.5, 2.0, -0.5, 4e9, True, False, [], {}, {"days": 7},
    "", " ", "0", "1", "90", "-1", "1.5", "90s", "1.5h", "100ms", "5 m", " 5m ", "5w", "s", "128M", "512K", "2gib", "128X",
    "true", "On", "NO", "perhaps", "auto", "text", "json", "debug", "loud", "all", "failed", "off", "skip", "default",
    "high,default", "high,,default", "mail:reserved", "a\nb", "a\x00b", [1], ["a", "b"], ["a", ""], [""], [[]], "1,5s,1m",
    "1,,5", [1, "5s"], [1, -5], ["soon"], "UTC", "redis://h/0", "redis:h", "redis+sentinel://a,b/m", "embedded:", "embedded://",
    "mysql+pymysql://u:p@h/db", "postgresql://h/db", "sqlite:///x.sqlite", "rediss+mysql://h", "mongo://h", "http://h/x",
    "https://h", "ftp://h", "redis", "sqs", "my_driver", "My-Driver", "shop.aws:provider", "shop:", "1a:b", "a:b:c",
    "2026:a-secret-of-16-characters", "2026:", "2026:a b", "sp ace:secret", ["2026:file:/run/x", "b:c"], "/qd", "/a/b",
    "/qd/", "qd", "//", f"ana:read:{HASH}", f"ana:admin:{HASH}", f"ana:read:{HASH[:-1]}", [f"ana b:write:{HASH}"],
    f"ana:read:{HASH},bob:operate:{HASH}", "exponential", "0.25",
]  # fmt: skip
ROWS = [(section, row) for section, rows in SECTIONS.items() if section != "pools.NAME" for row in rows.values()]


def part_of(section: str) -> dict[str, Any]:
    """The schema of the tables of this section."""
    place: dict[str, Any] = SCHEMA
    for word in section.split("."):
        place = place["additionalProperties"] if word == "NAME" else place["properties"][word]
    return SCHEMA["definitions"]["worker"] if "$ref" in place else place


def loose(value: Any, row: Any) -> bool:
    """What a schema cannot say: 2.0 is no integer, bounds of a number that is text, names of time zones."""
    if isinstance(value, float) and value.is_integer():
        return True
    short = isinstance(value, str) or (isinstance(value, list) and row.kind == "spans")
    return (short and bool(row.at_least or row.at_most or row.kind == "size")) or row.kind == "zone"


@pytest.mark.parametrize(("section", "row"), ROWS, ids=lambda each: getattr(each, "name", each))
def test_the_schema_of_an_option_accepts_what_qd_reads(section, row):
    """Not the other way round where a schema cannot say it: there it may accept more."""
    found, verdicts = Draft7Validator(part_of(section)["properties"][row.name]), set()
    for value in VALUES:
        try:
            row.read(value)
            reads = True
        except ValueError:
            reads = False
        accepts = found.is_valid(value)
        assert accepts == reads or (accepts and loose(value, row)), (row, value, reads)
        verdicts.add(reads)
    assert verdicts == {True, False}


def test_it_is_a_schema_for_editors_and_for_schemastore():
    Draft7Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert (SCHEMA["$id"], SCHEMA["title"]) == ("https://json.schemastore.org/qd.json", "qd.toml")
    assert str(ROOT.parent) + "/" not in text()
    for section, row in ROWS:
        about = part_of(section)["properties"][row.name]
        assert row.help[1:] in about["description"]
        assert row.unit.capitalize() in about["description"]
        assert f"Default: {row.shown}." in about["description"]
        if "default" in about:
            value = about["default"]
            assert Draft7Validator(about).is_valid(list(value) if isinstance(value, tuple) else value)


def test_the_file_beside_the_sample_is_the_schema():
    assert (ROOT / "conf" / "qd.schema.json").read_text() == text(), "write it again: qd config schema"


def accepts(path: Path) -> bool:
    return bool(VALIDATOR.is_valid(json.loads(json.dumps(tomllib.loads(path.read_text()), default=str))))


FILES = [
    ROOT / "conf" / "qd.toml",
    *ROOT.glob("examples/**/qd.toml"),
    ROOT / "daemon" / "qd" / "cli" / "templates" / "qd.toml",
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_schema_accepts_our_files(path):
    assert accepts(path)


def test_the_schema_accepts_the_sample_with_every_example(tmp_path):
    sample = re.sub(r"^#(?=\[|\w+ = )", "", (ROOT / "conf" / "qd.toml").read_text(), flags=re.MULTILINE)
    (tmp_path / "qd.toml").write_text(
        re.sub(r"^(url|cache_url|database|webhook|heartbeat|users)_file = .*\n", "", sample, flags=re.M)
    )
    assert accepts(tmp_path / "qd.toml")
    assert find(tmp_path / "qd.toml", {}) is not None


@pytest.mark.parametrize(
    "mistake",
    [
        "tries = 3",  # in no section
        "[qdd]",
        "[qd]\nap = 'shop:app'",
        "[connections.redis]\nurll = 'redis://h'",
        "[connections.redis]\nurl = 'redis://h'\n[connections.redis.more]",
        "connections = 5",
        "[connections]\nredis = 'redis://h'",
        "[connections.'']\nurl = 'redis://h'",
        "[worker]\ntimeout = 'soon'",
        "[worker]\nmemory = 128",
        "[worker]\npool = 'mail'",  # a flag only
        "[worker]\nlog_jobs = 'none'",
        "[pools.mail]\nqueues = []",
        "[pools]\nqueues = ['mail']",
        "[[pools]]\nqueues = ['mail']",
        "[failed]\nkeep = 0",
        "[laravel]\ncache = 'redis://h'",
        "[signing]\nkeys = ['secret']",
        "[schedule]\nentries = []",
        "[schedule.entries.x]\nmissed = 'later'",
        "[schedule.entries.x]\nargs = [1]",
        "[alerts]\nfailure_rate = 100",
        "[alerts.queues.x]\nwebhook = 'https://h'",
        "[dashboard]\nusers = ['ana:operate:scrypt$9f$00']",
        "[dashboard]\nprefix = 'qd'",
    ],
)
def test_what_qd_refuses_the_schema_refuses(mistake, tmp_path):
    (tmp_path / "qd.toml").write_text(mistake + "\n")
    with pytest.raises(ConfigError):
        find(tmp_path / "qd.toml", {})
    assert not accepts(tmp_path / "qd.toml")


def test_the_schema_refuses_a_secret_that_is_given_twice(tmp_path):
    (tmp_path / "qd.toml").write_text("[connections.redis]\nurl_file = 'url'\n")
    assert accepts(tmp_path / "qd.toml")
    (tmp_path / "qd.toml").write_text("[connections.redis]\nurl = 'redis://h'\nurl_file = 'url'\n")
    assert not accepts(tmp_path / "qd.toml")
