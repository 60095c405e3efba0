"""beanstalkd, over greenstalk.

broker    A beanstalkd as a Broker; opening a connection; checks at the start.
client    The connection, over greenstalk.
"""

from __future__ import annotations
