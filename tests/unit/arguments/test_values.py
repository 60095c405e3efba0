"""Pydantic models, attrs classes and paths as arguments; types that JSON cannot tell apart are refused when declared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Annotated, Any, Generic, Literal, TypeVar

import attrs
import msgspec
import pydantic
import pytest
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from qd import DeclarationError, Job
from qd.arguments.signature import Signature, signature_of
from qd.errors import ArgumentError, WrongType
from tests.support.fakes import FakeQd

T = TypeVar("T")


class Line(BaseModel):
    sku: str
    count: int = 1


class Gift(Line):
    card: str = ""


class Order(BaseModel):
    id: int
    at: datetime | None = None
    lines: list[Line] = []
    folder: Path = Path("orders")


class Camel(BaseModel):
    model_config = ConfigDict(alias_generator=str.title)
    number: int = 0
    first: str = Field(serialization_alias="out", validation_alias="in")


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)
    at: datetime
    tags: set[str]


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    id: int


class Computed(BaseModel):
    id: int

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def double(self) -> int:
        return 2 * self.id


class Secret(BaseModel):
    word: pydantic.SecretStr


class Unsent(BaseModel):
    id: int = Field(default=1, exclude=True)


class Stripped(BaseModel):
    text: Annotated[str, pydantic.AfterValidator(lambda text: text + "!")]


class Page(BaseModel, Generic[T]):
    items: list[T]


class Numbers(pydantic.RootModel[list[int]]): ...


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    tricks: list[str] = []


def kind_of(pet: Any) -> str:
    return str(pet["kind"] if isinstance(pet, dict) else pet.kind)


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]
Tagged = Annotated[Annotated[Cat, Tag("cat")] | Annotated[Dog, Tag("dog")], Discriminator(kind_of)]


class Kennel(BaseModel):
    pets: list[Pet]


class TaggedCat(msgspec.Struct, tag="cat"):
    lives: int


class TaggedDog(msgspec.Struct, tag="dog"):
    tricks: int


@dataclass
class Crate:
    order: Order
    folder: Path
    more: dict[str, list[Order]]


@dataclass
class Circle:
    radius: int


@dataclass
class Square:
    side: int


@dataclass
class Drawing:
    shape: Circle | Square


@attrs.define
class Parcel:
    weight: int = attrs.field(validator=attrs.validators.gt(0))
    order: Order | None = None


def typed(kind: Any) -> Signature:
    """The signature of a job with one parameter named value."""

    def job(value): ...

    job.__annotations__ = {"value": kind}
    return signature_of(job)


def round_trip(kind: Any, value: object) -> object:
    signature = typed(kind)
    return signature.decode(signature.encode({"value": value}))["value"]


ORDER = Order(id=7, at=datetime(2031, 1, 1, tzinfo=UTC), lines=[Line(sku="x")])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Order, ORDER),
        (list[Order], [ORDER, Order(id=8)]),
        (dict[str, Order], {"a": ORDER}),
        (tuple[int, Order], (1, ORDER)),
        (Order | None, ORDER),
        (Order | None, None),
        (Crate, Crate(ORDER, Path("a/b"), {"a": [ORDER]})),
        (Camel, Camel.model_validate({"Number": 1, "in": "x"})),
        (Strict, Strict(at=datetime(2031, 1, 1, tzinfo=UTC), tags={"a"})),
        (Open, Open(id=1, more=[1])),  # type: ignore[call-arg]
        (Computed, Computed(id=1)),
        (Numbers, Numbers([1, 2])),
        (Pet, Dog(tricks=["sit"])),
        (Pet | None, None),
        (list[Pet], [Cat(), Dog()]),
        (dict[str, Pet], {"a": Cat(lives=1)}),
        (Annotated[Cat | Dog | None, Field(discriminator="kind")], None),
        (Tagged, Dog()),
        (Kennel, Kennel(pets=[Cat(), Dog()])),
        (TaggedCat | TaggedDog, TaggedDog(1)),
        (Parcel, Parcel(1, ORDER)),
        (list[Parcel], [Parcel(1)]),
        (Path, Path("a/ü")),
        (list[Path], [Path("/a")]),
        (dict[str, Path | None], {"a": Path("b"), "c": None}),
        (PurePosixPath, PurePosixPath("a")),
        (PureWindowsPath, PureWindowsPath("a\\b")),
    ],
)
def test_a_value_arrives_as_it_was_given(kind, value):
    arrived = round_trip(kind, value)
    assert arrived == value
    assert type(arrived) is type(value)


@pytest.mark.parametrize(
    ("kind", "value", "arrives"),
    [
        (Order, {"id": 7, "lines": [{"sku": "x"}]}, Order(id=7, lines=[Line(sku="x")])),
        (Camel, {"Number": 1, "in": "x"}, Camel.model_validate({"Number": 1, "in": "x"})),
        (Camel, {"number": 1, "first": "x"}, Camel.model_validate({"Number": 1, "in": "x"})),
        (Numbers, [1, 2], Numbers([1, 2])),
        (Pet, {"kind": "dog"}, Dog()),
        (Path, "a/b", Path("a/b")),
        (Page[int], Page(items=[1]), Page[int](items=[1])),
    ],
)
def test_a_json_form_is_accepted_for_a_value(kind, value, arrives):
    assert round_trip(kind, value) == arrives


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (
            Order,
            Order(id=1, lines=[Gift(sku="x")]),
            "a Gift would arrive as a Line: send a Line, or declare Gift (at .lines[0])",
        ),
        (Line, Gift(sku="x"), "a Gift would arrive as a Line"),
        (list[Line], [Gift(sku="x")], "(at [0])"),
        (Order, {"id": 7, "price": 1}, "the key 'price' would be lost: Order has no such field"),
        (Order, {"id": "seven"}, "id: Input should be a valid integer"),
        (Order, {"lines": [{}]}, "id: Field required (and 1 more)"),
        (
            list[Order],
            [{"id": 1}, {"id": 2, "lines": [{"sku": 3}]}],
            "lines.0.sku: Input should be a valid string - at $[1]",
        ),
        (Order, Order.model_construct(id="seven"), "id: Input should be a valid integer"),
        (Order, Order(id=1, at=datetime(2031, 1, 1)), "time zone"),
        (Pet, {"kind": "fox"}, "'fox'"),
        (Secret, Secret(word=pydantic.SecretStr("x")), "a SecretStr would arrive with another value (at .word)"),
        (Unsent, Unsent(id=2), "2 would arrive as 1 (at .id)"),
        (Stripped, Stripped(text="a"), "'a!' would arrive as 'a!!' (at .text)"),
        (Open, Open(id=1, more={1}), "a set would arrive as a list"),  # type: ignore[call-arg]
        (Page[int], Page[str](items=["1"]), "a Page[str] would arrive as a Page[int]"),
        (Any, ORDER, "a Order would arrive as something else"),
        (dict[str, Any], ORDER, "a Order would arrive as something else"),
        (Parcel, {"weight": -1}, "'weight' must be > 0"),
        (str, Path("a"), "a PosixPath would arrive as a str"),
        (Any, Path("a"), "a PosixPath would arrive as something else"),
        (PurePath, PureWindowsPath("a"), "a PureWindowsPath would arrive as a PurePosixPath"),
        (Path, 7, "expected Path, got int"),
        (Path, Path("\udcff"), "not Unicode"),
    ],
)
def test_a_value_that_would_change_in_transit_is_refused(kind, value, expected):
    with pytest.raises(ArgumentError) as error:
        typed(kind).encode({"value": value})
    assert "job(): argument 'value' cannot be sent: " in str(error.value)
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (Order, '{"id":"x"}', "argument 'value' is of the wrong type: id: Input should be a valid integer"),
        (Order, "[1]", "argument 'value' is of the wrong type: input should be an object"),
        (list[Order], '[{"id":1},{}]', "argument 'value' is of the wrong type: id: Field required - at $[1]"),
        (Parcel, '{"weight":0}', "'weight' must be > 0"),
        (Path, "7", "argument 'value' is of the wrong type: expected Path, got int"),
        (Order, '{"id":1.2345678901235e+18}', "may have cut off"),
    ],
)
def test_a_value_that_does_not_validate_on_the_worker_is_named_in_one_line(kind, text, expected):
    with pytest.raises(WrongType) as error:
        typed(kind).decode(b'{"value":%b}' % text.encode())
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Order, '{"id":1e+14,"lines":{}}', Order(id=10**14)),
        (list[Order], '[{"id":1,"lines":{}}]', [Order(id=1)]),
        (Dog, "[]", Dog()),
        (Open, '{"id":1e+14}', Open(id=10**14)),
        (Parcel, '{"weight":1e+14}', Parcel(10**14)),
    ],
)
def test_the_fields_of_a_model_undo_what_cjson_did(kind, text, value):
    assert typed(kind).decode(b'{"value":%b}' % text.encode())["value"] == value


# -- at the declaration


NEVER = [
    datetime | str,
    Path | str,
    list[datetime | str],
    dict[str, bytes | str] | None,
    Circle | Square,
    list[Circle | Square],
    list[Drawing],
    Parcel | Circle,
    Cat | Dog,
    Cat | str,
    set[int] | list[int],
]


@pytest.mark.parametrize("kind", NEVER, ids=str)
def test_types_that_json_cannot_tell_apart_are_refused_when_a_job_is_declared(app: FakeQd, kind: Any):
    def ship(value): ...

    ship.__annotations__ = {"value": kind}
    with pytest.raises(DeclarationError) as error:
        app.job("orders.ship")(ship)
    assert "the type of the parameter 'value' of job 'orders.ship' cannot be used: JSON cannot tell" in str(error.value)
    assert app._registry.names() == []


def test_types_of_kwargs_fields_and_commands_are_checked_at_the_declaration(app: FakeQd):
    def ship(**rest: datetime | str) -> None: ...

    @dataclass
    class Command:
        at: datetime | str

    with pytest.raises(DeclarationError, match=r"'rest' of job 'orders.ship'"):
        app.job("orders.ship")(ship)
    with pytest.raises(DeclarationError, match=r"'at' of job 'orders.draw'"):

        @app.job("orders.draw")
        class Draw(Job[None]):
            at: datetime | str

            def handle(self) -> None: ...

    with pytest.raises(DeclarationError, match=r"'at' of job 'orders.command'"):
        app.map(Command, lambda command: None, "orders.command")


def test_a_type_can_be_defined_after_the_job(app: FakeQd):
    @app.job("orders.ship")
    def ship(value: Later | None) -> Any:  # type: ignore[name-defined]  # noqa: F821
        return value

    globals()["Later"] = Order
    try:
        assert ship.run(ORDER) == ORDER
    finally:
        del globals()["Later"]


def test_a_union_can_name_classes_that_are_registered_later(app: FakeQd):
    class Row:
        pass

    class OtherRow:
        pass

    class Rows:
        def recognizes(self, kind: type) -> bool:
            return kind in (Row, OtherRow)

        def name(self, kind: type) -> str:
            return kind.__name__

        def pack(self, thing: Any) -> int:
            return 1

        def load(self, kind: type, key: object, given: object) -> Any:
            return kind()

    def ship(row, drawing): ...

    ship.__annotations__ = {"row": Row | OtherRow, "drawing": Drawing}
    job = app.job("orders.ship")(ship)
    app.serializer(Rows())
    app.provide(Drawing, lambda: Drawing(Circle(1)))
    job.dispatch(OtherRow())
    assert len(app.sent) == 1


def test_a_raw_job_can_have_any_annotation(app: FakeQd):
    @app.job("hooks.any", raw=True)
    def hook(data: datetime | str) -> None: ...

    assert app._registry.names() == ["hooks.any"]


def test_a_class_job_has_models_as_fields(app: FakeQd):
    seen: list[object] = []

    class Ship(Job[None]):
        order: Order
        pet: Pet = field(default_factory=Cat)
        folders: list[Path]

        def handle(self) -> None:
            seen.extend([self.order, self.pet, self.folders])

    job: Callable[..., Job[None]] = app.job("orders.ship")(Ship)
    job(order=ORDER, pet=Dog(), folders=[Path("a")]).run()
    assert seen == [ORDER, Dog(), [Path("a")]]


def test_a_datetime_without_a_zone_is_reported_by_its_path() -> None:
    orders = {"a": [ORDER, Order(id=8, at=datetime(2031, 1, 1))]}
    with pytest.raises(ArgumentError, match=r"a datetime without a time zone .* \(at \['a'\]\[1\]\.at\)$"):
        typed(dict[str, list[Order]]).encode({"value": orders})
    with pytest.raises(ArgumentError, match=r"nan is not a JSON number \(at \[1\]\)$"):
        typed(list[float]).encode({"value": [1.0, float("nan")]})


@pytest.mark.parametrize(
    ("kind", "value", "form"),
    [
        (date, datetime(2031, 1, 1, tzinfo=UTC), 'expected date, or text such as "2026-11-28"'),
        (datetime, date(2031, 1, 1), 'expected datetime, or text such as "2026-11-28T10:00:00Z"'),
        (time, "noon", 'expected time, or text such as "10:00:00"'),
    ],
)
def test_a_moment_of_another_kind_is_reported_with_what_to_pass(kind: Any, value: object, form: str) -> None:
    with pytest.raises(ArgumentError, match=form + "$"):
        typed(kind).encode({"value": value})
    assert typed(kind).takes("value", msgspec.json.encode(form.split('"')[1]))
