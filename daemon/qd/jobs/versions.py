"""Versions of a job's arguments: `@app.job("x", version=3, upgrade={1: from_v1, 2: from_v2})`.

    payload without a version  ->  from_v1  ->  from_v2  ->  decoded by the declared types

The version travels in the payload's key `job_version`. Version 1 has no key, so payloads of jobs without a version stay as
they are. A payload of a newer version waits for new code (worker/attempt.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from qd.arguments.parameters import check_callable, named
from qd.arguments.values import NO_DATA, decode_value, encode_value
from qd.errors import ArgumentError, DeclarationError, WrongType
from qd.options.tables import JobOptions

NEWER = 6  # a payload of a newer version waits this many times unroutable_ttl: 1 h by default


def version_of(job: str, options: JobOptions) -> int:
    """The declared version, 1 without one. Raises DeclarationError unless `upgrade` leads to it from 1."""
    version, steps = options.version, options.upgrade or ()
    if version is None and not steps:
        return 1
    if options.raw:
        raise DeclarationError(f"job '{job}' is raw and cannot have a version: put the version into its data")
    if version is None or version != len(steps) + 1:
        fact = "no version" if version is None else f"version={version}"
        needed = ", ".join([f"{old}: from_v{old}" for old in range(1, version or 1)])
        way = f"upgrade={{{needed}}}" if needed else f"version={len(steps) + 1}"
        raise DeclarationError(f"job '{job}' has {fact} and {len(steps)} functions in upgrade; write {way}")
    for number, step in enumerate(steps, 1):
        check_callable(f"job '{job}': its upgrade from version {number}, {named(step)},", step, ({},), "a dict")
    return version


def upgraded(job: str, steps: Sequence[Callable[[dict[str, Any]], Any]], data: bytes, version: int) -> bytes:
    """`data` of this version as that of the declared one. Raises WrongType if a step fails."""
    given = {} if data in NO_DATA else decode_value(data)
    if not isinstance(given, dict):
        raise WrongType(f"job '{job}' expects an object with one entry per parameter, its data is {given!r:.40}")
    for number, step in enumerate(steps[version - 1 :], version):
        what = f"job '{job}': its upgrade from version {number} to {number + 1}, {named(step)},"
        try:
            given = step(given)
        except Exception as error:
            raise WrongType(f"{what} raised {type(error).__name__}: {error}") from error
        if not isinstance(given, dict):
            raise WrongType(f"{what} returned {given!r:.40}: return the dict of arguments")
    try:
        return encode_value(given, f"job '{job}': what its upgrade to version {len(steps) + 1} returned")
    except ArgumentError as error:
        raise WrongType(str(error)) from None
