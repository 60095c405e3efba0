"""Commands and their handlers; the app's events and their listeners, queued or not."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from qd import ArgumentError, Call, DeclarationError, current_job, provided
from qd.errors import UnknownParameters
from qd.events import Event, JobFailed
from tests.support.fakes import FakeQd


@dataclass
class SendInvoice:
    order_id: int
    copies: int = 1
    to: list[str] = field(default_factory=list[str])


class Refund(msgspec.Struct):
    order_id: int
    reason: str = "none"
    lines: list[int] = msgspec.field(default_factory=list)


class Attr:
    def __init__(self, name: str, default: Any) -> None:
        self.name, self.alias, self.default, self.init, self.type = name, name.lstrip("_"), default, True, "int"


class NothingType:
    """The name that attrs uses for a missing default."""


class Attrs:
    """A class like those of attrs, without attrs."""

    __attrs_attrs__ = (Attr("_order_id", NothingType()), Attr("copies", 1))

    def __init__(self, order_id: int, copies: int = 1) -> None:
        self._order_id, self.copies = order_id, copies


class Session: ...


class OrderPaid(Event):
    order_id: int
    currency: str = "EUR"


class OrderPaidTwice(OrderPaid):
    times: int = 2


# -- commands


def send_invoice(command: SendInvoice) -> str:
    return f"invoice {command.order_id} x{command.copies} to {command.to}"


def test_a_command_travels_as_its_fields_under_the_name_of_its_class(app: FakeQd):
    app.map(SendInvoice, send_invoice, queue="mail", tries=3)
    sent = app.send(SendInvoice(7))
    (one,) = app.sent
    assert (one.queue, one.read["job"]) == ("mail", f"{__name__}.SendInvoice")
    assert (one.read["data"], one.read["maxTries"], one.read["id"]) == ({"order_id": 7, "to": []}, 3, sent.id)


def test_the_handler_gets_the_whole_command(app: FakeQd):
    app.map(SendInvoice, send_invoice, "mail.invoice")
    call = app.bind(SendInvoice(7, copies=2, to=["ada"]))
    assert isinstance(call, Call)
    assert call.run() == "invoice 7 x2 to ['ada']"
    assert app.call("mail.invoice", b'{"order_id":8}').run() == "invoice 8 x1 to []"


def test_a_bound_command_is_a_call(app: FakeQd):
    app.map(SendInvoice, send_invoice, "mail.invoice")
    app.dispatch(app.bind(SendInvoice(1)), app.bind(SendInvoice(2)).using(queue="high", delay=5))
    assert [(sent.queue, sent.delay, sent.trip) for sent in app.sent] == [("default", None, 1), ("high", 5, 1)]


@pytest.mark.parametrize(
    ("kind", "given", "data"),
    [
        (Refund, Refund(7), {"order_id": 7, "lines": []}),
        (Refund, Refund(7, "broken", [1]), {"order_id": 7, "reason": "broken", "lines": [1]}),
        (Attrs, Attrs(7), {"order_id": 7}),
        (Attrs, Attrs(7, 2), {"order_id": 7, "copies": 2}),
    ],
)
def test_structs_and_attrs_classes_are_commands_too(app: FakeQd, kind: type, given: Any, data: dict[str, Any]):
    seen: list[Any] = []
    app.map(kind, seen.append, "shop.command")
    app.send(given)
    assert app.sent[0].read["data"] == data
    app.bind(given).run()
    assert type(seen[0]) is kind
    assert vars_of(seen[0]) == vars_of(given)


def vars_of(thing: Any) -> dict[str, Any]:
    return msgspec.structs.asdict(thing) if isinstance(thing, msgspec.Struct) else vars(thing)


def test_a_handler_class_is_instantiated_for_each_command(app: FakeQd):
    class Invoices:
        def __init__(self) -> None:
            self.seen: list[int] = []

        def handle(self, command: SendInvoice, session: Session = provided()) -> tuple[list[int], str]:
            self.seen.append(command.order_id)
            return self.seen, type(session).__name__

    app.provide(Session, Session)
    app.map(SendInvoice, Invoices)
    assert app.bind(SendInvoice(1)).run() == ([1], "Session")
    assert app.bind(SendInvoice(2)).run() == ([2], "Session")


def test_a_handler_can_be_async_and_have_provided_parameters(app: FakeQd):
    async def handler(command: SendInvoice, session: Session = provided(), other: int = 3) -> tuple[int, str, int]:
        return command.order_id, type(session).__name__, other

    app.provide(Session, Session)
    app.map(SendInvoice, handler)
    assert app.bind(SendInvoice(7)).run() == (7, "Session", 3)
    declared = app._registry.get(f"{__name__}.SendInvoice")
    assert declared is not None
    assert declared.is_async
    with pytest.raises(UnknownParameters, match="no parameter 'other'"):
        app.call(f"{__name__}.SendInvoice", b'{"order_id":7,"other":4}')


def test_wrong_values_raise_at_dispatch(app: FakeQd):
    app.map(SendInvoice, send_invoice)
    wrong: Any = "seven"
    with pytest.raises(
        ArgumentError, match=r"job '.*SendInvoice': argument 'order_id' cannot be sent: expected int, got str"
    ):
        app.send(SendInvoice(wrong))


def test_a_command_without_a_handler_is_an_error(app: FakeQd):
    app.map(SendInvoice, send_invoice)
    with pytest.raises(ArgumentError, match=r"Refund has no handler: call app.map\(Refund, ...\) first"):
        app.send(Refund(7))


def no_arguments() -> None: ...


class NoHandle: ...


class NeedsMore:
    def __init__(self, url: str) -> None: ...

    def handle(self, command: SendInvoice) -> None: ...


def clashing(command: SendInvoice, copies: int) -> None: ...


def generator(command: SendInvoice) -> Any:
    yield


@pytest.mark.parametrize(
    ("kind", "handler", "message"),
    [
        (SendInvoice, no_arguments, "the handler of SendInvoice, no_arguments, takes no argument"),
        (SendInvoice, NoHandle, r"NoHandle, has no handle\(\)"),
        (SendInvoice, NeedsMore, "NeedsMore, cannot be instantiated without arguments"),
        (SendInvoice, clashing, "takes 'copies', which is also a field"),
        (SendInvoice, generator, "is a generator"),
        (SendInvoice, 7, "SendInvoice, 7, is not callable"),
        (int, send_invoice, "int cannot be sent: make it a dataclass"),
        ("SendInvoice", send_invoice, "'SendInvoice' is not a class of commands"),
    ],
)
def test_an_invalid_command_or_handler_is_refused(app: FakeQd, kind: Any, handler: Any, message: str):
    with pytest.raises(DeclarationError, match=message):
        app.map(kind, handler)


def test_a_command_has_one_handler(app: FakeQd):
    app.map(SendInvoice, send_invoice)
    with pytest.raises(DeclarationError, match="SendInvoice already has a handler"):
        app.map(SendInvoice, send_invoice, "other.name")


def test_options_of_handlers_are_checked(app: FakeQd):
    with pytest.raises(DeclarationError, match=r"unknown option 'qeue' of job '.*SendInvoice'.*queue"):
        app.map(SendInvoice, send_invoice, qeue="mail")  # type: ignore[call-arg]
    with pytest.raises(DeclarationError, match="cannot be raw"):
        app.map(SendInvoice, send_invoice, raw=True)


# -- the app's events


def test_emit_calls_the_listeners_directly_and_sends_nothing(app: FakeQd):
    heard: list[object] = []
    app.on(OrderPaid)(heard.append)
    app.on(Event)(heard.append)
    app.emit(OrderPaid(7, currency="USD"))
    assert heard == [OrderPaid(order_id=7, currency="USD")] * 2
    assert not app.opened


def test_an_error_in_a_listener_does_not_stop_the_others(app: FakeQd, caplog):
    heard: list[object] = []

    @app.on(OrderPaid)
    def broken(event: OrderPaid) -> None:
        raise ValueError("no")

    app.on(OrderPaid)(heard.append)
    app.on(OrderPaid, "mail.paid")(heard.append)
    with caplog.at_level(logging.ERROR):
        app.emit(OrderPaid(7))
    assert heard == [OrderPaid(7)]
    assert len(app.sent) == 1
    assert "broken of OrderPaid raised" in caplog.text


def thank(event: OrderPaid) -> str:
    return f"thanks for {event.order_id} in {event.currency}, by {current_job().name}"


async def book(event: OrderPaid, session: Session = provided()) -> str:
    return f"{event.order_id} {type(session).__name__}"


def test_queued_listeners_are_jobs_and_are_sent_in_one_round_trip(app: FakeQd):
    assert app.on(OrderPaid, queue="mail", tries=5)(thank) is thank
    app.on(OrderPaid, "books.paid", delay=5)(book)
    app.emit(OrderPaid(7))
    first, second = app.sent
    assert (first.queue, first.delay, first.read["job"], first.read["maxTries"]) == (
        "mail",
        None,
        f"{__name__}.thank",
        5,
    )
    assert (second.queue, second.delay, second.read["job"]) == ("default", 5.0, "books.paid")
    assert first.read["data"] == second.read["data"] == {"order_id": 7}
    assert first.trip == second.trip
    assert app._registry.names() == ["books.paid", f"{__name__}.thank"]


def test_a_queued_listener_gets_the_event(app: FakeQd):
    app.provide(Session, Session)
    app.on(OrderPaid, queue="mail")(thank)
    app.on(OrderPaid, "books.paid")(book)
    assert app.call(f"{__name__}.thank", b'{"order_id":7}').run() == f"thanks for 7 in EUR, by {__name__}.thank"
    assert app.call("books.paid", b'{"order_id":7,"currency":"USD"}').run() == "7 Session"


def test_a_queued_listener_of_a_base_class_gets_derived_events(app: FakeQd):
    app.on(OrderPaid, queue="mail")(thank)
    app.emit(OrderPaidTwice(7, "USD", times=3))
    assert app.sent[0].read["data"] == {"order_id": 7, "currency": "USD"}


def test_a_wrong_field_raises_before_any_listener_runs(app: FakeQd):
    heard: list[object] = []
    app.on(OrderPaid)(heard.append)
    app.on(OrderPaid, queue="mail")(thank)
    wrong: Any = "seven"
    with pytest.raises(ArgumentError, match=r"job '.*': argument 'order_id' cannot be sent"):
        app.emit(OrderPaid(wrong))
    assert heard == []


def test_an_event_that_cannot_be_queued_is_refused(app: FakeQd):
    with pytest.raises(DeclarationError, match="JobFailed is an event of qd itself and cannot be queued"):
        app.on(JobFailed, queue="mail")(print)
    with pytest.raises(DeclarationError, match="has no name a worker could find"):
        app.on(OrderPaid, queue="mail")(lambda event: None)
    with pytest.raises(DeclarationError, match="takes no argument"):
        app.on(OrderPaid, queue="mail")(no_arguments)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="unknown option 'qeue'"):
        app.on(OrderPaid, qeue="mail")(thank)  # type: ignore[call-overload]
    with pytest.raises(ArgumentError, match="7 is not an event"):
        app.emit(7)  # type: ignore[arg-type]


def test_after_commit_applies_to_queued_listeners(app: FakeQd):
    waiting: list[Any] = []

    def open_transaction(act: Any) -> bool:
        waiting.append(act)
        return True

    app._transactions.append(open_transaction)
    app.on(OrderPaid, queue="mail", after_commit=True)(thank)
    app.emit(OrderPaid(7))
    assert app.sent == []
    waiting[0]()
    assert len(app.sent) == 1


def test_commands_and_models_work_in_chains_batches_and_fakes(app: FakeQd):
    heard: list[object] = []

    @app.on(OrderPaid, "mail.paid", queue="mail")
    def paid(event: OrderPaid) -> None:
        heard.append(event)

    app.map(SendInvoice, heard.append, "mail.invoice")
    app.map(Refund, heard.append, "mail.refund")
    with app.inline():
        app.emit(OrderPaid(7))
        app.chain(app.bind(SendInvoice(1)), app.bind(Refund(2))).dispatch()
        app.batch(app.bind(SendInvoice(3)), then=app.bind(Refund(4))).dispatch()
    assert heard == [OrderPaid(7), SendInvoice(1), Refund(2), SendInvoice(3), Refund(4)]
    with app.fake() as fake:
        app.emit(OrderPaid(8))
        app.send(SendInvoice(5))
        assert [(sent.name, sent.arguments) for sent in fake.all()] == [
            ("mail.paid", {"order_id": 8}),
            ("mail.invoice", {"order_id": 5, "to": []}),
        ]
    assert app.sent == []
