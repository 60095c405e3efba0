"""What a job becomes before it is sent: relations, display names, and jobs that wait for a commit."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from qd import ArgumentError, Call, DeclarationError, Job, Qd
from qd.config.settings import SigningSettings
from qd.dispatch.route import Message, name_of
from qd.payload.build import without_due
from qd.payload.format import ChainedJob, Relations, read
from qd.payload.signing import Signing
from tests.support.fakes import FakeQd

TIES = Relations(batch="b1", chain=(ChainedJob("mail", 5.0, '{"job":"next/é"}'),))


def made(app: FakeQd, call: Call[None], relations: Relations | None = None) -> Message:
    _, plan, data = call._to_send()
    return app._send.prepare(plan, data, relations)


def charge(order_id: int, note: str = "none") -> None: ...


def test_a_message_is_prepared_without_sending_it(app: FakeQd):
    job = app.job("shop.charge", queue="shop")(charge)
    parcel = made(app, job.using(delay=5).bind(42))
    assert not app.sent
    assert (parcel.connection, parcel.queue, parcel.delay, parcel.name) == ("redis", "shop", 5.0, "shop.charge")
    assert json.loads(parcel.body)["id"] == parcel.id
    assert json.loads(parcel.body)["uuid"] == parcel.uuid
    assert app._send.submit([parcel]) == [parcel.id]
    assert (app.sent[0].payload, app.sent[0].delay) == (parcel.body, 5.0)
    assert 4.0 <= json.loads(parcel.body)["due_ms"] / 1000 - json.loads(parcel.body)["createdAt"] <= 6.0


def test_a_message_as_a_chained_job_has_the_same_payload_but_is_not_due_yet(app: FakeQd):
    parcel = made(app, app.job("shop.charge")(charge).bind(42, note="é"))
    assert parcel.link == ChainedJob("default", 0.0, without_due(parcel.body).decode())
    assert "due_ms" not in parcel.link.payload


@pytest.mark.parametrize("signed", [False, True])
def test_relations_come_before_the_id(app: FakeQd, signed: bool):
    if signed:
        app.settings = replace(app.settings, signing=SigningSettings(keys=("k1:secret",)))
    job = app.job("shop.charge", tags=["a"])(charge)
    for _ in range(3):  # the first payload of a plan is built differently from later ones
        parcel = made(app, job.bind(42), TIES)
        payload = read(parcel.body)
        assert payload.qd == TIES
        assert (payload.id, payload.uuid, payload.attempts) == (parcel.id, parcel.uuid, 0)
        assert [*json.loads(parcel.body)][-5:] == ["tags", "qd", "id", "attempts", "delay"]
        if signed:
            Signing(["k1:secret"]).check(payload)


def test_a_plain_job_has_no_relations(app: FakeQd):
    app.job("shop.charge")(charge).dispatch(42)
    assert "qd" not in app.last


def test_relations_of_the_declaration_and_of_a_chain_are_combined(app: FakeQd):
    job = app.job("shop.charge", unique="order:{order_id}", unique_until="start", result_ttl=60)(charge)
    relations = made(app, job.bind(42), TIES).relations
    assert relations == Relations(
        unique="shop.charge:order:42", until="start", result=60.0, batch=TIES.batch, chain=TIES.chain
    )


def test_a_key_belongs_to_its_job(app: FakeQd):
    job = app.job("shop.charge")(charge)
    parcel = made(app, job.using(key="order:42", delay=5).bind(42))
    assert parcel.relations == Relations(key=f"00000.{parcel.id[:16]} shop.charge:order:42")


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("order:42", "j:order:42"),
        ('a b/"é', "j:a%20b%2F%22%C3%A9"),
        ("x" * 300, "j:xxx"),
    ],
)
def test_a_key_is_short_and_printable(key: str, name: str):
    found = name_of("j", key)
    assert found.startswith(name)
    assert len(found) <= 200
    assert name_of("j", key + "x") != found


def test_a_key_and_unique_cannot_be_combined(app: FakeQd):
    job = app.job("shop.charge", unique="{order_id}")(charge)
    with pytest.raises(DeclarationError, match=r"job 'shop\.charge' has unique= and is sent with key='a'"):
        job.using(key="a").dispatch(42)
    assert not app.sent


@pytest.mark.parametrize(
    "options", [{"key": ""}, {"key": " "}, {"key": 42}, {"after_commit": 1}, {"unique_for": 0, "unique": "x"}]
)
def test_an_unknown_option_is_refused_by_name(app: FakeQd, options: dict[str, Any]):
    job = app.job("shop.charge")(charge)
    with pytest.raises(DeclarationError, match=f"option {next(iter(options))} of"):
        job.using(**options)


def test_keyed_requires_a_job_of_this_app(app: FakeQd):
    with pytest.raises(ArgumentError, match="is not a job of this app"):
        app.keyed(charge, "order:42")  # type: ignore[arg-type]


# -- display names


def test_the_display_name_is_sent(app: FakeQd):
    app.job("shop.charge", display_name="Charge a card")(charge).dispatch(42)
    assert (app.last["displayName"], app.last["job"]) == ("Charge a card", "shop.charge")


def test_the_display_name_can_contain_arguments(app: FakeQd):
    job = app.job("shop.charge", display_name="Charge {order_id} ({note}) {{}}")(charge)
    for order, note in ((42, "é"), (43, "/x"), (44, "y")):
        job.dispatch(order, note=note)
        assert app.last["displayName"] == f"Charge {order} ({note}) {{}}"
        assert app.last["data"] == {"order_id": order, "note": note}
    job.dispatch(42)
    assert app.last["displayName"] == "Charge 42 (none) {}"


def test_the_display_name_of_a_class_job_can_contain_fields(app: FakeQd):
    @app.job("shop.pay", display_name="Pay {order_id} in {currency}")
    class Pay(Job[None]):
        order_id: int
        currency: str = "EUR"

        def handle(self) -> None: ...

    Pay(order_id=7).dispatch()
    assert app.last["displayName"] == "Pay 7 in EUR"


@pytest.mark.parametrize("option", ["unique", "display_name"])
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("order:{order}", r"no parameter 'order' \(did you mean 'order_id'\?\)"),
        ("order:{order_id!r}", "more than a name"),
        ("order:{order_id:03}", "more than a name"),
        ("order:{order_id.x}", "more than a name"),
        ("order:{}", "more than a name"),
        ("order:{order_id", "expected '}'"),
    ],
)
def test_a_wrong_display_name_is_refused_at_the_declaration(app: FakeQd, option: str, text: str, reason: str):
    options: Any = {option: text}
    with pytest.raises(DeclarationError, match=rf"option {option} of job '.*charge'.*{reason}"):
        app.job("shop.charge", **options)(charge)
    job = app.job("shop.other")(charge)
    with pytest.raises(DeclarationError, match=option):
        job.using(**options)


# -- after the commit


class Transaction:
    """Reports its commit as Django and SQLAlchemy do; `open`: whether a transaction is open."""

    def __init__(self, app: Qd) -> None:
        self.open = True
        self.acts: list[Callable[[], object]] = []
        app._transactions.append(self._offered)

    def _offered(self, act: Callable[[], object]) -> bool:
        if self.open:
            self.acts.append(act)
        return self.open

    def commit(self) -> None:
        acts, self.acts = self.acts, []
        for act in acts:
            act()


def test_after_commit_waits_for_the_commit(app: FakeQd):
    transaction = Transaction(app)
    handle = app.job("shop.charge")(charge).using(after_commit=True).dispatch(42)
    assert not app.sent
    transaction.commit()
    assert [sent.read["id"] for sent in app.sent] == [handle.id]


def test_a_rollback_sends_nothing(app: FakeQd):
    transaction = Transaction(app)
    job = app.job("shop.charge")(charge).using(after_commit=True)
    app.dispatch(job.bind(1), job.bind(2))
    transaction.acts.clear()
    transaction.commit()
    assert not app.sent


def test_after_commit_jobs_of_a_bulk_are_sent_together_after_the_commit(app: FakeQd):
    transaction, job = Transaction(app), app.job("shop.charge")(charge)
    waiting = job.using(after_commit=True)
    handles = app.dispatch(waiting.bind(1), job.bind(2), waiting.bind(3))
    assert [sent.read["id"] for sent in app.sent] == [handles[1].id]
    transaction.commit()
    assert [sent.read["data"]["order_id"] for sent in app.sent] == [2, 1, 3]
    assert [sent.trip for sent in app.sent] == [1, 2, 2]


def test_without_a_transaction_after_commit_sends_at_once(app: FakeQd):
    transaction = Transaction(app)
    transaction.open = False
    app.job("shop.charge")(charge).using(after_commit=True).dispatch(42)
    assert len(app.sent) == 1


def test_errors_are_raised_at_dispatch_and_not_at_the_commit(app: FakeQd):
    transaction, job = Transaction(app), app.job("shop.charge")(charge).using(after_commit=True)
    with pytest.raises(DeclarationError, match=r"option delay of job 'shop\.charge'"):
        job.using(delay=-1).dispatch(42)
    assert not transaction.acts
