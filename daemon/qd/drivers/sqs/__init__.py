"""Amazon SQS.

broker      SQS as a Broker; warnings at the start.
client      Signed HTTP calls over one kept connection.
messages    Messages sent, received, deleted, hidden, counted.
queue       SqsQueue, FIFO queues, and how it is opened.
"""

from __future__ import annotations
