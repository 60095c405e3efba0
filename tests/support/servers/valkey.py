"""The other brand: a real Valkey, from PATH or from the wheel that the extra `embedded` brings."""

from __future__ import annotations

import shutil
from pathlib import Path

from qd.drivers import embedded
from tests.support.peers import missing
from tests.support.server import Server


class Valkey(Server):
    """As Server, in everything."""

    def program(self) -> Path:
        return binary()


def binary() -> Path:
    if found := shutil.which("valkey-server"):
        return Path(found)
    return embedded.wheel_binary() or missing("valkey-server")
