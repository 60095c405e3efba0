"""Parameters that the worker provides, and model arguments that are sent as a key."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any

import pytest

from qd import ArgumentError, DeclarationError, Job, Provided, Serialized, provided
from qd.arguments import signature
from qd.arguments.parameters import type_of
from qd.errors import ModelGone, NoProvider, Settled, UnknownParameters, WrongType
from tests.support.fakes import FakeQd


class Session:
    """Not a context manager itself."""

    def __init__(self) -> None:
        self.history: list[str] = []


class Client(Session):
    def __enter__(self) -> Client:
        raise AssertionError("its creator must close it")

    def __exit__(self, *ended: object) -> None: ...


class Making:
    """A provider that records what happens to its sessions."""

    def __init__(self) -> None:
        self.history: list[str] = []
        self.made = 0

    def session(self) -> Iterator[Session]:
        self.made += 1
        self.history.append("open")
        try:
            yield Session()
        except BaseException as error:
            self.history.append(f"error {error}")
            raise
        finally:
            self.history.append("close")


@pytest.fixture
def making(app: FakeQd) -> Making:
    made = Making()
    app.provide(Session, made.session)
    return made


# -- what is sent


def test_a_provided_parameter_is_not_sent_and_is_filled_in_by_run(app: FakeQd, making: Making):
    @app.job("count")
    def count(order_id: int, session: Session = provided()) -> tuple[int, type]:
        making.history.append("run")
        return order_id, type(session)

    count.dispatch(7)
    assert app.sent[0].read["data"] == {"order_id": 7}
    assert making.history == []
    assert count.run(7) == (7, Session)
    assert making.history == ["open", "run", "close"]


def test_a_provided_parameter_without_a_default_can_be_in_any_position(app: FakeQd, making: Making):
    @app.job("count")
    def count(session: Annotated[Session, "of orders"], order_id: int) -> tuple[int, type]:
        return order_id, type(session)

    call: Any = count
    call.dispatch(7)
    assert app.sent[0].read["data"] == {"order_id": 7}
    assert call.run(order_id=7) == (7, Session)


def test_a_field_of_a_class_job_is_filled_in_for_handle_and_for_failed(app: FakeQd, making: Making):
    seen: list[object] = []

    @app.job("charge")
    class Charge(Job[None]):
        order_id: int
        session: Session = provided()

        def handle(self) -> None:
            seen.append(self.session)
            raise ValueError("no money")

        def failed(self, error: BaseException) -> None:
            seen.append(self.session)

    Charge(order_id=7).dispatch()
    assert app.sent[0].read["data"] == {"order_id": 7}
    with pytest.raises(ValueError, match="no money"):
        Charge(order_id=7).run()
    assert [type(session) for session in seen] == [Session, Session]
    assert making.history == ["open", "error no money", "close", "open", "close"]


def test_concurrent_first_uses_of_a_job_are_safe(app: FakeQd, making: Making, monkeypatch: pytest.MonkeyPatch):
    @app.job("count")
    def count(order_id: int, session: Session) -> None: ...

    call: Any = count

    def meanwhile(parameter: Any) -> Any:
        monkeypatch.undo()
        thread = threading.Thread(target=lambda: call.dispatch(8))
        thread.start()
        thread.join()
        return type_of(parameter)

    monkeypatch.setattr(signature, "type_of", meanwhile)
    call.dispatch(7)
    assert [sent.read["data"] for sent in app.sent] == [{"order_id": 8}, {"order_id": 7}]


def test_a_provider_added_later_applies_from_then_on(app: FakeQd):
    @app.job("count")
    def count(session: Session | None = None) -> bool:
        return session is not None

    assert count.run() is False
    app.provide(Session | None, Session)  # type: ignore[arg-type]
    assert count.run() is True


def test_a_value_for_a_provided_parameter_is_refused(app: FakeQd, making: Making):
    @app.job("count")
    def count(order_id: int, session: Session = provided()) -> None: ...

    @app.job("charge")
    class Charge(Job[None]):
        session: Session = provided()

        def handle(self) -> None: ...

    for give in (
        lambda: count.dispatch(7, session=Session()),
        lambda: count.bind(7, session=Session()),
        lambda: Charge(session=Session()).dispatch(),
    ):
        with pytest.raises(
            ArgumentError, match=r"job '.*': argument 'session' is provided on the worker and cannot be se"
        ):
            give()
    with pytest.raises(ArgumentError, match=r"takes 1 positional arguments, 2 were given"):
        count.dispatch(7, Session())
    assert app.sent == []


def test_a_payload_that_names_a_provided_parameter_has_an_unknown_parameter(app: FakeQd, making: Making):
    @app.job("count")
    def count(order_id: int, session: Session = provided()) -> None: ...

    with pytest.raises(UnknownParameters, match="has no parameter 'session'"):
        app.call("count", b'{"order_id":7,"session":1}')


def test_a_missing_provider_is_an_error_of_the_run_not_of_dispatch(app: FakeQd):
    @app.job("count")
    def count(session: Session = provided()) -> None: ...

    count.dispatch()
    with pytest.raises(
        NoProvider, match=r"job 'count': nothing provides its parameter 'session': call app.provide\(Sess"
    ):
        count.run()


# -- provided values


def test_a_plain_return_value_is_used_as_is(app: FakeQd):
    client = Client()
    app.provide(Client, lambda: client)

    @app.job("count")
    def count(client: Client = provided()) -> Client:
        return client

    assert count.run() is client


def test_a_returned_context_manager_is_entered(app: FakeQd, making: Making):
    app.provide(Session, contextmanager(making.session))

    @app.job("count")
    def count(session: Session = provided()) -> type:
        return type(session)

    assert count.run() is Session
    assert making.history == ["open", "close"]


def test_a_provider_is_called_once_per_run(app: FakeQd, making: Making):
    @app.job("count")
    def count(one: Session = provided(), other: Session = provided()) -> bool:
        return one is other

    assert count.run()
    assert count.run()
    assert making.made == 2


@pytest.mark.parametrize("swallow", [False, True])
def test_a_provider_sees_the_error_of_the_job_and_cannot_swallow_it(app: FakeQd, swallow: bool):
    seen: list[BaseException] = []

    def session() -> Iterator[Session]:
        try:
            yield Session()
        except ValueError as error:
            seen.append(error)
            if not swallow:
                raise

    app.provide(Session, session)

    @app.job("count")
    def count(session: Session = provided()) -> None:
        raise ValueError("of the job")

    with pytest.raises(ValueError, match="of the job") as raised:
        count.run()
    assert seen == [raised.value]


def test_release_and_fail_are_errors_to_a_provider(app: FakeQd, making: Making):
    from qd import current_job

    @app.job("count")
    def count(session: Session = provided()) -> None:
        current_job().fail("by hand")

    with suppress(Exception, Settled):
        count.run()
    assert making.history == ["open", "error by hand", "close"]


def test_an_error_while_a_provider_closes_fails_a_successful_job(app: FakeQd):
    def session() -> Iterator[Session]:
        yield Session()
        raise OSError("commit failed")

    app.provide(Session, session)

    @app.job("count")
    def count(fails: bool, session: Session = provided()) -> None:
        if fails:
            raise ValueError("of the job")

    with pytest.raises(OSError, match="commit failed"):
        count.run(False)


def test_an_error_while_a_provider_closes_is_added_as_a_note_to_the_error_of_the_job(app: FakeQd):
    def session() -> Iterator[Session]:
        try:
            yield Session()
        finally:
            raise OSError("rollback failed")

    app.provide(Session, session)

    @app.job("count")
    def count(session: Session = provided()) -> None:
        raise ValueError("of the job")

    with pytest.raises(ValueError, match="of the job") as raised:
        count.run()
    assert raised.value.__notes__ == ["then closing the provided values raised OSError: rollback failed"]


def test_the_provider_of_an_async_job_closes_after_the_job(app: FakeQd, making: Making):
    @app.job("count")
    async def count(fails: bool, session: Session = provided()) -> None:
        await asyncio.sleep(0)
        making.history.append("run")
        if fails:
            raise ValueError("no")

    count.run(False)
    assert making.history == ["open", "run", "close"]
    with pytest.raises(ValueError):
        count.run(True)
    assert making.history[3:] == ["open", "run", "error no", "close"]


def test_run_of_an_async_job_in_a_loop_opens_no_provider(app: FakeQd, making: Making):
    @app.job("count")
    async def count(session: Session = provided()) -> None: ...

    async def inside() -> None:
        count.run()

    with pytest.raises(RuntimeError, match="await the plain call"):
        asyncio.run(inside())
    assert making.history == []


async def asynchronous() -> Session:
    return Session()


def wants_more(url: str) -> Session:
    return Session()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (asynchronous, "the provider asynchronous of Session is async and would never run: make it a def"),
        (wants_more, "the provider wants_more of Session cannot be called with no arguments: missing a req.* 'url'"),
        (7, "the provider 7 of Session cannot be called"),
    ],
)
def test_a_provider_with_a_wrong_signature_is_refused(app: FakeQd, make: Any, message: str):
    with pytest.raises(DeclarationError, match=message):
        app.provide(Session, make)


# -- models


class Order:
    def __init__(self, key: Any) -> None:
        self.key = key


class Line(Order): ...


class Invoice(Order): ...


class Shelf:
    """A serializer of the shop's models: only the objects it contains can be loaded."""

    def __init__(self) -> None:
        self.rows: dict[tuple[type, str], Order] = {}
        self.asked: list[object] = []
        self.asks = False

    def put(self, thing: Order) -> Order:
        self.rows[type(thing), str(thing.key)] = thing
        return thing

    def recognizes(self, kind: type) -> bool:
        return issubclass(kind, Order)

    def name(self, kind: type) -> str:
        return f"shop.{kind.__name__}"

    def pack(self, thing: Any) -> Any:
        return thing.key

    def load(self, kind: type, key: Any, given: Provided) -> object | None:
        if self.asks:
            self.asked.append(given(Session))
        return self.rows.get((kind, str(key)))


@pytest.fixture
def shelf(app: FakeQd) -> Shelf:
    found = Shelf()
    app.serializer(found)
    return found


@pytest.mark.parametrize("key", [42, "a-b", ["de", 7]])
def test_a_model_travels_as_model_and_key_and_is_loaded(app: FakeQd, shelf: Shelf, key: Any):
    order = shelf.put(Order(key))

    @app.job("ship")
    def ship(order: Order, fast: bool = False) -> Order:
        return order

    ship.dispatch(order, fast=True)
    assert app.sent[0].read["data"] == {"order": {"model": "shop.Order", "key": key}, "fast": True}
    assert ship.run(Order(key)) is order


def test_none_lists_dicts_and_unions_of_models_travel_too(app: FakeQd, shelf: Shelf):
    first, second, invoice = shelf.put(Order(1)), shelf.put(Order(2)), shelf.put(Invoice(1))

    @app.job("ship")
    def ship(
        one: Order | None, several: list[Order], named: dict[str, Order], either: Order | Invoice | int = 3
    ) -> list[object]:
        return [one, several, named, either]

    assert ship.run(None, [first, second], {"a": first}) == [None, [first, second], {"a": first}, 3]
    assert ship.run(first, [], {}, invoice) == [first, [], {}, invoice]
    assert ship.run(first, [], {}, 9) == [first, [], {}, 9]


def test_a_model_in_a_class_job(app: FakeQd, shelf: Shelf):
    order = shelf.put(Order(42))

    @app.job("charge")
    class Charge(Job[Order]):
        order: Order

        def handle(self) -> Order:
            return self.order

    Charge(order=order).dispatch()
    assert app.sent[0].read["data"] == {"order": {"model": "shop.Order", "key": 42}}
    assert Charge(order=order).run() is order


def test_a_missing_row_is_reported_with_the_job_and_the_argument(app: FakeQd, shelf: Shelf):
    @app.job("ship")
    def ship(order: Order) -> None: ...

    with pytest.raises(ModelGone, match=r"job 'ship': argument 'order': shop.Order 42 is gone"):
        ship.run(Order(42))


def test_an_object_without_a_key_is_refused_at_dispatch(app: FakeQd, shelf: Shelf):
    @app.job("ship")
    def ship(order: Order, several: list[Order] | None = None) -> None: ...

    with pytest.raises(
        ArgumentError, match=r"job 'ship': argument 'order' cannot be sent: this shop.Order has no key yet"
    ):
        ship.dispatch(Order(None))
    with pytest.raises(ArgumentError, match=r"argument 'several' cannot be sent: this shop.Order has no key yet"):
        ship.dispatch(Order(1), [Order(None)])
    assert app.sent == []


def test_a_key_that_json_cannot_represent_is_refused(app: FakeQd, shelf: Shelf):
    @app.job("ship")
    def ship(order: Order) -> None: ...

    with pytest.raises(ArgumentError, match=r"job 'ship': argument 'order' cannot be sent: expected int"):
        ship.dispatch(Order(1.5))


def test_an_object_of_another_class_is_refused_with_the_name_of_the_model(app: FakeQd, shelf: Shelf):
    @app.job("ship")
    def ship(order: Order, several: list[Order] | None = None, named: dict[str, Order] | None = None) -> None: ...

    wrong: Any = 7
    for arguments, message in (
        ((wrong,), r"'order' cannot be sent: expected shop.Order \(an object of it\), got int$"),
        ((Order(1), [wrong]), r"'several' cannot be sent: expected shop.Order \(an object of it\), got int"),
        ((Order(1), wrong), r"'several' cannot be sent: expected array | null, got int"),
        ((Order(1), None, wrong), r"'named' cannot be sent: expected object | null, got int"),
    ):
        with pytest.raises(ArgumentError, match=message):
            ship.dispatch(*arguments)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            b'{"order":7}',
            r"'order' is of the wrong type: expected shop.Order \({\"model\":\"shop.Order\",\"key\":...}\), got int$",
        ),
        (b'{"order":{"model":"shop.Invoice","key":1}}', "expected a shop.Order, got a shop.Invoice"),
        (b'{"order":{"model":"shop.Order","key":null}}', r"argument 'order' is of the wrong type"),
    ],
)
def test_an_object_of_another_model_has_the_wrong_type(app: FakeQd, shelf: Shelf, data: bytes, message: str):
    @app.job("ship")
    def ship(order: Order) -> None: ...

    with pytest.raises(WrongType, match=message):
        app.call("ship", data)


def test_loading_and_the_job_are_given_the_same_session(app: FakeQd, shelf: Shelf, making: Making):
    shelf.asks = True
    order = shelf.put(Order(42))

    @app.job("ship")
    def ship(order: Order, session: Session = provided()) -> Session:
        return session

    assert [ship.run(order)] == shelf.asked
    assert making.history == ["open", "close"]


def test_an_object_of_a_subclass_travels_as_the_declared_model(app: FakeQd, shelf: Shelf):
    order = shelf.put(Order(42))

    @app.job("ship")
    def ship(order: Order) -> Order:
        return order

    assert ship.run(Line(42)) is order


def test_a_job_without_models_has_no_extra_fields(app: FakeQd, shelf: Shelf, making: Making):
    @app.job("plain")
    def plain(to: str) -> None: ...

    plain.run("you")
    declared: Any = app._registry.get("plain")
    assert declared.signature.extras is None


def test_a_fake_records_models_as_they_travel(app: FakeQd, shelf: Shelf):
    @app.job("ship")
    def ship(order: Order, several: list[Order]) -> None: ...

    with app.fake() as fake:
        ship.dispatch(Order(42), [Order(1)])
        (sent,) = fake.dispatched(ship)
    assert sent.arguments == {"order": Serialized("shop.Order", 42), "several": [Serialized("shop.Order", 1)]}
