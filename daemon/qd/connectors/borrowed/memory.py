"""The keyspace that is borrowed, opened when it is first asked: plain jobs are sent without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from qd.connectors.keyspace.base import Arg, Call, Keyspace, Replies, Script
from qd.errors import QdError


class Named:
    """What is raised inside names the server."""

    def __init__(self, server: str) -> None:
        self.server = server

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, QdError):
            error.server = self.server


class Memory:
    """A Keyspace. open: raises ConfigError where there is none to borrow. server: its driver; its errors name it."""

    def __init__(self, open: Callable[[], Keyspace], server: str) -> None:
        self._open, self.named = open, Named(server)
        self._space: Keyspace | None = None
        self._timeouts = (5.0, 5.0)
        self._about: Callable[[float], None] | None = None

    @property
    def space(self) -> Keyspace:
        if self._space is None:
            space = self._open()
            space.connect_timeout, space.timeout = self._timeouts
            space.about = self._about
            self._space = space
        return self._space

    @property
    def timeout(self) -> float:
        return self._timeouts[1]

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._timeouts = self._timeouts[0], seconds
        if self._space is not None:
            self._space.timeout = seconds

    @property
    def connect_timeout(self) -> float:
        return self._timeouts[0]

    @connect_timeout.setter
    def connect_timeout(self, seconds: float) -> None:
        self._timeouts = seconds, self._timeouts[1]
        if self._space is not None:
            self._space.connect_timeout = seconds

    @property
    def about(self) -> Callable[[float], None] | None:
        return self._about

    @about.setter
    def about(self, about: Callable[[float], None] | None) -> None:
        self._about = about
        if self._space is not None:
            self._space.about = about

    @property
    def place(self) -> str:
        return self.space.place

    @property
    def stranger(self) -> str:
        return self.space.stranger

    def call(self, *args: Arg) -> Any:
        with self.named:
            return self.space.call(*args)

    def call_many(self, commands: Sequence[tuple[Arg, ...]]) -> list[Any]:
        with self.named:
            return self.space.call_many(commands)

    def run(self, script: Script, names: Sequence[str], args: Sequence[Arg]) -> Any:
        with self.named:
            return self.space.run(script, names, args)

    def run_many(self, calls: Sequence[Call]) -> list[Any]:
        with self.named:
            return self.space.run_many(calls)

    def begin_many(self, calls: Sequence[Call]) -> Replies:
        with self.named:
            return self.space.begin_many(calls)

    def pop(self, name: str, seconds: float, wake: int = -1) -> bool:
        with self.named:
            return self.space.pop(name, seconds, wake)

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        with self.space.within(seconds):
            yield

    def close(self) -> None:
        if self._space is not None:
            self._space.close()
