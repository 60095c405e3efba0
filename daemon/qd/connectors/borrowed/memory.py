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
        self._patience = (5.0, 5.0)  # seconds to connect, and for each reply
        self._about: Callable[[float], None] | None = None

    @property
    def space(self) -> Keyspace:
        if self._space is None:
            space = self._open()
            space.patience(*self._patience)
            if self._about is not None:
                space.on_progress(self._about)
            self._space = space
        return self._space

    def patience(self, connect: float, answer: float) -> None:
        self._patience = connect, answer
        if self._space is not None:
            self._space.patience(connect, answer)

    def on_progress(self, call: Callable[[float], None]) -> None:
        self._about = call
        if self._space is not None:
            self._space.on_progress(call)

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
