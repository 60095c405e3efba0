"""Queues, and what qd keeps beside them, in the tables of PostgreSQL, MySQL, MariaDB or SQLite.

collections    Redis commands on hashes, sets, lists, sorted sets.
commands       All Redis commands of the keyspace by name.
connection     One connection: calls, transactions, errors; LISTEN.
dialects       What each kind of database has in its own way; what its errors mean.
items          What stands under a name, and Redis's notations.
joined         app.transaction(session): jobs in the caller's transaction.
keyspace       DatabaseKeyspace: one step is one transaction; scripts run beside it.
leases         Answering, renewing and reclaiming reservations.
migrations     qd migrate, version and rights.
psycopg        psycopg with an end to every wait.
queue          DatabaseQueue, and how it is opened.
queue_keys     Names of queues as rows of the table of jobs.
reserve        A worker's turn: the next row taken.
schema         Tables and indexes: qd's own and Laravel's.
sql            The statements on the table of jobs.
table          JobTable: rows as payloads, and transactions on them.
transaction    One step: names locked, read once, written once.
"""

from __future__ import annotations
