"""What a reserve writes into a payload, in Python, against the script that a Redis runs: byte for byte the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import qd
from qd.payload.format import read
from qd.payload.reservation import answered, original
from qd.payload.splice import reserved_text
from tests.support.payloads import malformed, odd
from tests.support.redis import Client

(UNIT,) = Path(qd.__file__).parent.rglob("unit.lua")
ASK = """
local p, base = ARGV[1], ARGV[2]
local text, mark, start, length, before = fresh_text(p, base)
if not text then text, mark, start, length, before = other_text(p, base) end
return {text, mark, start, length, before}
"""
BASE = "Tok3nTok3n.1.7"
LAST = "Zz9Zz9Zz9Z.4.77."

counts: st.SearchStrategy[Any] = st.one_of(
    st.integers(0, 3), st.sampled_from([2**53, 2**53 - 1, 2**53 + 1, -1, 1.5, "1", {}, [1], None, True])
)
marks = st.sampled_from([LAST + "0", LAST + "1", LAST + "2", LAST + "-", LAST + "t", "not a mark", 'a"b', "", 7, None])
tricky = ["x", "attempts", 'a"rsv":"b', "\\", "{", '"', ",", "}", '"attempts":3', ',"rsv":"a.1.1.1"']
entries = st.one_of(
    st.tuples(st.sampled_from(["attempts", "crashes", "exceptions", "held"]), counts),
    st.tuples(st.just("rsv"), marks),
    st.tuples(st.sampled_from(["uuid", "displayName", "id", "saved"]), st.sampled_from(tricky)),
    st.tuples(
        st.just("data"),
        st.sampled_from([{"attempts": 5, "rsv": LAST + "5"}, [], {}, ["attempts", "rsv"], "]}", [[["\\"]]], "x" * 700]),
    ),
)
styles = st.sampled_from([(",", ":", ""), (", ", ": ", ""), (" ,\n", " : ", " "), (",", ":", "\t" * 70)])


@pytest.fixture(scope="module")
def by_lua(shared_server):
    with shared_server.client() as client:
        yield lambda payload: asked(client, payload)


def asked(client: Client, payload: bytes) -> list[Any] | None:
    found = client.call("EVAL", UNIT.read_text() + ASK, 0, payload, BASE)
    return found or None  # nil is no text: an empty list


def by_python(payload: bytes) -> list[Any] | None:
    found = reserved_text(payload, BASE)
    return None if found is None else [found.text, found.mark.encode(), found.start, found.length, found.before]


def text_of(items: list[tuple[str, Any]], comma: str, colon: str, space: str) -> bytes:
    body = comma.join(f"{json.dumps(key)}{colon}{json.dumps(value)}" for key, value in items)
    return f"{{{space}{body}{space}}}{space}".encode()


def same(by_lua: Any, payload: bytes) -> None:
    found = by_python(payload)
    assert found == by_lua(payload)
    if found is not None:
        assert original(found[0], found[2], found[3], found[4]) == payload


@example(items=[("attempts", 0), ("rsv", LAST + "0"), ("crashes", 0)], style=(",", ":", ""), cut=0)
@example(items=[("attempts", 2), ("crashes", 2**53), ("rsv", LAST + "2")], style=(",", ":", ""), cut=0)
@example(items=[("attempts", 2**53)], style=(",", ":", ""), cut=0)
@given(items=st.lists(entries, max_size=10), style=styles, cut=st.sampled_from([0, 0, 0, 1, 3, 9]))
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck), database=None)
def test_a_payload_is_reserved_as_the_script_reserves_it(by_lua, items, style, cut):
    raw = text_of(items, *style)
    same(by_lua, raw[: len(raw) - cut])


pieces = [
    b'"attempts":1', b'"attempts" : 1', b',"crashes":2', b',"rsv":"' + LAST.encode() + b'1"', b'"rsv":7', b",", b"{",
    b"}", b"[", b"]", b'"', b"\\", b" ", b'"held":3', b'"exceptions":0', b'"attempts":007', b'"saved":"', b"\x00\xff",
    b',"attempts":0,"delay":null}', b"\n", b"x" * 600,
]  # fmt: skip


@given(parts=st.lists(st.sampled_from(pieces), max_size=24), whole=st.booleans())
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck), database=None)
def test_any_bytes_are_reserved_or_refused_as_by_the_script(by_lua, parts, whole):
    raw = b"".join(parts)
    same(by_lua, b"{" + raw + b"}" if whole else raw)


def test_known_payloads_are_reserved_as_by_the_script(by_lua):
    for _, raw in [*odd(), *malformed(cut_every=11)]:
        same(by_lua, raw)
        if (held := reserved_text(raw, "Zz9Zz9Zz9Z.4.78")) is not None:
            same(by_lua, held.text)  # nobody has answered
            same(by_lua, answered(held.text, held.mark, exceptions=2))


def test_counts_that_are_given_stand_in_it_whatever_stood_there():
    pushed = b'{"job":"t","data":{"n":1},"id":"x","attempts":0,"delay":null}'
    found = reserved_text(pushed, BASE, attempts=4, crashes=2, exceptions=1)
    assert found is not None
    assert (found.mark, found.attempts) == (BASE + ".4", 4)
    job = read(found.text)
    assert (job.attempts, job.crashes, job.exceptions, job.rsv) == (4, 2, 1, found.mark)
    assert original(found.text, found.start, found.length, found.before) == pushed


@pytest.mark.parametrize("key", ["crashes", "exceptions", "held"])
def test_a_count_of_nothing_that_is_given_takes_the_old_one_out(key):
    held = b'{"job":"t","attempts":3,"%b":2,"rsv":"%b-"}' % (key.encode(), LAST.encode())
    kept, gone = reserved_text(held, BASE), reserved_text(held, BASE, **{key: 0})
    assert kept is not None
    assert gone is not None
    assert (getattr(read(kept.text), key), getattr(read(gone.text), key)) == (2, 0)
    assert read(gone.text).attempts == 4
