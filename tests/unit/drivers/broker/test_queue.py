"""What a broker queue does with a delivery that this worker must not run."""

from __future__ import annotations

from typing import Any

from qd.config.settings import ConnectionSettings
from qd.drivers.broker.base import Delivery
from qd.drivers.broker.queue import BrokerQueue
from qd.drivers.types import NONE, Gaps


class Standin:
    limits: Gaps = NONE

    def __init__(self) -> None:
        self.back = list[float]()

    def release(self, delivery: Delivery, seconds: float) -> None:
        self.back.append(seconds)


def test_a_delivery_that_another_worker_is_running_is_released_for_a_second():
    backend, nowhere = Standin(), object()
    unused: Any = nowhere
    given: Any = backend
    queue = BrokerQueue(ConnectionSettings("tubes"), given, unused, "qd:at:tubes:")
    queue._refuse(Delivery("default", "1", "1", b"{}"), b"held")
    assert backend.back == [1.0]
