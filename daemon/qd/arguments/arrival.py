"""Compares an argument with what the worker will get: a value that would change or vanish on the way is refused.

given                          arrives as                        verdict
Item(sku="x")                  Item(sku="x")                     accepted: same class, same fields
SpecialItem(sku="x", extra=1)  Item(sku="x")                     refused: another class
Safe("a"), Status.PAID         "a", "paid"                       accepted: subclasses of str, int and float
(1, 2)                         [1, 2]                            accepted: list, tuple and deque are interchangeable
{1, 2}                         [1, 2]                            refused: a set must arrive as a set
"2031-01-01", {"sku": "x"}     date(2031, 1, 1), Item(sku="x")   accepted: the JSON form of a value
"""

from __future__ import annotations

from collections import deque
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from qd.arguments.injection import Serialized
from qd.arguments.values import EXTRA, attributes_of, field_names, is_model, is_parametrized

PLAIN = frozenset((str, int, float, bool, type(None)))
_NUMBERS = (int, float)
_MOMENTS = (datetime, time)
_SERIES = (list, tuple, deque)
_SETS = (set, frozenset)
_BYTES = (bytes, bytearray, memoryview)
_OTHERS = (date, timedelta, UUID)
_ABSENT = object()

Step = tuple[Any, str]  # the step before (None before the first), and this one
Todo = list[tuple[Any, Any, Any]]  # given, arrived, Step


class Changed(ValueError):
    """A value would arrive changed."""


def compare(given: Any, arrived: Any) -> None:
    """Raises Changed. arrived: `given` after it was encoded and decoded by the declared type."""
    todo: Todo = [(given, arrived, None)]  # not recursive: values may be nested deeper than Python's call stack
    while todo:
        given, arrived, step = todo.pop()
        try:
            _compare(given, arrived, step, todo)
        except Changed as error:
            raise Changed(f"{error}{_where(step)}") from None


def _where(step: Step | None) -> str:
    steps: list[str] = []
    while step is not None:
        step, text = step
        steps.insert(0, text)
    return f" (at {''.join(steps)})" if steps else ""


def _compare(given: Any, arrived: Any, step: Step | None, todo: Todo) -> None:
    """Compare one value, and add its parts to `todo`."""
    if given is arrived or isinstance(arrived, Serialized):
        return
    kind = type(given)
    if kind is not type(arrived) and getattr(arrived, "__pydantic_root_model__", False):
        todo.append((given, arrived.root, step))
    elif kind in PLAIN and type(arrived) is kind:
        _same(given, arrived, True)
    elif kind is list and type(arrived) is list and len(given) == len(arrived):
        kinds = list(map(type, given))
        if PLAIN.issuperset(kinds) and kinds == list(map(type, arrived)) and given == arrived:
            return  # long lists of numbers or strings are compared in C
        for i, (part, other) in enumerate(zip(given, arrived, strict=True)):
            if type(part) not in PLAIN or type(part) is not type(other) or part != other:
                todo.append((part, other, (step, f"[{i}]")))
    elif kind is dict and type(arrived) is dict:
        _dict(given, arrived, step, todo)
    elif isinstance(given, Enum):
        _same(given, arrived, type(arrived) in PLAIN or type(arrived) is kind)
    elif isinstance(given, str):
        if isinstance(arrived, str):  # else it is the JSON form of the value
            _same(given, arrived, True)
    elif isinstance(given, _NUMBERS):
        _number(given, arrived)
    elif (names := field_names(kind)) is not None:
        if type(arrived) is not kind and not is_parametrized(type(arrived), kind):
            raise _changed(given, arrived)
        for name in names:
            part, other = getattr(given, name, _ABSENT), getattr(arrived, name, _ABSENT)
            if type(part) not in PLAIN or type(part) is not type(other) or part != other:
                todo.append((part, other, (step, f".{name}") if name != EXTRA else step))
    elif isinstance(given, dict):
        _dict(given, arrived, step, todo)
    elif isinstance(given, _SERIES):
        _series(given, arrived, step, todo)
    elif isinstance(given, _SETS):
        _set(given, arrived, step, todo)
    elif isinstance(given, _MOMENTS):
        _moment(given, arrived)
    elif isinstance(given, Decimal):
        _same(given, arrived, isinstance(arrived, Decimal) and given.is_finite())
    elif isinstance(given, _BYTES):
        _same(given, arrived, isinstance(arrived, _BYTES))
    else:
        _same(given, arrived, type(arrived) is kind or (isinstance(given, _OTHERS) and isinstance(arrived, _OTHERS)))


def _dict(given: dict[Any, Any], arrived: Any, step: Step | None, todo: Todo) -> None:
    if not isinstance(arrived, dict):
        return _form(given, arrived, step, todo)
    if len(given) != len(arrived):
        lost = next((key for key in given if key not in arrived), None)
        raise Changed(f"the key {lost!r:.40} would be lost: its type has no such key")
    for (key, part), (other_key, other) in zip(given.items(), arrived.items(), strict=True):
        if type(key) is not str or key != other_key:
            todo.append((key, other_key, (step, f"[{key!r:.40}]")))
        if type(part) not in PLAIN or type(part) is not type(other) or part != other:
            todo.append((part, other, (step, f"[{key!r:.40}]")))


def _form(given: dict[Any, Any], arrived: Any, step: Step | None, todo: Todo) -> None:
    """A dict for an object: every key must be a field of the object."""
    names, attributes = field_names(type(arrived)), None
    if names is None:
        raise _changed(given, arrived)
    if not is_model(type(arrived)):
        attributes = dict(zip(getattr(arrived, "__struct_encode_fields__", names), names, strict=True))
    elif (attributes := attributes_of(type(arrived))) is None:
        return
    tag = getattr(getattr(arrived, "__struct_config__", None), "tag_field", None)
    for key, part in given.items():
        if key in attributes:
            todo.append((part, getattr(arrived, attributes[key], _ABSENT), (step, f"[{key!r:.40}]")))
        elif key != tag:
            raise Changed(f"the key {key!r:.40} would be lost: {_name(type(arrived))} has no such field")


def _series(given: Any, arrived: Any, step: Step | None, todo: Todo) -> None:
    if isinstance(arrived, _SETS):
        if len(given) != len(arrived):
            raise Changed(f"{_a(type(given))} with a value twice would arrive as {_a(type(arrived))}: send a set")
        return  # the JSON form of a set
    names = field_names(type(arrived))
    others = arrived if names is None else [getattr(arrived, name, _ABSENT) for name in names]
    if not isinstance(others, _SERIES) or (len(given) != len(others) if names is None else len(given) > len(others)):
        raise _changed(given, arrived)
    for i, (part, other) in enumerate(zip(given, others, strict=False)):
        todo.append((part, other, (step, f"[{i}]")))


def _set(given: Any, arrived: Any, step: Step | None, todo: Todo) -> None:
    if not isinstance(arrived, _SETS) or len(given) != len(arrived):
        raise _changed(given, arrived)
    found = {part: part for part in arrived}
    for part in given:
        if part not in found:
            raise _changed(given, arrived)
        todo.append((part, found[part], (step, "[...]")))


def _number(given: float, arrived: Any) -> None:
    if type(arrived) is Decimal and isinstance(given, float):
        return _same(given, float(arrived), True)  # 0.1 for Decimal("0.1")
    if type(arrived) in PLAIN or isinstance(arrived, Decimal):
        _same(given, arrived, arrived is not None)


def _moment(given: datetime | time, arrived: Any) -> None:
    """The same time and UTC offset; the name of a time zone is not sent."""
    if isinstance(given, datetime) and given.utcoffset() is None:
        raise Changed("a datetime without a time zone (set one: tzinfo=UTC)")
    kind = datetime if isinstance(given, datetime) else time
    if not isinstance(arrived, kind) or (given.tzinfo is None) != (arrived.tzinfo is None):
        raise _changed(given, arrived)
    same = given.replace(tzinfo=None, fold=0) == arrived.replace(tzinfo=None, fold=0)
    if not same or given.utcoffset() != arrived.utcoffset():
        raise _changed(given, arrived)


def _same(given: Any, arrived: Any, fits: bool) -> None:
    if not fits or given != arrived:
        raise _changed(given, arrived)


def _changed(given: Any, arrived: Any) -> Changed:
    sent, got = type(given), type(arrived)
    if sent is got and repr(given) == repr(arrived):
        return Changed(f"{_a(sent)} would arrive with another value")
    if sent is got:
        return Changed(f"{given!r:.60} would arrive as {arrived!r:.60}")
    return Changed(f"{_a(sent)} would arrive as {_a(got)}: send {_a(got)}, or declare {_name(sent)}")


def _name(kind: type) -> str:
    return "None" if kind is type(None) else kind.__qualname__.rpartition("<locals>.")[2]


def _a(kind: type) -> str:
    name = _name(kind)
    return f"{'an' if name[:1] in 'AEIOaeio' else 'a'} {name}" if name != "None" else name
