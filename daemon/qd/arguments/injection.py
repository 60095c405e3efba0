"""Arguments that are not sent as they are, by parameter type.

Models sent by key, for which a Serializer (app.serializer; contrib/ has those of Django and SQLAlchemy) handles one family
of types. Signature finds them in hints: a model, or a union, list, tuple or dict of models.

    Order(id=42, ...)  ->  {"model": "shop.Order", "key": 42}  ->  the Order with id 42 as it is when the job runs

Values that the worker provides: `app.provide(Session, make_session)` fills all parameters of that type. qd makes one value
per type and call when it is first needed, and closes the values in reverse order when the job has ended.

    def make_session() -> Iterator[Session]:       a plain function, a generator, or one that returns a context manager
        with Session(engine) as session:
            yield session                          the job runs here; its error comes out of the yield

A job without such parameters has no Extras and pays for nothing.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, reduce
from operator import or_
from typing import Annotated, Any, Final, Literal, Protocol, TypeVar, Union, final, get_args, get_origin

import msgspec

from qd.arguments.parameters import check_callable, named
from qd.errors import DeclarationError, ModelGone, NoProvider, WrongType

T = TypeVar("T")
Key = int | str | list[int | str]
_CONTAINERS = (list, tuple, dict, Sequence, Mapping)


class Provided(Protocol):
    """Returns the app's value for a type, the same one to all parameters of a call: provided(Session)."""

    def __call__(self, kind: type[T], /) -> T: ...


class Serializer(Protocol):
    """Converts objects of a family of types to a model name and a key, and back."""

    def recognizes(self, kind: type) -> bool:
        """Whether this type belongs to the family."""

    def name(self, kind: type) -> str:
        """The name of the type in a payload: "shop.Order"."""

    def pack(self, thing: Any) -> Any:
        """The key of an object: int, str, UUID or a list of them; None if it has no key yet and cannot be sent."""

    def load(self, kind: type, key: Key, given: Provided) -> object | None:
        """The object, loaded now; None if it no longer exists. key: as JSON returned it, a UUID as str."""


class Serialized(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An object in a payload: its model and its key."""

    model: str
    key: Key


class KeyedModels:
    """The models of one parameter that are sent by key. wire: the type of the parameter in the payload."""

    def __init__(self, serializers: Sequence[Serializer], hint: Any) -> None:
        self._serializers = serializers
        self._kinds: dict[str, tuple[Serializer, type]] = {}  # by the name of the model
        self._in_dict = False  # the type may then also mean a plain JSON object
        self.wire = self._replaced(hint)

    def packed(self, value: Any) -> Any:
        """`value` with keys in place of objects. Raises ValueError for an object without a key."""
        if isinstance(value, list | tuple):
            return [self.packed(part) for part in value]
        if isinstance(value, dict):
            return {name: self.packed(part) for name, part in value.items()}
        for base in value.__class__.__mro__:  # the exact class first; a proxy's __class__ is that of its object
            for name, (serializer, kind) in self._kinds.items():
                if kind is base:
                    key = serializer.pack(value)
                    if key is None:
                        raise ValueError(f"this {name} has no key yet (save it before you send it)")
                    return {"model": name, "key": key}
        return value

    def explain(self, text: str, arrived: bool) -> str:
        """A message of msgspec with the names of the models in place of their form in JSON."""
        if self._in_dict:
            return text
        names = " or ".join(self._kinds)
        form = f'{{"model":"{next(iter(self._kinds))}","key":...}}' if arrived else "an object of it"
        return text.replace("expected object", f"expected {names} ({form})", 1)

    def check(self, value: Any) -> None:
        """Raises WrongType for an object of another model."""

        def check(packed: Serialized) -> None:
            if packed.model not in self._kinds:
                raise WrongType(f"expected a {' or a '.join(self._kinds)}, got a {packed.model}")

        map_serialized(value, check)

    def loaded(self, value: Any, given: Provided) -> Any:
        """`value` with objects in place of keys. Raises ModelGone, and whatever loading raises."""

        def load(packed: Serialized) -> object:
            serializer, kind = self._kinds[packed.model]
            if (found := serializer.load(kind, packed.key, given)) is None:
                raise ModelGone(f"{packed.model} {packed.key} is gone")
            return found

        return map_serialized(value, load)

    def _replaced(self, hint: Any) -> Any:
        """The hint with Serialized in place of the types that a serializer recognizes."""
        if isinstance(hint, type) and get_origin(hint) is None:
            serializer = next((serializer for serializer in self._serializers if serializer.recognizes(hint)), None)
            if serializer is None:
                return hint
            self._kinds[serializer.name(hint)] = (serializer, hint)
            return Serialized
        if get_origin(hint) is Annotated:
            inner = self._replaced(bare(hint))
            return hint if inner is bare(hint) else inner
        changed = with_parts(hint, self._replaced)
        self._in_dict |= changed is not hint and get_origin(hint) in (dict, Mapping)
        return changed


def bare(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def with_parts(hint: Any, of: Callable[[Any], Any]) -> Any:
    """A union, list, tuple or dict with of(...) in place of each part, or the hint itself if no part changes."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin not in (Union, types.UnionType, *_CONTAINERS):
        return hint
    inside = tuple([part if part is Ellipsis else of(part) for part in parts])
    if inside == parts:
        return hint
    return reduce(or_, inside) if origin in (Union, types.UnionType) else origin[inside]


def map_serialized(value: Any, of: Callable[[Serialized], object]) -> Any:
    """`value` with `of(...)` in place of each Serialized in it."""
    if isinstance(value, Serialized):
        return of(value)
    if isinstance(value, list | tuple):
        return type(value)([map_serialized(part, of) for part in value])
    if isinstance(value, dict):
        return {name: map_serialized(part, of) for name, part in value.items()}
    return value


@final
class ProvidedDefault:
    """The type of PROVIDED."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "provided()"


PROVIDED: Final = ProvidedDefault()


def provided() -> Any:
    """The default of a parameter that the worker provides and that is not sent: `session: Session = provided()`."""
    return PROVIDED


class Provider:
    """Makes the values of one type. Raises DeclarationError if `make` is async or cannot be called without arguments."""

    def __init__(self, kind: Any, make: Callable[[], Any]) -> None:
        check_callable(f"the provider {named(make)} of {named(kind)}", make, (), "no arguments")
        self._kind = kind
        self._make = contextmanager(make) if inspect.isgeneratorfunction(make) else make

    def open(self, stack: ExitStack) -> Any:
        made = self._make()
        if isinstance(self._kind, type) and isinstance(made, self._kind):
            return made  # a session can be a context manager too: closing it is the provider's task
        return stack.enter_context(made) if hasattr(made, "__enter__") and hasattr(made, "__exit__") else made


class CallValues(ExitStack):
    """The values that were provided to one call of a job; every provider sees its error, and none can suppress it."""

    def __init__(self, providers: dict[Any, Provider]) -> None:
        super().__init__()
        self._providers = providers
        self._made: dict[Any, Any] = {}

    def given(self, kind: Any) -> Any:
        """The value for a type. Raises NoProvider, and whatever `make` raises."""
        if kind not in self._made:
            if kind not in self._providers:
                raise NoProvider(f"nothing provides {named(kind)}: call app.provide({named(kind)}, ...)")
            self._made[kind] = self._providers[kind].open(self)
        return self._made[kind]

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> Literal[False]:
        """Raises what closing raises, unless the job raised an error."""
        try:
            super().__exit__(kind, error, trace)
        except Exception as second:
            if error is None:
                raise
            if second is not error:
                error.add_note(f"then closing the provided values raised {type(second).__name__}: {second}")
        return False


class Known:
    """The providers and serializers of an app. Signatures that have cached their types forget them when one is added."""

    def __init__(self) -> None:
        self.providers: dict[Any, Provider] = {}
        self.serializers: list[Serializer] = []
        self.on_change: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        return bool(self.providers or self.serializers)

    def provide(self, kind: Any, make: Callable[[], Any]) -> None:
        self.providers[kind] = Provider(kind, make)
        self._changed()

    def add_serializer(self, serializer: Serializer) -> None:
        methods = ("recognizes", "name", "pack", "load")
        missing = next((name for name in methods if not callable(getattr(serializer, name, None))), None)
        if missing:
            raise DeclarationError(f"{serializer!r} is not a serializer: it has no {missing}() (see qd.Serializer)")
        self.serializers.append(serializer)
        self._changed()

    def _changed(self) -> None:
        for forget in self.on_change:
            forget()

    def provides(self, hint: Any) -> bool:
        try:
            return hint in self.providers
        except TypeError:  # unhashable
            return False

    def keyed_models(self, hint: Any) -> KeyedModels | None:
        """The models in this hint that are sent by key; None without any."""
        if not self.serializers:
            return None
        found = KeyedModels(self.serializers, hint)
        return None if found.wire is hint else found


class Extras:
    """The parameters of one job that the worker provides (`filled`, with their types), and those with models sent by key
    (`keyed`)."""

    def __init__(self, title: str, known: Known, filled: Mapping[str, Any], keyed: Mapping[str, KeyedModels]) -> None:
        self._title, self._known, self.filled, self.keyed = title, known, filled, keyed

    def packed(self, name: str, value: object) -> object:
        """The argument as it is sent. Raises ValueError."""
        return self.keyed[name].packed(value) if name in self.keyed else value

    def check(self, fields: Mapping[str, object]) -> None:
        """Raises WrongType for an object of another model."""
        for name, models in self.keyed.items():
            try:
                models.check(fields.get(name))
            except WrongType as error:
                raise WrongType(f"{self._title}: argument '{name}' is of the wrong type: {error}") from None

    def prepared(self, target: Callable[..., Any], fields: Mapping[str, object]) -> Callable[[], object]:
        """Raises NoProvider."""
        for name, kind in self.filled.items():
            if not self._known.provides(kind):
                way = f"call app.provide({named(kind)}, ...) in a module that the worker imports"
                raise NoProvider(f"{self._title}: nothing provides its parameter '{name}': {way}")
        return partial(self.call, target, fields)

    def call(self, target: Callable[..., Any], fields: Mapping[str, object]) -> object:
        """Provide and load the missing arguments, call, and close them; for a coroutine, after it has run."""
        with ExitStack() as stack:
            values = stack.enter_context(CallValues(self._known.providers))
            result = target(**self._completed(fields, values))
            return closed_after(result, stack.pop_all()) if inspect.iscoroutine(result) else result

    def _completed(self, fields: Mapping[str, object], values: CallValues) -> dict[str, object]:
        whole = {name: values.given(kind) for name, kind in self.filled.items()}
        for name, value in fields.items():
            models = self.keyed.get(name)
            try:
                whole[name] = value if models is None else models.loaded(value, values.given)
            except ModelGone as error:
                raise ModelGone(f"{self._title}: argument '{name}': {error}") from None
        return whole


async def closed_after(coroutine: Any, stack: ExitStack) -> object:
    with stack:
        return await coroutine
