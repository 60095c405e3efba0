"""Bad input is refused before anything is sent: the error is raised at the call and names the job and the argument."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from qd import ArgumentError, DeclarationError, Job, RunningJob
from qd.errors import ConfigError, QdError
from qd.events import JobFailed
from tests.support.fakes import FakeQd

NAIVE = datetime(2031, 1, 1)
JOB = "job 'mail.welcome'"


class Opaque:
    """Has no JSON form."""


class Shop:
    """An app with jobs that are used wrongly. `wrong` hides the mistakes from the type checker."""

    def __init__(self) -> None:
        self.app = FakeQd()
        self.app.settings = replace(self.app.settings, max_payload=1 << 20)
        self.wrong: Any = self.app

        @self.app.job("mail.welcome", queue="mail")
        def welcome(to: str, at: datetime | None = None, size: float = 0, data: object = None) -> None: ...

        @self.app.job("hook", raw=True)
        def hook(data: object) -> None: ...

        @self.app.job("pay.charge")
        class Charge(Job[None]):
            order_id: int
            extra: object = None

            def handle(self) -> None: ...

        self.welcome: Any = welcome
        self.hook: Any = hook
        self.charge: Any = Charge

    def declare(self, **options: Any) -> None:
        def report(order_id: int) -> None: ...

        self.wrong.job("shop.report", **options)(report)


def circle() -> list[object]:
    found: list[object] = []
    found.append(found)
    return found


def deep(levels: int) -> object:
    found: object = 1
    for _ in range(levels):
        found = [found]
    return found


def plain(job: RunningJob, call_next: Callable[[], object]) -> object:
    return call_next()


async def waiting(job: RunningJob, call_next: Callable[[], Any]) -> object:
    return await call_next()


Act = Callable[[Shop], object]
Case = tuple[str, Act, type[Exception], tuple[str, ...]]  # description, call, error class, words in its message

ARGUMENTS: list[Case] = [
    ("an object", lambda s: s.welcome.dispatch("a", data=Opaque()), ArgumentError, (JOB, "'data'", "no JSON form")),
    ("one inside", lambda s: s.welcome.dispatch("a", data=[{"k": Opaque()}]), ArgumentError, (JOB, "'data'")),
    ("a function", lambda s: s.welcome.dispatch("a", data=circle), ArgumentError, (JOB, "'data'")),
    ("a lock", lambda s: s.welcome.dispatch("a", data=threading.Lock()), ArgumentError, (JOB, "'data'")),
    ("NaN", lambda s: s.welcome.dispatch("a", size=float("nan")), ArgumentError, (JOB, "'size'", "nan")),
    ("infinity", lambda s: s.welcome.dispatch("a", data=[float("inf")]), ArgumentError, (JOB, "'data'", "inf")),
    ("a circle", lambda s: s.welcome.dispatch("a", data=circle()), ArgumentError, (JOB, "'data'", "contains itself")),
    ("600 deep", lambda s: s.welcome.dispatch("a", data=deep(600)), ArgumentError, (JOB, "max_depth = 512")),
    (
        "without end deep",
        lambda s: s.welcome.dispatch("a", data=deep(99999)),
        ArgumentError,
        (JOB, "'data'", "too deep"),
    ),
    ("half a character", lambda s: s.welcome.dispatch("a\ud800"), ArgumentError, (JOB, "'to'", "Unicode")),
    ("a tuple as key", lambda s: s.welcome.dispatch("a", data={(1, 2): 3}), ArgumentError, (JOB, "'data'")),
    ("a naive datetime", lambda s: s.welcome.dispatch("a", NAIVE), ArgumentError, (JOB, "'at'", "time zone")),
    ("one in a list", lambda s: s.welcome.dispatch("a", data=[NAIVE]), ArgumentError, (JOB, "'data'", "time zone")),
    ("another type", lambda s: s.welcome.dispatch(7), ArgumentError, (JOB, "'to'", "expected str, got int")),
    ("none at all", lambda s: s.welcome.dispatch(), ArgumentError, (JOB, "'to'")),
    ("an unknown one", lambda s: s.welcome.dispatch("a", att=1), ArgumentError, (JOB, "'att'", "did you mean 'at'")),
    ("one twice", lambda s: s.welcome.dispatch("a", to="b"), ArgumentError, (JOB, "'to'")),
    (
        "too many",
        lambda s: s.welcome.dispatch("a", None, 1, 2, 3),
        ArgumentError,
        (JOB, "4 positional arguments", "5 were given"),
    ),
    ("too large", lambda s: s.welcome.dispatch("a" * (1 << 20)), ArgumentError, (JOB, "max_payload = 1048576")),
    (
        "too large, among others",
        lambda s: s.welcome.dispatch("a", data="b" * (1 << 20)),
        ArgumentError,
        (JOB, "the argument 'data' 1048578 of them"),
    ),
    ("in bind", lambda s: s.welcome.bind(7), ArgumentError, (JOB, "'to'")),
    ("in adispatch", lambda s: asyncio.run(s.welcome.adispatch(7)), ArgumentError, (JOB, "'to'")),
    ("in run", lambda s: s.welcome.run(7), ArgumentError, (JOB, "'to'")),
    (
        "a set without a type",
        lambda s: s.welcome.dispatch("a", data={"k": {1}}),
        ArgumentError,
        ("'mail.welcome'", "'data'", "a set", "annotate"),
    ),
    ("a tuple of a raw job", lambda s: s.hook.dispatch((1, 2)), ArgumentError, ("job 'hook'", "a tuple", "list")),
    ("a delay as text", lambda s: s.welcome.using(delay="5m").dispatch("a"), DeclarationError, (JOB, "delay", "300")),
    ("of PHP", lambda s: s.app.queue("php").push("X@y", delay="5m"), DeclarationError, ("'X@y'", "delay", "300")),  # type: ignore[arg-type]
    ("a wait as text", lambda s: s.app.handle("x").result("5m"), ArgumentError, ("timeout of result()", "'5m'", "300")),  # type: ignore[arg-type]
    ("of a raw job", lambda s: s.hook.dispatch({"a": Opaque()}), ArgumentError, ("job 'hook'", "no JSON form")),
    ("of a class job", lambda s: s.charge(order_id="7").dispatch(), ArgumentError, ("job 'pay.charge'", "'order_id'")),
    ("a field missing", lambda s: s.charge(), TypeError, ("Charge", "'order_id'")),
    ("of a PHP job", lambda s: s.app.queue("php").push("X@fire", Opaque()), ArgumentError, ("job 'X@fire'", "JSON")),
    ("a set for PHP", lambda s: s.app.queue("php").push("X@fire", {"a": {1}}), ArgumentError, ("'X@fire'", "a set")),
    ("a tuple for PHP", lambda s: s.app.queue("php").push("X@fire", (1, 2)), ArgumentError, ("'X@fire'", "a tuple")),
    ("raw text", lambda s: s.wrong.queue("php").push_raw("{}"), ArgumentError, ("push_raw", "bytes")),
    ("no name", lambda s: s.app.queue("php").push(""), ArgumentError, ("name",)),
    ("no command", lambda s: s.app.send(Opaque()), ArgumentError, ("Opaque", "app.map")),
    ("no event", lambda s: s.wrong.emit(3), ArgumentError, ("3", "event")),
]

OPTIONS: list[Case] = [
    ("negative delay", lambda s: s.welcome.using(delay=-1).dispatch("a"), DeclarationError, (JOB, "delay", "-1")),
    (
        "negative timedelta",
        lambda s: s.welcome.using(delay=timedelta(seconds=-1)).dispatch("a"),
        DeclarationError,
        (JOB, "delay"),
    ),
    (
        "naive delay",
        lambda s: s.welcome.using(delay=NAIVE).dispatch("a"),
        DeclarationError,
        (JOB, "delay", "time zone"),
    ),
    (
        "NaN as delay",
        lambda s: s.welcome.using(delay=float("nan")).dispatch("a"),
        DeclarationError,
        (JOB, "delay", "nan"),
    ),
    ("endless delay", lambda s: s.welcome.using(delay=float("inf")).dispatch("a"), DeclarationError, (JOB, "delay")),
    (
        "text as delay",
        lambda s: s.welcome.using(delay="soon").dispatch("a"),
        DeclarationError,
        (JOB, "delay", "'soon'"),
    ),
    (
        "delay of a PHP job",
        lambda s: s.app.queue("q").push("X", delay=-1),
        DeclarationError,
        ("job 'X'", "delay", "-1"),
    ),
    (
        "naive one of a PHP job",
        lambda s: s.app.queue("q").push("X", delay=NAIVE),
        DeclarationError,
        ("job 'X'", "delay"),
    ),
    ("empty key", lambda s: s.welcome.using(key="").dispatch("a"), DeclarationError, (JOB, "key")),
    ("a number as key", lambda s: s.welcome.using(key=42).dispatch("a"), DeclarationError, (JOB, "key", "42")),
    (
        "after_commit",
        lambda s: s.welcome.using(after_commit="yes").dispatch("a"),
        DeclarationError,
        (JOB, "after_commit"),
    ),
    ("empty key of keyed", lambda s: s.app.keyed(s.welcome, ""), DeclarationError, (JOB, "key")),
    ("keyed, of no job", lambda s: s.wrong.keyed(print, "k"), ArgumentError, ("print", "not a job")),
    ("keyed, negative", lambda s: s.app.keyed(s.welcome, "k").reschedule(-1), DeclarationError, (JOB, "delay", "-1")),
    ("keyed, naive", lambda s: s.app.keyed(s.welcome, "k").reschedule(NAIVE), DeclarationError, (JOB, "time zone")),
    ("unknown option", lambda s: s.welcome.using(trys=3), DeclarationError, (JOB, "'trys'", "did you mean 'tries'")),
    ("of Celery", lambda s: s.welcome.using(countdown=3), DeclarationError, (JOB, "did you mean 'delay'")),
    (
        "no option at all",
        lambda s: s.welcome.using(zzz=3),
        DeclarationError,
        (JOB, "(known: delay, key, after_commit, "),
    ),
    ("send_task()", lambda s: s.app.send_task("a"), AttributeError, ("Qd has no 'send_task'", "app.queue(")),  # type: ignore[attr-defined]
    ("delay()", lambda s: s.welcome.delay("a"), AttributeError, (JOB, "has no 'delay': use dispatch(...)")),
    ("apply_async()", lambda s: s.welcome.apply_async(("a",)), AttributeError, (JOB, "using(delay=60).dispatch(...)")),
    ("tries", lambda s: s.welcome.using(tries=-1), DeclarationError, (JOB, "tries", "-1")),
    ("timeout", lambda s: s.welcome.using(timeout="long"), DeclarationError, (JOB, "timeout", "'long'")),
    ("queue", lambda s: s.welcome.using(queue=" "), DeclarationError, (JOB, "queue")),
    ("connection", lambda s: s.welcome.using(connection="nope").dispatch("a"), ConfigError, ("'nope'", "redis, other")),
    ("backoff", lambda s: s.declare(backoff=[]), DeclarationError, ("job 'shop.report'", "backoff")),
    ("unique", lambda s: s.declare(unique="order:{id}"), DeclarationError, ("job 'shop.report'", "unique", "'id'")),
    ("unique_for", lambda s: s.declare(unique="x", unique_for=-1), DeclarationError, ("'shop.report'", "unique_for")),
    ("unique_until", lambda s: s.declare(unique_until="now"), DeclarationError, ("'shop.report'", "unique_until")),
    ("result_ttl", lambda s: s.declare(result_ttl="no"), DeclarationError, ("job 'shop.report'", "result_ttl")),
    ("display_name", lambda s: s.declare(display_name="{id}"), DeclarationError, ("job 'shop.report'", "display_name")),
]

SHAPES: list[Case] = [
    ("middleware: a word", lambda s: s.declare(middleware=["lock"]), DeclarationError, ("shop.report", "'lock'")),
    ("middleware: a number", lambda s: s.declare(middleware=5), DeclarationError, ("shop.report", "5")),
    ("middleware: a class", lambda s: s.declare(middleware=[Opaque]), DeclarationError, ("shop.report", "Opaque")),
    (
        "middleware: one argument",
        lambda s: s.declare(middleware=[lambda job: 1]),
        DeclarationError,
        ("shop.report", "(job, call_next)"),
    ),
    (
        "middleware: async",
        lambda s: s.declare(middleware=[waiting]),
        DeclarationError,
        ("shop.report", "waiting", "async"),
    ),
    ("middleware in using", lambda s: s.welcome.using(middleware=[plain]), DeclarationError, ("middleware",)),
    ("middleware of the app", lambda s: s.wrong.middleware.append(3), DeclarationError, ("app.middleware", "3")),
    ("listener: no argument", lambda s: s.wrong.on(JobFailed)(lambda: 1), DeclarationError, ("listener", "JobFailed")),
    ("listener: two", lambda s: s.wrong.on(JobFailed)(plain), DeclarationError, ("plain", "JobFailed", "'call_next'")),
    ("listener: async", lambda s: s.wrong.on(JobFailed)(waiting), DeclarationError, ("waiting", "async")),
    ("listener: a number", lambda s: s.wrong.on(JobFailed)(3), DeclarationError, ("3", "JobFailed")),
    ("listener of a type", lambda s: s.wrong.on(int)(lambda event: 1), DeclarationError, ("int", "event")),
    ("handler", lambda s: s.wrong.map(int, 3), DeclarationError, ("int",)),
    ("payload hook", lambda s: s.wrong.payload_hook(3), DeclarationError, ("payload hook", "3")),
    ("serializer", lambda s: s.wrong.serializer(3), DeclarationError, ("3", "serializer")),
    ("recycle_on", lambda s: s.wrong.recycle_on(3), DeclarationError, ("recycle_on", "3")),
    ("limit", lambda s: s.app.limit("crm", 0, per=60), DeclarationError, ("'crm'", "0")),
    ("provider", lambda s: s.wrong.provide(int, 3), DeclarationError, ("int", "3")),
]

TOGETHER: list[Case] = [
    ("an empty chain", lambda s: s.app.chain(), ArgumentError, ("app.chain()", "at least one job")),
    ("a job in a chain", lambda s: s.app.chain(s.welcome), ArgumentError, ("mail.welcome", "bind")),
    (
        "a job that catches",
        lambda s: s.app.chain(s.welcome.bind("a"), catch=s.welcome),
        ArgumentError,
        ("mail.welcome",),
    ),
    (
        "two connections",
        lambda s: s.app.chain(s.welcome.bind("a"), s.welcome.using(connection="other").bind("b")).dispatch(),
        DeclarationError,
        (JOB, "'redis'", "'other'"),
    ),
    (
        "a large chain",
        lambda s: s.app.chain(s.welcome.bind("a" * 600_000), s.welcome.bind("b" * 600_000)).dispatch(),
        ArgumentError,
        (JOB, "max_payload"),
    ),
    (
        "negative delay in a chain",
        lambda s: s.app.chain(s.welcome.bind("a"), s.welcome.using(delay=-1).bind("b")).dispatch(),
        DeclarationError,
        (JOB, "delay"),
    ),
    (
        "a moment in a chain",
        lambda s: s.app.chain(
            s.welcome.bind("a"), s.welcome.using(delay=datetime(2031, 1, 1, tzinfo=UTC)).bind("b")
        ).dispatch(),
        DeclarationError,
        (JOB, "2031"),
    ),
    ("a job in a batch", lambda s: s.app.batch(s.welcome), ArgumentError, ("mail.welcome", "bind")),
    ("a job as callback", lambda s: s.app.batch(s.welcome.bind("a"), then=s.welcome), ArgumentError, ("mail.welcome",)),
    (
        "a wrong one in a batch",
        lambda s: s.app.batch(s.welcome.bind("a"), s.charge(order_id="x")).dispatch(),
        ArgumentError,
        ("job 'pay.charge'", "'order_id'"),
    ),
    (
        "negative delay in a batch",
        lambda s: s.app.batch(s.welcome.bind("a"), s.welcome.using(delay=-1).bind("b")).dispatch(),
        DeclarationError,
        (JOB, "delay"),
    ),
    (
        "the last of many",
        lambda s: s.app.dispatch(s.welcome.bind("a"), s.charge(order_id="x")),
        ArgumentError,
        ("'order_id'",),
    ),
    (
        "one of many too large",
        lambda s: s.app.dispatch(s.welcome.bind("a"), s.welcome.bind("b" * (1 << 20))),
        ArgumentError,
        (JOB, "max_payload"),
    ),
    (
        "negative delay of one of many",
        lambda s: s.app.dispatch(s.welcome.bind("a"), s.welcome.using(delay=-1).bind("b")),
        DeclarationError,
        (JOB, "delay"),
    ),
    (
        "a job among many",
        lambda s: s.app.dispatch(s.welcome.bind("a"), s.welcome),
        ArgumentError,
        ("mail.welcome", "bind"),
    ),
]

CASES = [*ARGUMENTS, *OPTIONS, *SHAPES, *TOGETHER]


@pytest.mark.filterwarnings("ignore::qd.NeverSent")
@pytest.mark.parametrize(("act", "kind", "named"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_bad_input_is_refused_by_name_and_nothing_is_sent(act: Act, kind: type[Exception], named: tuple[str, ...]):
    shop = Shop()
    with pytest.raises(kind) as raised:
        act(shop)
    message = str(raised.value)
    assert [word for word in named if word not in message] == [], message
    assert "\n" not in message
    assert len(message) < 400
    assert shop.app.sent == []
    assert isinstance(raised.value, QdError) or kind in (TypeError, AttributeError)


def test_the_same_calls_with_good_input_are_sent():
    """This proves that no case above is refused for another reason."""
    shop = Shop()
    at = datetime(2031, 1, 1, tzinfo=UTC)
    shop.welcome.using(delay=at, tries=2, key="k").dispatch("a", at, 1.5, [{"k": None}])
    shop.hook.dispatch({"a": 1})
    shop.charge(order_id=7).dispatch()
    shop.app.queue("php").push("X@fire", {"a": 1}, delay=1)
    shop.declare(unique="order:{order_id}", unique_for=1, middleware=[plain], display_name="{order_id}", result_ttl=1)
    shop.app.on(JobFailed)(lambda event: None)
    assert len(shop.app.sent) == 4
