"""Deletes whose answers nobody waits for: they are read in front of the next one that is waited for."""

from __future__ import annotations

import greenstalk

from qd.connectors.beanstalkd.touching import Touched
from qd.connectors.beanstalkd.wire import Wire


class Deletes:
    """What a connection has reserved. gone: (queue, id) of what is deleted for certain."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.gone = list[tuple[str, str]]()
        self._begun = list[tuple[str, str, Touched]]()
        self._doubtful = list[tuple[str, str]]()  # were not there to delete

    def begin(self, queue: str, id: str, held: Touched) -> None:
        self.wire.write(b"delete %d\r\n" % held.job)
        self._begun.append((queue, id, held))

    @property
    def pending(self) -> bool:
        return bool(self._begun or self._doubtful)

    def read(self) -> None:
        """The answers, which come before any other. Those of a connection that broke do not: a keeper looks after these."""
        begun, self._begun = self._begun, []
        for queue, id, held in begun:
            if held.life == self.wire.life:
                deleted = self.wire.line() == b"DELETED"
                (self.gone if deleted else self._doubtful).append((queue, id))

    def look_at_doubtful(self) -> None:
        """What was not there is somebody else's by now, who will find out, or is gone."""
        doubtful, self._doubtful = self._doubtful, []
        for queue, id in doubtful:
            try:
                self.wire.stats_of(number_of(id))
            except greenstalk.NotFoundError:
                self.gone.append((queue, id))

    def settle(self) -> None:
        self.read()
        self.look_at_doubtful()


def number_of(id: str) -> int:
    """The server's number of a job, of its id here."""
    return int(id.partition(".")[0])
