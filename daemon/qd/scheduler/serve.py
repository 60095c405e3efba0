"""The scheduler's process: its boot, and the loop that gives Scheduler its turns. A child of the master.

    TERM: no more ticks, what runs may finish    USR2, CONT: pause, resume    CHLD: a run has ended    USR1: stacks

The master watches it by its sign of life, and kills it with all that it has started.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Protocol

from setproctitle import setproctitle

from qd.app import Qd
from qd.config import Settings
from qd.log import Log
from qd.process.exits import Exit
from qd.process.hands import Hands, Seat
from qd.process.scoreboard import H, State, W, now
from qd.process.signals import Mailbox
from qd.schedule import Entry
from qd.worker import boot

HEARD = (signal.SIGTERM, signal.SIGUSR2, signal.SIGCONT, signal.SIGCHLD)
IDLE = 0.5  # seconds between two looks at what keeps it from its turns
BOOTING = 0.02  # the same until the keeper has reached its server: nobody knows yet whether this is maintenance


class Turns(Protocol):
    """What this loop needs of a scheduler. It is `idle` when it drains and none of its runs is left."""

    paused: bool
    down: bool

    @property
    def idle(self) -> bool: ...

    def turn(self) -> float: ...
    def drain(self) -> None: ...
    def close(self) -> None: ...


def serve(app: Qd, settings: Settings, hands: Hands, seat: Seat, between: Callable[[], None] | None = None) -> int:
    """Become the scheduler in `seat` and work until told to leave. Returns the exit code.

    between: called between two turns.
    """
    hands, stack_fd = boot.settled(hands, seat)
    entries = app.schedule.entries()
    child = Child(turns_of(app, settings, hands.log, entries), len(entries), settings, hands, seat, between)
    os.register_at_fork(after_in_child=child.slot.part)
    ready = partial(hands.voice.tell, "ready", fd=stack_fd, slot=seat.slot, generation=seat.generation)
    return child.run(ready)


class Child:
    def __init__(
        self,
        turns: Turns,
        entries: int,
        settings: Settings,
        hands: Hands,
        seat: Seat,
        between: Callable[[], None] | None,
    ) -> None:
        self.turns, self.entries, self.hands = turns, entries, hands
        self.board, self.slot = hands.board, hands.board.slot(seat.slot)
        self.mailbox = Mailbox()
        self.between = between
        self.force = settings.work.force
        self.turns.paused = seat.paused
        self._draining = False
        self._head = "qd: scheduler" + (f" [{settings.work.pool}]" if settings.work.pool else "")
        self._title = ""

    def run(self, ready: Callable[[], None]) -> int:
        """Until it is told to leave and nothing runs any more. `ready` is called once it hears signals."""
        self.mailbox.open(HEARD)
        self.slot[W.ENTRIES] = self.entries
        self._about()
        ready()
        try:
            while not (self._draining and self.turns.idle):
                wait = self._turn()
                self._show()
                if not (self._draining and self.turns.idle):
                    self.mailbox.peek(wait)
                self._after_wait()
            self.slot[W.STATE] = State.IDLE  # it leaves by itself
            return Exit.OK
        finally:
            self.turns.close()
            self.mailbox.close()

    def _turn(self) -> float:
        """Returns the seconds until the next one."""
        self._hear()
        self.turns.down = bool(self.board.header(H.DOWN)) and not self.force
        if not self.board.header(H.KEEPER_CONTACT) and not self._draining:
            return BOOTING
        wait = self.turns.turn()
        if self.mailbox.mend() and self.board.header(H.STOP_AT):
            self._drain()  # what the app's own code did to our handlers may have cost us the word
        return wait

    def _hear(self) -> None:
        came = set(self.mailbox.read())
        if signal.SIGTERM in came:
            self._drain()
        if came >= {signal.SIGUSR2, signal.SIGCONT}:
            self.turns.paused = bool(self.board.header(H.PAUSED))  # which came last nobody can tell
        elif came & {signal.SIGUSR2, signal.SIGCONT}:
            self.turns.paused = signal.SIGUSR2 in came

    def _drain(self) -> None:
        if not self._draining:
            self._draining = True
            self.turns.drain()

    def _after_wait(self) -> None:
        if os.getppid() != self.hands.master:  # where the kernel does not tell (macOS)
            os._exit(1)
        self._about()
        if self.between is not None:
            self.between()

    def _about(self, seconds: float = 0.0) -> None:
        """A sign of life for the master; the next one may take `seconds`."""
        self.slot[W.BEAT] = now() + int(seconds * 1e9)

    # -- what people see

    def _show(self) -> None:
        turns = self.turns
        state = "paused" if turns.paused else "down" if turns.down else ""
        self.slot[W.STATE] = State.IDLE if state else State.WAITING
        self._say(state or f"with {self.entries} {'entry' if self.entries == 1 else 'entries'}")

    def _say(self, text: str) -> None:
        if text != self._title:
            self._title = text
            setproctitle(f"{self._head} {text}")


class Waits:
    """Stands where Scheduler will: it takes no tick."""

    paused = down = idle = False

    def turn(self) -> float:
        return 1.0

    def drain(self) -> None:
        self.idle = True

    def close(self) -> None:
        pass


def turns_of(app: Qd, settings: Settings, log: Log, entries: tuple[Entry, ...]) -> Turns:
    return Waits()
