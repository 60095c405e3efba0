"""One run of a function or command, in a process of its own that its scheduler has forked.

    Starting, the output's file, `before` -> the function or command -> `after`, on_success | on_failure, Finished | Failed

No hook and no listener changes how the run ended. Whatever ends this process before it has told all, the scheduler sees
on the record, and has a second process tell the rest (`aftermath`).
"""

from __future__ import annotations

import errno
import inspect
import logging
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress

from setproctitle import setproctitle

from qd import events
from qd.app import Qd
from qd.config import Settings
from qd.log import JobRecords, Log, Patient, cut
from qd.process import child, vitals
from qd.schedule import CallTask, Entry, QdTask, ShellTask
from qd.schedule.entry import Act
from qd.scheduler import command
from qd.scheduler.record import Outcome, Record, Stage, plain_text
from qd.traces import shown
from qd.worker import boot
from qd.worker.settle import LINE, full, short


class Runner:
    """log: the scheduler's; owner: QD_OWNER of this run."""

    def __init__(
        self, app: Qd, settings: Settings, log: Log, entry: Entry, tick: float, record: Record, owner: str
    ) -> None:
        self.app, self.settings, self.log = app, settings, log
        self.entry, self.tick, self.record, self.owner = entry, tick, record, owner
        self._pid = 0

    def run(self) -> int:
        """In the forked process: all of it. Returns its exit code."""
        self.begin(f"qd: run {self.entry.name} since {time.strftime('%H:%M:%S')}")
        self._tell(events.ScheduledTaskStarting, self.entry.name, self.tick)
        refused = self._redirect()
        self._hooks("before", self.entry.before)
        self.record.enter(Stage.BODY)
        outcome = Outcome(0.0, None, refused) if refused else self._perform()
        self._only_here(int(bool(outcome.error)))
        self.record.settle(outcome)
        self._after(outcome)
        return int(bool(outcome.error))

    def aftermath(self, outcome: Outcome) -> int:
        """In another process, when the one of the run is gone and had not told how it ended."""
        self.begin(f"qd: run {self.entry.name} since {time.strftime('%H:%M:%S')}")
        self.record.enter(Stage.AFTER)
        self._redirect(append=True)
        self._after(outcome)
        return 0

    def begin(self, title: str) -> None:
        """First steps in a process that the scheduler has forked."""
        self._pid = os.getpid()
        os.environ["QD_OWNER"] = self.owner
        setproctitle(title)
        random.seed()
        boot.own_stdin()
        vitals.oom_score_adj(boot.OOM_SCORE)
        self.app._listeners.worker = self._pid
        self._own_log()
        boot.print_by_line()

    def _own_log(self) -> None:
        """Our own lines go where they went, whatever becomes of descriptor 2."""
        with suppress(OSError):
            self.log = self.log.of("run", Patient(os.dup(2)))
        root = logging.getLogger()
        for handler in [each for each in root.handlers if isinstance(each, JobRecords)]:
            root.removeHandler(handler)
        boot.log_job_records(self.log, self._named)

    def _named(self) -> Mapping[str, object]:
        return {"entry": self.entry.name}

    # -- its parts

    def _redirect(self, append: bool = False) -> str:
        """What is printed from now on goes into the entry's file. Returns why it cannot."""
        if self.entry.output is None:
            return ""
        path = self.settings.root / self.entry.output
        how = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (0 if append or self.entry.append else os.O_TRUNC)
        try:
            fd = os.open(path, how | os.O_NONBLOCK, 0o666)  # a FIFO that nobody reads would hold us for ever
        except OSError as error:
            why = "nobody reads this pipe" if error.errno == errno.ENXIO else error.strerror
            return f"its output cannot be written to {path}: {why}"
        os.set_blocking(fd, True)
        for standard in (1, 2):
            os.dup2(fd, standard)
        os.close(fd)
        return ""

    def _perform(self) -> Outcome:
        began = time.monotonic()
        code: int | None = None
        error, trace = "", None
        try:
            code, error = self._act()
        except SystemExit as leaving:
            code = exit_code(leaving)
            error = cut(f"left with sys.exit({leaving.code!r})", LINE) if code else ""
        except BaseException as raised:
            self._print_of_copy(raised)
            error, trace = plain_text(short(raised)), full(raised, self.log)
        return Outcome(time.monotonic() - began, code, error, trace)

    def _act(self) -> tuple[int | None, str]:
        task = self.entry.task
        if isinstance(task, CallTask):
            called(task.function)
            return None, ""
        assert isinstance(task, ShellTask | QdTask)
        return command.run(command.words_of(task, self.settings), self.entry.output is not None)

    def _after(self, outcome: Outcome) -> None:
        entry, failed = self.entry, bool(outcome.error)
        self._hooks("after", entry.after)
        self._hooks("on_failure" if failed else "on_success", entry.on_failure if failed else entry.on_success)
        told = (entry.name, self.tick, outcome.runtime)
        if failed:
            self._tell(events.ScheduledTaskFailed, *told, outcome.error, outcome.code)
        else:
            self._tell(events.ScheduledTaskFinished, *told)
        if entry.background:
            self._tell(events.ScheduledBackgroundTaskFinished, *told, outcome.code)
        self.record.enter(Stage.OVER)

    # -- what is not ours

    def _hooks(self, kind: str, hooks: Iterable[Act]) -> None:
        for hook in hooks:
            try:
                called(hook)
            except BaseException as error:
                self._print_of_copy(error)
                self._only_here(1)
                fields = {"entry": self.entry.name, "hook": kind, "error": short(error), "trace": full(error, self.log)}
                self.log.error("schedule.hook_failed", **fields)
            self._only_here(0)

    def _tell(self, event: Callable[..., events.Event], *facts: object) -> None:
        if not self.app._listeners.has(event):  # type: ignore[arg-type]
            return
        try:
            self.app._listeners.emit(event(*facts))
        except BaseException as error:
            self._only_here(1)
            fields = {
                "entry": self.entry.name,
                "hook": "a listener",
                "error": short(error),
                "trace": full(error, self.log),
            }
            self.log.error("schedule.hook_failed", **fields)
        self._only_here(0)

    def _only_here(self, code: int) -> None:
        """A copy of this process that the function has forked, and that came back from it, ends here."""
        if os.getpid() != self._pid:
            child.leave(code)

    def _print_of_copy(self, error: BaseException) -> None:
        if os.getpid() != self._pid and not isinstance(error, SystemExit):
            sys.stderr.write(shown(error))


def exit_code(leaving: SystemExit) -> int:
    """As Python makes it; a text is printed."""
    try:
        return child.code_of(leaving)
    except Exception:  # stderr is closed
        return 1


def called(function: Act) -> None:
    """Call it; what is awaitable is run to its end. What it has printed is out then."""
    try:
        result = function()
        if inspect.isawaitable(result):
            run_async(result)
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()


def run_async(result: Awaitable[object]) -> None:
    """What it raises is told from its own code on, without the event loop's."""
    import asyncio  # only who has async functions pays for it

    try:
        asyncio.run(awaited(result))
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code is not awaited.__code__:
            trace = trace.tb_next
        error.__traceback__ = trace and trace.tb_next
        raise


async def awaited(result: Awaitable[object]) -> None:
    await result
