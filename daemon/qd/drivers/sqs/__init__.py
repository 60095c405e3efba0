"""Amazon SQS.

broker      SQS as a Broker; first look.
client      Signed HTTP calls over one kept connection.
messages    Messages sent, received, deleted, hidden, counted.
queue       SqsQueue, FIFO queues, and how it is opened.
"""

from __future__ import annotations
