"""The tutorial, typed: its files are written and its commands run in the order of the pages, with a real server and worker.

A `py` block that begins with `# NAME.py` is an edit of that file: functions that it has are replaced, all else is added. In
a `console` block the lines after `$ COMMAND` are its output; a block without commands is what the running worker prints, and
`^C` is Ctrl-C in its terminal. `...` stands for any text, `ID` for the id of the job that was sent last. Output that begins
with `qd:` is an error.
"""

from __future__ import annotations

import ast
import itertools
import os
import re
import shlex
import signal
import subprocess
import sys

import pytest

from tests.support.pages import ROOT
from tests.support.processes import Procs
from tests.support.project import MakeProject, Project
from tests.support.waiting import eventually

FOLDER = ROOT / "docs" / "tutorial"
STORY = ["first-job", "retries-and-failures", "schedule-it", "test-it", "deploy-it"]
BLOCK = re.compile(r"^```(console|py)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NAMED = re.compile(r"# (\w+\.py)\n")
PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "qd.pytest_plugin"]


def text_of(page: str) -> str:
    return (FOLDER / f"{page}.md").read_text()


def blocks(page: str) -> list[tuple[str, str]]:
    return [(found[1], found[2]) for found in BLOCK.finditer(text_of(page))]


def pattern(lines: list[str]) -> str:
    """A regular expression for these lines; `...` is any text, a line of it any lines. The widths of columns differ."""
    escaped = r"\n?".join(re.escape(line).replace(r"\.\.\.", ".*?") for line in lines)
    return "(?s)" + re.sub(r"(\\ ){2,}", r"\\s+", escaped)


def edited(old: str, new: str) -> str:
    """`old` with the functions of `new` in the place of those with the same names; the rest of `new` comes last."""
    if not old:
        return new
    for node in ast.parse(new).body:
        code = ast.get_source_segment(new, node) or ""
        if not isinstance(node, ast.FunctionDef):
            old += f"\n\n{code}\n"
            continue
        code = "\n".join(new.splitlines()[first_line(node) - 1 : node.end_lineno])
        lines = old.splitlines()
        for there in ast.parse(old).body:
            if isinstance(there, ast.FunctionDef) and there.name == node.name:
                lines[first_line(there) - 1 : there.end_lineno] = [code]
                break
        else:
            lines += ["", "", code]
        old = "\n".join(lines) + "\n"
    return old


def first_line(node: ast.FunctionDef) -> int:
    return min([node.lineno, *(each.lineno for each in node.decorator_list)])


class Reader:
    """Somebody who does what the page says."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.work: Procs | None = None
        self.id = ""
        self.commands = 0
        self.log_at = self.output_at = 0  # what the worker printed before the last commands

    def edit(self, text: str) -> None:
        named = NAMED.match(text)
        if not named:
            return
        path = self.project.root / named[1]
        old = path.read_text() if path.exists() else ""
        reloads = self._reloads()
        self.project.allowed.add(path.name)
        path.write_text(edited(old, text[named.end() :]))
        if self.work and reloads is not None:
            self.work.wait_line("master.reloaded", count=reloads + 1)

    def _reloads(self) -> int | None:
        if self.work and "--reload" in self.work.process.args:  # type: ignore[operator]
            return len(self.work.matches("master.reloaded"))
        return None

    def console(self, text: str) -> None:
        typed: list[tuple[str, list[str]]] = [("", [])]  # first what the worker prints
        for line in text.splitlines():
            if line == "^C" or line.startswith("$ "):
                typed.append((line.removeprefix("$ "), []))
            else:
                typed[-1][1].append(line)
        if self.work and len(typed) > 1:
            self.log_at, self.output_at = len(self.work.lines), len(self.work.output)
        for command, lines in typed:
            if command in ("", "^C"):
                if command:
                    assert self.work
                    self.work.signal(signal.SIGINT)
                self.worker_prints(lines)
                if command:
                    assert self.work
                    self.work.ends_clean()
                    self.work = None
            else:
                self.command(shlex.split(command), lines)

    def command(self, words: list[str], lines: list[str]) -> None:
        self.commands += 1
        if words[:2] == ["qd", "work"]:
            assert self.work is None, "the page starts a second worker"
            self.work = self.project.work(*words[2:])
            self.log_at = self.output_at = 0
            self.worker_prints(lines)
            return
        done = self._run([self.id if word == "ID" else word for word in words])
        said = done.stdout + done.stderr
        fails = bool(lines) and lines[0].startswith("qd: ")
        assert (done.returncode != 0) == fails, f"{words}: exit {done.returncode}: {said}"
        assert re.match(pattern(lines), said), f"{words} printed:\n{said}"
        if sent := re.match(r"sent \S+ (?:\{.*\} )?(\w+)", said):
            self.id = sent[1]
        if words[1:] == ["restart", "--rolling"]:
            assert self.work
            self.work.wait_line("master.reloaded")

    def _run(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        if words[0] == "qd":
            return self.project.qd(*words[1:])
        assert words[0] == "pytest"
        kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
        return subprocess.run(
            [*PYTEST, *words[1:]],
            cwd=self.project.root,
            env={**self.project.env(), **kept, **ALONE},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def worker_prints(self, lines: list[str]) -> None:
        """Wait until the worker has logged or printed each of the lines."""
        for line in lines:
            if line == "...":
                continue
            work = self.work
            assert work, "no worker runs"

            def printed(work: Procs = work, shown: str = pattern([line])) -> bool:
                return any(re.match(shown, one) for one in work.lines[self.log_at :] + work.output[self.output_at :])

            eventually(printed, 30, what=f"{line!r}\n{work.tail()}")


ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # the plugins of this environment cost a second


@pytest.fixture
def reader(project: MakeProject) -> Reader:
    """In the folder that `qd init` makes."""
    one = project(url="embedded:")
    one.allowed |= {".qd", "qd.schema.json"}
    for name in ("qd.toml", "jobs.py"):
        (one.root / name).unlink()
    return Reader(one)


@pytest.mark.parametrize("page", STORY)
def test_every_command_of_the_tutorial_prints_what_the_page_shows(page: str, reader: Reader) -> None:
    earlier = STORY[: STORY.index(page)]
    if earlier:
        assert reader.project.qd("init").returncode == 0
    for before in earlier:
        for kind, text in blocks(before):
            if kind == "py":
                reader.edit(text)
    for kind, text in blocks(page):
        if kind == "py":
            reader.edit(text)
        else:
            reader.console(text)
    assert reader.commands > 0
    if reader.work:
        reader.work.stop(signal.SIGINT)


def test_each_page_leads_to_the_next_one() -> None:
    assert sorted(STORY) == sorted(path.stem for path in FOLDER.glob("*.md"))
    for page, following in itertools.pairwise(STORY):
        *_, last = text_of(page).strip().splitlines()
        assert re.fullmatch(rf"Next: \[.*\]\({following}\.md\)", last), last
    for page in STORY:
        assert "\n## What you learned\n" in text_of(page)


def test_an_edit_replaces_a_function_of_the_same_name() -> None:
    old = "import a\n\n\n@a.b\ndef f():\n    return 1\n\n\ndef g(): ...\n"
    new = "@a.c\ndef f():\n    return 2\n\n\na.d(f)\n"
    assert edited(old, new) == "import a\n\n\n@a.c\ndef f():\n    return 2\n\n\ndef g(): ...\n\n\na.d(f)\n"
