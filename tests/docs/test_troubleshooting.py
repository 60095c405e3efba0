"""What the pages for operators name exists: messages, log events, causes, commands and options."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args

import click
import pytest

from qd import config
from qd.cli import main
from qd.cli.why import Cause
from qd.process.exit_codes import ending
from tests.support.pages import ROOT

DOCS = ROOT / "docs"
TROUBLE = (DOCS / "troubleshooting.md").read_text()
OPERATORS = [
    DOCS / "troubleshooting.md",
    DOCS / "faq.md",
    *(
        DOCS / "how-to" / f"{name}.md"
        for name in ("alerts", "backlog-after-an-outage", "idempotent-jobs", "production-checklist")
    ),
    *sorted((DOCS / "tutorial").glob("*.md")),
]
CODE = r"``(.+?) ?``|`([^`\n]+)`"


def code_of(text: str) -> Iterator[str]:
    for found in re.finditer(CODE, text):
        yield found[1] or found[2]


# --- messages


@cache
def source_texts() -> list[str]:
    """The texts in the source, as the page writes them: `...` in the place of values."""
    return [
        shown(node)
        for path in ROOT.glob("daemon/qd/**/*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
    ]


def shown(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return re.sub(r"\{\w+\}", "...", str(node.value))
    assert isinstance(node, ast.JoinedStr)
    text = ""
    for part in node.values:
        if isinstance(part, ast.Constant):
            text += str(part.value)
        elif isinstance(part, ast.FormattedValue):
            text += "'...'" if part.conversion == ord("r") else "..."
    return re.sub(r"(\.\.\.){2,}", "...", text)


def messages() -> list[str]:
    rows = re.findall(rf"^\| (?:{CODE}) \| [^|]+ \| [^|]+ \|$", TROUBLE.partition("\n## By message\n")[2], re.MULTILINE)
    return [wide or narrow for wide, narrow in rows]


def test_the_page_has_the_likely_messages() -> None:
    assert len(messages()) == len(re.findall(r"^\| `", TROUBLE.partition("\n## By message\n")[2], re.MULTILINE)) >= 40


@pytest.mark.xdist_group("messages")  # the texts are read once
@pytest.mark.parametrize("message", messages())
def test_each_message_on_the_page_is_in_the_source(message: str) -> None:
    bare = message.removesuffix(": ...").removesuffix(" (...)").removesuffix("; ...")
    assert any(bare in text for text in source_texts()), message


def test_the_causes_on_the_page_are_those_of_qd_why() -> None:
    section = TROUBLE.partition("\n### My job does not run\n")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| ((?:`[\w-]+`(?:, )?)+) \|", section, re.MULTILINE)
    named = {cause for row in rows for cause in re.findall(r"[\w-]+", row)}
    assert named <= set(get_args(Cause))
    nothing_to_fix = {"next", "running", "done", "cancelled"}
    assert set(get_args(Cause)) - named == nothing_to_fix


def test_each_log_event_on_the_page_is_in_the_reference() -> None:
    reference = (DOCS / "reference" / "log-events.md").read_text()
    known = set(re.findall(r"^\| `([\w.]+)`", reference, re.MULTILINE))
    for page in OPERATORS:
        for code in code_of(page.read_text()):
            if re.fullmatch(
                r"(job|worker|master|keeper|template|failed|lease|loop)\.[a-z_]+|redis\.(?!conf)[a-z_]+|app\.[a-z]+_[a-z]+",
                code,
            ):
                role, _, event = code.partition(".")
                general = {"worker": "CHILD", "redis": "SERVER"}.get(role, role)
                assert {code, f"{general}.{event}"} & known, (page.name, code)


def test_the_deaths_on_the_page_are_described_as_in_the_log() -> None:
    deaths = set(re.findall(r'how="(.*?)"', TROUBLE))
    assert deaths == {ending(9, oom=True), ending(11)}


# --- alerts.md


def test_the_configurations_of_the_page_about_alerts_can_be_used(tmp_path: Path) -> None:
    secret = tmp_path / "webhook"
    secret.write_text("https://hooks.example.com/x")
    text = (DOCS / "how-to" / "alerts.md").read_text()
    files = re.findall(r"^```toml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert len(files) == 3
    for number, each in enumerate(files):
        path = tmp_path / f"{number}.toml"
        path.write_text(each.replace("/run/secrets/qd-webhook", str(secret)))
        found = config.load(path, environ={})
        assert found.alerts.webhook or found.alerts.exec


# --- commands

SHARED = {"--app", "--config", "-c", "--connection", "--json", "-h", "--help", "--version"}


def typed(text: str) -> Iterator[str]:
    """The commands of qd in code, in console blocks and in indented blocks."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    yield from (code for code in code_of(prose) if code.startswith("qd "))
    for line in re.findall(r"^(?:\$ |    )(qd .*)$", text, re.MULTILINE):
        yield from (part.strip() for part in re.split(r"\||&&|>", line) if part.strip().startswith("qd "))


def unknown(command: str) -> str:
    """What in it is unknown; "" if all is well."""
    words = shlex.split(command, comments=True)[1:]
    if words[0].startswith("-"):
        return ""
    group, path = main.command.get_command(click.Context(main.command), words[0]), words[:1]
    if group is None:
        return words[0]
    while isinstance(group, click.Group) and words[len(path) :] and words[len(path)] in group.commands:
        group = group.commands[words[len(path)]]
        path.append(words[len(path)])
    options = {flag for param in group.params for flag in (*param.opts, *param.secondary_opts)} | SHARED
    return " ".join(word for word in words if word.startswith("-") and word.partition("=")[0] not in options)


@pytest.mark.parametrize("page", OPERATORS, ids=lambda page: page.stem)
def test_the_commands_and_options_on_the_page_exist(page: Path) -> None:
    commands = {*typed(page.read_text())} - {*messages()}
    assert commands
    assert {command: unknown(command) for command in commands if unknown(command)} == {}


def test_an_unknown_option_is_found() -> None:
    assert unknown("qd failed retry --all --speed 5") == "--speed"
    assert unknown("qd faild list") == "faild"
    assert not unknown("qd schedule pause NAME --for 2h")
