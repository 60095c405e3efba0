"""The user's own filters of a tick (`when`, `skip`), asked in a process of its own: whatever they do there, hang in C,
crash, fork or leave, the scheduler goes on.

    due -> ask -> (forked: the filters, in order) -> a page of memory that both see -> reap -> back among what is due,
    with its answer -> claimed

While an entry is asked about it stands nowhere else: one question of each at a time, and none waits for another's.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from qd.app import Qd
from qd.config.settings import Settings
from qd.log import Log
from qd.process import fork
from qd.process.exit_codes import told
from qd.schedule.entry import Entry, Filter
from qd.scheduler.connection import EntryState, ScheduleConnection
from qd.scheduler.due import Due
from qd.scheduler.entry_job import SECONDS, Broke, Guard
from qd.scheduler.runner import Runner, RunRecord, end_trees

MOST = 20  # processes at once; what is due beyond that waits for one of them
GRACE = 1.0  # seconds after its own alarm in which one that hears none is ended
HEAD = struct.Struct("<q")  # 0: no answer yet; else bytes of the text behind, and one more
SIZE = 4096


class Page:
    """What the filters have said: why the tick does not run, "" when it does."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, SIZE)

    def write(self, said: str) -> None:
        text = said.encode("utf-8", "backslashreplace")[: SIZE - HEAD.size]
        self._page[HEAD.size : HEAD.size + len(text)] = text
        HEAD.pack_into(self._page, 0, len(text) + 1)

    def read(self) -> str | None:
        """None: nothing was said."""
        length = HEAD.unpack_from(self._page)[0] - 1
        if not 0 <= length <= SIZE - HEAD.size:
            return None
        return self._page[HEAD.size : HEAD.size + length].decode("utf-8", "replace")

    def close(self) -> None:
        self._page.close()


@dataclass(slots=True, eq=False)
class Question:
    """deadline: monotonic seconds. overdue: it was ended for that."""

    reach: ScheduleConnection
    place: EntryState
    due: Due
    page: Page = field(default_factory=Page)
    deadline: float = 0.0
    overdue: bool = False


class FilterProcess:
    """owner: the master's token. forked: called first in each process, to close there what is the scheduler's. seconds: for
    all filters of an entry together."""

    def __init__(
        self,
        app: Qd,
        settings: Settings,
        log: Log,
        *,
        owner: str = "",
        forked: Callable[[], object] = bool,
        seconds: float = SECONDS,
    ) -> None:
        self._app, self._settings, self._log = app, settings, log
        self._token = owner.partition("/")[0]
        self._forked, self._seconds = forked, seconds
        self._asked: dict[int, Question] = {}
        self._waiting: deque[Question] = deque()
        self._dropped: list[int] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._asked) + len(self._waiting)

    @property
    def wants(self) -> float:
        """Seconds until `reap` has something to do by the clock; inf: nothing."""
        first = min((each.deadline for each in self._asked.values() if not each.overdue), default=float("inf"))
        return max(0.0, first - time.monotonic())

    def ask(self, reach: ScheduleConnection, place: EntryState, due: Due, known: str) -> None:
        """`place` is due again on `reach` when the answer is there. known: why it does not run, whatever they would say."""
        question = Question(reach, place, due)
        if known:
            self._answered(question, known)
        else:
            self._waiting.append(question)
            self._begin()

    def reap(self) -> None:
        """Take the answers that have come, and end who takes too long. At each SIGCHLD, and when `wants` is over."""
        self._end_overdue()
        for pid in [pid for pid in self._dropped if waited(pid) is not None]:
            self._dropped.remove(pid)
        for pid, question in list(self._asked.items()):
            if (status := waited(pid)) is not None:
                del self._asked[pid]
                self._answered(question, self._said(question, status))
        self._begin()

    def drop(self) -> None:
        """Ask no more; what was asked about is due as it was."""
        dropped = [*self._asked.values(), *self._waiting]
        if self._asked:
            end_trees(list(self._asked))
            self._dropped += self._asked
        self._asked, self._waiting = {}, deque()
        for question in dropped:
            question.page.close()
            back(question, None)

    # -- one question

    def _begin(self) -> None:
        while self._waiting and len(self._asked) < MOST:
            question = self._waiting.popleft()
            try:
                pid = fork.fork(partial(self._in_child, question), own_group=False)
            except OSError as error:
                self._answered(question, f"no process could be started for its filter: {error.strerror}")
                continue
            question.deadline = time.monotonic() + self._seconds + GRACE
            self._asked[pid] = question
            self._count += 1

    def _in_child(self, question: Question) -> int:
        self._forked()
        entry, tick, own = question.place.entry, question.due.at / 1000, os.getpid()
        owner = f"{self._token}/run-{os.getppid()}-ask{self._count}"  # what is left of it is found as that of a run
        runner = Runner(self._app, self._settings, self._log, entry, tick, RunRecord(), owner)
        runner.begin(f"qd: filter of {entry.name}")
        said = refusal([each for each in entry.filters if each.foreign], tick, Guard(self._seconds))
        if os.getpid() == own:  # else a copy that a filter has forked, and that came back from it
            question.page.write(said)
        return 0

    def _end_overdue(self) -> None:
        at = time.monotonic()
        overdue = {pid: each for pid, each in self._asked.items() if at >= each.deadline and not each.overdue}
        if overdue:
            end_trees(list(overdue))
        for each in overdue.values():
            each.overdue = True

    def _said(self, question: Question, status: int) -> str:
        if (said := question.page.read()) is not None:
            return said
        if question.overdue:
            return f"its filter took longer than {self._seconds:g} s"
        how = f"exit code {os.WEXITSTATUS(status)}" if os.WIFEXITED(status) else told(status)
        return f"its filter ended its process ({how})"

    def _answered(self, question: Question, said: str) -> None:
        question.page.close()
        back(question, question.due._replace(said=said))


def back(question: Question, answered: Due | None) -> None:
    """It is due again; where the server's clock was put back meanwhile, when that says so."""
    reach, place, due = question.reach, question.place, question.due
    if due.at > reach.now:
        return reach.saw(place, place.raw)
    place.answered = answered
    reach.moments.add(min(due.at, reach.now), place)  # the clock may have been put back meanwhile


def asks(entry: Entry) -> bool:
    return bool(entry.filters) and any(each.foreign for each in entry.filters)


def refusal(filters: Sequence[Filter], tick: float, guard: Guard) -> str:
    """What of these filters, asked in order, says of the tick: why it does not run, "" when it does."""
    if not filters:
        return ""

    def asked() -> str:
        return next((each.why for each in filters if not each.passes(tick)), "")

    try:
        return guard.run(asked)
    except Broke as broke:
        return f"its filter {broke}"


def waited(pid: int) -> int | None:
    """Its wait status; None: it still runs."""
    with suppress(ChildProcessError):  # somebody else has waited for it: foreign code in this process
        found, status = os.waitpid(pid, os.WNOHANG)
        return status if found else None
    return 0
