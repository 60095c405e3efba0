"""The bytes of a failed payload as it is sent again."""

from __future__ import annotations

import json

import pytest

from qd.errors import Malformed
from qd.payload.build import make
from qd.payload.format import read
from qd.payload.reservation import answered, saving
from qd.payload.rewrite import as_pushed, sent_again

MARK = "Tok.3.41.2"
UNIT = b'"attempts":2,"crashes":1,"exceptions":1,"held":1700000000,"rsv":"Tok.3.41.2"'


def pushed(**more: object) -> bytes:
    return make("mail.welcome", b'{"to":"\\u00e4","none":{},"big":100000000000000}', created_at=1000, **more)  # type: ignore[arg-type]


def buried(raw: bytes) -> bytes:
    return answered(raw.replace(b'"attempts":0', UNIT), MARK, attempts=2)


def test_it_is_as_it_was_pushed_but_for_its_time() -> None:
    raw = pushed()
    assert sent_again(buried(raw), 5000.7) == raw.replace(b'"createdAt":1000', b'"createdAt":5000')


def test_the_time_it_was_given_begins_anew() -> None:
    again = read(sent_again(buried(pushed(retry_until=1060)), 5000.0))
    assert (again.createdAt, again.retryUntil) == (5000, 5060)


def test_where_nobody_knows_how_long_it_was_given_it_has_no_end() -> None:
    old = b'{"job":"a","data":{"retryUntil":7},"retryUntil":1060,"timeoutAt":9,"attempts":1}'
    again = sent_again(old, 5000.0)
    assert again == b'{"job":"a","data":{"retryUntil":7},"retryUntil":null,"timeoutAt":null,"attempts":0}'
    assert read(again).deadline is None


def test_what_the_job_has_saved_stays() -> None:
    held = saving(pushed().replace(b'"attempts":0', UNIT), MARK, b'{"page":7}')
    again = read(sent_again(answered(held, MARK), 5000.0))
    assert (again.attempts, again.crashes, again.rsv, again.checkpoint) == (0, 0, None, b'{"page":7}')


@pytest.mark.parametrize(
    ("raw", "again"),
    [
        (b'{"job":"a"}', b'{"job":"a"}'),
        (b'{"attempts" : 7 ,"job":"a"}', b'{"attempts" : 0 ,"job":"a"}'),
        (b'{"crashes":3,"job":"a"}', b'{"crashes":0,"job":"a"}'),
        (b'{"rsv":"T.0.1.1","job":"a"}', b'{"rsv":"","job":"a"}'),
        (b'{"job":"a" , "crashes":3 , "attempts":1}', b'{"job":"a"  , "attempts":0}'),
        (b'{"attempts":1,"job":"a","attempts":2}', b'{"attempts":0,"job":"a","attempts":0}'),
        (b'{"job":"a","data":{"attempts":5},"attempts":5}', b'{"job":"a","data":{"attempts":5},"attempts":0}'),
        (b'{"job":"a","data":"\\"attempts\\":5","attempts":5}', b'{"job":"a","data":"\\"attempts\\":5","attempts":0}'),
        (b'{"job":"attempts","data":["rsv"],"attempts":5}', b'{"job":"attempts","data":["rsv"],"attempts":0}'),
    ],
)  # fmt: skip
def test_keys_are_found_on_the_top_level_and_nothing_else_changes(raw: bytes, again: bytes) -> None:
    assert sent_again(raw, 5000.0) == again


def test_how_often_and_when_first_it_failed_travels_with_it_and_changes_nothing_else() -> None:
    raw, now = buried(pushed()), 5000.0
    again = sent_again(raw, now, 4000.25)
    assert again == sent_again(raw, now).replace(b"{", b'{"failures":"1 4000.250",', 1)
    assert read(again).failed_before == (1, 4000.25)
    third = sent_again(buried(again), now, 4500.0)
    assert (read(third).failed_before, len(third)) == ((2, 4000.25), len(again))
    assert as_pushed(third) == sent_again(raw, now)


@pytest.mark.parametrize(
    "value", [b"7", b"null", b"{}", b'"7"', b'"-1 7.000"', b'"1 1e9"', b'"7 nan"', b'"' + b"9" * 99 + b' 1.000"']
)
def test_a_key_of_this_name_that_qd_has_not_written_stays_and_counts_for_nothing(value: bytes) -> None:
    raw = b'{"job":"a","failures":%b}' % value
    assert read(raw).failed_before == (0, None)
    assert sent_again(raw, 5000.0, 4000.0) == raw == as_pushed(raw)


def test_a_large_payload_is_no_work() -> None:
    data = json.dumps({"text": 'a"\\' * 300_000, "deep": [[{}] * 10] * 10_000}).encode()
    raw = make("a", data, created_at=1)
    assert bytes(read(sent_again(buried(raw), 5000.0)).data) == data


@pytest.mark.parametrize(
    "raw", [b"", b"nonsense", b"[]", b'{"attempts":1}', b'{"job":"a","attempts":-1}', b"\xff{}", b"[" * 9000]
)
def test_what_cannot_be_run_is_refused(raw: bytes) -> None:
    with pytest.raises(Malformed):
        sent_again(raw, 5000.0)


def test_a_count_in_a_disguise_is_refused() -> None:
    with pytest.raises(Malformed, match="cannot be reset"):
        sent_again(b'{"job":"a","\\u0061ttempts":5}', 5000.0)
