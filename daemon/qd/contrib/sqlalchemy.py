"""qd with SQLAlchemy: no connection survives a fork, and what waits for a commit is sent after it.

    install(app, engine, session=Session)
      after a fork                 engine.dispose(close=False): the child has its own pool
      .using(after_commit=True)    kept with the session's transaction: sent after COMMIT, dropped by a rollback
      def pay(order: Order, session: Session = provided())    loaded in the job's session, which is committed at its end

The session is the one whose transaction began last in this thread or task. A savepoint counts as a transaction: a rollback
drops what was dispatched inside it; a release passes that on to the surrounding one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from uuid import UUID
from weakref import ReferenceType, WeakMethod, ref

from sqlalchemy import Engine, Uuid, event, inspect
from sqlalchemy.orm import Mapper, Session, SessionTransaction

from qd.app import Qd
from qd.arguments.injection import Key, Provided

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine  # importing it needs greenlet

Act = Callable[[], object]

WAITING = "qd.waiting"  # key of Session.info: transaction -> acts that wait for its commit
COMMITTED = "qd.committed"  # key of Session.info: acts to call once the committed transaction has ended

_begun: ContextVar[tuple[ReferenceType[Session], ...]] = ContextVar("qd_sessions_begun", default=())


def install(app: Qd, *engines: Engine | AsyncEngine, session: Callable[[], Session] | None = None) -> None:
    """Make `engines` safe to fork, and let jobs of `app` wait for the commit of any session.

    session: a sessionmaker. With it, jobs may take a Session, and mapped objects, which are sent as their keys.
    """
    for engine in engines:
        leave_behind(engine if isinstance(engine, Engine) else engine.sync_engine)
    watch_sessions()
    if wait_for_commit not in app._transactions:
        app._transactions.append(wait_for_commit)
    if session is not None:
        app.provide(Session, partial(of_a_job, session))
        app.serializer(MappedObjects())


@contextmanager
def of_a_job(make: Callable[[], Session]) -> Iterator[Session]:
    """A session for one job: committed when the job returns; rolled back when it raises, is released or fails itself."""
    with make() as session:
        yield session
        session.commit()


class MappedObjects:
    """The serializer of mapped classes, see qd.arguments.Serializer. It loads them in the job's session."""

    def recognizes(self, kind: type) -> bool:
        return isinstance(inspect(kind, raiseerr=False), Mapper)

    def name(self, kind: type) -> str:
        return kind.__name__

    def pack(self, thing: Any) -> Any:
        """The primary key; a list if it has several columns; None if the object is not flushed yet."""
        identity = inspect(thing).identity
        if identity is None:
            return None
        return identity[0] if len(identity) == 1 else list(identity)

    def load(self, kind: type[Any], key: Key, given: Provided) -> object | None:
        mapper: Mapper[Any] = inspect(kind)
        identity = list[object]()
        for column, part in zip(mapper.primary_key, key if isinstance(key, list) else [key], strict=True):
            is_uuid = isinstance(column.type, Uuid) and column.type.as_uuid  # JSON has no UUID
            identity.append(UUID(part) if is_uuid and isinstance(part, str) else part)
        found: object | None = given(Session).get(kind, tuple(identity))
        return found


def leave_behind(engine: Engine) -> None:
    """Let a forked child drop the parent's pooled connections without closing them, since the parent still uses them."""
    dispose = WeakMethod(engine.dispose)

    def in_child() -> None:
        if (found := dispose()) is not None:
            found(close=False)

    os.register_at_fork(after_in_child=in_child)


def wait_for_commit(act: Act) -> bool:
    """Call `act` after the commit of the session that began last here. Returns False without an open transaction."""
    for begun_here in reversed(_begun.get()):
        session = begun_here()
        if session is not None and session.in_transaction():
            after_commit(session, act)
            return True
    return False


def after_commit(session: Session, act: Act) -> None:
    """Call `act` once the open transaction of `session` (begun now if there is none) is committed; never if it is rolled
    back or the session is closed first."""
    if not session.in_transaction():
        session.begin()
    session.info.setdefault(WAITING, {}).setdefault(innermost(session), []).append(act)


def innermost(session: Session) -> SessionTransaction:
    """The open savepoint of the session, else its transaction."""
    found = session.get_nested_transaction() or session.get_transaction()
    assert found is not None
    return found


@cache
def watch_sessions() -> None:
    """Listen to the transactions of all sessions. Once per process."""
    event.listen(Session, "after_transaction_create", begun)
    event.listen(Session, "after_commit", committed)
    event.listen(Session, "after_transaction_end", ended)


def begun(session: Session, transaction: SessionTransaction) -> None:
    if transaction.parent is None:
        open_ones = [found for found in _begun.get() if (other := found()) is not None and other.in_transaction()]
        _begun.set((*[found for found in open_ones if found() is not session], ref(session)))


def committed(session: Session) -> None:
    """Called for savepoints, too, and before the transaction's connections are returned: send nothing yet."""
    waiting: dict[Any, list[Act]] = session.info.get(WAITING, {})
    transaction = innermost(session)
    acts = waiting.pop(transaction, [])
    if not acts:
        return
    if transaction.parent is None:
        session.info[COMMITTED] = acts
    else:
        waiting.setdefault(around(transaction), []).extend(acts)


def around(transaction: SessionTransaction) -> SessionTransaction:
    """The savepoint or transaction that contains a savepoint."""
    found = transaction.parent
    while found is not None and found.parent is not None and not found.nested:
        found = found.parent
    assert found is not None
    return found


def ended(session: Session, transaction: SessionTransaction) -> None:
    """Acts that still wait for the transaction were rolled back. After a commit call all, even if one raises: the session's
    commit() then raises the first error, with the data committed."""
    session.info.get(WAITING, {}).pop(transaction, None)
    errors = list[Exception]()
    for act in session.info.pop(COMMITTED, ()) if transaction.parent is None else ():
        try:
            act()
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
