"""Queues and what is kept beside them in the tables of a database: PostgreSQL, MySQL, MariaDB, SQLite.

servers, link         what each kind has in its own way; one connection, whose errors are qd's
together, sockets     several statements in one round trip; the descriptor behind a driver's connection
patient               psycopg with an end to every wait
target, opening       the url; how the manager opens queue and keyspace
tables, jobtables     the tables: qd's own and Laravel's
migrate, rights       who makes them; may this user use them

queue                 the queue on Laravel's table jobs: sends, and delegates the rest
table                 that table: its rows as payloads, transactions on them, its view for scripts
taking, leases        a turn; what becomes of a reservation
jobsql, turnsql       their statements
listening, beating    the wait for a push; a keeper's beat
joining               pushes inside a caller's transaction

keyspace, step        everything else, by the scripts of Redis: a step is one transaction
lua                   runs such a script beside the database
commands, words       Redis's commands by their words, and its replies
strings, hashes       commands on strings and on hashes and sets,
lists, sorted         on lists and on sorted sets
items                 the rows under a name
queued, rows          the names of queues in a step, which are rows of the table of jobs
"""
