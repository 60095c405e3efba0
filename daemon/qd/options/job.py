"""What a job can be told: the options of @app.job(...) and .using(...). jobs/ fills them, limits.py reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from qd import units
from qd.errors import DeclarationError
from qd.options.kinds import KINDS


def _said(kind: str) -> Any:
    return field(default=None, metadata={"kind": kind})


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What @app.job(...) and .using(...) said. None: not said, what stands below counts. Durations: seconds."""

    queue: str | None = _said("queue")
    connection: str | None = _said("name")
    tries: int | None = _said("count")
    timeout: float | None = _said("span")
    backoff: tuple[float, ...] | None = _said("spans")
    max_exceptions: int | None = _said("count")
    retry_for: float | None = _said("span")
    fail_on_timeout: bool | None = _said("switch")
    tags: tuple[str, ...] | None = _said("texts")
    display_name: str | None = _said("name")
    unique: str | None = _said("name")
    unique_for: float | None = _said("span")
    unique_until: str | None = _said("until")
    middleware: tuple[Callable[..., object], ...] | None = _said("middleware")
    result_ttl: float | None = _said("span")
    delete_when_missing: bool | None = _said("switch")
    raw: bool | None = _said("switch")

    @classmethod
    def read(cls, given: Mapping[str, object], job: str | None = None) -> Self:
        """The options as a programmer wrote them, checked and converted. job: whose. Raises DeclarationError naming job
        and option."""
        what = "a job" if job is None else f"job '{job}'"
        return cls(**{name: _read_job_option(name, value, what) for name, value in given.items()})

    def over(self, below: JobOptions) -> JobOptions:
        """What is said here, and what `below` says where nothing is said here: `.using(...)` over `@app.job(...)`."""
        said = {name: value for name in JOB_KINDS if (value := getattr(self, name)) is not None}
        return replace(below, **said)


JOB_KINDS: Mapping[str, str] = {held.name: held.metadata["kind"] for held in fields(JobOptions)}


def _spans(value: Any) -> Any:
    several = isinstance(value, Sequence) and not isinstance(value, str)
    return KINDS["spans"]([units.span_in_code(part) for part in value] if several else units.span_in_code(value))


_IN_CODE: Mapping[str, Callable[[object], Any]] = {"span": units.span_in_code, "spans": _spans}


def _read_job_option(name: str, value: object, what: str) -> Any:
    if name not in JOB_KINDS:
        near = units.did_you_mean(name, JOB_KINDS) or f" (known: {', '.join(JOB_KINDS)})"
        raise DeclarationError(f"unknown option '{name}' of {what}{near}")
    try:
        return None if value is None else _IN_CODE.get(JOB_KINDS[name], KINDS[JOB_KINDS[name]])(value)
    except ValueError as error:
        raise DeclarationError(f"option {name} of {what}: {error}") from None
