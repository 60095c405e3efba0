"""bench/: the table of the drain shows what a call to Redis cost at that moment."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.servers.redis import Server

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """bench("report"): a module of the benchmark, which is no package."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCH))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield load
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(BENCH)):
            del sys.modules[name]


def test_the_round_trip_stands_beside_the_drain_that_it_explains(bench: Any, server: Server, tmp_path: Path) -> None:
    module = bench("server")
    redis = module.Server(tmp_path)
    redis.client = module.Client(server.port)
    try:
        trip = redis.round_trip(50)
    finally:
        redis.client.close()
    assert 0 < trip < 1e6
    samples = {"drain": {"qd": [{"drain": 9000.0, "round_trip_us": 21.5}], "Laravel": [{"drain": 4000.0}]}}
    lines = bench("report").render({}, samples).splitlines()
    assert "| a round trip to Redis (PING) before that drain, µs ↓ | **21.5** | - |" in lines
