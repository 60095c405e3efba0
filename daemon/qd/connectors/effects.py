"""What the end of a job does beside taking it away. A connector does all of it in the step that answers the job, or none
of it: a worker that is killed in between has answered nothing.

connectors/ends.py works them out from a payload's ties; Connector.ack, release and bury take them, and Jobs.drop.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Push(msgspec.Struct, frozen=True):
    """Send another job: the next of a chain, a callback. delay: seconds."""

    queue: str
    payload: bytes
    delay: float = 0.0


class Free(msgspec.Struct, frozen=True):
    """Free the lock `name`, if `owner` still has it."""

    name: str
    owner: str


class Hold(msgspec.Struct, frozen=True):
    """Let `owner` keep the lock `name` for so many seconds from now, if it still has it."""

    name: str
    owner: str
    seconds: float


class Leave(msgspec.Struct, frozen=True):
    """Delete `field` of the hash `key`, if `holder` still has it: a place of a job that did not free it itself."""

    key: str
    field: str
    holder: str


class Vacate(msgspec.Struct, frozen=True):
    """Free all places of `owner`, on a cluster whose node with the list of them is away. holder: only those of this attempt,
    since the job runs again; "": all."""

    owner: str
    holder: str = ""


class Count(msgspec.Struct, frozen=True):
    """Let the batch `id` count the end of its job `job` (a uuid), which sends its callbacks when it was the last.

    skipped: it was not run, for the batch was cancelled. place: queue and id of the record of one that has failed.
    """

    id: str
    job: str
    how: Literal["done", "skipped", "failed"] = "done"
    place: str = ""


class Keep(msgspec.Struct, frozen=True):
    """Keep how the job `id` ended: its status and, as JSON, its result or error. ttl: seconds."""

    id: str
    status: str
    value: bytes
    ttl: float


Effect = Push | Free | Hold | Leave | Vacate | Count | Keep
