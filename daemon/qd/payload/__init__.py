"""The message: the JSON text of a job, as Laravel writes it.

build          Writing: make(), ids, and the pre-cut template for repeated dispatches.
format         Reading: Payload, Relations (its key "qd"), read().
reservation    The mark of a reservation in a payload: reading it, answering, checkpoints.
rewrite        A payload sent later or again: links of a chain, retries of failed jobs.
signing        HMAC signatures.
size           Size and nesting limits.
splice         Writing a reservation into a payload as reservation.lua does, for drivers without scripts.
"""
