"""app.fake(): nothing is sent, and the jobs that would be sent are plain records."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from qd import ArgumentError, DeclarationError, Job, Qd, Queue
from qd.errors import ConfigError, JobFailedError, QdError
from qd.events import JobQueued
from qd.testing import Dispatched, Fake, Pushed


@pytest.fixture
def app(tmp_path, monkeypatch) -> Qd:
    """An app that cannot be configured: reading a file, a variable or a server would raise."""
    (tmp_path / "qd.toml").write_text("this is no TOML")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QD_REDIS_URL", "redis://nowhere.invalid:1")
    return Qd()


def declared(app: Qd) -> tuple[Any, Any]:
    @app.job("mail.welcome", queue="mail", tries=3)
    def welcome(to: str, when: datetime | None = None) -> None:
        raise AssertionError("it ran")

    @app.job("pay.charge")
    class Charge(Job[None]):
        order_id: int
        currency: str = "EUR"

        def handle(self) -> None:
            raise AssertionError("it ran")

    return welcome, Charge


def test_without_a_fake_the_app_cannot_send(app: Qd):
    welcome, _ = declared(app)
    with pytest.raises(ConfigError):
        welcome.dispatch("a@b.c")


def test_dispatched_jobs_are_a_list_of_plain_records(app: Qd):
    welcome, charge = declared(app)
    with app.fake() as fake:
        first = welcome.dispatch("a@b.c")
        second = welcome.using(delay=timedelta(minutes=5), queue="high").dispatch(to="b@b.c")
        charge(order_id=7).dispatch()
    assert fake.dispatched(welcome) == [
        Dispatched({"to": "a@b.c"}, {"queue": "mail", "tries": 3}, "mail.welcome", first.id),
        Dispatched({"to": "b@b.c"}, {"queue": "high", "tries": 3, "delay": 300.0}, "mail.welcome", second.id),
    ]
    assert [sent.arguments for sent in fake.dispatched(charge)] == [{"order_id": 7}]
    assert [sent.id for sent in fake.dispatched(welcome)] == [first.id, second.id]
    assert len({sent.id for sent in fake.all()}) == 3


def test_recorded_arguments_are_those_that_the_worker_would_get(app: Qd):
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    welcome, _ = declared(app)
    with app.fake() as fake:
        welcome.dispatch("a@b.c", when=moment)
    (sent,) = fake.dispatched(welcome)
    assert sent.arguments == {"to": "a@b.c", "when": moment}


def test_a_raw_job_shows_its_one_argument(app: Qd):
    @app.job("hook", raw=True)
    def hook(body: Any) -> None: ...

    with app.fake() as fake:
        hook.dispatch([1, {"a": None}])
    assert fake.dispatched(hook)[0].arguments == {"body": [1, {"a": None}]}


def test_a_wrong_value_raises_and_nothing_is_recorded(app: Qd):
    welcome, _ = declared(app)
    with app.fake() as fake:
        with pytest.raises(ArgumentError, match="'to'"):
            welcome.dispatch(7)
        with pytest.raises(DeclarationError, match="time zone"):
            welcome.using(delay=datetime(2030, 1, 1)).dispatch("a@b.c")
        with pytest.raises(ArgumentError, match="max_payload"):
            welcome.dispatch("x" * (1 << 20))
    assert fake.all() == []


def test_bulk_async_and_threaded_dispatches_are_recorded(app: Qd):
    welcome, charge = declared(app)
    with app.fake() as fake:
        handles = app.dispatch(welcome.bind("1"), charge(order_id=2))
        asyncio.run(welcome.adispatch("3"))
        thread = threading.Thread(target=welcome.dispatch, args=("4",))
        thread.start()
        thread.join()
    assert [sent.name for sent in fake.all()] == ["mail.welcome", "pay.charge", "mail.welcome", "mail.welcome"]
    assert [sent.id for sent in fake.all()][:2] == [handle.id for handle in handles]


def test_jobs_sent_by_name_are_recorded_separately(app: Qd):
    with app.fake() as fake:
        app.queue("mail").push(r"App\Jobs\Report@fire", {"month": 7}, delay=3)
        app.queue("mail").push("Legacy")
        app.queue("mail", connection="other").push_raw(b"{}")
    assert fake.pushed("mail") == [
        Pushed("mail", r"App\Jobs\Report@fire", {"month": 7}, 3.0),
        Pushed("mail", "Legacy", "", 0.0),
        Pushed("mail", "", b"{}", 0.0),
    ]
    assert fake.pushed("default") == []
    assert fake.all() == []


def test_calls_that_need_a_server_raise(app: Qd):
    with app.fake(), pytest.raises(QdError, match="have no server"):
        app.queue("mail").size()


def test_job_queued_is_not_emitted(app: Qd):
    welcome, _ = declared(app)
    heard: list[JobQueued] = []
    app.on(JobQueued)(heard.append)
    with app.fake():
        welcome.dispatch("a@b.c")
    assert heard == []


def test_an_inner_fake_replaces_the_outer_one_temporarily(app: Qd):
    welcome, _ = declared(app)
    with app.fake() as outer:
        welcome.dispatch("1")
        with app.fake() as inner:
            welcome.dispatch("2")
        welcome.dispatch("3")
    assert [sent.arguments["to"] for sent in outer.dispatched(welcome)] == ["1", "3"]
    assert [sent.arguments["to"] for sent in inner.dispatched(welcome)] == ["2"]
    with pytest.raises(ConfigError):
        welcome.dispatch("4")


def test_after_an_error_in_the_block_the_app_is_restored(app: Qd):
    welcome, _ = declared(app)
    with pytest.raises(ZeroDivisionError), app.fake():
        raise ZeroDivisionError
    with pytest.raises(ConfigError):
        welcome.dispatch("4")


def test_a_fake_can_be_cleared(app: Qd):
    welcome, _ = declared(app)
    with app.fake() as fake:
        welcome.dispatch("1")
        fake.clear()
        welcome.dispatch("2")
    assert [sent.arguments for sent in fake.dispatched(welcome)] == [{"to": "2"}]


@pytest.mark.parametrize("stranger", ["function", "other app", "undeclared class", "name"])
def test_querying_an_unknown_job_raises(app: Qd, stranger: str):
    """Otherwise the list would always be empty, and a test that asserts `== []` could not fail."""

    class Undeclared(Job[None]): ...

    others = {
        "function": lambda: None,
        "other app": declared(Qd())[0],
        "undeclared class": Undeclared,
        "name": "mail.welcome",
    }
    declared(app)
    with app.fake() as fake, pytest.raises(ArgumentError, match=r"is no.* job of this app"):
        fake.dispatched(others[stranger])


def test_commands_are_queried_by_their_class(app: Qd):
    @dataclass
    class SendInvoice:
        order_id: int
        copies: int = 1

    app.map(SendInvoice, lambda command: None, "shop.invoice", queue="mail")
    with app.fake() as fake:
        app.send(SendInvoice(order_id=7))
    (sent,) = fake.dispatched(SendInvoice)
    assert (sent.arguments, sent.options, sent.name) == ({"order_id": 7}, {"queue": "mail"}, "shop.invoice")


def test_a_connection_that_only_production_knows_can_be_named(app: Qd):
    welcome, _ = declared(app)
    with app.fake() as fake:
        welcome.using(connection="sqs").dispatch("a@b.c")
    assert fake.dispatched(welcome)[0].options.get("connection") == "sqs"


def test_the_block_gets_the_fake(app: Qd):
    with app.fake() as fake:
        assert isinstance(fake, Fake)
        assert repr(fake) == "<fake: 0 jobs>"


def test_an_after_commit_job_is_recorded_after_the_commit_and_not_after_a_rollback(app: Qd):
    welcome, _ = declared(app)
    after: list[Callable[[], object]] = []

    def open_one(act: Callable[[], object]) -> bool:
        after.append(act)
        return True

    app._transactions.append(open_one)
    with app.fake() as fake:
        welcome.using(after_commit=True).dispatch("a@b.c")
        assert fake.all() == []
        after[0]()
    assert [sent.arguments for sent in fake.all()] == [{"to": "a@b.c"}]


def test_a_chain_is_a_record_and_its_first_job_is_dispatched(app: Qd):
    welcome, charge = declared(app)
    with app.fake() as fake:
        sent = app.chain(
            charge(order_id=1), welcome.using(delay=5, tries=9).bind("a@b.c"), catch=welcome.bind("sorry")
        ).dispatch()
        app.chain(charge(order_id=2), welcome.bind("b@b.c")).dispatch()
    first, second = fake.chains
    assert [(job.name, job.arguments) for job in first.jobs] == [
        ("pay.charge", {"order_id": 1}),
        ("mail.welcome", {"to": "a@b.c"}),
    ]
    assert first.jobs[1].options == {"queue": "mail", "tries": 9, "delay": 5.0}
    assert first.catch is not None
    assert first.catch.arguments == {"to": "sorry"}
    assert second.catch is None
    assert fake.dispatched(charge) == [first.jobs[0], second.jobs[0]]
    assert fake.dispatched(charge)[0].id == sent.id
    assert fake.dispatched(welcome) == []


def test_a_batch_is_a_record_and_its_jobs_are_dispatched(app: Qd):
    welcome, charge = declared(app)
    with app.fake() as fake:
        sent = app.batch(
            charge(order_id=1),
            charge(order_id=2),
            then=welcome.bind("done"),
            finally_=welcome.bind("over"),
            name="night",
        ).dispatch()
        sent.add(charge(order_id=3))
        assert (sent.total, sent.pending, sent.finished, sent.name) == (3, 3, False, "night")
        assert sent.cancel()
        assert sent.cancelled
        app.batch(charge(order_id=4), catch=welcome.bind("sorry"), allow_failures=True).dispatch()
    first, second = fake.batches
    assert [job.arguments for job in first.jobs] == [{"order_id": 1}, {"order_id": 2}, {"order_id": 3}]
    assert (first.name, first.allow_failures, first.id, first.catch) == ("night", False, sent.id, None)
    assert first.then is not None
    assert first.then.arguments == {"to": "done"}
    assert first.finally_ is not None
    assert first.finally_.arguments == {"to": "over"}
    assert (second.allow_failures, second.then) == (True, None)
    assert len(fake.dispatched(charge)) == 4
    assert fake.dispatched(welcome) == []
    fake.clear()
    assert fake.batches == []


def test_a_keyed_job_can_be_moved_and_cancelled(app: Qd):
    welcome, _ = declared(app)
    with app.fake() as fake:
        remind = welcome.using(key="order:42", delay=1800)
        keyed = app.keyed(welcome, "order:42")
        assert (keyed.due(), keyed.cancel(), keyed.reschedule(5)) == (None, False, False)
        remind.dispatch("a@b.c")
        remind.dispatch("b@b.c")
        assert [sent.arguments["to"] for sent in fake.dispatched(welcome)] == ["b@b.c"]
        due = keyed.due()
        assert due is not None
        assert 1790 < (due - datetime.now(UTC)).total_seconds() < 1801
        assert keyed.reschedule(5)
        assert [sent.options.get("delay") for sent in fake.dispatched(welcome)] == [5.0]
        assert keyed.cancel()
        assert not keyed.cancel()
    assert fake.dispatched(welcome) == []


def test_a_handle_reports_the_place_of_its_job_and_cancels_it(app: Qd):
    welcome, charge = declared(app)
    with app.fake() as fake:
        now, later = welcome.dispatch("a@b.c"), welcome.using(delay=5).dispatch("b@b.c")
        assert (now.status(), later.status()) == ("ready", "delayed")
        assert later.cancel()
        assert (later.status(), later.cancel()) == ("unknown", False)
        kept = charge(order_id=7).using(result_ttl=60).dispatch()
        assert kept.cancel()
        assert kept.status() == "failed"
        with pytest.raises(JobFailedError, match="cancelled"):
            kept.result()
        waits = charge(order_id=8).using(result_ttl=60).dispatch()
        with pytest.raises(TimeoutError):
            waits.result(timeout=0)
    assert [sent.arguments for sent in fake.all()] == [{"to": "a@b.c"}, {"order_id": 8}]


def test_a_custom_send_is_not_called(app: Qd):
    @app.job("sms")
    class Sms(Job[None]):
        to: str

        def handle(self) -> None: ...

        def send(self, connection: Queue) -> None:
            raise AssertionError("it was sent")

    with app.fake() as fake:
        Sms(to="1").dispatch()
        app.dispatch(Sms(to="2"), Sms(to="3"))
    assert [sent.arguments["to"] for sent in fake.dispatched(Sms)] == ["1", "2", "3"]
