"""One Redis or Valkey, over redis-py.

acl            May this user do what a worker does?
client         ?
client_url     Qd(redis=client): the connection parameters of a redis-py client.
connection     One connection: TCP, TLS, unix socket; pipelining; waiting.
credentials    Logins from a credential provider, asked at each connect.
driver         How queues and keyspaces on Redis, Valkey and clusters are opened.
protocol       Encoding of commands, meaning of replies, greeting.
queue          RedisQueue, and how it is opened.
sentinel       Which server is the primary now.
url            The url, taken apart, and a socket to it.
"""

from __future__ import annotations
