"""`qd dev`: `qd work --reload`, with its schedule, and `qd dashboard` as two processes, and the private server of the project.

qd dev -- qd work --reload    in process groups of their own, so that Ctrl-C reaches qd dev only, which ends both.
       -- qd dashboard        The kernel kills them if qd dev dies (fork.die_with)
       -- keeper of the end   stops the embedded server if qd dev has started it: its pipe closes when qd dev dies
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import click

from qd.cli import context, output
from qd.config.settings import CONNECTION, Settings, environ_name
from qd.drivers import embedded
from qd.errors import ConfigError
from qd.process import fork
from qd.process.descriptors import ready_of

LISTEN = "127.0.0.1:8640"  # that of `qd dashboard`
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
WATCHED = (*ENDS, signal.SIGCHLD)
PATIENCE = 10.0  # seconds for the dashboard to start, and for the list of jobs; 5 for the dashboard to end
Program = subprocess.Popen[str]


@click.command("dev", context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, metavar="[QUEUE]...", type=click.UNPROCESSED)
@click.option("--listen", metavar="HOST:PORT", help=f"Serve the dashboard there.  [default: {LISTEN}, or any port]")
@context.options
def command(words: Sequence[str], listen: str | None) -> int:
    """Run worker, scheduler and dashboard in this terminal.

    For development: the worker starts again when a file changes. Without a url, jobs are on the private server of
    `url = "embedded:"`. Ctrl-C stops everything. Other options are those of `qd work`: qd dev -w 1 mail
    """
    found = context.settings()
    if not found.app:
        ways = "run `qd init`, write app = below [qd] in qd.toml, set QD_APP or give --app MODULE:ATTR"
        raise ConfigError(f"no app is named: {ways}{found.unfound}")
    at = found.connections[found.default]
    prefix = ""
    if at.url is None and at.driver == "redis":
        name = environ_name(CONNECTION["url"], found.default)
        os.environ[name], prefix = "embedded:", f"{name}=embedded: "
    server, stop_server = "", None
    if prefix or (at.url or "").startswith("embedded:"):
        stop_server = guarded(found.root) if embedded.status(found.root) is None else None
        embedded.resolve(at.url or "embedded:", found.root)
        server = "embedded, data in .qd/embedded" + (", stopped with qd dev" if stop_server else "")
    programs = dict[str, Program]()
    signal.signal(signal.SIGCHLD, lambda *_: None)  # ignored by default, also by sigwait on macOS
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)  # after the start of the server, which would inherit it
    try:
        shared = words_of(found)
        jobs = start("declared", "--json", *shared, quiet=True)
        link = dashboard(programs, listen, shared)
        names = first_job(jobs)
        lines = {"dashboard": link, "app": f"{found.app} ({found.file or found.origins['qd.app']})", "server": server}
        lines["first job"] = f"{prefix}qd dispatch {names} KEY=VALUE..., in another terminal"
        lines["stop"] = "Ctrl-C"
        for title, text in lines.items():
            if text:
                click.echo(f"{title:<10} {text}")  # output.say would mask the token of the link
        programs["work"] = start("work", "--reload", *words, *shared)
        return watch(programs)
    finally:
        end(programs)
        if stop_server:
            stop_server()


def words_of(found: Settings) -> list[str]:
    """The shared options of this call, for the commands that it starts."""
    given = context.given()
    pairs = {"--app": given.app, "--config": given.config, "-c": given.connection}
    return [word for name, value in pairs.items() if value for word in (name, value)]


def start(*words: str, quiet: bool = False, first_line: bool = False) -> Program:
    """Start `qd WORDS...` in its own process group; it dies with this process. quiet: no stderr."""
    parent = os.getpid()

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
        fork.die_with(parent)

    return subprocess.Popen(
        [sys.executable, "-m", "qd", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if quiet or first_line else None,
        stderr=subprocess.DEVNULL if quiet else None,
        text=True,
        process_group=0,
        preexec_fn=prepare,
    )


def dashboard(programs: dict[str, Program], listen: str | None, shared: Sequence[str]) -> str:
    """Start it, and return its address, or why there is none. Raises ConfigError if the address given is not usable."""
    missing = [name for name in ("starlette", "uvicorn", "jinja2") if find_spec(name) is None]
    if missing:
        return f"not started, {missing[0]} is not installed: pip install 'qd-worker[dashboard]'"
    for place in [listen] if listen else [LISTEN] * is_free(LISTEN) + ["127.0.0.1:0"]:
        programs["dashboard"] = made = start("dashboard", "--listen", place, *shared, first_line=True)
        assert made.stdout is not None
        line = made.stdout.readline() if ready_of([made.stdout.fileno()], PATIENCE) else ""
        if line:
            taken = "" if place in (listen, LISTEN) else f" (port {LISTEN.rpartition(':')[2]} is taken)"
            return line.strip().removeprefix("dashboard: ") + taken
    if listen:
        raise ConfigError(f"the dashboard cannot listen on {listen}: choose another address with --listen")
    return "not started"


def is_free(place: str) -> bool:
    host, _, port = place.rpartition(":")
    try:
        socket.create_server((host, int(port))).close()
    except OSError:
        return False
    return True


def first_job(listing: Program) -> str:
    """The name of a job of the app; NAME if it has none or does not import, which `qd work` reports."""
    try:
        jobs = json.loads(listing.communicate(timeout=PATIENCE)[0])["jobs"]
        return str(jobs[0]["name"])
    except (ValueError, LookupError, subprocess.TimeoutExpired):
        listing.kill()
        return "NAME"


def watch(programs: dict[str, Program]) -> int:
    """Until a signal, or until the worker ends. Returns the exit code."""
    while True:
        if signal.sigwait(WATCHED) != signal.SIGCHLD:
            return 0
        if (code := programs["work"].poll()) is not None:
            output.note(f"qd dev: `qd work` ended with exit code {code}")
            return code if code > 0 else 1
        board = programs.get("dashboard")
        if board is not None and board.poll() is not None:
            output.note(f"qd dev: the dashboard ended with exit code {board.returncode}")
            del programs["dashboard"]


def end(programs: dict[str, Program]) -> None:
    """TERM to all; a further Ctrl-C is passed on to the worker, which then kills its running jobs."""
    for program in programs.values():
        program.terminate()
    work, board = programs.get("work"), programs.get("dashboard")
    while work is not None and work.poll() is None:
        if signal.sigwait(WATCHED) != signal.SIGCHLD:
            work.terminate()
    if board is not None:
        try:
            board.wait(PATIENCE / 2)
        except subprocess.TimeoutExpired:
            board.kill()
            board.wait()


def guarded(root: Path) -> Callable[[], None]:
    """Fork a process that stops the embedded server when it is told to, or when this process has been killed."""
    read_end, write_end = os.pipe()

    def wait_and_stop() -> int:
        os.close(write_end)
        os.read(read_end, 1)
        embedded.stop(root)
        return 0

    pid = fork.fork(wait_and_stop, die_with_parent=False)
    os.close(read_end)

    def stop() -> None:
        os.close(write_end)
        os.waitpid(pid, 0)

    return stop
