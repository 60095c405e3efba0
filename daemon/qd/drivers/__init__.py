"""The servers a queue can live on. Worker, keeper and dispatch know the contracts, and no driver.

base           The driver contract: Connector, KeeperConnector, Jobs, Ticks.
beanstalkd     beanstalkd, over greenstalk.
broker         What beanstalkd and SQS have in common: a server that keeps jobs and nothing else.
cluster        A Redis Cluster: each queue in a slot of its own.
connections    A name to an open connection: driver table, opening, one per thread.
database       Queues, and what qd keeps beside them, in the tables of PostgreSQL, MySQL, MariaDB or SQLite.
embedded       embedded:: a private Valkey for one project.
keyspace       What every driver with workers is built on: names of keys, and Lua scripts that work on them.
redis          One Redis or Valkey, over redis-py.
send_only      Drivers nobody works on: null and failover.
sqs            Amazon SQS.
types          The values that cross the driver contract: Reserved, Turn, Outgoing, effects, batches.
urls           Urls of database, beanstalkd and SQS, checked without any library.
"""

from __future__ import annotations
