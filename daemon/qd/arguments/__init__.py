"""Signature <-> `data`: what a job is called with, bound, encoded, and converted back to the declared types.

jobs/declare.py makes a Signature for each job, jobs/calls.py encodes with it, the worker decodes with it. Pure.
"""

from qd.arguments.canonical import text_of
from qd.arguments.carriers import Key, Provided, Serialized, Serializer
from qd.arguments.fields import object_fields
from qd.arguments.known import Known
from qd.arguments.parameters import ABSENT, Parameter, parameters_of
from qd.arguments.pattern import Pattern
from qd.arguments.providers import PROVIDED, provided
from qd.arguments.signature import Signature, signature_of, signature_of_fields
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
