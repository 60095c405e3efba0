"""Units as people write them: what is accepted, and what is refused with which message."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qd.options import kinds


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (90, 90.0),
        (0.1, 0.1),
        (0, 0.0),
        ("90", 90.0),
        ("0.1", 0.1),
        (".5", 0.5),
        ("100ms", 0.1),
        ("90s", 90.0),
        ("5m", 300.0),
        ("1.5h", 5400.0),
        ("30d", 2592000.0),
        (" 5 m ", 300.0),
        (timedelta(minutes=5), 300.0),
    ],
)
def test_a_duration_is_parsed_in_seconds(written, seconds):
    assert kinds.span(written) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "5 minutes",
        "m",
        "-3",
        "1e5",
        "٣s",
        "5m3s",
        -1,
        float("nan"),
        float("inf"),
        10**400,
        True,
        None,
        [5],
        timedelta(-1),
    ],
)
def test_an_invalid_duration_is_refused_with_its_value(wrong):
    with pytest.raises(ValueError, match="duration") as refused:
        kinds.span(wrong)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("written", "count"),
    [
        (0, 0),
        (4096, 4096),
        ("4096", 4096),
        ("1K", 1024),
        ("128M", 1 << 27),
        ("128mb", 1 << 27),
        ("2GiB", 2 << 30),
        ("1.5G", 3 << 29),
    ],
)
def test_a_size_is_parsed_in_bytes(written, count):
    assert kinds.size(written) == count


@pytest.mark.parametrize("wrong", ["", "M", "-1", "128X", -1, True, None, 1.5])
def test_an_invalid_size_is_refused(wrong):
    with pytest.raises(ValueError, match="is not a size"):
        kinds.size(wrong)


@given(st.integers(0, 10**9))
def test_a_formatted_value_parses_to_itself(number):
    assert kinds.span(kinds.span_text(number)) == number
    assert kinds.size(kinds.size_text(number)) == number
    milliseconds = number / 1000
    assert kinds.span(kinds.span_text(milliseconds)) == pytest.approx(milliseconds, rel=1e-5)


def test_durations_and_sizes_are_formatted_with_units():
    assert [kinds.span_text(s) for s in (0, 0.1, 1.5, 25, 60, 90, 5400, 86400)] == [
        "0", "100ms", "1.5s", "25s", "60s", "90s", "90m", "1d",
    ]  # fmt: skip
    assert [kinds.size_text(n) for n in (0, 1000, 1 << 27, 3 << 30)] == ["0", "1000", "128M", "3G"]


def test_a_similar_name_is_suggested_and_a_distant_one_is_not():
    assert kinds.did_you_mean("timout", ["tries", "timeout"]) == " (did you mean 'timeout'?)"
    assert kinds.did_you_mean("zzz", ["tries", "timeout"]) == ""


def test_a_count_has_the_singular_for_one():
    assert [kinds.count(number, "worker") for number in (0, 1, 2)] == ["0 workers", "1 worker", "2 workers"]
    assert [kinds.count(number, "entry") for number in (1, 2)] == ["1 entry", "2 entries"]
