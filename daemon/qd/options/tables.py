"""JobOptions (@app.job(...) and .using(...)) and WorkOptions (`qd work`): each option once, with its kind, default, unit and
help at the field that holds it. Flags, file keys, environment names and the reference are made from WORK.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, Self, TypeVar

from qd.errors import DeclarationError
from qd.options import kinds
from qd.options.kinds import EXPONENTIAL, KINDS, Backoff

PREFETCHED = 100  # jobs that a worker fetches at once, at most; the keeper and the scripts are bounded by it


def _option(kind: str) -> Any:
    return field(default=None, metadata={"kind": kind})


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The options of @app.job(...) and .using(...). None: not set, so the next source decides. Durations: seconds."""

    queue: str | None = _option("queue")
    connection: str | None = _option("name")
    tries: int | None = _option("count")
    timeout: float | None = _option("span")
    backoff: tuple[float, ...] | Backoff | None = _option("spans")
    jitter: float | None = _option("share")
    retry_on: tuple[type[Exception], ...] | None = _option("errors")
    fail_on: tuple[type[Exception], ...] | None = _option("errors")
    max_exceptions: int | None = _option("count")
    retry_for: float | None = _option("span")
    fail_on_timeout: bool | None = _option("switch")
    tags: tuple[str, ...] | None = _option("texts")
    display_name: str | None = _option("name")
    unique: str | None = _option("name")
    unique_for: float | None = _option("span")
    unique_until: str | None = _option("until")
    middleware: tuple[Callable[..., object], ...] | None = _option("middleware")
    result_ttl: float | None = _option("span")
    delete_when_missing: bool | None = _option("switch")
    raw: bool | None = _option("switch")
    exclusive: bool | None = _option("switch")
    version: int | None = _option("count")
    upgrade: tuple[Callable[[dict[str, Any]], dict[str, Any]], ...] | None = _option("upgrade")
    encrypted: bool | None = _option("switch")

    @classmethod
    def read(cls, given: Mapping[str, object], job: str | None = None, others: Sequence[str] = ()) -> Self:
        """The options as written in code, checked and converted. job: its name, for messages. others: names that the caller
        accepts besides. Raises DeclarationError."""
        what, found = "a job" if job is None else f"job '{job}'", dict[str, Any]()
        for name, value in given.items():
            if name not in JOB_KINDS:
                known = [*others, *JOB_KINDS]
                same = [ours for ours in (OF_CELERY.get(name),) if ours in known]
                near = kinds.did_you_mean(same[0] if same else name, known) or f" (known: {', '.join(known)})"
                raise DeclarationError(f"unknown option '{name}' of {what}{near}")
            try:
                read = _IN_CODE.get(JOB_KINDS[name], KINDS[JOB_KINDS[name]])
                found[name] = None if value is None else read(value)
            except ValueError as error:
                raise DeclarationError(f"option {name} of {what}: {error}") from None
        if (own := getattr(found.get("backoff"), "jitter", None)) is not None:
            if found.setdefault("jitter", own) not in (None, own):
                raise DeclarationError(f"option jitter of {what}: its Backoff has a jitter of {own:g}: remove one")
            found["jitter"] = own
        return cls(**found)

    def over(self, below: JobOptions) -> JobOptions:
        """These options, and those of `below` where none is set here: `.using(...)` over `@app.job(...)`."""
        return replace(below, **{name: value for name in JOB_KINDS if (value := getattr(self, name)) is not None})


OF_CELERY = {
    "countdown": "delay",
    "eta": "delay",
    "expires": "retry_for",
    "max_retries": "tries",
    "autoretry_for": "retry_on",
    "time_limit": "timeout",
    "soft_time_limit": "timeout",
}
JOB_KINDS: Mapping[str, str] = {held.name: held.metadata["kind"] for held in fields(JobOptions)}


def _spans(value: Any) -> Any:
    several = isinstance(value, Sequence) and not isinstance(value, str)
    if isinstance(value, Backoff) or (isinstance(value, str) and value.strip()[:1].isalpha()):
        return KINDS["spans"](value)
    return KINDS["spans"]([kinds.span_in_code(part) for part in value] if several else kinds.span_in_code(value))


_IN_CODE: Mapping[str, Callable[[object], Any]] = {"span": kinds.span_in_code, "spans": _spans}


class Option(NamedTuple):  # a dataclass would cost a millisecond at every start
    """One row of the table. kind: how its text becomes a value (KINDS); unit and shown are for people."""

    name: str
    kind: str
    default: Any
    help: str
    shown: str = ""  # the default as text
    unit: str = ""
    short: str = ""  # a short flag, "-w"
    flag: str = ""  # the long flag, "--workers"; "" = none (queues are positional)
    environ: str = ""  # its environment variable, "" = none
    in_file: bool = True
    auto: bool = False  # "auto" is a value too; config/ resolves it
    choices: tuple[str, ...] = ()
    at_least: float = 0
    at_most: float = 0  # 0: no bound
    secret: bool = False  # its value may be in a file of its own, which the next row names
    file_of: str = ""  # the option whose value is in this file

    def read(self, value: object) -> Any:
        """The value of this option from a file, the environment, a flag or code. Raises ValueError."""
        if self.auto and value == "auto":
            return "auto"
        try:
            found = KINDS[self.kind](value)
        except ValueError:
            if self.at_most:
                raise ValueError(f"{value!r} is not a whole number {self._span}") from None
            raise
        if self.choices and found not in self.choices:
            near = kinds.did_you_mean(str(found), self.choices)
            raise ValueError(f"{found!r} is not one of {', '.join(self.choices)}{near}")
        if self.kind == "size" and 0 < found < 1 << 20:  # Laravel's --memory=128 means megabytes
            hint = f" (write '{value}M' for megabytes)" if str(value).isdigit() else ""
            raise ValueError(f"{value} is {found} bytes, less than a megabyte{hint}")
        if self.at_most and not self.at_least <= found <= self.at_most:
            raise ValueError(f"{found:g} is not {self._span}")
        if self.kind in ("count", "span") and found < self.at_least:
            raise ValueError(f"{found:g} is too small (at least {self.at_least:g})")
        return found

    @property
    def _span(self) -> str:
        return f"from {self.at_least:g} to {self.at_most:g}{', or auto' if self.auto else ''}"


_UNITS = {"span": "seconds", "spans": "seconds", "size": "bytes"}


def shown(kind: str, value: Any) -> str:
    """The text of a value of this kind: (1.0, 5.0) spans -> "1s,5s", 128 MiB -> "128M"."""
    if value is None or value == ():
        return ""
    if isinstance(value, str | Backoff):
        return "exponential" if value == EXPONENTIAL else str(value)
    if kind == "span":
        return kinds.span_text(value)
    if kind == "size":
        return kinds.size_text(value)
    if kind == "spans":
        return ",".join(kinds.span_text(part) for part in value)
    if kind in ("names", "queues", "texts", "keys", "users"):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


T = TypeVar("T")


def option(default: T, kind: str, help: str, *, repr: bool = True, **more: Any) -> T:
    return field(default=default, repr=repr, metadata={"kind": kind, "help": help, **more})


def rows_of(options: Any, environ: str = "QD_", *, flags: bool = False) -> Mapping[str, Option]:
    """The rows of the options that a dataclass declares, with what follows from their names and kinds. environ: what the
    names of their variables begin with, "" for options without variables. A secret has a second row, NAME_file."""
    rows = dict[str, Option]()
    for held in fields(options):
        if held.metadata:
            derived = {
                "flag": "--" + held.name.replace("_", "-") if flags else "",
                "environ": environ and f"{environ}{held.name.upper()}",
                "unit": _UNITS.get(held.metadata["kind"], ""),
                "shown": shown(held.metadata["kind"], held.default) or "none",
            }
            row = rows[held.name] = Option(name=held.name, default=held.default, **{**derived, **held.metadata})
            if row.secret:
                name, help = f"{row.name}_file", f"read `{row.name}` from this file"
                variable = row.environ and f"{row.environ}_FILE"
                rows[name] = Option(name, "name", "", help, shown="none", environ=variable, file_of=row.name)
    return rows


@dataclass(frozen=True, slots=True)
class WorkOptions:
    """The options of `qd work`. Durations are seconds, sizes bytes; 0 means no limit where the help says so."""

    queues: tuple[str, ...] = option(
        (), "queues", "work these queues, in order of priority, or high=5 low=1 by weight", flag="",
        shown="the queues of the app's jobs, in turn",
    )  # fmt: skip
    connection: str = option("", "name", "work this connection", short="-c", environ="", shown="`default` of [qd]")
    pool: str = option("", "name", "use [pools.NAME] over [worker]", in_file=False)
    workers: int = option(
        1, "count", "number of workers, 0: one in this process, for breakpoints", short="-w", auto=True,
        shown="auto, the CPUs granted",
    )  # fmt: skip
    prefetch: int = option(
        1, "count", "fetch up to this many jobs with one call, 1 to 100 or auto", auto=True, unit="jobs",
        shown="auto, more for shorter jobs", at_least=1, at_most=PREFETCHED,
    )  # fmt: skip
    concurrency: int = option(
        1, "count", "run up to this many jobs at once in each worker, 1 to 1000: async jobs as tasks, others in threads",
        unit="jobs", at_least=1, at_most=1000,
    )  # fmt: skip
    once: bool = option(False, "switch", "run one job and exit", in_file=False, environ="")
    stop_when_empty: bool = option(False, "switch", "exit when every worker finds its queues empty at the same time")
    stop_when_empty_for: float = option(0.0, "span", "exit when all queues have been empty for this long, 0: never")
    force: bool = option(False, "switch", "work in maintenance mode too", in_file=False, environ="")
    tries: int = option(1, "count", "number of attempts before a job fails, 0: unlimited", unit="attempts")
    timeout: float = option(60.0, "span", "end a job that runs longer, 0: never")
    backoff: tuple[float, ...] | Backoff = option(
        (0.0,), "spans",
        "wait this long before each retry, `1,5,30` for the first, second and later ones, `exponential`: 1, 2, 4 up to 600",
    )  # fmt: skip
    jitter: float = option(0.1, "share", "add up to this share to each backoff at random, 0: nothing")
    memory: int = option(
        128 << 20, "size", "replace a worker that has grown by this much since it was ready, between jobs, 0: never"
    )
    memory_hard: int = option(0, "size", "end a job whose worker has grown beyond this, 0: never")
    sleep: float = option(
        3.0, "span", "poll at least this often while idle; a push wakes a worker at once", at_least=0.01
    )
    rest: float = option(0.0, "span", "rest between two jobs")
    max_jobs: int = option(0, "count", "replace a worker after this many jobs, 0: never", unit="jobs")
    max_time: float = option(0.0, "span", "replace a worker after this long, 0: never")
    stop_timeout: float = option(
        25.0, "span", "on stop, wait this long for running jobs, then hand them back, 0: no limit"
    )
    min_uptime: float = option(
        0.0, "span", "never exit sooner than this after the start", auto=True,
        shown="auto, 1.5s under supervisord or systemd, else 0",
    )  # fmt: skip
    no_respawn: bool = option(False, "switch", "exit with the first worker: 1 after a crash, 12 for memory, else 0")
    no_preload: bool = option(False, "switch", "import the app in every worker instead of once before the fork")
    no_schedule: bool = option(False, "switch", "run no scheduler here")
    reload: bool = option(False, "switch", "restart the workers when a file changes, for development")
    log_format: str = option("text", "name", "write log lines in this format", choices=("text", "json"))
    log_level: str = option(
        "info", "name", "write log lines of this level and above", choices=("debug", "info", "warning", "error")
    )
    log_jobs: str = option(
        "all", "name",
        "write a line for each job that ends (all), only for those that did not succeed (failed), or for none (off)",
        choices=("all", "failed", "off"),
    )  # fmt: skip
    max_crashes: int = option(3, "count", "fail a job that killed its worker this often", unit="crashes", at_least=1)
    in_turn: bool = False  # no queue was named, so they have no order: each turn starts with the next one
    weights: tuple[int, ...] = ()  # of the queues; (): strict order
    pooled: tuple[str, ...] = ()  # queues of the connection that other pools of the file serve
    only_schedule: bool = False  # `qd schedule work`: a scheduler and no workers
    unroutable_ttl: float = option(600.0, "span", "fail a job after this long if no worker knows it")

    @property
    def weighted(self) -> tuple[str, ...]:
        """The queues with their weights, as they are written."""
        pairs = zip(self.queues, self.weights, strict=True) if self.weights else ()
        return tuple([f"{queue}={weight}" for queue, weight in pairs]) or self.queues

    @property
    def lanes(self) -> int:
        """Lanes that each worker needs besides lane 0."""
        return max(PREFETCHED, self.concurrency)  # enough for either, since a reload may change both

    @property
    def runs_schedule(self) -> bool:
        """Whether a scheduler runs if there are entries: not if the program ends when its jobs are done, or runs in the
        foreground."""
        ends_by_itself = self.once or self.stop_when_empty or self.stop_when_empty_for > 0
        return self.only_schedule or not (self.no_schedule or ends_by_itself or not self.workers)


WORK = rows_of(WorkOptions, flags=True)
