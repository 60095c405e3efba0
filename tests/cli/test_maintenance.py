"""`qd down` and `qd up`: what they write to Redis, print and reject."""

from __future__ import annotations

import json
import re
import time
from datetime import datetime, timedelta, timezone

import pytest

from qd.cli.control import of_day
from tests.cli.conftest import Run, document, done, report
from tests.support.redis import Client

pytestmark = pytest.mark.usefixtures("still")

IN_FULL = r"until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d \S+ \([+-]\d\d:\d\d\)"


def left(redis: Client) -> float:
    return float(redis.call("PTTL", "qd:down")) / 1000


def rejected(qd: Run, *words: str) -> str:
    ran = qd("down", *words)
    assert ran.exit_code == 2
    return " ".join(ran.stderr.split())


def test_down_until_accepts_a_duration(qd: Run, redis: Client) -> None:
    output = done(qd("down", "--until", "30m"))
    assert re.fullmatch(rf"maintenance mode is on {IN_FULL}, for 30m\n", output)
    assert 1740 < left(redis) <= 1800
    note = json.loads(redis.text("GET", "qd:down"))
    assert 1795 < note["until"] - note["at"] <= 1800
    assert re.search(rf", {IN_FULL}, for (29m 59s|30m) more; `qd up` ends it", done(qd("status")))


@pytest.mark.parametrize(
    ("zone", "offset"), [("Asia/Tokyo", "JST (+09:00)"), ("America/St_Johns", r"N[SD]T \(-0[23]:30\)")]
)
def test_a_time_without_a_zone_is_local_time(
    qd: Run, redis: Client, monkeypatch: pytest.MonkeyPatch, zone: str, offset: str
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        at = datetime.now() + timedelta(hours=2)
        output = done(qd("down", "--until", f"{at:%Y-%m-%d %H:%M:%S}"))
        assert f"until {at:%Y-%m-%d %H:%M:%S} " in output
        assert re.search(offset.replace("(+", r"\(\+").replace("00)", r"00\)"), output)
        assert 7140 < left(redis) <= 7200
        done(
            qd(
                "down",
                "--until",
                f"{datetime.now(timezone(timedelta(hours=-5))) + timedelta(hours=1):%Y-%m-%dT%H:%M:%S}-05:00",
            )
        )
        assert 3540 < left(redis) <= 3600
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()


def test_a_time_of_day_means_its_next_occurrence() -> None:
    now = datetime(2026, 11, 21, 18, 30).timestamp()
    assert datetime.fromtimestamp(of_day("18:31", now)) == datetime(2026, 11, 21, 18, 31)
    assert datetime.fromtimestamp(of_day("18:30", now)) == datetime(2026, 11, 22, 18, 30)
    assert datetime.fromtimestamp(of_day("00:00:07", now)) == datetime(2026, 11, 22, 0, 0, 7)


@pytest.mark.parametrize("word", ["9:05", "23:59"])
def test_down_until_accepts_a_time_of_day(qd: Run, redis: Client, word: str) -> None:
    assert f" {word.rjust(5, '0')}:00 " in done(qd("down", "--until", word))
    assert 0 < left(redis) <= 86400


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("soon", "'soon' is neither a duration nor a time (write 30m, 18:30,"),
        ("25:00", "'25:00' is neither"),
        ("", "'' is neither"),
        ("0", "'0' is in the past (it is "),
        ("2020-01-01", "'2020-01-01' is in the past"),
        ("9999-12-31", "'9999-12-31' is more than 100 years away"),
    ],
)
def test_an_invalid_end_is_rejected(qd: Run, redis: Client, word: str, expected: str) -> None:
    assert expected in rejected(qd, "--until", word)
    assert redis.call("EXISTS", "qd:down") == 0


def test_allowed_queues_are_exempt_from_down(qd: Run, redis: Client) -> None:
    report(redis)
    ran = qd("down", "--allow", "mail,hihg", "--allow", "mail")
    assert ran.stdout == "maintenance mode is on until `qd up`, but for mail, hihg\n"
    assert ran.stderr.startswith("no worker is known to serve 'hihg'")
    assert json.loads(redis.text("GET", "qd:down"))["allow"] == ["mail", "hihg"]
    assert document(qd("status", "--json"))["down"]["allow"] == ["mail", "hihg"]
    assert document(qd("up", "--json"))["was_down"]["allow"] == ["mail", "hihg"]
    assert "names 17 queues, at most 16" in rejected(qd, "--allow", ",".join(map(str, range(17))))
    assert "--allow" in rejected(qd, "--allow", "mail,")
    assert "is a key of queue" in rejected(qd, "--allow", "mail:notify")


def test_a_second_down_reports_what_it_replaces(qd: Run, redis: Client) -> None:
    done(qd("down", "--reason", "first", "--until", "1h"))
    output = done(qd("down", "--reason", "second"))
    assert re.match(
        rf'it was already on by \S+@\S+ just now, {IN_FULL}, for .* more: "first"; this replaces it\n', output
    )
    assert left(redis) < 0  # the second one has no end
    found = document(qd("down", "--json"))
    assert (found["down"]["reason"], found["was_down"]["reason"]) == ("", "second")
    qd("up")
    assert document(qd("down", "--json"))["was_down"] is None


def test_a_long_reason_is_rejected_and_a_stored_one_is_cut(qd: Run, redis: Client) -> None:
    assert "--reason has 1001 characters, at most 1000" in rejected(qd, "--reason", "x" * 1001)
    done(qd("down", "--reason", "x" * 1000))
    redis.call("SET", "qd:down", json.dumps({"reason": "y" * 100_000, "by": "\x1b[31m", "until": 9.9e11}))
    first = done(qd("status")).splitlines()[0]
    assert first.endswith(f'"{"y" * 1000}..."; `qd up` ends it')
    assert "\x1b" not in first
    assert "a date out of range" in first


def test_laravels_maintenance_mode_is_shown_and_not_ended(qd: Run, redis: Client) -> None:
    report(redis, laravel_down="/var/www/\x1b[2Jshop/down", state="down")
    shown = "Laravel's maintenance mode on app-1: /var/www/\\x1b[2Jshop/down; `php artisan up` ends it\n"
    assert done(qd("status")).startswith(shown)
    assert document(qd("status", "--json"))["masters"][0]["laravel_down"].startswith("/var/www")
    assert "still holds (/var/www/\\x1b[2Jshop/down on app-1): `php artisan up`" in qd("up").stderr
