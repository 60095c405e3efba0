"""Requeues the jobs of dead workers that the master has reaped, and of masters that died on this host.

A job is moved only after its process has ended. It is found by the owner mark that the reserve wrote, so also if the worker
died before it noted anything. The payload is moved unchanged; the next reserve counts the crash.

Before a job may run again, the processes that its last attempt left running are killed (process/leftovers.py).
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from qd.drivers.base import KeeperConnector
from qd.drivers.keyspace.sending import left_by
from qd.drivers.types import Effect, Released, put_back, reserved_of
from qd.errors import ConfigError, ConnectionLost, Malformed, ServerRefused
from qd.keeper.servers import each_of
from qd.log import Log, cut
from qd.master.code import ChildContext
from qd.payload.format import read
from qd.payload.reservation import Ending, answered, split_mark
from qd.process import leftovers, proc
from qd.process.channels import Order
from qd.process.exit_codes import ending, signal_name
from qd.process.scoreboard import Fails, Role, Slot, SlotState, Verdict, W
from qd.store.masters import MasterReport

LATE = 3.0  # seconds within which a call of a dead worker may still reach the server
BUDGET = 0.5  # seconds per beat for masters that died

# After these the attempt has ended, and its places are freed, as after an error. A job whose worker crashed keeps its
# places, because it will run again.
ENDED = (Verdict.HAND_BACK, Verdict.TIMEOUT, Verdict.CANCELLED)


class DeadWorkers:
    def __init__(self, queue: KeeperConnector, queues: tuple[str, ...], context: ChildContext, log: Log) -> None:
        self.queue, self.queues, self.context, self.log = queue, queues, context, log
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
        del self._reported[slot.number]
        self._late[slot.number] = (slot[W.GENERATION], time.monotonic() + LATE)
        slot[W.STATE] = SlotState.SETTLED

    def _kill_leftovers(self, slot: Slot) -> None:
        """The worker's group was killed with it. Kill processes that have left the group before the job runs again."""
        if not slot[W.JOB_AT]:
            return
        if slot[W.ROLE] == Role.SCHEDULER:
            ended = leftovers.kill_left_by_runs(self.context.token, slot[W.PID], self._alive)
        else:
            ended = leftovers.kill_left_by_job(f"{self.context.token}/{slot.number}", slot[W.JOB_AT], self._alive)
        if ended:
            self.log.warning("job.leftover_ended", slot=slot.number, job=slot.job, processes=ended)

    def _move(self, queue: str, slot: Slot) -> None:
        owner = f"{self.context.token}/{slot.number}"
        member = self.queue.owned(queue, owner)
        if member is None:
            return
        mark = reserved_of(queue, member, f"{self.context.token}.{slot.number}.").mark
        verdict = Verdict(slot[W.VERDICT]) if mark else Verdict.CRASH
        back = answer_of(slot, member, mark, verdict)
        if verdict not in (Verdict.HAND_BACK, Verdict.CANCELLED) and mark:
            self.queue.note_death(queue, mark.rsplit(".", 1)[0], self._note(slot))
        effects = longer_lock(member, back.delay)
        if verdict in ENDED:
            effects += self._left(member, mark)
        moved = self.queue.give_back(queue, owner, member, back, effects)
        if not moved and (now_held := self.queue.owned(queue, owner)) is not None and now_held != member:
            return self._move(queue, slot)  # a late checkpoint has changed the text of the same job
        event = "job.requeued" if moved else "job.lease_lost"
        self.log.warning(
            event, queue=queue, **named(member), reason=verdict.words.requeued_for, delay=back.delay or None
        )

    def _note(self, slot: Slot) -> bytes:
        """How the worker died, for the record of the job if it fails: `told` is for people, `death` is for programs."""
        stack = self._reported[slot.number].get("stack") or None
        text = death_text(slot) + (f"\n{stack}" if stack else "")
        return json.dumps({"told": text, "death": death_of(slot, stack)}).encode()

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
        if over:
            del self._late[number]

    def _move_late(self, queue: str, number: int, generation: int) -> None:
        owner = f"{self.context.token}/{number}"
        member = self.queue.owned(queue, owner)
        if member is None:
            return
        mark = reserved_of(queue, member, f"{self.context.token}.{number}.").mark
        if not mark or split_mark(mark).generation > generation:
            return  # reserved by its successor
        if self.queue.give_back(queue, owner, member, Released(member)):
            self.log.warning("job.requeued", queue=queue, **named(member), reason="crash", late=True)

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
        leftovers.kill_left_by_masters([master.token for master in self._dead], self._alive)
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

    def _alive(self) -> None:
        self.context.board.keeper_is_alive()

    def _give_back_all(self, master: MasterReport, states: Mapping[str, bool | None]) -> bool:
        """False: a job stays until its lease expires, because its worker cannot be checked. Raises ConnectionLost after all
        others are requeued."""
        unseen, owners = list[str](), dict[str, list[str]]()

        def looks(queue: str) -> None:
            owners[queue] = self.queue.owners(queue)

        def gives_back(queue: str) -> None:
            for owner in owners[queue]:
                token, _, slot = owner.partition("/")
                if token != master.token:
                    continue
                if states.get(slot, False) is None:
                    unseen.append(owner)
                    continue
                member = self.queue.owned(queue, owner)
                if member is not None and self.queue.give_back(queue, owner, member, Released(member)):
                    self.log.warning("job.requeued", queue=queue, **named(member), reason="its master died")

        theirs = master.queues if master.connection == self.queue.settings.name else ()
        try:
            # Read the owners of all queues first: the answer for a job may be stored with another queue of its master.
            self._for_queues(dict.fromkeys((*self.queues, *theirs)), looks)
        finally:
            self._for_queues(list(owners), gives_back)
        return not unseen


def answer_of(slot: Slot, member: bytes, mark: str, verdict: Verdict) -> Released:
    """The answer in place of the dead worker. An unchanged payload is a crash, which the next reserve counts. The hooks of
    a job that was already failing are not called again."""
    if mark and slot[W.FAILS] in (Fails.HOOKS, Fails.HOOKS_BEFORE) and slot[W.TURN] == split_mark(mark).turn:
        unbegun = before_this(mark) if slot[W.FAILS] == Fails.HOOKS_BEFORE else None
        return Released(answered(member, mark, attempts=unbegun, ended=Ending.DIED_IN_HOOKS))
    if verdict == Verdict.HAND_BACK:
        return Released(answered(member, mark, attempts=before_this(mark)), head=True)
    if verdict == Verdict.TIMEOUT:
        return Released(timed_out(member, mark, slot[W.FAILS] == Fails.KILLED), slot[W.BACKOFF_MS] / 1000)
    if verdict == Verdict.CANCELLED:
        return Released(answered(member, mark, ended=Ending.CANCELLED))
    return Released(member)


def before_this(mark: str) -> int:
    """The attempts before the one that was reserved under `mark`."""
    return max(0, int(split_mark(mark).n) - 1)


def timed_out(member: bytes, mark: str, fails: bool) -> bytes:
    """Count the timeout as an exception, and mark whether it fails the job at the next reserve."""
    try:
        exceptions = read(member).exceptions + 1
    except Malformed:
        exceptions = None
    return answered(member, mark, exceptions=exceptions, ended=Ending.FAILS if fails else Ending.TIMED_OUT)


def death_text(slot: Slot) -> str:
    verdict, status = Verdict(slot[W.VERDICT]), slot[W.STATUS]
    how = ending(status, oom=bool(slot[W.OOM]), in_job=verdict is Verdict.CRASH and bool(slot[W.JOB_AT]))
    ended = "its worker " + (how if how.startswith("left") else f"ended with {how}")
    return f"{verdict.words.before}{ended}, peak memory {slot[W.PEAK] // 1_000_000}M"


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
    try:
        return put_back(read(member), delay) if delay else ()
    except Malformed:
        return ()


def died_here(master: MasterReport) -> bool:
    """Whether it is a master of this host, boot and pid namespace that has certainly died."""
    here = (socket.gethostname(), proc.boot_id(), proc.pid_namespace())
    if (master.host, master.boot, master.ns) != here:
        return False
    return proc.alive(master.pid, master.start) is False


def named(member: bytes) -> dict[str, object]:
    """The log fields `job` and `id`."""
    try:
        payload = read(member)
    except Malformed:
        return {}
    return {"job": cut(payload.job), "id": cut(payload.id or payload.uuid or "") or None}
