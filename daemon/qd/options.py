"""Every option once: its kind, default, unit and help, at the field that holds it. Flags, file keys, environment names
and the reference are made from this table.

config.py fills WorkOptions from all its sources, jobs.py fills JobOptions; limits, worker, master and keeper read them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, NamedTuple, Self, TypeVar

from qd import units
from qd.errors import DeclarationError

T = TypeVar("T")


class Option(NamedTuple):  # not a dataclass: making one costs a millisecond of every start
    """One row of the table. `kind` names how its text becomes a value (KINDS); `unit` and `shown` are for people."""

    name: str
    kind: str
    default: Any
    help: str
    shown: str = ""  # the default as text
    unit: str = ""
    short: str = ""  # a short flag, "-w"
    flag: str = ""  # the long flag, "--workers"; "" = none (the queues are words)
    in_file: bool = True
    in_environ: bool = True
    auto: bool = False  # "auto" is a value too; config.py finds out what it means here
    choices: tuple[str, ...] = ()
    at_least: float = 0

    @property
    def environ(self) -> str:
        """The name of its environment variable, "" = it has none."""
        return f"QD_{self.name.upper()}" if self.in_environ else ""

    def read(self, value: object) -> Any:
        """`value`, from a file, the environment, a flag or code, as this option holds it. Raises ValueError."""
        if self.auto and value == "auto":
            return "auto"
        found = KINDS[self.kind](value)
        if self.choices and found not in self.choices:
            near = units.did_you_mean(str(found), self.choices)
            raise ValueError(f"{found!r} is not one of {', '.join(self.choices)}{near}")
        self._check_size(found)
        return found

    def _check_size(self, found: Any) -> None:
        if self.kind == "size" and 0 < found < 1 << 20:  # Laravel's --memory=128 means megabytes
            raise ValueError(f"{found} is {found} bytes, less than a megabyte (megabytes are written '{found}M')")
        if self.kind in ("count", "span") and found < self.at_least:
            raise ValueError(f"{found:g} is too small (at least {self.at_least:g})")


# --- kinds: any source's value -> the value held ---------------------------------------------------------------------


def _count(value: object) -> int:
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
        value = int(value) if len(value.strip()) < 16 else -1
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 2**53:
        return value
    raise ValueError(f"{value!r} is not a whole number, 0 or more")


_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def _switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else ""
    if word not in _WORDS:
        raise ValueError(f"{value!r} is neither true nor false")
    return _WORDS[word]


def _text(value: object) -> str:
    if isinstance(value, str) and value.isprintable():
        return value
    raise ValueError(f"{value!r} is not a text")


def _name(value: object) -> str:
    if isinstance(value, str) and value.strip():
        return _text(value.strip())
    raise ValueError(f"{value!r} is not a name")


def _several(value: object) -> list[object]:
    """One value, a list of them, or text with commas between them."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    return list(value) if isinstance(value, Sequence) else [value]


def _names(value: object) -> tuple[str, ...]:
    """Names in order, each once: a queue asked for twice is asked first where it stood first."""
    return tuple(dict.fromkeys(_name(part) for part in _several(value)))


def _texts(value: object) -> tuple[str, ...]:
    return tuple(_text(part) for part in _several(value))


def _spans(value: object) -> tuple[float, ...]:
    found = tuple(units.span(part) for part in _several(value))
    if not found:
        raise ValueError("an empty list of waits (0 retries at once)")
    return found


KINDS: dict[str, Callable[[object], Any]] = {
    "count": _count,
    "span": units.span,
    "spans": _spans,
    "size": units.size,
    "switch": _switch,
    "text": _text,
    "name": _name,
    "names": _names,
    "texts": _texts,
}


# --- qd work ---------------------------------------------------------------------------------------------------------


def _option(default: T, kind: str, help: str, **more: Any) -> T:
    return field(default=default, metadata={"kind": kind, "help": help, **more})


@dataclass(frozen=True, slots=True)
class WorkOptions:
    """What `qd work` was told. Durations are seconds, sizes bytes; 0 means no limit where the help says so."""

    queues: tuple[str, ...] = _option(
        (), "names", "take jobs from these queues, the first one first", flag="", shown="the connection's `queue`"
    )
    connection: str = _option(
        "", "name", "take jobs from this connection", short="-c", in_environ=False, shown="`default` of [qd]"
    )
    pool: str = _option("", "name", "use [pools.NAME] over [worker]", in_file=False, shown="none")
    workers: int = _option(
        1, "count", "run this many workers, 0: in this process, for breakpoints", short="-w", auto=True,
        shown="auto, the CPUs granted",
    )  # fmt: skip
    once: bool = _option(False, "switch", "run one job and leave", in_file=False, in_environ=False)
    stop_when_empty: bool = _option(False, "switch", "leave when every worker finds nothing at the same moment")
    stop_when_empty_for: float = _option(
        0.0, "span", "leave when every worker has found nothing for this long, 0: never"
    )
    force: bool = _option(False, "switch", "work in maintenance mode too", in_file=False, in_environ=False)
    tries: int = _option(1, "count", "try a job this often before it fails, 0: without end", unit="attempts")
    timeout: float = _option(60.0, "span", "end a job that runs longer, 0: never")
    backoff: tuple[float, ...] = _option(
        (0.0,), "spans", "wait so long before a job is tried again, `1,5,30` for each further attempt"
    )
    memory: int = _option(
        128 << 20, "size", "replace a worker that has grown by this much since it was ready, between jobs, 0: never"
    )
    memory_hard: int = _option(0, "size", "end a job whose worker has grown beyond this, 0: never")
    sleep: float = _option(
        3.0, "span", "look for jobs at least this often while idle; a push wakes at once", at_least=0.01
    )
    rest: float = _option(0.0, "span", "rest between two jobs")
    max_jobs: int = _option(0, "count", "replace a worker after this many jobs, 0: never", unit="jobs")
    max_time: float = _option(0.0, "span", "replace a worker after this long, 0: never")
    stop_timeout: float = _option(
        25.0, "span", "let running jobs finish for this long when asked to stop, then hand them back, 0: for ever"
    )
    min_uptime: float = _option(
        0.0, "span", "never leave sooner than this after the start", auto=True,
        shown="auto, 1500ms under supervisord or systemd, else 0",
    )  # fmt: skip
    no_respawn: bool = _option(False, "switch", "leave when the first worker must be replaced; supervisord starts anew")
    no_preload: bool = _option(False, "switch", "import the app in every worker, not once before they fork")
    no_schedule: bool = _option(False, "switch", "run no scheduler here")
    reload: bool = _option(False, "switch", "start the workers anew when a file changes, for development")
    log_format: str = _option("text", "name", "write log lines in this format", choices=("text", "json"))
    log_level: str = _option(
        "info", "name", "write log lines of this level and above", choices=("debug", "info", "warning", "error")
    )
    max_crashes: int = _option(3, "count", "fail a job that killed its worker this often", unit="crashes", at_least=1)
    unroutable_ttl: float = _option(600.0, "span", "fail a job that no worker here knows after this long")


_UNITS = {"span": "time", "spans": "time", "size": "bytes"}


def _row(name: str, default: Any, meta: Mapping[str, Any]) -> Option:
    more = dict(meta)
    more.setdefault("flag", "--" + name.replace("_", "-"))
    more.setdefault("unit", _UNITS.get(more["kind"], ""))
    more.setdefault("shown", shown(more["kind"], default))
    return Option(name=name, default=default, **more)


def shown(kind: str, value: Any) -> str:
    """A value of this kind as a person writes it: (1.0, 5.0) spans -> "1s,5s", 128 MiB -> "128M"."""
    if value is None or value == ():
        return ""
    if kind == "span":
        return value if isinstance(value, str) else units.span_text(value)
    if kind == "size":
        return units.size_text(value)
    if kind == "spans":
        return ",".join(units.span_text(part) for part in value)
    if kind in ("names", "texts"):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


WORK: Mapping[str, Option] = {
    row.name: _row(row.name, row.default, row.metadata) for row in fields(WorkOptions) if row.default is not MISSING
}


# --- a job -----------------------------------------------------------------------------------------------------------


def _said(kind: str) -> Any:
    return field(default=None, metadata={"kind": kind})


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What @app.job(...) and .using(...) said. None: not said, what stands below counts. Durations: seconds."""

    queue: str | None = _said("name")
    connection: str | None = _said("name")
    tries: int | None = _said("count")
    timeout: float | None = _said("span")
    backoff: tuple[float, ...] | None = _said("spans")
    max_exceptions: int | None = _said("count")
    retry_for: float | None = _said("span")
    fail_on_timeout: bool | None = _said("switch")
    tags: tuple[str, ...] | None = _said("texts")
    raw: bool | None = _said("switch")

    @classmethod
    def read(cls, given: Mapping[str, object]) -> Self:
        """The options as a programmer wrote them, checked and converted. Raises DeclarationError naming the option."""
        return cls(**{name: _read_job_option(name, value) for name, value in given.items()})

    def over(self, below: JobOptions) -> JobOptions:
        """What is said here, and what `below` says where nothing is said here: `.using(...)` over `@app.job(...)`."""
        said = {name: value for name in JOB_KINDS if (value := getattr(self, name)) is not None}
        return replace(below, **said)


JOB_KINDS: Mapping[str, str] = {row.name: row.metadata["kind"] for row in fields(JobOptions)}


def _read_job_option(name: str, value: object) -> Any:
    if name not in JOB_KINDS:
        near = units.did_you_mean(name, JOB_KINDS) or f" (known: {', '.join(JOB_KINDS)})"
        raise DeclarationError(f"unknown option '{name}' of a job{near}")
    try:
        return None if value is None else KINDS[JOB_KINDS[name]](value)
    except ValueError as error:
        raise DeclarationError(f"option {name} of a job: {error}") from None
