"""What a job can be told: the options of @app.job(...) and .using(...). jobs/ fills them, limits.py reads them.

One row of the option table, and how a value is shown again. work.py and config/table.py hold the rows.

What `qd work` can be told: each option once, with its kind, default, unit and help, at the field that holds it.

Flags, file keys, environment names and the reference are made from WORK. limits, worker and master read the object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, Self, TypeVar

from qd.errors import DeclarationError
from qd.options import kinds
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
    return KINDS["spans"]([kinds.span_in_code(part) for part in value] if several else kinds.span_in_code(value))


_IN_CODE: Mapping[str, Callable[[object], Any]] = {"span": kinds.span_in_code, "spans": _spans}


def _read_job_option(name: str, value: object, what: str) -> Any:
    if name not in JOB_KINDS:
        near = kinds.did_you_mean(name, JOB_KINDS) or f" (known: {', '.join(JOB_KINDS)})"
        raise DeclarationError(f"unknown option '{name}' of {what}{near}")
    try:
        return None if value is None else _IN_CODE.get(JOB_KINDS[name], KINDS[JOB_KINDS[name]])(value)
    except ValueError as error:
        raise DeclarationError(f"option {name} of {what}: {error}") from None


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
    environ: str = ""  # its environment variable, "" = none
    in_file: bool = True
    auto: bool = False  # "auto" is a value too; config/ finds out what it means here
    choices: tuple[str, ...] = ()
    at_least: float = 0

    def read(self, value: object) -> Any:
        """`value`, from a file, the environment, a flag or code, as this option holds it. Raises ValueError."""
        if self.auto and value == "auto":
            return "auto"
        found = KINDS[self.kind](value)
        if self.choices and found not in self.choices:
            near = kinds.did_you_mean(str(found), self.choices)
            raise ValueError(f"{found!r} is not one of {', '.join(self.choices)}{near}")
        self._check_size(found, value)
        return found

    def _check_size(self, found: Any, value: object) -> None:
        if self.kind == "size" and 0 < found < 1 << 20:  # Laravel's --memory=128 means megabytes
            hint = f" (megabytes are written '{value}M')" if str(value).isdigit() else ""
            raise ValueError(f"{value} is {found} bytes, less than a megabyte{hint}")
        if self.kind in ("count", "span") and found < self.at_least:
            raise ValueError(f"{found:g} is too small (at least {self.at_least:g})")


_UNITS = {"span": "seconds", "spans": "seconds", "size": "bytes"}


def row(name: str, default: Any, meta: Mapping[str, Any]) -> Option:
    """A row of the table, with what follows from its name and kind filled in."""
    more = dict(meta)
    more.setdefault("flag", "--" + name.replace("_", "-"))
    more.setdefault("environ", f"QD_{name.upper()}")
    more.setdefault("unit", _UNITS.get(more["kind"], ""))
    more.setdefault("shown", shown(more["kind"], default))
    return Option(name=name, default=default, **more)


def shown(kind: str, value: Any) -> str:
    """A value of this kind as a person writes it: (1.0, 5.0) spans -> "1s,5s", 128 MiB -> "128M"."""
    if value is None or value == ():
        return ""
    if kind == "span":
        return value if isinstance(value, str) else kinds.span_text(value)
    if kind == "size":
        return kinds.size_text(value)
    if kind == "spans":
        return ",".join(kinds.span_text(part) for part in value)
    if kind in ("names", "queues", "texts", "keys"):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


T = TypeVar("T")


def option(default: T, kind: str, help: str, **more: Any) -> T:
    return field(default=default, metadata={"kind": kind, "help": help, **more})


@dataclass(frozen=True, slots=True)
class WorkOptions:
    """What `qd work` was told. Durations are seconds, sizes bytes; 0 means no limit where the help says so."""

    queues: tuple[str, ...] = option(
        (), "queues", "take jobs from these queues, the first one first", flag="",
        shown="the queues of the app's jobs, in turn",
    )  # fmt: skip
    connection: str = option(
        "", "name", "take jobs from this connection", short="-c", environ="", shown="`default` of [qd]"
    )
    pool: str = option("", "name", "use [pools.NAME] over [worker]", in_file=False, shown="none")
    workers: int = option(
        1, "count", "run this many workers, 0: in this process, for breakpoints", short="-w", auto=True,
        shown="auto, the CPUs granted",
    )  # fmt: skip
    once: bool = option(False, "switch", "run one job and leave", in_file=False, environ="")
    stop_when_empty: bool = option(False, "switch", "leave when every worker finds nothing at the same moment")
    stop_when_empty_for: float = option(
        0.0, "span", "leave when every worker has found nothing for this long, 0: never"
    )
    force: bool = option(False, "switch", "work in maintenance mode too", in_file=False, environ="")
    tries: int = option(1, "count", "try a job this often before it fails, 0: without end", unit="attempts")
    timeout: float = option(60.0, "span", "end a job that runs longer, 0: never")
    backoff: tuple[float, ...] = option(
        (0.0,), "spans", "wait so long before a job is tried again, `1,5,30` for each further attempt"
    )
    memory: int = option(
        128 << 20, "size", "replace a worker that has grown by this much since it was ready, between jobs, 0: never"
    )
    memory_hard: int = option(0, "size", "end a job whose worker has grown beyond this, 0: never")
    sleep: float = option(
        3.0, "span", "look for jobs at least this often while idle; a push wakes at once", at_least=0.01
    )
    rest: float = option(0.0, "span", "rest between two jobs")
    max_jobs: int = option(0, "count", "replace a worker after this many jobs, 0: never", unit="jobs")
    max_time: float = option(0.0, "span", "replace a worker after this long, 0: never")
    stop_timeout: float = option(
        25.0, "span", "let running jobs finish for this long when asked to stop, then hand them back, 0: for ever"
    )
    min_uptime: float = option(
        0.0, "span", "never leave sooner than this after the start", auto=True,
        shown="auto, 1.5s under supervisord or systemd, else 0",
    )  # fmt: skip
    no_respawn: bool = option(
        False, "switch", "leave with the first worker: exit 1 after a crash, 12 for memory, else 0"
    )
    no_preload: bool = option(False, "switch", "import the app in every worker, not once before they fork")
    no_schedule: bool = option(False, "switch", "run no scheduler here")
    reload: bool = option(False, "switch", "start the workers anew when a file changes, for development")
    log_format: str = option("text", "name", "write log lines in this format", choices=("text", "json"))
    log_level: str = option(
        "info", "name", "write log lines of this level and above", choices=("debug", "info", "warning", "error")
    )
    max_crashes: int = option(3, "count", "fail a job that killed its worker this often", unit="crashes", at_least=1)
    in_turn: bool = False  # no queue was named, so they have no order: each turn begins with the next one
    pooled: tuple[str, ...] = ()  # queues of the connection that other pools of the file serve
    only_schedule: bool = False  # `qd schedule work`: a scheduler and no workers; nobody else can ask for it
    unroutable_ttl: float = option(600.0, "span", "fail a job that no worker here knows after this long")

    @property
    def runs_schedule(self) -> bool:
        """Whether a scheduler runs where there are entries. (Not where the program ends by itself, nor at a breakpoint.)"""
        ends_by_itself = self.once or self.stop_when_empty or self.stop_when_empty_for > 0
        return self.only_schedule or not (self.no_schedule or ends_by_itself or not self.workers)


WORK: Mapping[str, Option] = {
    held.name: row(held.name, held.default, held.metadata) for held in fields(WorkOptions) if held.metadata
}
