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
        self._unsent = list[tuple[Touched, tuple[str, str]]]()
        self._begun = list[tuple[Touched, tuple[str, str]]]()
        self._doubtful = list[tuple[str, str]]()  # were not there to delete

    def add(self, queue: str, id: str, held: Touched) -> None:
        """It goes with the next `send`."""
        self._unsent.append((held, (queue, id)))

    def send(self, command: bytes = b"") -> None:
        """Write what was added, and a command behind it, in one piece. A connection that broke meanwhile has reserved none
        of them: a keeper looks after these."""
        if self._unsent:
            ours = [each for each in self._unsent if each[0].life == self.wire.life]
            self._unsent.clear()
            self._begun += ours
            command = b"".join([b"delete %d\r\n" % held.job for held, _ in ours]) + command
        if command:
            self.wire.write(command)

    @property
    def pending(self) -> bool:
        return bool(self._unsent or self._begun or self._doubtful)

    def read(self) -> None:
        """The answers, which come before any other. Those of a connection that broke do not: a keeper looks after these."""
        if not self._begun:
            return
        begun, self._begun = self._begun, []
        for held, its in begun:
            if held.life == self.wire.life:
                (self.gone if self.wire.line() == b"DELETED" else self._doubtful).append(its)

    def look_at_doubtful(self) -> None:
        """What was not there is somebody else's by now, who will find out, or is gone."""
        if not self._doubtful:
            return
        doubtful, self._doubtful = self._doubtful, []
        for queue, id in doubtful:
            try:
                self.wire.stats_of(number_of(id))
            except greenstalk.NotFoundError:
                self.gone.append((queue, id))

    def settle(self) -> None:
        self.send()
        self.read()
        self.look_at_doubtful()


def number_of(id: str) -> int:
    """The server's number of a job, of its id here."""
    return int(id.partition(".")[0])
