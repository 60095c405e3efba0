"""The option table: every row is complete, parses what people write, and refuses invalid values."""

import dataclasses
from datetime import timedelta

import pytest

from qd.errors import DeclarationError
from qd.options.kinds import KINDS
from qd.options.tables import WORK, JobOptions, WorkOptions, shown


def test_the_table_holds_every_field_of_the_work_options():
    names = [field.name for field in dataclasses.fields(WorkOptions)]
    assert list(WORK) == [name for name in names if name not in ("in_turn", "weights", "pooled", "only_schedule")]


@pytest.mark.parametrize("row", WORK.values(), ids=lambda row: row.name)
def test_every_row_is_complete_and_its_default_parses(row):
    assert row.kind in KINDS
    assert row.help
    assert row.help[0].islower()
    assert not row.help.endswith(".")
    assert row.shown
    assert row.flag.startswith("--") or row.name == "queues"
    if row.name not in ("queues", "connection", "pool"):
        assert row.read(row.default) == row.default
        assert row.auto or row.read(shown(row.kind, row.default)) == row.default


@pytest.mark.parametrize(
    ("name", "written", "value"),
    [
        ("backoff", "1,5,30", (1.0, 5.0, 30.0)),
        ("backoff", 5, (5.0,)),
        ("backoff", [1, "5s", "1m"], (1.0, 5.0, 60.0)),
        ("queues", "high, default,high", ("high", "default")),
        ("queues", ["mail"], ("mail",)),
        ("queues", "high=5, low=1,high=5", ("high=5", "low=1")),
        ("queues", "tenant=acme,default", ("tenant=acme", "default")),  # only digits are a weight
        ("queues", ["shard=5=2"], ("shard=5=2",)),
        ("tries", "3", 3),
        ("memory", "256M", 256 << 20),
        ("memory", 0, 0),
        ("workers", "auto", "auto"),
        ("workers", 0, 0),
        ("min_uptime", "auto", "auto"),
        ("min_uptime", "2s", 2.0),
        ("no_respawn", "yes", True),
        ("no_respawn", False, False),
        ("log_format", "json", "json"),
    ],
)
def test_a_value_is_parsed_as_the_type_of_its_option(name, written, value):
    assert WORK[name].read(written) == value


@pytest.mark.parametrize(
    ("name", "written", "expected"),
    [
        ("tries", -1, "whole number"),
        ("tries", True, "whole number"),
        ("tries", "1.5", "whole number"),
        ("tries", "9" * 5000, "whole number"),
        ("timeout", "soon", "duration"),
        ("timeout", "auto", "duration"),
        ("backoff", [], "empty list"),
        ("backoff", "1,,5", "duration"),
        ("memory", 128, r"128 is 128 bytes, less than a megabyte \(write '128M' for megabytes\)"),
        ("memory", "300K", "300K is 307200 bytes, less than a megabyte$"),
        ("sleep", 0, "at least 0.01"),
        ("max_crashes", 0, "at least 1"),
        ("no_respawn", "perhaps", "neither true nor false"),
        ("no_respawn", 1, "neither true nor false"),
        ("log_format", "jsn", "did you mean 'json'"),
        ("log_level", "loud", "debug, info, warning, error"),
        ("queues", "a,,b", "is not a name"),
        ("queues", "a\x00b", "is not text"),
        ("queues", [1], "is not a name"),
        ("queues", [], "an empty list of queues"),
        ("queues", "high=5,low", "'low' has no weight, and 'high=5' has: write low=1, or no weights"),
        ("queues", "high=5,high=3", "queue 'high' has two weights: name it once"),
        ("queues", "high=0", r"the weight of 'high=0' is not 1 to 1000 \(omit a queue that is not served\)"),
        ("queues", "high=1001", "the weight of 'high=1001' is not 1 to 1000"),
        ("queues", "jobs:delayed=5", "'jobs:delayed' cannot be a queue"),
    ],
)
def test_an_invalid_value_is_refused(name, written, expected):
    with pytest.raises(ValueError, match=expected):
        WORK[name].read(written)


def test_job_options_are_converted_and_missing_ones_stay_none():
    message = JobOptions.read(
        {"tries": 5, "timeout": timedelta(minutes=1), "backoff": [1, 5], "tags": ["a"], "queue": None}
    )
    assert message == JobOptions(tries=5, timeout=60.0, backoff=(1.0, 5.0), tags=("a",))
    assert message.queue is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"trys": 5}, "unknown option 'trys' of a job \\(did you mean 'tries'"),
        ({"uniq": "x"}, "unknown option 'uniq' of a job"),
        ({"tries": -1}, "option tries of a job: -1"),
        ({"timeout": "soon"}, "option timeout of a job: 'soon' is text: write 300"),
        ({"timeout": "5m"}, "option timeout of a job: '5m' is text: write 300, in seconds, or timedelta"),
        ({"backoff": "1,5"}, "option backoff of a job: '1,5' is text"),
        ({"backoff": [1, "5s"]}, "option backoff of a job: '5s' is text: write 5"),
        ({"result_ttl": "90"}, "option result_ttl of a job: '90' is text: write 90"),
        ({"queue": ""}, "option queue of a job: '' is not a name"),
    ],
)
def test_a_wrong_job_option_is_refused_by_name(given, expected):
    with pytest.raises(DeclarationError, match=expected):
        JobOptions.read(given)


def test_later_options_win_and_the_others_stay():
    declared = JobOptions(queue="mail", tries=5, raw=True)
    assert JobOptions(queue="high", raw=False).over(declared) == JobOptions(queue="high", tries=5, raw=False)
