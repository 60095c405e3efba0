"""Jobs sent by this process, without one of their own: payloads put into the queue by hand, and an app that sends."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from qd import Qd
from qd.config.settings import ConnectionSettings
from qd.payload.build import make
from tests.support.fakes import settings
from tests.support.resp import Client


@contextmanager
def producer(url: str) -> Iterator[Qd]:
    """An app whose jobs go to that server."""
    made = Qd()
    made.settings = settings(redis=ConnectionSettings("redis", url=url))
    yield made
    made.connections.close()


def push(redis: Client, job: str, *, count: int = 1, queue: str = "default", **data: object) -> None:
    """`count` jobs of that name with these arguments, ready now."""
    raw = [make(job, json.dumps(data).encode(), created_at=int(time.time())) for _ in range(count)]
    push_raw(redis, *raw, queue=queue)


def push_raw(redis: Client, *payloads: bytes, queue: str = "default") -> None:
    """These bytes, ready now, a token each."""
    for at in range(0, len(payloads), 1000):
        some = payloads[at : at + 1000]
        redis.call("RPUSH", f"queues:{queue}", *some)
        redis.call("RPUSH", f"queues:{queue}:notify", *["1"] * len(some))


def failed(redis: Client, queue: str = "default") -> list[tuple[dict[str, Any], bytes]]:
    """What the failed store holds: each record, and the payload's bytes as they are kept."""
    found = []
    for value in redis.call("HVALS", f"queues:{queue}:failed"):
        record, _, raw = value.partition(b"\n")
        found.append((json.loads(record), raw))
    return found


def push_laravel(
    redis: Client, job: str, data: dict[str, object] | None = None, queue: str = "default", **more: object
) -> None:
    """As Laravel pushes a string job; `more` are fields of the payload."""
    payload: dict[str, object] = {"uuid": f"u-{job}", "displayName": job, "job": job, "maxTries": None}
    payload |= {"maxExceptions": None, "failOnTimeout": False, "backoff": None, "timeout": None, "data": data or {}}
    payload |= {"id": f"id-{job}", "attempts": 0, "delay": None} | more
    push_raw(redis, json.dumps(payload).encode(), queue=queue)
