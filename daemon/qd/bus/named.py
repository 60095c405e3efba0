"""A queue by its name, as app.queue("mail") gives it: jobs that another program declares, and the queue's state."""

from __future__ import annotations

from datetime import datetime

from qd.arguments import encode_value
from qd.bus.send import Send, due_in
from qd.errors import ArgumentError
from qd.jobs import Handle, Place, Span
from qd.process.shield import shield


class Queue:
    """connection: None is the default one. Nothing is asked of the server before a method is called."""

    def __init__(self, send: Send, name: str, connection: str | None = None) -> None:
        self._send = send
        self.name = name
        self._connection = connection

    def push(self, job: str, data: object = "", *, delay: Span | datetime | None = None) -> Handle[None]:
        """Send a job by the name it has elsewhere: "App\\\\Jobs\\\\X@fire" for PHP. data: what JSON can hold."""
        seconds = 0.0 if delay is None else due_in(delay, job)
        text = encode_value(data, f"the data of job '{job}'", as_it_is=True)
        id = self._send.push_named(self._connection, self.name, job, text, seconds)
        return Handle(id, self._send, Place(self._connection, self.name))

    def push_raw(self, payload: bytes, *, delay: Span | datetime | None = None) -> None:
        """Send these bytes as they are; only their size and depth are looked at."""
        if not isinstance(payload, bytes):
            raise ArgumentError(f"push_raw takes the bytes of a payload, not {type(payload).__name__}: encode() it")
        seconds = 0.0 if delay is None else due_in(delay)
        self._send.push_raw(self._connection, self.name, payload, seconds)

    def size(self) -> int:
        """How many jobs are ready, delayed or running."""
        with shield:
            sizes = self._send.connector(self._connection).sizes(self.name)
        return sizes.ready + sizes.delayed + sizes.reserved

    def clear(self) -> int:
        """Delete what is ready or delayed, never what runs. Returns how many."""
        with shield:
            return self._send.connector(self._connection).clear(self.name)

    def __repr__(self) -> str:
        return f"<queue {self.name}>"
