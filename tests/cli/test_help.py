"""qd help prints what --help prints, lists the topics, and prints the pages of the documentation."""

from __future__ import annotations

import ast
import os
import pty
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from qd.cli import help as help_
from qd.cli.main import COMMANDS, command
from tests.cli.conftest import Run, done
from tests.support.pages import ROOT
from tests.support.project import SOURCE

PAGES = help_.pages()


@pytest.mark.parametrize("words", [("work",), ("status",), ("failed", "retry")])
def test_help_of_a_command_is_what_the_option_prints(qd: Run, words: tuple[str, ...]) -> None:
    assert done(qd("help", *words)) == done(qd(*words, "--help"))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("wrok",), "unknown command or topic 'wrok' (did you mean 'work'?)"),
        (("retrys",), "unknown command or topic 'retrys' (did you mean 'retries'?)"),
        (("xyzzy",), "unknown command or topic 'xyzzy'; `qd help` lists all"),
        (("failed", "rety"), "unknown command 'failed rety' (did you mean 'retry'?)"),
        (("work", "x"), "unknown command 'work x'"),
    ],
)
def test_help_names_the_nearest_command_or_topic(qd: Run, words: tuple[str, ...], text: str) -> None:
    assert qd("help", *words).stderr == f"qd help: {text}; see `qd help --help`\n"
    assert qd("help", *words).exit_code == 2


# -- search


@pytest.mark.parametrize(
    ("words", "same"),
    [("Retries", "retries"), ("Celery", "coming-from-celery"), ("cron", "coming-from-cron"), ("WORK", "work")],
)
def test_case_and_the_rest_of_a_name_do_not_matter_if_only_one_fits(qd: Run, words: str, same: str) -> None:
    assert done(qd("help", words)) == done(qd("help", same))


def listed_for(qd: Run, *words: str) -> dict[str, str]:
    """The topics that `qd help` lists -> the headings."""
    found = qd("help", *words)
    assert (found.exit_code, found.stdout) == (2, "")
    first, *rows = found.stderr.splitlines()
    assert first.startswith(f"qd help: no command or topic '{' '.join(words)}'")
    assert first.endswith("; pages about it, for `qd help TOPIC`:")
    return dict(re.split(r"  +", row.strip(), maxsplit=1) for row in rows)


def test_a_word_lists_the_pages_about_it_those_with_it_in_a_heading_first(qd: Run) -> None:
    found = listed_for(qd, "backoff")
    assert next(iter(found.items())) == ("retries", "Backoff")
    assert "job-options" in found
    assert len(found) <= help_.MOST
    assert listed_for(qd, "dead", "letter")["faq"] == "Is there a dead letter queue?"


def test_parts_of_words_and_their_beginning_find_pages_if_whole_words_do_not(qd: Run) -> None:
    """- and _ are the same."""
    for word in ("eager", "max-tasks-per-child", "MAX_TASKS_per-child"):
        assert [*listed_for(qd, word)] == ["coming-from-celery"]
    assert listed_for(qd, "autoscaling")["faq"] == "Can workers autoscale?"
    assert done(qd("help", "job_options")) == done(qd("help", "job-options"))


def test_a_part_of_many_names_lists_them_and_a_similar_name_is_named(qd: Run) -> None:
    assert {topic for topic in PAGES if topic.startswith("coming-from-")} <= listed_for(qd, "coming").keys()
    assert "(did you mean 'retries'?)" in qd("help", "retry").stderr


def test_the_comment_of_a_sample_is_no_heading(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text("# A page\n\n```sh\n# restart it\n```\n\n## [Stop](b.md) `it`\n")
    assert help_.about(("restart",), {"a": page}) == {"a": "A page"}
    assert help_.about(("stop", "it"), {"a": page}) == {"a": "Stop it"}
    assert help_.about(("top",), {"a": page}) == {"a": "Stop it"}
    page.write_text("# Top\n\n## Stop it\n")
    assert help_.about(("top",), {"a": page}) == {"a": "Top"}  # the middle of a word counts only if no word begins so
    assert help_.about(("xtop",), {"a": page}) == {}


# -- topics


def test_without_a_word_it_lists_the_commands_and_every_page(qd: Run) -> None:
    output = done(qd("help"))
    commands, _, listed = output.partition("\n\nTopics, for `qd help TOPIC`:\n")
    assert commands + "\n" == done(qd("--help"))
    titles = [line[2:15].strip() for line in listed.splitlines() if line[2] != " "]
    assert titles == [*help_.GROUPS.values()]
    topics = re.findall(
        r"[\w-]+", re.sub(r"^  (Tutorial|How-to|Reference|Explanation) ", "", listed, flags=re.MULTILINE)
    )
    assert sorted(topics) == sorted(topic for topic in PAGES if not topic.startswith("qd-"))


def test_each_page_is_one_topic() -> None:
    files = Counter(page.stem for page in (ROOT / "docs").rglob("*.md") if page.name != "index.md")
    assert set(files.values()) == {1}
    assert set(PAGES) == {*files, "security"}


def test_a_topic_prints_its_page_without_colours_if_this_is_no_terminal(qd: Run) -> None:
    output = done(qd("help", "retries"))
    page = PAGES["retries"].read_text()
    assert output.splitlines()[0].strip() == page.splitlines()[0].removeprefix("# ")
    assert "\x1b" not in output
    headings = [heading.replace("`", "") for heading in re.findall(r"^## (.*)$", page, re.MULTILINE)]
    assert headings
    assert [heading for heading in headings if f"\n{heading}\n" not in output.replace("`", "")] == []
    assert done(qd("help", "docs/how-to/retries.md")) == output


def test_a_page_with_the_name_of_a_command_says_where_its_help_is(qd: Run) -> None:
    """In all other cases `qd help COMMAND` is about the command."""
    both = COMMANDS.keys() & PAGES.keys()
    assert "locks" in both
    assert not both & {"work", "dev", "status", "doctor", "init", "dispatch"}
    assert done(qd("help", "locks")).startswith("The command is described by `qd locks --help`.\n\n")
    assert "is described by" not in done(qd("help", "retries"))


@pytest.mark.parametrize("topic", PAGES)
def test_no_page_shows_markup_of_links_or_boxes(topic: str) -> None:
    text = help_.rendered(help_.readable(PAGES[topic].read_text(), PAGES), 100, False)
    assert [line for line in text.splitlines() if re.search(r"\]\(|\.md[#)]|\[![A-Z]|<!--|``", line)] == []


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("[Retries](retries.md#jitter)", "Retries (`qd help retries`)"),
        ("[retries.md](../how-to/retries.md)", "`qd help retries`"),
        ("[a long\nname](retries.md)", "a long name (`qd help retries`)"),
        ("[`unique`](unique.md)", "`unique` (`qd help unique`)"),
        ("[`qd init`](commands.md#qd-init)", "`qd init`"),
        ("[below](#below)", "below"),
        ("[Laravel](https://laravel.com/docs)", "Laravel (https://laravel.com/docs)"),
        ("[SECURITY.md](../../SECURITY.md#rights)", "`qd help security`"),
        ("[`conf/qd.toml`](../../conf/qd.toml)", "`conf/qd.toml`"),
        ("[the sample](../../conf/qd.toml)", "the sample (conf/qd.toml in the repository)"),
        ("![a chart](../images/cost.svg)", "(picture: a chart)"),
        ("> [!WARNING]\n> Data is lost.", "▌ Warning: Data is lost."),
        ("```\n[x](y.md) `z`\n```", " [x](y.md) `z`"),
    ],
)
def test_links_become_words_that_a_terminal_can_show(written: str, shown: str) -> None:
    assert help_.rendered(help_.readable(written, PAGES), 100, False).strip("\n") == shown


def test_help_of_a_topic_imports_no_configuration_driver_or_command() -> None:
    strange = ("qd.config", "qd.drivers", "qd.store", "qd.app", "qd.cli.work", "hiredis", "redis")
    code = "import sys, qd.cli.main as m\ntry:\n    m.command(['help', 'retries'])\n"
    code += f"finally:\n    print('loaded', *[name for name in {strange!r} if name in sys.modules])\n"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.splitlines()[-1] == "loaded"


def test_a_terminal_shows_a_page_in_its_pager(tmp_path: Path) -> None:
    pager = tmp_path / "pager"
    pager.write_text("#!/bin/sh\nsed 's/^/paged: /' | head -3\n")
    pager.chmod(0o755)
    here, there = pty.openpty()
    env = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS", "LINES")}
    qd = subprocess.Popen(
        [sys.executable, "-m", "qd", "help", "retries"], stdin=there, stdout=there, stderr=there,
        env={**env, "PYTHONPATH": str(SOURCE), "PAGER": str(pager), "TERM": "xterm"},
    )  # fmt: skip
    os.close(there)
    text = b""
    while True:
        try:
            chunk = os.read(here, 4096)
        except OSError:  # the last process with the terminal has ended
            break
        text += chunk
    os.close(here)
    assert qd.wait(30) == 0
    lines = text.decode().splitlines()
    assert len(lines) == 3
    assert all(line.startswith("paged: ") for line in lines)
    assert "Retries" in lines[0]
    assert "\x1b[1" in lines[0]


@pytest.mark.parametrize(
    ("words", "incomplete", "expected"),
    [([], "long-j", ["long-jobs"]), ([], "doct", ["doctor"]), (["failed"], "ret", ["retry"]), (["retries"], "", [])],
)
def test_commands_and_topics_are_completed(words: list[str], incomplete: str, expected: list[str]) -> None:
    complete = ShellComplete(command, {}, "qd", "_QD_COMPLETE")
    found = complete.get_completions(["help", *words], incomplete)
    assert [item.value for item in found] == expected


# -- messages


def named_topics() -> list[tuple[str, str]]:
    """Where a text of qd's says `qd help WORD`, and the word."""
    texts = [
        (f"{path.relative_to(ROOT)}:{node.lineno}", node.value)
        for path in sorted((ROOT / "daemon/qd").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    others = [path for path in (ROOT / "daemon/qd").rglob("*") if path.suffix in (".txt", ".toml", ".html", ".yaml")]
    texts += [(str(path.relative_to(ROOT)), path.read_text()) for path in others]
    return [(place, word) for place, text in texts for word in re.findall(r"qd help ([\w-]+)", text)]


def test_every_topic_that_a_message_names_exists() -> None:
    known = PAGES.keys() | COMMANDS.keys() | {"TOPIC", "COMMAND"}
    assert named_topics()
    assert [(place, word) for place, word in named_topics() if word not in known] == []
