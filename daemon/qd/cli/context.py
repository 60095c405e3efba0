"""What commands share: --app, --config, -c/--connection and --json, before or after the command's name; and what these lead
to: settings, connections, the app. Imported by every command, so nothing slow is imported at the top.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from qd.cli import output
from qd.errors import ConfigError, ConnectionLost, DeclarationError, QdError
from qd.options import kinds
from qd.process.exit_codes import Exit

if TYPE_CHECKING:
    from qd.app import Qd
    from qd.config.settings import ConnectionSettings, Settings
    from qd.drivers.base import Connector, Factory
    from qd.store.base import KeyspaceStore

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
RECORDED = 1.0  # seconds to connect and for a reply: the work of the command is done


@dataclass
class Given:
    """The shared options of this call; None: not given."""

    app: str | None = None
    config: str | None = None
    connection: str | None = None
    json: bool = False
    only_looks: bool = False  # do not start an embedded server
    has_app: bool = False  # the app was imported for its credential providers
    patience: float = 5.0  # seconds to connect to a server, and for each reply
    pools: list[Settings] | None = None  # those of the last valid file
    invalid: Callable[[ConfigError], None] | None = None  # called instead of ending the command
    kept: dict[tuple[str, str], Any] | None = None  # of a command that reads again and again: its open connections

    @property
    def file(self) -> Path | None:
        return Path(self.config) if self.config else None


def folder_is_gone() -> bool:
    """Whether the current folder has been deleted: no relative path works."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def given() -> Given:
    return click.get_current_context().find_root().ensure_object(Given)


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value is not None and value is not False and param.name:
        setattr(ctx.find_root().ensure_object(Given), param.name, value)


def options(function: F) -> F:
    """Decorator: the options that every command takes. Read them with `given()`."""
    shared = partial(click.option, expose_value=False, callback=_keep)
    return decorated(
        function,
        shared("--app", metavar="MODULE:ATTR", help="The app that declares the jobs.  [QD_APP, `app` of [qd]]"),
        shared("--config", metavar="PATH", help="Read this file.  [QD_CONFIG, ./qd.toml, ./pyproject.toml]"),
        shared("-c", "--connection", metavar="NAME", help="Use this connection.  [default: `default` of [qd]]"),
        shared("--json", "json", is_flag=True, default=False, help="Print one JSON document, for programs."),
    )


def decorated(function: F, *decorators: Callable[[Any], Any]) -> F:
    """The first decorator is the outermost: the order of --help."""
    for add in reversed(decorators):
        function = add(function)
    return function


def watched(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: adds --watch N, with which a command that only reads runs again and again, until Ctrl-C or until nobody
    reads its output. Each run has connections of its own. A server that is away is tried again."""

    @functools.wraps(function)
    def again(*args: Any, watch: float | None, **named: Any) -> Any:
        if watch is None:
            return function(*args, **named)
        here = click.get_current_context()
        here.meta[output.ONE_LINE] = True
        while True:
            if sys.stdout.isatty() and not given().json:
                click.clear()
            with click.Context(here.command, info_name=here.info_name, parent=here.parent):
                try:
                    code = function(*args, **named)
                except ConnectionLost as error:
                    output.note(f"qd: {error}; trying again")
            if output.is_lost():
                return code
            time.sleep(watch)

    text = "Run again every N seconds; --json: a document a line."
    return click.option("--watch", type=click.FloatRange(min=0.1), metavar="N", help=text)(again)


def settings() -> Settings:
    """The configuration with the shared options. Raises ConfigError.

    Imports the app only if its Qd(...) may name another server than the one found here.
    """
    found = loaded()
    at = found.connections.get(given().connection or found.default)
    if not found.app or (at and is_server(at)):
        return found
    try:
        return app_of(found).settings
    except ConfigError as error:
        if at is None or at.url is None:
            raise
        output.note(f"qd: {error}; using the url of {at.url_origin}")
        return found


def is_server(at: ConnectionSettings) -> bool:
    """Whether commands use its url without importing the app. Not that of REDIS_URL, which Qd(url) overrides."""
    return at.url is not None and at.url_origin != "environment REDIS_URL"


def loaded(code: Mapping[str, object] | None = None, pool: str | None = None) -> Settings:
    """The configuration, without a pool or for one of them. code: the arguments of Qd(...)."""
    from qd import config
    from qd.config.file import VARIABLES

    VARIABLES.begin()
    flags = {"app": given().app, "connection": given().connection}
    if code is None:
        return config.load_without_app(given().file, flags, pool or None)
    return config.load(given().file, flags=flags, pool=pool or None, code=code)


def operator() -> str:
    """QD_ACTOR or user@host, for the notes that qd stores."""
    from qd.store.audit import actor

    return actor()


def record(found: Settings, what: str, *objects: Mapping[str, Any], reason: str = "") -> None:
    """Record what a command did to each of these, for `qd events`. A failure is a note: what was done stays done."""
    from qd.options.drivers import WITH_KEYSPACE
    from qd.store import audit

    if not objects or found.connection(found.control).driver not in WITH_KEYSPACE:
        return
    try:
        at = store(found, found.control)
        with at.space.within(RECORDED):
            audit.record(at, *[audit.Event(what, each, reason) for each in objects])
    except QdError as error:
        output.note(f"qd: done, but `qd events` does not show it: {error}")


def connection_name(found: Settings) -> str:
    """The connection of -c, else the default one. Raises ConfigError if it is unknown."""
    return found.connection(given().connection).name


def places(found: Settings) -> list[str]:
    """The connection of -c, else the default one; for failover those that it sends to. Raises ConfigError."""
    return found.parts(given().connection)


def place(found: Settings) -> str:
    """The first of them, for a command that works on one; a note names the others."""
    first, *others = places(found)
    if others:
        whole = f"'{connection_name(found)}' is a failover connection"
        output.note(f"qd: {whole}: using its first member, {first}; for another one give -c {' or '.join(others)}")
    return first


def opened(*, looks: bool = False) -> tuple[Settings, str, KeyspaceStore]:
    """The configuration, `place` and its store. looks: the command only reads."""
    given().only_looks, found = looks, settings()
    return found, (name := place(found)), store(found, name)


def running(found: Settings, name: str) -> None:
    """For commands that only read: raises ConnectionLost if an embedded server is not running."""
    if not given().only_looks or not (found.connection(name).url or "").startswith("embedded:"):
        return
    from qd.drivers import embedded

    if embedded.status(found.root) is None:
        raise ConnectionLost(not_running(found.root))


def not_running(root: Path) -> str:
    return f"the embedded server of {root} is not running; `qd work` starts it"


def opened_once(opens: Callable[[Settings, str], T]) -> Callable[[Settings, str], T]:
    """Decorator, for a command that reads again and again."""

    @functools.wraps(opens)
    def open_or_kept(found: Settings, name: str) -> T:
        kept = given().kept
        if kept is None:
            return opens(found, name)
        key = opens.__name__, name
        return cast(T, kept[key] if key in kept else kept.setdefault(key, opens(found, name)))

    return open_or_kept


@opened_once
def store(found: Settings, name: str) -> KeyspaceStore:
    """The store on the connection `name`, until the command ends. Raises ConfigError; connects on first use."""
    from qd.drivers.connections import open_memory
    from qd.options.drivers import OPENED_WITHOUT_APP
    from qd.store.base import KeyspaceStore

    with_providers(found)
    if found.connection(name).driver not in OPENED_WITHOUT_APP:  # the app's own driver knows where its store is
        return KeyspaceStore(*queue(found, name).kept)
    running(found, name)
    space, prefix = open_memory(found, name, title="qd: command", patience=given().patience)
    click.get_current_context().call_on_close(space.close)
    return KeyspaceStore(space, prefix)


def store_at(url: str, prefix: str) -> KeyspaceStore:
    """The store under `prefix` of the Redis at `url`, until the command ends."""
    from qd.config.settings import provider_of
    from qd.drivers.redis_driver import opened
    from qd.store.base import KeyspaceStore

    if provider_of(url):
        with_providers(loaded())
    connection = opened(url, name="qd: command", patience=given().patience)
    click.get_current_context().call_on_close(connection.close)
    return KeyspaceStore(connection, prefix)


@opened_once
def queue(found: Settings, name: str) -> Connector:
    """The queues on the connection `name`, until the command ends. Raises ConfigError; connects on first use."""
    from qd.drivers.connections import open_queue

    running(found, name)
    with_providers(found)
    opened = open_queue(found, name, title="qd: command", patience=given().patience, own=own_drivers(found, name))
    click.get_current_context().call_on_close(opened.close)
    return opened


def with_providers(found: Settings) -> None:
    """Import the app if a connection has a credential provider, which the app declares or imports. Raises ConfigError if
    no app is named, or it does not import."""
    from qd.config.settings import provider_of

    if given().has_app:
        return
    urls = [connection.url for connection in found.connections.values()]
    urls += [found.laravel.cache_url] if found.laravel else []
    provider = next((name for url in urls if (name := provider_of(url))), "")
    if not provider:
        return
    if not found.app:
        ways = f"give --app MODULE:ATTR, set QD_APP or write app = below [qd]{found.unfound}"
        raise ConfigError(f"the app declares the credentials '{provider}' of a connection, and no app is named: {ways}")
    app_of(found)
    given().has_app = True


def own_drivers(found: Settings, name: str) -> Mapping[str, Factory]:
    """The app's drivers, if this connection or a part of it uses one; else the app is not imported. Raises ConfigError."""
    from qd.options.drivers import OPENED_WITHOUT_APP

    at = found.connection(name)
    if at.driver in OPENED_WITHOUT_APP:
        return next((own for part in at.connections if (own := own_drivers(found, part))), {})
    app = app_if_named(found)
    return app.connections.own if app else {}


def app() -> Qd:
    """The app with its jobs. Raises ConfigError if none is named, or it does not import."""
    configured = loaded()
    if (found := app_if_named(configured)) is None:
        ways = "give --app MODULE:ATTR, set QD_APP, write app = below [qd] in qd.toml, or run `qd init`"
        raise ConfigError(f"no app is named: {ways}{configured.unfound}")
    return found


def app_if_named(found: Settings) -> Qd | None:
    """The app with its jobs; None if none is named. Raises ConfigError."""
    if not found.app:
        return None
    held = app_of(found)
    with _user_code(f"the imports of app '{found.app}' fail"):
        held._load()
    return held


def app_of(found: Settings) -> Qd:
    """The app without its jobs; the shared options apply to it. Raises ConfigError."""
    from qd.worker.boot import load_app

    with _user_code(f"app '{found.app}' ({found.origins['qd.app']}) does not import"):
        held = load_app(found)
    held.settings = loaded(held._code_settings)
    return held


@contextmanager
def _user_code(problem: str) -> Iterator[None]:
    """Raises ConfigError for what the app's modules raise, but qd's own errors as they are, with the line."""
    try:
        yield
    except DeclarationError as error:
        from qd.worker.boot import user_line

        raise DeclarationError(f"{error}{user_line(error)}") from error
    except QdError:
        raise
    except (Exception, SystemExit) as error:
        from qd.worker.boot import user_line

        what = f"{error}{user_line(error)}"
        if isinstance(error, SyntaxError) and error.filename:  # its file has no frame yet
            what = f"{error.msg} ({error.filename}:{error.lineno})"
        raise ConfigError(f"{problem}: {type(error).__name__}: {what}") from error


def pool_names() -> list[str]:
    from qd.config.file import find

    file = find(given().file, os.environ)
    return list(file.section("pools")) if file else []


def pools(found: Settings) -> list[Settings]:
    """These settings, and those of each pool without the shared options."""
    from qd import config

    here = given()
    try:
        here.pools = [config.load(here.file, pool=name) for name in pool_names()]
    except ConfigError as error:
        if here.invalid is None or here.pools is None:
            raise
        here.invalid(error)
    return [found, *here.pools]


def queues_named(found: Settings, connection: str) -> list[str]:
    """The queues of `connection` that the configuration names: for the connection, in [worker], in a pool."""
    own = found.origins[f"connections.{connection}.queue"] != "built in"
    names = [found.connection(connection).queue] if own else []
    for one in pools(found):
        if one.origins["worker.queues"] != "built in" and one.work.connection == connection:
            names.extend(one.work.queues)
    return list(dict.fromkeys(names))


@contextmanager
def deadline(seconds: int, reason: str) -> Iterator[None]:
    """Raises ConnectionLost(reason) if the block takes longer."""

    def late(*_: object) -> None:
        raise ConnectionLost(reason)

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def ended_within(seconds: int, reason: str) -> Iterator[None]:
    """As `deadline`; ends this process with 69 if the signal is not handled, as in a resolver's C code."""

    def end() -> None:
        os.write(2, f"qd: {reason}\n".encode())
        os._exit(Exit.UNAVAILABLE)

    watch = threading.Timer(seconds + 0.5, end)
    watch.daemon = True
    watch.start()
    try:
        with deadline(seconds, reason):
            yield
    finally:
        watch.cancel()


def shipped(folder: str) -> Path:
    """The folder docs or conf: of the installed package, or of the clone that it runs from."""
    package = Path(__file__).resolve().parents[1]
    packed = package / folder
    return packed if packed.is_dir() else package.parents[1] / folder


class Refused(click.ClickException):
    """A request that cannot be fulfilled: one line, exit 2."""

    exit_code = 2


class Parsed(click.ParamType[Any]):
    """A value as `parse` reads it; the text of its ValueError becomes the message."""

    name = "value"

    def __init__(self, parse: Callable[[Any], Any]) -> None:
        self.parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


SPAN = Parsed(kinds.span)
yes = click.option("--yes", is_flag=True, help="Do not ask; needed where stdin is no terminal.")


def confirm(yes: bool, name: str, what: str) -> None:
    """Before a command that takes jobs away: ask to type `name`. what: "this deletes ...". Raises Refused, without a
    terminal or for another answer."""
    if yes:
        return
    if not sys.stdin.isatty() or given().json:
        raise Refused(f"{what}: nothing was changed, because no --yes was given")
    output.note(f"{what}.")
    if click.prompt(f"Type {output.clean(name)} to go on", err=True, default="", show_default=False) != name:
        raise Refused("nothing was changed")
