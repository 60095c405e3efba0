"""What all jobs of an app share: the pipeline around them, and the way to the store that middleware keeps its facts in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qd.bus.pipeline import Pipeline

if TYPE_CHECKING:
    from qd.connectors.manager import Connections


class Common:
    def __init__(self, connections: Connections) -> None:
        self.connections = connections
        self.pipeline = Pipeline()
