"""The order in which a turn looks at the queues.

    queues named      always the same, the first one first
    none named        in turn: after a job of one queue, the next turn begins with the queue behind it

On some connections each further queue costs a call. There a worker takes several jobs of one queue before it goes on to the
next (`stays` of the connection).
"""

from __future__ import annotations


class Rota:
    def __init__(self, queues: tuple[str, ...], *, stays: int = 0, begin: int = 0) -> None:
        """stays: jobs of one queue in a row, 0: strict order. begin: workers begin with different queues."""
        self.queues = self.order = queues
        self._stays = stays
        self._at, self._count = "", 0
        if stays:
            count = len(queues)
            self._orders = {queue: queues[place:] + queues[:place] for place, queue in enumerate(queues)}
            self._behind = {queue: queues[(place + 1) % count] for place, queue in enumerate(queues)}
            self.order = self._orders[queues[begin % count]]

    def took(self, queue: str) -> None:
        """Called after a turn in this order returned a job of `queue`."""
        if not self._stays:
            return
        self._count = self._count + 1 if queue == self._at else 1
        self._at = queue
        if self._count >= self._stays:
            self._count = 0
            queue = self._behind[queue]
        self.order = self._orders[queue]
