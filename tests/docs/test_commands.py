"""docs/commands.md is complete: it has each command, option and JSON name, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from tests.cli.test_main import leaves

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "commands.md").read_text()
SHARED = {"--app", "--config", "-c", "--connection", "--json", "-h", "--help"}
COMMANDS = leaves()


def section(path: str) -> str:
    found = re.search(rf"^### `qd {path}`\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"no section about qd {path}"
    return found[1]


def flags(one: click.Command) -> set[str]:
    options = [param for param in one.params if isinstance(param, click.Option) and not param.hidden]
    return {flag for option in options for flag in option.opts} - SHARED


@pytest.mark.parametrize(("path", "one"), COMMANDS, ids=[path for path, _ in COMMANDS])
def test_a_command_has_its_section_with_all_its_options(path: str, one: click.Command) -> None:
    text = section(path) + ((DOCS / "configuration.md").read_text() if path == "work" else "")
    assert [flag for flag in sorted(flags(one)) if f"{flag}`" not in text and f"{flag} " not in text] == []
    assert f"    qd {path}" in section(path)


@pytest.mark.parametrize(("path", "one"), COMMANDS, ids=[path for path, _ in COMMANDS])
def test_a_section_names_no_unknown_option(path: str, one: click.Command) -> None:
    every = SHARED.union(*(flags(other) for _, other in COMMANDS), {"--queue", "--version"})
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", section(path)))
    assert named <= every
    if "| option |" in section(path):
        rows = set(re.findall(r"^\| `(--[a-z-]+)", section(path), re.MULTILINE))
        assert rows == {flag for flag in flags(one) if flag.startswith("--")}


def test_no_section_describes_an_unknown_command() -> None:
    named = re.findall(r"^### `qd ([\w -]+)`", PAGE, re.MULTILINE)
    assert sorted(named) == sorted(path for path, _ in COMMANDS)


def test_the_table_of_tasks_names_every_command() -> None:
    tasks = PAGE.partition("## What all commands share")[0]
    assert [path for path, _ in COMMANDS if f"`qd {path}" not in tasks] == []


def test_links_of_the_commands_page_have_targets() -> None:
    heads = {
        re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in re.findall(r"^#+ (.*)$", PAGE, re.MULTILINE)
    }
    for target in re.findall(r"\]\(([^)]+)\)", PAGE):
        assert (
            target.removeprefix("#") in heads if target.startswith("#") else (DOCS / target.partition("#")[0]).exists()
        ), target
