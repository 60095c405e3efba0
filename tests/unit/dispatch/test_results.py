"""Waiting for a result whose job has ended on one server of a cluster, while the record of it is on another."""

from __future__ import annotations

from typing import Any, cast

import pytest

from qd.dispatch import results
from qd.dispatch.results import SentJobs
from qd.drivers.pausing import block_on
from qd.drivers.types import Kept
from qd.errors import NoResult


class Server:
    """The job is nowhere; its record appears at the read with this number."""

    def __init__(self, limits: tuple[str, ...], appears: int | None) -> None:
        self.limits, self.appears, self.reads = limits, appears, 0
        self.jobs = self

    def find(self, queue: str, id: str, spots: object) -> None:
        return None

    def kept(self, id: str) -> Kept | None:
        self.reads += 1
        if self.appears is None or self.reads < self.appears:
            return None
        return Kept("done", b"7", None, 1.0)


def waited_for(limits: tuple[str, ...], appears: int | None) -> Any:
    server = Server(limits, appears)
    return block_on(SentJobs(lambda: cast(Any, server), "default").result("x1", 30))


def test_the_record_may_follow_the_end_on_a_cluster() -> None:
    assert waited_for(("ends",), 5) == 7


def test_an_unknown_job_is_reported_at_once_elsewhere() -> None:
    with pytest.raises(NoResult, match="job x1 has no result"):
        waited_for((), 5)


def test_an_unknown_job_is_reported_on_a_cluster_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "LOOK", 0.01)
    monkeypatch.setattr(results, "LATE", 0.02)
    with pytest.raises(NoResult, match="job x1 has no result"):
        waited_for(("ends",), None)
