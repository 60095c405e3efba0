"""What `qd work` can be told: each option once, with its kind, default, unit and help, at the field that holds it.

Flags, file keys, environment names and the reference are made from WORK. limits, worker and master read the object.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from qd.options.table import Option, row

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
