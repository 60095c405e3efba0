"""What beanstalkd and SQS have in common: a server that keeps jobs and nothing else.

base      Broker: what such a server must do; the keyspace it borrows.
keeper    The keeper's side: renew, reclaim, forward; how it is opened.
outbox    Jobs on their way from the keyspace to the broker.
queue     BrokerQueue: send, take, answer.
"""

from __future__ import annotations
