"""Class jobs: options computed from fields, a custom send(), and app.payload_hook."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import InitVar, dataclass, replace
from typing import Any, ClassVar

import pytest

from qd import ArgumentError, Backoff, DeclarationError, Job, Queue
from qd.config.settings import SigningSettings
from qd.payload.format import read
from qd.payload.signing import Signing
from qd.scheduler.entry_job import Guard, job_of
from tests.support.fakes import FakeQd, settings

# -- computed options


def test_options_can_be_computed_from_the_fields(app: FakeQd):
    @app.job("charge", tags=["declared"], tries=1)
    class Charge(Job[None]):
        order_id: int
        backoff: ClassVar[list[int]] = [1, 5]

        @property
        def display_name(self) -> str:
            return f"Charge {{{self.order_id}}}"

        def tags(self) -> list[str]:
            return ["charge", f"order:{self.order_id}"]

        def tries(self) -> int:
            return 3 if self.order_id > 5 else 2

        def handle(self) -> None: ...

    app.dispatch(Charge(order_id=7), Charge(order_id=1))
    first, second = [sent.read for sent in app.sent]
    assert (first["displayName"], first["tags"], first["maxTries"]) == ("Charge {7}", ["charge", "order:7"], 3)
    assert (second["displayName"], second["tags"], second["maxTries"]) == ("Charge {1}", ["charge", "order:1"], 2)
    assert first["backoff"] == "1,5"
    assert first["data"] == {"order_id": 7}


def test_a_computed_backoff_may_grow(app: FakeQd):
    @app.job("charge", tries=4)
    class Charge(Job[None]):
        order_id: int

        def backoff(self) -> object:
            return Backoff(1, 3, jitter=0) if self.order_id > 5 else "exponential"

        def handle(self) -> None: ...

    app.dispatch(Charge(order_id=7), Charge(order_id=1))
    first, second = [sent.read for sent in app.sent]
    assert (first["backoff"], first["jitter"]) == ("1,3,9", 0)
    assert second["backoff"] == "1,2,4"
    assert "jitter" not in second


def test_using_overrides_computed_options(app: FakeQd):
    @app.job("charge", tags=["declared"])
    class Charge(Job[None]):
        order_id: int

        def tags(self) -> list[str]:
            return ["computed"]

        def handle(self) -> None: ...

    Charge(order_id=7).using(tags=["given"], delay=5).dispatch()
    Charge(order_id=7).using(delay=5).dispatch()
    assert [(sent.read["tags"], sent.delay) for sent in app.sent] == [(["given"], 5), (["computed"], 5)]


def test_a_field_named_like_an_option_is_an_argument(app: FakeQd):
    @app.job("charge")
    class Charge(Job[None]):
        tags: list[str]
        tries: int = 3

        def handle(self) -> None: ...

    Charge(tags=["a"]).dispatch()
    payload = app.sent[0].read
    assert (payload["data"], payload["maxTries"], "tags" in payload) == ({"tags": ["a"]}, None, False)


def test_an_invalid_computed_option_is_reported_by_name(app: FakeQd):
    @app.job("charge")
    class Charge(Job[None]):
        def tries(self) -> int:
            return -1

        def handle(self) -> None: ...

    with pytest.raises(DeclarationError, match="option tries of job 'charge': -1 is not a whole number, 0 or more"):
        Charge().dispatch()
    assert app.sent == []


# -- send()


def test_a_custom_send_replaces_dispatch(app: FakeQd):
    asked: list[tuple[int, str]] = []

    @app.job("charge", queue="payments")
    class Charge(Job[None]):
        order_id: int

        def handle(self) -> None: ...

        def send(self, connection: Queue) -> None:
            asked.append((self.order_id, connection.name))
            if self.order_id > 0:
                connection.push("charge", {"order_id": self.order_id}, delay=60)

    @app.job("plain")
    def plain(number: int) -> None: ...

    assert Charge(order_id=-1).dispatch().id
    ids = [sent.id for sent in app.dispatch(plain.bind(1), Charge(order_id=7), plain.bind(2))]
    Charge(order_id=8).using(queue="high").dispatch()
    assert asked == [(-1, "payments"), (7, "payments"), (8, "high")]
    sent = [(one.queue, one.delay, one.read["job"], one.read["data"]) for one in app.sent]
    assert sent == [
        ("default", None, "plain", {"number": 1}),
        ("default", None, "plain", {"number": 2}),
        ("payments", 60, "charge", {"order_id": 7}),
        ("high", 60, "charge", {"order_id": 8}),
    ]
    assert [ids[0], ids[2]] == [one.read["id"] for one in app.sent[:2]]
    assert app.sent[0].trip == app.sent[1].trip
    Charge(order_id=7).run()
    assert len(asked) == 3


def test_send_waits_for_the_commit_too(app: FakeQd):
    asked: list[str] = []
    waiting: list[Any] = []

    @app.job("charge")
    class Charge(Job[None]):
        def handle(self) -> None: ...

        def send(self, connection: Queue) -> None:
            asked.append(connection.name)

    def open_transaction(act: Any) -> bool:
        waiting.append(act)
        return True

    app._transactions.append(open_transaction)
    Charge().using(after_commit=True).dispatch()
    assert asked == []
    waiting[0]()
    assert asked == ["default"]


def test_a_tick_calls_send_at_once_even_for_an_after_commit_job(app: FakeQd):
    """Even in an app without transactions, which refuses such a dispatch."""
    asked: list[str] = []

    @app.job("charge")
    class Charge(Job[None]):
        def handle(self) -> None: ...

        def send(self, connection: Queue) -> None:
            asked.append(connection.name)

    app.schedule(Charge().using(after_commit=True)).hourly()
    job = job_of(app, app.schedule.entries()[0], Guard())
    assert job is not None
    job.send_itself(job.message())
    assert asked == ["default"]


def test_a_step_of_a_chain_does_not_use_its_own_send(app: FakeQd):
    @app.job("charge")
    class Charge(Job[None]):
        def handle(self) -> None: ...

        def send(self, connection: Queue) -> None:
            raise AssertionError("not asked")

    app.chain(Charge(), Charge()).dispatch()
    (sent,) = app.sent
    assert len(sent.read["qd"]["chain"]) == 1


def test_an_async_send_is_refused(app: FakeQd):
    with pytest.raises(DeclarationError, match=r"Charge cannot be a job: it has an async send\(\)"):

        @app.job("charge")
        class Charge(Job[None]):
            def handle(self) -> None: ...

            async def send(self, connection: Queue) -> None: ...


# -- payload hooks


def test_a_hook_adds_keys_in_the_place_of_laravels_hooks(app: FakeQd):
    seen: list[tuple[str, str, Mapping[str, Any]]] = []

    @app.payload_hook
    def tenant(connection: str, queue: str, payload: Mapping[str, Any]) -> dict[str, object]:
        seen.append((connection, queue, payload))
        return {"tenant": "a/b", "trace": {"id": 7}}

    app.payload_hook(lambda connection, queue, payload: {"seen": payload["tenant"]})

    @app.job("mail.welcome", queue="mail", tags=["x"])
    def welcome(to: str) -> None: ...

    welcome.dispatch("you")
    app.dispatch(welcome.bind("me"), welcome.using(unique="u").bind("them"))
    app.queue("php").push("Report@fire", {"month": 7})
    app.queue("php").push_raw(b'{"job":"x"}')
    for sent in app.sent[:4]:
        assert (sent.read["tenant"], sent.read["trace"], sent.read["seen"]) == ("a/b", {"id": 7}, "a/b")
    assert app.sent[4].payload == b'{"job":"x"}'
    keys = list(app.sent[0].read)
    assert keys[keys.index("createdAt") :] == [
        "createdAt",
        "tags",
        "tenant",
        "trace",
        "seen",
        "id",
        "attempts",
        "delay",
    ]
    assert seen[0][:2] == ("redis", "mail")
    assert (seen[0][2]["job"], seen[0][2]["data"]) == ("mail.welcome", {"to": "you"})


def test_a_hook_applies_from_when_it_is_added(app: FakeQd):
    @app.job("mail.welcome")
    def welcome() -> None: ...

    welcome.dispatch()
    app.payload_hook(lambda connection, queue, payload: {"tenant": 1})
    welcome.dispatch()
    assert ["tenant" in sent.read for sent in app.sent] == [False, True]


def test_a_signed_payload_keeps_its_signature_with_what_hooks_add(app: FakeQd):
    app.settings = replace(settings(), signing=SigningSettings(("a:s3cret-of-32-characters-or-more!",)))
    app.payload_hook(lambda connection, queue, payload: {"tenant": 1})

    @app.job("mail.welcome")
    def welcome(to: str) -> None: ...

    welcome.dispatch("you")
    (sent,) = app.sent
    assert sent.read["tenant"] == 1
    Signing(app.settings.signing.keys).check(read(sent.payload))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"attempts": 7}, "tenant returned 'attempts', a key that qd uses: rename it"),
        ({"tags": []}, "returned 'tags', a key that qd uses"),
        ({"qd": {}}, "returned 'qd', a key that qd uses"),
        ({7: 1}, "returned 7, a key that qd uses"),
        ({"tenant": object()}, "job 'mail.welcome': the additional payload keys tenant are not JSON"),
        ({"tenant": float("nan")}, "the additional payload keys tenant are not JSON"),
        (7, "returned 7, which is not a mapping"),
    ],
)
def test_a_forbidden_key_of_a_hook_is_refused_before_anything_is_sent(app: FakeQd, given: Any, expected: str):
    def tenant(connection: str, queue: str, payload: Mapping[str, Any]) -> Any:
        return given

    app.payload_hook(tenant)

    @app.job("mail.welcome")
    def welcome() -> None: ...

    with pytest.raises(ArgumentError, match=expected):
        welcome.dispatch()
    assert app.sent == []


def takes_two(connection: str, queue: str) -> dict[str, object]:
    return {}


async def asynchronous(connection: str, queue: str, payload: Mapping[str, Any]) -> dict[str, object]:
    return {}


@pytest.mark.parametrize(
    ("hook", "expected"),
    [
        (takes_two, r"takes_two cannot be called with \(connection, queue, payload\)"),
        (asynchronous, "asynchronous is async"),
        (7, "the payload hook 7 cannot be called"),
    ],
)
def test_a_hook_with_a_wrong_signature_is_refused(app: FakeQd, hook: Any, expected: str):
    with pytest.raises(DeclarationError, match=expected):
        app.payload_hook(hook)


# -- classes that cannot be sent


def test_a_frozen_class_is_refused_when_it_is_declared(app: FakeQd):
    with pytest.raises(DeclarationError) as error:

        @app.job("mail.welcome")
        @dataclass(frozen=True)
        class Welcome(Job[None]):
            to: str

            def handle(self) -> None: ...

    assert "Welcome cannot be a job: it is a frozen dataclass; remove @dataclass(frozen=True)" in str(error.value)


def test_an_initvar_is_refused_when_the_class_is_declared(app: FakeQd):
    with pytest.raises(DeclarationError, match=r"'greeting' of .*Welcome is an InitVar, whose value is not kept"):

        @app.job("mail.welcome")
        class Welcome(Job[None]):
            to: str
            greeting: InitVar[str] = "Hello"

            def handle(self) -> None: ...

    @dataclass
    class Invite:
        to: str
        greeting: InitVar[str] = "Hello"

    with pytest.raises(DeclarationError, match=r"'greeting' of .*Invite is an InitVar"):
        app.map(Invite, lambda invite: None, "mail.invite")


# -- recycling


def test_only_errors_can_recycle(app: FakeQd):
    app.recycle_on(OSError)
    app.recycle_on(ValueError, KeyError)
    assert app._recycling == (OSError, ValueError, KeyError)
    with pytest.raises(DeclarationError, match=r"app.recycle_on\(\) takes exception classes, not 7"):
        app.recycle_on(7)  # type: ignore[arg-type]
