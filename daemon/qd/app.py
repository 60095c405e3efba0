"""Qd: what producers import. Stores its arguments; files are read and servers connected to on first use.

app = Qd(imports=["shop.mail"])
@app.job("mail.welcome", queue="mail")      jobs/declare.py
welcome.dispatch("a@b.c")                   jobs/job.py -> dispatch/dispatcher.py -> drivers
qd work                                     app._load(), then app._registry and app._listeners
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from qd.arguments.injection import Serializer
from qd.dispatch.batch import Batch, BatchCall, batch_in_hand
from qd.dispatch.chain import Chain
from qd.dispatch.dispatcher import Keyed, Queue
from qd.dispatch.extensions import extension, own_drivers
from qd.dispatch.handlers import Handles
from qd.dispatch.route import PayloadHook
from qd.dispatch.services import Services, limit_of
from qd.drivers.connections import loaded
from qd.errors import ArgumentError, ConfigError, DeclarationError, NoProvider, UnknownJob
from qd.events import Event, Looping
from qd.jobs.declare import Declare
from qd.jobs.job import Call, Job, JobFunction, caller, plan_of
from qd.jobs.plan import Duration, Handle, Options, Place, Plan, SendOptions
from qd.schedule.declare import Schedule

if TYPE_CHECKING:
    from redis import Redis, RedisCluster

    from qd.config.settings import Settings
    from qd.locks.limiter import Limiter
    from qd.locks.lock import Lock
    from qd.testing.fake import Fake


E = TypeVar("E", bound=Event)
T = TypeVar("T")
C = TypeVar("C")


class Qd:
    """An app: its jobs, its listeners, its connections. One for each project; it may be used from any thread, and after
    a fork.

    url: of the default connection, below QD_REDIS_URL and above qd.toml. redis: in its place a client of redis-py, whose
    connection parameters are copied; qd opens its own connections with them. imports: modules that declare jobs.
    middleware: what stands around every job, outermost first: a list, and `@app.middleware` above a def appends it.
    """

    job: Declare

    def __init__(
        self, url: str | None = None, *, redis: Redis | RedisCluster | None = None, imports: Sequence[str] = ()
    ) -> None:
        self.url = url if redis is None else url_of(redis, url)
        self.imports = tuple(imports)
        self._services = services = Services(lambda: self._code_settings)
        self._send = services.dispatcher
        self._registry, self._listeners, self.connections = services.registry, services.listeners, services.connections
        self.middleware = services.pipeline
        self.connections.own |= own_drivers(services)
        self._recycling: tuple[type[BaseException], ...] = ()
        self._transactions = self._send.transactions
        self.loading: list[Callable[[], AbstractContextManager[None]]] = []  # entered around _load()
        self.job = Declare(self._registry, self._send)
        self.schedule = Schedule(services.current_settings, self._registry, self.call)

    @property
    def _code_settings(self) -> dict[str, object]:
        """What the code says, as config.load takes it: above the file, below the environment."""
        said: dict[str, object] = {"url": self.url, "imports": list(self.imports)}
        return {key: value for key, value in said.items() if value}

    @property
    def settings(self) -> Settings:
        """All settings, read on first use. Raises ConfigError."""
        return self._services.settings

    @settings.setter
    def settings(self, settings: Settings) -> None:
        """What the command line worked out counts for the app too."""
        self._services.settings = settings

    def _load(self) -> None:
        """Import the modules that declare jobs. Raises whatever they raise."""
        root = str(self.settings.root)
        if root not in sys.path:
            sys.path.insert(0, root)
        with ExitStack() as around:
            for enter in self.loading:
                around.enter_context(enter())
            for name in self.settings.imports:
                import_module(name)

    def dispatch(self, *calls: Call[Any]) -> list[Handle[Any]]:
        """Send many in one round trip; their handles in order. All of them are encoded before the first is sent."""
        ready = [call._to_send()[1:] for call in calls if isinstance(call, Call)]
        if len(ready) < len(calls):
            stranger = next(call for call in calls if not isinstance(call, Call))
            raise ArgumentError(f"{stranger!r} is not a call: give job.bind(...) or an instance of a class job")
        sent = zip(self._send.send_many(ready), ready, strict=True)
        return [Handle(id, self._send, plan) for id, (plan, _) in sent]

    def handle(self, id: str, *, queue: str | None = None, connection: str | None = None) -> Handle[Any]:
        """The handle of a job that was sent before, by its id. queue: where it was sent, None: to the connection's own;
        connection: None is the default one."""
        place = self.settings.connection(connection)
        return Handle(id, self._send, Place(place.name, queue or place.queue))

    def chain(self, *calls: Call[Any], catch: Call[Any] | None = None) -> Chain:
        """Jobs of which each is sent when the one before it has succeeded. catch: sent when one of them has failed for
        good. Raises ArgumentError: there is nothing in it."""
        return Chain(self._send, calls, catch, caller())

    def batch(
        self,
        *calls: Call[Any],
        then: Call[Any] | None = None,
        catch: Call[Any] | None = None,
        finally_: Call[Any] | None = None,
        name: str = "",
        allow_failures: bool = False,
    ) -> BatchCall:
        """Jobs that run side by side and are counted together. then: sent once all have succeeded; catch: when the first
        has failed for good, which also cancels the batch unless allow_failures; finally_: when nothing is left to run."""
        callbacks = {"then": then, "catch": catch, "finally": finally_}
        return BatchCall(self._send, calls, callbacks, name=name, allow_failures=allow_failures, origin=caller())

    def batch_of(self, id: str, connection: str | None = None) -> Batch:
        """A batch by its id; nothing is asked of the server yet. connection: None is the default one."""
        return Batch(id, self._send, self._send.connection(connection))

    def current_batch(self) -> Batch:
        """The batch of the job that this code runs in, in a callback the one it follows. Raises NotInJob, UnknownBatch."""
        return batch_in_hand(self._send)

    def keyed(self, job: JobFunction[..., Any, Any] | type[Job[Any]], key: str) -> Keyed:
        """A job by the key it was dispatched with: `remind.using(key="order:42", delay=1800)`, to cancel or move it. Where
        it was sent to a queue of its own, give job.using(queue=...) here too."""
        plan = plan_of(job)
        if plan is None or self._registry.get(plan.declared.name) is not plan.declared:
            raise ArgumentError(f"{job!r} is no job of this app: give what @app.job made of the function or class")
        return Keyed(self._send, plan.using({"key": key}), key)

    def call(self, name: str, data: bytes) -> Call[Any]:
        """A call of the job declared as `name`, with `data` as in a payload. Raises UnknownJob, UnknownParameters,
        WrongType."""
        declared = self._registry.get(name)
        if declared is None:
            near = ", ".join(f"'{other}'" for other in self._registry.near(name))
            raise UnknownJob(
                f"no job is called '{name}' ({f'did you mean {near}?' if near else '`qd declared` lists them'})"
            )
        with suppress(NoProvider):  # that is for who runs it
            declared.prepare(data)
        return Call(self._send, Plan(declared, declared.options), data)

    def limit(self, name: str, most: int, *, per: float | timedelta) -> None:
        """Declare the figures of RateLimited(name): at most `most` starts in any `per` seconds, on all hosts together."""
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
        """A lock that one at a time has on all hosts together: `with app.lock("report", ttl=30):`; no server is asked yet.

        ttl: seconds after which it falls free when nobody gives it back; renew: it is extended while this process lives.
        timeout: seconds that `with` waits, None: without end. connection: None is the default one. Raises ArgumentError.
        """
        from qd.locks.lock import Lock  # loaded by those who lock

        return Lock(self.connections, self._listeners, name, ttl, renew=renew, timeout=timeout, connection=connection)

    def limiter(
        self, name: str, most: int | None = None, *, per: Duration | None = None, connection: str | None = None
    ) -> Limiter:
        """At most `most` starts in any `per` seconds, on all hosts together; without figures those of app.limit(name). With
        RateLimited(name) on the same connection they are counted together. Raises DeclarationError."""
        from qd.locks.limiter import Limiter

        return Limiter(self.connections, name, self._services.limits.figures(name, most, per), connection=connection)

    def queue(self, name: str, connection: str | None = None) -> Queue:
        """A queue by its name: raw and PHP string jobs, and its state. connection: None is the default one."""
        return Queue(self._send, name, connection)

    def map(
        self,
        command: type[C],
        handler: Callable[[C], object] | type[Handles[C]],
        name: str | None = None,
        /,
        **options: Unpack[Options],
    ) -> None:
        """Let `handler` do what objects of the class `command` ask for, on a worker: app.send(command).

        command: a dataclass, a msgspec.Struct or an attrs class; its fields travel. handler: a function that takes one,
        sync or async, or a class with handle(command). The job is called as the class, or `name`.
        """
        self._services.handlers.map(command, handler, name, options)

    def bind(self, command: object) -> Call[Any]:
        """The job for this command, to be sent later, or with options. Raises ArgumentError."""
        plan, data = self._services.handlers.command(command)
        return Call(self._send, plan, data, caller())

    def send(self, command: object) -> Handle[Any]:
        """Send this command to its handler. Raises ArgumentError, and what dispatch raises."""
        plan, data = self._services.handlers.command(command)
        return Handle(self._send.send(plan, data), self._send, plan)

    def transaction(self, session: object, connection: str | None = None) -> AbstractContextManager[None]:
        """What is sent inside to `connection`, a database (None: the default), is written in the transaction that is open
        on `session`, of SQLAlchemy: the jobs are there exactly if it commits. Raises ConfigError when that is another
        database, or a connection of Django."""
        if (kind := type(session)).__module__.startswith("django."):  # also without SQLAlchemy, which `loaded` asks for
            raise ConfigError(
                f"app.transaction() cannot use Django's {kind.__name__}: pass a Session or Connection of SQLAlchemy, or send"
                " the job with `using(after_commit=True)`"
            )
        joined: Callable[..., AbstractContextManager[None]] = loaded("qd.drivers.database.joined:joined")
        return joined(self.connections, session, connection)

    def emit(self, event: Event) -> None:
        """Call the listeners of an event of the app's own, here and now, and send it to its queued ones, in one round trip.
        What a listener raises is logged and stops nothing; what sending raises comes out."""
        if not isinstance(event, Event):
            raise ArgumentError(f"{event!r} is not an event: give an instance of a class derived from qd.events.Event")
        heard = self._services.handlers.heard(event)
        self._listeners.emit(event)
        if heard:
            self._send.send_many(heard)

    def provide(self, kind: type[T], make: Callable[[], T | Iterator[T] | AbstractContextManager[T]]) -> None:
        """Fill the parameters of this type on the worker, with what `make` makes; they do not travel.

        make: a plain function, or a generator or one that gives a context manager, which is closed when the job has
        ended, and sees the error of one that raised. Once a job that asks for it, here and in run().
        """
        self._registry.known.provide(kind, make)

    def payload_hook(self, hook: PayloadHook) -> PayloadHook:
        """Add to each payload that is made: hook(connection, queue, payload) returns a mapping of further keys. As a
        decorator, too. Nobody reads them but you: event.job.payload has them on the worker."""
        self._send.hooks.add(hook)
        return hook

    def recycle_on(self, *errors: type[BaseException]) -> None:
        """A worker whose job raises one of these errors leaves when the job is settled, and another takes its place: for
        what a new process mends, such as a broken connection of a client that does not reconnect."""
        for error in errors:
            if not (isinstance(error, type) and issubclass(error, BaseException)):
                raise DeclarationError(f"app.recycle_on was given {error!r}, which is no class of errors")
        self._recycling = (*self._recycling, *errors)

    def serializer(self, serializer: Serializer) -> None:
        """Send the objects of a family of types as model and key, and load them on the worker (see Serializer)."""
        self._registry.known.add_serializer(serializer)

    @overload  # only Looping asks for an answer; the overlap is meant
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
        """`@app.on(JobFailed)`: call the function below with each event of this kind.

        With options, `@app.on(OrderPaid, queue="mail")`, it is a queued listener of one of the app's own events: app.emit
        sends the event's fields, and a worker calls the function. It may be async then.
        """

        def add(listener: Callable[[Any], Any]) -> Callable[[Any], Any]:
            if name is None and not options:
                self._listeners.add(event, listener)
            else:
                self._services.handlers.listen(event, listener, name, options)
            return listener

        return add

    def extend(self, driver: str, factory: Callable[..., object]) -> None:
        """Let `driver = "..."` in [connections.NAME] be one of the app's own: factory(settings of the connection) makes an
        object that does what qd.drivers.base.Connector says.

        For `qd work` it is factory(settings, who), who a qd.drivers.base.Reserver, and the object also does what
        qd.drivers.base.Keeping says. Raises DeclarationError: the word is taken.
        """
        self.connections.own[driver] = extension(driver, factory, self.connections.own)

    def fake(self) -> AbstractContextManager[Fake]:
        """For tests: in the block nothing is sent, no configuration read and no server asked; what would have been
        sent is written down."""
        from qd.testing.fake import faked  # no program in production pays for it

        return faked(self._services)

    def inline(self) -> AbstractContextManager[Fake]:
        """For tests: in the block each job runs at once where it is dispatched, in this process; it is also written down,
        as by fake()."""
        from qd.testing.inline import inlined

        return inlined(self._services)


def url_of(client: Redis | RedisCluster, url: str | None) -> str:
    """Raises ConfigError: two servers are given, or a client that qd cannot connect as."""
    if url is not None:
        raise ConfigError("Qd(...) takes a url or redis=, not both: each names the server of the default connection")
    from qd.drivers.redis import client_url  # only an app with a client

    return client_url.url_of(client)
