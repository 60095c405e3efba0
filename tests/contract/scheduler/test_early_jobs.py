"""Jobs that a scheduler prepares before their tick: each is sent once, at the tick, unless something prevents it. In these
tests the tick has passed already, but Ahead treats it as a future one, so that no test waits for a tick."""

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
    """Every hour, the last time a second ago."""

    text = mark = "hourly"
    zone = "UTC"

    def __init__(self) -> None:
        self.base = round(time.time()) - 1

    def next_after(self, at: float) -> float:
        return self.base + ((at - self.base) // HOUR + 1) * HOUR


class Ahead:
    """A host before its first turn, whose entries are all due."""

    def __init__(self, host: Host) -> None:
        self.host, self.scheduler = host, host.scheduler
        self.connection = host.scheduler._control
        assert self.connection.poll()

    def make(self) -> list[str]:
        """Prepare all jobs that can be prepared before their tick. Returns their IDs."""
        while any(each.step() for each in self.scheduler._early):
            pass
        return [each.early.message.id for each in self.connection.states if each.early and each.early.message]

    def after(self, number: int, act: Callable[[KeptTicks], object], monkeypatch: pytest.MonkeyPatch) -> None:
        """Call `act` after this number of claims has begun."""
        real, begun = KeptTicks.begin, list[Any]()

        def begin(ticks: KeptTicks, claims: Any) -> Any:
            begun.append(real(ticks, claims))
            if len(begun) == number:
                act(ticks)
            return begun[-1]

        monkeypatch.setattr(KeptTicks, "begin", begin)

    def turn(self) -> None:
        """A turn at the tick, with fresh pauses and flags from the server."""
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


# -- sent


def test_early_jobs_are_sent_and_logged(
    app: Qd, report: Any, redis: Client, ahead: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early, "STEP", 3)
    for n in range(10):
        app.schedule(report.bind(n), every=HOUR, name=f"e{n}")
    one = ahead()
    made = one.make()
    assert len(made) == 10
    assert (ready_payloads(redis), one.host.lines) == ([], []), "nothing is sent or logged before"
    one.turn()
    assert ids(redis) == made
    assert [line.split("id=")[1].split()[0] for line in one.host.logged("schedule.sent")] == made
    assert one.make() == [], "each is due again in an hour"


def test_an_early_job_has_the_time_of_its_tick(app: Qd, report: Any, redis: Client, ahead: Any) -> None:
    app.schedule(report.bind(1), every=HOUR, name="plain")
    app.schedule(report.bind(2).using(retry_for=60), every=HOUR, name="ends")
    one = ahead()
    (tick,) = {state.entry.timing.base for state in one.connection.states}
    assert len(one.make()) == 2
    one.turn()
    assert [(job.createdAt, job.retryUntil) for job in ready_payloads(redis)] == [(tick, None), (tick, tick + 60)]


def test_signed_delayed_and_non_overlapping_jobs_are_made_early(
    app: Qd, server: Server, report: Any, redis: Client, ahead: Any
) -> None:
    app.settings = load(code={"url": server.url}, environ={"QD_SIGNING_KEYS": "2026a:a-key-that-no-one-knows"})
    app.schedule(report.bind(1), every=HOUR, name="plain")
    app.schedule(report.bind(2).using(delay=60), every=HOUR, name="later")
    app.schedule(report.bind(3), every=HOUR, name="alone", overlap=False)
    one = ahead()
    assert len(one.make()) == 3
    one.turn()
    assert len(one.host.logged("schedule.sent")) == 3
    assert redis.call("ZCARD", "queues:default:delayed") == 1
    assert len(redis.call("KEYS", "qd:unique:*")) == 1
    assert all(job.sig for job in ready_payloads(redis))


def test_jobs_are_made_while_the_scheduler_waits_one_for_each_tick(
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
    assert len(set(ids(redis))) == len(ids(redis)) == len(host.logged("schedule.sent"))


# -- not sent


@pytest.mark.parametrize("by", ["a pause", "a note in Redis", "the keeper"])
def test_a_pause_after_the_job_was_made_is_obeyed(app: Qd, report: Any, redis: Client, ahead: Any, by: str) -> None:
    events: list[object] = []
    app.on(JobQueueing)(events.append)
    app.schedule(report.bind(1), every=HOUR, name="stops")
    one = ahead()
    assert len(one.make()) == 1
    if by == "a pause":
        notes.pause(one.connection.store, ["stops"], by="ann", reason="stocktaking")
    elif by == "a note in Redis":
        redis.call("SET", "qd:down", '{"by": "ann", "reason": "new disks"}')
    else:
        one.scheduler.flags.down_here = True
    one.turn()
    assert len(one.host.logged("schedule.skipped")) == 1
    assert (ready_payloads(redis), events) == ([], [])
    assert one.connection.states[0].last > 0


def test_one_of_two_hosts_sends_an_early_job(app: Qd, report: Any, redis: Client, ahead: Any) -> None:
    for n in range(3):
        app.schedule(report.bind(n), every=HOUR, name=f"e{n}")
    one, two = ahead("web1"), ahead("web2")
    made = [one.make(), two.make()]
    two.turn()
    one.turn()
    assert ids(redis) == made[1]
    assert (len(two.host.logged("schedule.sent")), one.host.lines) == (3, [])


def test_an_early_job_with_a_lost_reply_is_sent_once(
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
    assert one.host.logged("schedule.sent") == []
    one.host.turns(lambda: one.host.logged("schedule.sent"))
    assert ids(redis) == made
    assert f"id={made[0]} " in one.host.logged("schedule.sent")[0]


def test_early_jobs_are_not_sent_to_a_server_that_lost_its_data(
    app: Qd, report: Any, redis: Client, ahead: Any
) -> None:
    app.schedule(report.bind(1), every=HOUR)
    one = ahead()
    assert len(one.make()) == 1
    redis.call("FLUSHALL")
    one.turn()
    assert (ready_payloads(redis), one.host.lines) == ([], [])
    assert field(redis, app), "the entry starts again"


def test_no_early_job_is_made_for_a_new_entry(app: Qd, report: Any, redis: Client, ahead: Any) -> None:
    app.schedule(report.bind(1), every=HOUR)
    one = ahead()
    redis.call("FLUSHALL")
    one.connection.update(one.connection.states[0], b"")
    assert one.make() == []
    one.turn()
    assert (ready_payloads(redis), one.host.lines) == ([], [])
    assert field(redis, app)


def test_a_different_tick_gets_a_new_job(app: Qd, report: Any, redis: Client, ahead: Any) -> None:
    app.schedule(report.bind(1), every=HOUR, missed="once")
    one = ahead()
    made = one.make()
    one.connection.late, one.connection.states[0].last = 0, one.connection.states[0].last - 2 * 3_600_000
    one.turn()
    assert one.host.logged("schedule.missed")
    assert len(made) == len(ids(redis)) == 1
    assert made != ids(redis)
    assert one.connection.states[0].early is None


# -- made at the tick


def test_app_code_is_called_at_the_tick_and_not_before(
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
    one.host.turns(lambda: len(one.host.logged("schedule.sent")) == 2)
    assert (asked, len(ready_payloads(redis))) == (["class"], 2)


def test_with_a_payload_hook_jobs_are_made_at_the_tick(app: Qd, report: Any, redis: Client, ahead: Any) -> None:
    asked: list[str] = []
    app.payload_hook(lambda connection, queue, payload: asked.append(queue) or {})  # type: ignore[func-returns-value]
    app.schedule(report.bind(1), every=HOUR)
    one = ahead()
    assert (one.make(), asked) == ([], [])
    one.turn()
    assert (asked, len(ready_payloads(redis))) == (["default"], 1)


def test_a_job_that_cannot_be_made_fails_at_the_tick_and_blocks_no_other(
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
    assert "entry=bad" in one.host.logged("schedule.failed")[0]
    assert len(one.host.logged("schedule.failed")) == len(ready_payloads(redis)) == 1


def test_a_paused_scheduler_makes_no_early_job(app: Qd, report: Any, redis: Client, ahead: Any) -> None:
    app.schedule(report.bind(1), every=HOUR)
    one = ahead()
    one.scheduler.paused = True
    one.turn()
    assert one.connection.states[0].early is None
    one.scheduler.paused = False
    one.turn()
    assert len(ready_payloads(redis)) == 1


# -- in batches


@pytest.fixture
def ten(app: Qd, report: Any, ahead: Any, monkeypatch: pytest.MonkeyPatch) -> Ahead:
    """Ten entries, claimed in four batches."""
    monkeypatch.setattr(scheduler, "AT_ONCE", 3)
    for n in range(10):
        app.schedule(report.bind(n), every=HOUR, name=f"e{n}")
    one: Ahead = ahead()
    return one


def test_all_claims_are_sent_before_the_first_reply(ten: Ahead, redis: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    made = ten.make()
    redis.call("CLIENT", "PAUSE", 60_000, "WRITE")
    try:
        ten.after(4, lambda _: redis.call("CLIENT", "UNPAUSE"), monkeypatch)
        ten.turn()
    finally:
        redis.call("CLIENT", "UNPAUSE")
    assert ids(redis) == made
    assert [line.split("id=")[1].split()[0] for line in ten.host.logged("schedule.sent")] == made


def test_app_code_between_claims_may_call_the_server(app: Qd, ten: Ahead, redis: Client) -> None:
    made, asked = ten.make(), list[float]()
    app.on(JobQueueing)(lambda event: asked.append(ten.connection.store.now()))
    ten.turn()
    assert ids(redis) == made
    assert len(ten.host.logged("schedule.sent")) == 10
    assert len(asked) == 10
    assert all(abs(each - time.time()) < HOUR for each in asked)


def test_a_connection_lost_during_claims_neither_loses_nor_doubles_jobs(
    ten: Ahead, redis: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    ten.make()
    ten.after(2, lambda ticks: ticks.space.close(), monkeypatch)
    ten.turn()
    ten.host.turns(lambda: len(ten.host.logged("schedule.sent")) == 10)
    sent = [line.split("id=")[1].split()[0] for line in ten.host.logged("schedule.sent")]
    assert sorted(sent) == sorted(ids(redis))
    assert len({line.split("entry=")[1].split()[0] for line in ten.host.logged("schedule.sent")}) == 10
    assert len(ten.host.logged("redis.away")) == 1
