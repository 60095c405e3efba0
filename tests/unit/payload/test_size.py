"""Size and depth limits: counted correctly for any bytes, cheaply, and checked at dispatch."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qd.errors import ArgumentError
from qd.payload.size import check, depth, harmless, too_deep
from tests.support.fakes import FakeQd, settings

MEGABYTE = 1 << 20


def real_depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(real_depth, value.values()), default=0)
    return 1 + max(map(real_depth, value), default=0) if isinstance(value, list) else 0


TEXTS = st.text(st.sampled_from('ab"\\[]{}/ä'), max_size=6)
VALUES = st.recursive(
    TEXTS | st.none() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=30
)


@given(value=VALUES, ascii=st.booleans(), indent=st.sampled_from([None, 1]))
def test_depth_counts_nested_values(value: Any, ascii: bool, indent: int | None):
    found = real_depth(value)
    text = json.dumps(value, ensure_ascii=ascii, indent=indent).encode()
    assert depth(text) == found
    assert not too_deep(text, found + 1)
    assert found < 2 or too_deep(text, found - 1)


@given(value=VALUES, most=st.integers(0, 5), largest=st.integers(0, 50))
def test_harmless_payloads_exceed_no_limit(value: Any, most: int, largest: int):
    text = json.dumps(value, separators=(",", ":")).encode()
    if len(text) <= harmless(largest, most):
        check(text, None, largest, most)


@given(raw=st.binary())
def test_depth_is_defined_for_any_bytes(raw: bytes):
    assert depth(raw) >= 0


@pytest.mark.parametrize("piece", [b"[", b"[]", b'"', b'\\"', b'"[', b'"[",', b'{"a":', b"\\", b']"'])
def test_the_depth_of_hostile_bytes_is_counted_in_linear_time(piece: bytes):
    """Ten times the bytes take about ten times as long, not a hundred times."""

    def took(raw: bytes) -> float:
        began = time.process_time()
        depth(raw)
        return time.process_time() - began

    small = min(took(piece * (100_000 // len(piece))) for _ in range(3))
    assert took(piece * (1_000_000 // len(piece))) < 40 * small + 0.05


def app_with(max_depth: int = 512) -> FakeQd:
    app = FakeQd()
    app.settings = replace(settings(), max_payload=MEGABYTE, max_depth=max_depth)
    app.job("mail.welcome")(welcome)
    return app


def welcome(to: Any) -> None: ...


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("way", ["dispatch", "many", "push", "later", "raw"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("x" * MEGABYTE, r"bytes, more than max_payload = 1048576"),
        (nested(511), r"nested 51\d deep, .*max_depth = 512"),
    ],
    ids=["too large", "too deep"],
)
def test_payloads_over_a_limit_are_refused_before_anything_is_sent(way: str, value: Any, message: str):
    app = app_with()
    data = json.dumps({"to": value}).encode()
    queue = app.queue("a")
    calls = {
        "dispatch": lambda: app.call("mail.welcome", data).dispatch(),
        "many": lambda: app.dispatch(app.call("mail.welcome", b'{"to":1}'), app.call("mail.welcome", data)),
        "push": lambda: queue.push("mail.welcome", {"to": value}),
        "later": lambda: queue.push("mail.welcome", {"to": value}, delay=60),
        "raw": lambda: queue.push_raw(b'{"job":"mail.welcome","data":%b}' % data),
    }
    with pytest.raises(ArgumentError, match=message) as error:
        calls[way]()
    assert ("this raw payload" if way == "raw" else "'mail.welcome'") in str(error.value)
    assert not app.sent
    assert not app.opened


def test_payloads_just_within_a_limit_are_sent():
    app = app_with()
    app.call("mail.welcome", json.dumps({"to": nested(510)}).encode()).dispatch()
    app.queue("a").push_raw(b"x" * MEGABYTE)
    assert len(app.sent) == 2


def test_limits_are_exact_to_the_byte_and_level():
    app = app_with(max_depth=5)
    call = app.call("mail.welcome", json.dumps({"to": nested(3)}).encode())
    call.dispatch()
    size = len(app.sent[-1].payload)
    app.settings = replace(app.settings, max_payload=size)
    app.dispatch(call, call)
    assert len(app.sent) == 3
    for largest, deepest, limit in ((size - 1, 0, "max_payload"), (0, 4, "max_depth")):
        app.settings = replace(app.settings, max_payload=largest, max_depth=deepest)
        with pytest.raises(ArgumentError, match=limit):
            app.dispatch(call, call)
    assert len(app.sent) == 3


def test_a_limit_of_0_means_no_limit():
    app = app_with(max_depth=0)
    app.call("mail.welcome", json.dumps({"to": nested(600)}).encode()).dispatch()
    app.settings = replace(app.settings, max_payload=0)
    app.queue("a").push_raw(b"[" * 2000 + b"x" * MEGABYTE)
    app.call("mail.welcome", json.dumps({"to": "x" * MEGABYTE}).encode()).dispatch()
    assert len(app.sent) == 3
