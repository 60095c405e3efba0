"""An app that no server is asked for; a file whose app is another has its own."""

from __future__ import annotations

import pytest

from tests.support.fakes import FakeQd


@pytest.fixture
def app() -> FakeQd:
    return FakeQd()
