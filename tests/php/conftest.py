"""The fixture `laravel`: a PHP application on the test's server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.php.laravel import Laravel
from tests.support.servers.redis import Server


@pytest.fixture
def laravel(server: Server, tmp_path: Path) -> Iterator[Laravel]:
    folder = tmp_path / "laravel"
    folder.mkdir()
    application = Laravel(server, folder)
    yield application
    application.close()
