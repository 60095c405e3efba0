"""app.schedule: what declares entries.

app.schedule(report.bind(7)).weekdays().at("7:00")
app.schedule(clean_up, every=60)
app.schedule.shell("pg_dump", "shop", {"file": "/backup/shop.sql"}).daily()
app.schedule.qd("failed forget --older-than 30d", cron="0 3 * * 0")

The entries of qd.toml, [schedule.entries.NAME]: looked at, and made into the same builders as those of the code.

Whether the jobs of entries can be sent where they are to go, asked before a scheduler starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import reduce
from importlib import import_module
from typing import TYPE_CHECKING, Any, Unpack, cast

from qd.config.settings import EntrySettings, Settings
from qd.drivers.connections import check_ticks
from qd.errors import ConfigError, DeclarationError, QdError, UnknownParameters
from qd.jobs.job import Call, JobFunction, caller
from qd.jobs.registry import Registry
from qd.schedule import tasks
from qd.schedule.builder import Names, Scheduled, Words
from qd.schedule.entry import CallTask, Entry, JobTask, Missed, Task, meant_for
from qd.schedule.frequencies import shown, wrong
from qd.schedule.tasks import Parameter

if TYPE_CHECKING:
    from qd.drivers.base import Factory


class Schedule:
    """The entries of an app, in the order in which they were declared; those of the file behind them."""

    def __init__(self, settings: Callable[[], Settings], registry: Registry, call: MakeCall) -> None:
        """call: makes the call of a job, by its name and arguments."""
        self._settings, self._registry, self._call = settings, registry, call
        self._scheduled: list[Scheduled] = []
        self._taken: Names = {}

    def __call__(self, what: Call[Any] | Callable[[], object], /, **words: Unpack[Words]) -> Scheduled:
        """Let this run again and again: job.bind(...), an instance of a class job, a chain, or a function, sync or async.
        How often is said behind it, or in words: cron=, every=. Raises DeclarationError."""
        if isinstance(what, Call | JobFunction):
            return self._add(lambda: tasks.job(what, self._registry), caller(), words)
        return self._add(lambda: tasks.function(what), caller(), words)

    def shell(self, line: str, /, *parameters: Parameter, **words: Unpack[Words]) -> Scheduled:
        """Let /bin/sh run this line, as it is. What stands behind it is quoted: "a b", 7, {"days": 7, "force": True}."""
        return self._add(lambda: tasks.shell(line, parameters), caller(), words)

    def qd(self, line: str, /, *parameters: Parameter, **words: Unpack[Words]) -> Scheduled:
        """Run a command of qd's: "failed forget --older-than 30d"."""
        return self._add(lambda: tasks.qd(line, parameters), caller(), words)

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
        """All of them, checked. Raises DeclarationError, ConfigError."""

        settings = self._settings()
        said = [scheduled(each, settings, self._taken, self._call) for each in settings.schedule.entries]
        found: dict[str, Entry] = {}
        for builder in (*self._scheduled, *said):
            entry = builder._entry(settings.schedule.timezone)
            if isinstance(entry.task, JobTask):
                check_connection(entry, entry.task, settings)
            other = found.setdefault(entry.name, entry)
            if other is not entry:
                raise wrong(
                    entry.origin,
                    f"the entry at {shown(other.origin)} is called '{entry.name}', too: give one of them another name "
                    "with .name('nightly')",
                )
        return tuple(found.values())

    def here(self, environment: str) -> tuple[Entry, ...]:
        """Those that run in this environment: Settings.env. Raises as entries."""
        return meant_for(environment, self.entries())

    def __len__(self) -> int:
        """Those of the code."""
        return len(self._scheduled)


def check_connection(entry: Entry, task: JobTask, settings: Settings) -> None:
    """Raises DeclarationError: its job is to go to a connection that is not configured."""
    try:
        settings.connection(task.plan.options.connection)
    except ConfigError as error:
        raise wrong(entry.origin, str(error)) from None


MakeCall = Callable[[str, bytes], Call[Any]]
KINDS = ("job", "call", "shell", "qd")
OF_JOBS = ("args", "queue", "connection")
OF_RUNS = ("in_background", "timeout", "output_to", "append")
DEFAULTS = {field.name: field.default for field in fields(EntrySettings)}


def scheduled(said: EntrySettings, settings: Settings, taken: Names, call: MakeCall) -> Scheduled:
    """Raises DeclarationError. call: makes the call of a job of the app, by its name and arguments."""
    look(said, settings)
    try:
        task = task_of(said, call)
    except (QdError, ValueError) as error:
        raise mistake(said, str(error)) from None
    return spoken(begun(said, task, taken), said)


def look(said: EntrySettings, settings: Settings) -> Task:
    """All that can be seen without the app, and what it runs; of a job and a function something that stands for them.
    Raises DeclarationError."""
    kind = only_one(said, KINDS, "what it runs")
    only_one(said, ("cron", "every"), "when it runs")
    if strangers := given(said, OF_RUNS if kind == "job" else OF_JOBS):
        why = "the run of a job is a worker's" if kind == "job" else "that is about jobs"
        raise mistake(said, f"{strangers[0]} does not go with {kind}, {why}: leave it out")
    if said.append and not said.output_to:
        raise mistake(said, "append says how to write, but nothing says where: add output_to")
    try:
        settings.connection(said.connection)
        task: Task = CallTask(print) if kind in ("job", "call") else task_of(said)
    except (QdError, ValueError) as error:
        raise mistake(said, str(error)) from None
    spoken(begun(said, task, {}), said)._timing("UTC")
    return task


def task_of(said: EntrySettings, call: MakeCall | None = None) -> Task:
    """Raises ValueError, and QdError: no such job, or other arguments than it takes."""
    if said.shell:
        return tasks.shell(said.shell, ())[0]
    if said.qd:
        return tasks.qd(said.qd, ())[0]
    if said.call:
        return tasks.function(found(said.call))[0]
    assert call is not None
    try:
        made = call(said.job, said.args.encode())
    except UnknownParameters as error:
        if not error.missing:
            raise
        wanted = ", ".join([f"{name} = ..." for name in error.missing])
        raise ValueError(f"job '{said.job}' needs {', '.join(error.missing)}: write args = {{{wanted}}}") from None
    options = {key: getattr(said, key) for key in ("queue", "connection") if getattr(said, key)}
    made = made.using(**options) if options else made
    made._to_send()
    return JobTask(made)


def found(path: str) -> Callable[[], object]:
    """The function of MODULE:FUNCTION. Raises ValueError."""
    module, _, name = path.partition(":")
    if not module or not name:
        raise ValueError(f"call = '{path}' is no function (written 'shop.stock:refill')")
    try:
        target = reduce(getattr, name.split("."), cast(Any, import_module(module)))
    except (Exception, SystemExit) as error:
        raise ValueError(f"call = '{path}' does not import: {type(error).__name__}: {error}") from None
    if isinstance(target, JobFunction):
        raise ValueError(f"call = '{path}' is a job: write job = '{target.name}'")
    return cast(Callable[[], object], target)


def begun(said: EntrySettings, task: Task, taken: Names) -> Scheduled:
    """What is wrong with it names its table."""
    entry = Scheduled(task, said.name, (said.file, said.line), taken)
    entry._place = place_of(said)
    return entry


def spoken(entry: Scheduled, said: EntrySettings) -> Scheduled:
    """The words of the code, one for each key that is given."""
    entry.name(said.name).missed(cast(Missed, said.missed))
    for word in given(said, ("cron", "every", "timezone")):
        getattr(entry, word)(getattr(said, word))
    if said.environments:
        entry.environments(*said.environments)
    for word in ("without_overlapping", "on_every_host", "even_in_maintenance_mode", "in_background"):
        if getattr(said, word):
            getattr(entry, word)()
    if said.timeout:
        entry.timeout(said.timeout)
    if said.output_to:
        entry.output_to(said.output_to, append=said.append)
    return entry


def only_one(said: EntrySettings, keys: Sequence[str], what: str) -> str:
    """The one of these keys that is given."""
    there = given(said, keys)
    listed = f"{', '.join(keys[:-1])} or {keys[-1]}"
    if not there:
        raise mistake(said, f"nothing says {what}: add {listed}")
    if len(there) > 1:
        raise mistake(said, f"{' and '.join(there)} both say {what}: keep one of them")
    return there[0]


def given(said: EntrySettings, keys: Sequence[str]) -> list[str]:
    return [key for key in keys if getattr(said, key) != DEFAULTS[key]]


def mistake(said: EntrySettings, fact: str) -> DeclarationError:
    return wrong((said.file, said.line), f"{place_of(said)}{fact}")


def place_of(said: EntrySettings) -> str:
    return f"[schedule.entries.{said.name}] "


def check_homes(entries: Iterable[Entry], settings: Settings, own: Mapping[str, Factory]) -> None:
    """Raises ConfigError naming the first whose connection takes no job of the schedule. Nothing is connected."""
    for entry in entries:
        if not isinstance(entry.task, JobTask):
            continue
        try:
            check_ticks(settings, settings.connection(entry.task.plan.options.connection).name, own)
        except ConfigError as error:
            raise ConfigError(f"entry '{entry.name}' of the schedule: {error}") from None
