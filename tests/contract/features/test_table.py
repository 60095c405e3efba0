"""docs/reference/features.md has a column for each driver and a row for each tested feature."""

from __future__ import annotations

import re
from pathlib import Path

from tests.contract.features.conftest import table
from tests.contract.kinds import KINDS, LIKE_REDIS


def test_each_row_has_a_test_and_a_cell_for_each_driver() -> None:
    files = [path for path in Path(__file__).parent.glob("test_*.py") if path != Path(__file__)]
    tested = [re.search(r'^FEATURE = "(.+)"$', path.read_text(), re.MULTILINE) for path in files]
    assert all(tested), "a file without FEATURE"
    assert sorted(each[1] for each in tested if each) == sorted(table())
    assert all(sorted(cells) == sorted(kind.name for kind in KINDS) for cells in table().values())
    assert all("cell" in path.read_text() for path in files)


def test_what_runs_in_soak_only_has_the_cells_and_gaps_of_redis() -> None:
    """Cells that differ would need their test in CI."""
    for name, cells in table().items():
        assert {cells[kind] for kind in LIKE_REDIS} == {cells["redis"]}, name
    gaps = {kind.name: kind.limits for kind in KINDS}
    assert all(gaps[kind] == gaps["redis"] for kind in LIKE_REDIS)
