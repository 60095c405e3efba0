"""A queue named like a key of another queue is refused wherever it is read, before anything is sent."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest

from qd import ArgumentError, DeclarationError
from qd.drivers.keyspace import keys
from qd.options.kinds import QUEUE_SUFFIXES
from qd.options.tables import WORK
from tests.support.fakes import FakeQd

SAID = "'x:delayed' cannot be a queue: it is a key of queue 'x' (':delayed'), choose another name"


def work(n: int) -> None: ...


SENT: dict[str, Callable[[FakeQd], object]] = {
    "declared": lambda app: app.job("step", queue="x:delayed")(work),
    "using": lambda app: app.job("step")(work).using(queue="x:delayed"),
    "by name": lambda app: app.queue("x:delayed").push("step"),
    "raw": lambda app: app.queue("x:delayed").push_raw(b"{}"),
}


@pytest.mark.parametrize("how", SENT)
def test_a_queue_named_like_a_key_of_another_queue_cannot_be_sent_to(how: str):
    app = FakeQd()
    with pytest.raises((ArgumentError, DeclarationError)) as refused:
        SENT[how](app)
    assert str(refused.value).endswith(SAID)


@pytest.mark.parametrize("ending", QUEUE_SUFFIXES)
def test_a_queue_named_like_a_key_of_another_queue_cannot_be_worked(ending: str):
    with pytest.raises(ValueError, match=f"a key of queue 'default' .'{ending}'"):
        WORK["queues"].read(["mail", f"default{ending}"])


def test_each_key_function_of_a_queue_has_its_suffix():
    made = {
        name: key("NAME").removeprefix("queues:NAME")
        for name, key in inspect.getmembers(keys, inspect.isfunction)
        if list(inspect.signature(key).parameters) == ["name"] and str(key("NAME")).startswith("queues:NAME")
    }
    assert made.pop("ready") == ""
    assert {name: suffix.replace(":qd-", ":") for name, suffix in made.items()} == {name: f":{name}" for name in made}
    assert set(made.values()) == set(QUEUE_SUFFIXES)
    assert WORK["queues"].read("reserved,a:b") == ("reserved", "a:b")
