"""Fixtures for unit tests: an app without a server (some files define another one) and masters without processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.fakes import FakeQd
from tests.support.masters import MakeRig, Rig


@pytest.fixture
def app() -> FakeQd:
    return FakeQd()


@pytest.fixture
def make_rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeRig]:
    """Makes masters with a fake clock; the arguments are fields of their plan."""
    made: list[Rig] = []

    def make(**options: Any) -> Rig:
        made.append(Rig(monkeypatch, **options))
        return made[-1]

    yield make
    for rig in made:
        rig.close()
