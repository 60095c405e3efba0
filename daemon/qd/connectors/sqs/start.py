"""What `qd work` finds out about its queues on SQS before it works on them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from qd.connectors.sqs.address import Address, is_fifo
from qd.connectors.sqs.messages import Messages
from qd.connectors.sqs.service import NoSuchQueue, Service
from qd.errors import ConfigError, ConnectionLost, ServerRefused, WrongPassword

if TYPE_CHECKING:
    from qd.config import ConnectionSettings

FEW = 3  # receives that a message may need though nothing is wrong with its job: workers leave while they ask


def look(at: ConnectionSettings, queues: Sequence[str], tries: int) -> list[str]:
    """What is odd about these queues, in words. Raises ConfigError for one that is not there, and for credentials that are
    missing or refused. A server that does not answer is waited for later."""
    messages = Messages(Service(Address(at.url or "")), at.prefix)
    try:
        return [hint for queue in queues if (hint := redriven(messages, queue, tries))]
    except (NoSuchQueue, WrongPassword) as error:
        raise ConfigError(f"connection '{at.name}': {error}") from None
    except (ConnectionLost, ServerRefused):
        return []
    finally:
        messages.service.close()


def redriven(messages: Messages, queue: str, tries: int) -> str:
    """That SQS takes jobs away before qd is through with them. "" where it does not."""
    messages.url(queue)
    most = 0
    with suppress(WrongPassword, ServerRefused, ValueError):  # not everybody may ask, or need
        policy = messages.attributes(queue, "RedrivePolicy").get("RedrivePolicy")
        most = int(json.loads(policy)["maxReceiveCount"]) if policy else 0
    if not most:
        return ""
    where = (
        f"queue '{queue}' moves a message to its dead-letter queue when it was received {most} times (maxReceiveCount)"
    )
    if is_fifo(queue) and (not tries or most <= tries):
        return (
            f"{where}, and each try of a job is one, of {tries or 'any number'}: jobs go there that qd would try again"
        )
    if most < FEW:
        return f"{where}: one that comes while a worker leaves may go there and never run; raise it to {FEW} or more"
    return ""
