"""What PostgreSQL, MySQL and MariaDB, and SQLite have each in their own way: a file each, by the contract in base.py."""

from qd.connectors.database.servers.base import Server, digest
from qd.connectors.database.servers.known import server_of
from qd.connectors.database.servers.meanings import Again, Conflict, MissingTable, NoRight, told
from qd.connectors.database.servers.mysql import BUCKETS
from qd.connectors.database.servers.sqlite import unix_us

__all__ = [
    "BUCKETS",
    "Again",
    "Conflict",
    "MissingTable",
    "NoRight",
    "Server",
    "digest",
    "server_of",
    "told",
    "unix_us",
]
