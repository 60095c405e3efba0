"""The master's workers and scheduler, one slot each, and the growing delay before it replaces those that do not stay.

free slot -> requested (from the template, or forked) -> STARTING -> serving -> draining -> dead -> keeper -> free slot
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from qd.master.postmortem import OomKills, crash_stack, crashed_on_loop, job_stack, stack_of
from qd.process import SLOTS, fork, proc
from qd.process.exit_codes import ORDERLY, Exit, ending
from qd.process.scoreboard import L, Lane, Role, Scoreboard, Slot, SlotState, Verdict, W, Why, now
from qd.process.signals import KEPT, TAKE_STACK

SPAWN_PATIENCE = 10.0  # seconds until a requested worker that has not been born is given up
STACK, STACKS = 16_384, 262_144  # bytes that are read of one stack, of those of many threads
NOWHERE = "(its task was waiting)"
CANCELS = 1000  # cancelled jobs of one worker that are remembered
YOUNG = 5.0  # seconds after it was ready in which an idle worker that dies counts as part of a crash loop


@dataclass(slots=True)
class Worker:
    slot: Slot
    generation: int
    code: int  # which import of the app it runs
    asked_at: float
    role: Role = Role.WORKER
    pid: int = 0
    stack_fd: int | None = None
    ready: bool = False
    draining: bool = False
    interrupted: bool = False
    cancelled: int | None = None  # the turn whose job was cancelled and got the signal
    cancelled_at: int = 0
    stack_at: int = 0  # when its stack was requested
    verdict: Verdict | None = None  # set when the master has killed it
    due: Verdict | None = None  # its stacks are being written, and then it is killed for this
    ready_at: float = 0.0  # monotonic, 0 not yet
    killed_at: float = 0.0
    beat: int = 0  # its last heartbeat
    quiet_since: int = 0  # when that was first seen
    lane_cancels: dict[int, int] = field(default_factory=dict)  # turn in a lane -> when its job was cancelled
    late_at: int = 0  # when one of its jobs was first seen to ignore its end
    overdue: set[int] = field(default_factory=set)  # turns of such jobs, which were logged
    step: tuple[int, int] = (0, 0)  # STEP and STEPS, as last seen,
    step_at: int = 0  # since when,
    step_logged: bool = False  # and whether that was logged

    @property
    def busy(self) -> bool:
        """It runs a job, or a run of its schedule is still going."""
        return self.slot[W.STATE] == SlotState.BUSY

    @property
    def has_job(self) -> bool:
        return self.role is Role.WORKER and self.busy

    @property
    def is_starting(self) -> bool:
        """It has not booted, so it cannot have a job."""
        return self.slot[W.STATE] == SlotState.STARTING and not self.ready

    def event(self, what: str) -> str:
        """The name of a log event: `worker.died`."""
        return f"{self.role.word}.{what}"

    def is_ready(self, stack_fd: int | None) -> None:
        self.ready, self.ready_at, self.stack_fd = True, time.monotonic(), stack_fd
        self.quiet_since = now()

    def stays(self, before: float) -> bool:
        """It has done a job, or was ready before that time."""
        return self.ready and (self.slot[W.JOBS] > 0 or self.ready_at < before)

    def take_stack(self) -> None:
        """Have its fault handler write its stack while it still can."""
        if not self.stack_at:
            self.stack_at = now()
            if TAKE_STACK is not None:
                self.send(TAKE_STACK)

    @property
    def cancel_deadline(self) -> int:
        """The moment at which the current job was cancelled; 0 if it was not, or has ended for it."""
        turn = self.slot[W.TURN]
        return self.cancelled_at if self.cancelled == turn & 0xFFFFFFFF and self.slot[W.OVER] != turn else 0

    def send(self, number: int) -> None:
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)  # a child that is not reaped: the pid cannot belong to another process

    def drain(self) -> None:
        """Let it finish the current job, take no other, and leave."""
        self.draining = True
        self.send(signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Death:
    worker: Worker
    status: int
    verdict: Verdict | None  # None: it left cleanly, there is nothing to move
    job: str
    queue: str
    took: float
    jobs: int  # run by it
    done: int  # of these
    handed_back: int
    peak: int  # bytes
    stack: str
    oom: bool | None  # the kernel killed it for lack of memory; None: unknown
    running: int = 0  # jobs that it was running

    @property
    def exit_code(self) -> int:
        return os.waitstatus_to_exitcode(self.status)

    @property
    def how(self) -> str:
        if self.worker.role is Role.SCHEDULER and self.worker.ready and self.verdict and os.WIFEXITED(self.status):
            return f"left with exit code {self.exit_code} (os._exit or sys.exit)"
        return ending(self.status, oom=self.oom, in_job=self.verdict is Verdict.CRASH and bool(self.job))

    @property
    def fell_idle(self) -> bool:
        """It died, without being killed by the master, soon after it was ready and without having had a job."""
        ended_itself = self.verdict is Verdict.CRASH and self.worker.verdict is None
        had_job = self.job or self.jobs or self.running
        return ended_itself and not had_job and time.monotonic() - self.worker.ready_at < YOUNG

    @property
    def is_crash(self) -> bool:
        """Its end was not requested."""
        if self.verdict is None:
            return not self.worker.ready and not self.worker.draining
        return self.verdict in (Verdict.CRASH, Verdict.MEMORY)


class Children:
    """Slots and the workers in them. Forking is left to Spawner."""

    def __init__(self, board: Scoreboard) -> None:
        self.board = board
        self.workers: dict[int, Worker] = {}  # by slot
        self.dead = set[int]()  # slots of dead workers, until the keeper has moved their jobs
        self.oom = OomKills()
        self._moved_at: int | None = 0  # since when no job of a dead worker is waiting to be moved

    def of(self, role: Role) -> list[Worker]:
        return [w for w in self.workers.values() if w.role is role]

    def serving(self, code: int | None = None, role: Role = Role.WORKER) -> list[Worker]:
        """Workers (or schedulers) that take jobs, or will as soon as they have booted."""
        return [w for w in self.of(role) if not w.draining and (code is None or w.code == code)]

    def free_slot(self) -> int | None:
        """A slot without a worker whose last jobs are settled. None: all 256 are taken or wait for the keeper."""
        return next((n for n in range(SLOTS) if n not in self.workers and not self._waits(n)), None)

    def _waits(self, number: int) -> bool:
        """The keeper has not moved the slot's last job yet."""
        return number in self.dead and self.board.slot(number)[W.STATE] != SlotState.SETTLED

    def free_settled(self) -> None:
        """Free the slots of dead workers whose jobs the keeper has moved."""
        for number in [number for number in self.dead if not self._waits(number)]:
            self.dead.remove(number)
            self.board.slot(number).clear()

    def take(self, number: int, code: int, at: float, role: Role = Role.WORKER) -> Worker:
        slot = self.board.slot(number)
        self.dead.discard(number)
        slot.clear()
        slot[W.GENERATION] += 1
        slot[W.STATE], slot[W.ROLE] = SlotState.STARTING, role
        worker = Worker(slot, slot[W.GENERATION], code, at, role)
        self.workers[number] = worker
        return worker

    def born(self, worker: Worker, pid: int) -> None:
        worker.pid = worker.slot[W.PID] = pid
        worker.slot[W.START] = proc.start_time(pid) or 0

    def found(self, number: int, generation: int) -> Worker | None:
        worker = self.workers.get(number)
        return worker if worker is not None and worker.generation == generation else None

    def forget_unborn(self, at: float) -> list[Worker]:
        """Give up workers whose template died between the order and the fork. Their slots are free again."""
        lost = [w for w in self.workers.values() if not w.pid and at - w.asked_at > SPAWN_PATIENCE]
        for worker in lost:
            self.forget(worker)
        return lost

    def forget(self, worker: Worker) -> None:
        self._remove(worker)
        worker.slot.clear()

    def _remove(self, worker: Worker) -> None:
        if worker.stack_fd is not None:
            os.close(worker.stack_fd)
        del self.workers[worker.slot.number]

    def kill(self, worker: Worker, verdict: Verdict) -> None:
        """The only way to kill a worker. Its job is settled after the process has ended."""
        if worker.verdict is None:
            worker.verdict, worker.killed_at = verdict, time.monotonic()
        if worker.pid:
            fork.kill_group(worker.pid)

    def reap(self, pid: int) -> Death | None:
        """Reap an ended child. Returns None if it was not a worker."""
        worker = next((w for w in self.workers.values() if w.pid == pid), None)
        status, peak = fork.reap(pid)
        if worker is None:
            return None
        slot, at = worker.slot, now()
        lanes = self.board.started(slot)
        crashed = os.WIFSIGNALED(status) and os.WTERMSIG(status) in KEPT
        if worker.verdict is None and crashed:
            worker.verdict = worker.due
        if lanes and worker.verdict is None and crashed:
            slot[W.BLAME] = slot[W.STEP] if crashed_on_loop(self._written(worker, STACK)) else 0
        blamed = next((lane for lane in lanes if lane.state[0] == slot[W.BLAME]), None)
        if blamed is not None:
            slot.describe(blamed.job.encode(), blamed.queue.encode())
        began = slot[W.JOB_AT] if blamed is None else blamed[L.JOB_AT]
        took = (at - began) / 1e9 if 0 < began <= at else 0.0
        code = os.waitstatus_to_exitcode(status)
        clean = slot[W.STATE] == SlotState.IDLE and code in ORDERLY
        verdict = None if clean or not worker.ready else worker.verdict or Verdict.CRASH
        job, queue = slot.job if began else "", slot.queue if began or worker.role is Role.SCHEDULER else ""
        stack = crash_stack(self._written(worker, STACK)) if crashed else self.stack(worker, blamed)
        running = len(lanes) or int(bool(began))
        oom = self.oom.killed(status) if worker.verdict is None else False
        counts = slot[W.JOBS], slot[W.DONE], slot[W.HANDED_BACK]
        death = Death(worker, status, verdict, job, queue, took, *counts, peak, stack, oom, running)
        self._remove(worker)
        if verdict is None:
            slot.clear()
        else:
            slot[W.VERDICT], slot[W.STATUS], slot[W.PEAK] = verdict, status, peak
            slot[W.OOM], slot[W.TOOK_MS] = int(bool(death.oom)), int(took * 1000)
            slot[W.STATE] = SlotState.DEAD  # last: from now on the keeper may read the other words
            self.dead.add(slot.number)
        return death

    def stack(self, worker: Worker, lane: Lane | None = None) -> str:
        """The last Python stack that its fault handler wrote; empty if there is none. lane: of that job; None: with several
        jobs, of the event loop."""
        if not worker.stack_at:
            return ""
        if not self.board.started(worker.slot):
            return job_stack(self._written(worker, STACK))
        if lane is not None and not lane[L.THREAD] and worker.slot[W.STEP] != lane.state[0]:
            return NOWHERE
        return stack_of(self._written(worker, STACKS), lane[L.THREAD] if lane is not None else 0)

    def _written(self, worker: Worker, most: int) -> str:
        """The last `most` bytes that its fault handler wrote."""
        if worker.stack_fd is None:
            return ""
        try:
            size = os.fstat(worker.stack_fd).st_size
            return os.pread(worker.stack_fd, most, max(0, size - most)).decode("utf-8", "replace")
        except OSError:
            return ""

    def alarm(self, worker: Worker, why: Why, turn: int | None = None) -> bool:
        """End the worker's job from inside. turn: of the job; None: the current one. False: that job is not running."""
        current = worker.slot[W.TURN] & 0xFFFFFFFF
        found = False
        for lane in self.board.started(worker.slot):
            its = lane.state[0] & 0xFFFFFFFF
            if turn is None or turn == its:
                lane[L.WHY], found = why | its << 8, True
        if turn is None or turn == current:
            worker.slot[W.WHY] = why | current << 8
        elif not found:
            return False
        worker.send(signal.SIGALRM)
        return True

    def cancel(self, worker: Worker, turn: int) -> None:
        """Cancel the job of that turn. The signal is sent once; Watchdog kills a job that does not end in time."""
        if not worker.has_job or worker.cancelled == turn or turn in worker.lane_cancels:
            return
        in_lane = any(lane.state[0] & 0xFFFFFFFF == turn for lane in self.board.started(worker.slot))
        if not self.alarm(worker, Why.CANCEL, turn):
            return
        if in_lane:
            worker.lane_cancels = dict([*worker.lane_cancels.items()][-CANCELS:]) | {turn: now()}
        else:
            worker.cancelled, worker.cancelled_at = turn, now()

    def all_found_nothing(self) -> bool:
        """Every worker waits, and has found no job since the jobs of the last dead one were moved: the queues are empty as
        far as this program can tell. Called at each turn."""
        if self.unsettled():
            self._moved_at = None
            return False
        self._moved_at = now() if self._moved_at is None else self._moved_at
        if any(worker.busy for worker in self.of(Role.WORKER) if worker.draining):
            self._moved_at = None  # what it puts back was not there when the others looked
            return False
        slots = [worker.slot for worker in self.serving()]
        found_nothing = (s[W.STATE] == SlotState.WAITING and s[W.LOOKED] >= self._moved_at for s in slots)
        return bool(slots) and all(found_nothing)

    def unsettled(self) -> bool:
        return any(self._waits(number) for number in self.dead)


MAX_BOOT_DEATHS = 5  # after so many, if no worker has ever been ready, the program exits
FIRST, LONGEST = 0.1, 30.0  # seconds until the next try
NO_PROCESS, NO_PROCESS_LONGEST = 1.0, 4.0  # the same after a failed fork: shorter, a process may end at any moment
SETTLED = 5.0  # seconds after which an idle worker is not part of a crash loop


@dataclass(slots=True)
class Backoff:
    """A delay that doubles with each failure."""

    first: float
    longest: float = LONGEST
    count: int = 0
    until: float = 0.0  # monotonic

    def step(self) -> float:
        """Count a failure. Returns the seconds until the next try."""
        delay = min(self.longest, self.first * 2.0 ** min(self.count, 30))
        self.count += 1
        self.until = time.monotonic() + delay
        return delay

    def clear(self) -> None:
        self.count, self.until = 0, 0.0

    @property
    def waits(self) -> bool:
        return time.monotonic() < self.until


class BootBackoff:
    """boot: deaths before ready. fall: deaths of ready workers that had no job. fork: failed forks."""

    def __init__(self) -> None:
        self.boot, self.fall = Backoff(FIRST), Backoff(FIRST)
        self.fork = Backoff(NO_PROCESS, NO_PROCESS_LONGEST)
        self.ever_ready = False
        self.missing = list[int]()  # pids of those that died, until others are ready in their place
        self._fell_at = 0.0

    @property
    def may_spawn(self) -> bool:
        return not (self.boot.waits or self.fall.waits or self.fork.waits)

    def ready(self) -> None:
        self.boot.clear()
        self.ever_ready = True

    def fell(self, at: float) -> float:
        """A ready worker died without having had a job. Returns the seconds until the next try."""
        self._fell_at = at
        return self.fall.step()

    def look(self, workers: Iterable[Worker], at: float) -> None:
        """End the crash loop if a worker that came after the last fall stays. (Older ones prove nothing.)"""
        if self.fall.count:
            for worker in workers:
                if worker.stays(at - SETTLED):
                    self.worked(worker)

    def worked(self, worker: Worker) -> None:
        if worker.ready_at > self._fell_at:
            self.fall.clear()

    def hopeless(self, exit_code: int) -> Exit | None:
        """The exit code of `qd work` if trying again makes no sense, else None."""
        if self.ever_ready:
            return None
        if exit_code in (Exit.IMPORT, Exit.CONFIG):
            return Exit(exit_code)
        return Exit.IMPORT if self.boot.count >= MAX_BOOT_DEATHS else None
