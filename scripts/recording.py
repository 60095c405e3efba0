"""Records a real run of qd as an animated SVG, docs/images/demo.svg: a worker is killed in the middle of a job.

    python scripts/recording.py [FILE]

Both terminals run real programs: `qd work` above, commands of a shell below. Only the typing is acted. pyte turns what they
print into screens, and the SVG shows each line of a screen from the moment it appeared until it changed.
Where animation is off (prefers-reduced-motion), the last screen is shown. The job waits before its last page for a file that
is written after the kill: on a slow machine it would be done before.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pyte

ROOT = Path(__file__).resolve().parents[1]
WIDTH, UPPER, LOWER = 112, 15, 18  # characters; lines of each terminal
CHARACTER, LINE, MARGIN, BAR = 7.25, 17, 14, 26  # pixels
TYPING, PAUSE, END = 0.035, 0.9, 6.0  # seconds: a key, between commands, the last screen
IDLE = 1.2  # seconds: the longest time in which nothing changes; longer ones are cut
LIMIT = 30.0  # seconds for each thing that the recording waits for
JOBS = """
from pathlib import Path
from time import sleep

from qd import Qd

app = Qd()


@app.job("report.build", result_ttl=600)
def build(month: int) -> str:
    for page in range(1, 4):
        sleep(1)
        while page == 3 and not Path("data").exists():
            sleep(0.1)
        print(f"page {page} of 3", flush=True)
    return f"report-{month}.pdf"
"""
# qd advises root to set a user; a reader of the picture is no root.
AS_A_USER = ["unshare", "--user", "--map-user=1000", "--map-group=1000"] if os.getuid() == 0 else []
MARKED = {"worker.died": "#e5534b", "job.requeued": "#c69026", "job.done": "#4ac26b"}  # lines with a bar in the margin
COLORS = {
    "black": "#57606a",
    "red": "#e5534b",
    "green": "#4ac26b",
    "brown": "#c69026",
    "blue": "#539bf5",
    "magenta": "#b083f0",
}
Run = tuple[str, str, bool]  # text, color, bold
Line = tuple[Run, ...]


class Shown(NamedTuple):
    """A line of a screen, from `since` until `until` (seconds; None: to the end)."""

    terminal: int
    row: int
    line: Line
    since: float
    until: float | None


class Terminal:
    """A screen, and what it showed when."""

    def __init__(self, number: int, rows: int, clock: Callable[[], float]) -> None:
        self.number, self.clock = number, clock
        self.screen = pyte.Screen(WIDTH, rows)
        self.stream = pyte.ByteStream(self.screen)
        self.text = ""
        self.lines: dict[int, tuple[Line, float]] = {}
        self.shown: list[Shown] = []

    def write(self, data: bytes) -> None:
        self.text += data.decode(errors="replace")
        self.stream.feed(data)
        now = self.clock()
        for row in range(self.screen.lines):
            line, (before, since) = runs_of(self.screen, row), self.lines.get(row, ((), now))
            if line != before:
                self._end(row, before, since, now)
                self.lines[row] = line, now

    def _end(self, row: int, line: Line, since: float, until: float | None) -> None:
        if line and since != until:
            self.shown.append(Shown(self.number, row, line, since, until))

    def close(self) -> list[Shown]:
        for row, (line, since) in self.lines.items():
            self._end(row, line, since, None)
        return self.shown


def runs_of(screen: pyte.Screen, row: int) -> Line:
    """The line as runs of characters of one style, without trailing spaces."""
    runs: list[Run] = []
    length = len(screen.display[row].rstrip())
    for column in range(length):
        cell = screen.buffer[row][column]
        if runs and runs[-1][1:] == (cell.fg, cell.bold):
            runs[-1] = (runs[-1][0] + cell.data, cell.fg, cell.bold)
        else:
            runs.append((cell.data, cell.fg, cell.bold))
    return tuple(runs)


class Recording:
    """A folder with a project, a terminal that runs `qd work`, and one for commands."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.start = folder, time.monotonic()
        self.upper, self.lower = Terminal(0, UPPER, self.now), Terminal(1, LOWER, self.now)
        self.work: tuple[subprocess.Popen[bytes], int] | None = None

    def now(self) -> float:
        return round(time.monotonic() - self.start, 2)

    def begin(self, *words: str) -> tuple[subprocess.Popen[bytes], int]:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", UPPER, WIDTH, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color", "HOME": str(self.folder), "COLUMNS": str(WIDTH)}
        environment["PATH"] = f"{Path(sys.executable).parent}:{environment.get('PATH', '')}"
        process = subprocess.Popen(
            [*AS_A_USER, *words], cwd=self.folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        return process, ours

    def pump(self, seconds: float, lower: int | None = None) -> bool:
        """Show what the terminals print for so long. False: the program of the lower one has closed it."""
        assert self.work
        terminals = {self.work[1]: self.upper} | ({} if lower is None else {lower: self.lower})
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            for one in select.select(list(terminals), [], [], left)[0]:
                try:
                    terminals[one].write(os.read(one, 65536))
                except OSError:  # EIO: the last process has closed it
                    if one == lower:
                        return False
                    del terminals[one]
        return True

    def wait(self, pattern: str) -> re.Match[str]:
        end = time.monotonic() + LIMIT
        while not (found := re.search(pattern, self.upper.text)):
            if time.monotonic() > end:
                raise TimeoutError(f"{pattern!r} was not printed:\n{self.upper.text}")
            self.pump(0.05)
        return found

    def type(self, command: str) -> str:
        """Type and run a command in the lower terminal. Returns what it printed."""
        before = len(self.lower.text)
        self.lower.write(b"\x1b[32m$\x1b[0m ")
        for key in command:
            self.lower.write(key.encode())
            self.pump(TYPING)
        self.lower.write(b"\r\n")
        process, ours = self.begin("sh", "-c", command)
        while self.pump(1, ours):
            pass
        os.close(ours)
        if process.wait() != 0:
            raise ChildProcessError(f"{command} ended with {process.returncode}:\n{self.lower.text[before:]}")
        return self.lower.text[before:]


def record() -> tuple[list[Shown], str]:
    """Returns the lines and the log of `qd work`."""
    with tempfile.TemporaryDirectory(prefix="qd-demo-") as name:
        folder = Path(name)
        (folder / "jobs.py").write_text(JOBS)
        (folder / "qd.toml").write_text('[qd]\napp = "jobs:app"\n\n[connections.redis]\nurl = "embedded:"\n')
        one = Recording(folder)
        one.upper.write(b"\x1b[32m$\x1b[0m qd work --workers 2\r\n")
        process, ours = one.work = one.begin("qd", "work", "--workers", "2")
        try:
            one.wait("master.ready")
            one.pump(PAUSE)
            sent = one.type("qd dispatch report.build month=11")
            one.wait("page 1 of 3")
            status = one.type("qd status")
            pid = re.search(r"(\d+) +busy", status)
            if pid is None:
                raise RuntimeError(f"no busy worker:\n{status}")
            one.type(f"kill -9 {pid[1]}")
            one.wait("job.requeued")
            (folder / "data").touch()
            one.wait("job.done")
            one.pump(PAUSE)
            identifier = sent.split(" to default")[0].split()[-1]
            one.type(f"qd job {identifier}")
            one.pump(PAUSE)
            shown = [*one.upper.close(), *one.lower.close()]
            log = one.upper.text
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.wait()
            os.close(ours)
            stop = one.begin("qd", "embedded", "stop")
            stop[0].wait()
            os.close(stop[1])
        return shown, log


def without_idle(shown: Sequence[Shown]) -> tuple[list[Shown], float]:
    """The same with pauses of IDLE at most."""
    times = sorted({0.0, *(one.since for one in shown), *(one.until for one in shown if one.until is not None)})
    at = {0.0: 0.0}
    for before, after in pairwise(times):
        at[after] = at[before] + min(after - before, IDLE)
    moved = [one._replace(since=at[one.since], until=None if one.until is None else at[one.until]) for one in shown]
    return moved, at[times[-1]] + END


def milliseconds(log: str) -> int:
    """From the line about the dead worker to that about its job, by their times."""

    def at(event: str) -> float:
        line = re.search(rf"(\d+):(\d+):([\d.]+)\S* .*{event}", log)
        assert line, log
        return int(line[1]) * 3600 + int(line[2]) * 60 + float(line[3])

    return round((at("job.requeued") - at("worker.died")) * 1000)


def svg(shown: list[Shown], length: float, caption: str) -> str:
    width = round(WIDTH * CHARACTER + 2 * MARGIN)
    tops = (BAR, BAR + UPPER * LINE + MARGIN + BAR)
    height = tops[1] + LOWER * LINE + MARGIN + LINE + MARGIN
    rules, texts = [], []
    for number, one in enumerate(sorted(shown, key=lambda each: (each.since, each.terminal, each.row))):
        begin, end = one.since / length * 100, 100 if one.until is None else one.until / length * 100
        rules.append(
            f"@keyframes k{number}{{0%,{begin:.2f}%{{visibility:hidden}}{begin + 0.01:.2f}%,{end:.2f}%"
            f"{{visibility:visible}}{'' if one.until is None else f'{end + 0.01:.2f}%,100%{{visibility:hidden}}'}}}"
            f"#l{number}{{animation:k{number} {length:.1f}s step-end infinite}}"
        )
        parts = "".join(span(run) for run in one.line)
        y = tops[one.terminal] + (one.row + 1) * LINE
        hidden = "" if one.until is None else ' class="gone"'
        text = "".join(run[0] for run in one.line)
        color = next((MARKED[event] for event in MARKED if event in text), None)
        bar = f'<rect x="5" y="{y - 11}" width="3" height="{LINE - 4}" fill="{color}"/>' if color else ""
        texts.append(f'<g id="l{number}"{hidden}>{bar}<text x="{MARGIN}" y="{y}">{parts}</text></g>')
    bars = "".join(
        f'<rect x="0" y="{top - BAR}" width="{width}" height="{BAR - 6}" fill="#2d333b"/>'
        f'<text x="{MARGIN}" y="{top - BAR + 15}" fill="#909dab">{title}</text>'
        for top, title in zip(tops, ("terminal 1", "terminal 2"), strict=True)
    )
    style = (
        "text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#adbac7;"
        "white-space:pre}.b{font-weight:bold}.gone{visibility:hidden}"
        ".caption{font:13px system-ui,sans-serif;fill:#4ac26b}"
        f"@media(prefers-reduced-motion:no-preference){{{''.join(rules)}}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img">'
        f"<title>A worker is killed with kill -9 in the middle of a job; the job is done by another one.</title>"
        f'<style>{style}</style><rect width="{width}" height="{height}" rx="8" fill="#1c2128"/>{bars}{"".join(texts)}'
        f'<text class="caption" x="{MARGIN}" y="{height - MARGIN}">{escape(caption)}</text></svg>\n'
    )


def span(run: Run) -> str:
    text, color, bold = run
    known = COLORS.get(color) or (f"#{color}" if re.fullmatch("[0-9a-f]{6}", color) else "")
    marks = (f' style="fill:{known}"' if known else "") + (' class="b"' if bold else "")
    return f"<tspan{marks}>{escape(text)}</tspan>" if marks else escape(text)


def main(file: str = str(ROOT / "docs" / "images" / "demo.svg")) -> None:
    shown, log = record()
    shown, length = without_idle(shown)
    took = f"{milliseconds(log)} ms after the master noticed the death of its worker"
    caption = f"A real run: {took}, the job was back in its queue. No attempt was spent."
    Path(file).write_text(svg(shown, length, caption))
    print(f"{file}: {length:.0f} s, {len(shown)} lines")


if __name__ == "__main__":
    main(*sys.argv[1:])
