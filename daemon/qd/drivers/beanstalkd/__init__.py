"""beanstalkd, over greenstalk.

broker    A beanstalkd as a Broker.
client    The connection, over greenstalk.
driver    Opening a connection; checks at the start.
"""

from __future__ import annotations
