"""qd.arguments: bound by the caller, encoded, converted back in the worker; errors name the argument."""

from __future__ import annotations

import json
import math
from collections import OrderedDict, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NotRequired, TypedDict, Unpack
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qd.arguments.signature import Signature, signature_of, signature_of_fields
from qd.arguments.values import decode_value, encode_value
from qd.errors import ArgumentError, DeclarationError, UnknownParameters, WrongType

if TYPE_CHECKING:
    from fractions import Fraction


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


class Level(IntEnum):
    LOW = 1
    HIGH = 100_000_000_000_000


class Point(NamedTuple):
    x: int
    y: int = 0


class Options(TypedDict):
    colour: str
    width: NotRequired[int]


@dataclass
class Item:
    sku: str
    count: int = 1
    tags: list[str] = field(default_factory=list)


class Address(msgspec.Struct):
    street: str
    codes: tuple[int, ...] = ()


class Cat(msgspec.Struct, tag="cat"):
    lives: list[int]


class Dog(msgspec.Struct, tag="dog"):
    tricks: dict[str, int]


class Row(msgspec.Struct, array_like=True):
    number: int
    rest: list[int] = []


def welcome(to: str, subject: str = "Hello", *, copies: int = 1) -> None: ...


def typed(kind: Any) -> Signature:
    """The signature of a job with one parameter named value."""

    def job(value): ...

    job.__annotations__ = {"value": kind}
    return signature_of(job)


def round_trip(kind: Any, value: object) -> object:
    signature = typed(kind)
    return signature.decode(signature.encode(signature.bind((value,), {})))["value"]


def mended(kind: Any, text: str) -> object:
    return typed(kind).decode(b'{"value":%b}' % text.encode())["value"]


# -- bind


def test_arguments_are_bound_by_name_and_defaults_left_out():
    signature = signature_of(welcome)
    assert signature.bind(("a@b.c",), {}) == {"to": "a@b.c"}
    assert signature.bind(("a@b.c", "Hi"), {"copies": 2}) == {"to": "a@b.c", "subject": "Hi", "copies": 2}
    assert signature.bind((), {"copies": 2, "to": "a@b.c"}) == {"to": "a@b.c", "copies": 2}


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "welcome() is missing argument 'to'"),
        ((1, 2, 3), {}, "welcome() takes 2 positional arguments, 3 were given"),
        ((1,), {"to": 2}, "welcome() got the argument 'to' twice"),
        ((1,), {"subjct": 2}, "welcome() has no parameter 'subjct' (did you mean 'subject'?)"),
    ],
)
def test_arguments_that_do_not_fit_the_signature_are_named(args, kwargs, message):
    with pytest.raises(ArgumentError) as error:
        signature_of(welcome).bind(args, kwargs)
    assert str(error.value) == message
    assert isinstance(error.value, TypeError)


# -- encode and decode


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, 7),
        (int, 2**70),
        (float, 1.5),
        (float, 3),
        (bool, True),
        (str, "é ✓ 😀 \x00 \u2028 </script>"),
        (bytes, bytes(range(256))),
        (None, None),
        (datetime, datetime(2026, 11, 21, 13, 8, 49, 182504, tzinfo=UTC)),
        (date, date(2026, 2, 28)),
        (timedelta, timedelta(days=1, milliseconds=5)),
        (Decimal, Decimal("1.10")),
        (UUID, UUID(int=7)),
        (Size, Size.LARGE),
        (Level, Level.HIGH),
        (Literal["a", "b"], "b"),
        (Item, Item("x", 2, ["a"])),
        (Address, Address("Hill 1", (1, 2))),
        (Point, Point(1, 2)),
        (Options, {"colour": "red"}),
        (Cat | Dog, Dog({"sit": 1})),
        (list[Item], [Item("x")]),
        (dict[int, list[Decimal]], {7: [Decimal("0.1")]}),
        (dict[UUID, datetime], {UUID(int=1): datetime(2026, 1, 1, tzinfo=UTC)}),
        (tuple[int, str], (1, "a")),
        (set[int], {1, 2}),
        (frozenset[Size], frozenset([Size.SMALL])),
        (int | None, None),
        (int | str | None, "7"),
        (Sequence[int], [1, 2]),
        (Mapping[str, int], {"a": 1}),
        (Any, {"a": [1, None, "x", 1.5]}),
        (object, [1]),
    ],
    ids=str,
)
def test_a_value_arrives_as_its_declared_type(kind, value):
    arrived = round_trip(kind, value)
    assert arrived == value
    assert type(arrived) is (float if kind is float else type(value))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(deadline=None)
@given(json_values)
def test_any_json_value_arrives_where_no_type_is_declared(value):
    assert round_trip(Any, value) == value


@settings(deadline=None)
@given(
    st.builds(
        Item,
        st.text(),
        st.integers(-(2**63), 2**63),
        st.lists(st.text()),
    ),
    st.dictionaries(st.integers(-(2**63), 2**63 - 1), st.decimals(allow_nan=False, allow_infinity=False)),
    st.datetimes(timezones=st.just(UTC)),
    st.binary(),
)
def test_typed_values_arrive(item, table, moment, raw):
    def job(item: Item, table: dict[int, Decimal], moment: datetime, raw: bytes) -> None: ...

    signature = signature_of(job)
    data = signature.encode(signature.bind((item, table), {"moment": moment, "raw": raw}))
    assert signature.decode(data) == {"item": item, "table": table, "moment": moment, "raw": raw}


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(st.text(), json_values))
def test_a_foreign_payload_converts_or_is_reported(data):
    try:
        found = signature_of(welcome).decode(json.dumps(data).encode())
    except (UnknownParameters, WrongType):
        return
    assert isinstance(found.get("to", ""), str)


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_convert_or_are_reported(data):
    try:
        signature_of(welcome).decode(data)
    except (UnknownParameters, WrongType):
        return
    pytest.fail("'to' is needed, and random bytes do not hold it")


def test_subclasses_of_plain_types_travel_as_them():
    class Safe(str):
        def __str__(self) -> str:
            return "not this"

    class Many(int): ...

    assert round_trip(str, Safe("a")) == "a"
    assert round_trip(int, Many(3)) == 3
    assert round_trip(list[int], deque([1, 2])) == [1, 2]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (int, "7", "expected int, got str"),
        (int, 7.5, "expected int, got float"),
        (int, True, "expected int, got bool"),
        (int, None, "expected int, got null"),
        (str, 7, "expected str, got int"),
        (str, "\ud800", "not Unicode"),
        (float, math.nan, "not a JSON number"),
        (float | None, math.nan, "not a JSON number"),
        (Any, [{"deep": (1.0, math.inf)}], "not a JSON number"),
        (Any, {math.nan: 1}, "not a JSON number"),
        (Decimal, Decimal("NaN"), "'value' cannot be sent: NaN is not a JSON number"),
        (Decimal, Decimal("Infinity"), "'value' cannot be sent: Infinity is not a JSON number"),
        (list[Item], [Item("x", math.inf)], "not a JSON number"),  # type: ignore[arg-type]
        (datetime, datetime(2026, 1, 1), "time zone"),
        (Any, {"at": [datetime(2026, 1, 1)]}, "time zone"),
        (Address, Address(7), "$.street"),  # type: ignore[arg-type]
        (Any, object(), "has no JSON form"),
        (Any, {(1, 2): 3}, "tuple has no JSON form"),
        (Any, [10**5000], "limit"),
        (Size, "xl", "invalid enum value"),
        (list[int], [1, "2"], "$[1]"),
    ],
)
def test_a_wrong_value_raises_at_the_caller_and_is_named(kind, value, expected):
    with pytest.raises(ArgumentError) as error:
        typed(kind).encode({"value": value})
    assert "job(): argument 'value' cannot be sent: " in str(error.value)
    assert expected in str(error.value)


def test_a_recursive_value_is_refused():
    ring: list[object] = []
    ring.append(ring)
    with pytest.raises(ArgumentError, match="contains itself"):
        typed(Any).encode({"value": ring})


def test_the_argument_at_fault_is_named_among_others():
    with pytest.raises(ArgumentError, match="'copies'"):
        signature_of(welcome).encode({"to": "a", "subject": "b", "copies": "three"})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({1, 2}, "a set"),
        (b"abc", "a bytes"),
        ({1: 2}, "the key 1"),
        ((1, 2), "a tuple"),
        (Decimal("0.1"), "a Decimal"),
        (UUID(int=1), "a UUID"),
        (timedelta(1), "a timedelta"),
        (datetime(2026, 1, 1, tzinfo=UTC), "a datetime"),
        (Item("x"), "a Item"),
        (Size.SMALL, "a Size"),
        (Point(1, 2), "a Point"),
        ([{"deep": [{1}]}], "a set"),
    ],
)
@pytest.mark.parametrize("kind", [Any, object, Any | None])
def test_an_untyped_argument_that_would_change_is_refused(kind, value, expected):
    with pytest.raises(ArgumentError) as error:
        typed(kind).encode({"value": value})
    assert "job(): argument 'value' cannot be sent: " in str(error.value)
    assert expected in str(error.value)
    assert "annotate the parameter" in str(error.value)


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        (list, [1, "a"], [(1,)]),
        (list[Any], [1, {"a": None}], [{1}]),
        (list[Any] | None, None, [{1}]),
        (Sequence[Any], [1], [{1}]),
        (tuple[Any, ...], (1, "a"), ((1,),)),
        (tuple, (1,), (b"",)),
        (tuple[UUID, Any], (UUID(int=1), 7), (UUID(int=1), UUID(int=1))),
        (dict, {"a": 1}, {1: 1}),
        (dict[str, Any], {"a": [1]}, {"a": {1}}),
        (dict[str, Any], {"a": [1]}, Item("x")),
        (dict[str, list[Any]], {"a": [1]}, {"a": [{1}]}),
        (dict[int, Any], {1: "a"}, {1: Decimal(1)}),
        (Mapping[str, Any], {"a": 1}, {"a": b"b"}),
        (dict[Any, UUID], {"a": UUID(int=1)}, {1: UUID(int=1)}),
        (set[Any], {1}, {UUID(int=1)}),
    ],
    ids=str,
)
def test_a_type_with_open_parts_follows_the_same_rule(kind, right, wrong):
    assert round_trip(kind, right) == right
    with pytest.raises(ArgumentError, match="'value' cannot be sent: a"):
        typed(kind).encode({"value": wrong})


def test_untyped_kwargs_follow_the_same_rule():
    def job(a, **rest): ...

    signature = signature_of(job)
    assert signature.decode(signature.encode({"a": 1, "b": [2]})) == {"a": 1, "b": [2]}
    for wrong in ("a", "b"):
        with pytest.raises(ArgumentError, match=f"'{wrong}' cannot be sent: a set"):
            signature.encode({"a": 1, "b": 2, wrong: {1}})


# -- values that would change or be lost in transit


@dataclass
class Special(Item):
    extra: int = 0


@dataclass
class Bare(Item):
    """Has no fields."""


@dataclass
class Computed:
    price: int
    total: int = field(init=False, default=0)
    parts: Any = None


@dataclass
class Cart:
    items: list[Item]
    by_name: dict[str, Item] = field(default_factory=dict)
    first: Item | None = None


@attrs.define
class Parcel:
    weight: int
    _seal: str = "none"


@attrs.define
class Fragile(Parcel):
    glass: bool = True


class Villa(Address):
    pool: bool = True


class Place(Point):
    """A subclass of a NamedTuple."""


class Status(StrEnum):
    PAID = "paid"


class OtherStatus(StrEnum):
    PAID = "paid"


class Many(int): ...


def total(price: int, total: int, parts: Any = None) -> Computed:
    made = Computed(price, parts)
    made.total = total
    return made


BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (Item, Special("x", extra=3), "a Special would arrive as an Item: send an Item, or declare Special"),
        (Item, Bare("x"), "a Bare would arrive as an Item"),
        (Item | None, Special("x"), "a Special would arrive as an Item"),
        (
            list[Item],
            [Item("x"), Special("x")],
            "a Special would arrive as an Item: send an Item, or declare Special (at [1])",
        ),
        (dict[str, Item], {"a": Special("x")}, "(at ['a'])"),
        (tuple[int, Item], (1, Special("x")), "(at [1])"),
        (Cart, Cart([Item("x")], {}, Special("y")), "(at .first)"),
        (Cart, Cart([Item("x"), Special("x")]), "(at .items[1])"),
        (Cart, Cart([], {"a": Special("x")}), "(at .by_name['a'])"),
        (list[Cart], [Cart([], {"a": Special("x")})], "(at [0].by_name['a'])"),
        (Parcel, Fragile(1), "a Fragile would arrive as a Parcel"),
        (Parcel, Parcel(1, "wax"), "'wax' would arrive as 'none' (at ._seal)"),
        (Address, Villa("Hill 1"), "a Villa would arrive as an Address"),
        (Point, Place(1, 2), "a Place would arrive as a Point"),
        (tuple[int, int], Point(1, 2), "a Point would arrive as a tuple"),
        (Sequence[int], Point(1, 2), "a Point would arrive as a list"),
        (Options, {"colour": "red", "size": 3}, "the key 'size' would be lost"),
        (
            list[Options],
            [{"colour": "red", "size": 3}],
            "the key 'size' would be lost: its type has no such key (at [0])",
        ),
        (Item, {"sku": "x", "price": 3}, "the key 'price' would be lost: Item has no such field"),
        (Row, [1, [], 3], "a list would arrive as a Row"),
        (Computed, Computed(1, parts={1}), "a set would arrive as a list"),
        (Computed, Computed(1, parts=Decimal(1)), "a Decimal would arrive as a str"),
        (Computed, Computed(1, parts={1: 2}), "an int would arrive as a str"),
        (list[int], {1, 2}, "a set would arrive as a list: send a list, or declare set"),
        (list[list[int]], [{1, 2}], "(at [0])"),
        (set[int], [1, 1], "a list with a value twice would arrive as a set: send a set"),
        (str, UUID(int=1), "a UUID would arrive as a str"),
        (str, date(2031, 1, 1), "a date would arrive as a str"),
        (str, Decimal("1.5"), "a Decimal would arrive as a str"),
        (str, b"abc", "a bytes would arrive as a str"),
        (str, Size.SMALL, "a Size would arrive as a str"),
        (OtherStatus, Status.PAID, "a Status would arrive as an OtherStatus"),
        (Any, Status.PAID, "a Status would arrive as something else"),
        (float, 2**53 + 1, "an int would arrive as a float"),
        (float | None, 2**53 + 1, "an int would arrive as a float"),
        (list[float], [2**53 + 1], "an int would arrive as a float"),
        (Decimal, Decimal("sNaN"), "sNaN is not a JSON number"),
        (datetime, datetime(1880, 1, 1, tzinfo=BERLIN), "would arrive as datetime"),
        (time, time(12, tzinfo=BERLIN), "would arrive as datetime.time(12, 0)"),
        (list[datetime], [datetime(2031, 1, 1)], "time zone"),
        (Cart | None, {"items": [{"sku": "x", "price": 3}]}, "Item has no such field (at ['items'][0])"),
    ],
    ids=str,
)
def test_a_typed_argument_that_would_change_is_refused(kind, value, expected):
    with pytest.raises(ArgumentError) as error:
        typed(kind).encode({"value": value})
    assert "job(): argument 'value' cannot be sent: " in str(error.value)
    assert expected in str(error.value)


@pytest.mark.parametrize(
    ("kind", "value", "arrives"),
    [
        (str, Status.PAID, "paid"),
        (int, Many(3), 3),
        (Any, Many(3), 3),
        (dict[str, int], OrderedDict(a=1), {"a": 1}),
        (dict[str, int], defaultdict(int, a=1), {"a": 1}),
        (list[int], (1, 2), [1, 2]),
        (Sequence[Item], (Item("x"),), [Item("x")]),
        (tuple[int, ...], [1, 2], (1, 2)),
        (Point, (1,), Point(1, 0)),
        (set[int], frozenset([1]), {1}),
        (set[Size], ["s"], {Size.SMALL}),
        (bytes, bytearray(b"abc"), b"abc"),
        (float, 2**53, float(2**53)),
        (float | Decimal, Decimal("1.10"), Decimal("1.10")),
        (Decimal, Decimal("1E+400"), Decimal("1E+400")),
        (Decimal, Decimal("0.1234567890123456789012345678901"), Decimal("0.1234567890123456789012345678901")),
        (Decimal, 0.1, Decimal("0.1")),
        (Decimal, 7, Decimal(7)),
        (Decimal, "0.10", Decimal("0.10")),
        (date, "2031-01-01", date(2031, 1, 1)),
        (Item, {"sku": "x"}, Item("x")),
        (Cat | Dog, {"type": "cat", "lives": [1]}, Cat([1])),
        (Computed, total(1, 7), total(1, 7)),
        (Computed, Computed(1, parts=Status.PAID), Computed(1, parts="paid")),
        (dict[int, str], {"7": "a"}, {7: "a"}),
        (datetime, datetime(2030, 7, 1, 12, tzinfo=BERLIN), datetime(2030, 7, 1, 10, tzinfo=UTC)),
        (datetime, datetime(2030, 10, 27, 2, 30, tzinfo=BERLIN, fold=0), datetime(2030, 10, 27, 0, 30, tzinfo=UTC)),
        (datetime, datetime(2030, 10, 27, 2, 30, tzinfo=BERLIN, fold=1), datetime(2030, 10, 27, 1, 30, tzinfo=UTC)),
        (time, time(12, 30), time(12, 30)),
        (timedelta, timedelta(microseconds=-1), timedelta(microseconds=-1)),
    ],
    ids=str,
)
def test_another_form_of_the_same_value_arrives_as_the_declared_type(kind, value, arrives):
    arrived = round_trip(kind, value)
    assert arrived == arrives
    assert type(arrived) is type(arrives)


def test_kwargs_are_compared_with_what_arrives():
    def job(**rest: Item): ...

    with pytest.raises(ArgumentError, match="'b' cannot be sent: a Special would arrive as an Item"):
        signature_of(job).encode({"a": Item("x"), "b": Special("x")})


# -- in the worker


@pytest.mark.parametrize("data", [b"", b'""', b"[]", b"{}", b"null", b" { } ", b" [ ]"])
def test_no_data_is_no_arguments(data):
    def job(a: int = 1, b: str = "") -> None: ...

    assert signature_of(job).decode(data) == {}
    with pytest.raises(UnknownParameters, match="'to'"):
        signature_of(welcome).decode(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"to":"a","subjct":"b"}', "welcome() has no parameter 'subjct' (did you mean 'subject'?)"),
        (b'{"too":7}', "welcome() has no parameter 'too' (did you mean 'to'?)"),
        (b'{"subject":7}', "welcome() needs parameter 'to', which the payload lacks"),
        (b'{"to":"a","x":1,"y":2}', "welcome() has no parameters 'x', 'y'"),
    ],
)
def test_unknown_names_may_be_caused_by_a_deploy(data, message):
    with pytest.raises(UnknownParameters) as error:
        signature_of(welcome).decode(data)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"to":7}', "argument 'to' is of the wrong type: expected str, got int"),
        (b'{"to":"a","copies":"7"}', "argument 'copies' is of the wrong type: expected int, got str"),
        (b'{"to":"a","copies":1.5}', "argument 'copies' is of the wrong type: expected int, got float"),
        (b'{"to":null}', "argument 'to' is of the wrong type: expected str, got null"),
        (b'["a"]', "its data is a list"),
        (b"7", "its data is int"),
        (b'"a"', "its data is str"),
        (b"false", "its data is bool"),
        (b'{"to":"\xff"}', "not Unicode"),
        (b'{"to":', "cannot be read"),
        (b'{"to":1e309}', "cannot be read: argument 'to': number out of range"),
        (b'{"other":[1],"to":[2,1e999]}', "cannot be read: argument 'to': number out of range"),
        (b'{"to":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "too deep"),
    ],
)
def test_a_value_that_does_not_convert_is_named(data, expected):
    with pytest.raises(WrongType) as error:
        signature_of(welcome).decode(data)
    assert expected in str(error.value)
    assert len(str(error.value)) < 400


def test_a_hostile_name_is_escaped_and_shortened():
    data = json.dumps({"to": "a", "\x1b[31m\n" + "x" * 10_000: 1}).encode()
    with pytest.raises(UnknownParameters) as error:
        signature_of(welcome).decode(data)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 200


def test_a_dataclass_that_raises_does_not_harm_the_worker():
    @dataclass
    class Picky:
        n: int

        def __post_init__(self) -> None:
            raise KeyError(self.n)

    with pytest.raises(WrongType, match="'value'"):
        typed(Picky).decode(b'{"value":{"n":1}}')


# -- repairing what cjson did


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (list[int], "{}", []),
        (list, "{}", []),
        (tuple[int, ...], "{}", ()),
        (set[str], "{}", set()),
        (frozenset[int], "{}", frozenset()),
        (Sequence[int], "{}", []),
        (dict[str, int], "[]", {}),
        (dict, "[]", {}),
        (Options | None, "null", None),
        (list[int] | None, "{}", []),
        (dict[str, int] | None, "[]", {}),
        (list[int] | dict[str, int], "{}", {}),
        (list[int] | dict[str, int], "[]", []),
        (list[list[int]], "[{},[1]]", [[], [1]]),
        (dict[str, list[int]], '{"a":{}}', {"a": []}),
        (list[dict[str, list[int]]], '[[],{"a":{}}]', [{}, {"a": []}]),
        (tuple[list[int], dict[str, int]], "[{},[]]", ([], {})),
        (Item, '{"sku":"x","tags":{}}', Item("x")),
        (list[Item], '[{"sku":"x","count":1e+14,"tags":{}}]', [Item("x", 10**14)]),
        (Address, '{"street":"a","codes":{}}', Address("a")),
        (Point, "[1e+14]", Point(10**14)),
        (Row, "[1e+15,{}]", Row(10**15, [])),
        (Options, '{"colour":"red","width":1e+14}', {"colour": "red", "width": 10**14}),
        (Cat | Dog, '{"type":"cat","lives":{}}', Cat([])),
        (Cat | Dog, '{"type":"dog","tricks":[]}', Dog({})),
        (int, "1e14", 10**14),
        (int, "1e+14", 10**14),
        (int, "-1e+14", -(10**14)),
        (int, "2.5e+15", 2_500_000_000_000_000),
        (int, "1e+23", 10**23),
        (int, "1.795224705e+18", 1_795_224_705_000_000_000),
        (int, "1.0", 1),
        (int | None, "1e+14", 10**14),
        (int | str, "1e+14", 10**14),
        (list[int], "[1e+14,7]", [10**14, 7]),
        (dict[str, int], '{"a":1e+14}', {"a": 10**14}),
        (Level, "1e+14", Level.HIGH),
        (float, "1", 1.0),
        (float, "1e+14", 1e14),
        (int | float, "1e+14", 1e14),
        (Any, "1e+14", 1e14),
        (Any, "{}", {}),
        (Decimal, "1e+14", Decimal(10**14)),
    ],
    ids=str,
)
def test_the_declared_type_undoes_what_cjson_did(kind, text, value):
    found = mended(kind, text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("text", ["1.2345678901235e+18", "9.007199254741e+15", "-1.7952247051235e+15"])
def test_an_integer_that_may_have_lost_digits_is_refused(text):
    for kind in (int, int | None, list[int]):
        value = f"[{text}]" if kind == list[int] else text
        with pytest.raises(WrongType, match="may have cut off"):
            mended(kind, value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [(list[int], '{"0":1}'), (dict[str, int], "[1]"), (Item, "[]"), (int, "{}"), (str, "[]"), (int, "1.5")],
    ids=str,
)
def test_repairing_cjson_output_invents_nothing(kind, text):
    with pytest.raises(WrongType):
        mended(kind, text)


# -- **kwargs


def test_kwargs_accept_additional_names():
    def job(a: int, **rest: float) -> None: ...

    signature = signature_of(job)
    assert signature.decode(signature.encode(signature.bind((1,), {"x": 2.5}))) == {"a": 1, "x": 2.5}
    assert signature.decode(b'{"a":1e+14,"y":2}') == {"a": 10**14, "y": 2.0}
    with pytest.raises(ArgumentError, match="'x'"):
        signature.encode({"a": 1, "x": "2"})
    with pytest.raises(WrongType, match="'x'"):
        signature.decode(b'{"a":1,"x":"2"}')
    with pytest.raises(UnknownParameters, match="'a'"):
        signature.decode(b'{"x":2}')


def test_additional_keys_of_a_typed_dict_are_kept():
    def job(**options: Unpack[Options]) -> None: ...

    signature = signature_of(job)
    assert signature.decode(signature.encode({"colour": "red"})) == {"colour": "red"}


# -- declarations


def test_parameters_that_cannot_be_given_by_name_are_refused():
    def star(*args: int) -> None: ...
    def slash(a: int, /) -> None: ...

    for function, name in ((star, r"'\*args'"), (slash, "'a'")):
        with pytest.raises(DeclarationError, match=name):
            signature_of(function)


def test_types_may_be_defined_below_the_job():
    signature = signature_of(takes_later)
    assert signature.decode(b'{"value":{"n":1}}') == {"value": Later(1)}


def takes_later(value: Later) -> None: ...


@dataclass
class Later:
    n: int


def needs_a_fraction(value: Fraction) -> None: ...
def returns_a_fraction(value: int) -> Fraction: ...  # type: ignore[empty-body]
def takes_two_objects(value: Item | Later) -> None: ...


def test_a_type_imported_only_for_type_checking_is_refused_with_a_hint():
    signature = signature_of(needs_a_fraction)
    with pytest.raises(DeclarationError, match=r"'value'.*TYPE_CHECKING"):
        signature.encode({"value": 1})
    with pytest.raises(WrongType, match="TYPE_CHECKING"):
        signature.decode(b'{"value":1}')


def test_the_return_type_of_a_job_does_not_matter():
    assert signature_of(returns_a_fraction).decode(b'{"value":1}') == {"value": 1}


def test_a_type_that_json_cannot_tell_apart_is_refused():
    with pytest.raises(DeclarationError, match="'value'"):
        signature_of(takes_two_objects).encode({"value": 1})


def test_a_default_of_none_allows_none():
    def job(value: int = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013

    signature = signature_of(job)
    assert signature.decode(signature.encode({"value": None})) == {"value": None}


def test_a_parameter_can_have_any_name():
    def job(self: int, p0: int, p1: int, cls: int, type: int, __struct_fields__: int = 0) -> None: ...

    signature = signature_of(job)
    given = {"self": 1, "p0": 2, "p1": 3, "cls": 4, "type": 5, "__struct_fields__": 6}
    assert signature.decode(signature.encode(given)) == given


def test_the_fields_of_a_class_job_are_its_arguments():
    @dataclass(kw_only=True)
    class Charge:
        order_id: int
        items: list[Item] = field(default_factory=list)
        note: str = ""
        total: int = field(init=False, default=0)

    signature = signature_of_fields(Charge)
    assert [parameter.name for parameter in signature.parameters] == ["order_id", "items", "note"]
    assert signature.decode(b'{"order_id":7,"items":{}}') == {"order_id": 7, "items": []}
    assert signature.bind((), {"order_id": 7}) == {"order_id": 7}
    with pytest.raises(ArgumentError, match="positional"):
        signature.bind((7,), {})
    with pytest.raises(UnknownParameters, match="'order_id'"):
        signature.decode(b"{}")


# -- raw values


@settings(deadline=None)
@given(json_values)
def test_a_raw_value_arrives_whole(value):
    assert decode_value(encode_value(value)) == value


def test_a_raw_value_follows_the_same_rules():
    for wrong in (math.nan, [datetime(2026, 1, 1)], object(), "\ud800"):
        with pytest.raises(ArgumentError):
            encode_value(wrong)
    assert encode_value({1}) == b"[1]"  # for another program, whose types qd does not know
    with pytest.raises(ArgumentError, match="a set would arrive as something else"):
        encode_value({"a": [{1}]}, as_it_is=True)
    for data in (b"{", b'"\xff"', b"[" * 100_000):
        with pytest.raises(WrongType):
            decode_value(data)
    assert decode_value(b"") is None
