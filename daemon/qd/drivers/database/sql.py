"""The statements on the table of jobs, in the SQL of each database. STATEMENTS lists them, except those that depend on the
number of queues. A worker's turn (reserve.py) is one statement for PostgreSQL, and a few for the others.

Times are unix seconds in Laravel's columns and unix microseconds in ours, all by the database's clock (`us`).
"""

from __future__ import annotations

from functools import cache

import sqlalchemy as sql

HIGHEST = 255  # attempts in Laravel's column, at most
OBJECT_JOB = r'"job":"Illuminate\\Queue\\CallQueuedHandler@call"'  # as JSON writes it
FREE = "j.reserved_at IS NULL AND j.available_at"
LISTS = ("owners", "queues", "ids", "marks")  # parameters with several values

# {jobs} the table of jobs        {held}     a job as it was reserved      {clock}   c.us: the database's time, microseconds
# {ours} its reservations         {same}     j is the job of s             {second}  the same in seconds
# {free} ready or delayed jobs    {locked}, {skipping}: FOR UPDATE         {of_ours} the columns of a reservation
STATEMENTS = {
    # -- sending. push: see JobSql.
    "insert": "INSERT INTO {jobs} (queue, payload, attempts, reserved_at, available_at, created_at)"
    " VALUES (:queue, :payload, :attempts, NULL, :due, :now)",
    "notify": "SELECT pg_notify(:channel, '')",
    "now": "SELECT us FROM {clock}",
    # -- one reservation. fence: its row, locked; none if it has ended.
    "fence": "SELECT job_id, attempts, reserved_at, text_sum FROM {ours}"
    " WHERE owner = :owner AND mark = :mark AND queue = :queue{locked}",
    "forget": "DELETE FROM {ours} WHERE job_id = :id AND mark = :mark",
    "delete": "DELETE FROM {jobs} WHERE {held}",
    "put_back": "UPDATE {jobs} SET payload = :payload, attempts = :spent, reserved_at = NULL, available_at = :due"
    " WHERE {held}",
    "put_head": "UPDATE {jobs} SET payload = :payload, attempts = :spent, reserved_at = NULL WHERE {held}",
    "rewrite": "UPDATE {jobs} SET payload = :payload WHERE {held}",
    "summed": "UPDATE {ours} SET text_sum = :sum WHERE job_id = :id AND mark = :mark",
    "payload": "SELECT payload FROM {jobs} WHERE {held}{locked}",
    # -- the reservations of owners. lost: delete those whose job belongs to another by now. The caller must have locked
    # them in an earlier statement: if this one waited for the locks itself, it would compare with outdated jobs.
    "owned": "SELECT s.job_id, s.queue, s.owner, s.mark, s.attempts, s.text_sum, j.payload, s.leased_until FROM {ours} s"
    " JOIN {jobs} j ON {same} WHERE s.owner IN :owners AND s.queue IN :queues",
    "lost": "DELETE FROM {ours} WHERE owner IN :owners AND queue IN :queues"
    " AND NOT EXISTS (SELECT 1 FROM {jobs} j WHERE {same_unnamed})",
    "owners": "SELECT DISTINCT owner FROM {ours} WHERE queue = :queue",
    # -- sizes. One row: ready, delayed, reserved, created_at of the next in line, and the current second.
    "sizes": "SELECT (SELECT count(*) {free} <= {second}) AS ready, (SELECT count(*) {free} > {second}) AS delayed_,"
    " (SELECT count(*) FROM {jobs} WHERE queue = :queue AND reserved_at IS NOT NULL) AS held,"
    " (SELECT created_at {free} <= {second} ORDER BY available_at, id LIMIT 1) AS oldest, {second} AS now_s FROM {clock}",
    # -- a turn. now: unix seconds. reserve replaces an old reservation, whose job PHP has taken over since.
    "begin": "START TRANSACTION",
    "commit": "COMMIT",
    "take": "UPDATE {jobs} SET reserved_at = :now, attempts = :attempts WHERE id IN :ids AND reserved_at IS NULL",
    "reserve": "{replace} INTO {ours} ({of_ours}) VALUES (:id, :queue, :owner, :mark, :attempts, :now, :until, NULL)"
    "{instead}",
    # -- several at once. known, number: of the fence (lanes.py). lock_ours, lock_jobs: reservations, and those that have
    # their job.
    "known": "SELECT value FROM qd_items WHERE name = :name AND item = :item",
    "number": "SELECT value FROM qd_items WHERE name = :name AND item = :item{locked}",
    "numbered": "UPDATE qd_items SET value = :last WHERE name = :name AND item = :item",
    "first_ready": "SELECT id, payload, {attempts} {free} <= {now_s} AND {ours_only} ORDER BY available_at, id"
    " LIMIT :most{skipping}",
    "ready": "SELECT count(*) AS ready FROM (SELECT 1 AS one {free} <= {now_s} LIMIT :most) r",
    "lock_ours": "SELECT job_id, queue, mark, attempts, reserved_at, text_sum FROM {ours}"
    " WHERE owner IN :owners AND mark IN :marks ORDER BY job_id{locked}",
    "lock_jobs": "SELECT s.job_id FROM {ours} s JOIN {jobs} j ON {same}"
    " WHERE s.owner IN :owners AND s.mark IN :marks{locked}",
    "forget_all": "DELETE FROM {ours} WHERE job_id IN :ids",
    "delete_all": "DELETE FROM {jobs} WHERE id IN :ids",
    "delete_free": "DELETE FROM {jobs} WHERE id IN :ids AND reserved_at IS NULL",
    # -- leases, for keepers
    "of_owners": "SELECT job_id, owner, mark, attempts, reserved_at FROM {ours}"
    " WHERE owner IN :owners AND queue IN :queues ORDER BY job_id{locked}",
    "renew_jobs": "UPDATE {jobs} SET reserved_at = :now WHERE id IN :ids"
    " AND EXISTS (SELECT 1 FROM {ours} s WHERE {unnamed_same})",
    "these": "SELECT id, attempts, reserved_at FROM {jobs} WHERE id IN :ids",
    "renew_ours": "UPDATE {ours} SET reserved_at = :now, leased_until = :until WHERE job_id IN :ids",
    "expired": "SELECT job_id, queue, owner, mark, attempts, reserved_at, text_sum FROM {ours}"
    " WHERE leased_until <= :us AND queue IN :queues ORDER BY leased_until LIMIT :most{skipping}",
    "foreign": "SELECT j.id FROM {jobs} j WHERE j.queue IN :queues AND j.reserved_at IS NOT NULL"
    " AND j.reserved_at <= :before AND NOT EXISTS (SELECT 1 FROM {ours} s WHERE {same})"
    " ORDER BY j.queue, j.reserved_at LIMIT :most{skipping}",  # the order of the index
    "free": "UPDATE {jobs} SET reserved_at = NULL WHERE id IN :ids",
}
OF_OURS = "job_id, queue, owner, mark, attempts, reserved_at, leased_until, text_sum"
INSTEAD = (
    f" ON CONFLICT (job_id) DO UPDATE SET {', '.join(f'{name} = EXCLUDED.{name}' for name in OF_OURS.split(', ')[1:])}"
)


def same(job: str, reservation: str) -> str:
    """Whether the job still belongs to the reservation."""
    pairs = (("id", "job_id"), ("attempts", "attempts"), ("reserved_at", "reserved_at"))
    return " AND ".join(f"{job}.{column} = {reservation}.{ours}" for column, ours in pairs)


class JobSql:
    """The statements on one table of jobs: `sql["insert"]` is one of STATEMENTS, the others are made by methods."""

    def __init__(self, kind: str, clock: str, table: str) -> None:
        mysql, sqlite = kind == "mysql", kind == "sqlite"
        quote = "`" if mysql else '"'
        self.kind, self.table, self.listens = kind, table, kind == "postgresql"
        self.jobs, self.ours = (
            ".".join(f"{quote}{part}{quote}" for part in name.split(".")) for name in (table, reservations_of(table))
        )
        self.clock = f"(SELECT {clock} AS us) c"
        self.second = "c.us DIV 1000000" if mysql else "c.us / 1000000"
        self.exactly = " COLLATE utf8mb4_bin" if mysql else ""  # Laravel's columns ignore case there
        self.locked = "" if sqlite else " FOR UPDATE"
        self.same = same("j", "s")
        words = {
            "jobs": self.jobs,
            "ours": self.ours,
            "of_ours": OF_OURS,
            "free": f"FROM {self.jobs} WHERE queue = :queue AND reserved_at IS NULL AND available_at",
            "held": "id = :id AND attempts = :attempts AND reserved_at = :reserved_at",
            "same": self.same,
            "same_unnamed": same("j", self.ours),
            "unnamed_same": same(self.jobs, "s"),
            "clock": self.clock,
            "second": self.second,
            "now_s": "UNIX_TIMESTAMP()" if mysql else f"(SELECT {self.second} FROM {self.clock})",
            "locked": self.locked,
            "skipping": self.locked and " FOR UPDATE SKIP LOCKED",
            "attempts": "CAST(attempts AS INTEGER) AS attempts" if sqlite else "attempts",
            "ours_only": self.ours_only,
            "replace": "REPLACE" if mysql else "INSERT OR REPLACE" if sqlite else "INSERT",
            "instead": INSTEAD if self.listens else "",
        }
        self._statements = {name: statement(text.format_map(words)) for name, text in STATEMENTS.items()}
        self.push = self._push()

    def __getitem__(self, name: str) -> sql.TextClause:
        return self._statements[name]

    def _push(self) -> sql.TextClause:
        """after: microseconds from now to the second in which the job is due. One statement, one transaction."""
        due = self.second.replace("c.us", "(c.us + :after)")
        insert = (
            f"INSERT INTO {self.jobs} (queue, payload, attempts, reserved_at, available_at, created_at)"
            f" SELECT :queue, :payload, :attempts, NULL, {due}, {self.second} FROM {self.clock}"
        )
        if self.listens:
            insert = f"WITH pushed AS ({insert} RETURNING 1) SELECT pg_notify(:channel, '') FROM pushed WHERE :notifies"
            casts = {"queue": "text", "payload": "text", "attempts": "smallint", "after": "bigint", "channel": "text"}
            for name, kind in {**casts, "notifies": "boolean"}.items():
                insert = insert.replace(f":{name}", f"CAST(:{name} AS {kind})")
        return sql.text(insert)

    # -- leases, for keepers

    @cache  # noqa: B019  a JobSql lives as long as its process
    def waiting(self, queues: int) -> sql.TextClause:
        """The place of each queue that has ready jobs and no reserved ones. It reads the ends of indexes: for EXISTS a
        database may scan all rows."""
        each = [
            f"SELECT {n} AS place FROM {self.clock} WHERE (SELECT min(available_at) FROM {self.jobs} WHERE queue = :q{n}"
            f" AND reserved_at IS NULL) <= :now AND (SELECT max(reserved_at) FROM {self.jobs} WHERE queue = :q{n}"
            " AND reserved_at IS NOT NULL) IS NULL"
            for n in range(queues)
        ]
        return sql.text(" UNION ALL ".join(each))

    # -- a turn

    @property
    def ours_only(self) -> str:
        """Excludes jobs of PHP classes, whose name is at the top level, before any { or [. In doubt a job is included."""
        at, text = "strpos" if self.kind == "postgresql" else "instr", "payload"
        needle = "'" + (OBJECT_JOB.replace("\\", "\\\\") if self.kind == "mysql" else OBJECT_JOB) + "'"
        needle = needle.replace(":", r"\:")
        opened = [f"{at}(substr({text}, 2), '{each}')" for each in ("{", "[")]
        behind = " AND ".join(f"({each} = 0 OR {each} > {at}({text}, {needle}))" for each in opened)
        return f"NOT ({at}({text}, {needle}) > 0 AND {behind})"

    @cache  # noqa: B019
    def seen(self, queues: int) -> sql.TextClause:
        """us; busy: jobs this owner has reserved in the queues; and one row per paused queue."""
        named = ", ".join(f":q{n}" for n in range(queues))
        paused = ", ".join(f":p{n}" for n in range(queues))
        return sql.text(
            f"SELECT c.us, (SELECT count(*) FROM {self.ours} WHERE owner = :owner AND queue IN ({named})) AS busy, p.name"
            f" FROM {self.clock} LEFT JOIN qd_names p ON p.name IN ({paused}) AND p.kind = 'string'"
            " AND (p.expires_at IS NULL OR p.expires_at > c.us)"
        )

    @cache  # noqa: B019
    def next_due(self, queues: int) -> sql.TextClause:
        """The unix second in which the first delayed job is due."""
        each = [
            f"SELECT min(available_at) AS due FROM {self.jobs} WHERE queue = :q{n} AND reserved_at IS NULL"
            " AND available_at > :now"
            for n in range(queues)
        ]
        return sql.text(f"SELECT min(due) FROM ({' UNION ALL '.join(each)}) d")

    @cache  # noqa: B019
    def turn(self, queues: int) -> sql.TextClause:
        """A whole turn as one statement of PostgreSQL, so one commit: it deletes the previous job, and locks, marks and
        returns the next one. shut: numbers of queues to skip."""
        numbers = range(queues)
        steps = [*self._before(numbers), *[self._next_of(n) for n in numbers], *self._after(numbers)]
        dues = ", ".join(
            f"(SELECT min(j.available_at) FROM {self.jobs} j WHERE j.queue = :q{n} AND {FREE} > c.us / 1000000)"
            for n in numbers
        )
        return sql.text(
            f"WITH {', '.join(steps)}"
            " SELECT (SELECT count(*) FROM done) AS acked, (SELECT count(*) FROM busy) AS busy, c.us, t.id, t.queue,"
            f" t.payload, t.attempts, CASE WHEN t.id IS NULL THEN LEAST({dues}) END AS due,"
            " (SELECT array_agg(name) FROM p) AS paused FROM c LEFT JOIN took t ON true"
        )

    def _before(self, numbers: range) -> list[str]:
        """c: the clock. p: queues that are paused. gone, mine, done: the previous job. busy: other jobs of this worker.

        A keeper that renews the lease changes `reserved_at` in both tables. If `gone` waits for its transaction, it returns
        the new value, but a comparison in `done` would read the job as it was before. So `mine` locks the job first, which
        returns the job as it is now, and that is compared."""
        named = ", ".join(f":q{n}" for n in numbers)
        paused = ", ".join(f":p{n}" for n in numbers)
        return [
            f"c AS MATERIALIZED (SELECT us FROM {self.clock})",
            f"p AS MATERIALIZED (SELECT n.name FROM qd_names n, c WHERE n.name IN ({paused}) AND n.kind = 'string'"
            " AND (n.expires_at IS NULL OR n.expires_at > c.us))",
            f"gone AS (DELETE FROM {self.ours} WHERE owner = :owner AND mark = :mark AND (text_sum IS NULL OR"
            " text_sum = :sum) RETURNING job_id, attempts, reserved_at)",
            f"mine AS (SELECT j.id, j.attempts, j.reserved_at FROM {self.jobs} j JOIN gone ON gone.job_id = j.id"
            " FOR UPDATE OF j)",
            f"done AS (DELETE FROM {self.jobs} d USING mine j, gone s WHERE d.id = j.id AND {self.same} RETURNING d.id)",
            f"busy AS MATERIALIZED (SELECT 1 FROM {self.ours} WHERE owner = :owner AND queue IN ({named}) AND"
            " job_id NOT IN (SELECT job_id FROM gone))",
        ]

    def _next_of(self, n: int) -> str:
        """n0, n1, ...: the first ready job of a queue, locked, if the queues before it have none."""
        others = "".join(f" AND NOT EXISTS (SELECT 1 FROM n{before})" for before in range(n))
        return (
            f"n{n} AS (SELECT j.id FROM {self.jobs} j WHERE j.queue = :q{n} AND {FREE} <= (SELECT us / 1000000 FROM c)"
            f" AND NOT EXISTS (SELECT 1 FROM busy) AND NOT {n} = ANY(CAST(:shut AS int[]))"
            f" AND NOT EXISTS (SELECT 1 FROM p WHERE p.name = :p{n}){others} AND {self.ours_only}"
            f" ORDER BY j.available_at, j.id LIMIT 1 FOR UPDATE SKIP LOCKED)"
        )

    def _after(self, numbers: range) -> list[str]:
        """n: the next job. took: its reserved row. noted: the reservation."""
        return [
            f"n AS ({' UNION ALL '.join(f'SELECT id FROM n{n}' for n in numbers)})",
            f"took AS (UPDATE {self.jobs} j SET reserved_at = c.us / 1000000,"
            f" attempts = LEAST(j.attempts, {HIGHEST - 1}) + 1 FROM n, c WHERE j.id = n.id"
            " RETURNING j.id, j.queue, j.payload, j.attempts, j.reserved_at)",
            f"noted AS (INSERT INTO {self.ours} ({OF_OURS}) SELECT t.id, t.queue, :owner, :next, t.attempts,"
            f" t.reserved_at, c.us + :lease, NULL FROM took t, c{INSTEAD})",
        ]


def statement(text: str) -> sql.TextClause:
    return sql.text(text).bindparams(*[sql.bindparam(name, expanding=True) for name in LISTS if f":{name}" in text])


def reservations_of(table: str) -> str:
    """The name of the table of reservations for a table of jobs, in the same schema."""
    schema, dot, name = table.rpartition(".")
    return schema + dot + ("qd_reserved" if name == "jobs" else f"qd_reserved_{name}")


@cache
def statements(kind: str, clock: str, table: str) -> JobSql:
    """kind, clock: of a Server. Created once per process."""
    return JobSql(kind, clock, table)
