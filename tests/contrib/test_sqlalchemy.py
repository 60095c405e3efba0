"""qd.contrib.sqlalchemy with the real SQLAlchemy: pools after a fork, and jobs that wait for a commit."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, create_engine, event, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from qd import ArgumentError, Qd, current_job, provided
from qd.contrib.sqlalchemy import after_commit, install
from qd.errors import ConnectionLost, DeclarationError, JobFailure, ModelGone
from tests.support.project import MakeProject, ready
from tests.support.redis import FAILED, Client
from tests.support.servers.redis import Server
from tests.support.witness import JOBS, Witness


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


class Line(Base):
    """A model with two key columns, one of them a UUID."""

    __tablename__ = "lines"
    order: Mapped[UUID] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def engine(tmp_path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path}/orders.sqlite3")
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def app(server: Server, engine: Engine) -> Iterator[Qd]:
    app = Qd(server.url)
    install(app, engine)
    install(app)  # a repeated call has no effect
    assert len(app._transactions) == 1

    @app.job("ship")
    def ship(order: int) -> None: ...

    app.ship = ship  # type: ignore[attr-defined]
    yield app
    app.connections.close_all()


@pytest.fixture
def ship(app: Qd) -> Callable[[int], object]:
    """Dispatch after the commit."""
    return app.ship.using(after_commit=True).dispatch  # type: ignore[attr-defined, no-any-return]


@pytest.fixture
def sent(redis: Client) -> Callable[[], list[int]]:
    import json

    def orders() -> list[int]:
        return [json.loads(payload)["data"]["order"] for payload in redis.call("LRANGE", "queues:default", 0, -1)]

    return orders


def test_jobs_are_sent_once_after_the_commit(engine, ship, sent):
    with Session(engine) as session:
        session.add(Order(id=1))
        ship(1)
        session.flush()
        ship(2)
        assert sent() == []
        session.commit()
        assert sent() == [1, 2]
        session.add(Order(id=3))
        session.commit()
    assert sent() == [1, 2]


def test_nothing_is_sent_on_rollback(engine, ship, sent):
    with Session(engine) as session:
        session.add(Order(id=1))
        ship(1)
        session.rollback()
        assert not any(session.info.values())
        session.add(Order(id=2))
        session.commit()
    assert sent() == []


def test_nothing_is_sent_if_the_session_ends_without_a_commit(engine, ship, sent):
    with Session(engine) as session:
        session.scalars(select(Order)).all()
        ship(1)
    with suppress(ValueError), Session(engine) as session, session.begin():
        ship(2)
        raise ValueError
    with suppress(ValueError), sessionmaker(engine).begin() as session:
        session.scalars(select(Order)).all()
        ship(3)
        raise ValueError
    assert sent() == []


def test_a_commit_that_fails_sends_nothing(engine, ship, sent):
    with Session(engine) as session:
        session.add(Order(id=1))
        session.commit()
    with Session(engine) as session:
        session.execute(select(Order.id))
        session.add(Order(id=1))
        ship(1)
        with pytest.raises(IntegrityError):
            session.commit()
    assert sent() == []


def test_a_rolled_back_savepoint_discards_its_jobs(engine, ship, sent):
    with Session(engine) as session, session.begin():
        ship(1)
        with session.begin_nested():
            ship(2)
            with session.begin_nested() as inner:
                ship(3)
                inner.rollback()
            ship(4)
        with suppress(ValueError), session.begin_nested():
            ship(5)
            with session.begin_nested():
                ship(6)
            raise ValueError
        ship(7)
        assert sent() == []
    assert sorted(sent()) == [1, 2, 4, 7]


def test_a_rollback_discards_jobs_of_released_savepoints(engine, ship, sent):
    with Session(engine) as session:
        session.begin()
        with session.begin_nested():
            ship(1)
        session.rollback()
        session.commit()
    assert sent() == []


def test_only_the_after_commit_jobs_of_a_bulk_dispatch_wait(engine, app, sent):
    with Session(engine) as session, session.begin():
        now, later = app.ship, app.ship.using(after_commit=True)
        handles = app.dispatch(later.bind(1), now.bind(2), later.bind(3))
        assert len({handle.id for handle in handles}) == 3
        assert sent() == [2]
    assert sent() == [2, 1, 3]
    with Session(engine) as session, session.begin():
        app.dispatch(*[later.bind(number) for number in range(10)])
        session.rollback()
    assert sent() == [2, 1, 3]


DISPATCHES: dict[str, tuple[Callable[[Any], Any], list[int]]] = {
    "chain": (lambda app: app.chain(app.ship.bind(1), app.ship.bind(2)).using(after_commit=True), [1]),
    "batch": (lambda app: app.batch(app.ship.bind(1), app.ship.bind(2)).using(after_commit=True), [1, 2]),
    "step": (lambda app: app.chain(app.ship.bind(1), app.ship.using(after_commit=True).bind(2)), [1]),
    "catch": (lambda app: app.chain(app.ship.bind(1), catch=app.ship.using(after_commit=True).bind(2)), [1]),
    "callback": (lambda app: app.batch(app.ship.bind(1), then=app.ship.using(after_commit=True).bind(2)), [1]),
    "empty": (lambda app: app.batch(then=app.ship.bind(1)).using(after_commit=True), [1]),
    "empty, callback": (lambda app: app.batch(finally_=app.ship.using(after_commit=True).bind(1)), [1]),
    "key": (lambda app: app.ship.using(after_commit=True, key="order:1").bind(1), [1]),
    "unique": (lambda app: app.ship.using(after_commit=True, unique="order:{order}").bind(1), [1]),
}


@pytest.mark.parametrize("kind", DISPATCHES)
def test_a_chain_or_batch_waits_if_any_part_of_it_does(engine, app, sent, redis: Client, kind: str):
    make, expected = DISPATCHES[kind]

    def dispatch() -> None:
        make(app).dispatch()

    with Session(engine) as session, session.begin():
        dispatch()
        session.rollback()
    assert redis.text("KEYS", "*") == []
    with Session(engine) as session, session.begin():
        dispatch()
        assert sent() == []
    assert sent() == expected


def test_an_app_without_install_rejects_after_commit(server: Server, engine, redis: Client):
    app = Qd(server.url)

    @app.job("ship")
    def ship(order: int) -> None: ...

    later = ship.using(after_commit=True)
    with Session(engine) as session, session.begin():
        for call in (
            later.bind(1),
            app.chain(ship.bind(1), catch=later.bind(2)),
            app.batch(ship.bind(1), then=later.bind(2)),
        ):
            with pytest.raises(DeclarationError, match=r"job 'ship' has after_commit=True.*sqlalchemy\.install\(app\)"):
                call.dispatch()
        with pytest.raises(DeclarationError, match="after_commit=True"):
            app.dispatch(ship.bind(1), later.bind(2))
    assert redis.text("KEYS", "*") == []
    app.connections.close_all()


def test_without_a_transaction_a_job_is_sent_at_once(engine, ship, sent):
    ship(1)
    with Session(engine):
        ship(2)  # a session without a transaction
    assert sent() == [1, 2]


def test_the_session_that_began_last_is_used(engine, ship, sent):
    with Session(engine) as outer, Session(engine) as inner:
        outer.begin()
        inner.begin()
        ship(1)
        outer.commit()
        assert sent() == []
        inner.commit()
        assert sent() == [1]
        outer.begin()
        ship(2)
        outer.rollback()
    assert sent() == [1]


def test_after_commit_with_an_explicit_session(engine, app, sent):
    with Session(engine) as session:
        after_commit(session, lambda: app.ship.dispatch(1))
        with Session(engine) as other, other.begin():
            pass
        assert sent() == []
        session.commit()
    assert sent() == [1]


def test_scoped_sessions_of_two_threads_do_not_see_each_other(engine, ship, sent):
    from concurrent.futures import ThreadPoolExecutor

    scoped = scoped_session(sessionmaker(engine))
    scoped().begin()
    ship(1)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(ship, 2).result()  # no transaction in this thread
    assert sent() == [2]
    scoped.commit()
    scoped.remove()
    assert sent() == [2, 1]


def test_commit_raises_if_a_server_is_unreachable_and_keeps_data_and_other_jobs(engine, ship, sent):
    other = Qd("redis://127.0.0.1:1")
    install(other, engine)

    @other.job("ship")
    def lost(order: int) -> None: ...

    with Session(engine) as session:
        session.add(Order(id=1))
        lost.using(after_commit=True).dispatch(1)
        ship(2)
        with pytest.raises(ConnectionLost):
            session.commit()
        assert not session.in_transaction()
        assert session.scalars(select(Order.id)).all() == [1]
    assert sent() == [2]


FORKS = (
    JOBS
    + """
from sqlalchemy import create_engine, text
from qd.contrib.sqlalchemy import install

engine = create_engine("sqlite:///shop.sqlite3")
install(app, engine)
with engine.connect() as connection:
    connection.execute(text("SELECT 1"))
imported = engine.pool

@app.job("query")
def query() -> None:
    note("query", "the parent's pool" if engine.pool is imported else "its own pool", engine.pool.checkedin())
    with engine.connect() as connection:
        connection.execute(text("SELECT 1"))
"""
)


@pytest.mark.usefixtures("clean_redis")
def test_a_worker_has_its_own_pool(project: MakeProject):
    shop = project(jobs=FORKS)
    shop.allowed.add("shop.sqlite3")
    witness = Witness(shop)
    shop.python("from jobs import *; query.dispatch()")
    shop.work_off()
    assert witness.lines == ["query its own pool 0"]


def test_the_parent_keeps_its_connections(engine):
    install(Qd(), engine)
    closed: list[object] = []
    event.listen(engine, "close", lambda connection, record: closed.append(connection))
    with engine.connect() as connection:
        engine.connect().close()  # an idle connection
        pid = os.fork()
        if pid == 0:
            os._exit(engine.pool.checkedout() + engine.pool.checkedin() + len(closed))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert engine.pool.checkedout() == 1
        assert connection.scalar(select(1)) == 1


def test_async_dispatch_waits_for_the_transaction_of_a_session(engine, app, sent):
    async def main() -> None:
        with Session(engine) as session, session.begin():
            await app.ship.using(after_commit=True).adispatch(1)
            assert sent() == []

    asyncio.run(main())
    assert sent() == [1]


@pytest.fixture
def given(app: Qd, engine: Engine) -> Qd:
    """An app whose jobs get sessions."""
    install(app, session=sessionmaker(engine))
    return app


def test_the_session_of_a_job_is_committed_or_rolled_back_at_its_end(given: Qd, engine):
    sessions = []

    @given.job("add")
    def add(id: int, how: str, session: Session = provided()) -> None:
        sessions.append(session)
        session.add(Order(id=id))
        session.flush()
        if how == "raises":
            raise ValueError
        if how == "releases":
            current_job().release(5)

    add.run(1, "returns")
    with suppress(ValueError):
        add.run(2, "raises")
    with suppress(JobFailure):
        add.run(3, "releases")
    with Session(engine) as session:
        assert session.scalars(select(Order.id)).all() == [1]
    assert len(set(map(id, sessions))) == 3
    assert not any(session.in_transaction() for session in sessions)


def test_after_commit_jobs_of_a_failing_job_are_not_sent(given: Qd, ship, sent):
    @given.job("add")
    def add(id: int, session: Session = provided()) -> None:
        session.add(Order(id=id))
        ship(id)
        assert sent() == [1][: id - 1]
        if id == 2:
            raise ValueError

    add.run(1)
    with suppress(ValueError):
        add.run(2)
    assert sent() == [1]


def test_mapped_objects_are_sent_as_their_key_and_loaded_in_the_session_of_the_job(given: Qd, engine, redis: Client):
    import json

    @given.job("both")
    def both(order: Order, lines: list[Line], session: Session = provided()) -> list[object]:
        assert all(each in session for each in (order, *lines))
        return [order.id, *[(line.order, line.number) for line in lines]]

    uuid = UUID(int=7)
    with Session(engine) as session:
        order, lines = Order(id=1), [Line(order=uuid, number=1), Line(order=uuid, number=2)]
        session.add_all([order, *lines])
        session.commit()
        assert both.run(order, lines) == [1, (uuid, 1), (uuid, 2)]
        both.dispatch(order, lines)
    payload = json.loads(redis.call("LINDEX", "queues:default", 0))
    assert payload["data"]["order"] == {"model": "Order", "key": 1}
    assert payload["data"]["lines"][1] == {"model": "Line", "key": [str(uuid), 2]}


def test_an_object_without_a_key_is_rejected_and_a_deleted_one_raises(given: Qd, engine):
    @given.job("one")
    def one(order: Order) -> None: ...

    with pytest.raises(ArgumentError, match="this Order has no key yet"):
        one.dispatch(Order())
    with Session(engine) as session:
        session.add(order := Order(id=1))
        session.commit()
        session.delete(order)
        session.commit()
        with pytest.raises(ModelGone, match="'order': Order 1 is gone"):
            one.run(order)


SEVERAL = (
    JOBS
    + """
import asyncio
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session, sessionmaker
from qd import provided
from qd.contrib.sqlalchemy import install

engine = create_engine("sqlite:///shop.sqlite3", pool_size=20)
with engine.begin() as connection:
    connection.execute(text("CREATE TABLE IF NOT EXISTS seen (n INTEGER)"))
install(app, engine, session=sessionmaker(engine))

@app.job("adds", tries=1)
def adds(n: int, session: Session = provided()) -> None:
    session.connection()
    until = time.monotonic() + 20
    note("adds", n)
    while Path("witness").read_text().count("adds") < 10 and time.monotonic() < until:
        time.sleep(0.01)
    if n % 2:
        raise ValueError("rolled back")
    session.execute(text("INSERT INTO seen VALUES (:n)"), {"n": n})

@app.job("counts")
async def counts() -> None:
    def query():
        with engine.connect() as connection:
            return connection.scalar(text("SELECT count(*) FROM seen"))
    note("counted", await asyncio.to_thread(query), engine.pool.checkedout())
"""
)


@FAILED
@pytest.mark.usefixtures("clean_redis")
def test_each_of_several_jobs_has_a_session_of_its_own(project: MakeProject):
    shop = project(jobs=SEVERAL)
    shop.allowed.add("shop.sqlite3")
    witness = Witness(shop)
    shop.python("from jobs import *; [adds.dispatch(n) for n in range(10)]")
    work = ready(shop, "--concurrency", "12")
    witness.wait("adds", count=10)
    work.wait_line("job.failed", count=5)
    work.wait_line("job.done .*job=adds", count=5)
    shop.python("from jobs import *; counts.dispatch()")
    assert witness.wait("counted") == ["counted 5 0"]
    work.stop()
