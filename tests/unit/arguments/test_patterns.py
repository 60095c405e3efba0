"""Keys made from arguments: equal values have equal keys, whatever their JSON looks like and whichever program wrote it."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, TypedDict
from uuid import UUID

import msgspec
import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel

from qd.arguments.parameters import Parameter
from qd.arguments.signature import Pattern, Signature, text_of

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Line:
    unit: ClassVar[str] = "piece"
    sku: str
    price: Decimal = Decimal(1)
    tags: frozenset[str] = frozenset()


class Place(msgspec.Struct, frozen=True, rename="camel", tag=True):
    zip_code: str
    seen_at: datetime


class Pair(msgspec.Struct, frozen=True, array_like=True):
    weight: float
    names: frozenset[str]


class Row(TypedDict):
    name: str
    age: int


class Trip(BaseModel):
    model_config = ConfigDict(extra="allow")
    start: str = Field(alias="from")
    at: datetime | None = None
    tags: set[str] = set()


class Names(RootModel[set[str]]): ...


@dataclass
class Order:
    lines: list[Line] = field(default_factory=list)


def signature(annotation: Any, **default: Any) -> Signature:
    return Signature("job()", [Parameter("m", not default, True, annotation, globals(), **default)])


def key(annotation: Any, raw: str) -> str:
    """The key for the parameter `m` of this type, given the JSON of a payload."""
    return Pattern("unique", "{m}", signature(annotation)).key(b'{"m":%b}' % raw.encode())


def sent(annotation: Any, value: object) -> str:
    """The same, given the JSON that qd sends for this value."""
    own = signature(annotation)
    return Pattern("unique", "{m}", own).key(own.encode({"m": value}))


@pytest.mark.parametrize(
    ("annotation", "raw", "text"),
    [
        (str, '"a b"', "a b"),
        (str, '"\\u00e9"', "é"),
        (int, "7", "7"),
        (bool, "true", "true"),
        (float, "1.0", "1.0"),
        (float, "1", "1.0"),
        (float, "-0.0", "0.0"),
        (float, "1e3", "1000.0"),
        (float | None, "null", "null"),
        (set[int], "[10,2,1]", "[1,2,10]"),
        (set[str], '["b","é","a"]', '["a","b","é"]'),
        (frozenset[int | str], '["b",3,"a",1]', '[1,3,"a","b"]'),
        (set[Color], '["red","blue"]', '["blue","red"]'),
        (set[tuple[int, str]], '[[2,"a"],[1,"b"]]', '[[1,"b"],[2,"a"]]'),
        (list[set[int]], "[[3,1],[2]]", "[[1,3],[2]]"),
        (list[float], "[1,2.5]", "[1.0,2.5]"),
        (deque[int], "[2,1]", "[2,1]"),
        (dict[str, float], '{"b":1,"a":2}', '{"a":2.0,"b":1.0}'),
        (dict[int, int], '{"10":1,"9":2}', '{"10":1,"9":2}'),
        (Row, '{"name":"x","age":1}', '{"age":1,"name":"x"}'),
        (datetime, '"2026-11-22T12:00:00Z"', "2026-11-22T12:00:00Z"),
        (datetime, '"2026-11-22T14:00:00+02:00"', "2026-11-22T12:00:00Z"),
        (datetime, '"2026-11-22T12:00:00.000000Z"', "2026-11-22T12:00:00Z"),
        (date, '"2026-11-22"', "2026-11-22"),
        (timedelta, '"PT3600S"', "PT3600S"),
        (Decimal, '"1.50"', "1.5"),
        (Decimal, "1.5", "1.5"),
        (Decimal, '"100"', "100"),
        (Decimal, '"1E2"', "100"),
        (Decimal, '"-0.00"', "0"),
        (UUID, '"0A0A0A0A-0000-4000-8000-00000000000A"', "0a0a0a0a-0000-4000-8000-00000000000a"),
        (Color, '"red"', "red"),
        (Line, '{"tags":["b","a"],"sku":"x"}', '{"sku":"x","price":"1","tags":["a","b"]}'),
        (Trip, '{"tags":["b","a"],"from":"x"}', '{"start":"x","at":null,"tags":["a","b"]}'),
        (Trip, '{"at":"2026-11-22T14:00:00+02:00","start":"x"}', '{"start":"x","at":"2026-11-22T12:00:00Z","tags":[]}'),
        (list[Trip], '[{"b":1,"a":[2],"start":"x"}]', '[{"start":"x","at":null,"tags":[],"a":[2],"b":1}]'),
        (Names, '["b","a"]', '["a","b"]'),
        (Path, '"a//b/"', "a/b"),
        (
            Place,
            '{"seenAt":"2026-11-22T14:00:00+02:00","zipCode":"1","type":"Place"}',
            '{"type":"Place","zipCode":"1","seenAt":"2026-11-22T12:00:00Z"}',
        ),
        (Pair, '[1,["b","a"]]', '[1.0,["a","b"]]'),
        (Order, '{"lines":[{"sku":"x","price":"2.0"}]}', '{"lines":[{"sku":"x","price":"2","tags":[]}]}'),
        (Any, '{"b":1,"a":[2,1]}', '{"a":[2,1],"b":1}'),
    ],
)
def test_a_key_is_made_of_the_value_and_not_of_its_json(annotation: Any, raw: str, text: str) -> None:
    assert key(annotation, raw) == text


@pytest.mark.parametrize(
    ("annotation", "values"),
    [
        (float, [1, 1.0]),
        (float, [0.0, -0.0]),
        (set[str], [set(order) for order in (["xy", "ab", "q"], ["q", "ab", "xy"])]),
        (datetime, [NOON, NOON.astimezone(timezone(timedelta(hours=2)))]),
        (Decimal, [Decimal("10"), Decimal("10.00"), Decimal("1E1")]),
        (dict[str, int], [{"a": 1, "b": 2}, {"b": 2, "a": 1}]),
    ],
)
def test_equal_values_have_one_key(annotation: Any, values: list[Any]) -> None:
    assert len({sent(annotation, value) for value in values}) == 1


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (str, "é b"),
        (int, 10**30),
        (float, 1e22),
        (float, 0.1),
        (bool, False),
        (int | None, None),
        (list[int], [3, 1, 2]),
        (tuple[int, str], (1, "é")),
        (dict[str, int], {"a": 1, "b": 2}),
        (datetime, NOON.replace(microsecond=5)),
        (date, NOON.date()),
        (timedelta, timedelta(days=1, seconds=2)),
        (Decimal, Decimal("12.5")),
        (UUID, UUID(int=7)),
        (bytes, b"abc"),
        (Color, Color.RED),
        (Line, Line("x", Decimal("1.25"), frozenset({"a"}))),
        (Place, Place("1", NOON)),
        (list[Line], [Line("x")]),
    ],
)
def test_a_value_with_only_one_json_form_keeps_it(annotation: Any, value: Any) -> None:
    """So locks are shared with hosts that still run a release that uses the JSON text as the key."""
    (plain,) = json.loads(signature(annotation).encode({"m": value})).values()
    text = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
    assert sent(annotation, value) == text


def test_a_default_has_the_key_of_the_same_value_when_it_is_given() -> None:
    own = signature(float, default=1)
    pattern = Pattern("unique", "{m}", own)
    assert pattern.key(b"{}") == pattern.key(b"") == pattern.key(own.encode({"m": 1.0})) == "1.0"


def test_a_display_name_keeps_the_values_as_written() -> None:
    pattern = Pattern("display_name", "{m} EUR", signature(Decimal))
    assert pattern.filled(b'{"m":"1.50"}') == "1.50 EUR"


def test_a_value_that_does_not_convert_is_used_as_is() -> None:
    assert key(int, '{"b":1,"a":2}') == '{"a":2,"b":1}'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", "a"),
        (True, "True"),
        (None, "None"),
        ((1, "a"), "(1, 'a')"),
        ({"b": 1, "a": 2}, "{'b': 1, 'a': 2}"),
        (frozenset({"b", "a"}), "['a', 'b']"),
        (Color.RED, "red"),
        (NOON.astimezone(timezone(timedelta(hours=2))), "2026-11-22T12:00:00Z"),
        (UUID(int=1), str(UUID(int=1))),
        (range(2), "range(0, 2)"),
    ],
)
def test_equal_keys_from_a_callable_are_one_string(value: Any, text: str) -> None:
    assert text_of(value) == text
