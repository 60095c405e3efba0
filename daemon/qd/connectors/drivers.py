"""Loads a driver when it is used: a program without it needs no library of it. The drivers are in options/drivers.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from qd.errors import ConfigError
from qd.options.drivers import extra_of_library


def loaded(where: str) -> Callable[..., Any]:
    """where: "module:function". Raises ConfigError naming the extra if the driver's library is not installed."""
    module, _, name = where.partition(":")
    with extras_named():
        found: Callable[..., Any] = getattr(import_module(module), name)
    return found


@contextmanager
def extras_named() -> Iterator[None]:
    """A library that is not installed becomes a ConfigError that names the extra which brings it."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        extra = extra_of_library(missing.lower())
        if not extra:
            raise
        raise ConfigError(f"the library '{missing}' is not installed: pip install 'qd-worker[{extra}]'") from None
