"""The message: the JSON text of a job, as Laravel writes it.

build          Writing: make(), ids, and the pre-cut template for repeated dispatches.
format         Reading: Payload, Relations (its key "qd"), read().
reservation    The mark of a reservation in a payload: reading it, answering, checkpoints.
rewrite        A payload sent later or again: links of a chain, retries of failed jobs.
signing        HMAC signatures.
size           Size and nesting limits.
splice         Writing a reservation into a payload byte for byte as unit.lua does, for drivers without scripts.
"""

from __future__ import annotations

from qd.payload.build import OWN_KEYS, make, new_id, new_pair, new_pairs, new_uuid, with_extra, with_relations
from qd.payload.format import NO_DATA, OBJECT_JOB, Payload, base64url, base64url_decoded, read, tags_of

__all__ = [
    "NO_DATA",
    "OBJECT_JOB",
    "OWN_KEYS",
    "Payload",
    "base64url",
    "base64url_decoded",
    "make",
    "new_id",
    "new_pair",
    "new_pairs",
    "new_uuid",
    "read",
    "tags_of",
    "with_extra",
    "with_relations",
]
