"""What an app sends: the payload, its queue, its delay, and the number of round trips."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import pytest

from qd import ArgumentError, Backoff, DeclarationError, Job, Qd
from qd.config.settings import ConnectionSettings
from qd.errors import ConfigError, ConnectionLost
from qd.events import JobQueued
from qd.payload.build import PayloadTemplate, make
from tests.support.fakes import FakeQd, settings

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
FIRST = [
    "uuid",
    "displayName",
    "job",
    "maxTries",
    "maxExceptions",
    "failOnTimeout",
    "backoff",
    "timeout",
    "data",
    "createdAt",
]
KEYS = ["due_ms", *FIRST, "id", "attempts", "delay"]


def welcome(to: str, subject: str = "Hello") -> str:
    return f"{subject}, {to}"


# -- the payload


def test_a_payload_has_laravels_keys_in_laravels_order(app: FakeQd):
    began = int(time.time())
    handle = app.job("mail.welcome")(welcome).dispatch("a@b.c")
    assert list(app.last) == KEYS
    assert app.last["id"] == handle.id
    assert re.fullmatch(r"[0-9A-Za-z]{32}", handle.id)
    assert UUID.fullmatch(app.last["uuid"])
    assert (app.last["job"], app.last["displayName"]) == ("mail.welcome", "mail.welcome")
    assert app.last["data"] == {"to": "a@b.c"}
    assert (app.last["attempts"], app.last["delay"], app.last["backoff"]) == (0, None, None)
    assert began <= app.last["createdAt"] <= app.last["due_ms"] / 1000 <= time.time()


def test_two_payloads_differ_only_in_ids_and_times(app: FakeQd):
    job = app.job("mail.welcome", tries=3, backoff=[1, 0.5], timeout=30, retry_for=60, tags=["a/b", "é"])(welcome)
    for _ in range(3):
        job.dispatch("a@b.c")
    first, second, third = [sent.read for sent in app.sent]
    for own in ("due_ms", "uuid", "id", "createdAt", "retryUntil"):
        values = [payload.pop(own) for payload in (first, second, third)]
        assert own in ("due_ms", "createdAt", "retryUntil") or len(set(values)) == 3
    assert first == second == third
    assert list(first) == [*FIRST[1:-1], "tags", "attempts", "delay"]


def test_a_skeleton_builds_the_same_payload_as_make():
    fixed = partial(make, "mail/é", max_tries=3, backoff=(1.0, 5.0), extra={"tags": ["a/b"]})
    own: dict[str, Any] = {"data": b'{"a":1}', "uuid": "UUID", "id": "ID", "created_at": 10}
    for until in (None, 20):
        template = PayloadTemplate(fixed, until is not None)
        filled = {template.filled(retry_until=until, **own) for _ in range(3)}
        assert filled == {fixed(retry_until=until, **own)}


def test_a_skeleton_updates_its_timestamp():
    fixed = partial(make, "mail", uuid="UUID", id="ID")
    template = PayloadTemplate(fixed, expires=True)
    moments = [(0, 20), (0, 20), (10, 20), (10, 20), (10, 21), (11, 21), (11, 21), (10, 20)]
    for n, (at, until) in enumerate(moments):
        own: dict[str, Any] = {"data": b"%d" % n, "created_at": at, "retry_until": until}
        assert template.filled(uuid="UUID", id="ID", **own) == fixed(**own)


def test_options_travel_in_the_payload(app: FakeQd):
    job = app.job(
        "mail.welcome", tries=5, backoff=[1, 5, 30], timeout=30, max_exceptions=2, fail_on_timeout=True, tags=["mail"]
    )(welcome)
    job.dispatch("a@b.c")
    payload = app.last
    assert (payload["maxTries"], payload["maxExceptions"], payload["failOnTimeout"]) == (5, 2, True)
    assert (payload["backoff"], payload["timeout"], payload["tags"]) == ("1,5,30", 30, ["mail"])


@pytest.mark.parametrize(
    ("options", "written"),
    [
        ({}, "1,2,4,8,16,32,64,128,256,512,600,600,600,600,600,600,600,600,600,600"),
        ({"tries": 0}, "1,2,4,8,16,32,64,128,256,512,600,600,600,600,600,600,600,600,600,600"),
        ({"tries": 4}, "1,2,4"),
        ({"tries": 1}, None),
        ({"tries": 4, "retry_for": 60}, "1,2,4,8,16,32,64,128,256,512,600,600,600,600,600,600,600,600,600,600"),
        ({"tries": 4, "backoff": Backoff(0.1, 10, 2)}, "0.1,1,2"),
        ({"tries": 2, "backoff": [1, 5, 30]}, "1,5,30"),
    ],
)
def test_a_payload_has_the_waits_before_the_tries_as_a_list(app: FakeQd, options, written):
    app.job("mail.welcome", **{"backoff": "exponential", **options})(welcome).dispatch("a@b.c")
    assert app.last["backoff"] == written


def test_only_a_jitter_that_the_declaration_does_not_have_travels(app: FakeQd):
    job = app.job("mail.welcome", backoff=Backoff(5, jitter=0.5), retry_on=OSError, fail_on=(ValueError,))(welcome)
    job.dispatch("a@b.c")
    assert list(app.last) == KEYS
    job.using(backoff=[1]).dispatch("a@b.c")
    assert list(app.last) == KEYS
    job.using(jitter=0).dispatch("a@b.c")
    assert (list(app.last), app.last["jitter"]) == ([*KEYS[:9], "jitter", *KEYS[9:]], 0)
    job.using(backoff=Backoff(jitter=0.25)).dispatch("a@b.c")
    assert app.last["jitter"] == 0.25


@pytest.mark.parametrize("name", ["retry_on", "fail_on"])
def test_types_of_errors_are_refused_where_they_would_have_to_travel(app: FakeQd, name):
    job = app.job("mail.welcome")(welcome)
    with pytest.raises(DeclarationError, match=f"takes no {name} .a payload carries no code.: set it in @app.job"):
        job.using(**{name: (OSError,)})  # type: ignore[arg-type]


def test_using_overrides_the_declaration(app: FakeQd):
    job = app.job("mail.welcome", tries=5, timeout=30, queue="mail")(welcome)
    job.using(tries=1, queue="high").dispatch("a@b.c")
    assert (app.last["maxTries"], app.last["timeout"], app.sent[-1].queue) == (1, 30, "high")
    job.dispatch("a@b.c")
    assert (app.last["maxTries"], app.sent[-1].queue) == (5, "mail")


def test_a_second_using_keeps_the_options_of_the_first(app: FakeQd):
    app.job("mail.welcome")(welcome).using(queue="high", delay=5).using(tries=3).dispatch("a@b.c")
    assert (app.sent[-1].queue, app.sent[-1].delay, app.last["maxTries"]) == ("high", 5.0, 3)


def test_a_fractional_declared_timeout_is_not_sent(app: FakeQd):
    job = app.job("mail.welcome", timeout=0.5)(welcome)
    job.dispatch("a@b.c")
    assert app.last["timeout"] is None
    job.using(timeout=1.5).dispatch("a@b.c")
    assert app.last["timeout"] == 2


def test_retry_for_counts_from_when_the_job_is_due(app: FakeQd):
    job = app.job("mail.welcome", retry_for=timedelta(hours=1))(welcome)
    began = int(time.time())
    job.dispatch("a@b.c")
    assert began + 3600 <= app.last["retryUntil"] <= time.time() + 3601
    job.using(delay=600).dispatch("a@b.c")
    assert began + 4200 <= app.last["retryUntil"] <= time.time() + 4201


# -- arguments


def test_defaults_are_not_sent(app: FakeQd):
    job = app.job("mail.welcome")(welcome)
    job.dispatch("a@b.c", subject="Hello")
    assert app.last["data"] == {"to": "a@b.c", "subject": "Hello"}

    @app.job("charge")
    class Charge(Job[None]):
        order_id: int
        currency: str = "EUR"

        def handle(self) -> None: ...

    Charge(order_id=7).dispatch()
    assert app.last["data"] == {"order_id": 7}
    Charge(order_id=7, currency="USD").dispatch()
    assert app.last["data"] == {"order_id": 7, "currency": "USD"}


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {}, "to"),
        (("a", "b", "c"), {}, "3"),
        (("a",), {"topic": "x"}, "topic"),
        ((7,), {}, "to"),
        ((object(),), {}, "to"),
    ],
)
def test_a_wrong_argument_raises_at_the_call(app: FakeQd, args, kwargs, words):
    job: Any = app.job("mail.welcome")(welcome)
    for send in (job.dispatch, job.bind, job.run):
        with pytest.raises(ArgumentError, match=words):
            send(*args, **kwargs)
    assert app.sent == []


def test_a_wrong_field_raises_at_dispatch(app: FakeQd):
    @app.job("price")
    class Price(Job[None]):
        amount: Decimal

        def handle(self) -> None: ...

    with pytest.raises(ArgumentError, match="amount"):
        Price(amount=Decimal("NaN")).dispatch()
    Price(amount=Decimal("9.99")).dispatch()
    assert app.last["data"] == {"amount": "9.99"}


def test_a_bound_call_keeps_the_values_it_was_given(app: FakeQd):
    names = ["a"]

    @app.job("names")
    def job(names: list[str]) -> None: ...

    call = job.bind(names)
    names.append("b")
    call.dispatch()
    assert app.last["data"] == {"names": ["a"]}


# -- delay


@pytest.mark.parametrize(("delay", "seconds"), [(5, 5.0), (0.25, 0.25), (timedelta(minutes=5), 300.0)])
def test_a_delayed_job_is_pushed_as_delayed(app: FakeQd, delay, seconds):
    app.job("mail.welcome")(welcome).using(delay=delay).dispatch("a@b.c")
    assert (app.sent[-1].delay, app.last["delay"]) == (seconds, None)


def test_a_datetime_is_accepted_as_a_delay(app: FakeQd):
    job = app.job("mail.welcome")(welcome)
    job.using(delay=datetime.now(UTC) + timedelta(minutes=1)).dispatch("a@b.c")
    delay = app.sent[-1].delay
    assert delay is not None
    assert 50 < delay <= 60


@pytest.mark.parametrize("delay", [0, timedelta(0), datetime(2020, 1, 1, tzinfo=UTC)])
def test_a_job_that_is_due_is_ready_at_once(app: FakeQd, delay):
    app.job("mail.welcome")(welcome).using(delay=delay).dispatch("a@b.c")
    assert app.sent[-1].delay is None


@pytest.mark.parametrize("delay", [-1, timedelta(seconds=-1), float("nan"), "soon", datetime(2030, 1, 1), True])
def test_an_invalid_delay_is_refused(app: FakeQd, delay):
    with pytest.raises(DeclarationError, match="delay"):
        app.job("mail.welcome")(welcome).using(delay=delay).dispatch("a@b.c")
    assert app.sent == []


def test_using_does_not_accept_raw(app: FakeQd):
    with pytest.raises(DeclarationError, match="raw"):
        app.job("mail.welcome")(welcome).using(raw=True)


@pytest.mark.parametrize("options", [{"dealy": 5}, {"keys": "a"}, {"tries": "x"}])
def test_options_of_using_are_checked(app: FakeQd, options):
    with pytest.raises(DeclarationError, match=next(iter(options))):
        app.job("mail.welcome")(welcome).using(**options)


# -- queue and connection


def test_queue_and_connection_default_to_the_configured_ones(app: FakeQd):
    job = app.job("mail.welcome")(welcome)
    job.dispatch("a@b.c")
    job.using(connection="other").dispatch("a@b.c")
    job.using(connection="other", queue="mail").dispatch("a@b.c")
    assert [(sent.connection, sent.queue) for sent in app.sent] == [
        ("redis", "default"),
        ("other", "elsewhere"),
        ("other", "mail"),
    ]


def test_an_unknown_connection_is_named(app: FakeQd):
    with pytest.raises(ConfigError, match=r"'othr'.*did you mean 'other'"):
        app.job("mail.welcome")(welcome).using(connection="othr").dispatch("a@b.c")


def test_a_connection_without_a_url_is_an_error_with_hints(app: FakeQd):
    app.settings = settings(redis=ConnectionSettings(name="redis"))
    with pytest.raises(ConfigError, match=r"QD_REDIS_URL.*embedded:"):
        app.job("mail.welcome")(welcome).dispatch("a@b.c")


def test_new_settings_apply_from_the_next_call(app: FakeQd):
    job = app.job("mail.welcome")(welcome)
    job.dispatch("a@b.c")
    app.settings = settings(redis=ConnectionSettings(name="redis", url="redis://x.invalid", queue="new"))
    job.dispatch("a@b.c")
    assert [sent.queue for sent in app.sent] == ["default", "new"]
    assert [queue.closed for queue in app.opened] == [True, False]


def test_errors_of_the_connection_reach_the_caller(app: FakeQd):
    job = app.job("mail.welcome")(welcome)
    job.dispatch("a@b.c")
    app.opened[0].error = ConnectionLost("away")
    with pytest.raises(ConnectionLost, match="away"):
        job.dispatch("a@b.c")


# -- many jobs


def test_many_jobs_are_sent_in_one_round_trip_per_connection(app: FakeQd):
    job = app.job("mail.welcome", queue="mail")(welcome)
    handles = app.dispatch(
        job.bind("a"), job.using(delay=5).bind("b"), job.using(connection="other").bind("c"), job.bind("d")
    )
    assert [sent.read["data"]["to"] for sent in app.sent] == ["a", "b", "d", "c"]
    assert [sent.trip for sent in app.sent] == [1, 1, 1, 1]
    assert [sent.delay for sent in app.sent] == [None, 5.0, None, None]
    by_name = {sent.read["data"]["to"]: sent.read["id"] for sent in app.sent}
    assert [handle.id for handle in handles] == [by_name[name] for name in "abcd"]


def test_function_and_class_jobs_can_be_sent_together(app: FakeQd):
    @app.job("charge", queue="payments")
    class Charge(Job[None]):
        order_id: int

        def handle(self) -> None: ...

    app.dispatch(app.job("mail.welcome")(welcome).bind("a"), Charge(order_id=7).using(delay=3))
    assert [(sent.queue, sent.read["data"], sent.delay) for sent in app.sent] == [
        ("default", {"to": "a"}, None),
        ("payments", {"order_id": 7}, 3.0),
    ]


def test_the_same_call_twice_is_two_jobs(app: FakeQd):
    call = app.job("mail.welcome")(welcome).bind("a")
    first, second = app.dispatch(call, call)
    assert first.id != second.id
    assert len({sent.payload for sent in app.sent}) == 2


def test_nothing_is_sent_when_one_of_many_is_wrong(app: FakeQd):
    job: Any = app.job("mail.welcome")(welcome)
    with pytest.raises(ArgumentError, match=r"job\.bind"):
        app.dispatch(job.bind("a"), job)
    with pytest.raises(DeclarationError, match="delay"):
        app.dispatch(job.bind("a"), job.using(delay=-1).bind("b"))
    assert app.sent == []


def test_each_of_many_jobs_has_the_payload_of_a_single_dispatch(app: FakeQd, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(time, "time", lambda: 1_795_225_685.4)
    plain, expiring = app.job("mail.welcome")(welcome), app.job("mail.last", retry_for=60)(welcome)
    calls = [(job, name) for name in "abc" for job in (plain, expiring.using(delay=5), expiring)]
    handles = app.dispatch(*[job.bind(name) for job, name in calls])
    for job, name in calls:
        job.dispatch(name)
    many, alone = [sent.read for sent in app.sent[:9]], [sent.read for sent in app.sent[9:]]
    assert [list(payload) for payload in many] == [list(payload) for payload in alone]
    assert [payload["id"] for payload in many] == [handle.id for handle in handles]
    names = [(payload.pop("uuid"), payload.pop("id")) for payload in [*many, *alone]]
    assert len({uuid for uuid, _ in names}) == len({id for _, id in names}) == 18
    assert all(UUID.fullmatch(uuid) and re.fullmatch("[0-9A-Za-z]{32}", id) for uuid, id in names)
    assert many == alone


def test_dispatching_no_jobs_is_allowed(app: FakeQd):
    assert app.dispatch() == []
    assert app.opened == []


# -- from asyncio


def test_adispatch_sends_in_another_thread(app: FakeQd):
    @app.job("charge")
    class Charge(Job[None]):
        order_id: int

        def handle(self) -> None: ...

    async def main() -> list[str]:
        job = app.job("mail.welcome")(welcome)
        handles = await asyncio.gather(
            job.adispatch("a"),
            job.using(delay=5).adispatch("b"),
            job.bind("c").adispatch(),
            Charge(order_id=7).adispatch(),
        )
        return [handle.id for handle in handles]

    ids = asyncio.run(main())
    assert {sent.read["id"] for sent in app.sent} == set(ids)
    assert threading.get_ident() not in {queue.made_by[1] for queue in app.opened}


# -- named queues


def test_a_php_string_job_can_be_sent(app: FakeQd):
    handle = app.queue("reports").push(r"App\Jobs\Report@fire", {"month": 7})
    payload = app.last
    assert list(payload) == KEYS[1:]
    assert (payload["job"], payload["displayName"]) == (r"App\Jobs\Report@fire", r"App\Jobs\Report")
    assert (payload["data"], payload["id"], app.sent[-1].queue) == ({"month": 7}, handle.id, "reports")


def test_a_string_job_without_data_has_laravels_empty_string(app: FakeQd):
    app.queue("reports").push("Legacy")
    assert app.last["data"] == ""
    app.queue("reports").push("Legacy", None)
    assert app.last["data"] is None


def test_a_string_job_can_have_a_delay_queue_and_connection(app: FakeQd):
    app.queue("reports", "other").push("Legacy", delay=timedelta(seconds=3))
    assert (app.sent[-1].connection, app.sent[-1].delay) == ("other", 3.0)


def test_data_that_json_cannot_represent_is_refused(app: FakeQd):
    for data in (float("nan"), {"at": datetime(2030, 1, 1)}, object()):
        with pytest.raises(ArgumentError):
            app.queue("reports").push("Legacy", data)
    assert app.sent == []


def test_raw_bytes_are_sent_unchanged(app: FakeQd):
    app.queue("reports").push_raw(b"\xffwhatever")
    app.queue("reports").push_raw(b"{}", delay=5)
    assert [(sent.payload, sent.delay) for sent in app.sent] == [(b"\xffwhatever", None), (b"{}", 5.0)]
    with pytest.raises(ArgumentError, match="str"):
        app.queue("reports").push_raw("{}")  # type: ignore[arg-type]


def test_size_counts_waiting_and_running_jobs(app: FakeQd):
    queue = app.queue("reports")
    queue.push("A")
    queue.push("B", delay=5)
    assert queue.size() == 3  # FakeQueue always reports one reserved job
    assert queue.clear() == 2
    assert app.opened[0].cleared == ["reports"]


# -- JobQueued


def test_every_way_to_send_emits_job_queued(app: FakeQd):
    events: list[JobQueued] = []
    app.on(JobQueued)(events.append)
    job = app.job("mail.welcome", queue="mail")(welcome)
    first = job.using(delay=5).dispatch("a")
    (second,) = app.dispatch(job.bind("b"))
    third = app.queue("php").push("Legacy")
    app.queue("php").push_raw(b"{}")
    assert [(event.queue, event.name, event.id, event.delay) for event in events] == [
        ("mail", "mail.welcome", first.id, 5.0),
        ("mail", "mail.welcome", second.id, None),
        ("php", "Legacy", third.id, None),
        ("php", None, None, None),
    ]
    assert [event.payload for event in events] == [sent.payload for sent in app.sent]


def test_job_queued_is_not_emitted_for_unsent_jobs(app: FakeQd):
    events: list[JobQueued] = []
    app.on(JobQueued)(events.append)
    job = app.job("mail.welcome")(welcome)
    job.dispatch("a")
    app.opened[0].error = ConnectionLost("away")
    for send in (lambda: job.dispatch("b"), lambda: app.dispatch(job.bind("b"))):
        with pytest.raises(ConnectionLost):
            send()
    assert len(events) == 1


# -- a call by name, as the command line makes it


def test_a_job_can_be_called_by_name(app: FakeQd):
    job = app.job("mail.welcome", queue="mail")(welcome)
    app.call("mail.welcome", b'{"to":"a"}').dispatch()
    assert (app.last["data"], app.sent[-1].queue) == ({"to": "a"}, "mail")
    assert app.call("mail.welcome", json.dumps({"to": "you"}).encode()).run() == job("you")


def test_only_the_app_itself_sends(app: FakeQd):
    """A function is sent only by the app that declared it."""
    other = FakeQd()
    other.dispatch(app.job("mail.welcome")(welcome).bind("a"))
    assert (len(app.sent), len(other.sent)) == (0, 1)
    assert isinstance(other, Qd)
