"""Which queues a `qd work` serves, in which order a turn checks them (Rota), and which maintenance mode shuts (ShutQueues).

    named      in a flag, a variable, [worker] or [pools.NAME]: these, in strict order, the first one first
    weighted   named with weights (high=5 low=1): in this proportion while all have jobs
    not named  the connection's own queue and every other that the app declares, without those that a pool serves.
               They take turns: after a job of one queue, the next turn begins with the queue after it

The last case requires the imported app: the template calls `resolved` and reports the resulting settings.

On some connections each further queue costs a call. There a worker takes several jobs of one queue (`stays` of the
connection) before it moves to the next. It moves on earlier if a second has passed since the first of them: compared with
long jobs, the call costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import gcd, lcm

from qd.app import Qd
from qd.config.settings import Settings, sent_to
from qd.errors import ConfigError, DeclarationError
from qd.middleware import RateLimited
from qd.process.scoreboard import ALL_SHUT, H, Scoreboard, digest, open_queues
from qd.schedule.entry import JobTask

LONG = 1.0  # seconds after which a worker moves to the next queue
ROUND = 64  # jobs that a worker takes from all weighted queues before it begins again: 1,000 have the proportion within 10 %
PHASE = 0.618  # of a round by which the beginnings of two workers differ


class Rota:
    """order: of the next turn. most: jobs that it takes at most."""

    most = 1_000_000  # no bound

    def __init__(self, queues: tuple[str, ...], *, stays: int = 0, begin: int = 0) -> None:
        """stays: jobs of one queue in a row, 0: strict order. begin: the slot, so that workers begin with other queues."""
        self.queues = self.order = queues
        self._stays = stays
        self._at, self._count, self._since = "", 0, 0.0
        if stays:
            count = len(queues)
            self._orders = {queue: queues[place:] + queues[:place] for place, queue in enumerate(queues)}
            self._behind = {queue: queues[(place + 1) % count] for place, queue in enumerate(queues)}
            self.order = self._orders[queues[begin % count]]

    def took(self, queue: str, now: float, count: int = 1) -> None:
        """Called after a turn in this order returned `count` jobs of `queue`. now: monotonic seconds."""
        if not self._stays:
            return
        if queue != self._at or not self._count:
            self._at, self._count, self._since = queue, 0, now
        self._count += count
        if self._count >= self._stays or now - self._since >= LONG:
            self._count = 0
            queue = self._behind[queue]
        self.order = self._orders[queue]

    def put_back(self, queue: str) -> None:
        """Called for each job that was taken and put back unstarted."""


class WeightedRota(Rota):
    """Queues in proportion to their weights. Each job moves its queue ahead by 1/weight. A worker takes a share of ROUND
    jobs from the queue that is furthest behind, in one turn or several, or as many as it can within a second. If that queue
    is empty, the turn takes from the first other one that is not, in the order in which they were named. A queue that was
    empty does not catch up afterwards."""

    def __init__(self, queues: tuple[str, ...], weights: tuple[int, ...], *, begin: int = 0) -> None:
        super().__init__(queues)
        unit, common = gcd(*weights), lcm(*weights)
        times = max(1, ROUND * unit // sum(weights))
        self._steps = {queue: common // weight for queue, weight in zip(queues, weights, strict=True)}
        self._shares = {queue: times * weight // unit for queue, weight in zip(queues, weights, strict=True)}
        self._orders = {queue: (queue, *[other for other in queues if other != queue]) for queue in queues}
        self._ahead = dict.fromkeys(queues, 0)
        self._choose(0.0)
        for _ in range(int(ROUND * (begin * PHASE % 1))):
            self.took(self.order[0], 0.0)
        later = sorted(queues, key=self._ahead.__getitem__)
        # What they did not really take does not count.
        self._ahead = {queue: place for place, queue in enumerate(later)}

    def took(self, queue: str, now: float, count: int = 1) -> None:
        self._ahead[queue] = at = self._ahead[queue] + count * self._steps[queue]
        if queue != self.order[0]:
            for empty in self.order[: self.order.index(queue)]:
                self._ahead[empty] = max(self._ahead[empty], at)
        elif 2 * count <= self.most and now - self._since < LONG:
            self.most -= count
            return
        self._choose(now)

    def put_back(self, queue: str) -> None:
        self._ahead[queue] -= self._steps[queue]

    def _choose(self, now: float) -> None:
        first = min(self.queues, key=self._ahead.__getitem__)
        self.order, self.most, self._since = self._orders[first], self._shares[first], now


class ShutQueues:
    """Which queues maintenance mode shuts; checked before each job. shut: the queues from which no job
    is taken; () without maintenance or with `force`."""

    def __init__(self, board: Scoreboard, queues: tuple[str, ...], force: bool) -> None:
        self.board, self.queues, self.force = board, queues, force
        self._digests = [digest(queue) for queue in queues]
        self._seen = 0
        self.shut: tuple[str, ...] = ()

    def look(self) -> bool:
        """Check the scoreboard. Returns whether a queue is open."""
        down = 0 if self.force else self.board.header(H.DOWN)
        if down != self._seen:
            self._read(down)
        return not self._seen or len(self.shut) < len(self.queues)

    @property
    def holds(self) -> bool:
        """Whether all queues were shut at the last check."""
        return bool(self._seen) and len(self.shut) == len(self.queues)

    def _read(self, down: int) -> None:
        opened = open_queues(self.board, down)
        if down and self.board.header(H.DOWN) != down:
            down = ALL_SHUT  # it is being changed: take nothing, and read it again at the next check
        pairs = zip(self.queues, self._digests, strict=True)
        self.shut = tuple([queue for queue, digest in pairs if down and digest not in opened])
        self._seen = down


def resolved(app: Qd, settings: Settings) -> Settings:
    """The settings with the queues to serve. Raises ConfigError if pools serve all of them."""
    work = settings.work
    if not work.in_turn or work.only_schedule:
        return settings
    own = settings.connections[work.connection].queue
    others = sorted(declared(app, settings).keys() - {own})
    queues = tuple(queue for queue in (own, *others) if queue not in work.pooled)
    if not queues:
        way = f"({', '.join((own, *others))}): name a pool, `qd work --pool NAME`, or queues, `qd work {own}`"
        raise ConfigError(f"pools serve every queue that the app declares on connection '{work.connection}' {way}")
    return replace(settings, work=replace(work, queues=queues))


def unserved(app: Qd, settings: Settings) -> dict[str, list[str]]:
    """The queues declared on this connection that neither this `qd work` nor a pool serves, with their jobs."""
    work = settings.work
    if work.only_schedule:
        return {}
    found = declared(app, settings)
    return {queue: found[queue] for queue in sorted(found.keys() - {*work.queues, *work.pooled})}


def declared(app: Qd, settings: Settings) -> dict[str, list[str]]:
    """The queues of this connection to which the app's jobs and schedule entries go, with the names of the jobs."""
    found: dict[str, list[str]] = {}
    places = [(job.name, job.options) for job in app._registry]
    tasks = [entry.task for entry in app.schedule.here(settings.env)]
    places += [(task.plan.declared.name, task.plan.options) for task in tasks if isinstance(task, JobTask)]
    for name, options in places:
        place = settings.connections.get(options.connection or settings.default)
        if place is not None and settings.work.connection in sent_to(place.name, settings.connections):
            jobs = found.setdefault(options.queue or place.queue, [])
            if name not in jobs:
                jobs.append(name)
    return found


def check_limits(app: Qd, settings: Settings) -> None:
    """Raises DeclarationError if a job that would run here has an undeclared limit, so that it could never run."""
    if settings.work.only_schedule:
        return
    found = declared(app, settings)
    for name, why in without_limit(app):
        if any(name in found.get(queue, ()) for queue in settings.work.queues):
            raise DeclarationError(f"job '{name}' can never run: {why}")


def without_limit(app: Qd) -> Iterator[tuple[str, str]]:
    """Each job inside a RateLimited whose limit the app has not declared, and the error."""
    for job in app._registry:
        for stage in app.middleware.around(job):
            try:
                if isinstance(stage, RateLimited):
                    stage.limit_in(app._services)
            except DeclarationError as error:
                yield job.name, str(error)
