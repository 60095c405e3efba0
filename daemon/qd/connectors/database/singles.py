"""Single jobs of a database by their ids: as on any keyspace, but for those that run, whose owners stand in a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qd.connectors.base import Found
from qd.connectors.database.held import owner_in
from qd.connectors.database.tables import SECOND
from qd.connectors.keyspace import keys
from qd.connectors.keyspace.jobs import KeptJobs

if TYPE_CHECKING:
    from qd.connectors.database.queue import DatabaseQueue

DAY = 86400


class SingleJobs(KeptJobs):
    def __init__(self, queue: DatabaseQueue) -> None:
        super().__init__(queue.space, queue.settings.prefix)
        self.queue = queue

    def stop(self, found: Found) -> bool:
        """The keeper of its worker reads it with its next beat."""
        queue, (owner, mark) = self.queue, owner_in(found.text)
        name = self.prefix + keys.CANCEL

        def ask() -> bool:
            rows = queue.rows(queue.sql.owned, {"owner": owner, "queue": found.queue}) if mark else ()
            if not any(row.mark == mark for row in rows):
                return False
            self.space.call("HSET", name, mark, queue.now_us() // SECOND)
            self.space.call("EXPIRE", name, DAY)
            return True

        return queue.atomic(ask)
