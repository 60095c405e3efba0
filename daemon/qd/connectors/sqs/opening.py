"""How the manager opens a connection to SQS."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qd.connectors.borrowed.keeping import BorrowedKeeping
from qd.connectors.borrowed.opening import open_borrowed
from qd.connectors.sqs.address import Address
from qd.connectors.sqs.backend import SqsBackend
from qd.connectors.sqs.queue import SqsQueue

if TYPE_CHECKING:
    from qd.config import ConnectionSettings, Settings
    from qd.connectors.reserver import Reserver


def open_queue(settings: Settings, at: ConnectionSettings, who: Reserver) -> BorrowedKeeping:
    backend = SqsBackend(Address(at.url or ""), lease=at.retry_after, prefix=at.prefix)
    return open_borrowed(settings, at, who, backend, SqsQueue)
