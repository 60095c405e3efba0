"""Pages, help texts and messages are plain English: no word of HABITS, and no riddle as a heading.

Code, links and quotes are not read. `python -m tests.docs.test_language` prints all findings.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from qd.config.settings import SECTIONS
from qd.options.tables import WORK
from tests.cli.test_main import leaves
from tests.support.pages import ROOT


class Habit(NamedTuple):
    """pattern: the words, as a regular expression; better: what a native writer uses."""

    pattern: str
    better: str


HABITS = {
    "computers do not say, tell or ask": [
        Habit(r"(?:is|are|was|were|be|been) (?:told|asked)\b", "is set, is notified, is queried; or name the actor"),
        Habit(r"\btells? (?!you\b|the difference|(?:\S+ ){1,6}apart\b)", "reports, shows, notifies, logs"),
        Habit(r"\basks? (?:the server|redis|it whether|its|of|none|no )", "queries, checks"),
        Habit(r"\bsays? (?:so|how|what|which|who|why|where|when|whether|otherwise)\b", "specifies, reports, explains"),
        Habit(r"(?:file|option|page|log|line|table|flag|job|worker|url|cell|row) says\b", "specifies, states, contains"),
    ],
    "things do not stand": [
        Habit(r"\bst(?:ands?|ood|anding) (?:in|on|at|beside|behind|before|above|below|under|there|alone|next|where)\b",
              "is, is stored in, is listed in, follows"),
        Habit(r"\bstands? for\b", "means, represents"),
    ],
    "processes have names": [
        Habit(r"\b(?:nobody|somebody|whoever|anybody|everybody)\b",
              "another process, no worker, an operator, a user"),
        Habit(r"\bwho (?:waits|holds|has|takes|works|runs|sends|asks|leaves|comes)\b(?! (?:which|what|access))",
              "the holder, the waiter, the sender"),
        Habit(r"\bthose (?:who|of the others?)\b|\bthat of the one\b|\bone that is none\b|(?<!there )\b(?:is|are) none\b",
              "repeat the noun"),
    ],
    "common things have common names": [
        Habit(r"\banew\b", "again"),
        Habit(r"\bfor good\b(?! reason)", "permanently"),
        Habit(r"\bby (?:itself|themselves)\b", "automatically, on its own, alone"),
        Habit(r"\bways? out\b", "solution, fix"),
        Habit(r"\bas ever\b", "as usual"),
        Habit(r"\ball the same\b", "anyway"),
        Habit(r"\blengths? of time\b", "duration"),
        Habit(r"(?<!last )\bmoments?\b(?! (?:before|after|later))", "time, timestamp"),
        Habit(r"\bin hand\b", "running, in progress"),
        Habit(r"\bat home\b", "deployed"),
        Habit(r"\bmend(?:s|ed|ing)?\b", "fix, correct, repair"),
        Habit(r"\breckon(?:s|ed)?\b", "compute, estimate"),
        Habit(r"\bbeside (?:it|them|one|other|others|the|each|another|its)\b", "next to, in addition to, alongside"),
        Habit(r"\bso (?:long|often|many|few) (?=\w)(?!as\b|that\b)", "this long, this many"),
        Habit(r"\blooks? (?:at|for|into|after)\b(?= (?:every|each|once|twice|all|half|the server|its queues))",
              "checks, polls, searches"),
        Habit(r"\bfor want of\b|\bwherefore\b|\bthereby\b|\bhereby\b|\bwhereof\b|\bseldom\b|\bnought\b|\bunto\b",
              "a plain word"),
        Habit(r"\bmay be (?:left out|had)\b", "is optional"),
        Habit(r"\bdoes? no harm\b", "is safe"),
        Habit(r"\bcolour|\bserialis|\bbehaviour\b|\borganis(?:e|ation)|\bnormalis|\bhonour|\brecognis", "American spelling"),
    ],
}  # fmt: skip
ALLOWED = [
    r"what the worker(?:'s)? (?:own )?name stands for",
    r"by itself in one statement",
]
"""Real uses, which are removed before a text is read."""
RIDDLES = re.compile(
    r"^(?:What bites|At home|Not now|Only if|Floors|Words|A rest|The way of|Without qd's help|Is it well|Looking|Steering"
    r"|Beside |From one to another|Whoever |How it is told)",
    re.IGNORECASE,
)
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "SECURITY.md"])


def prose(page: str) -> str:
    """A page without code, link targets, comments and quotes, on the same lines."""
    page = re.sub(r"^```.*?^```$|<!--.*?-->", blank, page, flags=re.DOTALL | re.MULTILINE)
    page = re.sub(r"^(?: {4,}|\t)(?![-*\d]).*$", "", page, flags=re.MULTILINE)
    page = re.sub(r"``.+?``|`[^`\n]*`", "CODE", page)
    return re.sub(r"\]\([^)]*\)|\"[^\"\n]*\"", "]", page)


def blank(found: re.Match[str]) -> str:
    return "\n" * found[0].count("\n")


def findings(text: str) -> Iterator[str]:
    for allowed in ALLOWED:
        text = re.sub(allowed, "", text)
    joined = text.replace("\n", " ")
    for reason, habits in HABITS.items():
        for habit in habits:
            for found in re.finditer(habit.pattern, joined, re.IGNORECASE):
                line = text.count("\n", 0, found.start()) + 1
                yield f"line {line}: '{found[0]}' ({reason}): {habit.better}"
    for line, heading in re.findall(r"^(#+) (.*)$", text, re.MULTILINE):
        if RIDDLES.search(heading):
            yield f"heading '{line} {heading}': write what a reader would search for"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_plain_english(page: Path) -> None:
    assert list(findings(prose(page.read_text()))) == []


@pytest.mark.parametrize(("path", "command"), leaves(), ids=[path for path, _ in leaves()])
def test_a_help_text_is_plain_english(path: str, command: click.Command) -> None:
    texts = [command.help or "", command.epilog or ""]
    texts += [option.help or "" for option in command.params if isinstance(option, click.Option)]
    assert list(findings("\n".join(texts))) == []


def test_the_meanings_of_options_are_plain_english() -> None:
    rows = [row for table in (WORK, *SECTIONS.values()) for row in table.values()]
    assert list(findings("\n".join(row.help for row in rows))) == []


def is_shown(node: ast.AST) -> bool:
    """Whether a user sees the texts below this node: of an error, a line on stderr, or a hint in the log."""
    if isinstance(node, ast.Call):
        return ast.unparse(node.func).rpartition(".")[2] in ("note", "Reason", "Check", "warn")
    return isinstance(node, ast.Raise) or (isinstance(node, ast.keyword) and node.arg == "hint")


def test_messages_are_plain_english() -> None:
    texts = {
        (f"{path.relative_to(ROOT)}:{part.lineno}", part.value)
        for path in (ROOT / "daemon" / "qd").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if is_shown(node)
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    }
    assert len(texts) > 500
    assert [f"{where} {text}" for where, value in sorted(texts) for text in findings(value)] == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("The worker is told why, and nobody asks the server anew.", 4),
        ("It stands in the failed store for good.", 2),
        ("There is a good reason for good reasons.", 0),
        ("Call `tell anew` in ```x```.", 0),
        ("What bites is no riddle in a sentence.", 0),
        ("## What bites", 1),
    ],
)
def test_habits_are_found(text: str, count: int) -> None:
    assert len(list(findings(prose(text)))) == count


if __name__ == "__main__":
    for page in PAGES:
        for finding in findings(prose(page.read_text())):
            print(f"{page.relative_to(ROOT)}, {finding}")
