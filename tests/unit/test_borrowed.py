"""What a connection that borrows its keyspace does with a parcel that is none for this worker."""

from __future__ import annotations

from typing import Any

from qd.config.settings import ConnectionSettings
from qd.drivers.broker.base import Delivery
from qd.drivers.broker.queue import BrokerQueue


class Standin:
    def __init__(self) -> None:
        self.back = list[float]()

    def put_back(self, parcel: Delivery, seconds: float) -> None:
        self.back.append(seconds)


def test_what_another_worker_has_in_hand_is_handed_out_again_in_a_second():
    backend, nowhere = Standin(), object()
    unused: Any = nowhere
    given: Any = backend
    queue = BrokerQueue(ConnectionSettings("tubes"), given, unused, "qd:at:tubes:")
    queue._pass_on(Delivery("default", "1", "1", b"{}"), b"held")
    assert backend.back == [1.0]
