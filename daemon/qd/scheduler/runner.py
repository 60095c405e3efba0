"""A shell line or a command of qd's as a subprocess of its run, and the last that it wrote to stderr.

What a run tells its scheduler: a page of memory that both see, so that no closed descriptor loses it.

The run writes, the scheduler reads. What the function's own code may have scribbled over it is never a reason to fall: it
counts as not told.

One run of a function or command, in a process of its own that its scheduler has forked.

    Starting, the output's file, `before` -> the function or command -> `after`, on_success | on_failure, Finished | Failed

No hook and no listener changes how the run ended. Whatever ends this process before it has told all, the scheduler sees
on the record, and has a second process tell the rest (`aftermath`).

Ending a process with everything that it has started.
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
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from functools import partial

import msgspec
from setproctitle import setproctitle

from qd import events
from qd.app import Qd
from qd.config.settings import Settings
from qd.keeper import dead_workers
from qd.log import JobRecords, Log, WaitingLogWriter, cut
from qd.process import fork, proc
from qd.process.exit_codes import signal_name
from qd.redaction import redact
from qd.schedule.entry import Act, CallTask, Entry, QdTask, ShellTask
from qd.traces import shown
from qd.worker import boot
from qd.worker.settle import LINE as settle_LINE
from qd.worker.settle import full, short

KEPT = 4096  # bytes of what it wrote last
LINE = 250  # characters of its last line that are told
LOOK = 100  # ms between two looks whether it has ended, where no descriptor tells


def words_of(task: ShellTask | QdTask, settings: Settings) -> list[str]:
    """What is executed. A command of qd's reads the configuration that the scheduler has read."""
    if isinstance(task, ShellTask):
        return ["/bin/sh", "-c", task.line]
    config = ["--config", str(settings.file)] if settings.file else []
    app = ["--app", settings.app] if settings.app else []
    return [sys.executable, "-m", "qd", *config, *app, *task.words]


def run(words: Sequence[str], written: bool) -> tuple[int, str]:
    """Run it to its end. written: stderr is a file of the entry's own (output_to), and is read from there; else it passes
    through here. Returns its exit code, below 0 a signal, and how it failed, "" when it did not. Raises OSError."""
    start = file_end() if written else 0
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stderr=None if written else subprocess.PIPE,
        preexec_fn=partial(fork.die_with, os.getpid()),  # whatever kills this run kills the command, too
    )
    last = b"" if process.stderr is None else passed_on(process, process.stderr.fileno())
    code = process.wait()
    return code, how(code, read_from(start) if written else last)


def how(code: int, last: bytes) -> str:
    if not code:
        return ""
    said = last_line(last)
    ended = f"exit code {code}" if code > 0 else f"signal {-code} ({signal_name(-code)})"
    return f"{ended}: {said}" if said else ended


def last_line(text: bytes) -> str:
    lines = [line.strip() for line in redact(text.decode("utf-8", "replace")).splitlines()]
    return cut(next((line for line in reversed(lines) if line), ""), LINE)


def file_end() -> int:
    with suppress(OSError):
        return os.lseek(2, 0, os.SEEK_END)
    return 0


def read_from(start: int) -> bytes:
    """The end of the file that stderr is, no further back than `start`. What cannot be read says nothing."""
    with suppress(OSError):
        size = os.fstat(2).st_size
        path = os.open("/dev/fd/2", os.O_RDONLY | os.O_NONBLOCK)
        try:
            return os.pread(path, KEPT, max(start, size - KEPT))
        finally:
            os.close(path)
    return b""


def passed_on(process: subprocess.Popen[bytes], pipe: int) -> bytes:
    """Hand on to stderr what the process writes there, until it has ended. Returns the last of it."""
    last, ended = b"", pid_descriptor(process.pid)
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    if ended is not None:
        poll.register(ended, select.POLLIN)
    while True:
        ready = [fd for fd, _ in poll.poll(None if ended is not None else LOOK)]
        if pipe in ready:
            part = os.read(pipe, 65536)
            if not part:
                return last
            write_all(part)
            last = (last + part)[-KEPT:]
        elif process.poll() is not None:
            pass_on_later(pipe)
            return last


def pid_descriptor(pid: int) -> int | None:
    """Readable when the process has ended. None: this kernel has no such thing."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def pass_on_later(pipe: int) -> None:
    """The command has ended and has left something running that still may write: a copy of this process goes on handing that
    on, so that it is not ended by a closed pipe."""

    def go_on() -> int:
        while part := os.read(pipe, 65536):
            write_all(part)
        return 0

    with suppress(OSError):
        fork.fork(go_on, own_group=False, die_with_parent=False)


def write_all(part: bytes) -> None:
    with suppress(OSError):
        while part:
            part = part[os.write(2, part) :]


SIZE = 1 << 16  # bytes; used as far as it is written
HEAD = struct.Struct("<qqq")  # stage, monotonic ns at which it began, bytes of the outcome behind


class Stage(IntEnum):
    BEFORE = 0  # the event Starting, opening the output, `before`
    BODY = 1  # the function or the command
    AFTER = 2  # the outcome is known; `after`, on_success or on_failure, the events
    OVER = 3


class Outcome(msgspec.Struct, frozen=True):
    """How a function or command ended. runtime: seconds. code: the exit code, below 0 a signal, None where there is none.
    error: in words, "" when it ended well."""

    runtime: float
    code: int | None = None
    error: str = ""
    trace: str | None = None


class RunRecord:
    def __init__(self) -> None:
        self._page = mmap.mmap(-1, SIZE)
        self._made = time.monotonic_ns()
        self.enter(Stage.BEFORE)

    def enter(self, stage: Stage, length: int = 0) -> None:
        """The run is in this stage from now on. length: of the outcome that has been written, 0: as before."""
        HEAD.pack_into(self._page, 0, stage, time.monotonic_ns(), length or self._head()[2])

    def settle(self, outcome: Outcome) -> None:
        """The function or command has ended like this; `AFTER` begins. An outcome too long for the page loses its trace."""
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
        """The monotonic ns at which the stage began."""
        found = self._head()[1]
        return found if self._made <= found <= time.monotonic_ns() else self._made

    @property
    def outcome(self) -> Outcome | None:
        """None: the function or command had not ended."""
        length = self._head()[2]
        if not 0 < length <= SIZE - HEAD.size:
            return None
        try:
            return msgspec.json.decode(self._page[HEAD.size : HEAD.size + length], type=Outcome)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None

    def close(self) -> None:
        self._page.close()

    def _head(self) -> tuple[int, int, int]:
        found: tuple[int, int, int] = HEAD.unpack_from(self._page, 0)
        return found


def encoded(outcome: Outcome) -> bytes:
    """A text of the user's may have in it what is no text (a file name, say)."""
    plain = {"error": plain_text(outcome.error), "trace": outcome.trace and plain_text(outcome.trace)}
    return msgspec.json.encode(msgspec.structs.replace(outcome, **plain))


def plain_text(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


class Runner:
    """log: the scheduler's; owner: QD_OWNER of this run."""

    def __init__(
        self, app: Qd, settings: Settings, log: Log, entry: Entry, tick: float, record: RunRecord, owner: str
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
        proc.oom_score_adj(boot.OOM_SCORE)
        self.app._listeners.worker = self._pid
        self._own_log()
        boot.print_by_line()

    def _own_log(self) -> None:
        """Our own lines go where they went, whatever becomes of descriptor 2."""
        with suppress(OSError):
            self.log = self.log.of("run", WaitingLogWriter(os.dup(2)))
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
            error = cut(f"left with sys.exit({leaving.code!r})", settle_LINE) if code else ""
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
        return run(words_of(task, self.settings), self.entry.output is not None)

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
            fork.leave(code)

    def _print_of_copy(self, error: BaseException) -> None:
        if os.getpid() != self._pid and not isinstance(error, SystemExit):
            sys.stderr.write(shown(error))


def exit_code(leaving: SystemExit) -> int:
    """As Python makes it; a text is printed."""
    try:
        return fork.code_of(leaving)
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


SECONDS = 1.0  # for finding all of it: what starts processes faster than that goes with the scheduler's group


def end_trees(pids: Collection[int]) -> None:
    """SIGKILL children of ours and their descendants. They are stopped first, so that none starts another meanwhile, and
    none loses the parent by which it is found."""
    stopped, until = set[int](), time.monotonic() + SECONDS
    while (found := {*pids, *descendants(pids)} - stopped) and time.monotonic() < until:
        for each in found:
            send(each, signal.SIGSTOP)
        stopped |= found
    for each in stopped:
        send(each, signal.SIGKILL)


def end_marked(owner: str, began: int) -> None:
    """SIGKILL what carries this QD_OWNER and started at the monotonic ns `began` or later, whoever its parent is by now."""
    dead_workers.end_of_job(owner, began, lambda: None)


def end_all_marked(token: str) -> None:
    """The same of every run of this process."""
    dead_workers.end_of_runs(token, os.getpid(), lambda: None)


def descendants(pids: Collection[int]) -> set[int]:
    import psutil  # only where something is ended

    children: dict[int, list[int]] = {}
    for process in psutil.process_iter(["ppid"]):
        children.setdefault(process.info["ppid"], []).append(process.pid)
    found, look = set[int](), list(pids)
    while look:
        new = [child for child in children.get(look.pop(), ()) if child not in found]
        found.update(new)
        look += new
    return found


def send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
