"""Records of failed jobs put into the store by hand, as the scripts of qd write them."""

from __future__ import annotations

import json
import time
from typing import Any

from qd.payload.build import make
from tests.support.resp import Client


def bury(
    redis: Client, id: str, *, queue: str = "mail", at: float | None = None, raw: bytes | None = None, **said: Any
) -> bytes:
    """A record called `id`, failed at `at` (now); `said`: what its line says in place of the usual. Returns its payload."""
    at = time.time() if at is None else at
    job = said.get("job", "mail.welcome")
    if raw is None:
        raw = make(job, json.dumps({"to": id}).encode(), uuid=f"uuid-{id}", id=f"job-{id}", created_at=int(at))
        raw = raw.replace(b'"attempts":0', b'"attempts":3,"rsv":"T.0.1.-"')
    line: dict[str, Any] = {"id": id, "uuid": f"uuid-{id}", "queue": queue, "job": job, "error": "ValueError"}
    line |= {"reason": "no such user", "attempts": 3, "crashes": 0, "failed_at": round(at, 3), "trace": None} | said
    redis.call("HSET", f"queues:{queue}:failed", id, json.dumps(line).encode() + b"\n" + raw)
    redis.call("ZADD", f"queues:{queue}:failed_at", repr(at), id)
    return raw
