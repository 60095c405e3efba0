"""One suite for every driver: payloads are delivered unchanged."""

from __future__ import annotations

import json

import pytest

from qd.drivers.types import Released
from qd.errors import QdError
from qd.payload.format import read
from qd.payload.reservation import answered, original
from tests.contract.kinds import Tried, drained, job_of, take

TEXTS = {
    "unicode": "Grüße, 世界, \U0001f600, e\u0301, \u200f\u202e, \u2028, \x7f, \x01",
    "a megabyte": "é" * 500_000,
    "quotes": "\"\\'`;-- {} [] %s $1 :x ?",
    "php's damage": '{"empty":[],"none":{},"big":9007199254740993}',
}


def test_identical_payloads_are_separate_jobs(tried: Tried) -> None:
    one, two = tried.connect(1), tried.connect(2)
    payload = b'{"job":"quick","data":{"n":1},"attempts":0}'
    one.push_many([("default", payload, None)] * 5)
    first, second = take(one), take(two)
    assert first.mark != second.mark
    assert tried.sizes().reserved == 2
    assert (one.ack(first), two.ack(second)) == (True, True)
    assert len(list(drained(one, 3))) == 3
    assert tried.empty()


def test_identical_delayed_payloads_are_separate_jobs(tried: Tried) -> None:
    queue = tried.connect()
    payload = b'{"job":"quick","data":{"n":1},"attempts":0}'
    queue.push_many([("default", payload, 1.0)] * 3)
    queue.later("default", payload, 1.0)
    held = list(drained(queue, 4))
    assert len({each.mark for each in held}) == 4
    pushed = [original(each.member, each.start, each.length, each.before) for each in held]
    assert {each.rstrip() for each in pushed} == {payload}, "only white space after a payload may differ"
    assert tried.empty()


@pytest.mark.parametrize("text", TEXTS)
def test_a_job_gets_the_data_that_was_sent(tried: Tried, text: str) -> None:
    queue, said = tried.connect(), {"n": 1, "text": tried.fitting(TEXTS[text])}
    payload = job_of("read", 1, text=said["text"])
    queue.push("default", payload)
    held = take(queue)
    assert json.loads(bytes(read(held.member).data)) == said
    assert original(held.member, held.start, held.length, held.before) == payload
    assert queue.release(held, Released(answered(held.member, held.mark)))
    again = take(queue)
    assert json.loads(bytes(read(again.member).data)) == said
    assert queue.ack(again)


@pytest.mark.parametrize("raw", [False, True])
def test_raw_unicode_is_delivered_unchanged(tried: Tried, raw: bool) -> None:
    queue = tried.connect()
    data = json.dumps({"n": 1, "text": TEXTS["unicode"]}, ensure_ascii=not raw)
    payload = b'{"uuid":"u","job":"read","data":%s,"id":"i","attempts":0}' % data.encode()
    queue.push("default", payload)
    held = take(queue)
    assert bytes(read(held.member).data) == data.encode()
    assert queue.ack(held)


def test_the_error_for_a_payload_that_is_too_large_has_its_size(tried: Tried) -> None:
    """If the driver has a limit; otherwise two megabytes are accepted."""
    queue, payload = tried.connect(), job_of("read", 1, text="x" * (2 << 20))
    if tried.kind.largest:
        with pytest.raises(QdError, match=str(len(payload))):
            queue.push("default", payload)
    else:
        queue.push("default", payload)
        held = take(queue)
        assert original(held.member, held.start, held.length, held.before) == payload
        assert queue.ack(held)
    assert tried.empty()
