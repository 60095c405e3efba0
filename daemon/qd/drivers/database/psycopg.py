"""psycopg's connection with a deadline for every wait. Loaded for PostgreSQL only."""

from __future__ import annotations

import logging
import select
import time
from typing import Any

import psycopg
from psycopg.generators import notifies

from qd.process.descriptors import ready_of, socket_of

# psycopg sends many rows in a pipeline. If one is refused, it also warns that the end of the pipeline failed.
logging.getLogger("psycopg").addFilter(lambda record: "error ignored terminating" not in str(record.msg))


class BoundedConnection(psycopg.Connection[Any]):
    """Waits for `answer` seconds at most: a stopped server, or one behind a broken network, sends nothing at all."""

    answer = 5.0
    has_notification = False  # one arrived during another call

    def wait(self, gen: Any, *_: Any, **__: Any) -> Any:
        fd, until = self.pgconn.socket, time.monotonic() + self.answer
        poll, known = select.poll(), 0
        try:
            wants = next(gen)
            while True:
                if wants != known:
                    poll.register(fd, (select.POLLIN if wants & 1 else 0) | (select.POLLOUT if wants & 2 else 0))
                    known = wants
                ready = poll.poll(max(0, round((until - time.monotonic()) * 1000)))
                if not ready:
                    raise psycopg.OperationalError("no answer in time")
                event = ready[0][1]
                if event & select.POLLNVAL:
                    raise psycopg.OperationalError("its socket was closed")
                # psycopg's flags: 1 to read, 2 to write. Reading detects an end or an error.
                found = (1 if event & ~select.POLLOUT else 0) | (2 if event & select.POLLOUT else 0)
                wants = gen.send(found & wants or wants)
        except StopIteration as end:
            return end.value

    def literal_cursor(self) -> psycopg.ClientCursor[Any]:
        """One that writes the values into the statement, so that it can execute several."""
        return psycopg.ClientCursor(self)

    def note_notifications(self) -> BoundedConnection:
        """Note every notification from now on."""

        def note(_: object) -> None:
            self.has_notification = True

        self.add_notify_handler(note)
        return self

    def notified(self) -> bool:
        """Whether a notification has arrived; consumes all of them."""
        self._read()
        found, self.has_notification = self.has_notification, False
        return found

    def has_ended(self) -> bool:
        """Whether the server has closed it or announced that: an idle connection receives nothing else but notifications."""
        try:
            return not self._read() or socket_of(self) < 0
        except psycopg.Error:
            return True

    def _read(self) -> bool:
        """Read everything that has arrived. Returns False if it was not only notifications."""
        only = True
        while ready_of([socket_of(self)], 0):
            found = bool(self.wait(notifies(self.pgconn)))
            self.has_notification, only = self.has_notification or found, only and found
        return only
