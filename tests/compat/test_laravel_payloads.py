"""Payloads recorded from Laravel byte for byte in golden/: qd reads all of them and builds the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qd.arguments.signature import signature_of
from qd.errors import WrongType
from qd.payload.build import make
from qd.payload.format import read
from qd.payload.reservation import answered, original

GOLDEN = Path(__file__).parent / "golden"
FILES = sorted(path.relative_to(GOLDEN).as_posix() for path in GOLDEN.glob("laravel*/*.json"))
PUSHED = [name for name in FILES if name.endswith(".pushed.json")]
RESERVED = [name for name in FILES if name.endswith(".reserved.json")]
STRING_JOBS_OF_13 = [name for name in PUSHED if name.startswith("laravel13/string")]
CJSON = [json.loads(line) for line in (GOLDEN / "cjson.jsonl").read_text().splitlines()]


def golden(name: str) -> bytes:
    return (GOLDEN / name).read_bytes().removesuffix(b"\n")


def data_of(raw: bytes) -> bytes:
    """The bytes of the top-level data, found without the code under test."""
    decoder = json.JSONDecoder()
    text = raw.decode()
    start = text.index('"data":') + len('"data":')
    _, end = decoder.raw_decode(text, start)
    return text[start:end].encode()


def test_all_recordings_are_present():
    assert len(PUSHED) == len(RESERVED) == 22
    assert len(CJSON) == 33


@pytest.mark.parametrize("name", FILES)
def test_a_recorded_payload_is_read(name):
    raw = golden(name)
    expected: dict[str, Any] = json.loads(raw)
    payload = read(raw)
    for key in ("job", "displayName", "uuid", "id", "maxTries", "maxExceptions", "failOnTimeout", "backoff", "timeout"):
        assert getattr(payload, key) == expected[key], key
    assert payload.attempts == (1 if name in RESERVED else 0)
    assert payload.createdAt == expected.get("createdAt")
    assert payload.deadline == expected.get("retryUntil")
    assert payload.is_laravel_object == ("string" not in name and "hooked" not in name)
    assert bytes(payload.data) == data_of(raw)
    assert payload.rsv is None


def test_backoff_and_display_name_are_read_from_the_job():
    tuned = read(golden("laravel13/object-tuned.pushed.json"))
    assert tuned.backoffs == (1.0, 5.0, 10.0)
    assert tuned.display == 'Tuned "job" ünï/code'
    assert read(golden("laravel8/object-scalar-backoff.pushed.json")).backoffs == (9.0,)
    assert read(golden("laravel13/string-delayed.pushed.json")).backoffs == (30.0,)
    assert read(golden("laravel8/string-delayed.pushed.json")).backoffs is None


@pytest.mark.parametrize("name", STRING_JOBS_OF_13)
def test_our_payload_equals_laravels_byte_for_byte(name):
    raw = golden(name)
    same = read(raw)
    made = make(same.job, bytes(same.data), uuid=same.uuid, id=same.id, created_at=int(same.createdAt or 0))
    # Laravel 13 writes the delay into the payload, and its workers use it as a backoff. qd does not send it.
    assert made == raw.replace(b'"delay":30', b'"delay":null')


def test_our_payload_has_laravels_escapes_and_order_for_every_option():
    raw = golden("laravel13/object-tuned.pushed.json")
    tuned = read(raw)
    made = make(
        tuned.job,
        bytes(tuned.data),
        uuid=tuned.uuid,
        id=tuned.id,
        display=tuned.display,
        max_tries=tuned.maxTries,
        max_exceptions=tuned.maxExceptions,
        fail_on_timeout=bool(tuned.failOnTimeout),
        backoff=tuned.backoffs,
        timeout=tuned.timeout,
        retry_until=tuned.retryUntil,
        created_at=int(tuned.createdAt or 0),
    )
    assert made == raw.replace(b'"deleteWhenMissingModels":true,', b"")


def test_extra_keys_are_where_laravels_hooks_put_them():
    hooked = [key for key in json.loads(golden("laravel8/hooked.pushed.json")) if key != "hook"]
    ours = json.loads(make("x", b"{}", created_at=1, extra={"tags": ["t1"]}))
    assert [key for key in ours if key not in ("createdAt", "delay")] == hooked
    assert list(ours)[8:] == ["data", "createdAt", "tags", "id", "attempts", "delay"]


def test_text_is_escaped_as_php_escapes_it():
    name = 'a/b "c" \\ é ✓ 😀 \u2028\u2029 \x00\x1f\x7f\b\f\n\r\t'
    # json_encode of PHP 8.2 with JSON_UNESCAPED_UNICODE
    php = '"a\\/b \\"c\\" \\\\ é ✓ 😀 \\u2028\\u2029 \\u0000\\u001f\x7f\\b\\f\\n\\r\\t"'.encode()
    made = make(name, b'"a/b \xe2\x80\xa8"', created_at=1, extra={"tags": [name], name: 1})
    assert b'"job":' + php + b"," in made
    assert b'"tags":[' + php + b"]," + php + b":1," in made
    assert b'"data":"a/b \xe2\x80\xa8",' in made  # raw data is not escaped
    assert read(made).job == name


# Payloads of releases before 8, written by hand: no uuid before 7, no createdAt, `delay` instead of `backoff`, and
# `timeoutAt` instead of `retryUntil`.
OLDER = {
    "5.5 string": rb'{"displayName":"mail.send","job":"mail.send@now","maxTries":null,"timeout":null,"data":{"n":1},'
    rb'"id":"wP81SDIYcKAC0AmB5Oxbuo6RpnlEin8t","attempts":0}',
    "5.5 object": rb'{"displayName":"App\\Jobs\\X","job":"Illuminate\\Queue\\CallQueuedHandler@call","maxTries":5,'
    rb'"timeout":20,"timeoutAt":2000000000,"data":{"commandName":"App\\Jobs\\X","command":"O:10:\"App\\Jobs\\X\":0:{}"},'
    rb'"id":"wP81SDIYcKAC0AmB5Oxbuo6RpnlEin8t","attempts":0}',
    "6 object": rb'{"displayName":"App\\Jobs\\X","job":"Illuminate\\Queue\\CallQueuedHandler@call","maxTries":5,'
    rb'"delay":7,"timeout":20,"timeoutAt":2000000000,"data":{"commandName":"App\\Jobs\\X","command":"O:10:\"App\\Jobs\\X\":0:{}"},'
    rb'"id":"wP81SDIYcKAC0AmB5Oxbuo6RpnlEin8t","attempts":0}',
    "7 string": rb'{"uuid":"21a73dae-6587-495c-8024-54419db88656","displayName":"mail.send","job":"mail.send@now",'
    rb'"maxTries":null,"maxExceptions":null,"delay":null,"timeout":null,"data":{"n":1},'
    rb'"id":"wP81SDIYcKAC0AmB5Oxbuo6RpnlEin8t","attempts":0}',
    "7 object": rb'{"uuid":"21a73dae-6587-495c-8024-54419db88656","displayName":"App\\Jobs\\X",'
    rb'"job":"Illuminate\\Queue\\CallQueuedHandler@call","maxTries":5,"maxExceptions":3,"delay":"7,8","timeout":20,'
    rb'"timeoutAt":2000000000,"data":{"commandName":"App\\Jobs\\X","command":"O:10:\"App\\Jobs\\X\":0:{}"},'
    rb'"id":"wP81SDIYcKAC0AmB5Oxbuo6RpnlEin8t","attempts":0}',
}


@pytest.mark.parametrize("release", OLDER)
def test_a_payload_of_an_older_release_is_read(release):
    payload = read(OLDER[release])
    assert payload.id == "wP81SDIYcKAC0AmB5Oxbuo6RpnlEin8t"
    assert (payload.uuid is None) == (release[0] in "56")
    if release.endswith("string"):
        assert (payload.job, payload.display) == ("mail.send@now", "mail.send")
        assert (payload.maxTries, payload.timeout, payload.backoffs, payload.deadline) == (None, None, None, None)
        assert bytes(payload.data) == b'{"n":1}'
    else:
        assert payload.is_laravel_object
        assert (payload.maxTries, payload.timeout, payload.deadline) == (5, 20, 2e9)
        assert payload.backoffs == {"5": None, "6": (7.0,), "7": (7.0, 8.0)}[release[0]]


MARK = "Ab3Ab3Ab3A.3.17.1"


@pytest.mark.parametrize("name", [*PUSHED, *RESERVED])
def test_data_bytes_survive_a_reservation_and_its_answer(name):
    raw = golden(name)
    start = raw.index(b'"attempts":')
    before = raw[start : start + len('"attempts":0')]
    unit = b'"attempts":1,"crashes":2,"rsv":"%b"' % MARK.encode()
    member = raw[:start] + unit + raw[start + len(before) :]
    text = answered(member, MARK, attempts=0, exceptions=1, held=5)
    assert read(text).exceptions == 1
    assert data_of(text) == data_of(member) == data_of(raw)
    assert original(member, start, len(unit), before) == raw


# -- the declared types undo what cjson does to data when a PHP worker reserves the job


def takes_all(a: object = None, b: object = None, c: object = None, x: int = 0, y: int = 0, z: int = 0) -> None: ...
def takes_lists(a: list[int], b: dict[str, int], c: tuple[list[int], dict[str, int]]) -> None: ...
def takes_n(n: int) -> None: ...
def takes_t(t: int) -> None: ...
def takes_float(n: float) -> None: ...
def takes_text(s: str, t: str = "") -> None: ...


@pytest.mark.parametrize(
    ("case", "function"),
    [
        ("empty array", takes_all),
        ("empty object", takes_all),
        ("empty string", takes_all),
        ("null data", takes_all),
        ("nested empties", takes_lists),
        ("1e14 exact", takes_n),
        ("1e15", takes_n),
        ("fraction 0.1", takes_float),
        ("integral float", takes_float),
        ("negative zero", takes_float),
        ("key order", takes_all),
        ("unicode", takes_text),
        ("raw utf8", takes_text),
        ("slashes", takes_text),
        ("controls", takes_text),
        ("quotes", takes_text),
    ],
)
def test_a_job_retried_by_php_has_the_same_arguments(case, function):
    record = next(record for record in CJSON if record["case"] == case)
    signature = signature_of(function)
    pushed, retried = (signature.decode(record[key].encode()) for key in ("pushed", "reserved"))
    assert pushed == retried


@pytest.mark.parametrize("case", ["int64 max", "snowflake id", "microsecond epoch", "2^53+1"])
def test_an_integer_that_lost_digits_is_reported(case):
    record = next(record for record in CJSON if record["case"] == case)
    signature = signature_of(takes_t if case == "microsecond epoch" else takes_n)
    (pushed,) = signature.decode(record["pushed"].encode()).values()
    assert isinstance(pushed, int)
    with pytest.raises(WrongType, match="cut off"):
        signature.decode(record["reserved"].encode())
