"""Reading any bytes as a payload returns a payload or raises Malformed, and costs little: row 31.

QD_FUZZ_SECONDS: the duration of the long test that mutates the known hostile payloads; default 600.
"""

from __future__ import annotations

import json
import os
import random
import time
import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qd.errors import Malformed
from qd.payload.format import Payload, depth, read
from tests.support.payloads import VALID, hostile
from tests.support.reliability import Figures

MB = 1 << 20
ROW = pytest.mark.fault(
    "31",
    "any bytes, and valid payloads with bytes changed, read as payloads",
    "a payload or Malformed and no other error; at most 10 times the size in memory",
)
FIELDS = sorted({"job", "data", "attempts", "uuid", "id", "rsv", "crashes", *Payload.__struct_fields__})
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=4,
)
payloads = st.dictionaries(st.one_of(st.sampled_from(FIELDS), st.text(max_size=4)), values, max_size=5)


def taken(raw: bytes) -> None:
    """Process the bytes of a payload as a worker does before its job runs."""
    depth(raw)
    with suppress(Malformed):
        payload = read(raw)
        bytes(payload.data)


@ROW
@settings(max_examples=1000, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(raw=st.one_of(st.binary(max_size=200), payloads.map(lambda made: json.dumps(made).encode())))
def test_any_bytes_are_a_payload_or_malformed(raw: bytes) -> None:
    taken(raw)


@ROW
@settings(max_examples=1000, deadline=None, database=None)
@given(st.integers(0, len(VALID) - 1), st.binary(max_size=6), st.integers(0, 6))
def test_a_changed_valid_payload_is_a_payload_or_malformed(at: int, new: bytes, length: int) -> None:
    taken(VALID[:at] + new + VALID[at + length :])


COSTLY = {
    "brackets": b'{"job":"x","data":' + b"[" * (MB // 2) + b"]" * (MB // 2) + b"}",
    "small keys": b'{"job":"x",' + b",".join(b'"k%d":0' % n for n in range(MB // 10)) + b"}",
    "digits": b'{"job":"x","attempts":' + b"9" * MB + b"}",
    "escapes": b'{"job":"' + rb"\u0041" * (MB // 6) + b'"}',
    "one text": b'{"job":"x","data":"' + b"a" * MB + b'"}',
    "no end": b'{"job":"' + b"\\" * MB,
    "numbers": b'{"job":"x","data":[' + b",".join([b"1.5e300"] * (MB // 8)) + b"]}",
}


@ROW
@pytest.mark.parametrize("shape", COSTLY)
def test_a_megabyte_costs_at_most_ten_megabytes_and_little_time(shape: str) -> None:
    raw = COSTLY[shape]
    tracemalloc.start()
    try:
        taken(raw)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= 10 * len(raw)
    assert min(seconds(raw) for _ in range(3)) < 0.5  # some milliseconds on a quiet machine


def seconds(raw: bytes) -> float:
    began = time.process_time()
    taken(raw)
    return time.process_time() - began


TOKENS = [
    b'"',
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b",",
    b"\0",
    b"\xff",
    b"\\u",
    b"1e309",
    b"-",
    b"null",
    b'"job":',
    b'"rsv":',
]


def mutated(draw: random.Random, corpus: list[bytes]) -> bytes:
    raw = bytearray(draw.choice(corpus)[:2000])
    for _ in range(draw.randint(1, 6)):
        at, to = sorted((draw.randrange(len(raw) + 1), draw.randrange(len(raw) + 1)))
        way = draw.randrange(5)
        if way == 0 and raw:
            raw[min(at, len(raw) - 1)] ^= 1 << draw.randrange(8)
        elif way == 1:
            del raw[at : min(to, at + 40)]
        elif way == 2:
            raw[at:at] = raw[at : min(to, at + 200)]
        elif way == 3:
            raw[at:at] = draw.choice(TOKENS)
        else:
            other = draw.choice(corpus)[:2000]
            raw[at:] = other[draw.randrange(len(other) + 1) :]
    return bytes(raw)


@pytest.mark.slow
@pytest.mark.fault("31", "ten minutes of mutations of hostile payloads", "a payload or Malformed and no other error")
def test_mutated_payloads_are_payloads_or_malformed(figures: Figures) -> None:
    corpus = [raw for _, raw in hostile()]
    seed = random.randrange(2**32)
    draw, tried, longest = random.Random(seed), 0, 0.0
    until = time.monotonic() + float(os.environ.get("QD_FUZZ_SECONDS", "600"))
    while time.monotonic() < until:
        raw = mutated(draw, corpus)
        began = time.process_time()
        try:
            taken(raw)
        except Exception as error:
            raise AssertionError(f"seed {seed}, number {tried}: {raw!r}") from error
        tried, longest = tried + 1, max(longest, time.process_time() - began)
    figures.add(tried=tried, longest=longest)
