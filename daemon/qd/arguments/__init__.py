"""Arguments of jobs to JSON and back.

arrival       Compares what was dispatched with what a worker will get.
injection     Provided parameters (app.provide) and models sent by key (app.carry).
parameters    Parameters of functions, dataclasses, structs and attrs classes.
signature     Signature: binds, encodes and decodes the arguments of one job; patterns filled from them.
values        Untyped values as JSON; repair of what Lua's cjson changed.
"""

from __future__ import annotations

from qd.arguments.injection import PROVIDED, Key, Known, Provided, Serialized, Serializer, provided
from qd.arguments.parameters import ABSENT, Parameter, object_fields, parameters_of
from qd.arguments.signature import Pattern, Signature, signature_of, signature_of_fields, text_of
from qd.arguments.values import decode_value, encode_value

__all__ = [
    "ABSENT",
    "PROVIDED",
    "Key",
    "Known",
    "Parameter",
    "Pattern",
    "Provided",
    "Serialized",
    "Serializer",
    "Signature",
    "decode_value",
    "encode_value",
    "object_fields",
    "parameters_of",
    "provided",
    "signature_of",
    "signature_of_fields",
    "text_of",
]
