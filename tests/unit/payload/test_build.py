"""qd.payload.build: payloads of chained jobs, payloads changed by an outcome, and failed payloads sent again."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from qd.drivers.types import Count, Effect, Free, Hold, Push, Reserved
from qd.errors import JobFailure, Malformed
from qd.payload.build import as_pushed, chained_payload, make, relations_text, sent_again, without_due
from qd.payload.format import ChainedJob, Relations, read
from qd.payload.reservation import answered, saving
from qd.worker.outcome import DONE, Back, Cancelled, Done, Failed, Lost, Outcome
from qd.worker.settle import effects_of

TRAP = '{"x":"\\",\\"createdAt\\":5,\\"id\\":","createdAt":6,"id":7,"qd":{"chain":[]},"retryUntil":9,"data":1}'


def link(number: int = 1, relations: Relations | None = None, **more: Any) -> ChainedJob:
    raw = make("t", TRAP.encode(), uuid=f"u{number}", id=f"i{number}", created_at=1_795_000_000, **more)
    if relations is not None:
        raw = raw.replace(b',"id":"i', relations_text(relations) + b',"id":"i')
    return ChainedJob("q", 0.0, raw.decode())


@pytest.mark.parametrize(("created_at", "until"), [("0", "1e300"), ("-1e308", "1e308")])
def test_a_time_to_retry_of_more_than_a_century_is_cut_to_one(created_at: str, until: str) -> None:
    failed = b'{"job":"a","createdAt":%b,"retryUntil":%b}' % (created_at.encode(), until.encode())
    assert read(sent_again(failed, 1000)).retryUntil == 1000 + 100 * 365 * 86400


def test_the_remaining_chain_is_written_into_the_next_payload():
    rest, catch = (link(2), link(3)), (link(4),)
    raw = chained_payload(link(), 1_795_000_000, rest, catch)
    payload = read(raw)
    assert payload.qd == Relations(chain=rest, catch=catch)
    assert (bytes(payload.data), payload.uuid, payload.id) == (TRAP.encode(), "u1", "i1")
    assert without_due(raw.replace(relations_text(payload.qd), b"")) == link().payload.encode()
    assert json.loads(raw)["qd"]["chain"][0][2] == link(2).payload


def test_the_relations_of_a_chained_job_itself_stay():
    own = Relations(unique="n", key="k", batch="b", result=5.0)
    payload = read(chained_payload(link(relations=own), 1_795_000_000, (link(2),)))
    assert payload.qd == msgspec.structs.replace(own, chain=(link(2),))


def test_the_last_chained_job_only_gets_the_moment_at_which_it_is_due():
    last = msgspec.structs.replace(link(relations=Relations(unique="n")), delay=1.5)
    raw = chained_payload(last, 1_795_000_000.25)
    assert (without_due(raw), read(raw).due_ms) == (last.payload.encode(), 1_795_000_001_750)


@pytest.mark.parametrize("extra", [None, {"hook": {"createdAt": 1, "id": 2, "qd": {}}}])
def test_times_of_a_chained_job_count_from_when_it_is_sent(extra):
    made = link(retry_until=1_795_000_060, extra=extra)
    raw = chained_payload(made, 1_795_001_000)
    assert (read(raw).createdAt, read(raw).retryUntil) == (1_795_001_000, 1_795_001_060)
    before, after = json.loads(made.payload), json.loads(raw)
    own = {"createdAt": 0, "retryUntil": 0, "due_ms": 0}
    assert after | own == before | own


JOB = Reserved("q", b"", "T.1.7.1", 0, 0, b"")
CHAIN, CATCH = (link(2), link(3)), (link(4),)
TIED = read(make("t", b"{}", uuid="u", id="i", created_at=1).replace(b',"id":', relations_text(
    Relations(unique="n", key="k", chain=CHAIN, catch=CATCH)) + b',"id":'))  # fmt: skip


def names(*effects: object) -> list[object]:
    return [read(effect.payload).id if isinstance(effect, Push) else effect for effect in effects]


def test_success_continues_the_chain_and_failure_runs_catch():
    own = [Free("n", "u")]
    assert names(*effects_of(JOB, TIED, DONE)) == [*own, "i2"]
    assert names(*effects_of(JOB, TIED, Failed(JobFailure("no"), 1))) == [*own, "i4"]
    assert effects_of(JOB, TIED, Back(5.0, "again")) == (Hold("n", "u", 86405.0),)
    assert effects_of(JOB, TIED, Lost(JobFailure("gone"))) == ()


def test_a_job_without_relations_affects_no_other_job():
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
def test_every_outcome_is_counted_in_the_batch(outcome: Outcome, counted: Effect | None):
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
def test_a_foreign_chained_job_is_sent_unchanged(text: str, rest: tuple[ChainedJob, ...]):
    assert chained_payload(ChainedJob("q", 0.0, text), 1_795_000_000, rest) == text.encode()


MARK = "Tok.3.41.2"
UNIT = b'"attempts":2,"crashes":1,"exceptions":1,"held":1700000000,"rsv":"Tok.3.41.2"'


def pushed(**more: object) -> bytes:
    return make("mail.welcome", b'{"to":"\\u00e4","none":{},"big":100000000000000}', created_at=1000, **more)  # type: ignore[arg-type]


def buried(raw: bytes) -> bytes:
    return answered(raw.replace(b'"attempts":0', UNIT), MARK, attempts=2)


def test_a_retried_payload_equals_the_pushed_one_except_for_its_time() -> None:
    raw = pushed()
    assert sent_again(buried(raw), 5000.7) == raw.replace(b'"createdAt":1000', b'"createdAt":5000')


def test_the_retry_deadline_is_renewed() -> None:
    again = read(sent_again(buried(pushed(retry_until=1060)), 5000.0))
    assert (again.createdAt, again.retryUntil) == (5000, 5060)


def test_an_unknown_retry_period_means_no_deadline() -> None:
    old = b'{"job":"a","data":{"retryUntil":7},"retryUntil":1060,"timeoutAt":9,"attempts":1}'
    again = sent_again(old, 5000.0)
    assert again == b'{"job":"a","data":{"retryUntil":7},"retryUntil":null,"timeoutAt":null,"attempts":0}'
    assert read(again).deadline is None


def test_the_checkpoint_survives_a_retry() -> None:
    held = saving(pushed().replace(b'"attempts":0', UNIT), MARK, b'{"page":7}')
    again = read(sent_again(answered(held, MARK), 5000.0))
    assert (again.attempts, again.crashes, again.rsv, again.checkpoint) == (0, 0, None, b'{"page":7}')


@pytest.mark.parametrize(
    ("raw", "again"),
    [
        (b'{"job":"a"}', b'{"job":"a"}'),
        (b'{"attempts" : 7 ,"job":"a"}', b'{"attempts":0,"job":"a"}'),
        (b'{"crashes":3,"job":"a"}', b'{"job":"a"}'),
        (b'{"rsv":"T.0.1.1","job":"a"}', b'{"job":"a"}'),
        (b'{"job":"a" , "crashes":3 , "attempts":1}', b'{"job":"a","attempts":0}'),
        (b'{"job" : "a" , "data" : [ 1.0 , { } ]}', b'{"job" : "a" , "data" : [ 1.0 , { } ]}'),
        (b'{"data" : [ 1.0 , { } ],"attempts":1,"job":"a"}', b'{"data":[ 1.0 , { } ],"attempts":0,"job":"a"}'),
        (b'{"attempts":1,"job":"a","attempts":2}', b'{"attempts":0,"job":"a"}'),
        (b'{"job":"a","\\u0061ttempts":5}', b'{"job":"a","attempts":0}'),
        (b'{"job":"a","data":{"attempts":5},"attempts":5}', b'{"job":"a","data":{"attempts":5},"attempts":0}'),
        (b'{"job":"a","data":"\\"attempts\\":5","attempts":5}', b'{"job":"a","data":"\\"attempts\\":5","attempts":0}'),
        (b'{"job":"attempts","data":["rsv"],"attempts":5}', b'{"job":"attempts","data":["rsv"],"attempts":0}'),
    ],
)  # fmt: skip
def test_keys_are_found_on_the_top_level_and_nothing_else_changes(raw: bytes, again: bytes) -> None:
    assert sent_again(raw, 5000.0) == again


def test_the_failure_count_and_first_failure_time_are_kept() -> None:
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
def test_a_foreign_key_of_the_same_name_is_kept_and_ignored(value: bytes) -> None:
    raw = b'{"job":"a","failures":%b}' % value
    assert read(raw).failed_before == (0, None)
    assert sent_again(raw, 5000.0, 4000.0) == raw == as_pushed(raw)


def test_a_large_payload_is_rewritten() -> None:
    data = json.dumps({"text": 'a"\\' * 300_000, "deep": [[{}] * 10] * 10_000}).encode()
    raw = make("a", data, created_at=1)
    assert bytes(read(sent_again(buried(raw), 5000.0)).data) == data


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"nonsense",
        b"[]",
        b'{"attempts":1}',
        b'{"job":"a","attempts":-1}',
        b"\xff{}",
        b"[" * 9000,
        b'{"job":"a","\xff":1}',
    ],
)
def test_a_payload_that_cannot_run_is_refused(raw: bytes) -> None:
    with pytest.raises(Malformed):
        sent_again(raw, 5000.0)
