"""Queues and what is kept beside them in the tables of a database: PostgreSQL, MySQL, MariaDB, SQLite."""
