"""`pytest --stalls=SEED`: the test process pauses now and then, as on a busy machine.

Each test, with its fixtures, pauses before a few lines of its own file and of tests/support. The seed and the name of the
test determine where and for how long; stderr shows where. Assertions must hold at any speed: a test that fails under a seed
depends on a time margin, or reads something that may be gone by then.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from tests.support import reliability, waiting

SUPPORT = str(Path(__file__).parent)
PASSED_OVER = (waiting.__file__, reliability.__file__, __file__)  # the last two are pytest hooks, not steps of a test
SECONDS = (0.1, 0.5, 1.0, 2.0)  # length of a pause


def add_option(parser: pytest.Parser) -> None:
    parser.addoption("--stalls", metavar="SEED", help="pause before some lines of each test (support/stalls.py)")


class Stalls:
    def __init__(self, seed: str) -> None:
        self.seed = seed

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        before = sys.gettrace()
        sys.settrace(Tracer(f"{self.seed} {item.nodeid}", str(item.path)).call)
        try:
            return (yield)
        finally:
            sys.settrace(before)


@dataclass
class Stops:
    chance: float  # of a line, when it is reached for the first time
    left: int


class Tracer:
    """The tracer of one test."""

    def __init__(self, seed: str, file: str) -> None:
        self.pid = os.getpid()  # processes forked by the test are not paused
        self.random = random.Random(seed)
        self.seen: set[tuple[CodeType, int]] = set()
        self.stops = {file: Stops(0.15, 4), SUPPORT: Stops(0.05, 2)}

    def of(self, file: str) -> Stops | None:
        return self.stops.get(SUPPORT if file.startswith(SUPPORT) and file not in PASSED_OVER else file)

    def call(self, frame: FrameType, event: str, argument: Any) -> Any:
        stops = self.of(frame.f_code.co_filename)
        return self.line if stops and stops.left else None

    def line(self, frame: FrameType, event: str, argument: Any) -> Any:
        here, stops = (frame.f_code, frame.f_lineno), self.of(frame.f_code.co_filename)
        if event == "line" and here not in self.seen and stops and stops.left and os.getpid() == self.pid:
            self.seen.add(here)
            if self.random.random() < stops.chance:
                stops.left -= 1
                seconds = self.random.choice(SECONDS)
                where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                heading = f"-- {time.strftime('%H:%M:%S')} {seconds} s before {where}\n"
                os.write(2, heading.encode())  # sys.stderr may belong to a command that runs in this process
                time.sleep(seconds)
        return self.line
