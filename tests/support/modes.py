"""The modes of the fault suite: how many jobs a worker of the test has in its hands.

    1              one, and nothing is fetched ahead
    prefetch       up to 16 are fetched with one call, one of them runs
    concurrency    up to 8 run at once

A fault test that starts a project's programs runs in one mode, chosen by its name and the date: in three days it has run
in each. `--modes=all` runs it in each (`make faults`), `--modes=prefetch` or `--modes=1,concurrency` in these. A test that
has no meaning in a mode names those in which it has one: `@pytest.mark.modes("1", "prefetch", why="...")`.

Programs get the mode by the environment, so options on the command line or in qd.toml win or lose as they do for a user.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from datetime import date
from zlib import crc32

import pytest

MODES: dict[str, dict[str, str]] = {
    "1": {"QD_PREFETCH": "1"},
    "prefetch": {"QD_PREFETCH": "16"},
    "concurrency": {"QD_CONCURRENCY": "8"},
}
DAY = "QD_TESTS_DAY"  # the same for all processes of a run that lasts beyond midnight


def add_option(parser: pytest.Parser) -> None:
    parser.addoption("--modes", metavar="MODES", help="run fault tests in these modes (support/modes.py), or in all")


def chosen(name: str, modes: tuple[str, ...], day: date) -> str:
    return modes[(crc32(name.encode()) + day.toordinal()) % len(modes)]


class Modes:
    def __init__(self, option: str | None) -> None:
        words = [] if option is None else [*MODES] if option == "all" else option.split(",")
        if unknown := set(words) - set(MODES):
            raise pytest.UsageError(f"--modes: unknown {sorted(unknown)}, known are all, {', '.join(MODES)}")
        self.wanted = tuple(words)
        self.day = date.fromisoformat(os.environ.setdefault(DAY, date.today().isoformat()))

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        has_modes = "mode" in metafunc.fixturenames and metafunc.definition.get_closest_marker("fault")
        if has_modes and len(self.wanted) > 1:
            metafunc.parametrize("mode", self.wanted, indirect=True)

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        left_out = [item for item in items if self.wanted and moded(item) and self.of(item) not in of_test(item)]
        if left_out:
            items[:] = [item for item in items if item not in left_out]
            config.hook.pytest_deselected(items=left_out)

    def of(self, item: pytest.Item) -> str:
        """The mode in which this test runs."""
        if not moded(item):
            return ""
        if len(self.wanted) > 1:
            return str(item.callspec.params["mode"])  # type: ignore[attr-defined]
        return self.wanted[0] if self.wanted else chosen(item.nodeid, of_test(item), self.day)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if mode := self.of(item):
            item.user_properties.append(("mode", mode))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed and (mode := self.of(item)):
            report.sections.append(("mode", f"it ran with --modes={mode}"))
        return report


def moded(item: pytest.Item) -> bool:
    return item.get_closest_marker("fault") is not None and "mode" in getattr(item, "fixturenames", ())


def of_test(item: pytest.Item) -> tuple[str, ...]:
    """The modes in which the test has a meaning."""
    marks = [set(mark.args) for mark in item.iter_markers("modes")]
    return tuple(mode for mode in MODES if all(mode in mark for mark in marks))
