"""The user's own filters (`when`, `skip`), run in a separate process: they may hang in C, crash, fork or exit there.

    due -> ask -> fork: filters in order -> record -> reap -> due again, with the answer -> claimed

An entry has at most one question at a time, and no question waits for another one.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from qd.log import cut
from qd.process import fork
from qd.process.exit_codes import ending
from qd.schedule.entry import Filter
from qd.scheduler.connection import TickClaim
from qd.scheduler.due import Due
from qd.scheduler.entry_job import SECONDS, Guard, UserCodeFailed
from qd.scheduler.runner import Outcome, RunContext, Runner, RunRecord, end_trees, waited

MOST = 20  # processes at once; further questions wait
GRACE = 1.0  # seconds after its own alarm at which a process that did not react is killed
LONGEST = 4000  # characters of an answer


@dataclass(slots=True, eq=False)
class Question:
    """record: its outcome is the answer, with an error if the tick does not run. deadline: monotonic. overdue: killed
    after the deadline."""

    claim: TickClaim
    record: RunRecord = field(default_factory=RunRecord)
    deadline: float = 0.0
    overdue: bool = False


class FilterProcess:
    """seconds: limit for all filters of an entry together."""

    def __init__(self, context: RunContext, seconds: float = SECONDS) -> None:
        self._context, self._seconds = context, seconds
        self._running: dict[int, Question] = {}
        self._waiting: deque[Question] = deque()
        self._dropped: list[int] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._running) + len(self._waiting)

    @property
    def due_in(self) -> float:
        """Seconds until `reap` must be called; inf if SIGCHLD is enough."""
        first = min((each.deadline for each in self._running.values() if not each.overdue), default=float("inf"))
        return max(0.0, first - time.monotonic())

    def ask(self, claim: TickClaim, known: str) -> None:
        """Make the tick due again once there is an answer. known: why it does not run, if that is known already."""
        question = Question(claim)
        if known:
            self._answered(question, known)
        else:
            self._waiting.append(question)
            self._begin()

    def reap(self) -> None:
        """Collect answers, and kill processes that take too long. Call at each SIGCHLD, and after `due_in` seconds."""
        self._end_overdue()
        for pid in [pid for pid in self._dropped if waited(pid) is not None]:
            self._dropped.remove(pid)
        for pid, question in list(self._running.items()):
            if (status := waited(pid)) is not None:
                del self._running[pid]
                self._answered(question, self._result(question, status))
        self._begin()

    def drop(self) -> None:
        """Drop all questions; their ticks become due again without an answer."""
        dropped = [*self._running.values(), *self._waiting]
        if self._running:
            end_trees(list(self._running))
            self._dropped += self._running
        self._running, self._waiting = {}, deque()
        for question in dropped:
            question.record.close()
            due_again(question.claim, None)

    # -- one question

    def _begin(self) -> None:
        while self._waiting and len(self._running) < MOST:
            question = self._waiting.popleft()
            try:
                pid = fork.fork(partial(self._in_child, question), own_group=False)
            except OSError as error:
                self._answered(question, f"no process could be started for its filter: {error.strerror}")
                continue
            question.deadline = time.monotonic() + self._seconds + GRACE
            self._running[pid] = question
            self._count += 1

    def _in_child(self, question: Question) -> int:
        entry, tick, own = question.claim.entry, question.claim.tick, os.getpid()
        owner = (
            f"{self._context.token}/run-{os.getppid()}-ask{self._count}"  # its leftovers are found like those of a run
        )
        runner = Runner(self._context, entry, tick, question.record, owner)
        runner.begin(f"qd: filter of {entry.name}")
        answer = refusal([each for each in entry.filters if each.foreign], tick, Guard(self._seconds))
        if os.getpid() == own:  # else a filter forked, and this is the copy
            question.record.settle(Outcome(0.0, error=cut(answer, LONGEST)))
        return 0

    def _end_overdue(self) -> None:
        at = time.monotonic()
        overdue = {pid: each for pid, each in self._running.items() if at >= each.deadline and not each.overdue}
        if overdue:
            end_trees(list(overdue))
        for each in overdue.values():
            each.overdue = True

    def _result(self, question: Question, status: int) -> str:
        if (answer := question.record.outcome) is not None:
            return answer.error
        if question.overdue:
            return f"its filter took longer than {self._seconds:g} s"
        how = f"exit code {os.WEXITSTATUS(status)}" if os.WIFEXITED(status) else ending(status)
        return f"its filter ended its process ({how})"

    def _answered(self, question: Question, answer: str) -> None:
        question.record.close()
        due_again(question.claim, question.claim.due._replace(answer=answer))


def due_again(claim: TickClaim, answered: Due | None) -> None:
    """If the server's clock was put back meanwhile, the tick becomes due by the new clock."""
    state, connection = claim.state, claim.state.connection
    if claim.due.at > connection.now:
        return connection.update(state, state.raw)
    state.answered = answered
    connection.moments.add(claim.due.at, state)


def refusal(filters: Sequence[Filter], tick: float, guard: Guard) -> str:
    """Why these filters, evaluated in order, reject the tick, or ""."""
    if not filters:
        return ""
    try:
        return guard.run(lambda: next((each.why for each in filters if not each.passes(tick)), ""))
    except UserCodeFailed as failure:
        return f"its filter {failure}"
