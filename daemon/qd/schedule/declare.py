"""app.schedule, which declares entries; and the entries of qd.toml, [schedule.entries.NAME], made into the same builders.

app.schedule(report.bind(7)).weekdays().at("7:00")
app.schedule(clean_up, every=60)
app.schedule.shell("pg_dump", "shop", {"file": "/backup/shop.sql"}).daily()
app.schedule.qd("failed forget --older-than 30d --yes", cron="0 3 * * 0")

The names of qd's commands are listed here, because a producer that declares entries does not import the command line.
`qd doctor` checks their options.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from functools import partial, reduce
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

from qd.config.settings import EntrySettings, Settings
from qd.dispatch.composite import BatchCall, Chain
from qd.drivers.connections import check_ticks
from qd.errors import ConfigError, DeclarationError, QdError, UnknownParameters
from qd.jobs.job import Call, Job, JobFunction, caller
from qd.jobs.registry import Registry
from qd.options.kinds import did_you_mean
from qd.schedule.builder import Names, Scheduled, Words, shown, takes_arguments, wrong
from qd.schedule.entry import CallTask, Entry, JobTask, Missed, QdTask, ShellTask, Task, called, of_call, of_command

if TYPE_CHECKING:
    from qd.drivers.base import Factory

MakeCall = Callable[[str, bytes], Call[Any]]  # makes the call of a job from its name and JSON arguments
KINDS = ("job", "call", "shell", "qd")
OF_JOBS = ("args", "queue", "connection")
OF_RUNS = ("in_background", "timeout", "output_to", "append")
DEFAULTS = {field.name: field.default for field in fields(EntrySettings)}
GROUPS = {
    "failed": ("forget", "list", "retry", "show", "summary"),
    "schedule": ("clear-locks", "list", "pause", "resume", "run", "test", "work"),
    "config": ("check", "schema", "show"),
    "embedded": ("status", "stop"),
    "batch": ("cancel", "list", "retry", "show"),
    "locks": ("list", "release"),
}
COMMANDS = (
    "work", "status", "health", "restart", "pause", "resume", "down", "up", "dispatch", "run", "declared", "job", "clear",
    "cancel", *GROUPS, "doctor", "events", "init", "dashboard", "alerts", "metrics", "migrate", "queues", "peek", "wait",
    "help", "why", "move", "promote", "scale", "completion", "top", "dev",
)  # fmt: skip
ENDLESS = {("work",), ("dev",), ("alerts",), ("dashboard",), ("top",), ("schedule", "work")}
Word = str | int | float | Path
Parameter = Word | Mapping[str, Word | bool | Sequence[Word] | None]


class Schedule:
    """The entries of an app in declaration order, followed by the entries of the file."""

    def __init__(self, settings: Callable[[], Settings], registry: Registry, call: MakeCall) -> None:
        self._settings, self._registry, self._call = settings, registry, call
        self._scheduled: list[Scheduled] = []
        self._taken: Names = {}

    def __call__(self, what: Call[Any] | Callable[[], object], /, **words: Unpack[Words]) -> Scheduled:
        """Run this repeatedly: job.bind(...), an instance of a class job, a chain, or a sync or async function.

        Set how often with the methods of the result, or with cron= or every=. Raises DeclarationError.
        """
        if isinstance(what, Call | JobFunction):
            return self._add(lambda: job_task(what, self._registry), caller(), words)
        return self._add(lambda: call_task(what), caller(), words)

    def shell(self, line: str, /, *parameters: Parameter, **words: Unpack[Words]) -> Scheduled:
        """Let /bin/sh run this line. The parameters are quoted and appended: "a b", 7, {"days": 7, "force": True}."""
        return self._add(lambda: shell_task(line, parameters), caller(), words)

    def qd(self, line: str, /, *parameters: Parameter, **words: Unpack[Words]) -> Scheduled:
        """Run a qd command: "failed forget --older-than 30d --yes"."""
        return self._add(lambda: qd_task(line, parameters), caller(), words)

    def _add(self, make: Callable[[], tuple[Task, str]], origin: tuple[str, int], words: Words) -> Scheduled:
        try:
            task, own_name = make()
        except ValueError as error:
            raise wrong(origin, str(error)) from None
        scheduled = Scheduled(task, own_name, origin, self._taken)
        scheduled._take(words)
        self._scheduled.append(scheduled)
        return scheduled

    def entries(self) -> tuple[Entry, ...]:
        """All entries, checked. Raises DeclarationError, ConfigError."""
        settings = self._settings()
        of_file, found = list[Scheduled](), dict[str, Entry]()
        for table in settings.schedule.entries:
            check(table, settings)
            try:
                task = task_of(table, self._call)
            except (QdError, ValueError) as error:
                raise mistake(table, str(error)) from None
            of_file.append(builder_of(table, task, self._taken))
        for builder in (*self._scheduled, *of_file):
            entry = builder._entry(settings.schedule.timezone)
            if isinstance(entry.task, JobTask):
                place = entry.task.plan.options.connection
                try:
                    settings.connection(place)
                except ConfigError as error:
                    if (place or settings.default) in settings.connections:  # without a url: not the entry's mistake
                        raise
                    raise wrong(entry.origin, str(error)) from None
            other = found.setdefault(entry.name, entry)
            if other is not entry:
                fact = f"the entry at {shown(other.origin)} has the name '{entry.name}', too: rename one with .name()"
                raise wrong(entry.origin, fact)
        return tuple(found.values())

    def here(self, environment: str) -> tuple[Entry, ...]:
        """The entries that run in this environment (Settings.env). Raises as `entries`."""
        return tuple(entry for entry in self.entries() if entry.runs_in(environment))

    def __len__(self) -> int:
        """Number of entries declared in code."""
        return len(self._scheduled)


def check(table: EntrySettings, settings: Settings) -> Task:
    """Check what can be checked without the app. Returns what it runs; for a job or a function a stand-in.

    Raises DeclarationError.
    """
    kind = only_one(table, KINDS, "what it runs")
    only_one(table, ("cron", "every"), "when it runs")
    if wrong_keys := given(table, OF_RUNS if kind == "job" else OF_JOBS):
        why = "a job is run by a worker" if kind == "job" else "it is for jobs"
        raise mistake(table, f"{wrong_keys[0]} does not go with {kind}, {why}: leave it out")
    if table.append and not table.output_to:
        raise mistake(table, "append needs a file: add output_to")
    try:
        settings.connection(table.connection)
        task: Task = CallTask(print) if kind in ("job", "call") else task_of(table)
    except (QdError, ValueError) as error:
        raise mistake(table, str(error)) from None
    builder_of(table, task, {})._timing("UTC")
    return task


def task_of(table: EntrySettings, call: MakeCall | None = None) -> Task:
    """Raises ValueError; QdError if there is no such job, or it takes other arguments."""
    if table.shell:
        return shell_task(table.shell, ())[0]
    if table.qd:
        return qd_task(table.qd, ())[0]
    if table.call:
        return call_task(imported(table.call))[0]
    assert call is not None
    try:
        made = call(table.job, table.args.encode())
    except UnknownParameters as error:
        if not error.missing:
            raise
        wanted = ", ".join([f"{name} = ..." for name in error.missing])
        raise ValueError(f"job '{table.job}' needs {', '.join(error.missing)}: write args = {{{wanted}}}") from None
    options = {key: getattr(table, key) for key in ("queue", "connection") if getattr(table, key)}
    made = made.using(**options) if options else made
    made._to_send()
    return JobTask(made)


def imported(path: str) -> Callable[[], object]:
    """The function of MODULE:FUNCTION. Raises ValueError."""
    module, _, name = path.partition(":")
    if not module or not name:
        raise ValueError(f"call = '{path}' is not a function (write 'shop.stock:refill')")
    try:
        target = reduce(getattr, name.split("."), cast(Any, import_module(module)))
    except (Exception, SystemExit) as error:
        raise ValueError(f"call = '{path}' does not import: {type(error).__name__}: {error}") from None
    if isinstance(target, JobFunction):
        raise ValueError(f"call = '{path}' is a job: write job = '{target.name}'")
    return cast(Callable[[], object], target)


def builder_of(table: EntrySettings, task: Task, taken: Names) -> Scheduled:
    """Calls the method of each given key. Its errors name the table."""
    entry = Scheduled(task, table.name, (table.file, table.line), taken)
    entry._place = place_of(table)
    entry.name(table.name).missed(cast(Missed, table.missed))
    for word in given(table, ("cron", "every", "timezone")):
        getattr(entry, word)(getattr(table, word))
    if table.environments:
        entry.environments(*table.environments)
    for word in ("without_overlapping", "on_every_host", "even_in_maintenance_mode", "in_background"):
        if getattr(table, word):
            getattr(entry, word)()
    if table.timeout:
        entry.timeout(table.timeout)
    if table.output_to:
        entry.output_to(table.output_to, append=table.append)
    return entry


def only_one(table: EntrySettings, keys: Sequence[str], what: str) -> str:
    """The one of these keys that is given."""
    there = given(table, keys)
    if not there:
        raise mistake(table, f"nothing says {what}: add {', '.join(keys[:-1])} or {keys[-1]}")
    if len(there) > 1:
        raise mistake(table, f"{' and '.join(there)} both say {what}: keep one of them")
    return there[0]


def given(table: EntrySettings, keys: Sequence[str]) -> list[str]:
    return [key for key in keys if getattr(table, key) != DEFAULTS[key]]


def mistake(table: EntrySettings, fact: str) -> DeclarationError:
    return wrong((table.file, table.line), f"{place_of(table)}{fact}")


def place_of(table: EntrySettings) -> str:
    return f"[schedule.entries.{table.name}] "


def check_homes(entries: Iterable[Entry], settings: Settings, own: Mapping[str, Factory]) -> None:
    """Raises ConfigError for the first entry whose connection cannot take scheduled jobs. Does not connect."""
    for entry in entries:
        if not isinstance(entry.task, JobTask):
            continue
        try:
            check_ticks(settings, settings.connection(entry.task.plan.options.connection).name, own)
        except ConfigError as error:
            raise ConfigError(f"entry '{entry.name}' of the schedule: {error}") from None


# --- what an entry runs, and the name it has by default; mistakes raise ValueError


def check_command(words: Sequence[str]) -> None:
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


def job_task(call: Call[object] | JobFunction[..., object, object], registry: Registry) -> tuple[JobTask, str]:
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


def call_task(given: Callable[[], object]) -> tuple[CallTask, str]:
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


def shell_task(line: str, parameters: Sequence[Parameter]) -> tuple[ShellTask, str]:
    """A line for /bin/sh, with the parameters quoted and appended."""
    if not isinstance(line, str) or not line.strip() or "\0" in line:
        raise ValueError(f"{line!r} is not a command line (write 'pg_dump shop')")
    whole = " ".join([line.strip(), *map(shlex.quote, words(parameters))])
    return ShellTask(whole), of_command(whole)


def qd_task(line: str, parameters: Sequence[Parameter]) -> tuple[QdTask, str]:
    """A qd command, without `qd`, and parameters as further words."""
    try:
        found = shlex.split(line) if isinstance(line, str) else []
    except ValueError as error:
        raise ValueError(f"{line!r} cannot be read: {error}") from None
    found = found[1:] if found[:1] == ["qd"] else found
    if not found:
        raise ValueError(f"{line!r} is not a command of qd (write 'failed forget --older-than 30d --yes')")
    whole = (*found, *words(parameters))
    check_command(whole)
    return QdTask(whole), of_command(shlex.join(["qd", *whole]))


def words(parameters: Sequence[Parameter]) -> list[str]:
    """7 -> "7"; {"days": 7, "force": True, "not_this": None} -> "--days=7", "--force". A sequence repeats its option."""
    found: list[str] = []
    for parameter in parameters:
        if not isinstance(parameter, Mapping):
            found.append(word(parameter))
            continue
        for name, value in parameter.items():
            flag = name if name.startswith("-") else f"--{name}"
            if value is None or isinstance(value, bool):
                found += [flag] if value else []
            else:
                several = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
                found += [f"{flag}={word(each)}" for each in several]
    return found


def word(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float | Path) or "\0" in str(value):
        way = "give strings, numbers, or options as {'days': 7}"
        raise ValueError(f"{value!r} is not a parameter of a command: {way}")
    return str(value)
