"""qd.payload.reservation: which bytes of a payload change while a job is reserved."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qd.payload.build import make
from qd.payload.format import read
from qd.payload.reservation import answered, original, saving, split_mark, unanswered
from tests.support.payloads import VALID

MARK = "Ab3Ab3Ab3A.3.17.2"


def reserved(raw: bytes, unit: str = '"attempts":2', mark: str = MARK) -> bytes:
    """The payload as the reserve script writes it."""
    before, after = raw.rsplit(b'"attempts":0', 1)
    return before + f'{unit},"rsv":"{mark}"'.encode() + after


def test_an_answer_keeps_fields_that_are_not_given():
    member = reserved(VALID, '"attempts":2,"crashes":1,"exceptions":3,"held":1795225685')
    payload = read(answered(member, MARK))
    assert (payload.attempts, payload.crashes, payload.exceptions, payload.held) == (2, 1, 3, 1795225685)
    assert payload.rsv == "Ab3Ab3Ab3A.3.17.-"


def test_an_answer_adds_given_fields_and_omits_zeros():
    member = reserved(VALID, '"attempts":2,"crashes":1,"held":1795225685')
    text = answered(member, MARK, attempts=1, crashes=0, exceptions=4, held=0)
    assert text == reserved(VALID, '"attempts":1,"exceptions":4', "Ab3Ab3Ab3A.3.17.-")


def test_an_answer_finds_its_reservation_among_others():
    inner = '{"attempts":2,"rsv":"Ab3Ab3Ab3A.3.17.1"}'
    raw = b'{"job":"x","data":%b,"attempts":0}' % inner.encode()
    text = answered(reserved(raw), MARK, exceptions=1)
    assert bytes(read(text).data) == inner.encode()
    assert read(text).exceptions == 1


@pytest.mark.parametrize(
    "mark", ["Ab3Ab3Ab3A.3.17.1", "Ab3Ab3Ab3A.3.17.22", "b3Ab3Ab3A.3.17.2", "", "2", 'x","rsv":"Ab3Ab3Ab3A.3.17.2']
)
def test_an_answer_to_another_reservation_is_refused(mark):
    with pytest.raises(ValueError, match="no reservation"):
        answered(reserved(VALID), mark)


def test_a_reservation_is_answered_once():
    text = answered(reserved(VALID), MARK)
    with pytest.raises(ValueError, match="no reservation"):
        answered(text, MARK)


counts = st.none() | st.integers(0, 2**53)


@settings(deadline=None)
@given(
    data=st.recursive(
        st.none() | st.integers() | st.text() | st.just('"attempts":0,"rsv":"Ab3Ab3Ab3A.3.17.2"'),
        lambda inner: st.dictionaries(st.sampled_from(["attempts", "rsv", "x"]), inner) | st.lists(inner),
    ).map(lambda value: json.dumps(value).encode()),
    job=st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    given_counts=st.tuples(counts, counts, counts, counts),
    attempts=st.integers(0, 2**53),
)
def test_an_answer_changes_only_the_reservation_fields(data, job, given_counts, attempts):
    pushed = make(job, data, created_at=1795225685)
    mark = f"Ab3Ab3Ab3A.3.17.{attempts}"
    member = reserved(pushed, f'"attempts":{attempts},"crashes":1', mark)
    names = ("attempts", "crashes", "exceptions", "held")
    text = answered(member, mark, **dict(zip(names, given_counts, strict=True)))

    before, after = read(member), read(text)
    assert bytes(after.data) == data
    for name, value in zip(names, given_counts, strict=True):
        assert getattr(after, name) == (getattr(before, name) if value is None else value)
    start = pushed.rindex(b'"attempts":0')
    end = len(pushed) - start - len(b'"attempts":0')
    assert text[:start] == pushed[:start]
    assert text[len(text) - end :] == pushed[len(pushed) - end :]
    assert split_mark(after.rsv or "") == ("Ab3Ab3Ab3A", 3, 17, "-")


@settings(deadline=None)
@given(st.binary(), st.integers(0, 50), st.integers(0, 20), st.binary(max_size=60))
def test_the_original_payload_is_restored_from_a_reservation(pushed, start, length, text):
    start = min(start, len(pushed))
    before = pushed[start : start + length]
    member = pushed[:start] + text + pushed[start + len(before) :]
    assert original(member, start, len(text), before) == pushed


def test_a_mark_has_four_parts():
    assert split_mark(MARK) == ("Ab3Ab3Ab3A", 3, 17, "2")
    assert [split_mark(f"T.1.2.{end}").n for end in "-xth"] == ["-", "x", "t", "h"]


@pytest.mark.parametrize("mark", ["", "a.1.2", "a.1.2.3.4", ".1.2.3", "a.x.2.3", "a.1.2.y", "a.1.2."])
def test_an_invalid_mark_is_refused(mark):
    with pytest.raises(ValueError):
        split_mark(mark)


@pytest.mark.parametrize(
    ("base", "mark"), [("", "B.2.2.2"), ("A.1.", "A.1.1.1"), ("B.2.", "B.2.2.2"), ("C.9.", "B.2.2.2")], ids=str
)
def test_a_reservation_is_found_by_who_reserved_it(base, mark):
    member = b'{"data":{"attempts":1,"rsv":"A.1.1.1"},"attempts":2,"crashes":1,"rsv":"B.2.2.2"}'
    unit = unanswered(member, base)
    assert unit is not None
    assert (unit.mark, str(unit.attempts)) == (mark, mark[-1])
    assert member[unit.start : unit.end].endswith(f'"rsv":"{mark}"'.encode())


def test_an_answered_reservation_has_no_owner():
    assert unanswered(answered(reserved(VALID), MARK)) is None


# -- checkpoints


def test_a_forged_reservation_with_huge_numbers_is_ignored():
    for attempts, turn in ((b"1", b"9" * 5000), (b"9" * 5000, b"1"), (b"1", b"x")):
        forged = b'{"attempts":1,"rsv":"Ab3Ab3Ab3A.3.7.1","x":{"attempts":%b,"rsv":"Ab3Ab3Ab3A.3.%b.1"}}' % (
            attempts,
            turn,
        )
        unit = unanswered(forged, "Ab3Ab3Ab3A.3.")
        assert unit is not None
        assert unit.mark == "Ab3Ab3Ab3A.3.7.1"


def test_a_checkpoint_follows_the_reservation_fields_and_is_read_back():
    member = reserved(VALID, '"attempts":2,"crashes":1')
    text = saving(member, MARK, b'{"row":7}')
    assert read(text).checkpoint == b'{"row":7}'
    head, _, tail = member.partition(f'"rsv":"{MARK}"'.encode())
    assert text == head + f'"rsv":"{MARK}","saved":"eyJyb3ciOjd9"'.encode() + tail


@settings(deadline=None)
@given(st.recursive(st.none() | st.integers() | st.text(), st.lists).map(msgspec.json.encode), st.binary())
def test_a_second_checkpoint_replaces_the_first(state, other):
    member = reserved(VALID)
    once = saving(member, MARK, state)
    assert saving(saving(member, MARK, other), MARK, state) == once
    assert read(once).checkpoint == state
    assert read(once).data == read(member).data


def test_a_checkpoint_outlives_answer_and_next_reservation():
    text = answered(saving(reserved(VALID), MARK, b"[1,2]"), MARK, exceptions=1)
    assert read(text).checkpoint == b"[1,2]"
    assert read(text).rsv == "Ab3Ab3Ab3A.3.17.-"


SCATTERED = [
    b'{"saved":"W10","job":"x","attempts":2,"rsv":"%b","data":{"saved":"W10"}}',
    b'{"job":"x","attempts":2,"rsv":"%b","data":{"saved":"W10"},"saved":"W10"}',
    b'{"job":"x","attempts":2,"rsv":"%b","saved" : "W10", "data":1 } ',
    b'{"job":"x","attempts":2,"rsv":"%b","saved":{"theirs":1},"data":"\\"saved\\":\\"W10\\""}',
    b'{"job":"x","attempts":2,"rsv":"%b","saved":null}',
]


@pytest.mark.parametrize("raw", SCATTERED)
def test_a_checkpoint_is_found_wherever_another_program_moved_it(raw):
    member = raw % MARK.encode()
    before, text = read(member), saving(saving(member, MARK, b'"first"'), MARK, b'"second"')
    assert read(text).checkpoint == b'"second"'
    assert read(text).data == before.data
    assert len(text) <= len(member) + len('","saved":"InNlY29uZCI"')
    assert json.loads(text)["saved"] == "InNlY29uZCI"  # as PHP and Lua see it, too


@pytest.mark.parametrize("saved", ['"no base64!"', '"a"', "7", "null", '{"a":1}', '"\\u0041"'])
def test_a_foreign_key_of_the_same_name_is_no_checkpoint(saved):
    payload = read(b'{"job":"x","attempts":0,"saved":%b}' % saved.encode())
    assert payload.checkpoint is None


def test_64_kib_are_saved_and_found_again():
    state = msgspec.json.encode("x" * 65534)
    text = saving(reserved(VALID), MARK, state)
    assert read(text).checkpoint == state
    assert unanswered(text, "Ab3Ab3Ab3A.3.") is not None
