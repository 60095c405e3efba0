"""What lock and limiter are made of: names, lengths of time, owners, and the server that is asked.

A lock in hand: extended, renewed, given back, or found to be lost. Used by lock.py, and by the thread that renews.

The threads that renew the locks with renew=True: one a connection, so that a server which hangs costs those of another
nothing; there while there is something to renew.

A copy that was forked has no such thread and renews nothing; locks that it takes itself get a thread of its own.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from operator import attrgetter
from typing import NamedTuple, TypeVar

from qd.drivers.connections import Connections
from qd.errors import ArgumentError, ConnectionLost, EndJob, LockLost, ServerBusy, ServerRefused, Unreachable
from qd.options.kinds import span_in_code
from qd.process.shield import shield
from qd.store.base import Store, store_of
from qd.store.locks import Mutex

T = TypeVar("T")
PATIENCE = 5.0  # seconds the server may take to answer, as a connection has them anyway
ALREADY = nullcontext()
LONGEST = 200  # characters of a name
AWAY = 60.0  # seconds for which a server may be away while one waits without a timeout


class Owner(NamedTuple):
    """Who has a lock. id: of this one taking of it."""

    host: str
    pid: int
    id: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}" if self.host else f"somebody ('{self.id}')"


def new_owner() -> str:
    return f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(8)}"


def read_owner(text: str) -> Owner:
    """Of one that another program has written, the text is all that is known: host "", pid 0."""
    host, _, rest = text.partition("/")
    pid, slash, id = rest.partition("/")
    return Owner(host, int(pid), id) if slash and pid.isdecimal() else Owner("", 0, text)


class LockServer:
    """The store on the connection called `connection` (None: the default), as the calling thread sees it."""

    def __init__(self, connections: Connections, connection: str | None) -> None:
        self._connections, self._connection = connections, connection
        self.server = (id(connections), connection)  # what is one server, as far as is known here

    @property
    def store(self) -> Store:
        """Raises ConfigError."""
        return store_of(self._connections.get(self._connection))

    def within(self, seconds: float) -> AbstractContextManager[None]:
        return self._connections.get(self._connection).within(seconds)

    def ask(self, ask: Callable[[Store], T], patience: float = PATIENCE) -> T:
        """What the store says. An alarm waits until it has; raises ConnectionLost, ServerRefused, ConfigError.

        Asked once more where the connection broke at once, as one does that the server has closed: whatever is asked here
        may be asked twice.
        """
        queue, began = self._connections.get(self._connection), time.monotonic()
        with shield, queue.within(patience) if patience < PATIENCE else ALREADY:
            try:
                return ask(store_of(queue))
            except (Unreachable, ServerBusy):
                raise
            except ConnectionLost:
                if time.monotonic() - began > patience / 2:
                    raise
            return ask(store_of(queue))


def checked_name(what: str, name: object) -> str:
    """Raises ArgumentError."""
    if not isinstance(name, str) or not name:
        raise ArgumentError(f'the name of a {what} is {name!r}: give a text, app.{what}("report", ...)')
    odd = next((char for char in name if char in "{}" or not char.isprintable()), None)
    if odd is not None:
        raise ArgumentError(f"the name of the {what} {name!r} has a {odd!r}: give printable characters without braces")
    if len(name) > LONGEST:
        raise ArgumentError(
            f"the name of the {what} '{name[:40]}...' has {len(name)} characters: give {LONGEST} at most"
        )
    return name


def checked_ttl(name: str, ttl: object, what: str = "ttl") -> float:
    """Seconds, at least a millisecond. Raises ArgumentError."""
    if ttl is None or ttl is False or ttl == 0:
        raise ArgumentError(
            f"the lock '{name}' has {what}={ttl!r}: without one it would stay for ever when its owner dies; give seconds"
            f', and renew=True for work of unknown length: app.lock("{name}", ttl=30, renew=True)'
        )
    try:
        seconds = span_in_code(ttl)
    except ValueError as error:
        raise ArgumentError(f"the lock '{name}': {what}: {error}") from None
    if seconds < 0.001:
        raise ArgumentError(f"the lock '{name}': {what}={seconds:g} is less than a millisecond: give seconds, ttl=30")
    return seconds


def checked_timeout(whose: str, timeout: object) -> float | None:
    """Seconds; None: without end. Raises ArgumentError."""
    if timeout is None:
        return None
    try:
        return span_in_code(timeout)
    except ValueError as error:
        raise ArgumentError(f"{whose}: timeout: {error}") from None


log = logging.getLogger("qd.locks")
LEAST = 0.2  # seconds that a call to renew it may take at least


class HeldLock:
    """`token` of the lock of `mutex`, taken at the monotonic moment `began` for `ttl` seconds. told: called once when it is
    found to be lost. until: the moment to which it is certainly ours, as far as is known here. due: that at which it is to
    be renewed: a third of the ttl after it was held for a ttl."""

    def __init__(
        self, place: LockServer, mutex: Mutex, ttl: float, token: int, began: float, told: Callable[[int], object]
    ) -> None:
        self._place, self._mutex, self._told = place, mutex, told
        self.ttl, self.token, self.began = ttl, token, began
        self._held_until(began + ttl)
        self.pid = os.getpid()
        self.server = place.server
        self.lost = ""  # why
        self._untold: list[int] = []  # the token of a loss that the listeners have not heard of
        self._ended = self._asked_back = False
        self._busy = threading.Lock()  # one call about it at a time: a renewal does not come behind a release
        self._found = threading.Lock()  # by one: who renews and who looks may both find it lost

    @property
    def ours(self) -> bool:
        """Whether this process took it; False in a copy that was forked from it."""
        return self.pid == os.getpid()

    def extend(self, seconds: float) -> None:
        """Raises LockLost, ConnectionLost."""
        try:
            with shield, self._busy:
                self._extend(seconds, PATIENCE)
        finally:
            self.tell()
        self.check()

    def _extend(self, seconds: float, patience: float) -> None:
        began = time.monotonic()
        if self._place.ask(lambda store: self._mutex.extend(store, seconds), patience):
            self._held_until(began + seconds)
        else:
            self.lose()

    def _held_until(self, moment: float) -> None:
        self.until, self.due = moment, moment - self.ttl * 2 / 3

    def renew(self, patience: float) -> bool:
        """Extend it, when it is due, by a call that takes `patience` seconds at most. False: it is never due again; when
        it was lost, `tell` is next."""
        with self._busy:
            if self._ended or self.lost:
                return False
            if time.monotonic() < self.due:  # it was extended
                return True
            try:
                self._extend(self.ttl, min(PATIENCE, max(LEAST, self.ttl / 3), patience))
            except Exception as error:  # the thread that renews the others goes on
                self._again(error)
            return not self.lost

    def _again(self, error: Exception) -> None:
        now = time.monotonic()
        if now >= self.until:
            return self.lose(f"for {self.ttl:g} s it could not be renewed: {error}")
        if not isinstance(error, ConnectionLost):
            log.warning("the lock '%s' could not be renewed: %s", self._mutex.name, error)
        self.due = min(self.until, now + min(1.0, self.ttl / 10))

    def give(self) -> None:
        """Raises LockLost, of which the listeners hear by `tell`; ConnectionLost: it may be ours until its ttl is over, and
        this can be called again."""
        with shield, self._busy:
            self._ended = True
            if not self._place.ask(self._give):
                self.lose()
        self.check()

    def _give(self, store: Store) -> bool:
        """Whether it was ours until now. A "no" says nothing where it was asked before and the answer was lost: that has
        given it back, unless its ttl was over."""
        try:
            return self._mutex.give(store) or (self._asked_back and time.monotonic() < self.until)
        except (Unreachable, ServerBusy, ServerRefused):
            raise  # nothing was done
        except BaseException:
            self._asked_back = True
            raise

    def look(self) -> bool:
        """Whether it was lost, as far as is known here; no server is asked."""
        if not self.lost and not self._ended and time.monotonic() >= self.until:
            self.lose()
        self.tell()
        return bool(self.lost)

    def lose(self, why: str = "") -> None:
        """It is not ours any more: found once."""
        with shield, self._found:
            if self.lost:
                return
            self.lost = why or self._why()
            self._untold.append(self.token)
        log.warning("the lock '%s' was lost (token %d): %s", self._mutex.name, self.token, self.lost)

    def _why(self) -> str:
        now = time.monotonic()
        if now >= self.until:
            return f"its ttl of {self.ttl:g} s was over (a longer ttl, extend() or renew=True)"
        return f"somebody deleted it, or the server has lost it, {now - self.began:.1f} s after it was taken"

    def tell(self) -> None:
        """Let the listeners hear that it was lost, once. They may do with the lock what they like, and take as long as they
        like: called where nothing is held."""
        try:
            token = self._untold.pop()  # one thread gets it
        except IndexError:
            return
        self._told(token)

    def check(self) -> None:
        if self.lost:
            raise LockLost(
                f"the lock '{self._mutex.name}' was lost while it was held: {self.lost}; another may have had it since"
            )


def surely(act: Callable[[], None]) -> None:
    """Run `act`, which may be run twice, to its end; an alarm that comes on the way is raised after it."""
    try:
        with shield:
            act()
    except (EndJob, KeyboardInterrupt):
        with shield:
            act()
        raise


class Renewals:
    """Those of one connection."""

    def __init__(self) -> None:
        self._holds: set[HeldLock] = set()
        self._changed = threading.Condition(threading.Lock())
        self._thread: threading.Thread | None = None

    def add(self, hold: HeldLock) -> None:
        """Also when it is due at another moment than before."""
        with shield, self._changed:
            self._holds.add(hold)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="qd-locks", daemon=True)
                self._thread.start()
            self._changed.notify()

    def drop(self, hold: HeldLock) -> None:
        with shield, self._changed:
            self._holds.discard(hold)
            if not self._holds:
                self._changed.notify()

    def _run(self) -> None:
        while (hold := self._next()) is not None:
            if hold.renew(self._room(hold)):
                continue
            with self._changed:
                self._holds.discard(hold)
            if hold.lost:  # whoever hears of it may take long, and others are due
                threading.Thread(target=hold.tell, name="qd-lock-lost", daemon=True).start()

    def _next(self) -> HeldLock | None:
        """The next one, when it is due. None: there is none, and the thread ends."""
        with self._changed:
            while self._holds:
                hold = min(self._holds, key=attrgetter("due"))
                left = hold.due - time.monotonic()
                if left <= 0:
                    return hold
                self._changed.wait(left)
            self._thread = None
            return None

    def _room(self, hold: HeldLock) -> float:
        """Seconds that a call about this one may take, so that there is as long for the next of the others."""
        with self._changed:
            ends = min((other.until for other in self._holds if other is not hold), default=float("inf"))
        return max(LEAST, (ends - time.monotonic()) / 2)


_known: dict[tuple[int, object], Renewals] = {}


def renewals(hold: HeldLock) -> Renewals:
    """Those of its connection, in this process."""
    key = (os.getpid(), hold.server)
    return _known.get(key) or _known.setdefault(key, Renewals())
