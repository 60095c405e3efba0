"""What becomes of the rows of a reservation when its job is answered. The caller has opened the transaction.

jobs          deleted, put back as it stands (to the head) or as a new row (to the tail), or written anew
qd_reserved   deleted with it; its mark, and the sum of a saved text, are the fence
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sql

from qd.connectors.base import Released, Reserved
from qd.connectors.database.table import Holding, JobTable, base_of, column_of, dropped, sum_of, text_of
from qd.connectors.effects import Effect
from qd.connectors.keyspace import keys


class Leases:
    """Ends reservations: a worker its own, a keeper those of dead workers."""

    def __init__(self, table: JobTable) -> None:
        self.table, self.sql, self.link = table, table.sql, table.link

    def ended(self, held: Reserved, and_then: Callable[[], None] = lambda: None) -> bool:
        """Its rows are gone. False: it was over before."""
        mark = base_of(held.mark)
        if self.sql.kind == "mysql":
            there = self.link.execute(*self.end_both(held)).rowcount == 2
        elif (found := self.holding(held.queue, self.table.owner, mark, held.member)) is not None:
            there = self.one(self.sql.delete, found)
            self.forget(found, mark)
        else:
            return False
        if there:
            and_then()
        return there

    def end_both(self, held: Reserved) -> tuple[sql.TextClause, dict[str, Any]]:
        mark, sum = base_of(held.mark), sum_of(held.member)
        return self.sql.end_both, {"owner": self.table.owner, "mark": mark, "queue": held.queue, "sum": sum}

    def given_back(
        self, queue: str, owner: str, mark: str, member: bytes, back: Released, effects: Sequence[Effect]
    ) -> bool:
        found = self.holding(queue, owner, mark, member)
        if found is None:
            return False
        (cancel,) = self.table.names(keys.CANCEL)
        if self.table.space.call("HGET", cancel, mark) is not None:
            back = Released(dropped(back.text, mark))
            self.table.space.call("HDEL", cancel, mark)
        there = self.put_back(queue, found, back)
        self.forget(found, mark)
        if there:
            self.table.do(effects)
        return there

    def put_back(self, queue: str, found: Holding, back: Released) -> bool:
        """To the head the row goes as it stands; to the tail as a new one. False: it is somebody else's by now."""
        row = self.table.row(queue, back.text, self.table.now_us(), back.delay, column_of)
        if back.delay <= 0 and not back.head:
            if self.one(self.sql.delete, found):
                self.link.execute(self.sql.insert, row).close()
                self.table.tell({queue})
                return True
            return False
        more = {"payload": row["payload"], "spent": row["attempts"]}
        if back.head:
            there = self.one(self.sql.put_head, found, **more)
        else:
            there = self.one(self.sql.put_back, found, **more, due=row["due"])
        if there and back.delay < 1:
            self.table.tell({queue})
        return there

    def saved(self, held: Reserved, member: bytes) -> bool:
        """The job in hand stands as `member` from now on."""
        mark = base_of(held.mark)
        found = self.holding(held.queue, self.table.owner, mark, held.member)
        if found is None or not self.one(self.sql.rewrite, found, payload=text_of(member)):
            return False
        self.link.execute(self.sql.summed, {"sum": sum_of(member), "id": found.id, "mark": mark}).close()
        return True

    def holding(self, queue: str, owner: str, mark: str, member: bytes) -> Holding | None:
        """The row of a reservation, locked, if the job in hand stands as `member`."""
        found = self.link.execute(self.sql.fence, {"owner": owner, "mark": mark, "queue": queue}).first()
        if found is None or (found.text_sum is not None and found.text_sum != sum_of(member)):
            return None
        return Holding._make(found)

    def one(self, statement: sql.TextClause, found: Holding, **values: Any) -> bool:
        """Whether it met the job's row, which nobody else has taken over."""
        fixed = {"id": found.id, "attempts": found.attempts, "reserved_at": found.reserved_at}
        result = self.link.execute(statement, {**fixed, **values})
        return result.rowcount == 1

    def forget(self, found: Holding, mark: str) -> None:
        self.link.execute(self.sql.forget, {"id": found.id, "mark": mark}).close()
