"""The keeper: one beat per second, at each whole second of the server's clock, and at the next due moment.

    beat                  renew leases, reclaim expired ones, move due jobs, add missing tokens, read stamps, report
    a worker died         its jobs are moved at once (dead_workers.py)
    server unreachable    logged once; after its return renew first, reclaim only after a third of the lease
    failed store          once a minute and queue: delete old records, report records dropped for newer ones
    statistics            every 10 s: add what the workers have counted (report.py)

It moves jobs and runs none. All its state is on the server and the scoreboard, so that a new keeper can continue. It leaves
when the master closes its order stream.
"""

from __future__ import annotations

import math
import os
import select
import socket
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import cast

from setproctitle import setproctitle

from qd.config.settings import Settings
from qd.drivers.base import Factory, KeeperConnector, with_lanes
from qd.drivers.connections import NONE_OWN, open_memory, open_queue
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import Keyspace
from qd.drivers.types import BeatReply, BeatRequest, LateAnswer
from qd.errors import ConnectionLost, QdError, ServerRefused
from qd.keeper import servers
from qd.keeper.controls import FleetOrders, LaravelKeys, Maintenance, Restarts
from qd.keeper.dead_workers import DeadWorkers, named
from qd.keeper.recall import LOOK, Recall
from qd.keeper.report import MasterEvents, Report, Statistics
from qd.keeper.servers import ControlAway, ControlConnection, EmbeddedServer, Permissions, ServerHealth, each_of
from qd.log import Log, Unblocked
from qd.master.code import ChildContext
from qd.options.drivers import WITH_KEYSPACE
from qd.process import SLOTS
from qd.process.channels import Cancel, Lost, OrderReader
from qd.process.scoreboard import ALIVE, H, LaneState, Scoreboard, Slot, W, now
from qd.store.controls import read_restart
from qd.store.masters import MasterReport, forgotten, read_masters

SOON = 0.01
RENEWED = 500  # leases that one call renews at most
REPORT = 0.9  # seconds between two reports, at least: a beat for a due job needs none
PATIENCE = (1.0, 2.0)  # seconds to connect and for a reply: less than the silence after which the keeper is killed
LEAVING = 2.0  # seconds for settling the last dead workers


def run(
    context: ChildContext,
    line: socket.socket,
    settings: Settings,
    also: tuple[str, ...] = (),
    own: Mapping[str, Factory] = NONE_OWN,
) -> int:
    """Run the keeper, in a child of the master. also: queues of earlier settings of which a worker may still run a job.
    own: the app's drivers."""
    log = context.log.of("keeper", Unblocked())
    setproctitle("qd: keeper" + (f" [{settings.work.pool}]" if settings.work.pool else ""))
    title = f"qd:{settings.work.pool or 'default'}:keeper"
    opened = open_queue(settings, settings.work.connection, token=context.token, title=title, own=own)
    queue = cast(KeeperConnector, opened)
    queue.patience(*PATIENCE)
    queue.beats(lambda _: context.board.keeper_is_alive())  # many short steps may take long on a busy host
    control = None
    if settings.control != settings.work.connection:
        control = open_memory(settings, settings.control, title=title)
        at_most = servers.longest_call(settings.connection(settings.work.connection))
        control[0].patience(min(PATIENCE[0], at_most), min(PATIENCE[1], at_most))
        control[0].on_progress(lambda _: context.board.keeper_is_alive())
    return Keeper(settings, queue, control, context, log, also).run(OrderReader(line))


class Keeper:
    def __init__(
        self,
        settings: Settings,
        queue: KeeperConnector,
        control: tuple[Keyspace, str] | None,
        context: ChildContext,
        log: Log,
        also: tuple[str, ...] = (),
    ) -> None:
        """queue: the connection of the jobs. control: the keyspace of stamps and reports; None: that of the queue."""
        self.settings, self.queue = settings, queue
        self.separate = control is not None
        space, prefix = control or queue.kept
        self.control = ControlConnection(space, prefix, settings.connection(settings.control), queue.settings, log)
        self.board: Scoreboard = context.board
        self.context, self.log = context, log
        self.lease = queue.settings.retry_after
        self.longest = max(0.1, self.lease / 3)  # seconds between two beats, where that is less than one
        self.gap = min(1.0, self.longest) + max(0.5, self.lease / 6)  # seconds: a longer pause between two interrupts
        self.queues = tuple(dict.fromkeys((*settings.work.queues, *also)))
        self.dead_workers = DeadWorkers(queue, self.queues, context, log)
        lanes = with_lanes(queue)
        self.recall = Recall(lanes, self.queues, context.board, context.token) if lanes is not None else None
        keep = settings.failed.keep if settings.failed.enabled else 0.0
        self.retention = FailedRetention(queue, self.queues, keep, log)
        self.laravel = LaravelKeys.of(settings, queue, log)
        self.statistics = Statistics(queue, self.queues, self.control, context, log)
        self._control_now = 0.0  # the clock of the control connection's server
        self._connected_at = 0.0  # since when without a break
        self._turned_at = 0.0
        self._renewed_at = 0.0
        self._lost_seats = set[tuple[int, int]]()  # lost leases that were logged: seat and turn
        self._unrenewed = list[int]()  # seats whose leases the next beats renew
        self.server_health = ServerHealth(log, queue.settings.driver, self.queues)
        self._server_now = self._reported_at = 0.0
        self.restarts = Restarts(context, self.laravel, log)
        self.fleet, self._fleet_refused = FleetOrders(settings, context), False
        self.maintenance = Maintenance(settings, self.laravel, self.board, log)
        self.report = Report(settings, context)
        self.events = MasterEvents(settings, context, self.control, log)
        self.embedded = EmbeddedServer(settings, log)
        self.permissions = Permissions(queue, self.queues[0], context.board, log)

    def run(self, orders: OrderReader) -> int:
        deadline = look_at = 0.0
        waker = self.context.waker
        poll = select.poll()  # not select: what it inherits may have descriptors beyond 1024
        for fd in (orders.fileno(), *([waker.fd] if waker is not None else [])):
            poll.register(fd, select.POLLIN)
        while not orders.ended:
            wait = min(deadline, look_at) - time.monotonic()
            ready = {fd for fd, _ in poll.poll(max(0.0, wait) * 1000)}  # rounded up: never before a due moment
            if waker is not None and waker.fd in ready:
                waker.clear()
            if orders.fileno() in ready:
                self.dead_workers.handle(orders.read())
                deadline = 0.0
            self.board.keeper_is_alive()
            look_at = self._recalled()
            if time.monotonic() >= deadline:
                deadline = self._turn()
                self.embedded.look(away=self.server_health.is_away or self.control.is_away)
        if orders.dismissed:  # else the master was killed: the next one needs its report
            self._leave()
        return 0

    def _turn(self) -> float:
        """One beat, or one try to reach the server. Returns the monotonic moment of the next."""
        self._check_gap()
        try:
            self.permissions.look(fresh=not self._connected_at)
            deadline = self._beat()
            self._back()
            self._secondary_tasks()
            return deadline
        except (ConnectionLost, ServerRefused) as error:
            return time.monotonic() + (servers.AGAIN if self.permissions.explain(error) else self._lost(error))

    def _recalled(self) -> float:
        """Take back what workers hold for too long. Returns the monotonic moment of the next look."""
        if self.recall is None:
            return math.inf
        try:
            seconds = self.recall.look()
        except (ConnectionLost, ServerRefused):  # the beat reports it
            seconds = LOOK
        return math.inf if seconds is None else time.monotonic() + seconds

    def _secondary_tasks(self) -> None:
        """Tasks for which a server is known to be unreachable wait for a later beat. Other connection errors are raised."""
        masters = partial(self.dead_workers.settle_masters, self._masters, self.control.forget)
        write, record = partial(self.statistics.write, self._control_now), self.events.record
        for act in (self.dead_workers.settle_workers, masters, self.retention.forget, write, record):
            if act in (masters, write, record) and self.control.is_away:
                continue
            try:
                act()
            except ControlAway:
                pass
            except (ConnectionLost, ServerRefused):
                if not self.server_health.partly_away:
                    raise

    def _check_gap(self) -> None:
        """If this process or its host was suspended, others may have been, too: they must renew before any reclaim."""
        at, before = clock(), self._turned_at
        self._turned_at = at
        if self._connected_at and before and at - before > self.lease / 2:
            self.log.warning("keeper.stalled", seconds=at - before)
            self._connected_at = 0.0

    # -- the beat

    def _beat(self) -> float:
        at = time.monotonic()
        self.restarts.look()
        first = not self.restarts.forked
        report = self.report.text(self.restarts.forked) if at - self._reported_at > REPORT else ""
        reply = self.queue.beat(self.queues, self._request("" if self.separate else report, self._to_renew(at)))
        received = time.monotonic()
        control, fresh = self.control.beat(self._request(report)) if self.separate else (reply, True)
        if control is not None and fresh and (report or first):
            self._read_fleet(control.now, reply)
        if report and fresh and not first:  # the second report has the time of the import
            self._reported_at = at
        self._apply(reply, control, at, first)
        if reply.broke is not None:
            self._secondary_tasks()  # they need only the servers that have replied
            raise reply.broke
        return received + (SOON if first and fresh else self._until_next(reply))

    def _read_fleet(self, server_now: float, reply: BeatReply) -> None:
        """Before KEEPER_CONTACT, so that workers of a paused host take nothing. What was read last stays in force. Raises
        ConnectionLost, because another connection may belong to a user with other rights; not if a node of a cluster that
        the beat missed has the orders."""
        try:
            self.fleet.update(self.control.hash(keys.FLEET), server_now)
        except ControlAway:
            pass
        except ConnectionLost:
            if not reply.away and reply.broke is None:
                raise
        except ServerRefused as error:
            if not self._fleet_refused:
                effect = "pauses of jobs, hosts and pools stay"
                self.log.warning("fleet.unreadable", error=str(error), effect=effect)
            self._fleet_refused = True

    def _request(self, report: str, seats: Sequence[int] = ()) -> BeatRequest:
        """seats: whose leases it renews."""
        return BeatRequest(self.context.token, report, self.lease, bool(seats), self._reclaims_until(), seats)

    def _to_renew(self, at: float) -> list[int]:
        """The seats whose leases the next beat renews: at a third of the lease; at once after a connection is back. While a
        node is away, all the time: the first beat that reaches it again must renew."""
        one_away = self.server_health.partly_away and not self._unrenewed
        if at - self._renewed_at >= self.lease / 3 - 0.6 or not self._connected_at or one_away:
            self._renewed_at, self._unrenewed = at, self._seats()
        seats, self._unrenewed = self._unrenewed[:RENEWED], self._unrenewed[RENEWED:]
        return seats

    def _seats(self) -> list[int]:
        """Where workers have jobs, or may have some: each slot, and the lanes in use."""
        seats = list[int]()
        for slot in self.board:
            if slot[W.STATE] in ALIVE:
                lanes = min(slot[W.LANES], self.board.lanes) + 1
                seats += range(slot.number, slot.number + SLOTS * lanes, SLOTS)
        return seats

    def _apply(self, reply: BeatReply, control: BeatReply | None, at: float, first: bool) -> None:
        """control: of the server with restarts and maintenance, by whose clock restarts are stamped. None: not read yet."""
        # Before KEEPER_CONTACT: new workers wait for that.
        self.report.laravel_down = self.maintenance.update(None if control is None else control.down)
        self.board.set_header(H.KEEPER_CONTACT, 0 if self.permissions.missing else now())
        if self._server_now and reply.now - self._server_now > self.gap:
            self._connected_at = at
        self._server_now = reply.now
        ready = [] if self.board.header(H.HELD) else [self.queues[place] for place in reply.waiting]
        self.report.update(reply.now, [queue for queue in ready if not self.maintenance.shuts(queue)])
        if control is not None:
            self._control_now = control.now
            stamp = self.fleet.newest(read_restart(control.restart.encode()))
            self.restarts.obey(stamp, control.now, first)
            self.fleet.resize(self.restarts.forked)
        self.server_health.update(reply.away)
        self._log_late_answers(reply.late_answers)
        self._report_lost(reply.lost)
        self._report_cancelled(reply.cancelled)
        if reply.reclaimed:
            self.log.warning("lease.expired", jobs=reply.reclaimed, moved="ready")

    def _reclaims_until(self) -> float:
        """The last moment of the server's clock at which the next beat may reclaim, 0 for not at all. After a longer gap,
        hosts were suspended or that clock was set: others need time to renew first."""
        long_enough = self._connected_at and time.monotonic() - self._connected_at > self.lease / 3 + 2
        return self._server_now + self.gap if long_enough else 0.0

    def _until_next(self, reply: BeatReply) -> float:
        if reply.more or self._unrenewed:
            return SOON
        wait = min(1.0 - reply.now % 1.0 + 0.001, self.longest)
        return min(wait, max(0.001, reply.due / 1000)) if reply.due >= 0 else wait

    def _report_lost(self, lost: list[tuple[int, int]]) -> None:
        for seat, turn in lost:
            slot = self.board.slot(seat % SLOTS)
            if seat >= SLOTS and not self._runs(slot, seat, turn):
                continue  # it has finished, or has not started and never will
            # Else it was logged, and its job has not ended yet. With several jobs LOST_TURN may be that of another.
            if slot[W.LOST_TURN] != turn and (seat, turn) not in self._lost_seats:
                slot[W.LOST_TURN] = turn
                self._lost_seats = {*list(self._lost_seats)[:1000], (seat, turn)}
                self.board.count(H.LEASES_LOST)
                self.log.error("lease.lost", slot=slot.number, pid=slot[W.PID], job=slot.job)
            self.context.sender.send(Lost(slot=slot.number, generation=slot[W.GENERATION], turn=turn & 0xFFFFFFFF))

    def _runs(self, slot: Slot, seat: int, turn: int) -> bool:
        """Whether the job of this turn, in a lane, is running as far as the scoreboard tells."""
        if slot[W.SEVERAL]:
            return self.board.lane(slot.number, seat // SLOTS).state == (turn, LaneState.STARTED)
        return slot[W.STARTED] == turn and bool(slot[W.JOB_AT])

    def _log_late_answers(self, late_answers: Sequence[LateAnswer]) -> None:
        for queue, member, there in late_answers:
            if there:
                self.log.info("job.answered_late", queue=queue, **named(member))
            else:
                self.board.count(H.LEASES_LOST)
                self.log.error("job.lease_lost", queue=queue, **named(member))

    def _report_cancelled(self, cancelled: list[tuple[int, int]]) -> None:
        """Repeated at each beat until the job has ended: it may not have begun yet."""
        for seat, turn in cancelled:
            slot = self.board.slot(seat % SLOTS)
            self.context.sender.send(Cancel(slot=slot.number, generation=slot[W.GENERATION], turn=turn & 0xFFFFFFFF))

    # -- the reports of others

    def _masters(self) -> list[MasterReport]:
        """All reports. Deletes those that were not renewed for an hour or cannot be read."""
        flat = self.control.hash(keys.MASTERS)
        fields = {flat[i].decode("utf-8", "replace"): flat[i + 1] for i in range(0, len(flat), 2)}
        self.board.keeper_is_alive()
        old = forgotten(fields, self._server_now)
        self.board.keeper_is_alive()
        self.control.forget(*old)
        for token in old:
            self.dead_workers.forget(self.queues, token)
        return read_masters(fields)

    # -- away and back

    def _lost(self, error: QdError) -> float:
        """Returns the seconds until the next try."""
        if error.server is not None:
            self.control.lost(error)
        self._connected_at = 0.0
        return self.server_health.lost(error)

    def _back(self) -> None:
        has_place = self.queue.settings.driver in WITH_KEYSPACE
        self.server_health.back(lambda: self.queue.kept[0].place if has_place else None)
        self._connected_at = self._connected_at or time.monotonic()

    def _leave(self) -> None:
        """Settle the last dead workers, then delete the own report. Jobs that cannot be settled return by their leases."""
        until = time.monotonic() + LEAVING
        while time.monotonic() < until:
            try:
                self.dead_workers.settle_workers()
                self.retention.forget(leaving=True)
                if not self.control.is_away:
                    self.statistics.write(self._control_now, leaving=True)
                self.queue.beat(self.queues, self._request(""))  # corrects the number of tokens
                if not self.dead_workers.unsettled():
                    self.dead_workers.forget(self.queues, self.context.token)
                    self.control.forget(self.context.token)
                self.events.record(stopped=True)
                return
            except (ConnectionLost, ServerRefused):
                if self.server_health.is_away or self.control.is_away:
                    return  # it was unreachable before: the leases return the jobs
                time.sleep(0.05)
        os._exit(0)


def clock() -> float:
    """Seconds that include the time the host is suspended, if there is such a clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


EVERY = 60.0  # seconds between two deletions, less if records are kept for less; and between two warnings per queue
STEP = 500  # records deleted by one call; if there are more, the next beat continues


class FailedRetention:
    def __init__(self, queue: KeeperConnector, queues: Sequence[str], keep: float, log: Log) -> None:
        """keep: seconds; 0: without limit."""
        self.queue, self.queues, self.keep, self.log = queue, queues, keep, log
        self._due = 0.0
        self._reported: dict[str, tuple[int, float]] = {}  # queue -> counter at its last report, and when that was

    def forget(self, *, leaving: bool = False) -> None:
        """leaving: check now, and report the rest. Raises ConnectionLost after all queues were tried. A refusal (a missing
        permission, a key of another type) must not stop the keeper: it is logged."""
        at = time.monotonic()
        if self.keep and (leaving or at >= self._due):
            self._due = at + min(EVERY, self.keep)
            each_of(self.queues, lambda name: self._of(name, at, leaving))

    def _of(self, name: str, at: float, leaving: bool) -> None:
        try:
            found = self.queue.forget_aged(name, self.keep, STEP)
        except ServerRefused as error:
            self.log.warning("failed.forget_failed", queue=name, error=str(error))
            return
        if found.aged == STEP:
            self._due = at
        self._report(name, found.dropped, at, leaving)

    def _report(self, name: str, dropped: int, at: float, leaving: bool) -> None:
        """Log the drops since the last report. The previous keeper has reported those counted at the first check."""
        before, reported_at = self._reported.setdefault(name, (dropped, at - EVERY))
        if dropped < before:  # the counter started again
            before = 0
        if dropped > before and (leaving or at - reported_at >= EVERY):
            self.log.warning("failed.dropped", queue=name, count=dropped - before, total=dropped)
            self._reported[name] = dropped, at
