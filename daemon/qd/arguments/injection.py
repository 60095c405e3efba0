"""Arguments that do not travel themselves: rows of a database go as model and key, and are loaded on the worker.

    Order(id=42, ...)  ->  {"model": "shop.Order", "key": 42}  ->  Order(id=42, ...), as it is by then

A Serializer handles one family of types (the models of Django, the mapped classes of SQLAlchemy). contrib/ has them,
app.serializer adds one. Signature looks for such types in its hints: a model, a union, a list, a tuple or a dict of models.

What an app provides to its jobs: `app.provide(Session, make_session)` fills the parameters of that type on the worker.

    def make_session() -> Iterator[Session]:       a plain function, a generator, or one that gives a context manager
        with Session(engine) as session:
            yield session                          the job runs here; its error comes out of the yield

One value a type and call, made when it is first asked for, closed in reverse order when the job has ended.

What an app knows of types beyond JSON: its providers and its serializers, and what of a job's parameters they concern.

A job that neither concerns has no Extras, and pays for nothing.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, reduce
from operator import or_
from typing import Annotated, Any, Final, Protocol, TypeVar, Union, final, get_args, get_origin

import msgspec

from qd.errors import DeclarationError, ModelGone, NoProvider, WrongType

T = TypeVar("T")
Key = int | str | list[int | str]
_HOLD = (list, tuple, dict, Sequence, Mapping)  # what may hold them


class Provided(Protocol):
    """Gives what the app provides for a type, the same one to all parameters of a call: given(Session)."""

    def __call__(self, kind: type[T], /) -> T: ...


class Serializer(Protocol):
    """Converts the objects of a family of types to a model and a key, and back."""

    def recognizes(self, kind: type) -> bool:
        """Whether objects of this type are of the family."""

    def name(self, kind: type) -> str:
        """What the type is called in a payload: "shop.Order"."""

    def pack(self, thing: Any) -> Any:
        """The key of an object, as int, text, UUID, or a list of them; None: it has none yet, and cannot be sent."""

    def load(self, kind: type, key: Key, given: Provided) -> object | None:
        """The object, looked up now; None: it is gone. key: as JSON gave it back, a UUID as text."""


class Serialized(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An object in a payload: its model and its key."""

    model: str
    key: Key


class Carrying:
    """What of one parameter is carried. wire: its type on the way. kinds: by their names."""

    def __init__(self, serializers: Sequence[Serializer]) -> None:
        self._serializers = serializers
        self._kinds: dict[str, tuple[Serializer, type]] = {}
        self.wire: Any = None
        self._in_dict = False  # then an object of JSON may be meant as well

    def packed(self, value: Any) -> Any:
        """With keys in place of objects. Raises ValueError for one that has none."""
        if isinstance(value, list | tuple):
            return [self.packed(part) for part in value]
        if isinstance(value, dict):
            return {name: self.packed(part) for name, part in value.items()}
        for (
            base
        ) in value.__class__.__mro__:  # what it is goes before what it derives from; a proxy says what it stands for
            for name, (serializer, kind) in self._kinds.items():
                if kind is base:
                    return self._keyed(name, serializer.pack(value))
        return value

    def _keyed(self, name: str, key: object) -> object:
        if key is None:
            raise ValueError(f"this {name} has no key yet (save it before it is sent)")
        return {"model": name, "key": key}

    def told(self, text: str, arrived: bool) -> str:
        """What is wrong with a value, with the model in place of its form on the way, which is all that msgspec knows."""
        if self._in_dict:
            return text
        names = " or ".join(self._kinds)
        form = f'{{"model":"{next(iter(self._kinds))}","key":...}}' if arrived else "an object of it"
        return text.replace("expected object", f"expected {names} ({form})", 1)

    def check(self, value: Any) -> None:
        """Raises WrongType: it is an object of another model."""

        def known(carried: Serialized) -> None:
            if carried.model not in self._kinds:
                raise WrongType(f"a {carried.model} was sent, a {' or a '.join(self._kinds)} is wanted")

        walk(value, known)

    def loaded(self, value: Any, given: Provided) -> Any:
        """With objects in place of keys. Raises ModelGone, and whatever loading raises."""

        def load(carried: Serialized) -> object:
            serializer, kind = self._kinds[carried.model]
            if (found := serializer.load(kind, carried.key, given)) is None:
                raise ModelGone(f"{carried.model} {carried.key} is gone")
            return found

        return walk(value, load)

    def replaced(self, hint: Any) -> Any:
        """The hint with Serialized for the types of a family."""
        if isinstance(hint, type) and get_origin(hint) is None:
            serializer = next((serializer for serializer in self._serializers if serializer.recognizes(hint)), None)
            if serializer is None:
                return hint
            self._kinds[serializer.name(hint)] = (serializer, hint)
            return Serialized
        if get_origin(hint) is Annotated:
            inner = self.replaced(first := get_args(hint)[0])
            return hint if inner is first else inner
        changed = with_parts(hint, self.replaced)
        self._in_dict |= changed is not hint and get_origin(hint) in (dict, Mapping)
        return changed


def bare(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def with_parts(hint: Any, of: Callable[[Any], Any]) -> Any:
    """A union, list, tuple or dict with of(...) in place of each part; the hint itself if no part changes."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin not in (Union, types.UnionType, *_HOLD):
        return hint
    inside = tuple([part if part is Ellipsis else of(part) for part in parts])
    if inside == parts:
        return hint
    return reduce(or_, inside) if origin in (Union, types.UnionType) else origin[inside]


def walk(value: Any, of: Callable[[Serialized], object]) -> Any:
    """`value` with `of(...)` in place of each Serialized in it."""
    if isinstance(value, Serialized):
        return of(value)
    if isinstance(value, list | tuple):
        return type(value)([walk(part, of) for part in value])
    if isinstance(value, dict):
        return {name: walk(part, of) for name, part in value.items()}
    return value


def carrying(hint: Any, serializers: Sequence[Serializer]) -> Carrying | None:
    """None: nothing in the hint is carried."""
    found = Carrying(serializers)
    found.wire = found.replaced(hint)
    return None if found.wire is hint else found


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


class Forgets(Protocol):
    def forget(self) -> None: ...


class Known:
    """The providers and serializers of an app. Signatures that were read before one is added are read again."""

    def __init__(self) -> None:
        self.providers: dict[Any, Provider] = {}
        self.serializers: list[Serializer] = []
        self._readers: list[Forgets] = []

    def __bool__(self) -> bool:
        return bool(self.providers or self.serializers)

    def read_by(self, reader: Forgets) -> None:
        self._readers.append(reader)

    def provide(self, kind: Any, make: Callable[[], Any]) -> None:
        self.providers[kind] = Provider(kind, make)
        self._changed()

    def add_serializer(self, serializer: Serializer) -> None:
        missing = [
            name for name in ("recognizes", "name", "pack", "load") if not callable(getattr(serializer, name, None))
        ]
        if missing:
            raise DeclarationError(f"{serializer!r} is no serializer: it has no {missing[0]}() (see qd.Serializer)")
        self.serializers.append(serializer)
        self._changed()

    def _changed(self) -> None:
        for reader in self._readers:
            reader.forget()

    def provides(self, hint: Any) -> bool:
        try:
            return hint in self.providers
        except TypeError:  # unhashable
            return False

    def carrying(self, hint: Any) -> Carrying | None:
        return carrying(hint, self.serializers) if self.serializers else None


class Extras:
    """Of one job's parameters: those that are filled in, with their types, and those of which parts are loaded."""

    def __init__(self, title: str, known: Known, filled: Mapping[str, Any], carried: Mapping[str, Carrying]) -> None:
        self._title = title
        self._known = known
        self.filled = filled
        self.carried = carried

    def packed(self, name: str, value: object) -> object:
        """As it travels. Raises ValueError."""
        return self.carried[name].packed(value) if name in self.carried else value

    def check_provided(self) -> None:
        """Raises NoProvider."""
        for name, kind in self.filled.items():
            if not self._known.provides(kind):
                raise NoProvider(
                    f"{self._title}: nothing provides its parameter '{name}': call app.provide({named(kind)}, ...) in a "
                    "module that the worker imports"
                )

    def check(self, fields: Mapping[str, object]) -> None:
        """Raises WrongType: an object of another model."""
        for name, carried in self.carried.items():
            try:
                carried.check(fields.get(name))
            except WrongType as error:
                raise WrongType(f"{self._title}: argument '{name}' is of the wrong type: {error}") from None

    def prepared(self, target: Callable[..., Any], fields: Mapping[str, object]) -> Callable[[], object]:
        """Raises NoProvider."""
        self.check_provided()
        return partial(self.call, target, fields)

    def call(self, target: Callable[..., Any], fields: Mapping[str, object]) -> object:
        """Fill in and load what is missing, call, close. What is async is closed when it has run."""
        opening = Opening(self._known.providers)
        try:
            result = target(**self._completed(fields, opening))
        except BaseException as error:
            opening.close(error)
            raise
        if inspect.iscoroutine(result):
            return closed_after(result, opening)
        opening.close(None)
        return result

    def _completed(self, fields: Mapping[str, object], opening: Opening) -> dict[str, object]:
        whole = {name: opening.given(kind) for name, kind in self.filled.items()}
        for name, value in fields.items():
            carried = self.carried.get(name)
            try:
                whole[name] = value if carried is None else carried.loaded(value, opening.given)
            except ModelGone as error:
                raise ModelGone(f"{self._title}: argument '{name}': {error}") from None
        return whole


async def closed_after(coroutine: Any, opening: Opening) -> object:
    try:
        result: object = await coroutine
    except BaseException as error:
        opening.close(error)
        raise
    opening.close(None)
    return result
