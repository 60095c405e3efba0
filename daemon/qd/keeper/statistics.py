"""Writes what the workers of this host have counted: every 10 s, with one call to the control connection.

The call has a number. If its reply is lost, the same differences are written again under the same number, by the next keeper
too, and the server ignores a number that it has (process/counters.py: Ledger). A refusal is logged once; nothing is lost
meanwhile.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from qd.drivers.base import KeeperConnector
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import Arg, script
from qd.errors import ServerRefused
from qd.keeper.control_connection import ControlConnection
from qd.log import Log
from qd.master.code import ChildContext
from qd.process.counters import OTHER as OTHER_ROW
from qd.process.counters import Ledger, names_of
from qd.store.statistics import KEPT_HOURS, KEPT_MINUTES, MOST, OTHER, Depth, text_of_depth, text_of_numbers

EVERY = 10.0  # seconds between two writes
BUDGET = 0.2  # seconds for the depths of queues; the next write begins with those that are missing
QUEUES = 300  # whose depths this master writes


class Statistics:
    def __init__(
        self,
        queue: KeeperConnector,
        queues: Sequence[str],
        control: ControlConnection,
        context: ChildContext,
        log: Log,
    ) -> None:
        self.queue, self.control, self.token, self.log = queue, control, context.token, log
        self.counters, self.ledger = context.board.counters, Ledger(context.board.counters)
        self.alive = context.board.keeper_is_alive
        self._queues = deque(queues[:QUEUES])
        self._due = time.monotonic() + EVERY
        self._refused = False

    def write(self, server_now: float, *, leaving: bool = False) -> None:
        """server_now: the clock of the control connection's server. Raises ConnectionLost."""
        at = time.monotonic()
        if at < self._due and not leaving:
            return
        self._due = at + EVERY
        try:
            depths = [] if leaving else self._depths(at + BUDGET)
            number, added = self.ledger.open(self.counters.totals())
            if leaving and not added:
                return
            pairs = [word for text, words in added.items() for word in (self._field(text), text_of_numbers(words))]
            ms = [1000 * KEPT_HOURS, 1000 * KEPT_HOURS, 1000 * KEPT_MINUTES]
            args: list[Arg] = [self.token, number, MOST, *ms, OTHER, len(added), *pairs, *depths]
            names = [keys.STATS_NUMBERS, keys.STATS_TOTAL, keys.stats_hour(int(server_now // 3600))]
            minute = int(server_now // 60)
            self.control.step(script("stats"), [*names, keys.stats_minute(minute), keys.stats_depths(minute)], *args)
            self.ledger.confirm()
        except ServerRefused as error:
            if not self._refused:
                self._refused = True
                effect = "no statistics are written; jobs continue, and their counts are added later"
                self.log.warning("statistics.refused", error=str(error), effect=effect)
            return
        if self._refused:
            self._refused = False
            self.log.info("statistics.written_again")

    def _depths(self, until: float) -> list[str]:
        """Pairs of queue and depths."""
        found, connection = list[str](), self.queue.settings.name
        for _ in range(len(self._queues)):
            if time.monotonic() > until:
                break
            queue = self._queues[0]
            self.alive()
            sizes = self.queue.sizes(queue)
            depth = Depth(sizes.ready, sizes.delayed, sizes.reserved, sizes.failed, sizes.oldest_age)
            found += [f"{connection}{keys.OF}{queue}", text_of_depth(depth)]
            self._queues.rotate(-1)
        return found

    def _field(self, text: bytes) -> str:
        return OTHER if text == OTHER_ROW else keys.OF.join((self.queue.settings.name, *names_of(text)))
