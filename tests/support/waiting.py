"""Wait for a fact with a deadline: the only place where tests sleep."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Literal, TypeVar

T = TypeVar("T")

# Seconds to wait for what one mechanism brings about, and soon: fewer where it is switched off, for then it never comes.
BROUGHT = 20.0 if os.environ.get("SWITCHED_OFF", "nothing") == "nothing" else 6.0
SELDOM, SELDOM_ANSWERED = 0.05, 0.5  # seconds at most between two questions of a long wait, or of slow answers


def eventually(
    predicate: Callable[[], T | Literal[False] | None], seconds: float = 20.0, *, every: float = 0.01, what: str = ""
) -> T:
    """The first true answer of `predicate`, asked again until then for `seconds` at most.

    An AssertionError inside the predicate counts as "not yet" and is told if it stays so. It is asked once more when the
    time is over: this process may have stood still. Whoever waits leaves the machine to what he waits for: he asks for a
    third of the time at most, and the longer it takes the less often.
    """
    began = time.monotonic()
    deadline = began + seconds
    while True:
        last: object
        asked = time.monotonic()
        try:
            answer = predicate()
            if answer:
                return answer
            last = answer
        except AssertionError as error:
            last = error
        now = time.monotonic()
        if asked > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what or repr(predicate)} (last answer: {last!r})")
        time.sleep(max(every, min(SELDOM, (now - began) / 40), min(SELDOM_ANSWERED, 2 * (now - asked))))
