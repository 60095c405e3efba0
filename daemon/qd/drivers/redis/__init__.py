"""One Redis or Valkey, over redis-py.

acl            Which commands this user may not call.
aio            AsyncQueue: the tasks of an event loop share a connection.
client         Opens sockets with redis-py.
client_url     Qd(redis=client): the connection parameters of a redis-py client.
connection     RedisConnection: pipelining, bounded waits, scripts.
credentials    Logins from a credential provider, called at each connect.
protocol       Encoding of commands, meaning of replies, greeting.
queue          RedisQueue: a worker's turns, with one job or several, and its wait.
sentinel       Finds the primary.
url            RedisUrl, and Seeds of a cluster: a parsed URL, TLS options.
"""
