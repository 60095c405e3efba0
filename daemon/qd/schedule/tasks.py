"""What an entry runs, checked and made from the arguments of app.schedule, with the name that it has by default.

Mistakes raise ValueError; declare.py adds the origin. The names of qd's commands are listed here, because a producer that
declares entries does not import the command line. `qd doctor` checks their options.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

from qd.dispatch.composite import BatchCall, Chain
from qd.errors import QdError
from qd.jobs.job import Call, Job, JobFunction
from qd.jobs.registry import Registry
from qd.options.kinds import did_you_mean
from qd.schedule.builder import takes_arguments
from qd.schedule.entry import CallTask, JobTask, QdTask, ShellTask, called, of_call, of_command

GROUPS = {
    "failed": ("forget", "list", "retry", "show", "summary"),
    "schedule": ("clear-locks", "list", "pause", "resume", "run", "test", "work"),
    "config": ("check", "show"),
    "embedded": ("status", "stop"),
}
COMMANDS = (
    "work", "status", "health", "restart", "pause", "resume", "down", "up", "dispatch", "run", "declared", "job", "clear",
    "cancel", *GROUPS, "doctor", "events", "init", "dashboard", "alerts", "metrics", "migrate", "queues", "peek", "wait",
    "help", "why", "move", "promote", "scale", "completion", "top",
)  # fmt: skip
ENDLESS = {("work",), ("alerts",), ("dashboard",), ("top",), ("schedule", "work")}
Word = str | int | float | Path
Parameter = Word | Mapping[str, Word | bool | Sequence[Word] | None]


def check(words: Sequence[str]) -> None:
    """Raises ValueError if there is no such command, or it does not end. Options before the command are not checked."""
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


def job(call: Call[object] | JobFunction[..., object, object], registry: Registry) -> tuple[JobTask, str]:
    """The job with its arguments, and its name. The call counts as sent."""
    try:
        bound = call.bind() if isinstance(call, JobFunction) else call
        bound._origin = None  # no warning that it was never sent
        if isinstance(bound, Chain):
            return JobTask(bound), f"chain of {', '.join([each.plan.declared.name for each in bound._members])}"
        if isinstance(bound, BatchCall):
            raise ValueError("a batch is several jobs: schedule a job, or a function, that dispatches it")
        _, plan, data = bound._to_send()
    except QdError as error:
        raise ValueError(str(error)) from None
    declared = plan.declared
    if registry.get(declared.name) is not declared:
        raise ValueError(f"job '{declared.name}' does not belong to this app")
    if isinstance(plan.delay, datetime):
        raise ValueError(f"job '{declared.name}' would start at {plan.delay} for every tick: give its delay in seconds")
    return JobTask(bound), of_call(declared, data)


def function(given: Callable[[], object]) -> tuple[CallTask, str]:
    """A function without arguments, and its name; "" if it has none that is the same on all hosts."""
    if isinstance(given, type):
        way = f"an instance, {given.__name__}(...)" if issubclass(given, Job) else "a function"
        raise ValueError(f"{called(given)} is a class: give {way}")
    if not callable(given):
        raise ValueError(f"{given!r} cannot be run: give job.bind(...), an instance of a class job, or a function")
    if isinstance(getattr(given, "__self__", None), Call | JobFunction):
        raise ValueError(f"{called(given)} sends a job: give the job itself, job.bind(...)")
    target = given.func if isinstance(given, partial) else given
    if inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
        raise ValueError(f"{called(given)} is a generator, whose body would never run: return instead of yield")
    if takes_arguments(given):
        raise ValueError(f"{called(given)} takes arguments: bind them in a function of your own, or make it a job")
    own = getattr(given, "__qualname__", "").replace("<locals>.", "")
    named = own and "<lambda>" not in own
    return CallTask(given), f"{given.__module__}.{own}" if named else ""


def shell(line: str, parameters: Sequence[Parameter]) -> tuple[ShellTask, str]:
    """A line for /bin/sh, with the parameters quoted and appended."""
    if not isinstance(line, str) or not line.strip() or "\0" in line:
        raise ValueError(f"{line!r} is not a command line (write 'pg_dump shop')")
    whole = " ".join([line.strip(), *map(shlex.quote, words(parameters))])
    return ShellTask(whole), of_command(whole)


def qd(line: str, parameters: Sequence[Parameter]) -> tuple[QdTask, str]:
    """A qd command, without `qd`, and parameters as further words."""
    try:
        found = shlex.split(line) if isinstance(line, str) else []
    except ValueError as error:
        raise ValueError(f"{line!r} cannot be read: {error}") from None
    found = found[1:] if found[:1] == ["qd"] else found
    if not found:
        raise ValueError(f"{line!r} is not a command of qd (write 'failed forget --older-than 30d --yes')")
    whole = (*found, *words(parameters))
    check(whole)
    return QdTask(whole), of_command(shlex.join(["qd", *whole]))


def words(parameters: Sequence[Parameter]) -> list[str]:
    """7 -> "7"; {"days": 7, "force": True, "not_this": None} -> "--days=7", "--force"."""
    found: list[str] = []
    for parameter in parameters:
        if isinstance(parameter, Mapping):
            for name, value in parameter.items():
                found.extend(option(name, value))
        else:
            found.append(word(parameter))
    return found


def option(name: str, value: object) -> list[str]:
    """An option of the command. True: without a value. False, None: left out. A sequence: repeated."""
    flag = name if name.startswith("-") else f"--{name}"
    if value is None or isinstance(value, bool):
        return [flag] if value else []
    several = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    return [f"{flag}={word(each)}" for each in several]


def word(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float | Path) or "\0" in str(value):
        raise ValueError(
            f"{value!r} is not a parameter of a command: give strings, numbers, or options as {{'days': 7}}"
        )
    return str(value)
