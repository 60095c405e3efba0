"""The connection of psycopg with an end to every wait. Loaded where PostgreSQL is used."""

from __future__ import annotations

import select
import time
from typing import Any

import psycopg
from psycopg.generators import notifies

from qd.process.descriptors import ready_of, socket_of


class BoundedConnection(psycopg.Connection[Any]):
    """Waits for `answer` seconds at most: a server that is stopped, or behind a broken network, says nothing at all."""

    answer = 5.0
    heard = False  # of a notification, while something else was asked

    def wait(self, gen: Any, *_: Any, **__: Any) -> Any:
        fd, until = self.pgconn.socket, time.monotonic() + self.answer
        poll, known = select.poll(), 0
        try:
            wants = next(gen)
            while True:
                if wants != known:
                    poll.register(fd, (select.POLLIN if wants & 1 else 0) | (select.POLLOUT if wants & 2 else 0))
                    known = wants
                came = poll.poll(max(0, round((until - time.monotonic()) * 1000)))
                if not came:
                    raise psycopg.OperationalError("no answer in time")
                wants = gen.send(readiness(came[0][1]) & wants or wants)
        except StopIteration as end:
            return end.value

    def listens(self) -> BoundedConnection:
        """Notes what it is told, from now on."""

        def hear(_: object) -> None:
            self.heard = True

        self.add_notify_handler(hear)
        return self

    def told(self) -> bool:
        """Whether a notification has come; takes all of them."""
        self._read()
        came, self.heard = self.heard, False
        return came

    def went_away(self) -> bool:
        """The server has closed it, or has said why it will: on an idle connection only a notification is no such end."""
        try:
            return not self._read() or socket_of(self) < 0
        except psycopg.Error:
            return True

    def _read(self) -> bool:
        """All that has come. False: something that was no notification."""
        well = True
        while ready_of([socket_of(self)], 0):
            came = bool(self.wait(notifies(self.pgconn)))
            self.heard, well = self.heard or came, well and came
        return well


def readiness(event: int) -> int:
    """As psycopg writes it: 1 to read, 2 to write. An end or an error is found out by reading."""
    if event & select.POLLNVAL:
        raise psycopg.OperationalError("its socket was closed")
    return (1 if event & ~select.POLLOUT else 0) | (2 if event & select.POLLOUT else 0)
