"""moto's server, as `python -m moto.server`, with one call to a queue at a time.

moto is not thread-safe: two clients at once may receive the same message, and a message sent while another one is deleted
may be lost. SQS does neither, so such a failure would look like a bug of qd.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from moto.server import main
from moto.sqs.models import SQSBackend

ALONE = threading.RLock()
CALLS: tuple[str, ...] = (
    "send_message",
    "send_message_batch",
    "delete_message",
    "delete_message_batch",
    "change_message_visibility",
)
CALLS += ("change_message_visibility_batch", "get_queue_attributes", "create_queue", "delete_queue", "purge_queue")


def alone(real: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(real)
    def call(*args: Any, **named: Any) -> Any:
        with ALONE:
            return real(*args, **named)

    return call


def taken(real: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces receive_message: calls read the queue one at a time, and wait concurrently."""

    def receive(backend: Any, name: str, count: int, wait: int, *more: Any, **named: Any) -> Any:
        end = time.monotonic() + wait
        while True:
            with ALONE:
                found = real(backend, name, count, 0, *more, **named)
            left = end - time.monotonic()
            if found or left <= 0:
                return found
            backend.get_queue(name).wait_for_messages(min(1.0, left))

    return receive


if __name__ == "__main__":
    backend: Any = SQSBackend
    for name in CALLS:
        setattr(backend, name, alone(getattr(backend, name)))
    backend.receive_message = taken(backend.receive_message)
    main()
