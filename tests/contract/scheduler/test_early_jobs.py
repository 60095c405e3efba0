"""Jobs that a scheduler has made before their tick: they go out once, when it has come and nothing speaks against it. A tick
has come before a test begins: Ahead is told that it is yet to come, so that no test waits for one."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from qd import Job, Qd
from qd.config.load import load
from qd.drivers.keyspace.records import KeptTicks
from qd.errors import ConnectionLost
from qd.events import JobQueueing
from qd.scheduler import connection, scheduler
from qd.scheduler import ticks as early
from qd.scheduler.connection import EntryState
from qd.scheduler.ticks import TickTaker
from qd.store import schedule as notes
from tests.support.redis import Client
from tests.support.schedule import HOUR, Host, Open, field, ready_payloads
from tests.support.servers.redis import Server

pytestmark = pytest.mark.leaves("queues:*", "qd:ticks", "qd:schedule:*", "qd:unique:*", "qd:down")


class JustNow:
    """Each hour, and a second ago."""

    text = mark = "hourly"
    zone = "UTC"

    def __init__(self) -> None:
        self.base = round(time.time()) - 1

    def next_after(self, at: float) -> float:
        return self.base + ((at - self.base) // HOUR + 1) * HOUR


class Ahead:
    """A host whose entries are all due; it has not had a turn yet."""

    def __init__(self, host: Host) -> None:
        self.host, self.scheduler = host, host.scheduler
        self.connection = host.scheduler._control
        assert self.connection.poll()

    def make(self) -> list[str]:
        """Make all that can be made before the moment. The ids of those jobs."""
        while any(each.step() for each in self.scheduler._early):
            pass
        return [each.early.message.id for each in self.connection.states if each.early and each.early.message]

    def after(self, number: int, act: Callable[[KeptTicks], object], monkeypatch: pytest.MonkeyPatch) -> None:
        """Act when so many claims are begun."""
        real, begun = KeptTicks.begin, list[Any]()

        def begin(ticks: KeptTicks, claims: Any) -> Any:
            begun.append(real(ticks, claims))
            if len(begun) == number:
                act(ticks)
            return begun[-1]

        monkeypatch.setattr(KeptTicks, "begin", begin)

    def turn(self) -> None:
        """The moment has come, and the server was asked again what operators want."""
        self.connection._poll_at = 0.0
        self.scheduler.turn()


@pytest.fixture
def ahead(app: Qd, redis: Client, open_host: Open, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ahead]:
    monkeypatch.setattr(early, "NEAR", -3_600_000)
    monkeypatch.setattr(connection, "BEHIND", 3_600_000)
    timing = JustNow()

    def make(name: str = "web1") -> Ahead:
        entries = [replace(entry, timing=timing) for entry in app.schedule.entries()]
        for entry in entries:
            redis.call("HSETNX", "qd:ticks", entry.name, f"{(timing.base - 3600) * 1000} x hourly")
        return Ahead(open_host(name, entries=entries))

    return make


def ids(redis: Client) -> list[str]:
    return [str(job.id) for job in ready_payloads(redis)]


# -- they go out


def test_what_was_made_before_is_sent_and_told(
    app: Qd, report: Any, redis: Client, ahead: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early, "STEP", 3)
    for n in range(10):
        app.schedule(report.bind(n), every=HOUR, name=f"e{n}")
    one = ahead()
    made = one.make()
    assert len(made) == 10
    assert (ready_payloads(redis), one.host.lines) == ([], []), "nothing is sent or told before"
    one.turn()
    assert ids(redis) == made
    assert [line.split("id=")[1].split()[0] for line in one.host.said("schedule.sent")] == made
    assert one.make() == [], "each is due in an hour again"


def test_it_counts_as_made_at_its_tick(app: Qd, report: Any, redis: Client, ahead: Any) -> None:
    app.schedule(report.bind(1), every=HOUR, name="plain")
    app.schedule(report.bind(2).using(retry_for=60), every=HOUR, name="ends")
    one = ahead()
    (tick,) = {state.entry.timing.base for state in one.connection.states}
    assert len(one.make()) == 2
    one.turn()
    assert [(job.createdAt, job.retryUntil) for job in ready_payloads(redis)] == [(tick, None), (tick, tick + 60)]


def test_a_signed_job_a_later_one_and_one_that_runs_alone_are_made_before_too(
    app: Qd, server: Server, report: Any, redis: Client, ahead: Any
) -> None:
    app.settings = load(code={"url": server.url}, environ={"QD_SIGNING_KEYS": "2026a:a-key-that-no-one-knows"})
    app.schedule(report.bind(1), every=HOUR, name="plain")
    app.schedule(report.bind(2).using(delay=60), every=HOUR, name="later")
    app.schedule(report.bind(3), every=HOUR, name="alone", overlap=False)
    one = ahead()
    assert len(one.make()) == 3
    one.turn()
    assert len(one.host.said("schedule.sent")) == 3
    assert redis.call("ZCARD", "queues:default:delayed") == 1
    assert len(redis.call("KEYS", "qd:unique:*")) == 1
    assert all(job.sig for job in ready_payloads(redis))


def test_they_are_made_while_the_scheduler_waits_and_each_tick_has_its_own(
    app: Qd, report: Any, redis: Client, open_host: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    real = TickTaker.make_early

    def make_early(taker: TickTaker, state: EntryState, at: int) -> None:
        real(taker, state, at)
        if state.early is not None and state.early.message is not None:
            made.append(state.early.message.id)

    monkeypatch.setattr(TickTaker, "make_early", make_early)
    app.schedule(report.bind(1), every=0.5)
    host = open_host()
    host.turns(lambda: len(set(ids(redis)) & set(made)) >= 2)
    assert len(set(ids(redis))) == len(ids(redis)) == len(host.said("schedule.sent"))


# -- they do not


@pytest.mark.parametrize("by", ["a pause", "a note in Redis", "the keeper"])
def test_what_stops_a_tick_after_its_job_was_made_is_obeyed(
    app: Qd, report: Any, redis: Client, ahead: Any, by: str
) -> None:
    told: list[object] = []
    app.on(JobQueueing)(told.append)
    app.schedule(report.bind(1), every=HOUR, name="stops")
    one = ahead()
    assert len(one.make()) == 1
    if by == "a pause":
        notes.pause(one.connection.store, ["stops"], by="ann", reason="stocktaking")
    elif by == "a note in Redis":
        redis.call("SET", "qd:down", '{"by": "ann", "reason": "new disks"}')
    else:
        one.scheduler.down = True
    one.turn()
    assert len(one.host.said("schedule.skipped")) == 1
    assert (ready_payloads(redis), told) == ([], [])
    assert one.connection.states[0].last > 0


def test_of_two_hosts_that_have_made_it_one_sends_it(app: Qd, report: Any, redis: Client, ahead: Any) -> None:
    for n in range(3):
        app.schedule(report.bind(n), every=HOUR, name=f"e{n}")
    one, two = ahead("web1"), ahead("web2")
    made = [one.make(), two.make()]
    two.turn()
    one.turn()
    assert ids(redis) == made[1]
    assert (len(two.host.said("schedule.sent")), one.host.lines) == (3, [])


def test_a_job_whose_reply_was_lost_is_sent_once(
    app: Qd, report: Any, redis: Client, ahead: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.schedule(report.bind(1), every=HOUR, name="one")
    one = ahead()
    made, real = one.make(), KeptTicks.begin

    def lost(ticks: KeptTicks, claims: Any) -> Any:
        monkeypatch.setattr(KeptTicks, "begin", real)
        real(ticks, claims)()
        raise ConnectionLost("the connection broke")

    monkeypatch.setattr(KeptTicks, "begin", lost)
    one.turn()
    assert one.host.said("schedule.sent") == []
    one.host.turns(lambda: one.host.said("schedule.sent"))
    assert ids(redis) == made
    assert f"id={made[0]} " in one.host.said("schedule.sent")[0]


def test_a_server_that_has_lost_its_data_is_sent_nothing_of_it(app: Qd, report: Any, redis: Client, ahead: Any) -> None:
    app.schedule(report.bind(1), every=HOUR)
    one = ahead()
    assert len(one.make()) == 1
    redis.call("FLUSHALL")
    one.turn()
    assert (ready_payloads(redis), one.host.lines) == ([], [])
    assert field(redis, app), "the entry begins anew"


def test_of_an_entry_that_nobody_has_seen_none_is_made(app: Qd, report: Any, redis: Client, ahead: Any) -> None:
    app.schedule(report.bind(1), every=HOUR)
    one = ahead()
    redis.call("FLUSHALL")
    one.connection.update(one.connection.states[0], b"")
    assert one.make() == []
    one.turn()
    assert (ready_payloads(redis), one.host.lines) == ([], [])
    assert field(redis, app)


def test_a_tick_that_is_not_the_one_it_was_made_for_gets_its_own(
    app: Qd, report: Any, redis: Client, ahead: Any
) -> None:
    app.schedule(report.bind(1), every=HOUR, missed="once")
    one = ahead()
    made = one.make()
    one.connection.late, one.connection.states[0].last = 0, one.connection.states[0].last - 2 * 3_600_000
    one.turn()
    assert one.host.said("schedule.missed")
    assert len(made) == len(ids(redis)) == 1
    assert made != ids(redis)
    assert one.connection.states[0].early is None


# -- left to the moment itself


def test_code_of_the_app_is_asked_at_the_moment_and_not_before(
    app: Qd, report: Any, redis: Client, ahead: Any, tmp_path: Path
) -> None:
    asked: list[str] = []

    @app.job("mail")
    class Mail(Job):
        def tags(self) -> list[str]:
            asked.append("class")
            return []

        def handle(self) -> None: ...

    app.schedule(Mail(), every=HOUR, name="class")
    app.schedule(report.bind(1), every=HOUR, name="filter").when(lambda: (tmp_path / "asked").write_text("x") > 0)
    one = ahead()
    asked.clear()
    assert one.make() == []
    assert (asked, list(tmp_path.iterdir())) == ([], [])
    one.host.turns(lambda: len(one.host.said("schedule.sent")) == 2)
    assert (asked, len(ready_payloads(redis))) == (["class"], 2)


def test_with_a_payload_hook_all_are_made_at_the_moment(app: Qd, report: Any, redis: Client, ahead: Any) -> None:
    asked: list[str] = []
    app.payload_hook(lambda connection, queue, payload: asked.append(queue) or {})  # type: ignore[func-returns-value]
    app.schedule(report.bind(1), every=HOUR)
    one = ahead()
    assert (one.make(), asked) == ([], [])
    one.turn()
    assert (asked, len(ready_payloads(redis))) == (["default"], 1)


def test_one_that_cannot_be_made_is_told_at_the_moment_and_holds_up_no_other(
    app: Qd, server: Server, redis: Client, ahead: Any
) -> None:
    @app.job("mail")
    def mail(text: str) -> None: ...

    app.settings = dataclasses.replace(load(code={"url": server.url}, environ={}), max_payload=1000)
    app.schedule(mail.bind("x" * 2000), every=HOUR, name="bad")
    app.schedule(mail.bind("x"), every=HOUR, name="good")
    one = ahead()
    assert len(one.make()) == 1
    assert one.host.lines == []
    one.turn()
    assert "entry=bad" in one.host.said("schedule.failed")[0]
    assert len(one.host.said("schedule.failed")) == len(ready_payloads(redis)) == 1


def test_nothing_is_made_by_a_paused_scheduler(app: Qd, report: Any, redis: Client, ahead: Any) -> None:
    app.schedule(report.bind(1), every=HOUR)
    one = ahead()
    one.scheduler.paused = True
    one.turn()
    assert one.connection.states[0].early is None
    one.scheduler.paused = False
    one.turn()
    assert len(ready_payloads(redis)) == 1


# -- some at a time


@pytest.fixture
def ten(app: Qd, report: Any, ahead: Any, monkeypatch: pytest.MonkeyPatch) -> Ahead:
    """Ten entries, claimed in four parts."""
    monkeypatch.setattr(scheduler, "AT_ONCE", 3)
    for n in range(10):
        app.schedule(report.bind(n), every=HOUR, name=f"e{n}")
    one: Ahead = ahead()
    return one


def test_all_are_claimed_before_the_server_has_taken_the_first(
    ten: Ahead, redis: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ten.make()
    redis.call("CLIENT", "PAUSE", 60_000, "WRITE")
    try:
        ten.after(4, lambda _: redis.call("CLIENT", "UNPAUSE"), monkeypatch)
        ten.turn()
    finally:
        redis.call("CLIENT", "UNPAUSE")
    assert ids(redis) == made
    assert [line.split("id=")[1].split()[0] for line in ten.host.said("schedule.sent")] == made


def test_code_of_the_app_that_runs_in_between_may_ask_the_server_too(app: Qd, ten: Ahead, redis: Client) -> None:
    made, asked = ten.make(), list[float]()
    app.on(JobQueueing)(lambda event: asked.append(ten.connection.store.now()))
    ten.turn()
    assert ids(redis) == made
    assert len(ten.host.said("schedule.sent")) == 10
    assert len(asked) == 10
    assert all(abs(each - time.time()) < HOUR for each in asked)


def test_a_connection_that_is_lost_with_some_of_them_on_their_way_costs_none_and_doubles_none(
    ten: Ahead, redis: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    ten.make()
    ten.after(2, lambda ticks: ticks.space.close(), monkeypatch)
    ten.turn()
    ten.host.turns(lambda: len(ten.host.said("schedule.sent")) == 10)
    told = [line.split("id=")[1].split()[0] for line in ten.host.said("schedule.sent")]
    assert sorted(told) == sorted(ids(redis))
    assert len({line.split("entry=")[1].split()[0] for line in ten.host.said("schedule.sent")}) == 10
    assert len(ten.host.said("redis.away")) == 1
