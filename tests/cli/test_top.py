"""qd top: the screen at each size, its keys, and a real terminal with a real `qd work`."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import re
import signal
import struct
import sys
import termios
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pyte
import pytest
from textual.color import Color
from textual.pilot import Pilot

from qd.cli import context, main, top
from qd.cli.top import Reader, view
from qd.cli.top.screen import Canvas, Top
from tests.cli.conftest import Run, report
from tests.support import warm
from tests.support.processes import QD
from tests.support.project import Project
from tests.support.redis import Client
from tests.support.servers.redis import Server
from tests.support.waiting import eventually

PAGE = (Path(main.__file__).resolve().parents[3] / "docs" / "reference" / "cli" / "qd-top.md").read_text()
Projects = Callable[..., Project]
Script = Callable[[Pilot[None], Top], Awaitable[None]]
EVIL = "a\x1b[31m\u202e[red]x[/red]"


def watch(size: tuple[int, int], script: Script) -> None:
    """Run `script` while the screen of this size is shown."""

    async def shown() -> None:
        reader = Reader(context.settings())
        try:
            app = Top(reader, reader.call(reader.read).result())
            app.utf8 = True
            async with app.run_test(size=size) as pilot:
                await pilot.pause()
                await script(pilot, app)
            if app.failure is not None:
                raise app.failure
        finally:
            reader.close()

    with click.Context(main.command).scope():
        asyncio.run(shown())


def text(app: Top) -> str:
    return "\n".join("".join(part.text for part in strip).rstrip() for strip in app.screen._compositor.render_strips())


async def until(pilot: Pilot[None], app: Top, *words: str, without: str = "\0") -> str:
    """The screen as soon as it has these words, and not the other one."""
    deadline = time.monotonic() + 20
    while True:
        found = text(app)
        if all(word in found for word in words) and without not in found:
            return found
        assert time.monotonic() < deadline, f"{words} not without {without!r} in:\n{found}"
        await pilot.pause(0.05)


@pytest.fixture
def fleet(redis: Client) -> float:
    """mail is growing, reports is paused; three workers, one of which may hang. Returns the server's time."""
    now = float(redis.text("TIME")[0])
    redis.call("RPUSH", "queues:mail", *[f'{{"job":"x","createdAt":{int(now) - 192}}}'] * 1204)
    redis.call("ZADD", "queues:mail:delayed", *[word for n in range(17) for word in (now + 600, f"later-{n}")])
    redis.call("RPUSH", "queues:reports", *[f'{{"job":"x","createdAt":{int(now) - 60}}}'] * 12)
    line = {"job": "mail.welcome", "error": "ValueError", "reason": "no", "attempts": 1}
    for n in range(6):
        redis.call("HSET", "queues:mail:failed", f"f{n}", json.dumps(line) + "\n{}")
        redis.call("ZADD", "queues:mail:failed_at", now - n, f"f{n}")
    note = {"by": "on-call", "reason": "db upgrade", "at": now - 2400, "until": None}
    redis.call("SET", "queues:reports:paused", json.dumps(note))
    for back in range(6):
        minute, at = int(now // 60) - back, now - 60 * back
        redis.call("HSET", f"qd:{{stats}}:m:{minute}", "redis\x1fmail\x1fmail.welcome", "1 0:180 1:180 20:180 40:180")
        redis.call("HSET", f"qd:{{stats}}:q:{minute}", "redis\x1fmail", f"2 {1222 - 50 * back} 0 0 6 12 {at}")
    busy = {"state": "busy", "job": "mail.welcome", "queue": "mail", "running": 1}
    workers = [
        {"slot": 0, "pid": 414, "done": 4402, "since": now - 12, "timeout": 60, "grown": 5 << 20, **busy},
        {"slot": 1, "pid": 415, "done": 6, "since": now - 532, "timeout": 600, **busy, "job": "reports.pdf"},
        {"slot": 2, "pid": 416, "state": "waiting", "done": 7},
    ]
    report(redis, workers=workers, configured=4, queues=["mail", "reports"])
    return now


@pytest.mark.usefixtures("fleet", "qd")
def test_80x24_has_two_tables_and_no_events() -> None:
    async def script(pilot: Pilot[None], app: Top) -> None:
        shown = await until(pilot, app, "growing 50/min", "‖ on-call")
        lines = shown.splitlines()
        assert len(lines) == 24
        assert re.match(r"qd top  redis  1 master  3/4 workers  \d+\.\dms .*● live  \d\d:\d\d:\d\d$", lines[0])
        assert re.match(r"! (\d problems? )?2 warnings", lines[1])
        assert lines[1].endswith("[h]")
        assert re.match(r"done/min [12]\d\d .*failed/min 0 .*wait p95 \S+ +run p95 \S+", lines[2])
        assert lines[3].startswith("─ QUEUES ──")
        assert lines[4].split() == ["QUEUE", "READY", "DELAYED", "RUN", "FAILED", "OLDEST", "IN/m", "OUT/m", "NOTE"]
        assert lines[5].startswith("▌mail")
        assert {"1,204", "17", "6"} < set(lines[5].split())
        assert lines[10].startswith("─ WORKERS ──")
        assert "PID" not in lines[11]
        assert re.search(r"mail@app-1/1 .*reports.pdf .* 8m 5\ds ━+─* 10m +. !$", lines[13].rstrip())
        assert "EVENTS" not in shown

    watch((80, 24), script)


@pytest.mark.usefixtures("fleet", "qd")
def test_120x40_has_charts_more_columns_and_events(qd: Run) -> None:
    assert qd("pause", "mail", "--reason", "smtp").exit_code == 0

    async def script(pilot: Pilot[None], app: Top) -> None:
        shown = await until(pilot, app, "EVENTS", "pause", "“smtp”")
        assert {"PID", "DONE", "STATE", "EMPTY", "GREW"} <= set(shown.split())
        assert "! may hang" in shown
        assert "+5M" in shown
        assert re.search("[▁▂▃▄▅▆▇]{20}", shown)

    watch((120, 40), script)


@pytest.mark.usefixtures("fleet", "qd")
def test_200x60_shows_the_selected_row_beside_the_tables() -> None:
    async def script(pilot: Pilot[None], app: Top) -> None:
        await until(pilot, app, "JOB, last 5m", "mail.welcome  ", "growth +50/min")
        await pilot.press("tab")
        await until(pilot, app, "worker      mail@app-1/0", "P95 WAIT", "VERSION")

    watch((200, 60), script)


@pytest.mark.usefixtures("fleet", "qd")
def test_a_small_screen_has_only_the_panel_with_the_focus() -> None:
    async def script(pilot: Pilot[None], app: Top) -> None:
        shown = await until(pilot, app, "QUEUES", "● live", without="WORKERS")
        assert len(shown.split("\n")) == 12
        await pilot.press("tab")
        await until(pilot, app, "WORKERS", "▌mail@app-1/0", without="QUEUES")

    watch((50, 12), script)


def test_long_findings_are_wrapped_with_their_fixes() -> None:
    text = "queue 'mail': 5 ready and no worker serves it; start `qd work mail`, or add it to the queues of a pool that runs"
    found: Any = SimpleNamespace(problems=[text], warnings=[text])
    lines = ["".join(part for part, _ in line) for line in view.findings(found, 80)]
    assert max(map(len, lines)) <= 80
    assert " ".join(" ".join(lines).split()) == f"! {text} ▲ {text}"


@pytest.mark.usefixtures("fleet", "qd")
def test_keys_filter_sort_and_open_pages() -> None:
    async def script(pilot: Pilot[None], app: Top) -> None:
        await pilot.press("slash", *"repo", "enter")
        await until(pilot, app, "1 of 3", "/repo", "▌reports", without="1,204")
        await pilot.press("escape")
        await until(pilot, app, "3 of 3")
        await pilot.press("s")
        await until(pilot, app, "sort oldest")
        await pilot.press("enter")
        await until(pilot, app, "Esc back", "paused      by on-call 40m", ': "db upgrade"')
        await pilot.press("escape", "f")
        await until(pilot, app, "FAILED", "6  mail.welcome", "ValueError")
        await pilot.press("escape", "h")
        await until(pilot, app, "HEALTH", "▲ mail is growing by 50/min", "`qd resume reports`")
        await pilot.press("escape", "question_mark")
        await until(pilot, app, "HELP", "asks for a reason")
        await pilot.press("escape")
        await until(pilot, app, "QUEUES", without="HELP")
        await pilot.press("x")
        await until(pilot, app, "choose a worker that runs a job first")
        await pilot.press("q")

    watch((100, 30), script)


@pytest.mark.usefixtures("fleet", "qd")
def test_pause_and_resume_leave_the_note_and_the_events_of_the_commands(
    qd: Run, redis: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QD_ACTOR", "ana")

    async def script(pilot: Pilot[None], app: Top) -> None:
        await until(pilot, app, "▌mail")
        await pilot.press("p", *"smtp", "enter")
        await until(pilot, app, "‖ ana “smtp”")
        await pilot.press("r")
        await until(pilot, app, "mail: resumed", without="‖ ana")

    watch((120, 30), script)
    found = [json.loads(line) for line in qd("events", "--json").stdout.splitlines()]
    kept = [(each["actor"], each["what"], each["object"], each["reason"]) for each in found]
    where = {"queue": "mail", "connection": "redis"}
    assert kept == [("ana", "pause", where, "smtp"), ("ana", "resume", where, "")]


@pytest.mark.usefixtures("fleet", "qd")
def test_the_cursor_stays_on_its_row_when_the_order_changes(redis: Client) -> None:
    async def script(pilot: Pilot[None], app: Top) -> None:
        await pilot.press("down")
        await until(pilot, app, "▌reports")
        redis.call("RPUSH", "queues:reports", *["{}"] * 2000)
        shown = await until(pilot, app, "2,012")
        assert shown.splitlines()[5].startswith("▌reports")

    watch((80, 24), script)


def test_names_and_reasons_cannot_write_to_the_terminal_and_are_no_markup(qd: Run, redis: Client) -> None:
    redis.call("RPUSH", f"queues:{EVIL}", "{}")
    redis.call("SET", f"queues:{EVIL}:paused", json.dumps({"by": EVIL, "reason": EVIL, "at": 1}))
    busy = {
        "slot": 0,
        "pid": 1,
        "state": "busy",
        "job": EVIL,
        "queue": EVIL,
        "since": 1,
        "longest": [{"job": EVIL}] * 2,
    }
    report(redis, workers=[busy], host=EVIL, queues=[EVIL])
    redis.call("HSET", f"queues:{EVIL}:failed", "f", json.dumps({"job": EVIL, "error": EVIL}) + "\n{}")
    redis.call("ZADD", f"queues:{EVIL}:failed_at", 1, "f")
    assert qd("down", "--reason", EVIL).exit_code == 0
    seen = list[str]()

    async def script(pilot: Pilot[None], app: Top) -> None:
        seen.append(await until(pilot, app, "a\\x1b[31m\\u202e[red]x[/red]"))
        for key in ("h", "f", "enter"):
            await pilot.press("escape", key)
            seen.append(await until(pilot, app, "Esc back", "[red]x"))

    watch((200, 60), script)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", "".join(seen))


def test_a_lost_server_is_shown_with_its_age_until_it_answers_again(
    qd: Run, configured: Callable[[str], None], tmp_path: Path
) -> None:
    own = Server().start()
    try:
        configured(f'[connections.own]\nurl = "{own.url}"\n[qd]\ndefault = "own"\ncontrol = "own"\n')

        async def script(pilot: Pilot[None], app: Top) -> None:
            await until(pilot, app, "● live")
            own.kill()
            shown = await until(pilot, app, "s old", "! no answer since")
            assert " QUEUES " in shown
            own.start()
            await until(pilot, app, "● live", without="no answer")

        watch((80, 24), script)
    finally:
        own.stop()


@pytest.mark.usefixtures("fleet", "qd")
def test_without_utf8_only_ascii_is_drawn() -> None:
    async def script(pilot: Pilot[None], app: Top) -> None:
        app.utf8 = False
        app.refresh(recompose=False, layout=True)
        for region in app.query(Canvas):
            region.refresh()
        shown = await until(pilot, app, "#", "^ growing", "= on-call", without="●")
        assert shown.isascii()

    watch((120, 40), script)


@pytest.mark.usefixtures("fleet", "qd")
def test_without_color_the_signs_remain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def script(pilot: Pilot[None], app: Top) -> None:
        await until(pilot, app, "▲ growing", "‖ on-call", "! ", "▌mail")
        for strip in app.screen._compositor.render_strips():
            for each in app.get_line_filters():
                strip = strip.apply_filter(each, Color(0, 0, 0))
            assert not [part for part in strip if part.style and part.style.color and not part.style.color.is_default]

    watch((120, 40), script)


@pytest.mark.usefixtures("fleet", "qd")
def test_only_lines_that_have_changed_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(pilot: Pilot[None], app: Top) -> None:
        region, drawn = app.query_one("#head", Canvas), list[Any]()
        monkeypatch.setattr(region, "refresh", lambda *regions: drawn.extend(regions))
        lines = [[("a", "")], [("b", "")]]
        region.paint(lines)
        drawn.clear()
        region.paint([[("a", "")], [("c", "")]])
        assert [each.y for each in drawn] == [1]

    watch((80, 24), script)


def test_without_a_terminal_it_is_one_error(qd: Run) -> None:
    result = qd("top")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "must be a terminal; elsewhere use `qd status`" in result.stderr
    assert qd("top", "--json").exit_code == 2


def test_an_unreachable_server_is_one_error_before_the_screen(
    qd: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(top, "on_terminal", lambda: True)
    monkeypatch.setenv("QD_REDIS_URL", f"unix://{folder}/nobody.sock")
    (folder / "qd.toml").unlink()
    result = qd("top")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (69, "", 1)


@pytest.mark.usefixtures("fleet", "qd")
def test_connections_stay_open_between_reads(redis: Client) -> None:
    with click.Context(main.command).scope():
        reader = Reader(context.settings())
        counts = set[int]()
        for _ in range(5):
            reader.call(reader.read).result()
            counts.add(len(redis.call("CLIENT", "LIST").splitlines()))
        reader.close()
    assert len(counts) == 1


def test_without_its_library_it_names_it(qd: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "on_terminal", lambda: True)
    monkeypatch.delitem(sys.modules, "qd.cli.top.screen")
    for name in [name for name in sys.modules if name.partition(".")[0] == "textual"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "textual", None)
    result = qd("top")
    assert (result.exit_code, result.stdout) == (78, "")
    assert result.stderr == "qd: the library 'textual' is not installed: pip install 'textual>=8.2'\n"


class Terminal:
    """A program on a terminal of 80x24, as pyte shows it."""

    def __init__(self, *command: str, cwd: Path, env: dict[str, str]) -> None:
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        os.set_blocking(self.ours, False)
        self.screen, self.raw = pyte.Screen(80, 24), b""
        self.stream = pyte.ByteStream(self.screen)
        env = {**env, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "COLUMNS": "", "LINES": ""}
        self.program = warm.Popen(
            command, fresh=True, cwd=cwd, env=env, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)

    def text(self) -> str:
        try:
            while found := os.read(self.ours, 65536):
                self.raw += found
                self.stream.feed(re.sub(rb"\x1b\[[<>=?][\d;$]*[a-zA-Z]*[up]", b"", found))
        except (BlockingIOError, OSError):
            pass
        return "\n".join(self.screen.display)

    def shows(self, *words: str) -> str:
        def found() -> str:
            shown = self.text()
            missing = [word for word in words if word not in shown]
            assert not missing, f"{missing} not in:\n{shown}"
            return shown

        return eventually(found, 40)

    def press(self, keys: str) -> None:
        os.write(self.ours, keys.encode())


def test_a_running_job_is_cancelled_from_a_real_terminal(project: Projects) -> None:
    shop = project(
        """
        @app.job("reports.pdf", timeout=600)
        def pdf() -> None:
            time.sleep(300)
        """
    )
    work = shop.work("-w", "1")
    assert shop.qd("dispatch", "reports.pdf").returncode == 0
    terminal = Terminal(*QD, "top", cwd=shop.root, env=shop.env())
    try:
        terminal.shows("1 master  1/1 workers", "● live", "reports.pdf", "10m")
        terminal.press("\t")
        terminal.shows("▌default@")
        terminal.press("x")
        terminal.shows("cancel reports.pdf")
        terminal.press("y\r")
        eventually(lambda: "reports.pdf" not in terminal.text().partition("WORKERS")[2].partition("/ s")[0])
        terminal.press("q")
        assert terminal.program.wait(20) == 0
        terminal.text()
        assert b"\x1b[?1049l" in terminal.raw  # the terminal is as it was
    finally:
        terminal.program.kill()
        os.close(terminal.ours)
    assert "cancel" in shop.qd("events").stdout
    work.signal(signal.SIGTERM)
    work.ends_clean()


@pytest.mark.usefixtures("fleet", "qd")
def test_the_page_shows_the_screen() -> None:
    """Recorded with other times: the page has each line, apart from numbers."""
    recorded = PAGE.partition("<!-- the screen of")[2].partition("\n\n")[2].partition("| key |")[0]

    async def script(pilot: Pilot[None], app: Top) -> None:
        shown = await until(pilot, app, "growing 50/min", "‖ on-call")
        assert [*map(shape, recorded.splitlines())][:24] == [shape(f"    {line}") for line in shown.split("\n")]

    watch((80, 24), script)


def shape(line: str) -> str:
    """Without what differs between two runs."""
    return " ".join(re.sub(r"[\d.,:▁▂▃▄▅▆▇█]+|[ ─━]+", " ", line).replace(" s ", " ").split())
