"""Waiting for a keeper's next looks: what it has to see, it has seen then."""

from __future__ import annotations

import json

from tests.support.clock import eventually
from tests.support.resp import Client


def a_beat_later(redis: Client) -> None:
    """Until the one master that reports there has reported once more: its keeper has looked."""
    seconds_later(redis, 0.8)


def seconds_later(redis: Client, seconds: float) -> None:
    """Until the one master that reports there has reported for so much longer, by Redis's clock."""

    def seen_at() -> float:
        return max((float(json.loads(text)["seen_at"]) for text in redis.hash("qd:masters").values()), default=0.0)

    begun = eventually(seen_at, what="a report")
    eventually(lambda: seen_at() >= begun + seconds, seconds + 20, what=f"reports of {seconds} s")
