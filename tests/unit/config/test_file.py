"""QD_ENV_FILE: the syntax of its lines, and variables that are removed from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from qd.config.file import Variables, parsed
from qd.errors import ConfigError


def test_lines_of_an_env_file_are_parsed() -> None:
    text = """
        # a comment, and another kind
        ; of them
        PLAIN=a value with = and # and "quotes" in it
        EMPTY=
        export SHELL_TOO = yes
        QUOTED=" kept "
        SINGLE='$HOME \\n'
        PLAIN=the last one counts
    """
    assert parsed(text, "x.env") == {
        "PLAIN": "the last one counts",
        "EMPTY": "",
        "SHELL_TOO": "yes",
        "QUOTED": " kept ",
        "SINGLE": "$HOME \\n",
    }


@pytest.mark.parametrize(
    "line", ["secret", "1A=secret", "A B=secret", 'A="secret', "A='", "A=sec\0ret", "QD_ENV_FILE=secret"]
)
def test_a_malformed_line_is_reported_by_number_without_its_content(line: str) -> None:
    with pytest.raises(ConfigError, match=r"^x\.env:2 is not a variable \(write NAME=value") as refused:
        parsed(f"A=1\n{line}\n", "x.env")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(("content", "why"), [(None, "No such file or directory"), (b"A=\xff", "it is not UTF-8")])
def test_an_unreadable_file_is_named(tmp_path: Path, content: bytes | None, why: str) -> None:
    file = tmp_path / "x.env"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=f"^QD_ENV_FILE names {file}, which cannot be read: {why} "):
        Variables({"QD_ENV_FILE": str(file)}).read()


def test_without_the_variable_no_file_is_read() -> None:
    assert Variables({}).read() == Variables({"QD_ENV_FILE": ""}).read() == {}


def test_a_variable_removed_from_the_file_gets_its_old_value_back() -> None:
    environ = {"A": "start", "B": "start"}
    variables = Variables(environ)
    variables.put({"A": "file", "NEW": "file"})
    assert environ == {"A": "file", "B": "start", "NEW": "file"}
    variables.put({"B": "again", "A": "again"})
    assert environ == {"A": "again", "B": "again"}
    variables.put({})
    assert environ == {"A": "start", "B": "start"}


def test_a_command_reads_the_env_file_once(tmp_path: Path) -> None:
    file = tmp_path / "x.env"
    file.write_text("A=1")
    environ = {"QD_ENV_FILE": str(file)}
    variables = Variables(environ)
    variables.begin()
    file.write_text("A=2")
    variables.begin()
    assert environ["A"] == "1"
