"""The statements on the table of jobs, in the words of each database, but for those of a turn (turnsql.py). queue.py and
its neighbours use them.

Moments are unix seconds in Laravel's columns and unix microseconds in ours, all by the database's clock (`us`).
"""

from __future__ import annotations

from functools import cache, cached_property

import sqlalchemy as sql

from qd.connectors.database.servers import Server

HIGHEST = 255  # attempts that Laravel's column holds


class JobSql:
    """Of one table. ours: the table of reservations beside it (tables.reservations)."""

    def __init__(self, server: Server, table: str) -> None:
        self.kind = server.kind
        quote = "`" if self.kind == "mysql" else '"'
        self.jobs, self.ours = (
            ".".join(f"{quote}{part}{quote}" for part in name.split(".")) for name in (table, reservations_of(table))
        )
        self.clock = f"(SELECT {server.clock} AS us) c"
        self.second = "c.us DIV 1000000" if self.kind == "mysql" else "c.us / 1000000"
        self.exactly = " COLLATE utf8mb4_bin" if self.kind == "mysql" else ""  # Laravel's columns know no case there
        self.locked = "" if self.kind == "sqlite" else " FOR UPDATE"
        self.skipping = "" if self.kind == "sqlite" else " FOR UPDATE SKIP LOCKED"
        self.same = "j.id = s.job_id AND j.attempts = s.attempts AND j.reserved_at = s.reserved_at"
        self.listens = self.kind == "postgresql"

    # -- sending

    @cached_property
    def push(self) -> sql.TextClause:
        """after: microseconds from now to the second in which it is due. One statement, one transaction."""
        due = self.second.replace("c.us", "(c.us + :after)")
        insert = (
            f"INSERT INTO {self.jobs} (queue, payload, attempts, reserved_at, available_at, created_at)"
            f" SELECT :queue, :payload, :attempts, NULL, {due}, {self.second} FROM {self.clock}"
        )
        if self.listens:
            insert = f"WITH pushed AS ({insert} RETURNING 1) SELECT pg_notify(:channel, '') FROM pushed WHERE :tells"
            casts = {"queue": "text", "payload": "text", "attempts": "smallint", "after": "bigint", "channel": "text"}
            for name, kind in {**casts, "tells": "boolean"}.items():
                insert = insert.replace(f":{name}", f"CAST(:{name} AS {kind})")
        return sql.text(insert)

    @cached_property
    def insert(self) -> sql.TextClause:
        return sql.text(
            f"INSERT INTO {self.jobs} (queue, payload, attempts, reserved_at, available_at, created_at)"
            " VALUES (:queue, :payload, :attempts, NULL, :due, :now)"
        )

    @cached_property
    def notify(self) -> sql.TextClause:
        return sql.text("SELECT pg_notify(:channel, '')")

    @cached_property
    def now(self) -> sql.TextClause:
        return sql.text(f"SELECT us FROM {self.clock}")

    # -- one reservation

    @cached_property
    def fence(self) -> sql.TextClause:
        """The reservation, for a text of it: no row when it is over, or when the job stands as another text."""
        return sql.text(
            f"SELECT job_id, attempts, reserved_at, text_sum FROM {self.ours} WHERE owner = :owner AND mark = :mark"
            f" AND queue = :queue{self.locked}"
        )

    @cached_property
    def forget(self) -> sql.TextClause:
        return sql.text(f"DELETE FROM {self.ours} WHERE job_id = :id AND mark = :mark")

    @cached_property
    def delete(self) -> sql.TextClause:
        return sql.text(f"DELETE FROM {self.jobs} WHERE {HELD}")

    @cached_property
    def end_both(self) -> sql.TextClause:
        """Of MySQL: the reservation and its job in one statement. Two rows: both were there; one: the job was another's."""
        return sql.text(
            f"DELETE s, j FROM {self.ours} s LEFT JOIN {self.jobs} j ON {self.same} WHERE s.owner = :owner"
            " AND s.mark = :mark AND s.queue = :queue AND (s.text_sum IS NULL OR s.text_sum = :sum)"
        )

    @cached_property
    def put_back(self) -> sql.TextClause:
        return sql.text(
            f"UPDATE {self.jobs} SET payload = :payload, attempts = :spent, reserved_at = NULL, available_at = :due"
            f" WHERE {HELD}"
        )

    @cached_property
    def put_head(self) -> sql.TextClause:
        return sql.text(
            f"UPDATE {self.jobs} SET payload = :payload, attempts = :spent, reserved_at = NULL WHERE {HELD}"
        )

    @cached_property
    def rewrite(self) -> sql.TextClause:
        return sql.text(f"UPDATE {self.jobs} SET payload = :payload WHERE {HELD}")

    @cached_property
    def summed(self) -> sql.TextClause:
        return sql.text(f"UPDATE {self.ours} SET text_sum = :sum WHERE job_id = :id AND mark = :mark")

    @cached_property
    def owned(self) -> sql.TextClause:
        return sql.text(
            f"SELECT s.job_id, s.mark, s.attempts, s.text_sum, j.payload, s.leased_until FROM {self.ours} s"
            f" JOIN {self.jobs} j ON {self.same} WHERE s.owner = :owner AND s.queue = :queue"
        )

    @cached_property
    def lost(self) -> sql.TextClause:
        """Reservations of this owner whose job belongs to another by now. The caller has locked the reservations of the
        owner in a statement before: while this one waited for a lock, it would compare with the jobs as they were."""
        return sql.text(
            f"DELETE FROM {self.ours} WHERE owner = :owner AND queue = :queue"
            f" AND NOT EXISTS (SELECT 1 FROM {self.jobs} j WHERE {self.same.replace('s.', self.ours + '.')})"
        )

    @cached_property
    def owners(self) -> sql.TextClause:
        return sql.text(f"SELECT DISTINCT owner FROM {self.ours} WHERE queue = :queue")

    # -- leases, for keepers

    @cached_property
    def payload(self) -> sql.TextClause:
        return sql.text(f"SELECT payload FROM {self.jobs} WHERE {HELD}{self.locked}")

    @cache  # noqa: B019
    def many(self, name: str) -> sql.TextClause:
        """Statements on several ids, owners or queues."""
        same = self.same.replace("j.", self.jobs + ".")
        texts = {
            "of_owners": f"SELECT job_id, owner, mark, attempts, reserved_at FROM {self.ours} WHERE owner IN :owners"
            f" AND queue IN :queues ORDER BY job_id{self.locked}",
            "renew_jobs": f"UPDATE {self.jobs} SET reserved_at = :now WHERE id IN :ids"
            f" AND EXISTS (SELECT 1 FROM {self.ours} s WHERE {same})",
            "these": f"SELECT id, attempts, reserved_at FROM {self.jobs} WHERE id IN :ids",
            "renew_ours": f"UPDATE {self.ours} SET reserved_at = :now, leased_until = :until WHERE job_id IN :ids",
            "expired": f"SELECT job_id, queue, owner, mark, attempts, reserved_at, text_sum FROM {self.ours}"
            f" WHERE leased_until <= :us AND queue IN :queues ORDER BY leased_until LIMIT :most{self.skipping}",
            "foreign": f"SELECT j.id FROM {self.jobs} j WHERE j.queue IN :queues AND j.reserved_at IS NOT NULL"
            f" AND j.reserved_at <= :before AND NOT EXISTS (SELECT 1 FROM {self.ours} s WHERE {self.same})"
            f" ORDER BY j.queue, j.reserved_at LIMIT :most{self.skipping}",  # as the index has them
            "free": f"UPDATE {self.jobs} SET reserved_at = NULL WHERE id IN :ids",
        }
        found = sql.text(texts[name])
        lists = [each for each in ("owners", "queues", "ids") if f":{each}" in texts[name]]
        return found.bindparams(*[sql.bindparam(each, expanding=True) for each in lists])

    @cache  # noqa: B019
    def waiting(self, queues: int) -> sql.TextClause:
        """A row for each queue that has ready jobs and none in hand: its place. The ends of indexes tell it: a database that
        is asked whether such a row exists may look at all of them."""
        each = [
            f"SELECT {n} AS place FROM {self.clock} WHERE (SELECT min(available_at) FROM {self.jobs} WHERE queue = :q{n}"
            f" AND reserved_at IS NULL) <= :now AND (SELECT max(reserved_at) FROM {self.jobs} WHERE queue = :q{n}"
            " AND reserved_at IS NOT NULL) IS NULL"
            for n in range(queues)
        ]
        return sql.text(" UNION ALL ".join(each))

    # -- looking

    @cached_property
    def sizes(self) -> sql.TextClause:
        """One row: ready, delayed, reserved, created_at of the next in line, and the second it is now."""
        waits = f"FROM {self.jobs} WHERE queue = :queue AND reserved_at IS NULL AND available_at"
        return sql.text(
            f"SELECT (SELECT count(*) {waits} <= {self.second}) AS ready, (SELECT count(*) {waits} > {self.second}) AS"
            f" delayed_, (SELECT count(*) FROM {self.jobs} WHERE queue = :queue AND reserved_at IS NOT NULL) AS held,"
            f" (SELECT created_at {waits} <= {self.second} ORDER BY available_at, id LIMIT 1) AS oldest,"
            f" {self.second} AS now_s FROM {self.clock}"
        )


HELD = "id = :id AND attempts = :attempts AND reserved_at = :reserved_at"


def reservations_of(table: str) -> str:
    """The name of the table of reservations beside a table of jobs, in the same schema."""
    schema, dot, name = table.rpartition(".")
    return schema + dot + ("qd_reserved" if name == "jobs" else f"qd_reserved_{name}")
