"""The names of qd's commands, as an entry of the schedule may run them: a producer that declares entries loads no
command line. Their options are looked at by `qd doctor`."""

from __future__ import annotations

from collections.abc import Sequence

from qd.units import did_you_mean

GROUPS = {
    "failed": ("forget", "list", "retry", "show"),
    "schedule": ("clear-locks", "list", "pause", "resume", "run", "test", "work"),
    "config": ("check", "show"),
    "embedded": ("status", "stop"),
}
COMMANDS = (
    "work", "status", "health", "restart", "pause", "resume", "down", "up", "dispatch", "run", "declared", "job", "clear",
    "cancel", *GROUPS, "doctor", "init", "migrate",
)  # fmt: skip
ENDLESS = {("work",), ("schedule", "work")}


def check(words: Sequence[str]) -> None:
    """Raises ValueError: qd has no such command, or it does not end. What begins with an option is not looked at."""
    if words[0].startswith("-"):
        return
    known(words[0], COMMANDS)
    inner = GROUPS.get(words[0])
    if inner is not None and not words[1:]:
        raise ValueError(f"qd {words[0]} names no command (known: {', '.join(inner)})")
    if inner is not None and not words[1].startswith("-"):
        known(words[1], inner)
    named = tuple(words[: 2 if inner else 1])
    if named in ENDLESS:
        raise ValueError(f"`qd {' '.join(named)}` does not end: a supervisor starts it, not the schedule")


def known(word: str, names: Sequence[str]) -> None:
    if word not in names:
        near = did_you_mean(word, names) or f" (known: {', '.join(names)})"
        raise ValueError(f"unknown command '{word}' of qd{near}")
