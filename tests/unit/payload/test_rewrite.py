"""qd.payload.rewrite: a link's payload when its turn has come, and what outcomes do to others."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from qd.drivers.types import Count, Effect, Free, Hold, Push, Reserved
from qd.errors import JobFailure
from qd.payload.build import make
from qd.payload.format import ChainedJob, Relations, read, relations_text
from qd.payload.rewrite import chained_payload
from qd.worker.outcome import DONE, Back, Cancelled, Done, Failed, Lost, Outcome
from qd.worker.settle import effects_of

TRAP = '{"x":"\\",\\"createdAt\\":5,\\"id\\":","createdAt":6,"id":7,"qd":{"chain":[]},"retryUntil":9,"data":1}'


def link(number: int = 1, ties: Relations | None = None, **more: Any) -> ChainedJob:
    raw = make("t", TRAP.encode(), uuid=f"u{number}", id=f"i{number}", created_at=1_795_000_000, **more)
    if ties is not None:
        raw = raw.replace(b',"id":"i', relations_text(ties) + b',"id":"i')
    return ChainedJob("q", 0.0, raw.decode())


def test_what_follows_is_written_into_the_next():
    rest, catch = (link(2), link(3)), (link(4),)
    raw = chained_payload(link(), 1_795_000_000, rest, catch)
    payload = read(raw)
    assert payload.qd == Relations(chain=rest, catch=catch)
    assert (bytes(payload.data), payload.uuid, payload.id) == (TRAP.encode(), "u1", "i1")
    assert raw.replace(relations_text(payload.qd), b"") == link().payload.encode()
    assert json.loads(raw)["qd"]["chain"][0][2] == link(2).payload


def test_what_it_was_tied_to_itself_stays():
    own = Relations(unique="n", key="k", batch="b", result=5.0)
    payload = read(chained_payload(link(ties=own), 1_795_000_000, (link(2),)))
    assert payload.qd == msgspec.structs.replace(own, chain=(link(2),))


def test_the_last_one_stays_as_it_was_made():
    assert (
        chained_payload(link(ties=Relations(unique="n")), 1_795_000_000)
        == link(ties=Relations(unique="n")).payload.encode()
    )


@pytest.mark.parametrize("extra", [None, {"hook": {"createdAt": 1, "id": 2, "qd": {}}}])
def test_its_moments_count_from_when_it_is_sent(extra):
    made = link(retry_until=1_795_000_060, extra=extra)
    raw = chained_payload(made, 1_795_001_000)
    assert (read(raw).createdAt, read(raw).retryUntil) == (1_795_001_000, 1_795_001_060)
    before, after = json.loads(made.payload), json.loads(raw)
    assert after | {"createdAt": 0, "retryUntil": 0} == before | {"createdAt": 0, "retryUntil": 0}


JOB = Reserved("q", b"", "T.1.7.1", 0, 0, b"")
CHAIN, CATCH = (link(2), link(3)), (link(4),)
TIED = read(make("t", b"{}", uuid="u", id="i", created_at=1).replace(b',"id":', relations_text(
    Relations(unique="n", key="k", chain=CHAIN, catch=CATCH)) + b',"id":'))  # fmt: skip


def names(*effects: object) -> list[object]:
    return [read(effect.payload).id if isinstance(effect, Push) else effect for effect in effects]


def test_a_success_goes_on_and_a_failure_is_caught():
    own = [Free("n", "u")]
    assert names(*effects_of(JOB, TIED, DONE)) == [*own, "i2"]
    assert names(*effects_of(JOB, TIED, Failed(JobFailure("no"), 1))) == [*own, "i4"]
    assert effects_of(JOB, TIED, Back(5.0, "again")) == (Hold("n", "u", 86405.0),)
    assert effects_of(JOB, TIED, Lost(JobFailure("gone"))) == ()


def test_a_job_that_is_tied_to_nothing_does_nothing_to_others():
    assert effects_of(JOB, read(make("t", b"{}", created_at=1)), DONE) == ()


NO = JobFailure("no")


@pytest.mark.parametrize(
    ("outcome", "counted"),
    [
        (Done("result"), Count("b", "u", "done")),
        (Done(skipped=True), Count("b", "u", "skipped")),
        (Failed(NO, 1), Count("b", "u", "failed", "q T.1.7.1")),
        (Cancelled(NO), Count("b", "u", "failed", "")),
        (Back(0.0, "again"), None),
        (Lost(NO), None),
    ],
)
def test_each_end_is_counted_in_the_batch(outcome: Outcome, counted: Effect | None):
    raw = make("t", b"{}", uuid="u", id="i", created_at=1).replace(
        b',"id":', relations_text(Relations(batch="b")) + b',"id":'
    )
    assert effects_of(JOB, read(raw), outcome) == (() if counted is None else (counted,))


STRANGE = [
    "",
    "no JSON",
    "{}",
    "[]",
    '{"job":"t"}',
    '{"job":"t","createdAt":%s}' % ("9" * 5000),
    '{"job":"t","data":"id"}',
]


@pytest.mark.parametrize("text", STRANGE)
@pytest.mark.parametrize("rest", [(), (link(2),)])
def test_a_link_that_is_not_ours_is_sent_as_it_is(text: str, rest: tuple[ChainedJob, ...]):
    assert chained_payload(ChainedJob("q", 0.0, text), 1_795_000_000, rest) == text.encode()
