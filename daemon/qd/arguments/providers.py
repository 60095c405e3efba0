"""What an app provides to its jobs: `app.provide(Session, make_session)` fills the parameters of that type on the worker.

    def make_session() -> Iterator[Session]:       a plain function, a generator, or one that gives a context manager
        with Session(engine) as session:
            yield session                          the job runs here; its error comes out of the yield

One value a type and call, made when it is first asked for, closed in reverse order when the job has ended.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from typing import Any, Final, final

from qd.errors import DeclarationError, NoProvider


@final
class ProvidedDefault:
    """The default of a parameter that the worker fills in."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "provided()"


PROVIDED: Final = ProvidedDefault()


def provided() -> Any:
    """The default of a parameter that is filled in on the worker, and does not travel: `session: Session = provided()`."""
    return PROVIDED


class Provider:
    """How a value of one type is made. Raises DeclarationError: `make` cannot be called without arguments, or is async."""

    def __init__(self, kind: Any, make: Callable[[], Any]) -> None:
        check(kind, make)
        self._kind = kind
        self._make = contextmanager(make) if inspect.isgeneratorfunction(make) else make

    def open(self, stack: ExitStack) -> Any:
        made = self._make()
        if isinstance(self._kind, type) and isinstance(made, self._kind):
            return made  # a session can be a context manager too: closing it is for whoever made it
        return stack.enter_context(made) if hasattr(made, "__enter__") and hasattr(made, "__exit__") else made


def check(kind: Any, make: Any) -> None:
    title = f"the provider of {named(kind)}"
    if not callable(make):
        raise DeclarationError(f"{title} is {make!r}, which cannot be called: give a function that makes one")
    if inspect.iscoroutinefunction(make) or inspect.isasyncgenfunction(make):
        raise DeclarationError(f"{title}, {named(make)}, is async: make it a def")
    try:
        inspect.signature(make).bind()
    except TypeError as error:
        raise DeclarationError(f"{title}, {named(make)}, cannot be called without arguments: {error}") from None
    except ValueError:
        pass  # a builtin, which has no signature


def named(thing: Any) -> str:
    return getattr(thing, "__qualname__", None) or repr(thing)


class Opening:
    """What one call of a job was provided with."""

    def __init__(self, providers: dict[Any, Provider]) -> None:
        self._providers = providers
        self._stack = ExitStack()
        self._made: dict[Any, Any] = {}

    def given(self, kind: Any) -> Any:
        """Raises NoProvider, and whatever making it raises."""
        if kind not in self._made:
            if kind not in self._providers:
                raise NoProvider(f"nothing provides {named(kind)}: call app.provide({named(kind)}, ...)")
            self._made[kind] = self._providers[kind].open(self._stack)
        return self._made[kind]

    def close(self, error: BaseException | None) -> None:
        """error: the job's, which each of them sees and none can swallow. Without one, raises what closing raises."""
        if error is None:
            self._stack.close()
            return
        try:
            self._stack.__exit__(type(error), error, error.__traceback__)
        except Exception as second:
            if second is not error:
                error.add_note(f"then closing what was provided raised {type(second).__name__}: {second}")
