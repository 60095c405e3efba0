"""`qd schedule list`, `pause`, `resume`, `clear-locks` and `test`, against a real server."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run, document, done
from tests.support.project import MakeProject, Project
from tests.support.redis import Client

pytestmark = pytest.mark.usefixtures("still")

JOBS = """
    import sys
    from qd import Qd
    app = Qd()

    @app.job("mail.report", queue="reports")
    def report(month: int) -> None: ...

    def tidy() -> None:
        print("tidied")

    async def broken() -> None:
        raise ValueError("no room")

    app.schedule(report.bind(7), cron="0 7 * * *", timezone="Europe/Berlin", overlap=False, name="mail.report")
    app.schedule(tidy, every=3600, name="tidy", missed="once", overlap=False)
    app.schedule(broken, every=60, name="broken")
"""


@pytest.fixture
def scheduled(qd: Run, configured: Callable[[str], None], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`qd schedule ...` for an app with three entries."""
    (folder / "entries.py").write_text(textwrap.dedent(JOBS))
    configured('[qd]\napp = "entries:app"\n')
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "entries", raising=False)

    def run(*words: str) -> Any:
        sys.modules.pop("entries", None)
        return qd("schedule", *words)

    return run


def entry(shown: Any, name: str) -> Any:
    return next(one for one in shown["entries"] if one["name"] == name)


def note(redis: Client, key: str, name: str, **shown: Any) -> None:
    redis.call("HSET", key, name, json.dumps(shown))


def now(redis: Client) -> float:
    return float(redis.text("TIME")[0])


# -- list


def test_the_list_shows_what_runs_when(scheduled: Run, clean_redis: Client) -> None:
    shown = document(scheduled("list", "--json"))
    assert [(one["name"], one["kind"], one["what"]) for one in shown["entries"]] == [
        ("mail.report", "job", 'mail.report {"month":7}'),
        ("tidy", "call", "entries.tidy"),
        ("broken", "call", "entries.broken"),
    ]
    report, tidy = entry(shown, "mail.report"), entry(shown, "tidy")
    assert (report["expression"], report["timezone"], report["next"][11:19]) == (
        "0 7 * * *",
        "Europe/Berlin",
        "07:00:00",
    )
    assert tidy["next_at"] % 3600 == 0
    assert 0 < tidy["next_at"] - shown["at"] <= 3600
    assert (tidy["missed"], tidy["without_overlapping"]) == ("once", True)
    assert {report[name] for name in ("last", "skipped", "paused")} == {None}
    assert report["locks"] == []
    assert report["declared_at"].endswith("entries.py:15")
    assert (shown["reached"], shown["paused"], shown["down"]) == (True, None, None)


def test_the_list_as_text(scheduled: Run, clean_redis: Client) -> None:
    head, *rows = done(scheduled("list")).splitlines()
    assert head.split() == ["name", "what", "when", "zone", "next", "last"]
    assert [row.split()[0] for row in rows] == ["mail.report", "tidy", "broken"]
    assert "07:00 (in " in rows[0]


def test_times_in_another_zone(scheduled: Run, clean_redis: Client) -> None:
    shown = document(scheduled("list", "--timezone", "Asia/Kathmandu", "--json"))
    assert [one["timezone"] for one in shown["entries"]] == ["Asia/Kathmandu"] * 3
    assert entry(shown, "tidy")["next"].endswith(":45:00+05:45")
    refused = scheduled("list", "--timezone", "Europe/Berlinn")
    assert (
        refused.exit_code,
        "unknown time zone 'Europe/Berlinn' (did you mean 'Europe/Berlin'?)" in refused.stderr,
    ) == (2, True)


@pytest.mark.leaves("qd:schedule:*", "qd:overlap:tidy", "qd:unique:*", "qd:ticks")
def test_the_list_shows_the_last_run_and_lock_holders(scheduled: Run, clean_redis: Client) -> None:
    at = now(clean_redis)
    ran = {"tick": at - 200, "began": at - 198, "ended": at - 190}
    note(clean_redis, "qd:schedule:last", "tidy", **ran, outcome="failed", host="app-1", detail="exit code 3")
    note(clean_redis, "qd:schedule:last", "mail.report", **ran, outcome="sent", host="app-2", detail="ID")
    skip = {"tick": at - 100, "began": at - 100, "ended": at - 100}
    note(clean_redis, "qd:schedule:skipped", "tidy", **skip, outcome="skipped", host="app-1", detail="outside of 8-17")
    note(
        clean_redis, "qd:schedule:skipped", "mail.report", **{**skip, "tick": at - 300}, outcome="skipped", detail="old"
    )
    clean_redis.call("SET", "qd:overlap:tidy", json.dumps({"host": "app-1", "pid": 41, "at": at - 5}))
    clean_redis.call("SET", "qd:unique:mail.report:schedule:mail.report", "U-1")
    clean_redis.call("HSET", "qd:ticks", "broken", f"{(int(at) - 600) // 60 * 60_000} e60")
    shown = document(scheduled("list", "--json"))
    report, tidy, broken = (entry(shown, name) for name in ("mail.report", "tidy", "broken"))
    assert (tidy["last"]["outcome"], tidy["last"]["late_s"], tidy["last"]["host"]) == ("failed", 2.0, "app-1")
    assert tidy["locks"] == [{"host": "app-1", "pid": 41, "at": at - 5, "job": ""}]
    assert report["locks"][0]["job"] == "U-1"
    assert 540 <= broken["overdue_s"] <= 660
    rows = done(scheduled("list")).splitlines()[1:]
    for text, row in [("sent 3m", rows[0]), ("job U-1 waits or runs", rows[0]), ("failed 3m", rows[1]), (
        "took 8.0s, 2.0s late: exit code 3", rows[1]), ("runs on app-1 (pid 41) for ", rows[1]), ("skipped 1m", rows[1]),
        ("outside of 8-17", rows[1]), ("overdue for ", rows[2])]:  # fmt: skip
        assert text in row
    assert "old" not in rows[0]  # it ran since


OTHERS = """
    from qd import Qd
    app = Qd()

    def tidy() -> None: ...

    app.schedule(tidy).every_minute().on_every_host().without_overlapping().name("each")
    app.schedule(tidy).every_minute().environments("moon", "mars").name("far")
    app.schedule(tidy).hourly().mondays().between("8:00", "9:30").when(lambda: False).name("office")
    app.schedule.shell("tar -cf", "a b").daily().name("shell")
    app.schedule.qd("failed forget --older-than 30d").daily().name("qd")
"""


@pytest.fixture
def others(scheduled: Run, folder: Path) -> Run:
    """`qd schedule ...` for an app with other entries."""
    (folder / "entries.py").write_text(textwrap.dedent(OTHERS))
    return scheduled


def test_the_list_shows_entries_of_other_environments_as_off(
    others: Run, clean_redis: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    (row,) = [line for line in done(others("list")).splitlines() if line.startswith("far ")]
    assert row.endswith("off here: only moon, mars, QD_ENV is not set")
    monkeypatch.setenv("QD_ENV", "mars")
    shown = document(others("list", "--json"))
    assert (shown["environment"], entry(shown, "far")["off"]) == ("mars", False)
    monkeypatch.setenv("QD_ENV", "venus")
    assert "off here: only moon, mars, QD_ENV is venus" in done(others("list"))
    assert entry(document(others("list", "--json")), "far")["off"] is True


def test_the_next_run_obeys_hours_and_days(others: Run, clean_redis: Client) -> None:
    office = entry(document(others("list", "--json")), "office")
    moment = datetime.fromisoformat(office["next"])
    assert (moment.weekday(), moment.hour in (8, 9), moment.minute) == (0, True, 0)
    assert len(office["filters"]) == 2


def test_command_entries_are_listed_as_command_lines(others: Run, clean_redis: Client) -> None:
    shown = document(others("list", "--json"))
    assert entry(shown, "shell")["what"] == "tar -cf 'a b'"
    assert entry(shown, "qd")["what"] == "qd failed forget --older-than 30d"


def test_locks_of_an_entry_on_every_host_are_listed_and_freed(others: Run, clean_redis: Client) -> None:
    for host in ("app-1", "app-2"):
        clean_redis.call("SET", f"qd:overlap:{host}\x1feach", json.dumps({"host": host, "pid": 7, "at": 1}))
    foreign = ["qd:overlap:app-1\x1fbeach", "qd:overlap:app-1\x1fof each", "qd:overlap:app-1 each"]  # other entries'
    for key in foreign:
        clean_redis.call("SET", key, "{}")
    locks = entry(document(others("list", "--json")), "each")["locks"]
    assert [lock["host"] for lock in locks] == ["app-1", "app-2"]
    assert {one["host"] for one in document(others("clear-locks", "--json"))["freed"]} == {"app-1", "app-2"}
    assert clean_redis.call("DEL", *foreign) == 3


def test_the_list_shows_declarations_if_the_server_is_unreachable(
    scheduled: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QD_REDIS_URL", "unix:///nowhere/redis.sock")
    result = scheduled("list", "--json")
    assert (result.exit_code, len(json.loads(result.stdout)["entries"])) == (69, 3)
    assert json.loads(result.stdout)["reached"] is False
    assert result.stderr.startswith("qd: the state on connection redis is unknown: ")
    assert result.stderr.count("\n") == 1


def test_an_app_without_entries(scheduled: Run, folder: Path) -> None:
    (folder / "entries.py").write_text("from qd import Qd\napp = Qd()\n")
    result = scheduled("list")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("nothing is scheduled: ")
    assert document(scheduled("list", "--json"))["entries"] == []


# -- pause and resume


def test_an_entry_is_paused_and_resumed(scheduled: Run, clean_redis: Client) -> None:
    assert done(scheduled("pause", "tidy", "--reason", "disk full")) == "tidy: paused until `qd schedule resume tidy`\n"
    paused = entry(document(scheduled("list", "--json")), "tidy")["paused"]
    assert (paused["reason"], paused["until"], "@" in paused["by"]) == ("disk full", None, True)
    assert "paused by " in done(scheduled("list"))
    assert done(scheduled("resume", "tidy", "broken")) == "tidy: resumed\nbroken: was not paused\n"


def test_all_entries_are_paused_for_a_while(scheduled: Run, clean_redis: Client) -> None:
    assert done(scheduled("pause", "--for", "10m")) == "all entries: paused for 10m\n"
    assert done(scheduled("list")).startswith("all entries are paused by ")
    shown = document(scheduled("list", "--json"))
    assert shown["paused"]["until"] - shown["paused"]["at"] == pytest.approx(600)
    one = scheduled("resume", "tidy")
    assert one.stdout == "tidy: was not paused\n"
    assert one.stderr == "all entries are still paused: `qd schedule resume` without a name resumes them\n"
    assert document(scheduled("resume", "--json")) == {
        "resumed": [{"entry": "*", "was_paused": True}],
        "all_paused": False,
    }
    assert done(scheduled("resume")) == "nothing was paused\n"


def test_an_undeclared_name_is_not_paused(scheduled: Run, clean_redis: Client) -> None:
    refused = scheduled("pause", "tidi")
    assert (refused.exit_code, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert "'tidi' (did you mean 'tidy'?) (known: mail.report, tidy, broken)" in refused.stderr
    assert scheduled("pause", "tidy", "--for", "0").exit_code == 2
    resumed = scheduled("resume", "tidi")
    assert (resumed.exit_code, resumed.stdout, resumed.stderr) == (2, "", refused.stderr)


@pytest.mark.leaves("qd:ticks", "qd:schedule:last")
def test_a_run_without_a_recorded_end_is_shown(scheduled: Run, clean_redis: Client) -> None:
    tick = now(clean_redis) // 3600 * 3600

    def seen(field: float) -> Any:
        clean_redis.call("HSET", "qd:ticks", "tidy", f"{int(field * 1000)} t m")
        return entry(document(scheduled("list", "--json")), "tidy")["unended_at"]

    assert seen(tick - 1000.5) is None  # time of the first check, not a tick
    assert seen(tick) == tick
    assert "end unknown: it runs, or died with its scheduler" in done(scheduled("list"))
    note(
        clean_redis, "qd:schedule:last", "tidy", tick=tick - 3600, began=tick - 3600, ended=tick - 3599, outcome="done"
    )
    assert seen(tick) == tick
    note(clean_redis, "qd:schedule:last", "tidy", tick=tick, began=tick, ended=tick + 1, outcome="done")
    assert seen(tick) is None


# -- locks


def test_clear_locks_frees_locks_and_names_their_holders(scheduled: Run, clean_redis: Client) -> None:
    held = json.dumps({"host": "app-1", "pid": 41, "at": now(clean_redis) - 5})
    clean_redis.call("SET", "qd:overlap:tidy", held)
    clean_redis.call("SET", "qd:unique:mail.report:schedule:mail.report", "U-1")
    assert done(scheduled("clear-locks", "broken")) == "no lock was taken\n"
    freed = document(scheduled("clear-locks", "mail.report", "--json"))["freed"]
    assert freed == [{"entry": "mail.report", "host": "", "pid": None, "at": None, "job": "U-1"}]
    assert done(scheduled("clear-locks")).startswith("tidy: freed; runs on app-1 (pid 41) for ")
    assert done(scheduled("clear-locks")) == "no lock was taken\n"


# -- test


@pytest.fixture
def shop(project: MakeProject) -> Project:
    return project(JOBS)


def test_schedule_test_runs_an_entry_here(shop: Project, clean_redis: Client) -> None:
    shop.qd("schedule", "pause")
    result = shop.qd("schedule", "test", "tidy")
    assert (result.returncode, result.stdout) == (0, "tidied\n")
    assert result.stderr.startswith("tidy (jobs.tidy): done, took ")
    failed = shop.qd("schedule", "test", "broken")
    assert failed.returncode == 1
    assert 'raise ValueError("no room")' in failed.stderr
    assert "broken (jobs.broken): failed: ValueError: no room, took " in failed.stderr
    unknown = shop.qd("schedule", "test", "tidi")
    assert (unknown.returncode, "did you mean 'tidy'?" in unknown.stderr) == (2, True)
    shop.qd("schedule", "resume")


def test_schedule_test_needs_no_server(shop: Project) -> None:
    tried = shop.qd("schedule", "test", "tidy", "--json", QD_REDIS_URL="unix:///nowhere/redis.sock")
    assert (tried.returncode, tried.stderr) == (0, "tidied\n")  # stdout is for the one document
    assert json.loads(tried.stdout) | {"took_s": 0} == {
        "name": "tidy", "kind": "call", "ok": True, "code": None, "error": "", "took_s": 0,
    }  # fmt: skip


def test_schedule_test_does_not_start_the_embedded_server(project: MakeProject) -> None:
    alone = project(url="embedded:", jobs="app.schedule.shell('echo tidied').daily().name('tidy')")
    alone.allowed.add(".qd")
    assert alone.qd("schedule", "test", "tidy").stdout == "tidied\n"
    assert not (alone.root / ".qd").exists()


@pytest.mark.leaves("queues:reports*", "qd:unique:*")
def test_schedule_test_sends_the_job_of_an_entry(scheduled: Run, clean_redis: Client) -> None:
    shown = document(scheduled("test", "mail.report", "--json"))
    (payload,) = clean_redis.text("LRANGE", "queues:reports", "0", "-1")
    assert json.loads(payload)["id"] == shown["id"]


def test_schedule_list_of_the_real_program(shop: Project) -> None:
    assert shop.qd("schedule", "list").stdout.startswith("name ")
    assert shop.qd("schedule", "nope").returncode == 2
