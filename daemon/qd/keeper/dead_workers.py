"""Requeues the jobs of dead workers that the master has reaped, and of masters that died on this host.

    a job alone       by the verdict of the master: a crash, handed back, timed out, ...
    finished          acked
    not started       to the head of its queue, with nothing counted
    ran ahead         of prefetched jobs only one ran at a time: as a job alone
    ran with others   the one to blame by the verdict; without one all are suspects, which run in a worker of their own, and
                      alone if that dies, too; the others go back to the head

A job is moved only after its process has ended. It is found by the owner mark that the reserve wrote, so also if the worker
died before it noted anything. The payload is moved unchanged; the next reserve counts the crash.

Before a job may run again, the processes that its last attempt left running are killed (process/fork.py).
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, auto
from functools import partial
from typing import NamedTuple

from qd.drivers.base import KeeperConnector, with_lanes
from qd.drivers.keyspace.sending import left_by
from qd.drivers.types import Effect, LaneAnswer, Released, Reserved, put_back, reserved_of
from qd.errors import ConfigError, ConnectionLost, Malformed, ServerRefused
from qd.keeper.recall import jobs_of
from qd.keeper.servers import each_of
from qd.log import Log, cut
from qd.master.code import ChildContext
from qd.payload.format import read, readable
from qd.payload.reservation import Ending, answered, marks_of, split_mark, taken_alone, unstarted
from qd.process import SLOTS, fork, proc
from qd.process.channels import Order
from qd.process.counters import C, text_of
from qd.process.exit_codes import ending, signal_name
from qd.process.scoreboard import Fails, L, LaneState, Role, Slot, SlotState, Verdict, W, now
from qd.store.masters import MasterReport

LATE = 3.0  # seconds within which a call of a dead worker may still reach the server
BUDGET = 0.5  # seconds per beat for masters that died

COUNTED = {
    Verdict.CRASH: C.CRASHED,
    Verdict.MEMORY: C.CRASHED,
    Verdict.TIMEOUT: C.TIMED_OUT,
    Verdict.HAND_BACK: C.HANDED_BACK,
    Verdict.CANCELLED: C.CANCELLED,
}

# After these the attempt has ended, and its places are freed, as after an error. A job whose worker crashed keeps its
# places, because it will run again.
ENDED = (Verdict.HAND_BACK, Verdict.TIMEOUT, Verdict.CANCELLED)


class DeadWorkers:
    def __init__(self, queue: KeeperConnector, queues: tuple[str, ...], context: ChildContext, log: Log) -> None:
        self.queue, self.queues, self.context, self.log = queue, queues, context, log
        self.lanes, self._alive = with_lanes(queue), context.board.keeper_is_alive
        self._reported: dict[int, Order] = {}  # deaths that the master has reported, by slot
        self._late: dict[int, tuple[int, float]] = {}  # slot -> settled generation, until when it is checked again
        self._dead: list[MasterReport] | None = None  # masters still to be settled; None: not read yet

    def handle(self, orders: list[Order]) -> None:
        self._reported.update((order["dead"], order) for order in orders if "dead" in order)

    # -- workers of this master

    def unsettled(self) -> bool:
        return any(slot[W.STATE] == SlotState.DEAD for slot in self.context.board)

    def settle_workers(self) -> None:
        """Move the jobs of dead workers, and free their slots. Raises ConnectionLost after all others are done."""
        board = self.context.board
        for number in [number for number in self._reported if board.slot(number)[W.STATE] != SlotState.DEAD]:
            del self._reported[number]
        late = [partial(self._check_again, number, *seen) for number, seen in self._late.items()]
        each_of([*late, *[partial(self._settle, board.slot(number)) for number in self._reported]], lambda act: act())

    def _settle(self, slot: Slot) -> None:
        self._kill_leftovers(slot)
        self._for_queues(self.queues, lambda queue: self._move(queue, slot))
        self._settle_lanes(slot)
        self._count(slot)
        del self._reported[slot.number]
        self._late[slot.number] = (slot[W.GENERATION], time.monotonic() + LATE)
        slot[W.STATE] = SlotState.SETTLED

    def _kill_leftovers(self, slot: Slot) -> None:
        """The worker's group was killed with it. Kill processes that have left the group before the job runs again."""
        if not slot[W.JOB_AT]:
            return
        if slot[W.ROLE] == Role.SCHEDULER:
            ended = fork.kill_left_by_runs(self.context.token, slot[W.PID], self._alive)
        else:
            ended = fork.kill_left_by_job(f"{self.context.token}/{slot.number}", slot[W.JOB_AT], self._alive)
        if ended:
            self.log.warning("job.leftover_ended", slot=slot.number, job=slot.job, processes=ended)

    def _count(self, slot: Slot) -> None:
        """Count how the attempts ended that the worker was running. Nothing is left to count the second time."""
        board, counters = self.context.board, self.context.board.counters.slot(slot.number)
        verdict = Verdict(slot[W.VERDICT])
        as_verdict = COUNTED[verdict]
        lanes = [lane for lane in board.started(slot) if lane[L.PROOF] != board.proof_of(lane.state[0])]
        texts = [(lane, text_of(lane.queue, lane.job)) for lane in lanes]
        unfinished = Counter(text for _, text in texts)
        blamed = next((text for lane, text in texts if lane.state[0] == slot[W.BLAME]), b"")
        running = counters.running()
        for lane, text in texts:
            if row := running.get(text):
                counters.note_run(row, (now() - lane[L.JOB_AT]) // 1000)
        for text, row in running.items():
            count = counters.count_running(row)
            if slot[W.SEVERAL] and not (slot[W.STARTED] or slot[W.SUSPECTS]):  # else its job ran alone
                done = max(0, count - unfinished[text])  # finished, and not counted yet
                row[C.DONE] += done
                count -= done
                all_of_them = not blamed and verdict in (Verdict.CRASH, Verdict.MEMORY)
                others = 0 if all_of_them else count - int(text == blamed and count > 0)
                row[C.HANDED_BACK] += others
                count -= others
            elif slot[W.TOOK_MS]:
                counters.note_run(row, slot[W.TOOK_MS] * 1000)
            row[as_verdict] += count

    def _owned(self, queue: str, owner: str) -> Reserved | None:
        member = self.queue.owned(queue, owner)
        return None if member is None else reserved_of(queue, member, marks_of(owner))

    def _move(self, queue: str, slot: Slot) -> None:
        owner = f"{self.context.token}/{slot.number}"
        if (job := self._owned(queue, owner)) is None:
            return
        if self.lanes is not None and job.mark and slot[W.PROOF] == self.context.board.proof_of(job.turn):
            self.lanes.settle_lanes(queue, [LaneAnswer(owner, job.member)])  # finished, and not acked
        else:
            self._answer(job, slot, owner)

    def _answer(self, job: Reserved, slot: Slot, owner: str, words: JobWords | None = None) -> None:
        """Answer the job that the worker was running by the master's verdict. owner: who has it. words: else in the slot."""
        words = words or JobWords(slot[W.TURN], slot[W.FAILS], slot[W.BACKOFF_MS])
        queue, member, mark = job.queue, job.member, job.mark
        verdict = Verdict(slot[W.VERDICT]) if mark else Verdict.CRASH
        back = answer_of(words, member, mark, verdict)
        if verdict not in (Verdict.HAND_BACK, Verdict.CANCELLED) and mark:
            self.queue.note_death(queue, split_mark(mark).noted, self._note(slot))
        effects = longer_lock(member, back.delay)
        if verdict in ENDED:
            effects += self._left(member, mark)
        moved = self.queue.give_back(queue, owner, member, back, effects)
        if not moved and (held := self._owned(queue, owner)) is not None and held.member != member:
            return self._answer(held, slot, owner, words)  # a late checkpoint has changed the text of the same job
        event, reason = "job.requeued" if moved else "job.lease_lost", verdict.words.requeued_for
        self.log.warning(event, queue=queue, **named(member), reason=reason, delay=back.delay or None)

    # -- workers with several jobs

    def _settle_lanes(self, slot: Slot) -> None:
        if self.lanes is None:
            return
        jobs = jobs_of(self.lanes, self.queues, self.context.token, slot.number, self.context.board.lanes)
        self._alive()
        fates = self._fates(slot, jobs)
        blamed = slot[W.BLAME] if any(job.turn == slot[W.BLAME] and fate is Fate.STARTED for job, fate in fates) else 0
        answers = [(job.queue, self._lane_answer(slot, job, fate, blamed)) for job, fate in fates]
        self._answer_lanes(answers, Verdict(slot[W.VERDICT]).words.requeued_for)

    def _fates(self, slot: Slot, jobs: Sequence[Reserved]) -> list[tuple[Reserved, Fate]]:
        board, fates = self.context.board, list[tuple[Reserved, Fate]]()
        last = board.finished(slot, [job.turn for job in jobs])
        for job in jobs:
            if slot[W.SEVERAL]:
                lane = board.lane(slot.number, split_mark(job.mark).lane)
                finished = lane[L.PROOF] == board.proof_of(job.turn)
                started = lane.state == (job.turn, LaneState.STARTED)
            else:
                finished, started = job.turn <= last, job.turn <= slot[W.STARTED]
            fates.append((job, Fate.FINISHED if finished else Fate.STARTED if started else Fate.HELD))
        return fates

    def _lane_answer(self, slot: Slot, job: Reserved, fate: Fate, blamed: int) -> LaneAnswer | None:
        """None: the job was answered by itself."""
        verdict = Verdict(slot[W.VERDICT])
        if fate is Fate.FINISHED:
            return LaneAnswer(job.owner, job.member)
        if fate is Fate.HELD:
            return LaneAnswer(job.owner, job.member, unstarted(job.member, job.mark))
        if not slot[W.SEVERAL] or job.turn == slot[W.STARTED]:  # it ran alone; the second: an exclusive job
            self._answer(job, slot, job.owner)
            return None
        if verdict in (Verdict.CRASH, Verdict.MEMORY) and blamed in (0, job.turn):
            return LaneAnswer(job.owner, job.member, job.member, suspect=True)
        if job.turn == blamed:
            lane = self.context.board.lane(slot.number, split_mark(job.mark).lane)
            self._answer(job, slot, job.owner, JobWords(lane.state[0], lane[L.FAILS], lane[L.BACKOFF_MS]))
            return None
        back = Released(answered(job.member, job.mark, attempts=before_this(job.mark)), head=True)
        if effects := self._left(job.member, job.mark):
            self.queue.give_back(job.queue, job.owner, job.member, back, effects)
            return None
        return LaneAnswer(job.owner, job.member, back.text)

    def _answer_lanes(self, answers: Iterable[tuple[str, LaneAnswer | None]], reason: str, **fields: object) -> None:
        """answers: with their queues; None: there is nothing to answer."""
        assert self.lanes is not None
        by_queue = dict[str, list[LaneAnswer]]()
        for queue, answer in answers:
            if answer is not None:
                by_queue.setdefault(queue, []).append(answer)
        for queue, those in by_queue.items():
            self._alive()
            moved = self.lanes.settle_lanes(queue, those)
            counts = Counter(
                "acked" if each.text is None else "suspects" if each.suspect else "requeued"
                for each, there in zip(those, moved, strict=True)
                if there
            )
            if counts:
                self.log.warning("jobs.requeued", queue=queue, **counts, reason=reason, **fields)

    def _note(self, slot: Slot) -> bytes:
        """How the worker died, for the record of the job if it fails: `told` is for people, `death` is for programs."""
        stack, verdict = self._reported[slot.number].get("stack") or None, Verdict(slot[W.VERDICT])
        in_job = verdict is Verdict.CRASH and bool(slot[W.JOB_AT])
        how = ending(slot[W.STATUS], oom=bool(slot[W.OOM]), in_job=in_job)
        ended = "its worker " + (how if how.startswith("left") else f"ended with {how}")
        text = f"{verdict.words.before}{ended}, peak memory {slot[W.PEAK] // 1_000_000}M"
        told = text + (f"\n{stack}" if stack else "")
        return json.dumps({"told": told, "death": death_of(slot, stack)}).encode()

    def _left(self, member: bytes, mark: str) -> tuple[Effect, ...]:
        """Effects that free the places which the dead worker's job still has."""
        try:
            payload = read(member)
            return left_by(*self.queue.kept, payload.uuid or payload.id or mark, mark)
        except (Malformed, ServerRefused, ConfigError):
            return ()

    def _check_again(self, number: int, generation: int, until: float) -> None:
        """A busy server may execute a dead worker's last reserve after the first check: check again for LATE seconds."""
        over = time.monotonic() > until
        self._for_queues(self.queues, lambda queue: self._move_late(queue, number, generation))
        if self.lanes is not None:
            jobs = jobs_of(self.lanes, self.queues, self.context.token, number, self.context.board.lanes)
            late = [job for job in jobs if split_mark(job.mark).generation <= generation]
            answers = [(job.queue, LaneAnswer(job.owner, job.member, unstarted(job.member, job.mark))) for job in late]
            self._answer_lanes(answers, "crash", late=True)
            if over and self.context.board.slot(number)[W.GENERATION] == generation:  # else it is its successor's
                self.lanes.forget_lanes(self.queues, [f"{self.context.token}/{number}"])
        if over:
            del self._late[number]

    def _move_late(self, queue: str, number: int, generation: int) -> None:
        owner = f"{self.context.token}/{number}"
        job = self._owned(queue, owner)
        if job is None or not job.mark or split_mark(job.mark).generation > generation:
            return  # reserved by its successor
        if self.queue.give_back(queue, owner, job.member, Released(job.member)):
            self.log.warning("job.requeued", queue=queue, **named(job.member), reason="crash", late=True)

    def _for_queues(self, queues: Iterable[str], act: Callable[[str], None]) -> None:
        def acts(queue: str) -> None:
            self._alive()
            act(queue)

        each_of(queues, acts)

    # -- masters that died on this host

    def settle_masters(self, reports: Callable[[], list[MasterReport]], forget: Callable[[str], None]) -> None:
        """After the start: requeue the jobs of dead masters of this host. If a process cannot be checked, its job stays
        until the lease expires.

        It takes at most BUDGET seconds per call, so that the beats continue to renew leases."""
        if self._dead is None:
            self._dead = [master for master in reports() if self._died(master)]
        fork.kill_left_by_masters([master.token for master in self._dead], self._alive)
        waiting, until = list[MasterReport](), time.monotonic() + BUDGET
        try:
            while self._dead and time.monotonic() < until:
                self._alive()
                master = self._dead[-1]
                states = {str(w.slot): proc.alive(w.pid, w.start) for w in master.workers if w.pid}
                self._dead.pop()
                waiting.append(master)  # check it again at the next beat
                if any(states.values()):
                    continue  # the kernel is still ending one of its workers
                try:
                    if self._give_back_all(master, states):
                        forget(master.token)
                except ConnectionLost:
                    continue
                waiting.pop()
        finally:
            self._dead += waiting

    def _died(self, master: MasterReport) -> bool:
        self._alive()
        return master.token != self.context.token and died_here(master)

    def _give_back_all(self, master: MasterReport, states: Mapping[str, bool | None]) -> bool:
        """False: a job stays until its lease expires, because its worker cannot be checked. Raises ConnectionLost after all
        others are requeued."""
        unseen, owners = list[str](), dict[str, list[str]]()

        def looks(queue: str) -> None:
            owners[queue] = self.queue.owners(queue)

        def gives_back(queue: str) -> None:
            lanes = list[str]()
            for owner in owners[queue]:
                token, _, slot = owner.partition("/")
                if token != master.token:
                    continue
                if states.get(str(int(slot) % SLOTS), False) is None:
                    unseen.append(owner)
                    continue
                if int(slot) >= SLOTS:
                    lanes.append(owner)
                    continue
                member = self.queue.owned(queue, owner)
                if member is not None and self.queue.give_back(queue, owner, member, Released(member)):
                    self.log.warning("job.requeued", queue=queue, **named(member), reason="its master died")
            if lanes and self.lanes is not None:
                # It is unknown which of them ran: their marks stay, and the next reserve takes each alone.
                found = self.lanes.owned_by(queue, lanes)
                answers = [(queue, LaneAnswer(owner, member, member)) for owner, member in found.items()]
                self._answer_lanes(answers, "its master died")

        theirs = master.queues if master.connection == self.queue.settings.name else ()
        try:
            # Read the owners of all queues first: the answer for a job may be stored with another queue of its master.
            self._for_queues(dict.fromkeys((*self.queues, *theirs)), looks)
        finally:
            self._for_queues(list(owners), gives_back)
        self.forget(list(owners), master.token)
        return not unseen

    def forget(self, queues: Sequence[str], token: str) -> None:
        """All workers of this master have ended."""
        if self.lanes is not None:
            self.lanes.forget_lanes(queues, [f"{token}/{slot}" for slot in range(SLOTS)])


class Fate(Enum):
    """How far the dead worker came with a job."""

    HELD = auto()  # it has not started
    STARTED = auto()
    FINISHED = auto()  # proven, and not acked


class JobWords(NamedTuple):
    """What the worker noted about the job it ran. fails: a Fails."""

    turn: int
    fails: int
    backoff_ms: int


def answer_of(words: JobWords, member: bytes, mark: str, verdict: Verdict) -> Released:
    """The answer in place of the dead worker. An unanswered mark of lane 0 is a crash, which the next reserve counts. The
    hooks of a job that was already failing are not called again."""
    if mark and words.fails in (Fails.HOOKS, Fails.HOOKS_BEFORE) and words.turn == split_mark(mark).turn:
        unbegun = before_this(mark) if words.fails == Fails.HOOKS_BEFORE else None
        return Released(answered(member, mark, attempts=unbegun, ended=Ending.DIED_IN_HOOKS))
    if verdict == Verdict.HAND_BACK:
        return Released(answered(member, mark, attempts=before_this(mark)), head=True)
    if verdict == Verdict.TIMEOUT:
        return Released(timed_out(member, mark, words.fails == Fails.KILLED), words.backoff_ms / 1000)
    if verdict == Verdict.CANCELLED:
        return Released(answered(member, mark, ended=Ending.CANCELLED))
    return Released(taken_alone(member, mark) if mark else member)


def before_this(mark: str) -> int:
    """The attempts before the one that was reserved under `mark`."""
    return max(0, int(split_mark(mark).n) - 1)


def timed_out(member: bytes, mark: str, fails: bool) -> bytes:
    """Count the timeout as an exception, and mark whether it fails the job at the next reserve."""
    payload = readable(member)
    exceptions = None if payload is None else payload.exceptions + 1
    return answered(member, mark, exceptions=exceptions, ended=Ending.FAILS if fails else Ending.TIMED_OUT)


def death_of(slot: Slot, stack: str | None) -> dict[str, object]:
    """peak: bytes. took: seconds the job had run. stack: the last Python stack, if any."""
    status = slot[W.STATUS]
    return {
        "verdict": Verdict(slot[W.VERDICT]).words.requeued_for,
        "signal": signal_name(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else None,
        "exit": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
        "peak": slot[W.PEAK],
        "took": slot[W.TOOK_MS] / 1000,
        "oom": bool(slot[W.OOM]),
        "stack": stack,
    }


def longer_lock(member: bytes, delay: float) -> tuple[Effect, ...]:
    """The next reserve renews the job's lock. If the job is delayed, the lock must last until then."""
    payload = readable(member) if delay else None
    return () if payload is None else put_back(payload, delay)


def died_here(master: MasterReport) -> bool:
    """Whether it is a master of this host, boot and pid namespace that has certainly died."""
    here = (socket.gethostname(), proc.boot_id(), proc.pid_namespace())
    if (master.host, master.boot, master.ns) != here:
        return False
    return proc.alive(master.pid, master.start) is False


def named(member: bytes) -> dict[str, object]:
    """The log fields `job` and `id`."""
    payload = readable(member)
    if payload is None:
        return {}
    return {"job": cut(payload.job), "id": cut(payload.id or payload.uuid or "") or None}
