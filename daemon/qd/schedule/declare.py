"""app.schedule: what declares entries.

app.schedule(report.bind(7)).weekdays().at("7:00")
app.schedule(clean_up, every=60)
app.schedule.shell("pg_dump", "shop", {"file": "/backup/shop.sql"}).daily()
app.schedule.qd("failed forget --older-than 30d", cron="0 3 * * 0")
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack

from qd.errors import ConfigError
from qd.jobs import Call, JobFunction, Registry
from qd.jobs.calls import caller
from qd.schedule import tasks
from qd.schedule.entry import Entry, JobTask, Task, meant_for
from qd.schedule.fields import shown, wrong
from qd.schedule.scheduled import Names, Scheduled, Words
from qd.schedule.tasks import Parameter

if TYPE_CHECKING:
    from qd.config import Settings
    from qd.schedule.file import MakeCall


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
        from qd.schedule import file  # producers do without

        settings = self._settings()
        said = [file.scheduled(each, settings, self._taken, self._call) for each in settings.schedule.entries]
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
