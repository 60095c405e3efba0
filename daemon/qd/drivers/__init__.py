"""The servers a queue can live on. Worker, keeper and dispatch know the contract, not the drivers.

base           The driver contract: Connector, KeeperConnector, Jobs, Ticks.
beanstalkd     beanstalkd, over greenstalk.
broker         Common code of beanstalkd and SQS, servers that keep jobs and nothing else.
cluster        A Redis Cluster: each queue in a slot of its own.
connections    From a name to an open connection: driver table, opening, one connection per thread.
database       Queues and the keyspace in tables of PostgreSQL, MySQL, MariaDB or SQLite.
embedded       The url embedded: starts a private Valkey for one project.
keyspace       The base of every driver with workers: names of keys, and Lua scripts that work on them.
loops          The connections of event loops.
redis          One Redis or Valkey, over redis-py.
redis_driver   Opens queues and keyspaces on Redis, Valkey and clusters.
pausing        A procedure with pauses, for threads and for tasks.
send_only      Drivers without workers: null and failover.
sqs            Amazon SQS.
types          The values that cross the driver contract: Reserved, Turn, Outgoing, effects, batches.
urls           URLs of database, beanstalkd and SQS, checked without any library.
"""
