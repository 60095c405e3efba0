"""The Textual app of `qd top`: regions of the screen, keys, and the loop that reads.

A region draws the lines that have changed since the last paint, and of a table only the rows that are visible, so 1,000
workers cost as much as 20.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import zip_longest
from typing import Any, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input

from qd.cli.output import clean
from qd.cli.top import ERRORS, Reader, View
from qd.cli.top import view as views
from qd.cli.top.view import Line, Row, Table

EVERY = 0.5  # seconds between two reads
MOST = 0.06  # of a core for reads and drawing: slow ones are followed by a longer pause
SHOWN = 6.0  # seconds for which the result of a key is shown
SMALL, TALL, WIDE = (60, 16), (110, 36), (190, 40)  # columns and rows; from TALL on with charts and events
# Each style in truecolor (the dark tokens of the dashboard) and in the sixteen colors of a terminal.
STYLES = {
    "": ("#E7EBF0", "default"), "meta": ("#919BAA", "bright_black"), "accent": ("#8FA9FF", "bright_blue"),
    "ok": ("#4FC78D", "green"), "warn": ("#EDB04D", "yellow"), "fail": ("#FF8289", "red"), "bold": ("bold", "bold"),
    "bar": ("on #1B2029", "on default"), "bad": ("on #361A1D", "on default"), "cursor": ("on #1C2745", "reverse"),
}  # fmt: skip
KEYS = {
    "up,k": "move(-1)", "down,j": "move(1)", "pageup": "move(-10)", "pagedown": "move(10)", "home": "move(-9999)",
    "end": "move(9999)", "slash": "find", "s": "sort", "p": "pause", "r": "resume", "f": "failed", "enter": "details",
    "x": "cancel", "h": "health", "question_mark": "help", "escape": "back", "tab,shift+tab": "next", "q,ctrl+c": "quit",
}  # fmt: skip
ASCII = str.maketrans("▲‖↻●━─▌·\u2013\u2212…“”▁▂▃▄▅▆▇█", '^=~*#->.--~""' + " " * 8)


class Canvas(Widget):
    """Lines of text in one region."""

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self.lines, self.backgrounds = list[Line](), dict[int, str]()

    def paint(self, lines: list[Line], backgrounds: dict[int, str] | None = None) -> None:
        """backgrounds: line -> its style."""
        backgrounds = backgrounds or {}
        for y, (old, new) in enumerate(zip_longest(self.lines, lines)):
            if old != new or self.backgrounds.get(y) != backgrounds.get(y):
                self.refresh(Region(0, y, self.size.width, 1))
        self.lines, self.backgrounds = lines, backgrounds

    def render_line(self, y: int) -> Strip:
        app, line = self.app, self.lines[y] if y < len(self.lines) else []
        assert isinstance(app, Top)
        base = app.style(self.backgrounds.get(y, ""))
        strip = Strip([Segment(app.plain(text), base + app.style(style)) for text, style in line])
        return strip.adjust_cell_length(self.size.width, base)


class Panel(Canvas, can_focus=True):
    """A table of queues or workers, or a page of lines. The cursor stays on its row when the order changes."""

    def __init__(self, id: str, table: Table | None = None) -> None:
        super().__init__(id)
        self.table, self.rows, self.shown = table, list[Row](), list[Row]()
        self.key: tuple[Any, ...] | None = None
        self.top, self.order, self.wanted = 0, 0, ""
        self.title, self.page = "", list[Line]()

    @property
    def place(self) -> int:
        return next((at for at, row in enumerate(self.shown) if row.key == self.key), 0)

    @property
    def row(self) -> Row | None:
        return next((row for row in self.shown if row.key == self.key), None)

    def order_rows(self, view: View) -> None:
        """Filter and sort; the cursor of a row that is gone stays at its place."""
        assert self.table is not None
        place = self.place
        most = [*self.table.sorts.values()][self.order]
        found = [row for row in self.rows if self.wanted.casefold() in row.words.casefold()]
        self.shown = sorted(found, key=lambda row: most(view, row), reverse=True)
        if self.row is None:
            self.key = self.shown[min(place, len(self.shown) - 1)].key if self.shown else None

    def move(self, by: int) -> None:
        if self.table is None:
            self.top = max(0, min(self.top + by, len(self.page) - 1))
        elif self.shown:
            self.key = self.shown[max(0, min(self.place + by, len(self.shown) - 1))].key

    def draw(self, view: View) -> None:
        height, width = self.size.height, self.size.width
        if self.table is None:
            line = "─" * (width - len(self.title) - 13)
            rule: Line = [(f"─ {self.title} ", "bold"), (line, "meta"), (" Esc back", "meta")]
            return self.paint([rule, *self.page[self.top : self.top + height - 1]])
        place = self.place
        room = max(1, height - 2)
        self.top = max(0, min(self.top, place, len(self.shown) - room), place - room + 1)
        facts = f" {len(self.shown):,} of {len(self.rows):,} · sort {[*self.table.sorts][self.order]}"
        facts += f" · /{clean(self.wanted)}" if self.wanted else ""
        name = f"─ {self.table.name} "
        line = "─" * (width - len(name) - len(facts))
        rule = [(name, "bold" if self.has_focus else "meta"), (line, "meta"), (facts, "meta")]
        columns = self.table.fit(width - 1)
        heads = [(each.head if len(each.head) <= wide else "", wide, each.right) for each, wide in columns]
        head = " ".join(views.text_in(name, wide, right=right) for name, wide, right in heads)
        lines, marked = [rule, [(f" {head}", "meta")]], dict[int, str]()
        for row in self.shown[self.top : self.top + room]:
            chosen = row.key == self.key and self.has_focus
            marked |= {len(lines): "cursor"} if chosen else {}
            cells: Line = [("▌" if chosen else " ", "accent")]
            for column, wide in columns:
                cell = column.cell(view, row, wide)
                if not isinstance(cell, list):
                    cell = [(views.text_in(cell[0], wide, right=column.right), cell[1])]
                cells += [*cell, (" ", "")]
            lines.append(cells)
        self.paint(lines, marked)


class Top(App[None]):
    """`qd top`. view: the last answer of the servers; lost: why there is no newer one."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen, Canvas, Input { background: ansi_default; color: ansi_default; }
    Canvas { height: 1; }  #foot { height: 1; }  #ask { width: auto; }
    Input, Input:focus { border: none; height: 1; padding: 0; width: 1fr; }
    #left { width: 1fr; }  #side { width: 68; height: 100%; padding-left: 2; }
    """
    BINDINGS: ClassVar[list[Any]] = [
        Binding(key, action, show=False, priority=action == "next") for key, action in KEYS.items()
    ]

    def __init__(self, reader: Reader, view: View) -> None:
        super().__init__(ansi_color=True)
        self.reader, self.view, self.lost = reader, view, ""
        self.failure: Exception | None = None
        encoding = (getattr(sys.__stderr__, "encoding", None) or "").lower()
        self.utf8, self.message, self.until = encoding.startswith("utf"), "", 0.0
        self.answer: Callable[[str], object] | None = None
        self.panels = {"queues": Panel("queues", views.QUEUES), "workers": Panel("workers", views.WORKERS)}
        self.page, self.current = Panel("page"), "queues"
        self.page.display = False
        self.styles_of = dict[str, Style]()

    def show(self) -> None:
        """Run until `q`. Raises what ended it otherwise."""
        self.run(mouse=False)
        if self.failure is not None:
            raise self.failure

    def compose(self) -> ComposeResult:
        with Horizontal():
            with Vertical(id="left"):
                yield from (Canvas("head"), Canvas("metrics"), *self.panels.values(), self.page, Canvas("events"))
                with Horizontal(id="foot"):
                    yield from (Canvas("ask"), Input(id="input", compact=True, select_on_focus=False), Canvas("keys"))
            yield Canvas("side")

    def on_mount(self) -> None:
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self.exit)
        self.panels["queues"].focus()
        self.set_interval(1.0, self.draw)
        self.run_worker(self.follow())

    async def follow(self) -> None:
        while True:
            used = time.process_time()
            try:
                self.view, self.lost = await asyncio.wrap_future(self.reader.call(self.reader.read)), ""
            except ERRORS as error:
                self.lost = str(error)
            except Exception as error:  # not on the screen, where Textual would show local variables
                self.failure = error
                return self.exit()
            self.draw()
            await asyncio.sleep(max(EVERY, (time.process_time() - used) / MOST))

    # -- drawing

    def style(self, words: str) -> Style:
        if words not in self.styles_of:
            rich = self.console.color_system == "truecolor"
            known = [STYLES[word][0 if rich else 1] for word in words.split() or [""]]
            self.styles_of[words] = Style.parse(" ".join(known))
        return self.styles_of[words]

    def plain(self, text: str) -> str:
        text = text if text.isprintable() else clean(text)  # whatever the views have missed
        return text if self.utf8 or text.isascii() else text.translate(ASCII).encode("ascii", "replace").decode()

    def on_resize(self) -> None:
        self.call_after_refresh(self.draw)

    def lay_out(self) -> None:
        """Which regions are shown, and how high they are."""
        width, height = self.size
        small = width < SMALL[0] or height < SMALL[1]
        self.tall = width >= TALL[0] and height >= TALL[1]
        wide, asks, paged = width >= WIDE[0] and height >= WIDE[1], self.answer is not None, self.page.display
        sizes = {"head": 2, "metrics": 0 if small else 3 if self.tall else 1}
        sizes["events"] = (11 if wide else 7) if self.tall else 0
        rest = height - sum(sizes.values()) - (not small or asks)
        if paged:
            sizes |= {"queues": 0, "workers": 0, "page": rest + sizes["events"], "events": 0}
        elif small:
            sizes |= {name: rest * (name == self.current) for name in self.panels}
        else:
            queues = min(max(len(self.panels["queues"].shown), 5) + 2, rest // 3 if self.tall else 7)
            sizes |= {"queues": queues, "workers": rest - queues}
        for name in ("head", "metrics", "events", "queues", "workers", "page"):
            region = self.query_one(f"#{name}")
            region.display = sizes.get(name, 0) > 0
            region.styles.height = sizes.get(name, 0)
        self.query_one("#foot").display = not small or asks
        for name, shown in (("ask", asks), ("input", asks), ("keys", not asks)):
            self.query_one(f"#{name}").display = shown
        self.query_one("#side").display = wide

    def draw(self) -> None:
        if not self.is_running or not self.query("#head"):
            return
        view, now = self.view, time.time()
        for panel, rows in zip(self.panels.values(), (views.queue_rows, views.worker_rows), strict=True):
            panel.rows = rows(view)
            panel.order_rows(view)
        self.lay_out()
        regions = "head", "metrics", "events", "keys", "side"
        head, metrics, events, keys, side = (self.query_one(f"#{name}", Canvas) for name in regions)
        width = head.size.width
        health, behind = views.health(view, self.lost, width)
        head.paint([views.header(view, now, self.lost, width), health], {0: "bar", 1: behind})
        metrics.paint(views.metrics(view, metrics.size.width, self.tall))
        for each in (*self.panels.values(), self.page):
            if each.display and each.size.height:
                each.draw(view)
        rule = [("─ EVENTS ", "meta"), ("─" * (events.size.width - 19), "meta"), (" last 24h", "meta")]
        events.paint([rule, *views.events(view, max(0, events.size.height - 1))])
        shown = self.message if time.monotonic() < self.until else ""
        wordy = "/ find  s sort  Tab next  Enter open  p pause  r resume  f failed  x cancel  h health  "
        names = (wordy if keys.size.width >= 102 else "/ s Tab Enter p r f x h  ") + "? help  q quit"
        keys.paint([[(f" {clean(shown)}", "bold warn")] if shown else [(f" {names}", "meta")]])
        row = self.panels[self.current].row
        side.paint([[("", "")], *(views.details(view, row) if row else [])])

    def tell(self, text: str) -> None:
        self.message, self.until = text, time.monotonic() + SHOWN
        self.draw()

    # -- keys

    def action_move(self, by: int) -> None:
        (self.page if self.page.display else self.panels[self.current]).move(by)
        self.draw()

    def action_next(self) -> None:
        if self.answer is None and not self.page.display:
            self.current = "workers" if self.current == "queues" else "queues"
            self.lay_out()
            self.panels[self.current].focus()
            self.call_after_refresh(self.draw)

    def action_sort(self) -> None:
        panel = self.panels[self.current]
        panel.order = (panel.order + 1) % len(panel.table.sorts) if panel.table else 0
        self.draw()

    def ask(self, text: str, answer: Callable[[str], object], value: str = "") -> None:
        """Ask for one line; Enter calls `answer` with it, Esc does nothing."""
        self.answer, text = answer, clean(text)
        label, field = self.query_one("#ask", Canvas), self.query_one(Input)
        label.styles.width = min(len(text) + 1, self.size.width - 10)
        label.paint([[(text, "bold warn")]])
        field.value = value
        self.lay_out()
        field.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        answer, self.answer = self.answer, None
        self.lay_out()
        self.panels[self.current].focus()
        if answer is not None:
            answer(event.value)
        self.draw()

    async def action_back(self) -> None:
        if self.answer is None and not self.page.display:
            self.panels[self.current].wanted = ""
        self.answer, self.page.display = None, False
        self.lay_out()
        self.panels[self.current].focus()
        self.call_after_refresh(self.draw)

    def open(self, title: str, lines: list[Line]) -> None:
        self.page.title, self.page.page, self.page.top, self.page.display = title, lines, 0, True
        self.lay_out()
        self.page.focus()
        self.call_after_refresh(self.draw)

    def do(self, call: Callable[..., Any], *args: Any, then: Callable[[Any], object]) -> None:
        """Call it in the reader's thread; `then` gets the result. An error is shown in the last line."""

        async def work() -> None:
            try:
                then(await asyncio.wrap_future(self.reader.call(call, *args)))
            except ERRORS as error:
                self.tell(f"! {error.format_message() if hasattr(error, 'format_message') else error}")

        self.run_worker(work())

    def action_find(self) -> None:
        panel = self.panels[self.current]
        self.ask("find: ", partial(setattr, panel, "wanted"), panel.wanted)

    def action_pause(self) -> None:
        if (line := self.queue()) is not None:
            self.ask(f"pause {line.name}, reason: ", lambda why: self.do(self.reader.pause, line, why, then=self.tell))

    def action_resume(self) -> None:
        if (line := self.queue()) is not None:
            self.do(self.reader.resume, line, then=self.tell)

    def queue(self) -> Any:
        row = self.panels["queues"].row
        if self.current != "queues" or row is None:
            return self.tell("choose a queue first: Tab")
        return row.line

    def action_cancel(self) -> None:
        row = self.panels[self.current].row
        if row is None or row.worker is None or not row.worker.job:
            return self.tell("choose a worker that runs a job first: Tab")
        self.do(self.reader.running, row.master, row.worker, then=partial(self.confirm, row))

    def confirm(self, row: Row, found: list[Any]) -> None:
        """Ask before the job is cancelled that the screen shows, which has run longest."""
        worker = row.worker
        job = next((each for each in found if worker and each.display == worker.job), None)
        if worker is None or job is None:
            return self.tell("the job has ended")

        def answered(text: str) -> None:
            if text.strip().lower() in ("y", "yes"):
                self.do(self.reader.cancel, job, worker.queue or "", then=self.tell)

        self.ask(f"cancel {job.display} {job.id}? y or n: ", answered)

    def action_details(self) -> None:
        row = self.panels[self.current].row
        if row is None or self.page.display:
            return
        self.open(row.title, views.details(self.view, row))
        if row.worker is not None:
            self.do(self.reader.running, row.master, row.worker, then=lambda found: self.add(row, views.jobs(found)))

    def add(self, row: Row, lines: list[Line]) -> None:
        if self.page.display and self.page.title == row.title:
            self.page.page = [*self.page.page, *lines]
            self.draw()

    def action_failed(self) -> None:
        lines = [row.line for row in self.panels["queues"].shown if row.line and row.line.sizes.failed]
        self.do(self.reader.failed, lines, then=lambda found: self.open("FAILED", views.failures(self.view, found)))

    def action_health(self) -> None:
        self.open("HEALTH", views.findings(self.view, self.query_one("#head").size.width))

    def action_help(self) -> None:
        self.open("HELP", [[(f"  {key:<8}", "bold"), (text, "")] for key, text in views.HELP])
