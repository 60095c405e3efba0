"""Counts of jobs in shared memory: what the workers of each slot have counted, and what of it was written.

    CounterTable   a table per slot: a row for each queue and job name, filled in order; row 0 is for what does not fit
    SlotCounters   what a worker counts: two words of a row per job, and two buckets
    Ledger         what the server has (base), and what the write that has no reply yet adds up to (pending)

A row's counters only grow, and rows stay while the master lives: the next worker of the slot continues with them. A row has
one writer: the worker, and once it is dead the keeper. So jobs that a dead worker was running are simply those that were
started and have no outcome, and settling them twice changes nothing.

Words have 64 bits and do not overflow, so a whole row is added as one large integer.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from enum import IntEnum

from qd.process import SLOTS

JOB, QUEUE = 96, 64  # bytes of text, as on the scoreboard
TEXT = JOB + QUEUE
BUCKETS = 24  # upper bounds 1 ms, 2 ms, 4 ms ... 70 min, and one for longer times
BOUNDS = [1000 << bucket for bucket in range(BUCKETS - 1)]  # in microseconds
WAIT, RUN = 9, 9 + BUCKETS  # the first word of each histogram; the words before are C
WAIT_US, RUN_US = RUN + BUCKETS, RUN + BUCKETS + 1  # sums in microseconds
WORDS = 60  # of a row
NUMBERS = WORDS * 8
ROW = NUMBERS + TEXT
ROWS = 64  # of a slot
NAMES = 301  # rows of the ledger; row 0 as above
TABLES = SLOTS * 8  # bytes in front of them: how many rows of each slot are in use, so that nobody touches the others
LEDGER = TABLES + SLOTS * ROWS * ROW
LEDGER_ROW = 2 * NUMBERS + TEXT
BLANK = bytes(TEXT)
OTHER = b"other".ljust(TEXT, b"\0")


class C(IntEnum):
    """How many attempts were started, and how they ended. started = the sum of the others + those running."""

    STARTED = 0
    DONE = 1
    FAILED = 2
    RELEASED = 3
    TIMED_OUT = 4
    CRASHED = 5
    CANCELLED = 6
    LEASE_LOST = 7
    HANDED_BACK = 8


OUTCOMES = tuple(C)[1:]


def text_of(queue: str, job: str) -> bytes:
    """The text of a row; long names are cut."""
    name = job.encode("utf-8", "replace")[:JOB].ljust(JOB, b"\0")
    return name + queue.encode("utf-8", "replace")[:QUEUE].ljust(QUEUE, b"\0")


def names_of(text: bytes) -> tuple[str, str]:
    """Queue and job of a row's text."""
    job, queue = [part.rstrip(b"\0").decode("utf-8", "ignore") for part in (text[:JOB], text[JOB:])]
    return queue, job


Row = memoryview  # the words of a row


class CounterTable:
    """Created by the master before it forks. Memory that is not used costs nothing."""

    def __init__(self) -> None:
        self.memory = memoryview(mmap.mmap(-1, LEDGER + 8 + NAMES * LEDGER_ROW))
        self.words = self.memory.cast("Q")
        self._known: list[list[tuple[Row, bytes]]] = [[] for _ in range(SLOTS)]  # rows by slot

    def slot(self, number: int) -> SlotCounters:
        return SlotCounters(self, number)

    def row(self, slot: int, number: int) -> tuple[Row, memoryview]:
        at = TABLES + (slot * ROWS + number) * ROW
        return self.words[at // 8 : at // 8 + WORDS], self.memory[at + NUMBERS : at + ROW]

    def rows(self, slot: int) -> Iterator[tuple[Row, bytes]]:
        for number in range(self.words[slot]):
            row, text = self.row(slot, number)
            yield row, bytes(text) if number else OTHER

    def totals(self) -> dict[bytes, int]:
        """Text -> its numbers in all slots, packed into one integer."""
        found = dict[bytes, int]()
        for slot, known in enumerate(self._known):
            if len(known) < self.words[slot]:  # rows stay, so what is known of them stays true
                known[:] = self.rows(slot)
            for row, text in known:
                found[text] = found.get(text, 0) + int.from_bytes(row, "little")
        return {text: numbers for text, numbers in found.items() if numbers}


class SlotCounters:
    """The rows of one slot. A worker with several jobs counts in one thread only."""

    def __init__(self, table: CounterTable, slot: int) -> None:
        self._table, self._slot = table, slot
        self._rows = {text: row for row, text in table.rows(slot)}
        self._known = dict[tuple[str, str], Row]()

    def started(self, queue: str, job: str, wait_us: int | None = None) -> Row:
        """Count a start. wait_us: since the job was due; None: unknown. Returns the row, for `ended`."""
        row = self._known.get((queue, job))
        if row is None:
            row = self._row(queue, job)
        row[0] += 1
        if wait_us is not None:
            row[WAIT + bisect_left(BOUNDS, wait_us)] += 1
            row[WAIT_US] += wait_us
        return row

    def ended(self, row: Row, outcome: int, run_us: int) -> None:
        """Count an outcome, a C."""
        row[RUN + bisect_left(BOUNDS, run_us)] += 1
        row[RUN_US] += run_us
        row[outcome] += 1

    def note_run(self, row: Row, run_us: int) -> None:
        """Count the time of a dead worker's job. Its outcome is counted apart, with those of other jobs, in one step."""
        row[RUN + bisect_left(BOUNDS, run_us)] += 1
        row[RUN_US] += run_us

    def running(self) -> dict[bytes, Row]:
        """The rows of jobs without an outcome."""
        return {text: row for row, text in self._table.rows(self._slot) if self.count_running(row)}

    def count_running(self, row: Row) -> int:
        started, *ended = row[: len(C)].tolist()
        return int(started) - sum(ended)

    def _row(self, queue: str, job: str) -> Row:
        text, words = text_of(queue, job), self._table.words
        row, used = self._rows.get(text), max(1, words[self._slot])
        if row is None and used < ROWS:
            row, place = self._table.row(self._slot, used)
            place[:], self._rows[text] = text, row
            words[self._slot] = used + 1
        if row is None:
            return self._table.row(self._slot, 0)[0]
        if len(self._known) > 10 * ROWS:
            self._known.clear()
        self._known[queue, job] = row
        return row


class Ledger:
    """Used by the keeper alone; the next keeper continues. Every difference is written under one number.

    open     if the last write has no reply: the same number and differences again
    confirm  the server has them
    """

    def __init__(self, table: CounterTable) -> None:
        self._memory = table.memory[LEDGER:]
        self._state = self._memory[:8].cast("Q")  # 2 x number, and 1 while that write has no reply
        self._at = dict[bytes, int]()
        for row in range(NAMES):
            at = 8 + row * LEDGER_ROW
            text = bytes(self._memory[at + 2 * NUMBERS : at + LEDGER_ROW]) if row else OTHER
            if text == BLANK:
                break
            self._at[text] = at

    def open(self, totals: Mapping[bytes, int]) -> tuple[int, dict[bytes, list[int]]]:
        """The number of the next write, and for each text the words that it adds."""
        if not self._state[0] & 1:
            self._stage(totals)
            self._state[0] += 3
        added = dict[bytes, list[int]]()
        for text, at in self._at.items():
            base, pending = (self._memory[each : each + NUMBERS] for each in (at, at + NUMBERS))
            if base != pending:
                added[text] = [new - old for new, old in zip(pending.cast("Q"), base.cast("Q"), strict=True)]
        return self._state[0] >> 1, added

    def confirm(self) -> None:
        for at in self._at.values():
            self._memory[at : at + NUMBERS] = self._memory[at + NUMBERS : at + 2 * NUMBERS]
        self._state[0] &= ~1

    def _stage(self, totals: Mapping[bytes, int]) -> None:
        sums = dict[int, int]()
        for text, numbers in totals.items():
            at = self._at.get(text) or self._add(text)
            sums[at] = sums.get(at, 0) + numbers
        for at, numbers in sums.items():
            self._memory[at + NUMBERS : at + 2 * NUMBERS] = numbers.to_bytes(NUMBERS, "little")

    def _add(self, text: bytes) -> int:
        """The row of a new text; that of the others if the table is full."""
        if len(self._at) == NAMES:
            return self._at[OTHER]
        at = self._at[text] = 8 + len(self._at) * LEDGER_ROW
        self._memory[at + 2 * NUMBERS : at + LEDGER_ROW] = text
        return at
