"""Queues in the tables of PostgreSQL, MySQL, MariaDB or SQLite, and the keyspace on them.

commands       The Redis commands of the keyspace, by name.
connection     One connection: calls, transactions, errors; LISTEN.
dialects       What each kind of database does in its own way; what its errors mean.
django         Django's open transaction as a connection of SQLAlchemy.
joined         app.transaction(session): jobs in the caller's transaction.
keyspace       DatabaseKeyspace: one step is one transaction; scripts.
names          A name and its items; Redis's notations.
psycopg        psycopg with a deadline for every wait.
queue          DatabaseQueue, and how it is opened.
queue_keys     Names of queues as rows of the table of jobs.
reserve        A worker's turn: the next job reserved, or several.
rows           Rows of the table of jobs as payloads.
schema         Tables and indexes: qd's own and Laravel's; qd migrate, version and rights.
sql            The statements on the table of jobs.
table          JobTable: transactions on the table of jobs, answers, and leases for keepers.
transaction    One step: names locked, read once, written once.
"""

from __future__ import annotations
