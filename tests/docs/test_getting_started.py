"""docs/getting-started.md: every command, run in order, prints what the page shows."""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Callable
from pathlib import Path

from tests.support.processes import Procs
from tests.support.project import Project

PAGE = Path(__file__).resolve().parents[2] / "docs" / "getting-started.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def commands() -> list[tuple[str, list[str]]]:
    """(command, lines shown) in the order of the page."""
    found: list[tuple[str, list[str]]] = []
    for block in BLOCK.finditer(PAGE.read_text()):
        for line in block[1].splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def shown(lines: list[str]) -> str:
    return "(?s)" + r"\n?".join(re.escape(line).replace(r"\.\.\.", ".*?") for line in lines)


def test_every_command_prints_what_the_page_shows(project: Callable[..., Project]) -> None:
    one = project(url="embedded:")
    one.allowed |= {".qd"}
    for name in ("qd.toml", "jobs.py"):
        (one.root / name).unlink()
    work: Procs | None = None
    seen = 0
    for command, lines in commands():
        words = shlex.split(command)
        assert words[0] == "qd", command
        if words[1] == "work":
            work = one.work(*words[2:])
            for line in lines:
                work.wait_line(shown([line]))
            continue
        if words[1] == "embedded" and words[2] == "status":
            assert work is not None
            work.wait_line("job.done", count=3)
            work.stop(signal.SIGINT)
        done = one.qd(*words[1:])
        assert done.returncode == (2 if "subject=Hi" in words else 0), f"{command}: {done.stdout}{done.stderr}"
        assert re.search(shown(lines), done.stdout + done.stderr), f"{command} said {done.stdout}{done.stderr}"
        seen += 1
        if words[1:] == ["restart", "--rolling"]:
            assert work is not None
            work.wait_line("master.reloaded")
    assert seen > 8
