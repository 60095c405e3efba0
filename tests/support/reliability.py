"""The table of faults: each marked test reports its fault and results, and a run writes them to a page.

    @pytest.mark.fault("2", "kill -9 of the worker in a lone job", "back at once, a crash counted and no attempt")
    def test_...(figures: Figures): ... figures.tell(ledger)

A test that reports a `connection` is one cell of another table, with one column per connection.

`--reliability=PAGE` writes the table into that page, between the marks of quick or long rows, and all results as JSON to
build/reliability.json. With this option the time limits of the tests apply too; an otherwise idle machine meets them. A
partial or aborted run removes no row, and replaces no row that was written with more tests.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.ledger import Ledger
from tests.support.modes import MODES

HEAD = (
    "| row | fault | result | runs | modes | lost | twice | recovery: p50 | p99 | longest | verdict | tests | run on |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
)
LINE = re.compile(r"^\| (\d+\w*(?: \w+)?) \| .* \|$", re.MULTILINE)
RUNS = 3  # the column


@dataclass
class Figures:
    """The results of one test. strict: time limits apply, because the machine is otherwise idle."""

    strict: bool
    seen: dict[str, Any] = field(default_factory=dict)

    def tell(self, ledger: Ledger, *, p50: float = math.inf, p99: float = math.inf) -> None:
        """Add the results of the ledger. p50, p99: limits for recovery times, in seconds."""
        self.add(lost=len(ledger.lost()), doubles=len(ledger.doubles()), back=ledger.recoveries(), p50=p50, p99=p99)

    def add(
        self,
        *,
        lost: int = 0,
        doubles: int = 0,
        back: Sequence[float] = (),
        p50: float = math.inf,
        p99: float = math.inf,
        **more: float | str,
    ) -> None:
        """back: recovery times in seconds; more: additional values for the JSON."""
        self.seen["lost"] = self.seen.get("lost", 0) + lost
        self.seen["doubles"] = self.seen.get("doubles", 0) + doubles
        self.seen["back"] = [*self.seen.get("back", ()), *back]
        self.seen |= more
        times = self.seen["back"]
        if self.strict and times:
            assert share(times, 0.5) <= p50, f"half of them were back after {share(times, 0.5):.3f} s, not {p50:g} s"
            assert share(times, 0.99) <= p99, f"99 of 100 were back after {share(times, 0.99):.3f} s, not {p99:g} s"


def share(times: Sequence[float], part: float) -> float:
    """The percentile: the time that this share of them does not exceed."""
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, math.ceil(part * len(ordered)) - 1)]


def add_option(parser: pytest.Parser) -> None:
    parser.addoption("--reliability", metavar="PAGE", help="write what the fault tests saw into this page")


class Report:
    """Collects the results in the process that the user started; tests may run in others."""

    def __init__(self, page: Path | None) -> None:
        self.page = page
        self.rows: dict[str, dict[str, dict[str, Any]]] = {}  # row -> test -> results

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        for mark in item.iter_markers("fault"):
            row, what, holds = mark.args
            slow = item.get_closest_marker("slow") is not None
            item.user_properties.append(("fault", {"row": str(row), "what": what, "holds": holds, "slow": slow}))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties: dict[str, Any] = dict(report.user_properties)
        if "fault" not in properties or (report.when != "call" and report.passed):
            return
        mode = properties.get("mode", "")
        seen = {"outcome": report.outcome, "mode": mode, **properties["fault"], **properties.get("figures", {})}
        self.rows.setdefault(seen["row"], {})[report.nodeid] = seen

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self.page is None or hasattr(session.config, "workerinput") or not self.rows:
            return
        folder = session.config.rootpath / "build"
        folder.mkdir(exist_ok=True)
        (folder / "reliability.json").write_text(json.dumps(self.rows, indent=1))
        if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            print(f"\nbroken off: {self.page} stays as it is, build/reliability.json has what was seen")
            return
        text = self.page.read_text()
        each = {row: tests for row, tests in self.rows.items() if any("connection" in test for test in tests.values())}
        if each:
            text = with_cells(text, each)
        rest = {row: tests for row, tests in self.rows.items() if row not in each}
        for kind, slow in (("quick", False), ("long", True)):
            lines = {row: line_of(row, tests) for row, tests in rest.items() if is_slow(tests) is slow}
            if lines:
                text = with_lines(text, kind, lines, partial=chosen(session.config))
        self.page.write_text(text)
        print(f"\nwritten: {len(self.rows)} rows into {self.page}")


def is_slow(tests: dict[str, dict[str, Any]]) -> bool:
    return any(test["slow"] for test in tests.values())


def chosen(config: pytest.Config) -> bool:
    """Whether the user selected some of the tests, so that the other rows of the page stay."""
    option = config.option
    some = option.keyword or option.deselect or option.maxfail or getattr(option, "lf", False)
    return bool(some) or config.args_source is pytest.Config.ArgsSource.ARGS


def with_lines(text: str, kind: str, lines: dict[str, str], *, partial: bool) -> str:
    """`text` with these rows in the table of `kind`. partial: only some tests ran; the other rows stay, also one
    that was written with more tests."""
    first, last = f"<!-- {kind} rows -->", f"<!-- end of {kind} rows -->"
    head, rest = text.split(first, 1)
    before, tail = rest.split(last, 1)
    kept = {match[1]: match[0] for match in LINE.finditer(before)} if partial else {}
    rows = kept | {row: line for row, line in lines.items() if row not in kept or runs(line) >= runs(kept[row])}
    table = HEAD + "\n".join(rows[row] for row in sorted(rows, key=order)) + "\n"
    return f"{head}{first}\n\n{table}\n{last}{tail}"


def with_cells(text: str, rows: dict[str, dict[str, dict[str, Any]]]) -> str:
    """`text` with these cells in the table of connections; the others stay."""
    first, last = "<!-- connections -->", "<!-- end of connections -->"
    head, rest = text.split(first, 1)
    before, tail = rest.split(last, 1)
    names, cells, whats = read_cells(before)
    for row, tests in rows.items():
        of_connection: dict[str, list[dict[str, Any]]] = {}
        for test in tests.values():
            if "connection" in test:
                whats[row] = f"{test['what']}: {test['holds']}"
                of_connection.setdefault(test["connection"], []).append(test)
        names = list(dict.fromkeys([*names, *of_connection]))
        cells |= {(row, name): cell_of(each) for name, each in of_connection.items()}
    lines = [["row", "fault and result", *names], ["---"] * (2 + len(names))]
    lines += [[row, whats[row], *[cells.get((row, name), "") for name in names]] for row in sorted(whats, key=order)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{head}{first}\n\n{table}\n\n{last}{tail}"


def read_cells(table: str) -> tuple[list[str], dict[tuple[str, str], str], dict[str, str]]:
    """Connections, (row, connection) -> cell, row -> fault."""
    lines = [line.strip("|").split("|") for line in table.strip().splitlines()]
    rows = [[cell.strip() for cell in line] for line in lines]
    names = rows[0][2:] if rows else []
    cells = {(row[0], name): cell for row in rows[2:] for name, cell in zip(names, row[2:], strict=True)}
    return names, cells, {row[0]: row[1] for row in rows[2:]}


def cell_of(tests: Sequence[dict[str, Any]]) -> str:
    """The worst of all modes."""
    if any(test["outcome"] != "passed" for test in tests):
        return "**broken**"
    doubles = sum(test["doubles"] for test in tests)
    longest = max(back for test in tests for back in test["back"])
    return f"{span(longest)}{f', {doubles} twice' if doubles else ''}"


def runs(line: str) -> int:
    return int(line.split(" | ")[RUNS])


def order(row: str) -> tuple[int, str]:
    digits = "".join(letter for letter in row if letter.isdigit())
    return (int(digits or 0), row)


def line_of(row: str, tests: dict[str, dict[str, Any]]) -> str:
    """The line of one row, combining all its tests."""
    seen = list(tests.values())
    measured = [test for test in seen if "lost" in test]
    times = [t for test in measured for t in test["back"]]
    verdict = "holds" if all(test["outcome"] == "passed" for test in seen) else "**broken**"
    counts = [str(sum(test[key] for test in measured)) if measured else "" for key in ("lost", "doubles")]
    spans = [span(share(times, part)) for part in (0.5, 0.99, 1.0)] if times else ["", "", ""]
    files = ", ".join(sorted({nodeid.split("::")[0].removeprefix("tests/") for nodeid in tests}))
    what, holds = seen[0]["what"], seen[0]["holds"]
    cells = [row, what, holds, str(len(tests)), modes_of(seen), *counts, *spans, verdict, files, stamp()]
    return f"| {' | '.join(cells)} |"


def modes_of(tests: Sequence[dict[str, Any]]) -> str:
    """The modes in which they ran, each with its p50 of `back` if there are several."""
    times: dict[str, list[float]] = {}
    broken = {test["mode"] for test in tests if test["outcome"] != "passed"}
    for test in tests:
        times.setdefault(test["mode"], []).extend(test.get("back", ()))
    if set(times) == {""}:
        return ""
    words = {
        mode: f": {span(share(back, 0.5))}" if back and len(times) > 1 else ""
        for mode in MODES
        if (back := times.get(mode)) is not None
    }
    return ", ".join(f"{mode}{word}{' **broken**' if mode in broken else ''}" for mode, word in words.items())


def span(seconds: float) -> str:
    return "never" if math.isinf(seconds) else f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def stamp() -> str:
    cpus = len(os.sched_getaffinity(0))
    return f"{time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, {cpus} CPUs"
