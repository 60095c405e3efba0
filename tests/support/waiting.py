"""Wait for a fact with a deadline: the only place where tests sleep."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Literal, TypeVar

T = TypeVar("T")

# Seconds to wait for the effect of one mechanism. Fewer if it is switched off, because then it never comes.
BROUGHT = 20.0 if os.environ.get("SWITCHED_OFF", "nothing") == "nothing" else 6.0
SELDOM, SELDOM_ANSWERED = 0.05, 0.5  # maximum seconds between two calls in a long wait, or with slow answers


def eventually(
    predicate: Callable[[], T | Literal[False] | None], seconds: float = 20.0, *, every: float = 0.01, what: str = ""
) -> T:
    """Call `predicate` until it returns something true, for at most `seconds`. Returns that value.

    An AssertionError in the predicate counts as "not yet" and is reported at the end. After the deadline the predicate is
    called once more, because this process may have been suspended. To leave the CPU to the programs under test, calls take
    at most a third of the time and become rarer the longer the wait takes.
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
