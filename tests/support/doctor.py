"""What `qd doctor` says of a project, line by line."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from tests.support.project import Project


class Line(NamedTuple):
    sign: str
    what: str
    value: str
    fix: str


class Found(NamedTuple):
    code: int
    lines: list[Line]

    def line(self, what: str) -> Line:
        (found,) = [line for line in self.lines if line.what == what]
        return found

    def bad(self) -> list[tuple[str, str]]:
        """(sign, what) of all that is not well, but for what every test here has: root, and a server without a disk."""
        ours = ("root", "redis.persistence", "redis.latency")
        return [(line.sign, line.what) for line in self.lines if line.sign != "ok" and line.what not in ours]


def doctor(shop: Project, *words: str, **env: str) -> Found:
    done = shop.qd("doctor", "--json", *words, seconds=60.0, **env)
    found = json.loads(done.stdout)
    assert (found["exit"], found["ok"]) == (done.returncode, done.returncode == 0), done.stderr
    lines = [Line(**check) for check in found["checks"]]
    assert all(line.fix for line in lines if line.sign != "ok"), "a line without its fix"
    return Found(done.returncode, lines)


def edited(text: str, key: str, value: str | None) -> str:
    """`key=value` in the place of what stands there, or not at all."""
    return re.sub(rf"^{key}=.*$", "" if value is None else f"{key}={value}", text, flags=re.MULTILINE)
