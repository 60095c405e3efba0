"""User and password of a Redis connection: from the URL, or from a credential provider that is called at each connect.

A provider is an object with get_credentials(), as in redis-py, or a function. Both return (user, password) or (password,).
The URL contains its name as `credentials=NAME`:

    shop.aws:provider     an attribute of a module, as named by `credentials` in qd.toml
    Qd:ElastiCache        the provider of the client in Qd(redis=client), registered when the app is imported
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from traceback import extract_tb
from typing import Any, NamedTuple

from qd.errors import ConfigError, Unusable

OF_CLIENT = "Qd:"
_of_clients: dict[str, object] = {}


class Login(NamedTuple):
    """provider: name of the credential provider, "" if the URL contains the login or no login is needed."""

    user: str | None = None
    password: str | None = None
    provider: str = ""

    def ask(self, place: str) -> tuple[str | None, str | None]:
        """User and password for a new connection to `place`. Raises Unusable if the provider fails. The message omits what
        the provider raised or returned, since that may contain the password."""
        if not self.provider:
            return self.user, self.password
        try:
            return _credentials(_getter(find(self.provider))())
        except (Exception, SystemExit) as error:
            why = str(error) if isinstance(error, _Unfit | ConfigError) else f"raises {_where(error)}"
            raise Unusable(f"no credentials for Redis at {place}: '{self.provider}' {why}") from None


class _Unfit(Exception):
    """The provider returned something else than user and password."""


def add(provider: object) -> str:
    """Register the provider of a client. Returns its name, which is the same in every process that imports the app."""
    kind = type(provider).__name__
    names = (f"{OF_CLIENT}{kind}{number or ''}" for number in range(len(_of_clients) + 1))
    name = next(name for name in names if _of_clients.get(name, provider) is provider)
    _of_clients[name] = provider
    return name


def check(name: str) -> None:
    """Raises ConfigError if there is no such provider. Does not call the provider."""
    try:
        _getter(find(name))
    except ConfigError as error:
        raise ConfigError(f"credentials '{name}' {error}") from None


def find(name: str) -> object:
    """Raises ConfigError with a text that follows the name in a sentence."""
    if name.startswith(OF_CLIENT):
        if name not in _of_clients:
            raise ConfigError("is part of the app, which this process has not imported")
        return _of_clients[name]
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"does not import: {_where(error)}") from None
    for part in path.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise ConfigError(f"does not exist: module {module} has no {path}")
    return found


def _getter(provider: Any) -> Callable[[], object]:
    """Raises ConfigError."""
    callback = provider if isinstance(provider, type) else getattr(provider, "get_credentials", provider)
    if isinstance(callback, type) or not callable(callback):
        raise ConfigError("is neither an object with get_credentials() nor a function")
    found: Callable[[], object] = callback
    return found


def _credentials(given: object) -> tuple[str | None, str]:
    """Raises _Unfit."""
    if not isinstance(given, tuple | list) or len(given) not in (1, 2):
        raise _Unfit(f"returns {_kind(given)} instead of (user, password)")
    user, password = (None, given[0]) if len(given) == 1 else given
    for part, word in ((user, "user"), (password, "password")):
        if part is None and word == "user":
            continue
        if not isinstance(part, str):
            raise _Unfit(f"returns {_kind(part)} as {word} instead of a string")
        try:
            part.encode()
        except UnicodeEncodeError:
            raise _Unfit(f"returns a {word} that UTF-8 cannot encode") from None
    return user or None, password


def _kind(value: object) -> str:
    return "None" if value is None else f"an object of type {type(value).__name__}"


def _where(error: BaseException) -> str:
    """The type of the error and the line that raised it."""
    frames = [frame for frame in extract_tb(error.__traceback__) if frame.filename != __file__]
    frames = [frame for frame in frames if not frame.filename.startswith(("<frozen", importlib.__file__ or "<"))]
    return type(error).__name__ + (f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else "")
