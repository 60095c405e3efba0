"""A fake of the package of this name, as far as docs/recipes.md uses it. It records the calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

reported: list[tuple[str, object]] = []


class Scope:
    def set_tag(self, key: str, value: object) -> None:
        reported.append((key, value))

    def set_context(self, key: str, value: Mapping[str, object]) -> None:
        reported.append((key, dict(value)))


def init(dsn: str | None = None) -> None:
    reported.append(("init", dsn))


def capture_exception(error: BaseException | None = None) -> str | None:
    reported.append(("error", error))
    return None


def flush(timeout: float | None = None) -> None:
    reported.append(("flush", timeout))


@contextmanager
def isolation_scope() -> Iterator[Scope]:
    yield Scope()
