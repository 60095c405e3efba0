"""A held lock and its renewal; and what Lock and Limiter share: checks of arguments, owners, the server, patience with it.

Locks with renew=True are renewed by one thread per connection, so that a hanging server does not delay the locks of another.
The thread runs while there is something to renew. A forked copy of the process does not renew the locks of its parent.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from qd.drivers.connections import Connections
from qd.drivers.keyspace.base import Unanswered
from qd.drivers.pausing import Pause, Pausing, block_on, settled, sleep
from qd.errors import ArgumentError, ConnectionLost, EndJob, LockLost, ServerBusy, ServerRefused, Unreachable
from qd.options.kinds import seconds_of
from qd.process.shield import shield
from qd.store.base import Store, store_of
from qd.store.locks import Mutex

if TYPE_CHECKING:
    from concurrent.futures import Executor

T = TypeVar("T")
Threads = Callable[[], "Executor | None"]
PATIENCE = 5.0  # seconds the server may take to reply, the default of a connection
ALREADY = nullcontext()
LONGEST = 200  # characters of a name
AWAY = 60.0  # seconds for which a server may be unreachable while waiting without a timeout
BETWEEN = 0.2  # seconds between two attempts to reach an unreachable server
COURTESY = 0.2  # seconds that giving up a place in line may take: if it fails, we are skipped soon
LEAST = 0.2  # seconds that a renewal may take at least
log = logging.getLogger("qd.locks")


class Owner(NamedTuple):
    """The owner of a lock. id: of this acquire()."""

    host: str
    pid: int
    id: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}" if self.host else f"another program ('{self.id}')"


def new_owner() -> str:
    return f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(8)}"


def read_owner(text: str) -> Owner:
    """An owner that another program has written has only an id: host "", pid 0."""
    host, _, rest = text.partition("/")
    pid, slash, id = rest.partition("/")
    return Owner(host, int(pid), id) if slash and pid.isdecimal() else Owner("", 0, text)


class LockServer:
    """The store on a connection (None: the default one) of the calling thread."""

    def __init__(self, connections: Connections, connection: str | None) -> None:
        self._connections, self._connection = connections, connection
        self.identity = (id(connections), connection)  # equal for the same server

    def ask(self, act: Callable[[Store], T], patience: float = PATIENCE) -> Pausing[T]:
        """The result of act(store); an alarm is delayed until then. Raises ConnectionLost, ServerRefused, ConfigError.

        Calls it again if the connection broke immediately, as one that the server has closed, so `act` must be idempotent.
        """
        began = time.monotonic()
        try:
            return (yield self._once(act, patience))  # type: ignore[no-any-return]
        except (Unreachable, ServerBusy):
            raise
        except ConnectionLost:
            if time.monotonic() - began > patience / 2:
                raise
        return (yield self._once(act, patience))  # type: ignore[no-any-return]

    def _once(self, act: Callable[[Store], T], patience: float) -> Pause:
        def block() -> T:
            queue = self._connections.get(self._connection)
            with shield, queue.within(patience) if patience < PATIENCE else ALREADY:
                return act(store_of(queue))

        async def wait() -> T:
            queue = await self._connections.native(self._connection)
            if queue is None:
                return await in_thread(block)
            return await queue.do_within(patience, lambda found: act(store_of(found)))

        return Pause(block, wait)

    def waiting(self, mutex: Mutex, seconds: float, patience: float, threads: Threads) -> Pause:
        """Wait until the lock may be ours, at most `seconds`. threads: for tasks of an event loop without a connection."""

        def block() -> None:
            queue = self._connections.get(self._connection)
            with queue.within(patience):
                mutex.wait(store_of(queue), seconds)

        async def wait() -> None:
            queue = await self._connections.native(self._connection)
            await (in_thread(block, threads()) if queue is None else queue.pop(mutex.woken_by, seconds))

        return Pause(block, wait)


class RetryPatience:
    """How long to wait, and how long the server may be unreachable meanwhile. timeout: seconds; None: no limit."""

    def __init__(self, timeout: float | None) -> None:
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._away: float | None = None
        self._asked = False

    @property
    def left(self) -> float:
        return float("inf") if self._deadline is None else self._deadline - time.monotonic()

    @property
    def call_timeout(self) -> float:
        """Seconds that a call to the server may take."""
        return min(PATIENCE, max(0.5, self.left))

    def answered(self) -> None:
        self._asked, self._away = True, None

    def bear(self, error: ConnectionLost) -> Pausing[None]:
        """Raise it if the server has never replied, the timeout has passed, or after AWAY seconds; else pause."""
        self._away = self._away or time.monotonic()
        if not self._asked or self.left <= 0 or time.monotonic() - self._away > AWAY:
            raise error
        yield sleep(min(BETWEEN, max(0.001, self.left)))


async def in_thread(body: Callable[[], T], threads: Executor | None = None) -> T:
    """The result of a call, whose end is awaited even if the task is cancelled. threads: None for the loop's own, for short
    calls only: a release must find one free."""
    import asyncio  # loaded only by apps that use it

    return await settled(asyncio.get_running_loop().run_in_executor(threads, body))


def checked_name(what: str, name: object) -> str:
    """Raises ArgumentError."""
    if not isinstance(name, str) or not name:
        raise ArgumentError(f'the name of a {what} is {name!r}: give a text, app.{what}("report", ...)')
    odd = next((char for char in name if char in "{}" or not char.isprintable()), None)
    if odd is not None:
        raise ArgumentError(f"the name of the {what} {name!r} has a {odd!r}: give printable characters without braces")
    if len(name) > LONGEST:
        way = f"give {LONGEST} at most"
        raise ArgumentError(f"the name of the {what} '{name[:40]}...' has {len(name)} characters: {way}")
    return name


def checked_ttl(name: str, ttl: object, what: str = "ttl") -> float:
    """Seconds, at least a millisecond. Raises ArgumentError."""
    if ttl is None or ttl is False or ttl == 0:
        raise ArgumentError(
            f"the lock '{name}' has {what}={ttl!r}: without one it would stay locked if its owner died; give seconds"
            f', and renew=True for work of unknown length: app.lock("{name}", ttl=30, renew=True)'
        )
    seconds = seconds_of(f"the lock '{name}': {what}", ttl, ArgumentError)
    if seconds < 0.001:
        raise ArgumentError(f"the lock '{name}': {what}={seconds:g} is less than a millisecond: give seconds, ttl=30")
    return seconds


def checked_timeout(whose: str, timeout: object) -> float | None:
    """Seconds; None: no limit. Raises ArgumentError."""
    return None if timeout is None else seconds_of(f"{whose}: timeout", timeout, ArgumentError)


class HeldLock:
    """A lock taken at the monotonic time `began` for `ttl` seconds. on_lost: called once with the token if it is lost.
    until: it is ours at least up to this monotonic time. due: when to renew it, a third of the ttl after the last time."""

    def __init__(
        self, server: LockServer, mutex: Mutex, ttl: float, token: int, began: float, on_lost: Callable[[int], object]
    ) -> None:
        self._server, self._mutex, self._on_lost = server, mutex, on_lost
        self.ttl, self.token, self.began = ttl, token, began
        self._held_until(began + ttl)
        self.pid = os.getpid()
        self.identity = server.identity
        self.lost = ""  # why
        self._unreported: list[int] = []  # the token, until on_lost was called
        self._ended = self._release_sent = False
        self._busy = threading.Lock()  # one call at a time: a renewal must not follow a release
        self._found = threading.Lock()  # the renewing thread and the owner may both find it lost

    @property
    def ours(self) -> bool:
        """Whether this process took it; False in a copy that was forked from it."""
        return self.pid == os.getpid()

    def extend(self, seconds: float) -> Pausing[None]:
        """Raises ConnectionLost. Then call `report_loss` and `check`."""
        return self._alone(self._extend(seconds, PATIENCE))

    def _extend(self, seconds: float, patience: float) -> Pausing[None]:
        began = time.monotonic()
        if (yield from self._server.ask(lambda store: self._mutex.extend(store, seconds), patience)):
            self._held_until(began + seconds)
        else:
            self.lose()

    def _alone(self, steps: Pausing[None]) -> Pausing[None]:
        """A task must not wait for the thread that renews the lock, whose call may take seconds."""
        yield Pause(self._busy.acquire, self._acquire_busy)
        try:
            yield from steps
        finally:
            self._busy.release()

    async def _acquire_busy(self) -> None:
        import asyncio  # loaded only by apps that use it

        while not self._busy.acquire(blocking=False):
            await asyncio.sleep(0.01)

    def _held_until(self, moment: float) -> None:
        self.until, self.due = moment, moment - self.ttl * 2 / 3

    def renew(self, patience: float) -> bool:
        """Extend it if it is due, in at most `patience` seconds. False: it needs no more renewals; if it was lost, call
        `report_loss`."""
        with self._busy:
            if self._ended or self.lost:
                return False
            if time.monotonic() < self.due:  # it was extended
                return True
            try:
                block_on(self._extend(self.ttl, min(PATIENCE, max(LEAST, self.ttl / 3), patience)))
            except Exception as error:  # the thread must still renew the others
                self._again(error)
            return not self.lost

    def _again(self, error: Exception) -> None:
        now = time.monotonic()
        if now >= self.until:
            return self.lose(f"for {self.ttl:g} s it could not be renewed: {error}")
        if not isinstance(error, ConnectionLost):
            log.warning("the lock '%s' could not be renewed: %s", self._mutex.name, error)
        self.due = min(self.until, now + min(1.0, self.ttl / 10))

    def give(self) -> Pausing[None]:
        """Release it. Raises LockLost, then call `report_loss`; ConnectionLost: it may be ours until its ttl expires; call
        this again."""
        yield from self._alone(self._released())
        self.check()

    def _released(self) -> Pausing[None]:
        self._ended = True
        if not (yield from self._server.ask(self._give)):
            self.lose()

    def _give(self, store: Store) -> bool:
        """Whether it was ours until now. If the reply to an earlier release was lost, that one has released it, unless its
        ttl had expired."""
        try:
            return self._mutex.give(store) or (self._release_sent and time.monotonic() < self.until)
        except (Unanswered, Unreachable, ServerBusy, ServerRefused):
            raise  # nothing was done
        except BaseException:
            self._release_sent = True
            raise

    def look(self) -> bool:
        """Whether it was lost, as far as this process knows, without a call to the server."""
        if not self.lost and not self._ended and time.monotonic() >= self.until:
            self.lose()
        self.report_loss()
        return bool(self.lost)

    def lose(self, why: str = "") -> None:
        """Record and log, once, that it is no longer ours."""
        with shield, self._found:
            if self.lost:
                return
            self.lost = why or self._why()
            self._unreported.append(self.token)
        log.warning("the lock '%s' was lost (token %d): %s", self._mutex.name, self.token, self.lost)

    def _why(self) -> str:
        now = time.monotonic()
        if now >= self.until:
            return f"its ttl of {self.ttl:g} s was over (a longer ttl, extend() or renew=True)"
        return f"it was deleted, or the server has lost it, {now - self.began:.1f} s after it was taken"

    def report_loss(self) -> None:
        """Call on_lost, once, if it was lost. Its listeners may be slow and may use the lock, so hold no lock here."""
        try:
            token = self._unreported.pop()  # one thread gets it
        except IndexError:
            return
        self._on_lost(token)

    def check(self) -> None:
        if self.lost:
            way = "another may have had it since"
            raise LockLost(f"the lock '{self._mutex.name}' was lost while it was held: {self.lost}; {way}")


def uninterrupted(act: Callable[[], None]) -> None:
    """Run `act`, which must be idempotent, to its end. An alarm that arrives meanwhile is raised afterwards."""
    try:
        with shield:
            act()
    except (EndJob, KeyboardInterrupt):
        with shield:
            act()
        raise


class Renewals:
    """Renews the locks of one connection."""

    def __init__(self) -> None:
        self._locks: set[HeldLock] = set()
        self._changed = threading.Condition(threading.Lock())
        self._thread: threading.Thread | None = None

    def add(self, held: HeldLock) -> None:
        """Add a lock, or wake the thread because its due time has changed."""
        with shield, self._changed:
            self._locks.add(held)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="qd-locks", daemon=True)
                self._thread.start()
            self._changed.notify()

    def drop(self, held: HeldLock) -> None:
        with shield, self._changed:
            self._locks.discard(held)
            if not self._locks:
                self._changed.notify()

    def _run(self) -> None:
        while (held := self._next()) is not None:
            with self._changed:
                ends = min((other.until for other in self._locks if other is not held), default=float("inf"))
            if held.renew(max(LEAST, (ends - time.monotonic()) / 2)):  # as much time is left for the next one
                continue
            with self._changed:
                self._locks.discard(held)
            if held.lost:  # its listeners may be slow, and other locks are due
                threading.Thread(target=held.report_loss, name="qd-lock-lost", daemon=True).start()

    def _next(self) -> HeldLock | None:
        """Wait until a lock is due and return it. None: there are no locks, so the thread ends."""
        with self._changed:
            while self._locks:
                held = min(self._locks, key=attrgetter("due"))
                left = held.due - time.monotonic()
                if left <= 0:
                    return held
                self._changed.wait(left)
            self._thread = None
            return None


_known: dict[tuple[int, object], Renewals] = {}


def renewals(held: HeldLock) -> Renewals:
    """The renewals of its connection in this process."""
    key = (os.getpid(), held.identity)
    return _known.get(key) or _known.setdefault(key, Renewals())
