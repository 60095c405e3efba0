"""What one app shares: its settings, registry, connections, listeners, middleware, declared limits and dispatcher.

`Qd` has one `Services`. The worker's middleware, the `sync` driver and fakes in tests take it in place of the app.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from qd.dispatch.dispatcher import Dispatcher
from qd.dispatch.handlers import Handlers
from qd.drivers.connections import Connections
from qd.errors import DeclarationError
from qd.events import Listeners
from qd.jobs.context import Limit
from qd.jobs.pipeline import Pipeline
from qd.jobs.registry import Registry
from qd.options.kinds import seconds_of

if TYPE_CHECKING:
    from qd.config.settings import Settings
    from qd.drivers.base import Connector


def limit_of(name: str, most: int, per: float | timedelta) -> Limit:
    """Raises DeclarationError for values that let nothing through."""
    seconds = seconds_of(f"the limit '{name}': per", per)
    limit = f"the limit '{name}' of {most!r} per {seconds:g} s"
    if not isinstance(most, int) or isinstance(most, bool):
        raise DeclarationError(f"{limit} is not a whole number of starts; give 1 or more")
    if most < 1 or seconds <= 0:
        raise DeclarationError(f"{limit} lets nothing run; give 1 or more")
    return Limit(most, seconds)


class DeclaredLimits:
    """The limits of app.limit(name, most, per=)."""

    def __init__(self) -> None:
        self._limits: dict[str, Limit] = {}

    def declare(self, name: str, limit: Limit) -> None:
        other = self._limits.setdefault(name, limit)
        if other != limit:
            raise DeclarationError(f"the limit '{name}' is declared twice: {other.most} per {other.per:g} s before")

    def resolve(self, name: str, most: int | None, per: float | timedelta | None) -> Limit:
        """The given limit, which must equal the declared one if there is one; without values, the declared one."""
        if most is None and per is None:
            return self.get(name)
        if most is None or per is None:
            raise DeclarationError(f"the limit '{name}' needs both values: 100, per=60")
        limit = limit_of(name, most, per)
        other = self._limits.get(name, limit)
        if other != limit:
            raise DeclarationError(f"the limit '{name}' is already declared with {other.most} per {other.per:g} s")
        return limit

    def get(self, name: str) -> Limit:
        """Raises DeclarationError if the app has declared no limit of that name."""
        if name not in self._limits:
            known = ", ".join(sorted(self._limits)) or "none"
            raise DeclarationError(
                f"no limit '{name}' is declared (known: {known}): app.limit(\"{name}\", 100, per=60)"
            )
        return self._limits[name]


class Services:
    """What one app shares. code: returns the settings given in code, which rank above the file and below the environment."""

    def __init__(self, code: Callable[[], Mapping[str, object]]) -> None:
        self.code = code
        self._settings: Settings | None = None
        self.registry = Registry()
        self.handlers = Handlers(self.registry)
        self.listeners = Listeners()
        self.connections = Connections(self.current_settings)
        self.pipeline = Pipeline()
        self.limits = DeclaredLimits()
        self.dispatcher = Dispatcher(self.current_settings, self.connections, self.listeners, self.pipeline, self)

    @property
    def settings(self) -> Settings:
        """All settings, read on first use. Raises ConfigError."""
        if self._settings is None:
            from qd import config  # loaded only when the settings are needed

            self._settings = config.load(code=self.code())
        return self._settings

    @settings.setter
    def settings(self, settings: Settings) -> None:
        self._settings = settings

    def current_settings(self) -> Settings:
        return self._settings or self.settings

    @contextmanager
    def using(self, settings: Settings) -> Iterator[None]:
        """The settings of the app within the block."""
        before, self._settings = self._settings, settings
        try:
            yield
        finally:
            self._settings = before

    # -- qd.jobs.context.Backing

    def connection(self, name: str) -> Connector:
        """This thread's connection. name: "" is the default one."""
        return self.connections.get(name or None)

    def limit(self, name: str) -> Limit:
        return self.limits.get(name)
