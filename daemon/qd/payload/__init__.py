"""The message: the JSON text of a job, as Laravel writes it.

build          Writing: make(), ids, the pre-cut template for repeated dispatches; a payload sent later or again.
encryption     Encryption of arguments, in the format of Laravel.
format         Reading: Payload, Relations (its key "qd"), read(). Size and nesting limits.
reservation    The mark of a reservation in a payload: reading it, answering, checkpoints.
signing        HMAC signatures.
splice         Writing a reservation into a payload as reservation.lua does, for drivers without scripts.
"""
