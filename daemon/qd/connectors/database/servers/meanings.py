"""What an error of a database means to qd, beside the errors that every server can give."""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy.exc import OperationalError

from qd.errors import ConnectionLost, NeedsMending, QdError, ServerBusy, ServerRefused, Unreachable, WrongPassword
from qd.masks import masked


class MissingTable(NeedsMending, ServerBusy):
    """A table of qd's or of the queue is not there: nobody has run `qd migrate`."""


class NoRight(NeedsMending, ServerRefused):
    """The user is known, and may not do this: on a table, a column, a sequence."""


class NotThere(NeedsMending, Unreachable):
    """The server has no database of this name, or the file of SQLite cannot be opened."""


class NotWritable(NeedsMending, ServerBusy):
    """The file of SQLite, or its folder, is not this user's to write."""


class Again(ServerBusy):
    """A deadlock, or two transactions in one another's way: nothing was done, and it is to be run again."""


class Conflict(Again, OperationalError):
    """The same in a caller's transaction, which only the caller can run again. A retry loop for SQLAlchemy catches it as the
    driver's error: `orig` has its `sqlstate` or number."""

    def __init__(self, said: str, origin: Any) -> None:
        OperationalError.__init__(self, None, None, origin)
        self.said = said

    def __str__(self) -> str:
        return self.said


SAID: dict[type[QdError], str] = {
    MissingTable: "a table is missing in the database at {place}, run `qd migrate`: {said}",
    Unreachable: "the database at {place} does not answer: {said}",
    WrongPassword: "the database at {place} refuses this user or password: {said}",
    NotThere: "the database at {place} is not there, or cannot be opened: {said}",
    NotWritable: "the user of this process may not write the database at {place}, or its folder: {said}",
    NoRight: "the user of the database at {place} lacks a right (`qd doctor` lists what workers need): {said}",
    ServerRefused: "the database at {place} refuses: {said}",
    ConnectionLost: "the connection to the database at {place} broke: {said}",
}
SHOWN = re.compile(r"\nLINE \d+: .*\n *\^")  # PostgreSQL shows a part of qd's own statement and where in it
BUSY = "the database at {place} cannot serve now: {said}"


def told(kind: type[QdError] | None, place: str, error: object) -> QdError:
    """The driver's error as ours, in one line. kind: what it means (Server.meaning)."""
    said, kind = masked(" ".join(SHOWN.sub("", str(error)).split()))[:300], kind or ServerRefused
    return kind(SAID.get(kind, BUSY).format(place=place, said=said))
