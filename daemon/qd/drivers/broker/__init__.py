"""What beanstalkd and SQS have in common: a server that keeps jobs and nothing else, and a borrowed keyspace.

base      Broker: what such a server must do; LazyKeyspace.
keeper    The keeper's part: renew, reclaim, forward; opening a connection.
outbox    Jobs on their way from the keyspace to the broker.
queue     BrokerQueue: send, reserve, answer.
"""

from __future__ import annotations
