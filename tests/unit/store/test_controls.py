"""Parsing of stamps, pauses and reports, whichever program wrote them."""

import json

import pytest

from qd.store import controls, masters

REPORT = {"token": "T", "host": "h", "pid": 1, "booted_at": 1.0, "seen_at": 5000.0, "queues": ["a", "b"], "new": [1]}


@pytest.mark.parametrize(
    ("raw", "stamp"),
    [
        (None, None), (b"", None), (b"soon", None), (b"nan", None), (b"inf", None), (b"-5", None), (b"\xff", None),
        (b"1795267168.618500", controls.Restart(1795267168.6185)),
        (b"1795267168.618500 rolling", controls.Restart(1795267168.6185, True)),
        (b"1795267168", controls.Restart(1795267168.0)),
        (b"1795267168.618500_0", controls.Restart(1795267168.6185, laravel=0)),
        (b"1795267168.618500_1795267169 rolling", controls.Restart(1795267168.6185, True, 1795267169)),
        (b"1795267168.618500_ rolling", None), (b"1795267168.618500_x", None), (b"_1795267168", None),
    ],
)  # fmt: skip
def test_an_invalid_stamp_is_no_restart(raw, stamp):
    assert controls.read_restart(raw) == stamp


@pytest.mark.parametrize("raw", [b"1795267168.618500_0", b"1795267168.618500_1795267169 rolling"])
def test_the_previous_release_can_read_the_stamp(raw):
    """The code with which the previous release parses it."""
    assert abs(float(raw.decode().removesuffix(" rolling")) - 1795267168.6185) < 1e-6


@pytest.mark.parametrize(
    "raw", [b"1", b"{", b"[]", b"", b"\xff", b"[" * 100_000, b'{"by": 7, "at": "x", "until": true}']
)
def test_an_unreadable_maintenance_note_still_applies(raw):
    assert controls.read_pause(raw) == controls.Pause()
    assert controls.read_down(raw) == controls.Down()


def test_a_pause_reads_as_it_was_written():
    raw = b'{"by": "ana@app-1", "reason": "upgrade", "at": 10.5, "until": 20}'
    assert controls.read_pause(raw) == controls.Pause("ana@app-1", "upgrade", 10.5, 20.0)


def test_a_report_of_a_newer_version_is_read():
    (master,) = masters.read_masters({"T": json.dumps(REPORT).encode()})
    assert (master.place, master.queues, master.workers) == (("h", ""), ["a", "b"], [])
    assert (master.silent(5009), master.silent(5011)) == (False, True)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"token": 1}'])
def test_an_invalid_report_is_ignored(raw):
    assert masters.read_masters({"T": raw}) == []


def test_old_and_unreadable_reports_are_dropped():
    fields = {"T": json.dumps(REPORT).encode(), "x": b"{"}
    assert masters.forgotten(fields, 5000.0 + masters.FORGOTTEN - 1) == ["x"]
    assert masters.forgotten(fields, 5000.0 + masters.FORGOTTEN + 1) == ["T", "x"]


def test_each_queue_of_the_masters_is_listed_once():
    one = masters.MasterReport("T", "h", 1, 1.0, 1.0, connection="redis", queues=["a", "b"])
    two = masters.MasterReport("U", "h", 2, 1.0, 1.0, connection="redis", queues=["b", "c"])
    other = masters.MasterReport("V", "h", 3, 1.0, 1.0, connection="sqs", queues=["a"])
    assert masters.queues_of([one, two, other]) == {"redis": ["a", "b", "c"], "sqs": ["a"]}
