"""The option table: every row is complete, parses what people write, and refuses invalid values."""

import dataclasses
from datetime import timedelta

import pytest

from qd.errors import DeclarationError, JobTimeout
from qd.options.kinds import KINDS, Backoff
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
        ("backoff", "exponential", Backoff(1, 2, 600)),
        ("backoff", Backoff(5, 3), Backoff(5, 3)),
        ("jitter", "0.25", 0.25),
        ("jitter", 0, 0.0),
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
        ("backoff", "exponentiel", "duration"),
        ("jitter", "10%", "'10%' is not a number from 0 to 1"),
        ("jitter", 1.5, "not a number from 0 to 1"),
        ("jitter", -0.1, "not a number from 0 to 1"),
        ("jitter", True, "not a number from 0 to 1"),
        ("jitter", float("nan"), "not a number from 0 to 1"),
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
        ({"timeout": "soon"}, "option timeout of a job: 'soon' is text: write seconds"),
        ({"timeout": "5m"}, "option timeout of a job: '5m' is text: write 300, in seconds, or timedelta"),
        ({"backoff": "1,5"}, "option backoff of a job: '1,5' is text"),
        ({"backoff": [1, "5s"]}, "option backoff of a job: '5s' is text: write 5"),
        ({"backoff": "exponentially"}, "backoff of a job: 'exponentially' is neither 'exponential' nor durations"),
        ({"jitter": 2}, "option jitter of a job: 2 is not a number from 0 to 1"),
        (
            {"jitter": 0, "backoff": Backoff(jitter=0.5)},
            "option jitter of a job: its Backoff has a jitter of 0.5: remove one",
        ),
        ({"retry_on": ["ConnectionError"]}, r"option retry_on of a job: 'ConnectionError' is not a type of errors"),
        ({"retry_on": ConnectionError()}, "option retry_on of a job: ConnectionError"),
        (
            {"fail_on": (ValueError, JobTimeout)},
            "option fail_on of a job: JobTimeout is not a type of errors that a job",
        ),
        ({"fail_on": (int,)}, r"int is not a type of errors that a job raises \(write \(ValueError,\)\)"),
        ({"result_ttl": "90"}, "option result_ttl of a job: '90' is text: write 90"),
        ({"queue": ""}, "option queue of a job: '' is not a name$"),
        ({"queue": True}, "option queue of a job: True is not a name: write text, in quotes"),
        ({"result_ttl": "soon"}, "option result_ttl of a job: 'soon' is text: write seconds, or a timedelta"),
        ({"retry_on": []}, r"option retry_on of a job: \(\) is not a type of errors that a job raises"),
        ({"backoff": "expo"}, "option backoff of a job: 'expo' is neither 'exponential' nor durations"),
    ],
)
def test_a_wrong_job_option_is_refused_by_name(given, expected):
    with pytest.raises(DeclarationError, match=expected):
        JobOptions.read(given)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"first": 0}, "first of Backoff: 0 s is not more than 0"),
        ({"first": "soon"}, "first of Backoff: 'soon' is not a duration"),
        ({"first": 60, "max": 30}, r"first of Backoff: 60 s is not more than 0, at most max \(30 s\)"),
        ({"first": None}, "first of Backoff: None is not a duration"),
        ({"factor": 0.5}, "factor of Backoff: 0.5 is not a number from 1 to 1000"),
        ({"factor": float("inf")}, "factor of Backoff: inf is not a number"),
        ({"factor": float("nan")}, "factor of Backoff: nan is not a number"),
        ({"factor": "much"}, "factor of Backoff: 'much' is not a number"),
        ({"factor": True}, "factor of Backoff: True is not a number"),
        ({"max": "10 minutes"}, "max of Backoff: '10 minutes' is not a duration"),
        ({"jitter": 1.1}, "jitter of Backoff: 1.1 is not a number from 0 to 1"),
    ],
)
def test_an_invalid_backoff_is_refused_where_it_is_written(given, expected):
    with pytest.raises(DeclarationError, match=expected):
        Backoff(**given)


def test_backoffs_are_compared_and_shown_by_value():
    assert (Backoff(), Backoff("5s")) == (Backoff(1, 2, timedelta(minutes=10)), Backoff(5))
    assert shown("spans", Backoff()) == "exponential"
    assert shown("spans", Backoff(5)) == "Backoff(first=5.0, factor=2.0, max=600.0, jitter=None)"


def test_the_jitter_of_a_backoff_is_the_option_jitter():
    assert JobOptions.read({"backoff": Backoff(jitter=0)}).jitter == 0.0
    assert JobOptions.read({"backoff": Backoff(jitter=0.5), "jitter": 0.5}).jitter == 0.5
    assert JobOptions.read({"backoff": Backoff(), "jitter": 0}).jitter == 0.0
    assert JobOptions.read({"backoff": "exponential"}) == JobOptions(backoff=Backoff())


def test_types_of_errors_are_one_or_several():
    assert JobOptions.read({"retry_on": OSError, "fail_on": [ValueError, KeyError]}) == JobOptions(
        retry_on=(OSError,), fail_on=(ValueError, KeyError)
    )


def test_later_options_win_and_the_others_stay():
    declared = JobOptions(queue="mail", tries=5, raw=True)
    assert JobOptions(queue="high", raw=False).over(declared) == JobOptions(queue="high", tries=5, raw=False)
