"""What comes of an attempt. attempt.py and judge.py say which, ending.py answers it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from qd.errors import AttemptsExceeded, JobTimeout, UnknownJob
from qd.jobs import Registry
from qd.log import cut


class Death(NamedTuple):
    """How the worker of the attempt before died: in words (and under them its last stack), and as facts."""

    told: str = ""
    facts: Mapping[str, object] | None = None


class Done(msgspec.Struct, frozen=True):
    """It ran to its end. Of a job that is tied to others: what it returned, and whether it did not run, since its batch was
    cancelled."""

    result: object = None
    skipped: bool = False


class Missing(Done, frozen=True):
    """It did not run: an argument is no longer in the database, and the job says that it is then over, and well."""

    why: str = ""


class Back(msgspec.Struct, frozen=True):
    """It goes back. spends: whether the attempt counts; held: since when it could not be run, kept in the payload."""

    delay: float
    why: str
    spends: bool = True
    head: bool = False
    exceptions: int | None = None
    held: int = 0
    error: BaseException | None = None


class Failed(msgspec.Struct, frozen=True):
    """It has failed for good. attempts: the count its payload is kept with."""

    error: BaseException
    attempts: int = 0
    death: Death | None = None


class Lost(msgspec.Struct, frozen=True):
    """Its lease is gone: there is nothing left to answer."""

    error: BaseException


class Cancelled(msgspec.Struct, frozen=True):
    """Somebody cancelled it: it is dropped, and to those that it is tied to it has failed."""

    error: BaseException


Outcome = Done | Back | Failed | Lost | Cancelled
DONE = Done()


def died(error_class: type[AttemptsExceeded | JobTimeout], reason: str, death: Death) -> AttemptsExceeded | JobTimeout:
    """What it has failed with whose worker is gone: why, and how that died."""
    how, _, stack = death.told.partition("\n")
    error = error_class(f"{reason}{': ' + how if how else ''}")
    if stack:
        error.add_note(stack)
    return error


def unknown_job(registry: Registry, name: str) -> UnknownJob:
    near = registry.near(name)
    known = f"did you mean {' or '.join(map(repr, near))}?" if near else f"{len(registry.names())} are known"
    return UnknownJob(f"no job '{cut(name)}' is declared in this app ({known})")
