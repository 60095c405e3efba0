"""The order in which a turn looks at the queues.

    queues named      always the same, the first one first
    none named        in turn: after a job of one queue, the next turn begins with the queue behind it

On some connections each further queue costs a call. There a worker takes several jobs of one queue before it goes on to the
next (`stays` of the connection). A job that is taken a second after the first of them is the last: beside long jobs, the
call costs nothing.
"""

from __future__ import annotations

LONG = 1.0  # seconds


class Rota:
    def __init__(self, queues: tuple[str, ...], *, stays: int = 0, begin: int = 0) -> None:
        """stays: jobs of one queue in a row, 0: strict order. begin: workers begin with different queues."""
        self.queues = self.order = queues
        self._stays = stays
        self._at, self._count, self._since = "", 0, 0.0
        if stays:
            count = len(queues)
            self._orders = {queue: queues[place:] + queues[:place] for place, queue in enumerate(queues)}
            self._behind = {queue: queues[(place + 1) % count] for place, queue in enumerate(queues)}
            self.order = self._orders[queues[begin % count]]

    def took(self, queue: str, now: float) -> None:
        """Called after a turn in this order returned a job of `queue`. now: monotonic seconds."""
        if not self._stays:
            return
        if queue != self._at or not self._count:
            self._at, self._count, self._since = queue, 0, now
        self._count += 1
        if self._count >= self._stays or now - self._since >= LONG:
            self._count = 0
            queue = self._behind[queue]
        self.order = self._orders[queue]
