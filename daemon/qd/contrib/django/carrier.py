"""Models as arguments: `def pay(order: Order)` travels as {"model": "shop.Order", "key": 42} and is loaded on the worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qd.arguments import Key, Provided


class Models:
    """The serializer of Django's models, see qd.arguments.Serializer."""

    def recognizes(self, kind: Any) -> bool:
        from django.db.models import Model  # waits until Django is there

        return issubclass(kind, Model) and not kind._meta.abstract

    def name(self, kind: Any) -> str:
        return str(kind._meta.label)

    def pack(self, thing: Any) -> Any:
        """The primary key, of several columns a list. None: not saved yet, or deleted."""
        key = thing.pk
        return list(key) if isinstance(key, tuple) else key

    def load(self, kind: Any, key: Key, given: Provided) -> object | None:
        """By the base manager: one that hides rows (soft deletes) hides none from a job they were sent to."""
        found: object | None = kind._base_manager.filter(pk=tuple(key) if isinstance(key, list) else key).first()
        return found
