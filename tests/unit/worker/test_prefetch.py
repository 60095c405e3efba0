"""Jobs fetched ahead: how many, when one may start, and every interleaving of worker, keeper and server."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest
from greenlet import greenlet

from qd.drivers.types import LaneAnswer, LaneReply, LaneTurn, Reserved
from qd.keeper import recall
from qd.keeper.recall import Recall
from qd.log import Log
from qd.process.scoreboard import Scoreboard, SlotState, W
from qd.worker import prefetch
from qd.worker.prefetch import PrefetchConnection
from qd.worker.queues import Rota

TOKEN, SLOT = "T", 3
STEPS = 400


def payload(name: str) -> bytes:
    return b'{"job":"%b","data":{},"attempts":0}' % name.encode()


class Server:
    """One queue. Each call is one step. ready: names in order; owned: owner -> name and member."""

    def __init__(self, names: Sequence[str], step: Callable[[], None] = lambda: None) -> None:
        self.ready, self.owned, self.step = list(names), dict[str, tuple[str, bytes]](), step
        self.turns, self.acked = 0, list[str]()
        self.bulk = 3

    def take(self, lane: int) -> Reserved:
        name, self.turns = self.ready.pop(0), self.turns + 1
        mark = f"{TOKEN}.{SLOT + 256 * lane}.{self.turns}.1"
        unit = b'"attempts":1,"rsv":"%b"' % mark.encode()
        member = payload(name).replace(b'"attempts":0', unit)
        job = Reserved("q", member, mark, member.index(unit), len(unit), b'"attempts":0')
        self.owned[job.owner] = name, member
        return job

    def _end(self, owner: str, member: bytes) -> str | None:
        """The name, if the owner still has this text."""
        if self.owned.get(owner, ("", b""))[1] != member:
            return None
        return self.owned.pop(owner)[0]

    def turn_lanes(self, turn: LaneTurn) -> LaneReply:
        self.step()
        lost = []
        for job in turn.done:
            name = self._end(job.owner, job.member)
            lost += [job] if name is None else []
            self.acked += [name] if name is not None else []
        back = [name for job in turn.back if (name := self._end(job.owner, job.member)) is not None]
        self.ready[:0] = back
        lanes = list(turn.lanes)[: self.bulk] or [turn.single]
        if turn.shut:
            lanes = []
        jobs = [self.take(lane) for lane in lanes[: len(self.ready)]]
        return LaneReply(tuple(lost), tuple(jobs), None, ())

    def owned_by(self, queue: str, owners: Sequence[str]) -> dict[str, bytes]:
        self.step()
        return {owner: self.owned[owner][1] for owner in owners if owner in self.owned}

    def settle_lanes(self, queue: str, answers: Sequence[LaneAnswer]) -> list[bool]:
        self.step()
        names = [self._end(answer.owner, answer.member) for answer in answers]
        for name, answer in zip(names, answers, strict=True):
            if name is not None and answer.text is None:
                self.acked.append(name)
        self.ready[:0] = [
            name for name, answer in zip(names, answers, strict=True) if name is not None and answer.text is not None
        ]
        return [name is not None for name in names]


class SteppedWords:
    """The words of a slot; every access is one step."""

    def __init__(self, words: Any, step: Callable[[], None]) -> None:
        self.words, self.step = words, step

    def __getitem__(self, key: Any) -> Any:
        self.step()
        return self.words[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.step()
        self.words[key] = value


def step() -> None:
    parent = greenlet.getcurrent().parent
    if parent is not None:
        parent.switch()


class World:
    """A worker that fetches ahead, a keeper that recalls at once, and another worker that takes what is put back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, killed_after: int | None = None) -> None:
        self.board = Scoreboard()
        self.slot = self.board.slot(SLOT)
        self.slot[W.STATE], self.slot[W.PID] = SlotState.BUSY, 1
        self.server = Server("abcdef", step)
        self.ran = list[str]()
        self.killed_after = killed_after
        rota, log = Rota(("q",)), cast(Log, None)
        self.connection = PrefetchConnection(
            cast(Any, self.server), rota, log, lambda seconds: None, self.board, self.slot, prefetch=3
        )
        self.slot.words = cast(Any, SteppedWords(self.slot.words, step))

    def worker(self) -> None:
        lost = []
        for _ in range(20):
            job = self.connection.next_held()
            if job is None:
                reply = self.connection.fill(3, ())
                lost += self.connection.lost_of(reply)
                job = self.connection.next_held()
                if job is None and not reply.jobs and not self.server.ready and not self.server.owned:
                    break
            if job is not None:
                self.ran.append(self.server.owned[job.owner][0] if job.owner in self.server.owned else "lost")
                self.connection.finish(job)
        assert lost == []

    def keeper(self) -> None:
        steps = itertools.count()
        for _ in range(2):  # a second one continues where the first was killed
            recalls = Recall(cast(Any, self.server), ("q",), self.board, TOKEN)
            for _ in range(3):
                recalls.look()
                if self.killed_after is not None and next(steps) >= self.killed_after:
                    break

    def other(self) -> None:
        for _ in range(4):
            step()
            if self.server.ready:
                self.ran.append(self.server.ready.pop(0))

    def run(self, choices: Sequence[int]) -> list[tuple[int, int]]:
        """Follow the choices, then go on without switching. Returns the choice and number of actors at each step."""
        actors = [greenlet(self.worker), greenlet(self.keeper), greenlet(self.other)]
        made = list[tuple[int, int]]()
        current = 0
        for number in range(STEPS):
            alive = [actor for actor in actors if not actor.dead]
            if not alive:
                return made
            if number < len(choices):
                current = choices[number]
            if current >= len(alive):
                current = 0
            made.append((current, len(alive)))
            alive[current].switch()
        raise AssertionError("it did not end")


def schedules(run: Callable[[Sequence[int]], list[tuple[int, int]]], switches: int) -> Iterator[int]:
    """Run every schedule with at most so many unforced switches. Yields after each."""
    todo: list[tuple[list[int], int]] = [([], switches)]
    while todo:
        prefix, left = todo.pop()
        made = run(prefix)
        yield len(made)
        if not left:
            continue
        for at in range(len(prefix), len(made)):
            taken, count = made[at]
            for other in range(count):
                if other != taken:
                    todo.append(([choice for choice, _ in made[:at]] + [other], left - 1))


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keeper finds every batch old enough at once; the worker never finds its window over."""
    monkeypatch.setattr(recall, "AFTER_NS", -1)
    monkeypatch.setattr(recall, "SETTLE", 0.0)
    monkeypatch.setattr(prefetch, "WINDOW_NS", 10**15)


def explore(monkeypatch: pytest.MonkeyPatch, switches: int, killed_after: int | None = None) -> int:
    count = 0

    def run(choices: Sequence[int]) -> list[tuple[int, int]]:
        world = World(monkeypatch, killed_after)
        made = world.run(choices)
        assert sorted(world.ran + world.server.ready) == list("abcdef"), (choices, world.ran)
        return made

    for _ in schedules(run, switches):
        count += 1
    return count


def test_no_interleaving_runs_a_job_twice_or_loses_one(clocks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert explore(monkeypatch, 2) > 500


@pytest.mark.parametrize("killed_after", [0, 1, 2])
def test_a_keeper_that_is_killed_at_any_step_is_continued(
    clocks: None, monkeypatch: pytest.MonkeyPatch, killed_after: int
) -> None:
    assert explore(monkeypatch, 1, killed_after) > 20


def test_without_the_recall_word_the_model_finds_a_double_run(clocks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch.PrefetchConnection, "next_held", _ignoring_recall)
    with pytest.raises(AssertionError):
        explore(monkeypatch, 2)


def _ignoring_recall(self: PrefetchConnection) -> Reserved | None:
    if not self.held:
        return None
    self.slot[W.STARTED] = self.held[0].turn
    return self.held.popleft()
