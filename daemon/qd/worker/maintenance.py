"""What maintenance mode leaves for this worker to do: asked before each job."""

from __future__ import annotations

from qd.process import allowed
from qd.process.scoreboard import H, Scoreboard


class ShutQueues:
    """shut: the queues that nothing is taken from; () when there is no maintenance, or `force` goes on in it."""

    def __init__(self, board: Scoreboard, queues: tuple[str, ...], force: bool) -> None:
        self.board, self.queues, self.force = board, queues, force
        self._digests = [allowed.digest(queue) for queue in queues]
        self._seen = 0
        self.shut: tuple[str, ...] = ()

    def look(self) -> bool:
        """Whether there is a queue that may be worked on."""
        down = 0 if self.force else self.board.header(H.DOWN)
        if down != self._seen:
            self._read(down)
        return not self._seen or len(self.shut) < len(self.queues)

    @property
    def holds(self) -> bool:
        """Whether nothing may be taken at all, by the last look."""
        return bool(self._seen) and len(self.shut) == len(self.queues)

    def _read(self, down: int) -> None:
        open_ones = allowed.read(self.board, down)
        if down and self.board.header(H.DOWN) != down:
            down = allowed.NOTHING  # it is being changed: nothing for now, and the next look reads it again
        pairs = zip(self.queues, self._digests, strict=True)
        self.shut = tuple([queue for queue, digest in pairs if down and digest not in open_ones])
        self._seen = down
