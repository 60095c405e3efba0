"""Sends jobs until it is stopped: about eight per second, a burst every two minutes, and a batch every minute."""

from __future__ import annotations

import itertools
import random
import time

from jobs import app, deliver, resize, step, welcome

from qd.errors import QdError


def send(second: int) -> None:
    app.dispatch(*[welcome.bind(f"user{random.randrange(10**6)}@example.org") for _ in range(4)])
    app.dispatch(*[resize.bind(f"{random.randrange(10**6)}.jpg", 640) for _ in range(2)])
    deliver.dispatch(f"https://shop{random.randrange(50)}.example.org/hook")
    if second % 120 == 30:
        app.dispatch(*[welcome.bind(f"newsletter{n}@example.org") for n in range(600)])
    if second % 60 == 10:
        app.batch(*[step.bind(n) for n in range(20)], name="catalogue").dispatch()


for second in itertools.count():
    try:
        send(second)
    except QdError as error:  # the server is away: a demonstration goes on
        print(f"load: {error}", flush=True)
    time.sleep(1)
