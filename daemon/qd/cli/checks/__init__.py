"""What `qd doctor` looks at: each file yields findings about one part of a set-up. doctor.py calls them and prints.

One line of `qd doctor`: what was looked at, what it is, and the way out where it is not well.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """sign: ok, warn or fail. fix: what to do, "" where all is well. code: what a fail makes of the exit code.

    topic: of several findings with the same one, the first is shown; "" shows each.
    """

    sign: str
    what: str
    value: str
    fix: str = ""
    code: int = 1
    topic: str = ""


def ok(what: str, value: object, *, topic: str = "") -> Finding:
    return Finding("ok", what, str(value), topic=topic)


def warn(what: str, value: object, fix: str, *, topic: str = "") -> Finding:
    return Finding("warn", what, str(value), fix, topic=topic)


def fail(what: str, value: object, fix: str, code: int = 1) -> Finding:
    return Finding("fail", what, str(value), fix, code)
