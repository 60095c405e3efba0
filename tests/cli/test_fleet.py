"""Orders for a part of the fleet: what they store, what `qd status` and `qd why` show of them, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qd import Qd
from qd.drivers.redis_driver import opened
from qd.store import fleet
from qd.store.base import KeyspaceStore
from tests.cli.conftest import Run, document, done, report
from tests.support.redis import Client
from tests.support.servers.redis import Server

WORKER = {"slot": 0, "pid": 415, "state": "waiting"}


@pytest.fixture(autouse=True)
def actor(folder: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QD_ACTOR", "ana")


def test_a_pause_is_shown_with_who_and_why_until_it_is_resumed(qd: Run, redis: Client) -> None:
    report(redis, pool="", workers=[WORKER])
    parts = ["--job", "mail.welcome", "--host", "app-1", "--pool", "default"]
    assert done(qd("pause", *parts, "--for", "1h", "--reason", "bad host")).splitlines() == [
        "job mail.welcome: paused for 1h",
        "host app-1: paused for 1h",
        "pool default: paused for 1h",
    ]
    shown = done(qd("status"))
    assert "host app-1 is paused by ana just now" in shown
    assert '"bad host"; `qd resume --host app-1` ends it' in shown
    paused = document(qd("status", "--json"))["paused"]
    assert [sorted(set(each) & {"job", "host", "pool"})[0] for each in paused] == ["host", "job", "pool"]
    assert (paused[0]["by"], paused[0]["reason"], paused[0]["until"] > paused[0]["at"]) == ("ana", "bad host", True)
    assert done(qd("resume", *parts)).splitlines()[0] == "job mail.welcome: resumed"
    assert document(qd("resume", "--host", "app-1", "--json")) == {"resumed": [{"host": "app-1", "was_paused": False}]}
    assert redis.call("EXISTS", "qd:fleet") == 0


def test_what_is_over_is_not_shown_and_deleted_by_the_next_order(qd: Run, redis: Client) -> None:
    redis.call("HSET", "qd:fleet", "pause:host:a", '{"until": 5}', "restart:pool:b", "1.000000_0", "scale:c", "3 1.0")
    redis.call("HSET", "qd:fleet", "odd", "x", "scale:d", "many", "pause:host:e", "{")
    assert [each["host"] for each in document(qd("status", "--json"))["paused"]] == ["e"]
    assert qd("restart", "--pool", "mail").exit_code == 0
    assert redis.text("HKEYS", "qd:fleet") == ["pause:host:e", "restart:pool:mail"]


def test_why_names_the_pause_of_a_job(qd: Run, server: Server, redis: Client) -> None:
    report(redis, workers=[WORKER])
    handle = Qd(server.url).queue("mail").push("mail.welcome")
    assert qd("pause", "--job", "mail.welcome").exit_code == 0
    shown = done(qd("why", handle.id)).splitlines()
    assert shown[0].startswith("paused      job mail.welcome is paused by ana just now; `qd resume --job mail.welcome`")


def test_restart_of_a_part_names_its_masters_only(qd: Run, redis: Client) -> None:
    report(redis)
    report(redis, "T2", pool="web", host="app-2")
    assert done(qd("restart", "--host", "app-2")).splitlines()[0] == "restart requested: web@app-2"
    assert redis.call("EXISTS", "qd:restart") == 0
    assert fields(redis) == ["restart:host:app-2"]
    near = qd("restart", "--pool", "wep")
    assert "no running master is of pool 'wep' (did you mean 'web'?)" in near.stderr


def fields(redis: Client) -> list[str]:
    found: list[str] = redis.text("HKEYS", "qd:fleet")
    return found


def test_scale_needs_a_running_master_of_the_pool(qd: Run, redis: Client) -> None:
    report(redis, configured=8, wanted=12, workers=[WORKER] * 12)
    assert done(qd("scale", "mail", "12")) == "mail@app-1: 12 workers, 8 configured\n"
    assert done(qd("scale", "mail", "1")) == "mail@app-1: 1 worker, 8 configured\n"
    assert "12 (8 configured)" in done(qd("status"))
    assert document(qd("scale", "mail", "9", "--json"))["masters"][0]["configured"] == 8
    for words in (["scale", "nail", "3"], ["scale", "mail", "0"], ["scale", "mail", "201"]):
        assert qd(*words).exit_code == 2
    assert "did you mean 'mail'?" in qd("scale", "nail", "3").stderr


@pytest.mark.parametrize("words", [["pause", "mail", "--job", "a"], ["resume", "mail", "--host", "h"]])
def test_queues_and_parts_are_not_mixed(qd: Run, words: list[str]) -> None:
    assert qd(*words).exit_code == 2


def test_more_jobs_than_the_scoreboard_has_room_for_are_refused(qd: Run, redis: Client) -> None:
    jobs = [word for n in range(fleet.MOST) for word in ("--job", f"job-{n}")]
    assert qd("pause", *jobs).exit_code == 0
    assert qd("pause", "--job", "job-0").exit_code == 0
    assert qd("pause", "--job", "another").exit_code == 2


def test_each_order_leaves_an_event(qd: Run, redis: Client) -> None:
    report(redis)
    for words in (
        "pause --host app-1 --for 30m", "resume --host app-1", "resume --pool x", "restart --pool mail --rolling",
        "scale mail 3",
    ):  # fmt: skip
        assert qd(*words.split()).exit_code == 0
    found = [json.loads(line) for line in done(qd("events", "--json")).splitlines()]
    assert [(each["what"], each["object"]) for each in found] == [
        ("pause", {"host": "app-1", "for": "30m"}),
        ("resume", {"host": "app-1"}),
        ("restart", {"rolling": "yes", "pool": "mail"}),
        ("scale", {"pool": "mail", "workers": 3}),
    ]


@pytest.mark.parametrize("kind", ["sqlite", "cluster"])
def test_orders_are_kept_on_every_control_connection(qd: Run, request: pytest.FixtureRequest, kind: str) -> None:
    url = "sqlite:///jobs.sqlite" if kind == "sqlite" else request.getfixturevalue(kind).url
    Path("qd.toml").write_text(f'[connections.x]\nurl = "{url}"\n[qd]\ndefault = "x"\n')
    if kind == "sqlite":
        assert qd("migrate").exit_code == 0
    assert qd("pause", "--job", "a", "--host", "h").exit_code == 0
    assert len(document(qd("status", "--json"))["paused"]) == 2
    assert done(qd("resume", "--job", "a")) == "job a: resumed\n"


def test_times_of_orders_are_those_of_the_server(server: Server, redis: Client) -> None:
    space = opened(server.url, name="test", patience=5.0)
    store = KeyspaceStore(space)
    fleet.scale(store, "mail", 3)
    stamp = fleet.restart(store, fleet.Target("host", "h:1"), rolling=True)
    found = fleet.read(store)
    assert found.restarts == {("host", "h:1"): stamp}
    assert found.scales["mail"].workers == 3
    assert abs(found.scales["mail"].at - stamp.at) < 60
    space.close()
