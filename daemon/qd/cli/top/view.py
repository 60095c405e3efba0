"""The lines of `qd top`, from a View. A line is a list of (text, style); a style is words of screen.STYLES.

Text of queues and operators is cleaned here, so no control character reaches the terminal, and nothing parses markup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from itertools import pairwise
from operator import attrgetter
from textwrap import wrap
from typing import Any, NamedTuple

from rich.cells import cell_len, set_cell_size

from qd.cli.diagnosis import is_growing
from qd.cli.failed import Group, times
from qd.cli.output import by_whom, clean, count, duration
from qd.cli.state import stale
from qd.cli.top import RECENT, View, size
from qd.payload.encryption import hidden
from qd.payload.format import Payload
from qd.redaction import redact
from qd.store.statistics import Rate, quantile

Span = tuple[str, str]
Line = list[Span]
NONE, MINUS = "\u2013", "\u2212"  # not applicable, below zero
BLOCKS = "▁▂▃▄▅▆▇█"
NO_RATE = Rate()
HANGS, LATE = 0.8, 0.5  # part of the timeout from which a bar is red, amber


class Row(NamedTuple):
    """A queue or a worker. key: the cursor stays on it. words: what `/` searches."""

    key: tuple[Any, ...]
    title: str
    words: str
    line: Any = None  # a QueueLine
    master: Any = None  # a MasterReport
    worker: Any = None  # a WorkerReport


class Column(NamedTuple):
    """widths: the widest first; a step of a table takes the next one, after the last the column is dropped. grows: takes
    spare room."""

    head: str
    widths: tuple[int, ...]
    cell: Callable[[View, Row, int], Span | Line]
    right: bool = False
    grows: bool = False


class Table(NamedTuple):
    """steps: heads of columns in the order in which they give way. sorts: name -> what the first row has most of."""

    name: str
    columns: Sequence[Column]
    steps: Sequence[str]
    sorts: dict[str, Callable[[View, Row], Any]]

    def fit(self, width: int) -> list[tuple[Column, int]]:
        """The columns that have room, each with its width."""
        left = {column.head: list(column.widths) for column in self.columns}
        for step in ("", *self.steps):
            if step:
                left[step].pop(0)
            total = sum(each[0] + 1 for each in left.values() if each) - 1
            if total <= width:
                break
        found = [(column, left[column.head][0]) for column in self.columns if left[column.head]]
        growing = sum(column.grows for column, _ in found)
        spare = max(0, width - total)
        return [(column, wide + spare // growing if column.grows else wide) for column, wide in found]


def text_in(text: str, width: int, *, right: bool = False) -> str:
    """`text` in exactly `width` columns of a terminal."""
    if cell_len(text) > width:
        return set_cell_size(text, max(0, width - 1)) + "…"[: max(0, width)]
    pad = " " * (width - cell_len(text))
    return pad + text if right else text + pad


def spark(values: Iterable[float | None], width: int) -> str:
    """The largest value of each part, from the lowest block to the highest."""
    found = [value or 0.0 for value in values]
    if not found or width < 1:
        return ""
    edges = [at * len(found) // width for at in range(width + 1)]
    tops = [max(found[edge : max(edge + 1, after)], default=0.0) for edge, after in pairwise(edges)]
    most = max(tops) or 1.0
    return "".join(BLOCKS[min(7, int(top / most * 7.999))] for top in tops)


def time_of(seconds: float | None) -> str:
    return NONE if seconds is None else duration(seconds)


def clock(at: float, now: float | None = None) -> str:
    """14:23:06; of another day: Nov 18, 14:23."""
    moment = datetime.fromtimestamp(at)
    same = now is None or moment.date() == datetime.fromtimestamp(now).date()
    return f"{moment:%H:%M:%S}" if same else f"{moment:%b %d, %H:%M}"


# -- the head of the screen


def header(view: View, now: float, lost: str, width: int) -> Line:
    state, alive = view.state, view.state.living
    up, expected = sum(len(m.workers) for m in alive), sum(m.configured or len(m.workers) for m in alive)
    left: Line = [("qd top", "bold"), (f"  {clean(state.control)}", "meta")]
    left += [(f"  {count(len({m.host for m in alive}), 'host')}", "")] if width >= 100 else []
    left += [(f"  {count(len(alive), 'master')}", "" if alive else "fail")]
    left += [(f"  {up}/{expected} workers", "warn" if up < expected else "")]
    left += [(f"  {view.latency * 1000:.1f}ms {view.trend.memory}", "")]
    old = now - view.read_at
    live: Span = ("● live", "ok") if not lost and old < 5 else (f"! {duration(int(old))} old", "fail")
    right: Line = [live, (f"  {clock(now)}", "meta")]
    while len(left) > 1 and sum(cell_len(text) for text, _ in left + right) >= width:
        left.pop()
    room = width - sum(cell_len(text) for text, _ in left + right)
    return [*left, (" " * max(1, room), ""), *right]


def health(view: View, lost: str, width: int) -> tuple[Line, str]:
    """The line, and the background of it."""
    if lost:
        return [(f"! no answer since {clock(view.read_at)}, trying again: {clean(lost)}", "bold fail")], "bad"
    if not view.problems and not view.warnings:
        return [("All clear", "ok")], "bar"
    counts: Line = []
    for number, word, style in ((len(view.problems), "problem", "fail"), (len(view.warnings), "warning", "warn")):
        counts += [(f"{count(number, word)} ", f"bold {style}")] if number else []
    room = width - sum(len(text) for text, _ in counts) - 8
    text = clean(" · ".join([*view.problems, *view.warnings]))
    bad = "bad" if view.problems else "bar"
    mark = "bold fail" if view.problems else "bold warn"
    return [("! ", mark), *counts, (text_in(f" {text}", room), ""), (" [h]", "meta")], bad


def metrics(view: View, width: int, tall: bool) -> list[Line]:
    """Done and failed per minute, p95 of wait and run time; if there is room with sparklines of three hours."""
    trend, points = view.trend, view.trend.points
    wait, run = quantile(trend.recent.wait, 0.95), quantile(trend.recent.run, 0.95)
    fails = trend.recent.failed / trend.minutes
    values: tuple[tuple[str, str, str, Sequence[float | None]], ...] = (
        ("done/min", f"{trend.recent.done / trend.minutes:,.0f}", "accent", [point.done for point in points]),
        ("wait p95", time_of(wait), "warn", [point.wait_p95 for point in points]),
        ("failed/min", f"{fails:,.1f}".removesuffix(".0"), "fail" if fails else "", [point.failed for point in points]),
        ("run p95", time_of(run), "accent", [point.run_p95 for point in points]),
    )
    if not tall:
        line: Line = []
        for name, value, style, series in (values[0], values[2], values[1], values[3]):
            line += [(f"{name} ", "meta"), (f"{value} ", "bold"), (spark(series, 8 * ("/" in name)), style), ("  ", "")]
        return [line]
    wide = (width - 46) // 2
    lines: list[Line] = [[], []]
    for at, (name, value, style, series) in enumerate(values):
        lines[at // 2] += [(f"  {name:<11}", "meta"), (f"{value:>9} ", "bold"), (spark(series, wide), style)]
    ends = clock(points[0].at)[:5], clock(points[-1].at)[:5]
    axis = (" " * 23 + ends[0] + " " * (wide - 10) + ends[1]) if points else ""
    return [*lines, [(axis * 2, "meta")]]


# -- queues


def queue_rows(view: View) -> list[Row]:
    several = len({line.connection for line in view.state.queues}) > 1
    titles = [clean(f"{line.connection}:{line.name}" if several else line.name) for line in view.state.queues]
    keyed = [((line.connection, line.name), line) for line in view.state.queues]
    return [Row(key, title, title, line) for title, (key, line) in zip(titles, keyed, strict=True)]


def rate_of(view: View, row: Row) -> Rate:
    return view.trend.rates.get(row.key, NO_RATE)


def number(name: str, style: str = "") -> Callable[[View, Row, int], Span]:
    size = attrgetter(f"line.sizes.{name}")
    return lambda view, row, _: (f"{size(row):,}", style if size(row) else "meta")


def pace(name: str) -> Callable[[View, Row, int], Span]:
    rate = attrgetter(name)
    return lambda view, row, _: (f"{rate(rate_of(view, row)):,.0f}" if row.key in view.trend.rates else NONE, "")


def empty_in(view: View, row: Row, width: int) -> Span:
    if row.line.paused:
        return "paused", "warn"
    if is_growing(row.line, view.trend.rates):
        return "never", "warn"
    return time_of(rate_of(view, row).empty_in(row.line.sizes)), ""


def note(view: View, row: Row, width: int) -> Span:
    line, rate = row.line, rate_of(view, row)
    if line.error:
        return "! unreadable", "fail"
    if line.paused:
        why = f" “{line.paused.reason}”" if line.paused.reason else ""
        return clean(f"‖ {line.paused.by or 'paused'}{why}"), "warn"
    if is_growing(line, view.trend.rates):
        return f"▲ growing {rate.growth:,.0f}/min", "warn"
    if (line.sizes.ready or line.overdue) and not (line.workers or line.php):
        return "! no worker", "fail"
    return ("steady" if row.key in view.trend.rates else "", "meta")


QUEUES = Table(
    "QUEUES",
    (
        Column("QUEUE", (10,), lambda v, r, _: (r.title, "bold"), grows=True),
        Column("READY", (8,), lambda v, r, _: (f"{r.line.sizes.ready:,}", "warn" * is_growing(r.line, v.trend.rates)),
               right=True),
        Column("DELAYED", (7,), number("delayed"), right=True),
        Column("RUN", (4,), number("reserved", "accent"), right=True),
        Column("FAILED", (6,), number("failed", "fail"), right=True),
        Column("OLDEST", (7,), lambda v, r, _: (time_of(r.line.sizes.oldest_age), ""), right=True),
        Column("IN/m", (5,), pace("enters"), right=True),
        Column("OUT/m", (5,), pace("leaves"), right=True),
        Column("EMPTY IN", (8,), empty_in, right=True),
        Column("READY, 3h", (16,), lambda v, r, w: (spark(v.trend.depths.get(r.key, ()), w), "accent")),
        Column("P95 WAIT", (8,), lambda v, r, _: (time_of(rate_of(v, r).wait_p95), ""), right=True),
        Column("NOTE", (18,), note, grows=True),
    ),
    ("P95 WAIT", "READY, 3h", "EMPTY IN", "DELAYED", "IN/m", "OUT/m", "RUN", "NOTE", "FAILED"),
    {
        "ready": lambda view, row: row.line.sizes.ready,
        "oldest": lambda view, row: row.line.sizes.oldest_age or 0.0,
        "failed": lambda view, row: row.line.sizes.failed,
        "growth": lambda view, row: rate_of(view, row).growth,
    },
)  # fmt: skip


# -- workers


def worker_rows(view: View) -> list[Row]:
    found = []
    for master in view.state.masters:
        for worker in master.workers:
            title = clean(f"{master.title}/{worker.slot}")
            words = f"{title} {worker.job} {worker.queue}"
            found.append(Row((master.token, worker.slot), title, words, None, master, worker))
    return found


def elapsed(view: View, row: Row) -> float | None:
    worker = row.worker
    return None if not worker.job or worker.since is None else max(0.0, view.state.now - worker.since)


def share(view: View, row: Row) -> float:
    """The part of its timeout for which a job has been running; 0 if it has none."""
    timeout = row.worker.timeout
    return (elapsed(view, row) or 0.0) / timeout if timeout else 0.0


def bar(view: View, row: Row, width: int) -> Span | Line:
    timeout = row.worker.timeout
    if not timeout:
        return "", ""
    cells = width - 6
    part = share(view, row)
    style = "fail" if part > HANGS else "warn" if part > LATE else "accent"
    full = min(cells, max(0, round(part * cells)))
    text = f" {duration(timeout)}"[:6] if cells > 0 else duration(timeout)
    return [("━" * full, style), ("─" * (cells - full), "meta"), (text, "meta")]


def sign(view: View, row: Row, width: int) -> Span:
    master, worker = row.master, row.worker
    if stale(master, view.state.now):
        found = "! silent", "fail"
    elif worker.slot in master.silent_workers or share(view, row) > HANGS:
        found = "! may hang", "fail"
    elif worker.state == "starting":
        found = "↻ starting", "warn"
    elif master.state == "paused":
        found = "‖ paused", "warn"
    else:
        found = "" if width == 1 else master.state if master.state != "running" else worker.state, "meta"
    return clean(found[0])[:width], found[1]


def doing(view: View, row: Row, width: int) -> Span:
    worker = row.worker
    more = f" +{worker.running - 1}" if worker.running > 1 else ""
    return (clean(worker.job) + more, "") if worker.job else (NONE, "meta")


WORKERS = Table(
    "WORKERS",
    (
        Column("WORKER", (16,), lambda v, r, _: (r.title, "")),
        Column("PID", (7,), lambda v, r, _: (str(r.worker.pid or NONE), "meta"), right=True),
        Column("JOB", (15,), doing, grows=True),
        Column("QUEUE", (10,), lambda v, r, _: (clean(r.worker.queue or ""), "meta"), grows=True),
        Column("FOR", (7,), lambda v, r, _: (time_of(elapsed(v, r)), "fail" * (share(v, r) > HANGS)), right=True),
        Column("TIMEOUT", (20, 14, 6), bar),
        Column("GREW", (6,), lambda v, r, _: (NONE if r.worker.grown is None else f"+{size(r.worker.grown)}", "meta"),
               right=True),
        Column("DONE", (7,), lambda v, r, _: (f"{r.worker.done:,}", ""), right=True),
        Column("VERSION", (8,), lambda v, r, _: (clean(r.master.version), "meta")),
        Column("STATE", (12, 1), sign),
    ),
    ("VERSION", "PID", "DONE", "STATE", "TIMEOUT", "QUEUE", "GREW", "TIMEOUT"),
    {
        "worker": lambda view, row: 0,
        "elapsed": lambda view, row: (share(view, row), elapsed(view, row) or 0.0),
        "memory": lambda view, row: row.worker.grown or 0,
    },
)  # fmt: skip


# -- events and pages


def events(view: View, most: int) -> list[Line]:
    """The newest first."""
    styles, found = {"pause": "warn", "down": "warn", "cancel": "fail", "crash-loop": "fail"}, list[Line]()
    for each in view.trend.events[::-1][:most]:
        what = clean(" ".join(f"{key} {value}" for key, value in each.object.items()))
        why = (f": “{each.reason}”" if each.reason else "") + f" x {each.count}" * (each.count > 1)
        when, verb = f" {clock(each.at, view.state.now):<14} ", f"{clean(each.what):<10} "
        style = styles.get(each.what, "accent")
        found.append([(when, "meta"), (verb, style), (f"{what}  ", ""), (clean(f"{each.actor}{why}"), "meta")])
    return found


def details(view: View, row: Row) -> list[Line]:
    """A queue: its jobs by name. A worker: what it does."""
    if row.line is not None:
        line, rate = row.line, rate_of(view, row)
        facts = [("queue", row.title), ("connection", line.connection), ("workers", line.workers)]
        facts += [("paused", by_whom(line.paused, view.state.now).strip())] if line.paused else []
        pace = f"{rate.enters:,.0f}/min, {rate.leaves:,.0f}/min, growth {rate.growth:+,.0f}/min"
        facts.append(("in, out", pace.replace("-", MINUS)))
        jobs = {name.job: each for name, each in view.trend.by_name.items() if (name.connection, name.queue) == row.key}
        head = f"{'JOB, last ' + duration(RECENT):<30} {'DONE':>7} {'FAILED':>6} {'WAIT':>6} {'RUN':>6}"
        lines: list[Line] = [[("", "")], [(head, "meta")]]
        for job, each in sorted(jobs.items(), key=lambda pair: -pair[1].started):
            p95 = [duration(quantile(buckets, 0.95)) for buckets in (each.wait, each.run)]
            lines.append([(f"{text_in(clean(job), 30)} {each.done:>7,} {each.failed:>6,} {p95[0]:>6} {p95[1]:>6}", "")])
    else:
        master, worker = row.master, row.worker
        facts = [("worker", row.title), ("pid", worker.pid), ("state", worker.state), ("done", f"{worker.done:,}")]
        facts += [("queues", ", ".join(master.queues)), ("version", master.version)]
        facts += [("job", worker.job or NONE), ("running", worker.running), ("fetched", worker.held)]
        facts += [("for", duration(elapsed(view, row))), ("timeout", duration(worker.timeout))]
        lines = [[(clean(f"{each.get('job')}  {each.get('queue')}"), "")] for each in worker.longest[1:]]
    return [[(f"{name:<12}", "meta"), (clean(value), "")] for name, value in facts] + lines


def jobs(found: list[Payload]) -> list[Line]:
    lines: list[Line] = [[("", "")], [("its jobs", "meta")]]
    for each in found:
        arguments = clean(hidden(redact(bytes(each.data).decode("utf-8", "replace"))))
        title = clean(f"{each.id}  {each.display}  attempt {each.attempts}")
        lines.append([(title, "bold"), (f"  {arguments[:500]}", "meta")])
    return lines if found else [[("", "")], [("it runs no job", "meta")]]


def failures(view: View, found: list[Group]) -> list[Line]:
    lines: list[Line] = [[(f"{'COUNT':>7}  {'JOB':<30} {'EXCEPTION':<30} {'LAST':<14} QUEUES", "meta")]]
    for each in found:
        last, queues = times(each, view.state.now)[1], clean(", ".join(sorted(each.queues)))
        names = f"{text_in(clean(each.job or NONE), 30)} {text_in(clean(each.error or NONE), 30)}"
        lines.append([(f"{each.count:>7,}  ", "fail"), (names, ""), (f" {last:<14} {queues}", "meta")])
    return lines if found else [[("no failed jobs", "ok")]]


def findings(view: View, width: int) -> list[Line]:
    """Problems and warnings, wrapped: their fixes are at the end."""
    marks = [(("! ", "fail"), text) for text in view.problems] + [(("▲ ", "warn"), text) for text in view.warnings]
    lines: list[Line] = []
    for mark, text in marks:
        first, *more = wrap(clean(text), max(20, width - 2))
        lines += [[mark, (first, "")], *([("  ", ""), (part, "")] for part in more)]
    return lines or [[("All clear", "ok")]]


HELP = (
    ("/", "show only rows that contain a text; Esc shows all again"), ("s", "sort the panel by its next column"),
    ("arrows", "move"), ("Tab", "the other panel"), ("Enter", "details of the row"), ("Esc", "back"), ("q", "quit"),
    ("p", "pause the queue; asks for a reason"), ("r", "resume the queue"), ("f", "failed jobs, by name and exception"),
    ("x", "cancel the job of the worker; asks first"), ("h", "what qd health finds, with the fix"),
)  # fmt: skip
