"""One run of a function or command, in a process forked by the scheduler; and how such processes are ended.

    Starting, output file, `before` -> function or command -> `after`, on_success | on_failure, Finished | Failed

No hook or listener changes how the run ended. If this process ends before it has reported everything, the scheduler sees
that on the run's record, and forks a second process for the rest (`aftermath`).

The record is a page of shared memory, so that the run cannot lose it by closing descriptors. The run writes, the scheduler
reads; user code may scribble over the page, so a record that makes no sense counts as not written.
"""

from __future__ import annotations

import errno
import inspect
import logging
import mmap
import os
import random
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from enum import IntEnum
from functools import partial
from typing import NamedTuple

import msgspec
from setproctitle import setproctitle

from qd import events
from qd.app import Qd
from qd.config.settings import Settings
from qd.log import JobRecords, Log, WaitingLogWriter, cut, encodable, to_stderr
from qd.process import fork, proc
from qd.process.exit_codes import signal_name
from qd.redaction import redact
from qd.schedule.entry import Act, CallTask, Entry, QdTask, ShellTask
from qd.store.base import decoded
from qd.traces import shown
from qd.worker import boot
from qd.worker.settle import LINE, full, short

KEPT = 4096  # bytes at the end of stderr that are kept
STDERR_LINE = 250  # characters of the last line of stderr that are reported
POLL_MS = 100  # between two checks whether the command has ended, if the kernel has no pidfd
SIZE = 1 << 16  # bytes of a record; memory is only used as far as it is written
HEAD = struct.Struct("<qqq")  # stage, monotonic ns at which it began, length of the outcome that follows
SECONDS = 1.0  # for finding all descendants; processes that appear faster die with the scheduler's group


def command_of(task: ShellTask | QdTask, settings: Settings) -> list[str]:
    """The argv of the task. A qd command uses the configuration of the scheduler."""
    if isinstance(task, ShellTask):
        return ["/bin/sh", "-c", task.line]
    config = ["--config", str(settings.file)] if settings.file else []
    app = ["--app", settings.app] if settings.app else []
    return [sys.executable, "-m", "qd", *config, *app, *task.words]


def run(words: Sequence[str], written: bool) -> tuple[int, str]:
    """Run the command to its end. Returns its exit code (below 0: a signal), and why it failed or "". Raises OSError.

    written: stderr is the file of output_to(), and is read from there; else it is forwarded through this process.
    """
    start = 0
    if written:
        with suppress(OSError):  # a pipe
            start = os.lseek(2, 0, os.SEEK_END)
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stderr=None if written else subprocess.PIPE,
        preexec_fn=partial(fork.die_with, os.getpid()),  # if this run is killed, so is the command
    )
    last = b"" if process.stderr is None else forward_stderr(process, process.stderr.fileno())
    code = process.wait()
    if not code:
        return code, ""
    text = redact((read_from(start) if written else last).decode("utf-8", "replace"))
    line = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
    ended = f"exit code {code}" if code > 0 else f"signal {-code} ({signal_name(-code)})"
    return code, f"{ended}: {cut(line, STDERR_LINE)}" if line else ended


def read_from(start: int) -> bytes:
    """The end of the file that stderr is, from `start` at the earliest; empty if it cannot be read."""
    with suppress(OSError):
        size = os.fstat(2).st_size
        path = os.open("/dev/fd/2", os.O_RDONLY | os.O_NONBLOCK)
        try:
            return os.pread(path, KEPT, max(start, size - KEPT))
        finally:
            os.close(path)
    return b""


def forward_stderr(process: subprocess.Popen[bytes], pipe: int) -> bytes:
    """Forward the stderr of the process until it has ended. Returns the end of it."""
    last, ended = b"", None
    with suppress(AttributeError, OSError):  # the kernel has no pidfd
        ended = os.pidfd_open(process.pid)
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    if ended is not None:
        poll.register(ended, select.POLLIN)
    while True:
        ready = [fd for fd, _ in poll.poll(None if ended is not None else POLL_MS)]
        if pipe in ready:
            part = os.read(pipe, 65536)
            if not part:
                return last
            to_stderr(part)
            last = (last + part)[-KEPT:]
        elif process.poll() is not None:
            forward_rest(pipe)
            return last


def forward_rest(pipe: int) -> None:
    """The command has ended, but its children may still write: a copy of this process forwards that, so that the children
    are not ended by a closed pipe."""

    def forward() -> int:
        while part := os.read(pipe, 65536):
            to_stderr(part)
        return 0

    with suppress(OSError):
        fork.fork(forward, own_group=False, die_with_parent=False)


class Stage(IntEnum):
    BEFORE = 0  # the event Starting, opening the output, `before`
    BODY = 1  # the function or the command
    AFTER = 2  # the outcome is known; `after`, on_success or on_failure, the events
    OVER = 3


class Outcome(msgspec.Struct, frozen=True):
    """How a function or command ended. runtime: seconds. code: exit code, below 0 a signal, None for functions. error: why
    it failed, or ""."""

    runtime: float
    code: int | None = None
    error: str = ""
    trace: str | None = None


_decoder = msgspec.json.Decoder(Outcome)


class RunRecord:
    def __init__(self) -> None:
        self._page = mmap.mmap(-1, SIZE)
        self._made = time.monotonic_ns()
        self.enter(Stage.BEFORE)

    def enter(self, stage: Stage, length: int = 0) -> None:
        """Set the stage. length: of the outcome that was written, 0: unchanged."""
        HEAD.pack_into(self._page, 0, stage, time.monotonic_ns(), length or self._head()[2])

    def settle(self, outcome: Outcome) -> None:
        """Write the outcome and begin AFTER. If it does not fit on the page, its trace is dropped."""
        text = encoded(outcome)
        if len(text) > SIZE - HEAD.size:
            text = encoded(msgspec.structs.replace(outcome, trace=None))
        self._page[HEAD.size : HEAD.size + len(text)] = text
        self.enter(Stage.AFTER, len(text))

    @property
    def stage(self) -> Stage:
        found = self._head()[0]
        return Stage(found) if found in list(Stage) else Stage.BODY

    @property
    def since(self) -> int:
        """Monotonic ns at which the stage began."""
        found = self._head()[1]
        return found if self._made <= found <= time.monotonic_ns() else self._made

    @property
    def outcome(self) -> Outcome | None:
        """None if the function or command had not ended."""
        length = self._head()[2]
        if not 0 < length <= SIZE - HEAD.size:
            return None
        return decoded(_decoder, self._page[HEAD.size : HEAD.size + length])

    def close(self) -> None:
        self._page.close()

    def _head(self) -> tuple[int, int, int]:
        found: tuple[int, int, int] = HEAD.unpack_from(self._page, 0)
        return found


def encoded(outcome: Outcome) -> bytes:
    """User texts may contain surrogates, which JSON cannot (from a file name, for example)."""
    plain = {"error": encodable(outcome.error), "trace": outcome.trace and encodable(outcome.trace)}
    return msgspec.json.encode(msgspec.structs.replace(outcome, **plain))


class RunContext(NamedTuple):
    """What every process needs that a scheduler forks. token: the master's, or a text of the caller's; marks what they
    start. forked: called first in each, to close the scheduler's connections."""

    app: Qd
    settings: Settings
    log: Log
    token: str = ""
    forked: Callable[[], object] = bool


class Runner:
    """owner: QD_OWNER of this run."""

    def __init__(self, context: RunContext, entry: Entry, tick: float, record: RunRecord, owner: str) -> None:
        self.app, self.settings, self.log, _, self._forked = context
        self.entry, self.tick, self.record, self.owner = entry, tick, record, owner
        self._pid = 0

    def run(self) -> int:
        """All of it, in the forked process. Returns the exit code."""
        self.begin(f"qd: run {self.entry.name} since {time.strftime('%H:%M:%S')}")
        self._emit(events.ScheduledTaskStarting, self.entry.name, self.tick)
        refused = self._redirect()
        self._hooks("before", self.entry.before)
        self.record.enter(Stage.BODY)
        outcome = Outcome(0.0, None, refused) if refused else self._perform()
        self._exit_copy(int(bool(outcome.error)))
        self.record.settle(outcome)
        self._after(outcome)
        return int(bool(outcome.error))

    def aftermath(self, outcome: Outcome) -> int:
        """In a second process, if the run's own ended before it had reported its end."""
        self.begin(f"qd: run {self.entry.name} since {time.strftime('%H:%M:%S')}")
        self.record.enter(Stage.AFTER)
        self._redirect(append=True)
        self._after(outcome)
        return 0

    def begin(self, title: str) -> None:
        """First steps of a process forked by the scheduler."""
        self._forked()
        self._pid = os.getpid()
        os.environ["QD_OWNER"] = self.owner
        setproctitle(title)
        random.seed()
        boot.own_stdin()
        proc.oom_score_adj(boot.OOM_SCORE)
        self.app._listeners.worker = self._pid
        with suppress(OSError):  # keep a descriptor for the log, as descriptor 2 may be redirected or closed
            self.log = self.log.of("run", WaitingLogWriter(os.dup(2)))
        root = logging.getLogger()
        for handler in [each for each in root.handlers if isinstance(each, JobRecords)]:
            root.removeHandler(handler)
        boot.log_job_records(self.log, lambda: {"entry": self.entry.name})
        boot.print_by_line()

    # -- steps

    def _redirect(self, append: bool = False) -> str:
        """Redirect stdout and stderr to the entry's file. Returns why that failed, or ""."""
        if self.entry.output is None:
            return ""
        path = self.settings.root / self.entry.output
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (0 if append or self.entry.append else os.O_TRUNC)
        try:
            fd = os.open(path, flags | os.O_NONBLOCK, 0o666)  # a FIFO without a reader would block
        except OSError as error:
            why = "no process reads this pipe" if error.errno == errno.ENXIO else error.strerror
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
            code = 1
            with suppress(Exception):  # it prints a text as Python does, and stderr may be closed
                code = fork.code_of(leaving)
            error = cut(f"left with sys.exit({leaving.code!r})", LINE) if code else ""
        except BaseException as raised:
            self._print_in_copy(raised)
            error, trace = short(raised), full(raised, self.log)
        return Outcome(time.monotonic() - began, code, error, trace)

    def _act(self) -> tuple[int | None, str]:
        task = self.entry.task
        if isinstance(task, CallTask):
            call(task.function)
            return None, ""
        assert isinstance(task, ShellTask | QdTask)
        return run(command_of(task, self.settings), self.entry.output is not None)

    def _after(self, outcome: Outcome) -> None:
        entry, failed = self.entry, bool(outcome.error)
        self._hooks("after", entry.after)
        self._hooks("on_failure" if failed else "on_success", entry.on_failure if failed else entry.on_success)
        facts = (entry.name, self.tick, outcome.runtime)
        if failed:
            self._emit(events.ScheduledTaskFailed, *facts, outcome.error, outcome.code)
        else:
            self._emit(events.ScheduledTaskFinished, *facts)
        if entry.background:
            self._emit(events.ScheduledBackgroundTaskFinished, *facts, outcome.code)
        self.record.enter(Stage.OVER)

    # -- user code

    def _hooks(self, kind: str, hooks: Iterable[Act]) -> None:
        for hook in hooks:
            try:
                call(hook)
            except BaseException as error:
                self._print_in_copy(error)
                self._exit_copy(1)
                self._log_failed(kind, error)
            self._exit_copy(0)

    def _emit(self, event: Callable[..., events.Event], *facts: object) -> None:
        if not self.app._listeners.has(event):  # type: ignore[arg-type]
            return
        try:
            self.app._listeners.emit(event(*facts))
        except BaseException as error:
            self._exit_copy(1)
            self._log_failed("a listener", error)
        self._exit_copy(0)

    def _log_failed(self, hook: str, error: BaseException) -> None:
        fields = {"entry": self.entry.name, "hook": hook, "error": short(error), "trace": full(error, self.log)}
        self.log.error("schedule.hook_failed", **fields)

    def _exit_copy(self, code: int) -> None:
        """Exit if this is a copy that user code has forked and that returned from it."""
        if os.getpid() != self._pid:
            fork.leave(code)

    def _print_in_copy(self, error: BaseException) -> None:
        if os.getpid() != self._pid and not isinstance(error, SystemExit):
            sys.stderr.write(shown(error))


def call(function: Act) -> None:
    """Call it, run an awaitable to its end, and flush what was printed."""
    try:
        result = function()
        if inspect.isawaitable(result):
            import asyncio  # slow; only needed for async functions

            asyncio.run(awaited(result))
    finally:
        fork.flush_output()


async def awaited(result: Awaitable[object]) -> None:
    await result


def waited(pid: int) -> int | None:
    """The wait status, or None if the process still runs."""
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # foreign code in this process has waited for it
        return 0
    return status if found else None


def end_trees(pids: Collection[int]) -> None:
    """SIGKILL children and their descendants. They are stopped first, so that none forks meanwhile, and none is
    reparented before it is found."""
    stopped, until = set[int](), time.monotonic() + SECONDS
    while (found := {*pids, *descendants(pids)} - stopped) and time.monotonic() < until:
        for each in found:
            send(each, signal.SIGSTOP)
        stopped |= found
    for each in stopped:
        send(each, signal.SIGKILL)


def descendants(pids: Collection[int]) -> set[int]:
    import psutil  # slow; only needed here

    found = set[int]()
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            found.update(child.pid for child in psutil.Process(pid).children(recursive=True))
    return found


def send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
