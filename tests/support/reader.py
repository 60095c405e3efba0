"""A reader of a page, who types what it shows: writes its files, runs its commands, and compares what they print.

A `py` block that begins with `# NAME.py` is an edit of that file: functions that it has are replaced, all else is added. In
a `console` block the lines after `$ COMMAND` are its output; a block without commands is what the running worker prints, and
`^C` is Ctrl-C in its terminal. `...` is any text, and spaces are any amount of spaces. Output that begins with `qd:`
is an error. `ID` in a command is the id of the job that was sent last.
"""

from __future__ import annotations

import ast
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping

from tests.support.processes import Procs
from tests.support.project import Project
from tests.support.waiting import eventually

BLOCK = re.compile(r"^```(console|py)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NAMED = re.compile(r"# (\w+\.py)\n")
PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "qd.pytest_plugin"]
ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # the plugins of this environment cost a second


def blocks(text: str) -> list[tuple[str, str]]:
    """(language, text) of the blocks of a page that are typed."""
    return [(found[1], found[2]) for found in BLOCK.finditer(text)]


def pattern(lines: list[str], numbers: bool = False) -> str:
    """A regular expression for these lines. A line `...` is any lines. numbers: any number stands for any other."""
    text = r"\n?".join(re.escape(line).replace(r"\.\.\.", ".*?") for line in lines)
    text = re.sub(r"(\\ )+", r"\\s+", re.sub(r"(^|\\n\?)(\\ )+", r"\1\\s*", text))
    return "(?s)" + (re.sub(r"\d+", r"\\d+", text) if numbers else text)


def edited(old: str, new: str) -> str:
    """`old` with the functions of `new` in the place of those with the same names; the rest of `new` comes last."""
    if not old:
        return new
    for node in ast.parse(new).body:
        if not isinstance(node, ast.FunctionDef):
            old += f"\n\n{ast.get_source_segment(new, node)}\n"
            continue
        code = "\n".join(new.splitlines()[_first_line(node) - 1 : node.end_lineno])
        lines = old.splitlines()
        for there in ast.parse(old).body:
            if isinstance(there, ast.FunctionDef) and there.name == node.name:
                lines[_first_line(there) - 1 : there.end_lineno] = [code]
                break
        else:
            lines += ["", "", code]
        old = "\n".join(lines) + "\n"
    return old


def _first_line(node: ast.FunctionDef) -> int:
    return min([node.lineno, *(each.lineno for each in node.decorator_list)])


class Reader:
    """names: words of commands that stand for others."""

    def __init__(self, project: Project, numbers: bool = False) -> None:
        self.project = project
        self.numbers = numbers
        self.names: dict[str, str] = {}
        self.work: Procs | None = None
        self.commands = 0
        self._log_at = self._output_at = 0  # what the worker had printed before the last commands

    def read(self, block: tuple[str, str]) -> None:
        kind, text = block
        if kind == "py":
            self.edit(text)
        else:
            self.type(text)

    def edit(self, text: str) -> None:
        named = NAMED.match(text)
        if not named:
            return
        path = self.project.root / named[1]
        work = self.work
        reloads = len(work.matches("master.reloaded")) if work else 0
        self.project.allowed.add(path.name)
        path.write_text(edited(path.read_text() if path.exists() else "", text[named.end() :]))
        if work and self._watches:
            work.wait_line("master.reloaded", count=reloads + 1)

    def type(self, text: str) -> None:
        typed: list[tuple[str, list[str]]] = [("", [])]  # first what the worker prints
        for line in text.splitlines():
            if line == "^C" or line.startswith("$ "):
                typed.append((line.removeprefix("$ "), []))
            else:
                typed[-1][1].append(line)
        if self.work and len(typed) > 1:
            self._log_at, self._output_at = len(self.work.lines), len(self.work.output)
        for command, lines in typed:
            if command == "^C":
                self.interrupt(lines)
            elif command:
                self.command(shlex.split(command), lines)
            else:
                self.worker_prints(lines)

    def command(self, words: list[str], lines: list[str]) -> None:
        self.commands += 1
        if words[:2] == ["qd", "work"]:
            self.start(*words[2:])
            self.worker_prints(lines)
            return
        done = self._run([self.names.get(word, word) for word in words])
        said = done.stdout + done.stderr
        fails = bool(lines) and lines[0].startswith("qd: ")
        assert (done.returncode != 0) == fails, f"{words}: exit {done.returncode}: {said}"
        assert re.match(pattern(lines, self.numbers), said), f"{words} printed:\n{said}"
        if sent := re.match(r"sent \S+ (?:\{.*\} )?(\w+)", said):
            self.names["ID"] = sent[1]
        if words[1:] == ["restart", "--rolling"]:
            assert self.work
            self.work.wait_line("master.reloaded")

    def start(self, *arguments: str) -> None:
        assert self.work is None, "the page starts a second worker"
        self.work = self.project.work(*arguments)
        self._watches = "--reload" in arguments
        self._log_at = self._output_at = 0

    def interrupt(self, lines: list[str]) -> None:
        work = self.work
        assert work
        work.signal(signal.SIGINT)
        self.worker_prints(lines)
        work.ends_clean()
        self.work = None

    def worker_prints(self, lines: list[str]) -> None:
        """Wait until the worker has logged or printed each of the lines."""
        for line in lines:
            if line == "...":
                continue
            work = self.work
            assert work, f"no worker runs that prints {line!r}"

            def printed(work: Procs = work, shown: str = pattern([line], self.numbers)) -> bool:
                new = work.lines[self._log_at :] + work.output[self._output_at :]
                return any(re.match(shown, one) for one in new)

            eventually(printed, 30, what=f"{line!r}\n{work.tail()}")

    def _run(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        if words[0] == "qd":
            return self.project.qd(*words[1:])
        assert words[0] == "pytest", words
        return subprocess.run(
            [*PYTEST, *words[1:]],
            cwd=self.project.root,
            env=self._pytest_env(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def _pytest_env(self) -> Mapping[str, str]:
        ours = self.project.env(**ALONE)
        return {key: value for key, value in ours.items() if key in ALONE or not key.startswith("PYTEST_")}
