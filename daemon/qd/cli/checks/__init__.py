"""The checks of `qd doctor`: each file yields findings about one part of a setup; doctor.py calls and prints them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One line of `qd doctor`.

    sign: ok, warn or fail. fix: what to do, "" if all is well. code: the exit code of a fail. topic: only the first
    finding with this topic is shown; "" shows each.
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
