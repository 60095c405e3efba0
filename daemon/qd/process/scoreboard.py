"""What the processes of one `qd work` share, in anonymous shared memory: a header, 256 slots, and the lanes of each slot.

It holds hints and results to pass on, never the truth: the server knows which worker holds which job. Each word has one
writer (WHY is set by the master and cleared by the worker). Words have 64 bits, moments are CLOCK_MONOTONIC nanoseconds.
Two text fields describe what a worker does, for people.

Life of a slot: FREE -> (master) STARTING -> (worker) LOOKING <-> WAITING, BUSY, IDLE -> (master) DEAD with a verdict
-> (keeper) its jobs are moved, SETTLED -> (master) FREE.

Prefetch: a worker's jobs start one after another, so few words of the slot describe them all. What has a turn above
STARTED is held; what has one up to that of PROOF has finished. Concurrency: each lane has words of its own.

Life of a lane, one word that only the worker writes: EMPTY -> ASKED (a turn was sent) -> HELD -> STARTED -> EMPTY. If its
job has finished and is not acked yet, another word has a proof (L.PROOF). Lane 0 is the slot itself: a job alone.

Maintenance mode: the keeper writes which queues stay open, workers read it before each job.

H.DOWN   0 no maintenance   1 all queues are shut   else a digest of the open queues; from H.ALLOWED on: one per name

Digests of names instead of indexes: workers of a new configuration may have other queues than the keeper of the old one.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Collection, Iterable, Iterator
from enum import IntEnum
from hashlib import blake2b
from typing import NamedTuple

from qd.process import SLOTS, counters
from qd.process.counters import CounterTable
from qd.process.exit_codes import OVER_TIMEOUT

WORD = 2**64 - 1  # the largest value of a word
WORDS = 42  # a slot's numbers
NAME, QUEUE = counters.JOB, counters.QUEUE  # bytes of text
SLOT_BYTES = WORDS * 8 + NAME + QUEUE
LANE_WORDS = 12
LANE_BYTES = LANE_WORDS * 8 + NAME + QUEUE


class Role(IntEnum):
    WORKER = 0
    SCHEDULER = 1

    @property
    def word(self) -> str:
        return self.name.lower()


class SlotState(IntEnum):
    FREE = 0
    STARTING = 1
    LOOKING = 2  # between jobs
    WAITING = 3  # found no job and waits; or maintenance mode has shut all its queues
    BUSY = 4
    IDLE = 5  # paused or without a keeper: it does not look for jobs
    DEAD = 6
    SETTLED = 7


ALIVE = (SlotState.STARTING, SlotState.LOOKING, SlotState.WAITING, SlotState.BUSY, SlotState.IDLE)


class Verdict(IntEnum):
    """What happens to the job of a dead worker."""

    CRASH = 1  # to the tail of ready; its mark makes the next reserve count a crash
    HAND_BACK = 2  # to the head of ready, the attempt not counted
    TIMEOUT = 3  # delayed by the backoff in the slot
    MEMORY = 4  # over --memory-hard: handled as a crash, logged separately
    CANCELLED = 5  # to the tail of ready; its mark makes the next reserve drop it

    @property
    def words(self) -> VerdictWords:
        return VERDICTS[self]


class VerdictWords(NamedTuple):
    """How a verdict is reported, by the master for the worker and by the keeper for the job."""

    level: str  # of the master's log line
    event: str  # of the master's log line; {child}: worker or scheduler
    killed_for: str | None  # its field `reason`; None: the master did not kill the worker
    requeued_for: str  # the field `reason` of the keeper's log line; `verdict` in the record of a failed job
    before: str = ""  # prefix of the text for how the worker ended


VERDICTS = {
    Verdict.CRASH: VerdictWords("error", "{child}.died", None, "crash"),
    Verdict.HAND_BACK: VerdictWords("warning", "{child}.ended", "stop deadline", "handed back"),
    Verdict.TIMEOUT: VerdictWords("error", "job.killed", "timeout", "timeout", OVER_TIMEOUT),
    Verdict.MEMORY: VerdictWords("error", "job.killed", "memory", "memory", "over --memory-hard, "),
    Verdict.CANCELLED: VerdictWords("warning", "job.killed", "cancelled", "cancelled"),
}


class Why(IntEnum):
    """What SIGALRM means for the current job."""

    TIMEOUT = 1
    INTERRUPT = 2
    LEASE = 3
    CANCEL = 4


class Fails(IntEnum):
    """Whether the current job fails if its worker dies."""

    NOT = 0
    KILLED = 1  # it fails if it is killed for its timeout: this is its last attempt
    HOOKS = 2  # it has failed already: failed() and listeners are running
    HOOKS_BEFORE = 3  # the same in an attempt that did not begin, because the previous one was killed


class W:
    """The words of a slot, and who writes them. Plain integers: Python 3.11 reads a member of an IntEnum four times slower,
    and a job touches twenty words."""

    PID = 0  # master
    GENERATION = 1  # master: counts the workers a slot has had
    STATE = 2  # worker while it is alive, then master, then keeper
    BEAT = 3  # worker: moment of its last heartbeat, between jobs
    JOB_AT = 4  # worker: moment the current job began, 0 none
    DEADLINE = 5  # worker: moment at which its time is over, 0 none
    BACKOFF_MS = 6  # worker: the delay after a timeout
    VERDICT = 7  # master
    STATUS = 8  # master: wait status
    LOST = 9  # worker: lost leases that its answers found and no renewal had; not reset with the slot
    JOBS = 10  # worker: jobs it has run, as max_jobs counts them
    GROWN = 11  # worker: bytes it has grown since it was ready
    WHY = 12  # master: what the next SIGALRM means
    TURN = 13  # worker: its turn number
    PEAK = 15  # master: peak resident bytes, if known
    SILENT = 16  # master: 1 while it misses heartbeats between two jobs, 2 if it does not end although it was killed
    START = 17  # master: start time of the process in clock ticks, as in /proc
    HANDED_BACK = 18  # worker: jobs it gave back unfinished because it stops
    FAILS = 19  # worker: a Fails, of the job of TURN
    OOM = 20  # master: 1 if the kernel killed it for lack of memory
    TOOK_MS = 21  # master: how long the current job had run when it died
    LOST_TURN = 22  # keeper: the turn whose lease a renewal found lost
    OVER = 23  # worker: the turn whose job an alarm has ended, so its deadline no longer applies
    ROLE = 24  # master: a Role
    ENTRIES = 25  # scheduler: number of its schedule entries
    RUNS = 26  # scheduler: number of entries running now, in processes of their own
    LOOKED = 27  # worker: when the look for a job began after which it is WAITING
    LANES = 28  # worker: the highest lane in use, 0 none; written before the turn that asks for them
    BATCH = 29  # worker: batch_of the jobs it took together; their turns ascend by one, and they start in this order
    HELD_AT = 30  # worker: moment (CLOCK_BOOTTIME) before that turn was sent, 0 if it took only one
    STARTED = 31  # worker: turn of the job that it started last; written before it reads RECALL
    PROOF = 32  # worker: proof_of(turn) of the job that finished last
    RECALL = 33  # keeper: BATCH of the jobs that it takes back; none of them starts after this
    SETTLED = 34  # keeper: turn up to which it acks finished jobs of this worker
    STEP = 35  # worker: turn of the job whose step runs on the event loop, 0 none
    STEPS = 36  # worker: count of such steps
    BLAME = 37  # master: turn of the job that ended the worker, 0 unknown
    LEAVES = 38  # worker: 1 once it takes no more jobs and only lets its jobs finish
    SUSPECTS = 39  # worker: 1 while it runs suspects
    SEVERAL = 40  # worker: 1 if it runs several jobs at once, so that its lanes have words of their own
    DONE = 41  # worker: how many of JOBS are done: neither failed nor released


MOST_LANES = 1024


def batch_of(first: int, count: int) -> int:
    """The word of a batch: the turns from `first` to before `first + count`."""
    return first * MOST_LANES + count


def turns_of(batch: int) -> range:
    first, count = divmod(batch, MOST_LANES)
    return range(first, first + count)


class LaneState(IntEnum):
    """What the low bits of L.STATE mean; the rest is the turn."""

    EMPTY = 0
    ASKED = 1  # a turn for it was sent, so the server may have a job in it
    HELD = 2  # it has a job that has not started
    STARTED = 3  # its job may have run


class L:
    """The words of a lane. All are written by the worker except WHY."""

    STATE = 0  # turn << 2 | LaneState
    PROOF = 1  # proof_of(turn) once its job has finished and is not acked yet
    JOB_AT = 2
    DEADLINE = 3
    BACKOFF_MS = 4
    FAILS = 5
    WHY = 6  # master: why the job is to end
    OVER = 7
    THREAD = 9  # the thread that runs its code, 0 for a task


class H:
    KEEPER_ALIVE = 0  # keeper: moment of its last turn
    KEEPER_CONTACT = 1  # keeper: moment of its last reply from the server
    DOWN = 2  # keeper: 0 unless in maintenance mode; see set_open_queues
    FORKED_AT = 3  # master: moment the code now serving was imported
    PAUSED = 4  # master: 1 while paused by USR2
    STOP_AT = 5  # master: moment at which running jobs are ended, 0 while not stopping
    LEASES_LOST = 6  # keeper: count of lost leases that renewals found; see leases_lost
    CRASHES = 7  # master: count of workers that crashed
    CRASHED_AT = 8  # master: with the words after it, the moments of the last KEPT_CRASHES of them
    KEEPER_DEATHS = 16  # master: count
    TOOK_AT = 17  # keeper: moment at which it last saw a new job reserved, 0 never
    MASTER_AT = 18  # master: moment of its last turn, 0 before the first
    SCHEDULER = 19  # master: 1 while it wants a scheduler
    SUSPECTS_AT = 20  # worker: moment at which a worker last ran a suspect
    REFUSED_AT = 21  # master: moment at which it refused new code, 0 once a reload has succeeded
    REFUSALS = 22  # master: count
    RECORDED_REFUSALS = 23  # keeper: what keeper/report.py has recorded of them
    RECORDED_CRASHES = 24  # keeper: what keeper/report.py has recorded of CRASHES
    ALLOWED = 28  # keeper: with the 15 words after it; see set_open_queues
    CRASH_LOOPS = 44  # master: count of deaths in a crash loop
    # keeper: what keeper/report.py has recorded of FORKED_AT, CRASH_LOOPS and the lost leases
    RECORDED_FORK, RECORDED_LOOPS, RECORDED_LOST = 45, 46, 47
    HELD = 48  # keeper: 1 while this host or pool is paused
    WANTED = 49  # master: how many workers it keeps
    PAUSED_JOBS = 50  # keeper: how many names of jobs are paused; the 10 words after it: a digest of each


KEPT_CRASHES = 8
REFUSAL = 2048  # bytes of text


class Scoreboard:
    """Created by the master before it forks; every child inherits the same memory."""

    def __init__(self, lanes: int = 100) -> None:
        """lanes: of each slot, besides lane 0. Memory that no worker uses costs nothing."""
        self.lanes = lanes
        self._memory = mmap.mmap(-1, (SLOTS + 1) * SLOT_BYTES + SLOTS * lanes * LANE_BYTES + REFUSAL)
        self._bytes = memoryview(self._memory)
        self._refusal = self._bytes[-REFUSAL:]
        self.counters = CounterTable()
        self.words = self._bytes.cast("Q")
        self.secret = int.from_bytes(os.urandom(8), "big") | 1  # not in the shared memory

    def header(self, word: int) -> int:
        return self.words[word]

    def set_header(self, word: int, value: int) -> None:
        self.words[word] = value & WORD

    def count(self, word: int) -> None:
        self.words[word] = (self.words[word] + 1) & WORD

    def keeper_is_alive(self) -> None:
        """Called by the keeper, also between the steps of long work."""
        self.words[H.KEEPER_ALIVE] = now()

    def note_crash(self) -> None:
        self.words[H.CRASHED_AT + self.words[H.CRASHES] % KEPT_CRASHES] = now()
        self.count(H.CRASHES)

    def crashes(self) -> list[int]:
        """The moments of the last worker crashes, oldest first."""
        moments = self.words[H.CRASHED_AT : H.CRASHED_AT + KEPT_CRASHES].tolist()
        return sorted(moment for moment in moments if moment)

    def note_refusal(self, text: str) -> None:
        """Called by the master when it refuses new code. text: the reason; the way out."""
        self._refusal[:] = text.encode("utf-8", "replace")[:REFUSAL].ljust(REFUSAL, b"\0")
        self.set_header(H.REFUSED_AT, now())
        self.count(H.REFUSALS)

    def refusal(self) -> str:
        """The text of the last one."""
        return bytes(self._refusal).rstrip(b"\0").decode("utf-8", "ignore")

    def leases_lost(self) -> int:
        """Lost leases found by renewals or by the workers' answers, each counted once."""
        stride = SLOT_BYTES // 8
        return self.words[H.LEASES_LOST] + sum(self.words[stride + W.LOST : (SLOTS + 1) * stride : stride].tolist())

    def slot(self, number: int) -> Slot:
        return Slot(self, number)

    def lane(self, slot: int, number: int) -> Lane:
        """number: from 1 to `lanes`."""
        return Lane(self, slot, number)

    def lane_words(self, slot: Slot, word: int) -> list[int]:
        """This word of each lane of the slot that is in use, from lane 1 on."""
        count, stride = min(slot[W.LANES], self.lanes), LANE_BYTES // 8
        start = ((SLOTS + 1) * SLOT_BYTES + slot.number * self.lanes * LANE_BYTES) // 8 + word
        return self.words[start : start + count * stride : stride].tolist()

    def started(self, slot: Slot) -> list[Lane]:
        """The lanes of the slot whose jobs have started, and may have finished."""
        states = self.lane_words(slot, L.STATE) if slot[W.SEVERAL] else []
        return [self.lane(slot.number, n) for n, state in enumerate(states, 1) if state & 3 == LaneState.STARTED]

    def proof_of(self, turn: int) -> int:
        """The word that says that the job of this turn has finished. A stray write cannot produce it."""
        return (turn * 0x9E3779B97F4A7C15 ^ self.secret) & WORD

    def finished(self, slot: Slot, turns: Collection[int]) -> int:
        """The last of these turns (or STARTED) that the worker's proof is of; 0 for none."""
        proof = slot[W.PROOF]
        return max((turn for turn in (*turns, slot[W.STARTED]) if self.proof_of(turn) == proof), default=0)

    def __iter__(self) -> Iterator[Slot]:
        """All slots in use, in order."""
        stride = SLOT_BYTES // 8
        states = self.words[stride + W.STATE : (SLOTS + 1) * stride : stride].tolist()
        return iter([Slot(self, number) for number, state in enumerate(states) if state != SlotState.FREE])


class Words:
    """The numbers and the two text fields of a slot or lane: `slot[W.STATE]`, `slot[W.STATE] = SlotState.BUSY`.

    words: the same without a call, for the worker's loop. Look it up each time: `detach` replaces it.
    """

    def __init__(self, board: Scoreboard, at: int, count: int) -> None:
        """at: the byte at which they begin. count: of numbers."""
        text = at + count * 8
        self.words = board.words[at // 8 : text // 8]
        self._name, self._queue = board._bytes[text : text + NAME], board._bytes[text + NAME : text + NAME + QUEUE]

    def __getitem__(self, word: int) -> int:
        return self.words[word]

    def __setitem__(self, word: int, value: int) -> None:
        self.words[word] = value & WORD

    def describe(self, name: bytes, queue: bytes) -> None:
        """Set the current job and its queue, cut to the size of the fields."""
        self._name[:] = name[:NAME].ljust(NAME, b"\0")
        self._queue[:] = queue[:QUEUE].ljust(QUEUE, b"\0")

    @property
    def job(self) -> str:
        return bytes(self._name).rstrip(b"\0").decode("utf-8", "replace")

    @property
    def queue(self) -> str:
        return bytes(self._queue).rstrip(b"\0").decode("utf-8", "replace")


class Slot(Words):
    def __init__(self, board: Scoreboard, number: int) -> None:
        self.number = number
        super().__init__(board, (number + 1) * SLOT_BYTES, WORDS)

    def detach(self) -> None:
        """Use private memory from now on: for a copy of the worker that a job has forked."""
        self.words = memoryview(bytearray(WORDS * 8)).cast("Q")
        self._name, self._queue = memoryview(bytearray(NAME)), memoryview(bytearray(QUEUE))

    def clear(self) -> None:
        """Set every word to zero except the counters GENERATION and LOST."""
        for word in range(WORDS):
            if word not in (W.GENERATION, W.LOST):
                self[word] = 0
        self.describe(b"", b"")


class Lane(Words):
    def __init__(self, board: Scoreboard, slot: int, number: int) -> None:
        self.number = number
        self.seat = slot + SLOTS * number
        super().__init__(board, (SLOTS + 1) * SLOT_BYTES + (slot * board.lanes + number - 1) * LANE_BYTES, LANE_WORDS)

    @property
    def state(self) -> tuple[int, LaneState]:
        word = self.words[L.STATE]
        return word >> 2, LaneState(word & 3)

    def set(self, turn: int, state: LaneState) -> None:
        self.words[L.STATE] = turn << 2 | state


now = time.monotonic_ns


MAX_OPEN_QUEUES = 16  # queues that can stay open in maintenance mode
ALL_SHUT = 1  # value of H.DOWN


def digest(name: str) -> int:
    """Never 0 or 1."""
    return int.from_bytes(blake2b(name.encode("utf-8", "replace"), digest_size=8).digest(), "big") | 2


def set_open_queues(board: Scoreboard, down: bool, names: Iterable[str]) -> None:
    """Called by the keeper. Names beyond MAX_OPEN_QUEUES are left out."""
    opened = sorted(set(names))[:MAX_OPEN_QUEUES]
    word = 0 if not down else digest("\0".join(opened)) if opened else ALL_SHUT
    if board.header(H.DOWN) == word:
        return
    if word > ALL_SHUT:
        board.set_header(H.DOWN, ALL_SHUT)  # workers that look meanwhile take nothing
        for at, name in enumerate(opened + [""] * (MAX_OPEN_QUEUES - len(opened))):
            board.words[H.ALLOWED + at] = digest(name) if name else 0
    board.set_header(H.DOWN, word)


MAX_PAUSED_JOBS = 10


def set_paused_jobs(board: Scoreboard, names: Collection[str]) -> None:
    """Called by the keeper. A name that stays paused keeps its word, so that no worker misses it meanwhile."""
    wanted = {digest(name) for name in list(names)[:MAX_PAUSED_JOBS]}
    first = H.PAUSED_JOBS + 1
    words = board.words[first : first + MAX_PAUSED_JOBS].tolist()
    fresh = iter(wanted.difference(words))
    for at, word in enumerate(words):
        if word not in wanted:
            board.words[first + at] = next(fresh, 0)
    board.set_header(H.PAUSED_JOBS, len(wanted))


def is_paused_job(board: Scoreboard, name: str) -> bool:
    if not board.header(H.PAUSED_JOBS):
        return False
    return digest(name) in board.words[H.PAUSED_JOBS + 1 : H.PAUSED_JOBS + 1 + MAX_PAUSED_JOBS].tolist()


def open_queues(board: Scoreboard, down: int) -> frozenset[int]:
    """The digests of the queues that stay open under this H.DOWN. Empty if it has changed meanwhile."""
    if down <= ALL_SHUT:
        return frozenset()
    found = frozenset(board.words[H.ALLOWED : H.ALLOWED + MAX_OPEN_QUEUES].tolist())
    return found - {0} if board.header(H.DOWN) == down else frozenset()
