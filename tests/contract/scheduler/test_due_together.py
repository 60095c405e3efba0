"""Jobs of entries that are due at one time: claimed and sent in batches, each once, unless something prevents it. In these
tests the tick has just passed, so that no test waits for one."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from qd import Qd
from qd.config.load import load
from qd.drivers.keyspace.records import KeptTicks
from qd.events import JobQueueing
from qd.scheduler import connection, scheduler
from qd.store import schedule as notes
from tests.support.redis import Client
from tests.support.schedule import HOUR, Host, Open, ready_payloads
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


class DueHost:
    """A host before its first turn, whose entries are all due."""

    def __init__(self, host: Host) -> None:
        self.host, self.scheduler = host, host.scheduler
        self.connection = host.scheduler._control
        assert self.connection.poll()

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
def due(app: Qd, redis: Client, open_host: Open, monkeypatch: pytest.MonkeyPatch) -> Callable[..., DueHost]:
    monkeypatch.setattr(connection, "BEHIND", 3_600_000)
    timing = JustNow()

    def make(name: str = "web1") -> DueHost:
        entries = [replace(entry, timing=timing) for entry in app.schedule.entries()]
        for entry in entries:
            redis.call("HSETNX", "qd:ticks", entry.name, f"{(timing.base - 3600) * 1000} x hourly")
        return DueHost(open_host(name, entries=entries))

    return make


def ids(redis: Client) -> list[str]:
    return [str(job.id) for job in ready_payloads(redis)]


@pytest.mark.parametrize("by", ["a pause", "a note in Redis", "the keeper"])
def test_a_pause_just_before_the_tick_is_obeyed(app: Qd, report: Any, redis: Client, due: Any, by: str) -> None:
    events: list[object] = []
    app.on(JobQueueing)(events.append)
    app.schedule(report.bind(1), every=HOUR, name="stops")
    one = due()
    if by == "a pause":
        notes.pause(one.connection.store, ["stops"], by="ann", reason="stocktaking")
    elif by == "a note in Redis":
        redis.call("SET", "qd:down", '{"by": "ann", "reason": "new disks"}')
    else:
        one.scheduler.down = True
    one.turn()
    assert len(one.host.logged("schedule.skipped")) == 1
    assert (ready_payloads(redis), events) == ([], [])
    assert one.connection.states[0].last > 0


def test_a_job_that_cannot_be_made_fails_at_the_tick_and_blocks_no_other(
    app: Qd, server: Server, redis: Client, due: Any
) -> None:
    @app.job("mail")
    def mail(text: str) -> None: ...

    app.settings = dataclasses.replace(load(code={"url": server.url}, environ={}), max_payload=1000)
    app.schedule(mail.bind("x" * 2000), every=HOUR, name="bad")
    app.schedule(mail.bind("x"), every=HOUR, name="good")
    one = due()
    assert one.host.lines == []
    one.turn()
    assert "entry=bad" in one.host.logged("schedule.failed")[0]
    assert len(one.host.logged("schedule.failed")) == len(ready_payloads(redis)) == 1


# -- in batches


@pytest.fixture
def ten(app: Qd, report: Any, due: Any, monkeypatch: pytest.MonkeyPatch) -> DueHost:
    """Ten entries, claimed in four batches."""
    monkeypatch.setattr(scheduler, "AT_ONCE", 3)
    for n in range(10):
        app.schedule(report.bind(n), every=HOUR, name=f"e{n}")
    one: DueHost = due()
    return one


def test_all_claims_are_sent_before_the_first_reply(
    ten: DueHost, redis: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis.call("CLIENT", "PAUSE", 60_000, "WRITE")
    try:
        ten.after(4, lambda _: redis.call("CLIENT", "UNPAUSE"), monkeypatch)
        ten.turn()
    finally:
        redis.call("CLIENT", "UNPAUSE")
    assert len(ids(redis)) == 10
    assert [line.split("id=")[1].split()[0] for line in ten.host.logged("schedule.sent")] == ids(redis)


def test_app_code_between_claims_may_call_the_server(app: Qd, ten: DueHost, redis: Client) -> None:
    asked = list[float]()
    app.on(JobQueueing)(lambda event: asked.append(ten.connection.store.now()))
    ten.turn()
    assert len(ids(redis)) == 10
    assert len(ten.host.logged("schedule.sent")) == 10
    assert len(asked) == 10
    assert all(abs(each - time.time()) < HOUR for each in asked)


def test_a_connection_lost_during_claims_neither_loses_nor_doubles_jobs(
    ten: DueHost, redis: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    ten.after(2, lambda ticks: ticks.space.close(), monkeypatch)
    ten.turn()
    ten.host.turns(lambda: len(ten.host.logged("schedule.sent")) == 10)
    sent = [line.split("id=")[1].split()[0] for line in ten.host.logged("schedule.sent")]
    assert sorted(sent) == sorted(ids(redis))
    assert len({line.split("entry=")[1].split()[0] for line in ten.host.logged("schedule.sent")}) == 10
    assert len(ten.host.logged("redis.away")) == 1
