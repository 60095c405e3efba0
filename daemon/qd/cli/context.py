"""What every command shares: --app, --config, -c/--connection and --json, before or after the command's name, and what
they lead to: settings, a connection, the app.
"""

from __future__ import annotations

import getpass
import importlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from qd.cli import output
from qd.errors import ConfigError, ConnectionLost, QdError
from qd.options import kinds
from qd.process.exit_codes import Exit

if TYPE_CHECKING:
    from qd.app import Qd
    from qd.config.settings import Settings
    from qd.drivers.base import Connector, Factory
    from qd.store.base import KeyspaceStore


F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Given:
    """The shared options of this call of `qd`; None: not given."""

    app: str | None = None
    config: str | None = None
    connection: str | None = None
    json: bool = False
    only_looks: bool = False  # no embedded server is started for it
    has_app: bool = False  # imported for its credential providers
    patience: float = 5.0  # seconds a server may take to be reached, and for each answer


def folder_is_gone() -> bool:
    """Whether the current folder has been deleted: no relative path leads anywhere."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def given() -> Given:
    """What the shared options of the running command said."""
    return click.get_current_context().find_root().ensure_object(Given)


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value is not None and value is not False and param.name:
        setattr(ctx.find_root().ensure_object(Given), param.name, value)


def _shared(*names: str, **more: Any) -> Callable[[F], F]:
    return click.option(*names, expose_value=False, callback=_keep, **more)


def options(function: F) -> F:
    """Decorator: the options that every command takes. Read them with `given()`."""
    add = (
        _shared("--json", "json", is_flag=True, default=False, help="Print one JSON document, for programs."),
        _shared("-c", "--connection", metavar="NAME", help="Use this connection.  [default: `default` of [qd]]"),
        _shared("--config", metavar="PATH", help="Read this file.  [QD_CONFIG, ./qd.toml, ./pyproject.toml]"),
        _shared("--app", metavar="MODULE:ATTR", help="The app that declares the jobs.  [QD_APP, `app` of [qd]]"),
    )
    for decorator in add:
        function = decorator(function)
    return function


def settings() -> Settings:
    """The configuration as the shared options ask for it. Raises ConfigError.

    The app is imported for it only where nothing else names a server: its Qd(...) may.
    """
    found = loaded()
    if found.app and found.connections[found.default].url is None:
        return app_of(found).settings
    return found


def loaded(code: Mapping[str, object] | None = None) -> Settings:
    """The configuration; `code` is what Qd(...) was given."""
    from qd import config
    from qd.config.file import VARIABLES

    VARIABLES.begin()
    asked = given()
    flags = {key: value for key, value in (("app", asked.app), ("connection", asked.connection)) if value is not None}
    return config.load(Path(asked.config) if asked.config else None, flags=flags, code=code)


def who() -> str:
    """user@host, for what others will ask about."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def connection_name(found: Settings) -> str:
    """The connection that was asked for, else the default one. Raises ConfigError when it is not known."""
    return found.connection(given().connection).name


def places(found: Settings) -> list[str]:
    """The connection that was asked for, else the default one; of failover those that it sends to. Raises ConfigError: it is
    not known."""
    return found.parts(given().connection)


def place(found: Settings) -> str:
    """The first of them, for a command that is about one: who asks for failover is told."""
    first, *others = places(found)
    if others:
        whole = f"connection '{connection_name(found)}' (failover)"
        output.note(f"qd: of {whole} this is about {first}, its first; for another one give -c {' or '.join(others)}")
    return first


def running(found: Settings, name: str) -> None:
    """For commands that only look: raises ConnectionLost for an embedded server that does not run."""
    if not given().only_looks or not (found.connection(name).url or "").startswith("embedded:"):
        return
    from qd.drivers import embedded

    if embedded.status(found.root) is None:
        raise ConnectionLost(not_running(found.root))


def not_running(root: Path) -> str:
    return f"the embedded server of {root} is not running; `qd work` starts it"


def store(found: Settings, name: str) -> KeyspaceStore:
    """The small facts on the connection called `name`, until the command ends. Raises ConfigError; it connects on first
    use."""
    from qd.drivers.connections import open_memory
    from qd.options.drivers import OPENED_WITHOUT_APP
    from qd.store.base import KeyspaceStore

    with_providers(found)
    if found.connection(name).driver not in OPENED_WITHOUT_APP:  # the app's own says where it is
        return KeyspaceStore(*queue(found, name).kept)
    running(found, name)
    space, prefix = open_memory(found, name, title="qd: command", patience=given().patience)
    click.get_current_context().call_on_close(space.close)
    return KeyspaceStore(space, prefix)


def store_at(url: str, prefix: str) -> KeyspaceStore:
    """The small facts under `prefix` of the Redis at `url`, until the command ends."""
    from qd.config.settings import provider_of
    from qd.drivers.redis.driver import opened
    from qd.store.base import KeyspaceStore

    if provider_of(url):
        with_providers(loaded())
    wire = opened(url, name="qd: command", patience=given().patience)
    click.get_current_context().call_on_close(wire.close)
    return KeyspaceStore(wire, prefix)


def queue(found: Settings, name: str) -> Connector:
    """The queues on the connection called `name`, until the command ends. Raises ConfigError; connects on first use."""
    from qd.drivers.connections import open_queue

    running(found, name)
    with_providers(found)
    opened = open_queue(found, name, title="qd: command", patience=given().patience, own=own_drivers(found, name))
    click.get_current_context().call_on_close(opened.close)
    return opened


def with_providers(found: Settings) -> None:
    """Import the app if a connection has a credential provider, which is part of the app or imported with it. Raises
    ConfigError: no app is named, or it does not import."""
    from qd.config.settings import provider_of

    if given().has_app:
        return
    urls = [connection.url for connection in found.connections.values()]
    urls += [found.laravel.cache_url] if found.laravel else []
    provider = next((name for url in urls if (name := provider_of(url))), "")
    if not provider:
        return
    if not found.app:
        raise ConfigError(
            f"the credentials '{provider}' of a connection come with the app, and no app is named: give --app MODULE:ATTR, "
            f"set QD_APP or write app = below [qd]{found.unfound}"
        )
    app_of(found)
    given().has_app = True


def own_drivers(found: Settings, name: str) -> Mapping[str, Factory]:
    """The app's drivers, where this connection or a part of it is of one: only then the app is imported. Raises
    ConfigError."""
    from qd.options.drivers import OPENED_WITHOUT_APP

    at = found.connection(name)
    if at.driver in OPENED_WITHOUT_APP:
        return next((own for part in at.connections if (own := own_drivers(found, part))), {})
    app = app_if_named(found)
    return app.connections.own if app else {}


def app() -> Qd:
    """The app with its jobs. Raises ConfigError: none is named, or it does not import."""
    configured = loaded()
    found = app_if_named(configured)
    if found is None:
        raise ConfigError(
            "no app is named: give --app MODULE:ATTR, set QD_APP, write app = below [qd] in qd.toml, or `qd init`"
            + configured.unfound
        )
    return found


def app_if_named(found: Settings) -> Qd | None:
    """The app with its jobs; None: neither --app nor QD_APP nor the file names one. Raises ConfigError."""
    if not found.app:
        return None
    held = app_of(found)
    try:
        held._load()
    except QdError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"the imports of app '{found.app}' fail: {_told(error)}") from error
    return held


def app_of(found: Settings) -> Qd:
    """The app itself. What the command line said counts for it too. Raises ConfigError."""
    from qd.worker.template import load_app

    try:
        held = load_app(found)
    except QdError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"app '{found.app}' ({found.origins['qd.app']}) does not import: {_told(error)}") from error
    held.settings = loaded(held._code_settings)
    return held


def _told(error: BaseException) -> str:
    """The error, and the line of the user's code that raised it."""
    if isinstance(error, SyntaxError) and error.filename:  # its file did not get as far as to have a frame
        return f"{type(error).__name__}: {error.msg} ({error.filename}:{error.lineno})"
    from traceback import extract_tb

    others = (str(Path(__file__).parents[1]), importlib.__file__, "<frozen")
    frames = [f for f in extract_tb(error.__traceback__) if not f.filename.startswith(others)]
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def pools(found: Settings) -> list[Settings]:
    """The settings without a pool, and those of each pool of the file."""
    from qd import config
    from qd.config import file

    path = Path(asked) if (asked := given().config) else None
    read = file.find(path, os.environ)
    return [found, *(config.load(path, pool=name) for name in (read.section("pools") if read else ()))]


def queues_named(found: Settings, connection: str) -> list[str]:
    """The queues of `connection` that the configuration names: for the connection itself, in [worker], in a pool."""
    own = found.origins[f"connections.{connection}.queue"] != "built in"
    names = [found.connection(connection).queue] if own else []
    for one in pools(found):
        if one.origins["worker.queues"] != "built in" and one.work.connection == connection:
            names.extend(one.work.queues)
    return list(dict.fromkeys(names))


@contextmanager
def deadline(seconds: int, said: str) -> Iterator[None]:
    """Raises ConnectionLost, which says `said`, when the block takes longer."""

    def late(*_: object) -> None:
        raise ConnectionLost(said)

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def ended_within(seconds: int, said: str) -> Iterator[None]:
    """As `deadline`; and where no signal is heard, as in a name server's library, this process is ended with 69."""

    def end() -> None:
        os.write(2, f"qd: {said}\n".encode())
        os._exit(Exit.UNAVAILABLE)

    watch = threading.Timer(seconds + 0.5, end)
    watch.daemon = True
    watch.start()
    try:
        with deadline(seconds, said):
            yield
    finally:
        watch.cancel()


class Refused(click.ClickException):
    """What was asked for cannot be done as it was asked: one line, exit 2."""

    exit_code = 2


class Span(click.ParamType[float]):
    """A length of time: 90, "90s", "5m"."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return kinds.span(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def version() -> str:
    from qd import __version__

    return __version__
