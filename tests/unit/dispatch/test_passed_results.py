"""Results passed along a chain, without a server: what is refused, what a payload contains, run(), sync and the fakes."""

from __future__ import annotations

import asyncio
import json
import logging
import warnings
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from typing import Any, cast

import pytest

from qd import ArgumentError, Job, JobFailedError, Link, NoResult, Qd, ResultTimeout
from qd.config.settings import ConnectionSettings
from qd.errors import QdError, WrongType
from qd.jobs import job as jobs
from qd.payload.build import chained_payload, with_argument
from qd.payload.format import ChainedJob, Payload, read
from qd.testing import Dispatched
from tests.support.fakes import FakeQd, settings


@dataclass
class Film:
    title: str
    made: date


seen: list[Any] = []


def declare(app: Qd) -> tuple[Any, Any, Any]:
    seen.clear()

    @app.job("fetch")
    async def fetch(title: str) -> Any:
        return {"object": object(), "text": 7}.get(title, Film(title, date(1958, 5, 9)))

    @app.job("cut", queue="slow")
    def cut(film: Film, minutes: int, *, tags: list[str] | None = None) -> str:
        seen.append((film, minutes, tags))
        return f"{film.title} -{minutes}"

    @app.job("publish")
    def publish(text: str = "nothing") -> None:
        seen.append(text)

    return fetch, cut, publish


@pytest.fixture(params=["run", "sync", "inline"])
def here(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def send(app: Qd, here: str, chain: Any) -> None:
    if here == "run":
        chain.run()
    elif here == "sync":
        app.settings = settings(redis=ConnectionSettings("redis", driver="sync"))
        chain.dispatch()
    else:
        with app.inline():
            chain.dispatch()


def test_results_are_passed_on_where_jobs_run_at_once(here: str):
    app = Qd()
    fetch, cut, publish = declare(app)
    send(app, here, app.chain(fetch.bind("Vertigo"), cut.link(7, tags=["a"]), publish.link(), pass_results=True))
    assert seen == [(Film("Vertigo", date(1958, 5, 9)), 7, ["a"]), "Vertigo -7"]


def test_a_result_that_is_not_json_fails_its_job_and_is_caught(here: str):
    app = Qd()
    fetch, cut, publish = declare(app)
    chain = app.chain(fetch.bind("object"), cut.link(7), catch=publish.bind("sorry"), pass_results=True)
    with pytest.raises(NoResult, match="takes the result of job 'fetch', and JSON cannot carry what the job returned"):
        send(app, here, chain)
    assert seen == ["sorry"]


def test_a_result_of_another_type_fails_the_next_job(here: str):
    app = Qd()
    fetch, cut, publish = declare(app)
    chain = app.chain(fetch.bind("text"), cut.link(7), catch=publish.bind("sorry"), pass_results=True)
    with pytest.raises(WrongType, match="film"):
        send(app, here, chain)
    assert seen == ["sorry"]


def test_a_fake_records_links_without_their_first_argument():
    app = Qd()
    fetch, cut, publish = declare(app)
    with app.fake() as fake:
        app.chain(fetch.bind("Vertigo"), cut.link(7), publish.link(), pass_results=True).dispatch()
    (chain,) = fake.chains
    assert chain.jobs == [
        Dispatched({"title": "Vertigo"}, {}, "fetch", ""),
        Dispatched({"minutes": 7}, {"queue": "slow"}, "cut", ""),
        Dispatched({}, {}, "publish", ""),
    ]


def test_links_are_not_calls():
    app: Any = Qd()
    fetch, cut, publish = declare(app)
    link: Any = cut.link(7)
    assert type(link) is Link
    for sends in (app.batch, app.dispatch, app.chain):
        with pytest.raises(ArgumentError, match="<link of job cut> is not a call"):
            sends(link)
    with pytest.raises(ArgumentError, match="a link goes behind the first call, with pass_results=True"):
        app.chain(fetch.bind("x"), link)
    call = publish.bind("y")
    with pytest.raises(ArgumentError, match="<call of job publish> takes no result: after the first call give"):
        app.chain(fetch.bind("x"), call, pass_results=True)
    call.run()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ArgumentError, match=r"<link of job cut> is not a call: give job.bind\(...\)"):
            app.chain(link, publish.link(), pass_results=True)
    app.chain(fetch.bind("x"), link, pass_results=True).run()


def test_a_call_that_lacks_only_what_a_link_gets_says_so():
    app = Qd()

    @app.job("mul")
    def mul(x: int, y: int) -> int:
        return x * y

    wrong: Any = mul
    with pytest.raises(ArgumentError, match=r"missing argument 'y' \(behind another job of a chain use link\(...\)"):
        wrong.bind(3)
    for given in ((), ("3",)):
        with pytest.raises(ArgumentError) as error:
            wrong.bind(*given)
        assert "link" not in str(error.value)


def test_wrong_arguments_of_a_link_are_refused_where_it_is_made():
    app = Qd()
    _, cut, _ = declare(app)

    @app.job("raw", raw=True)
    def raw(data: object) -> None: ...

    @app.job("none")
    def none() -> None: ...

    with pytest.raises(ArgumentError, match="job 'cut' is missing argument 'minutes'"):
        cut.link()
    with pytest.raises(ArgumentError, match="argument 'minutes' cannot be sent"):
        cut.link("7")
    with pytest.raises(ArgumentError, match="argument 'tags' cannot be sent"):
        cut.link(7, tags=[object()])
    with pytest.raises(ArgumentError, match="'film' twice"):
        cut.link(7, film=Film("x", date.min))
    with pytest.raises(ArgumentError, match="job 'raw' is raw, and takes the whole data"):
        raw.link()
    with pytest.raises(ArgumentError, match="takes 0 positional arguments"):
        cast(Any, none).link()


def test_the_first_payload_carries_links_that_take_results():
    app = FakeQd()
    fetch, cut, publish = declare(app)
    app.chain(fetch.bind("x"), cut.link(7), publish.link(), pass_results=True).dispatch()
    first = read(app.sent[0].payload)
    assert first.qd is not None
    assert first.qd.passes
    links = [read(link.payload.encode()) for link in first.qd.chain]
    assert [bytes(link.data) for link in links] == [b'{"minutes":7}', b"{}"]
    assert [link.qd and link.qd.takes for link in links] == [f"{first.uuid} film", f"{links[0].uuid} text"]


def test_a_chain_without_links_is_sent_as_before():
    app = FakeQd()
    fetch, _, publish = declare(app)
    app.chain(fetch.bind("x"), publish.bind('"takes":')).dispatch()
    assert b'"takes":"' not in app.sent[0].payload
    first = read(app.sent[0].payload)
    assert first.qd is not None
    assert not first.qd.passes


def linked(app: FakeQd, value: bytes = b'"v"') -> tuple[bytes, bytes, Payload]:
    """The text of a link, and its payload once the result was passed on."""
    fetch, cut, _ = declare(app)
    app.chain(fetch.bind("x"), cut.link(7, tags=["takes", '"data":{', "é\u2028"]), pass_results=True).dispatch()
    first = read(app.sent[0].payload)
    assert first.qd is not None
    (link,) = first.qd.chain
    sent = chained_payload(link, first.createdAt or 0.0, passed=(first.uuid or "", value, None))
    return link.payload.encode(), sent, read(sent)


def test_only_the_argument_is_added_to_the_bytes_of_a_payload():
    text, sent, payload = linked(FakeQd(), b'{"a":[1, 2.50]}')
    head, tail = text.split(b'"data":{', 1)
    takes = tail[tail.index(b',"qd":') : tail.index(b',"id":')]
    assert sent.partition(b",")[2] == head[1:] + b'"data":{"film":{"a":[1, 2.50]},' + tail.replace(takes, b"")
    assert payload.qd is None
    assert list(json.loads(bytes(payload.data))) == ["film", "minutes", "tags"]


def test_the_result_of_another_job_is_not_passed_on():
    app = FakeQd()
    fetch, cut, _ = declare(app)
    app.chain(fetch.bind("x"), cut.link(7), pass_results=True).dispatch()
    first = read(app.sent[0].payload)
    assert first.qd is not None
    sent = read(chained_payload(first.qd.chain[0], 0.0, passed=("another uuid", b'"v"', None)))
    assert sent.qd is not None
    assert (sent.qd.takes, bytes(sent.data)) == (f"{first.uuid} film", b'{"minutes":7}')


def test_a_text_that_is_no_payload_is_sent_as_it_is():
    link = ChainedJob("default", 0.0, '{"job":')
    assert chained_payload(link, 0.0, passed=("u", b"1", None)) == b'{"job":'


@pytest.mark.parametrize("data", [b"{}", b'""', b"[]", b"null"])
def test_an_argument_is_added_to_no_data(data: bytes):
    assert with_argument(data, "naïve", b"[1]") == '{"naïve":[1]}'.encode()


# -- call and wait


def test_call_keeps_the_result_for_five_minutes_unless_the_job_keeps_it():
    app = Qd()
    fetch, _, publish = declare(app)
    late = r"job \w{32} has not ended within 0 s; it keeps running, and its handle can wait"
    with app.fake() as fake:
        with pytest.raises(ResultTimeout, match=late):
            fetch.bind("x").call(timeout=0)
        with pytest.raises(ResultTimeout):
            publish.using(result_ttl=7).bind("x").call(timeout=0)
    assert [sent.options.get("result_ttl") for sent in fake.all()] == [300, 7]
    assert issubclass(ResultTimeout, QdError)
    assert issubclass(ResultTimeout, TimeoutError)


def test_call_returns_the_result_as_the_declared_type():
    app = Qd()

    @app.job("film")
    class Make(Job[Film]):
        title: str

        def handle(self) -> Film:
            return Film(self.title, date(1958, 5, 9))

    with app.inline():
        assert Make(title="Vertigo").call(timeout=1) == Film("Vertigo", date(1958, 5, 9))
        assert asyncio.run(Make(title="Vertigo").acall(timeout=1)).made == date(1958, 5, 9)
        sent = Make(title="x").using(result_ttl=60).dispatch()
        assert app.handle(sent.id, Make).result(1) == Film("x", date(1958, 5, 9))
        assert app.handle(sent.id).result(1) == {"title": "x", "made": "1958-05-09"}


def test_call_refuses_what_it_cannot_wait_for():
    app = FakeQd()
    _, _, publish = declare(app)

    @app.job("own")
    class Own(Job[None]):
        def handle(self) -> None: ...

        def send(self, connection: Any) -> None: ...

    with pytest.raises(ArgumentError, match=r"job 'publish' has after_commit=True: call\(\) cannot wait for it"):
        publish.using(after_commit=True).bind("x").call(timeout=1)
    with pytest.raises(ArgumentError, match=r"job 'own' has its own send\(\): call\(\) cannot wait for it"):
        Own().call(timeout=1)
    lent = app.connections.lent("redis", cast(Any, app.connections.get("redis")))
    with lent, pytest.raises(ArgumentError, match="part of the open transaction, and"):
        publish.bind("x").call(timeout=1)
    with pytest.raises(ArgumentError, match=r"timeout of call\(\): -1 is not a duration"):
        publish.bind("x").call(timeout=-1)
    with pytest.raises(ArgumentError, match=r"cannot be part of another call, and has no call\(\): call .dispatch\(\)"):
        app.chain(publish.bind("x")).call(timeout=1)
    assert app.sent == []


def test_a_job_that_runs_where_it_is_sent_may_wait_without_a_warning(caplog: pytest.LogCaptureFixture):
    app = Qd()
    _, _, publish = declare(app)

    @app.job("outer")
    def outer() -> None:
        publish.bind("inner").call(timeout=1)

    with caplog.at_level(logging.WARNING), app.inline():
        outer.dispatch()
    assert (seen, caplog.records, jobs._waits_in_jobs) == (["inner"], [], set())


def test_a_handle_of_a_job_goes_where_the_job_goes():
    app = FakeQd()
    _, cut, _ = declare(app)
    for handle, queue in [
        (cut.handle("x"), "slow"),
        (cut.using(queue="fast").handle("x"), "fast"),
        (app.handle("x", cut), "slow"),
        (app.handle("x", cut, queue="fast"), "fast"),
    ]:
        assert app._send.lookup(handle._at).queue == queue
    with pytest.raises(ArgumentError, match="'cut' is not a job"):
        cast(Any, app).handle("x", "cut")


# -- results of a batch


@pytest.mark.parametrize("where", ["run", "inline", "sync"])
def test_results_of_a_batch_come_in_order_without_those_that_were_added(where: str):
    app = Qd()
    found: list[Any] = []

    @app.job("half")
    def half(n: int) -> date:
        if n == 0:
            app.current_batch().add(half.bind(9))
        return date(2030, 1, 1 + n)

    @app.job("all")
    def together() -> None:
        found.extend([app.current_batch().results(half), app.current_batch().results()])

    send(app, where, app.batch(*[half.bind(n) for n in range(3)], then=together.bind()).using(result_ttl=60))
    assert found == [[date(2030, 1, 1 + n) for n in range(3)], [f"2030-01-0{1 + n}" for n in range(3)]]


@pytest.mark.parametrize("where", ["run", "inline"])
def test_results_of_a_batch_have_the_errors_of_failed_jobs_on_request(where: str):
    app = Qd()
    found: list[Any] = []

    @app.job("half")
    def half(n: int) -> int:
        return 10 // n

    @app.job("all")
    def together() -> None:
        with pytest.raises(JobFailedError):
            app.current_batch().results(half)
        found.extend(app.current_batch().results(half, return_exceptions=True))

    batch = app.batch(*[half.bind(n) for n in (1, 0, 2)], finally_=together.bind(), allow_failures=True)
    with suppress(ZeroDivisionError):
        send(app, where, batch.using(result_ttl=60))
    assert [str(each).partition(" has failed: ")[2] or each for each in found] == [
        10,
        "ZeroDivisionError: integer division or modulo by zero",
        5,
    ]


@pytest.mark.parametrize("where", ["run", "inline", "sync"])
def test_results_of_a_batch_need_a_result_ttl(where: str):
    app = Qd()

    @app.job("half")
    def half(n: int) -> int:
        return n

    @app.job("all")
    def together() -> None:
        app.current_batch().results()

    with pytest.raises(NoResult, match=r"2 of the 2 jobs of batch .* have no result.*using\(result_ttl=3600\)"):
        send(app, where, app.batch(half.bind(1), half.bind(2), then=together.bind()))
