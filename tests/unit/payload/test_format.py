"""qd.payload: reading any bytes, building payloads as Laravel does, and limits of size and depth."""

from __future__ import annotations

import json
import math
import os
import re
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qd.errors import ArgumentError, Malformed
from qd.payload.build import make, new_id, new_pair, new_pairs, new_uuid
from qd.payload.format import OBJECT_JOB, Payload, check, depth, harmless, read, too_deep
from tests.support import fakes
from tests.support.fakes import FakeQd
from tests.support.payloads import VALID, malformed, odd


def made(**more: object) -> Payload:
    return read(make("mail.welcome", b'{"to":"a@b.c"}', created_at=1795225685, **more))  # type: ignore[arg-type]


# -- reading


@pytest.mark.parametrize(("name", "raw"), malformed(), ids=[name for name, _ in malformed()])
def test_invalid_payloads_are_malformed(name, raw):
    with pytest.raises(Malformed) as error:
        read(raw)
    reason = str(error.value)
    assert reason
    assert len(reason) < 300
    assert reason.isprintable()
    field, is_wrong, _ = name.partition(" is ")
    if is_wrong and name.isascii() and f"{field}" in Payload.__struct_fields__:
        assert reason.startswith((f"{field}: ", f"{field}."))  # or in it


@pytest.mark.parametrize(("name", "raw"), odd(), ids=[name for name, _ in odd()])
def test_odd_payloads_are_read_or_malformed(name, raw):
    try:
        payload = read(raw)
    except Malformed:
        return
    assert payload.job
    assert payload.display
    assert all(0 <= wait < math.inf for wait in payload.backoffs or ())
    bytes(payload.data)


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_malformed(raw):
    with suppress(Malformed):
        read(raw)


@settings(deadline=None)
@given(st.integers(0, len(VALID) - 1), st.binary(max_size=4), st.integers(0, 4))
def test_a_payload_with_some_bytes_changed_is_read_or_malformed(at, new, length):
    with suppress(Malformed):
        read(VALID[:at] + new + VALID[at + length :])


def test_a_payload_with_only_a_job_has_all_defaults():
    payload = read(b'{"job":"mail.welcome"}')
    assert (payload.attempts, payload.crashes, payload.exceptions, payload.held, payload.rsv) == (0, 0, 0, 0, None)
    assert bytes(payload.data) == b'""'
    assert payload.backoffs is None
    assert payload.deadline is None
    assert not payload.failOnTimeout
    assert payload.display == "mail.welcome"


def test_data_is_not_changed():
    data = b' { "b" : [ ] , "a" : 1.0 , "\\u00e9" : {} }'.strip()
    assert bytes(read(b'{"job":"x","data":%b}' % data).data) == data


@pytest.mark.parametrize(
    ("keys", "waits"),
    [
        (b'"backoff":"1,5,10"', (1.0, 5.0, 10.0)),
        (b'"backoff":"9"', (9.0,)),
        (b'"backoff":9', (9.0,)),
        (b'"backoff":" 1, 5"', (1.0, 5.0)),
        (b'"backoff":"0.5,2"', (0.5, 2.0)),
        (b'"backoff":""', (0.0,)),
        (b'"backoff":"soon,3s,-4"', (0.0, 3.0, 0.0)),
        (b'"backoff":-7', (0.0,)),
        (b'"backoff":null,"delay":null', None),
        (b'"backoff":null,"delay":30', (30.0,)),
        (b'"backoff":"1","delay":30', (1.0,)),
        (b'"delay":"3,6"', (3.0, 6.0)),
        (b'"backoff":"999999999999999"', (100 * 365 * 86400.0,)),
    ],
)
def test_backoff_is_read_as_laravel_13_reads_it(keys, waits):
    assert read(b'{"job":"x",%b}' % keys).backoffs == waits


@pytest.mark.parametrize(
    ("keys", "moment"),
    [
        (b'"retryUntil":2000000000', 2e9),
        (b'"timeoutAt":2000000000', 2e9),
        (b'"retryUntil":1,"timeoutAt":2', 1.0),
        (b'"retryUntil":null,"timeoutAt":2', 2.0),
        (b'"retryUntil":0', None),
        (b'"retryUntil":null', None),
    ],
)
def test_the_deadline_has_two_names_and_zero_means_no_deadline(keys, moment):
    assert read(b'{"job":"x",%b}' % keys).deadline == moment


def test_the_last_of_duplicate_keys_counts():
    assert read(b'{"job":"x","attempts":1,"job":"y","attempts":2}').attempts == 2


def test_only_call_queued_handler_is_a_laravel_object():
    assert read(json.dumps({"job": OBJECT_JOB}).encode()).is_laravel_object
    assert not read(rb'{"job":"App\\Jobs\\Report@fire"}').is_laravel_object


# -- building


def test_a_built_payload_is_read_back():
    payload = made(
        uuid="u-1",
        id="i-1",
        display="Welcome!",
        max_tries=0,
        max_exceptions=2,
        fail_on_timeout=True,
        backoff=(1, 5.5, 30),
        timeout=30,
        retry_until=2e9,
        extra={"tags": ["a", "ü/"]},
    )
    assert (payload.uuid, payload.id, payload.displayName, payload.job) == ("u-1", "i-1", "Welcome!", "mail.welcome")
    assert (payload.maxTries, payload.maxExceptions, payload.failOnTimeout, payload.timeout) == (0, 2, True, 30)
    assert payload.backoffs == (1.0, 5.5, 30.0)
    assert payload.deadline == 2e9
    assert payload.createdAt == 1795225685
    assert payload.attempts == 0
    assert payload.delay is None


@settings(deadline=None)
@given(
    job=st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    data=st.recursive(st.none() | st.booleans() | st.text(), lambda inner: st.lists(inner)).map(json.dumps),
)
def test_any_name_and_any_data_arrive_as_they_were(job, data):
    payload = read(make(job, data.encode(), created_at=1))
    assert payload.job == job
    assert payload.displayName == job.partition("@")[0]
    assert bytes(payload.data) == data.encode()


def test_each_payload_has_its_own_uuid_and_id():
    payloads = [made() for _ in range(200)]
    assert len({payload.uuid for payload in payloads}) == len({payload.id for payload in payloads}) == 200
    shape = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
    assert all(shape.fullmatch(payload.uuid or "") for payload in payloads)
    assert all(re.fullmatch("[0-9A-Za-z]{32}", payload.id or "") for payload in payloads)


@pytest.mark.parametrize("byte", [0, 255])
def test_a_uuid_has_its_version_and_variant_for_any_random_bytes(byte: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "urandom", lambda count: bytes([byte]) * count)
    digit = f"{byte:02x}"[0]
    uuid = f"{digit * 8}-{digit * 4}-4{digit * 3}-{'8b'[byte % 2]}{digit * 3}-{digit * 12}"
    assert new_uuid() == uuid
    assert new_pairs(2) == ([uuid] * 2, [new_id()] * 2)


@given(st.binary(min_size=48, max_size=48), st.binary(min_size=48, max_size=48))
def test_many_ids_are_built_like_single_ones(one: bytes, other: bytes):
    with pytest.MonkeyPatch.context() as patch:
        found = []
        for noise in (one, other):
            patch.setattr(os, "urandom", lambda count, noise=noise: noise[:count])
            found.append(new_pair())
        patch.setattr(os, "urandom", lambda count: one[:16] + other[:16] + one[16:] + other[16:])
        assert list(zip(*new_pairs(2), strict=True)) == found


def test_a_fraction_of_a_second_is_rounded_up_where_php_reads_whole_ones():
    payload = made(timeout=0.2, retry_until=1795225685.4)
    assert (payload.timeout, payload.deadline) == (1, 1795225686)


@pytest.mark.parametrize(
    ("backoff", "text"),
    [([], None), ([0], "0"), ([0.0], "0"), ([0.25], "0.25"), ([1e6], "1000000"), ([1, 2.5], "1,2.5"), ([0.0001], "0")],
)
def test_backoff_travels_as_text_without_exponents(backoff, text):
    assert made(backoff=backoff).backoff == text


@pytest.mark.parametrize(
    "more",
    [
        {"backoff": [-1]},
        {"backoff": [math.inf]},
        {"backoff": [math.nan]},
        {"timeout": math.inf},
        {"timeout": math.nan},
        {"extra": {"attempts": 7}},
        {"extra": {"rsv": "x"}},
        {"extra": {"tags": {1, 2}}},
        {"extra": {"weight": math.nan}},
        {"display": "\ud800"},
    ],
    ids=str,
)
def test_an_unserializable_payload_is_refused(more):
    with pytest.raises(ArgumentError):
        made(**more)


def test_a_job_needs_a_name():
    with pytest.raises(ArgumentError):
        make("", b"{}", created_at=1)


def test_no_data_is_laravels_empty_string():
    assert b'"data":"",' in make("x", b"", created_at=1)


# -- limits of size and depth

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
    app.settings = replace(fakes.settings(), max_payload=MEGABYTE, max_depth=max_depth)
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
