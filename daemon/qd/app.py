"""Qd: the application object. The constructor stores its arguments; configuration and servers come on first use.

app = Qd(imports=["shop.mail"])
@app.job("mail.welcome", queue="mail")      jobs/job.py
welcome.dispatch("a@b.c")                   jobs/job.py -> dispatch/dispatcher.py -> drivers
qd work                                     app._load(), then app._registry and app._listeners
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from qd.arguments.injection import Serializer
from qd.dispatch.composite import Batch, BatchCall, Chain, current_batch
from qd.dispatch.dispatcher import Keyed, Queue
from qd.dispatch.handlers import Handles
from qd.dispatch.route import PayloadHook
from qd.dispatch.services import Services, extension, limit_of
from qd.drivers.connections import loaded
from qd.errors import ArgumentError, ConfigError, DeclarationError, NoProvider, UnknownJob
from qd.events import Event, Looping
from qd.jobs.job import AnyJob, Call, Declare, Job, JobFunction, Link, caller, declared_plan, plan_of
from qd.jobs.plan import Duration, Handle, Options, Place, Plan, SendOptions
from qd.schedule.declare import Schedule

if TYPE_CHECKING:
    from redis import Redis, RedisCluster

    from qd.config.settings import Settings
    from qd.locks.limiter import Limiter
    from qd.locks.lock import Lock
    from qd.testing import Fake


E = TypeVar("E", bound=Event)
T = TypeVar("T")
C = TypeVar("C")
T3 = TypeVar("T3")
T4 = TypeVar("T4")
T5 = TypeVar("T5")
Catch = Call[Any] | None
OF_CELERY = {
    "task": "@app.job",
    "send_task": 'app.queue("mail").push("mail.welcome", {"to": "ada"})',
    "AsyncResult": "app.handle(id), or job.handle(id)",
    "conf": "qd.toml",
}


class Qd:
    """An application: its jobs, listeners and connections. Create one per project; threads and forks may share it.

    Args:
        url: The default connection; QD_REDIS_URL overrides it, and it overrides qd.toml.
        redis: A redis-py client instead of url. qd copies its parameters and opens its own connections.
        imports: Modules that declare jobs.

    `middleware` is the list of middleware around every job, outermost first; `@app.middleware` appends to it.
    """

    job: Declare

    def __init__(
        self, url: str | None = None, *, redis: Redis | RedisCluster | None = None, imports: Sequence[str] = ()
    ) -> None:
        if redis is not None:
            if url is not None:
                way = "each names the server of the default connection"
                raise ConfigError(f"Qd(...) takes a url or redis=, not both: {way}")
            from qd.drivers.redis import client_url  # only apps that pass a client pay for it

            url = client_url.url_of(redis)
        self.url = url
        self.imports = tuple(imports)
        self._services = services = Services(lambda: self._code_settings)
        self._send = services.dispatcher
        self._registry, self._listeners, self.connections = services.registry, services.listeners, services.connections
        self.middleware = services.pipeline
        self._recycling: tuple[type[BaseException], ...] = ()
        self._transactions = self._send.transactions
        self.loading: list[Callable[[], AbstractContextManager[None]]] = []  # entered around _load()
        self._in_tests: list[Callable[[], dict[str, str]]] = []  # each returns variables for the process of qd_worker
        self.job = Declare(self._registry, self._send)
        self.schedule = Schedule(services.current_settings, self._registry, self.call)

    @property
    def _code_settings(self) -> dict[str, object]:
        """The arguments of Qd(...) for config.load: they override the file, and the environment overrides them."""
        given: dict[str, object] = {"url": self.url, "imports": list(self.imports)}
        return {key: value for key, value in given.items() if value}

    @property
    def settings(self) -> Settings:
        """All settings, read on first use. Raises ConfigError."""
        return self._services.settings

    @settings.setter
    def settings(self, settings: Settings) -> None:
        """Use the settings that the command line has resolved."""
        self._services.settings = settings

    def _load(self) -> None:
        """Import the modules that declare jobs. Raises whatever the imports raise."""
        root = str(self.settings.root)
        if root not in sys.path:
            sys.path.insert(0, root)
        with ExitStack() as around:
            for enter in self.loading:
                around.enter_context(enter())
            for name in self.settings.imports:
                import_module(name)

    def dispatch(self, *calls: Call[Any]) -> list[Handle[Any]]:
        """Send several jobs in one round trip and return their handles in order. All are encoded before any is sent."""
        ready = encoded(calls)
        return self._handles(self._send.send_many(ready), ready)

    async def adispatch(self, *calls: Call[Any]) -> list[Handle[Any]]:
        """As dispatch(), without blocking the event loop."""
        ready = encoded(calls)
        return self._handles(await self._send.asend_many(ready), ready)

    def _handles(self, ids: Sequence[str], sent: Sequence[tuple[Plan, bytes]]) -> list[Handle[Any]]:
        return [Handle(id, self._send, plan) for id, (plan, _) in zip(ids, sent, strict=True)]

    @overload
    def handle(self, id: str, *, queue: str | None = None, connection: str | None = None) -> Handle[Any]: ...
    @overload
    def handle(
        self, id: str, job: AnyJob[T], *, queue: str | None = None, connection: str | None = None
    ) -> Handle[T]: ...
    def handle(
        self, id: str, job: Any = None, *, queue: str | None = None, connection: str | None = None
    ) -> Handle[Any]:
        """The handle of a job that was sent earlier: `app.handle(id, ChargeCard).result(timeout=5)`.

        Args:
            job: Its function or class, which declares the type of the result. Of a function also `job.handle(id)`.
            queue, connection: Where it was sent, if not where the job goes, or else the default queue and connection.
        """
        default = self.settings.connection(connection)
        at = Place(default.name, default.queue) if job is None else self._send.place(declared_plan(job))
        return Handle(id, self._send, at._replace(connection=connection or at.connection, queue=queue or at.queue))

    @overload
    def chain(self, *calls: Call[Any], catch: Call[Any] | None = None, pass_results: Literal[False] = ...) -> Chain: ...
    @overload
    def chain(self, a: Call[T], b: Link[T, Any], /, *, catch: Catch = None, pass_results: Literal[True]) -> Chain: ...
    @overload
    def chain(self, a: Call[T], b: Link[T, C], c: Link[C, Any], /, *,
              catch: Catch = None, pass_results: Literal[True]) -> Chain: ...  # fmt: skip
    @overload
    def chain(self, a: Call[T], b: Link[T, C], c: Link[C, T3], d: Link[T3, Any], /, *,
              catch: Catch = None, pass_results: Literal[True]) -> Chain: ...  # fmt: skip
    @overload
    def chain(self, a: Call[T], b: Link[T, C], c: Link[C, T3], d: Link[T3, T4], e: Link[T4, Any], /, *,
              catch: Catch = None, pass_results: Literal[True]) -> Chain: ...  # fmt: skip
    @overload
    def chain(self, a: Call[T], b: Link[T, C], c: Link[C, T3], d: Link[T3, T4], e: Link[T4, T5], f: Link[T5, Any], /,
              *more: Link[Any, Any], catch: Catch = None, pass_results: Literal[True]) -> Chain: ...  # fmt: skip
    def chain(self, *calls: Any, catch: Catch = None, pass_results: bool = False) -> Chain:
        """Jobs that run one after another, each once the previous one has succeeded. Raises ArgumentError without calls.

        Args:
            catch: Sent once one of them has failed permanently.
            pass_results: Each result is the first argument of the next job; give `job.link(...)` behind the first call:
                `app.chain(fetch.bind(url), convert.link("webm"), publish.link(), pass_results=True).dispatch()`.
        """
        return Chain(self._send, calls, catch, pass_results, caller())

    def batch(
        self,
        *calls: Call[Any],
        then: Call[Any] | None = None,
        catch: Call[Any] | None = None,
        finally_: Call[Any] | None = None,
        name: str = "",
        allow_failures: bool = False,
    ) -> BatchCall:
        """Jobs that run in parallel and are counted together.

        Args:
            then: Sent once all jobs have succeeded.
            catch: Sent when the first job has failed permanently, which also cancels the batch unless allow_failures.
            finally_: Sent once every job has ended.
            name: For log lines and `qd batch list`.
            allow_failures: Keep running the other jobs after a failure.
        """
        callbacks = {"then": then, "catch": catch, "finally": finally_}
        return BatchCall(self._send, calls, callbacks, name=name, allow_failures=allow_failures, origin=caller())

    def batch_of(self, id: str, connection: str | None = None) -> Batch:
        """A batch by its id; does not connect. connection: None for the default one."""
        return Batch(id, self._send, self._send.connection(connection))

    def current_batch(self) -> Batch:
        """The batch of the running job; in a callback, the batch it follows. Raises NotInJob, UnknownBatch."""
        return current_batch(self._send)

    def keyed(self, job: JobFunction[..., Any, Any] | type[Job[Any]], key: str) -> Keyed:
        """A waiting job by the key it was sent with, to cancel or move it: `app.keyed(remind, "order:42").cancel()`.

        Args:
            job: The function or class. If it was sent to another queue, pass `job.using(queue=...)`.
            key: As in `remind.using(key="order:42", delay=1800)`.

        Raises:
            ArgumentError: It is not a job of this app.
        """
        plan = plan_of(job)
        if plan is None or self._registry.get(plan.declared.name) is not plan.declared:
            raise ArgumentError(f"{job!r} is not a job of this app: pass the function or class that @app.job decorated")
        return Keyed(self._send, plan.using({"key": key}), key)

    def call(self, name: str, data: bytes) -> Call[Any]:
        """A call of the job declared as `name` with the JSON text `data`. Raises UnknownJob, UnknownParameters or
        WrongType."""
        declared = self._registry.get(name)
        if declared is None:
            raise UnknownJob(f"no job is called '{name}' ({self._registry.hint(name)})")
        with suppress(NoProvider):  # only workers need the providers
            declared.call(declared.decode(data))
        return Call(self._send, Plan(declared, declared.options), data)

    def limit(self, name: str, most: int, *, per: float | timedelta) -> None:
        """Declare a limit for RateLimited(name) and app.limiter(name): `app.limit("stripe", 100, per=60)`.

        At most `most` jobs start in any `per` seconds, across all hosts. Raises DeclarationError.
        """
        self._services.limits.declare(name, limit_of(name, most, per))

    def lock(
        self,
        name: str,
        ttl: Duration,
        *,
        renew: bool = False,
        timeout: Duration | None = None,
        connection: str | None = None,
    ) -> Lock:
        """A lock that one owner at a time can hold across all hosts: `with app.lock("report", ttl=30):`.

        Args:
            ttl: Seconds after which an unreleased lock is free again.
            renew: Extend the lock while this process lives.
            timeout: Seconds that `with` waits; None waits forever.
            connection: None for the default one.

        Raises:
            ArgumentError: An argument is invalid. No server is queried yet.
        """
        from qd.locks.lock import Lock  # only programs that use locks pay for it

        return Lock(self.connections, self._listeners, name, ttl, renew=renew, timeout=timeout, connection=connection)

    def limiter(
        self, name: str, most: int | None = None, *, per: Duration | None = None, connection: str | None = None
    ) -> Limiter:
        """At most `most` starts in any `per` seconds, across all hosts; without numbers, the limit of app.limit(name).
        Shares its count with RateLimited(name) on the same connection. Raises DeclarationError."""
        from qd.locks.limiter import Limiter

        return Limiter(self.connections, name, self._services.limits.resolve(name, most, per), connection=connection)

    def queue(self, name: str, connection: str | None = None) -> Queue:
        """A queue by its name: its state, and raw or PHP string jobs. connection: None for the default one."""
        return Queue(self._send, name, connection)

    def map(
        self, command: type[C], handler: Callable[[C], object] | type[Handles[C]], name: str | None = None, /,
        **options: Unpack[Options],
    ) -> None:  # fmt: skip
        """Let a worker call `handler` with each object of class `command` that app.send(command) sends.

        Args:
            command: A dataclass, msgspec.Struct or attrs class; its fields are sent.
            handler: A function of the command, sync or async, or a class with handle(command).
            name: The name of the job; the name of the class by default.
        """
        self._services.handlers.map(command, handler, name, options)

    def bind(self, command: object) -> Call[Any]:
        """The call for a command that map() has a handler for, to send later or with options. Raises ArgumentError."""
        plan, data = self._services.handlers.command(command)
        return Call(self._send, plan, data, caller())

    def send(self, command: object) -> Handle[Any]:
        """Send a command to its handler, see map(). Raises ArgumentError, and what dispatch raises."""
        plan, data = self._services.handlers.command(command)
        return Handle(self._send.send(plan, data), self._send, plan)

    def transaction(self, session: object, connection: str | None = None) -> AbstractContextManager[None]:
        """Write the jobs sent in this block to `connection`, a database, inside the open transaction of `session`: they
        exist only if it commits.

        Args:
            session: A Session or Connection of SQLAlchemy, or `django.db.connection` inside `transaction.atomic()`.
            connection: None for the default one.

        Raises:
            ConfigError: The session uses another database, or no transaction is open.

        Example:
            with transaction.atomic():
                order.save()
                with app.transaction(django.db.connection):
                    confirm.dispatch(order)
        """
        joined: Callable[..., AbstractContextManager[None]] = loaded("qd.drivers.database.joined:joined")
        return joined(self.connections, session, connection)

    def emit(self, event: Event) -> None:
        """Call the listeners of one of the app's own events here, and send it to its queued listeners in one round trip.
        An error in a listener is logged and ignored; an error in sending is raised."""
        if not isinstance(event, Event):
            raise ArgumentError(f"{event!r} is not an event: pass an instance of a class derived from qd.events.Event")
        queued = self._services.handlers.jobs_for(event)
        self._listeners.emit(event)
        if queued:
            self._send.send_many(queued)

    def provide(self, kind: type[T], make: Callable[[], T | Iterator[T] | AbstractContextManager[T]]) -> None:
        """Fill parameters of this type on the worker with the result of `make`; their values are not sent.

        make: A plain function, a generator function, or a function that returns a context manager. qd calls it once per
        job that needs it, also in run(), and closes it when the job has ended, passing on the job's error.
        """
        self._registry.known.provide(kind, make)

    def payload_hook(self, hook: PayloadHook) -> PayloadHook:
        """Add keys to every payload: hook(connection, queue, payload) returns a mapping of additional keys, which qd
        ignores; event.job.payload contains them on the worker. Usable as a decorator."""
        self._send.hooks.add(hook)
        return hook

    def recycle_on(self, *errors: type[BaseException]) -> None:
        """Replace a worker after a job has raised one of these errors: for problems that a new process solves, such as a
        client that does not reconnect."""
        for error in errors:
            if not (isinstance(error, type) and issubclass(error, BaseException)):
                raise DeclarationError(f"app.recycle_on() takes exception classes, not {error!r}")
        self._recycling = (*self._recycling, *errors)

    def serializer(self, serializer: Serializer) -> None:
        """Send objects of certain types as model and key, and load them on the worker (see Serializer)."""
        self._registry.known.add_serializer(serializer)

    @overload  # only the result of a Looping listener matters; the overlap is intended
    def on(  # type: ignore[overload-overlap]
        self, event: type[Looping], /
    ) -> Callable[[Callable[[Looping], bool | None]], Callable[[Looping], bool | None]]: ...
    @overload
    def on(self, event: type[E], /) -> Callable[[Callable[[E], None]], Callable[[E], None]]: ...
    @overload
    def on(
        self, event: type[E], name: str = ..., /, **options: Unpack[SendOptions]
    ) -> Callable[[Callable[[E], object]], Callable[[E], object]]: ...
    def on(
        self, event: type[Any], name: str | None = None, /, **options: Any
    ) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
        """`@app.on(JobFailed)`: call the decorated function with each event of this class.

        With a name or options, `@app.on(OrderPaid, queue="mail")`, it becomes a queued listener for one of the app's own
        events: app.emit sends the event's fields and a worker calls the function, which may be async.
        """

        def add(listener: Callable[[Any], Any]) -> Callable[[Any], Any]:
            if name is None and not options:
                self._listeners.add(event, listener)
            else:
                self._services.handlers.listen(event, listener, name, options)
            return listener

        return add

    def extend(self, driver: str, factory: Callable[..., object]) -> None:
        """Register a driver of the app's own for `driver = "..."` in [connections.NAME].

        factory(settings) returns an object with the methods of qd.drivers.base.Connector. `qd work` calls
        factory(settings, who) with a qd.drivers.base.ClientIdentity, and the object also needs the methods of
        qd.drivers.base.KeeperConnector. Raises DeclarationError if the name is taken.
        """
        self.connections.own[driver] = extension(driver, factory, self.connections.own)

    def fake(self) -> AbstractContextManager[Fake]:
        """For tests: record what the block would send. Nothing is sent, and no configuration or server is used."""
        from qd.testing import Fake, staged  # production programs do not pay for it

        return staged(self._services, Fake(self._services))

    def inline(self) -> AbstractContextManager[Fake]:
        """For tests: run each job in this process where it is dispatched, and record it as fake() does."""
        from qd.testing import Inline, staged

        return staged(self._services, Inline(self._services))

    if not TYPE_CHECKING:  # type checkers report unknown attributes by themselves

        def __getattr__(self, name: str) -> Any:
            if (ours := OF_CELERY.get(name)) is not None:
                raise AttributeError(f"Qd has no '{name}': use {ours}", name=name, obj=self)
            return object.__getattribute__(self, name)  # raises


def encoded(calls: Sequence[object]) -> list[tuple[Plan, bytes]]:
    """Plan and `data` of each call. Raises ArgumentError for anything else."""
    ready = [call._to_send()[1:] for call in calls if isinstance(call, Call)]
    if len(ready) < len(calls):
        wrong = next(call for call in calls if not isinstance(call, Call))
        raise ArgumentError(f"{wrong!r} is not a call: pass job.bind(...) or an instance of a class job")
    return ready
