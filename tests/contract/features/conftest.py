"""What features.md says about the feature of a test file, which names it as FEATURE, and the driver under test."""

from __future__ import annotations

from typing import Literal, cast

import pytest

from tests.contract.kinds import Kind, Tried
from tests.support.pages import ROOT

Cell = Literal["works", "limited", "refused"]


def table() -> dict[str, dict[str, str]]:
    """Feature -> driver -> cell."""
    lines = [
        line for line in (ROOT / "docs" / "reference" / "features.md").read_text().splitlines() if line.startswith("|")
    ]
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {name: dict(zip(head[1:], cells, strict=True)) for name, *cells in rows}


@pytest.fixture
def cell(request: pytest.FixtureRequest, kind: Kind) -> Cell:
    found = table()[request.module.FEATURE][kind.name]
    assert found in ("works", "limited", "refused")
    return cast("Cell", found)


def add_jobs(tried: Tried, jobs: str) -> None:
    """Declare these jobs in the project, too."""
    path = tried.shop.root / "jobs.py"
    path.write_text(path.read_text() + jobs)
