"""The master's side of the keeper: start it when the settings are known, watch and replace it, report deaths to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Container
from typing import Any

from qd.log import Log
from qd.master.children import Backoff, Death
from qd.options.drivers import WITH_KEYSPACE
from qd.process.channels import Order, OrderPipe
from qd.process.exit_codes import ending
from qd.process.fork import kill_group, reap
from qd.process.scoreboard import H, Scoreboard, now

SILENT = 3.0  # seconds without a sign of life after which a keeper is replaced, at least
BOOTING = 15.0  # the same before its first sign of life: on a busy host its driver takes seconds to load
BLIND_NS = 2_000_000_000  # after such a gap the master itself was stopped, and most likely its keeper, too
STACK = 8000  # characters of a stack that are passed to the keeper


class KeeperProcess:
    def __init__(self, board: Scoreboard, log: Log) -> None:
        self.board, self.log = board, log
        self.settings: str | None = None
        self.also: tuple[str, ...] = ()  # queues of earlier settings: a worker may still run a job of theirs
        self.pid = 0
        self.orders: OrderPipe | None = None
        self._least = SILENT  # seconds
        self._started = 0
        self._looked = self._patient_from = 0
        self._no_fork, self._quick_death = Backoff(0.5, 5.0), Backoff(0.1, 5.0)
        self._leaving = self._replaced = False
        self.dead: dict[int, Order] = {}  # deaths of workers whose jobs must be moved, by slot
        self._unreported: set[int] = set()  # slots of deaths that this keeper has not received

    def want(self, settings: str | None) -> None:
        """Set the settings to serve. A keeper that runs with others is replaced."""
        before, self.settings = self.settings, settings or self.settings
        if before is None or settings is None or settings == before:
            return
        stays = place_of(settings) == place_of(before)
        self.also = tuple(dict.fromkeys((*self.also, *json.loads(before)["work"]["queues"]))) if stays else ()
        if self.pid and self.orders is not None:
            self.log.info("keeper.replaced", reason="the configuration changed")
            self._replaced = True
            if stays and home_of(settings) == home_of(before):
                kill_group(self.pid)
            else:
                self.orders.dismiss()  # it deletes its report: the next keeper uses another server

    def watch(self, fork: Callable[[OrderPipe, str, tuple[str, ...]], int], unsettled: Container[int]) -> None:
        """Start the keeper if it is missing, kill it if it is silent. The next call replaces a killed one.

        unsettled: the slots of dead workers whose jobs it has not moved yet."""
        at, before = now(), self._looked
        self._looked = at
        if at - before > BLIND_NS:
            self._patient_from = at
        for number in [number for number in self.dead if number not in unsettled]:
            del self.dead[number]
            self._unreported.discard(number)
        self._report()
        if self._leaving or self.settings is None:
            return
        if not self.pid:
            if not (self._no_fork.waits or self._quick_death.waits):
                self._start(fork)
                self._report()
        elif min(self.silent_for, (at - self._patient_from) / 1e9) > self._patience():
            self.log.error("keeper.silent", pid=self.pid, seconds=self._patience())
            kill_group(self.pid)
            self._patient_from = at  # log it once, even if the kernel takes its time

    @property
    def silent_for(self) -> float:
        """Seconds since the keeper's last sign of life; 0 before the first start."""
        return (now() - max(self._started, self.board.header(H.KEEPER_ALIVE))) / 1e9 if self._started else 0.0

    def _patience(self) -> float:
        return self._least if self.board.header(H.KEEPER_ALIVE) > self._started else max(BOOTING, self._least)

    def _start(self, fork: Callable[[OrderPipe, str, tuple[str, ...]], int]) -> None:
        assert self.settings is not None
        orders = OrderPipe()
        self.orders = orders
        self._started = now()
        # The lease must outlive a stuck keeper and the start of the next.
        self._least = max(SILENT, float(connection_of(self.settings)["retry_after"]) / 3)
        self._unreported = set(self.dead)  # a new keeper has received none
        try:
            self.pid = fork(orders, self.settings, self.also)
            self._no_fork.clear()
        except OSError as error:
            self.log.error("keeper.fork_failed", error=str(error), retry_in=self._no_fork.step())
        orders.child_end.close()

    def died(self, status: int, *, expected: bool, oom: bool | None = False) -> None:
        self.pid = 0
        if self.orders is not None:
            self.orders.close()
            self.orders = None
        replaced, self._replaced = self._replaced, False
        if expected or replaced:
            return
        self.board.count(H.KEEPER_DEATHS)
        quick = (now() - self._started) / 1e9 < 1.0
        if not quick:
            self._quick_death.clear()
        delay = self._quick_death.step() if quick else None
        self.log.error("keeper.died", how=ending(status, oom=oom), retry_in=delay)

    def report_death(self, death: Death) -> None:
        """Report a death with the stack, for which shared memory has no room. The other facts are in the slot."""
        number = death.worker.slot.number
        self.dead[number] = {"dead": number, "stack": death.stack[-STACK:]}
        self._unreported.add(number)
        self._report()

    def _report(self) -> None:
        """Send the deaths that the keeper has not received. It moves a worker's job only after that."""
        for number in sorted(self._unreported):
            if self.orders is None or not self.orders.send(**self.dead[number]):
                return
            self._unreported.discard(number)

    def leave(self) -> None:
        self._report()
        self._leaving = True
        if self.orders is not None:
            self.orders.dismiss()

    def kill(self) -> None:
        if self.pid:
            kill_group(self.pid)
            reap(self.pid)
            self.pid = 0


PLACE = ("driver", "url", "prefix", "table")


def connection_of(settings: str) -> dict[str, Any]:
    read = json.loads(settings)
    found: dict[str, Any] = read["connections"][read["work"]["connection"]]
    return found


def place_of(settings: str) -> tuple[object, ...]:
    """Identifies the server and keys where leases are renewed. For a connection that stores only jobs, the leases are on
    the control connection, under the connection's name."""
    found = connection_of(settings)
    own = tuple(found[key] for key in PLACE)
    return own if found["driver"] in WITH_KEYSPACE else (*own, found["name"], *home_of(settings))


def home_of(settings: str) -> tuple[object, ...]:
    """Identifies the server and keys of stamps and reports."""
    read = json.loads(settings)
    return tuple(read["connections"][read["control"]][key] for key in PLACE)
