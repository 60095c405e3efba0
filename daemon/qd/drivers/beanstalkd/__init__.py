"""beanstalkd, over greenstalk.

broker    A beanstalkd as a Broker.
client    The connection, over greenstalk.
driver    Opening, first look, buried jobs.
"""

from __future__ import annotations
