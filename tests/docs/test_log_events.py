"""docs/reference/log-events.md lists every log event in the source above debug, with its levels and fields.

Names are read from the calls of `log.info(...)` and its like. CHILD, SERVER, JOB and DEATH stand for several names.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

import pytest

from qd.process.scoreboard import VERDICTS
from tests.support.pages import ROOT

pytestmark = pytest.mark.xdist_group("log events")  # one process of tests reads the source, not each
PAGE = (ROOT / "docs" / "reference" / "log-events.md").read_text()
LEVELS = ("debug", "info", "warning", "error")
JOB = {"queue", "job", "display", "id", "attempt", "crashes", "tags"}
DEATH = {"slot", "pid", "how", "reason", "peak", "job", "queue", "run", "entry", "took", "stack", "trace"}
SPREAD = {"log_fields": JOB, "named": {"job", "id"}}  # what these functions return
CALLS = {"job.progress", "job.checkpoint", "job.step"}  # for f"job.{name}" in worker/connection.py


@dataclass
class Fields:
    """maybe: added in one branch of the function. open: there may be more, which the source does not spell out."""

    sure: set[str] = field(default_factory=set)
    maybe: set[str] = field(default_factory=set)
    open: bool = False

    def add(self, more: Fields) -> None:
        self.sure |= more.sure
        self.maybe |= more.maybe
        self.open |= more.open


@dataclass
class Event:
    levels: set[str] = field(default_factory=set)
    fields: Fields = field(default_factory=Fields)


def texts_of(node: ast.expr, function: ast.AST) -> set[str]:
    """The texts that an expression may be."""
    if isinstance(node, ast.Constant):
        return {str(node.value)}
    if isinstance(node, ast.IfExp):
        return texts_of(node.body, function) | texts_of(node.orelse, function)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "event":
        return {f"CHILD.{text}" for text in texts_of(node.args[0], function)}
    if isinstance(node, ast.Name):
        return {text for value in assigned(node.id, function) for text in texts_of(value, function)}
    if isinstance(node, ast.JoinedStr):
        holes = [ast.unparse(part.value) for part in node.values if isinstance(part, ast.FormattedValue)]
        tail = "".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))
        if tail == "job.":
            return CALLS
        assert len(holes) == 1, ast.unparse(node)
        assert tail.startswith("."), ast.unparse(node)
        return {f"{'CHILD' if holes[0] == 'role.word' else 'SERVER'}{tail}"}
    raise AssertionError(f"not a name of an event: {ast.unparse(node)}")


def assigned(name: str, function: ast.AST) -> Iterator[ast.expr]:
    """What is assigned to a name in this function."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name) and target.id == name:
                    yield node.value
                elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = zip(target.elts, node.value.elts, strict=True)
                    yield from (value for each, value in pairs if isinstance(each, ast.Name) and each.id == name)
        elif isinstance(node, ast.AnnAssign) and node.value is not None and ast.unparse(node.target) == name:
            yield node.value


def keys_of(node: ast.expr, function: ast.AST) -> Fields:
    """The keys of a mapping."""
    found = Fields()
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant):
                found.sure.add(str(key.value))
            else:
                found.add(Fields(open=True) if key is not None else keys_of(value, function))
    elif isinstance(node, ast.IfExp):
        found.add(keys_of(node.body, function))
        found.add(keys_of(node.orelse, function))
    elif isinstance(node, ast.Call) and ast.unparse(node.func) in SPREAD:
        found.sure |= SPREAD[ast.unparse(node.func)]
    elif isinstance(node, ast.Name) and (values := list(assigned(node.id, function))):
        for value in values:
            found.add(keys_of(value, function))
        for each in ast.walk(function):
            if isinstance(each, ast.AugAssign) and ast.unparse(each.target) == node.id:
                more = keys_of(each.value, function)
                found.add(Fields(set(), more.sure | more.maybe, more.open))
    else:
        found.open = True
    return found


def fields_of(call: ast.Call, function: ast.AST) -> Fields:
    found = Fields({keyword.arg for keyword in call.keywords if keyword.arg})
    mappings = [keyword.value for keyword in call.keywords if keyword.arg is None]
    for mapping in mappings + (call.args[2:] if ast.unparse(call.func).endswith(".line") else []):
        found.add(keys_of(mapping, function))
    return found


@cache
def in_code() -> dict[str, Event]:
    found = dict[str, Event]()
    for path in sorted((ROOT / "daemon" / "qd").rglob("*.py")):
        tree = ast.parse(path.read_text())
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for call in ast.walk(function):
                if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
                    continue
                method, log = call.func.attr, ast.unparse(call.func.value).rpartition(".")[2]
                if log.lstrip("_") != "log" or method not in (*LEVELS, "line") or not call.args:
                    continue
                level, name = ({method}, call.args[0]) if method != "line" else (set(), call.args[1])
                if isinstance(name, ast.Constant) and not re.fullmatch(r"[a-z]+\.[a-z_]+", str(name.value)):
                    continue  # a sentence: a logger of Python's
                fields = fields_of(call, function)
                if ast.unparse(name).startswith("words.event"):
                    for words in VERDICTS.values():
                        note(found, words.event.replace("{child}", "CHILD"), {words.level}, fields)
                    continue
                for each in texts_of(name, function):
                    note(found, each, level or texts_of(call.args[0], function), fields)
    return found


def note(found: dict[str, Event], name: str, levels: set[str], fields: Fields) -> None:
    event = found.setdefault(name, Event())
    event.levels |= levels
    event.fields.add(fields)


ROW = re.compile(r"^\| `([\w.]+)` \| ([a-z, ]+) \| (.*?) \| (.+?) \| (.+?) \|$", re.MULTILINE)


def on_page() -> dict[str, Event]:
    found = dict[str, Event]()
    for name, levels, fields, meaning, todo in ROW.findall(PAGE):
        assert name not in found, f"{name} has two rows"
        assert meaning[0].isupper() or meaning[0] == "`", f"{name}: {meaning}"
        assert todo, name
        words = (
            set(re.findall(r"`(\w+)`", fields))
            | (JOB if "JOB" in fields else set())
            | (DEATH if "DEATH" in fields else set())
        )
        found[name] = Event({each.strip() for each in levels.split(",")}, Fields(words))
    return found


LISTED = on_page()


def test_every_event_above_debug_has_a_row_and_no_other_has_one():
    code = in_code()
    assert len(code) > 90
    assert sorted(name for name, event in code.items() if event.levels != {"debug"}) == sorted(LISTED)


@pytest.mark.parametrize("name", sorted(LISTED))
def test_the_row_of_an_event_has_its_levels_and_fields(name):
    code, row = in_code()[name], LISTED[name]
    assert row.levels == code.levels
    assert code.fields.sure <= row.fields.sure
    assert code.fields.open or row.fields.sure <= code.fields.sure | code.fields.maybe


def test_every_logger_of_qd_is_on_the_page():
    source = "".join(path.read_text() for path in (ROOT / "daemon" / "qd").rglob("*.py"))
    loggers = set(re.findall(r'getLogger\("(qd\.\w+)"\)', source))
    assert len(loggers) > 5
    assert sorted(loggers) == sorted(re.findall(r"^\| `(qd\.\w+)` \|", PAGE, re.MULTILINE))
