"""What every child is given when it is forked: the shared memory, a voice, who its master is, its place."""

from __future__ import annotations

from dataclasses import dataclass

from qd.log import Log
from qd.process.scoreboard import Role, Scoreboard
from qd.process.talk import Voice


@dataclass(frozen=True, slots=True)
class Seat:
    """A child's place: which slot, which life of it, whether it starts paused, and what it is for."""

    slot: int
    generation: int
    paused: bool
    role: Role = Role.WORKER


@dataclass(frozen=True, slots=True)
class Hands:
    """What every child is given: the shared memory, a voice to the master, the master's token and pid, a log."""

    board: Scoreboard
    voice: Voice
    token: str
    master: int
    log: Log
    code: int = 0  # which import of the app this child runs, without preload
