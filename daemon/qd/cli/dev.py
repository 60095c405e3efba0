"""`qd dev`: `qd work --reload` and `qd dashboard` as two processes, and the private server of the project.

Both are in process groups of their own: Ctrl-C reaches qd dev only, which ends them. The kernel kills them if qd dev dies
(fork.die_with). GUARD then stops the embedded server if qd dev has started it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec

import click

from qd.cli import context, output, work
from qd.config.settings import CONNECTION, environ_name
from qd.drivers import embedded
from qd.errors import ConfigError, QdError
from qd.options.extras import to_install
from qd.process import fork
from qd.process.descriptors import ready_of
from qd.store import controls, fleet

HOST, PORT = "127.0.0.1", 8640  # those of `qd dashboard`
GUARD = 'cat; exec "$@" >/dev/null'  # its stdin ends with qd dev
WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
START = 30.0  # seconds for the dashboard
QD = (sys.executable, "-m", "qd")
Programs = dict[str, "subprocess.Popen[str]"]


@click.command("dev", context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, metavar="[QUEUE]...", type=click.UNPROCESSED)
@context.options
def command(words: Sequence[str]) -> int:
    """Run worker, scheduler and dashboard in this terminal.

    For development: the worker starts again when a file changes. Without a url, jobs are on the private server of
    `url = "embedded:"`. Ctrl-C stops everything. Other options are those of `qd work`: qd dev -w 1 mail
    """
    work.command.make_context("work", [*words], parent=click.get_current_context().parent)  # raises its UsageError
    given, found = context.given(), context.settings()
    if not found.app:
        ways = "run `qd init`, write app = below [qd] in qd.toml, set QD_APP or give --app MODULE:ATTR"
        raise ConfigError(f"no app is named: {ways}{found.unfound}")
    pairs = {"--app": given.app, "--config": given.config, "-c": given.connection}
    shared = [word for name, value in pairs.items() if value for word in (name, value)]
    at, prefix, guard = found.connections[found.default], "", None
    if at.url is None and at.driver == "redis":
        name = environ_name(CONNECTION["url"], found.default)
        os.environ[name], prefix = "embedded:", f"{name}=embedded: "
    if prefix or (at.url or "").startswith("embedded:"):
        if embedded.status(found.root) is None:
            line = ["/bin/sh", "-c", GUARD, "sh", *QD, "embedded", "stop", *shared]
            guard = subprocess.Popen(line, stdin=subprocess.PIPE, start_new_session=True)
        embedded.resolve(at.url or "embedded:", found.root)
    programs: Programs = {}
    signal.signal(signal.SIGCHLD, lambda *_: None)  # sigwait of macOS does not see ignored signals
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)  # after the start of the server, which would inherit it
    try:
        click.echo(f"dashboard  {dashboard(programs, shared)}")  # output.say would mask the token of the link
        output.say(f"app        {found.app} ({found.file or found.origins['qd.app']})")
        qd = prefix + os.environ.get("_QD_COMMAND", "qd")
        output.say(f"first job  {qd} dispatch JOB KEY=VALUE... in another terminal; `{qd} declared` lists the jobs")
        output.say(f"stop       Ctrl-C{', also the embedded server' if guard else ''}")
        return watch(programs, ("work", "--reload", *words, *shared))
    finally:
        end(programs)
        if guard:
            guard.communicate()


def start(*words: str, stdout: int | None = None, fds: Sequence[int] = ()) -> subprocess.Popen[str]:
    """Start `qd WORDS...`."""
    parent = os.getpid()

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
        fork.die_with(parent)

    return subprocess.Popen(
        [*QD, *words],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        text=True,
        process_group=0,
        pass_fds=fds,
        preexec_fn=prepare,
    )


def dashboard(programs: Programs, shared: Sequence[str]) -> str:
    """Start it. Returns its address, or why there is none."""
    if missing := [name for name in ("starlette", "uvicorn", "jinja2") if find_spec(name) is None]:
        return f"not started, {missing[0]} is not installed: {to_install('dashboard')}"
    listener, note = bound()
    with listener:
        words = ("dashboard", "--listen-fd", str(fd := listener.fileno()), *shared)
        programs["dashboard"] = made = start(*words, stdout=subprocess.PIPE, fds=[fd])
    assert made.stdout is not None
    if ready_of([made.stdout.fileno()], START) and (line := made.stdout.readline()):
        return line.strip().removeprefix("dashboard: ") + note
    return "not started"


def bound() -> tuple[socket.socket, str]:
    """Listen here, not in the dashboard: no other program can take the port in between. Returns a remark, too."""
    try:
        return socket.create_server((HOST, PORT)), ""
    except OSError:
        return socket.create_server((HOST, 0)), f" (port {PORT} is taken)"


def watch(programs: Programs, words: Sequence[str]) -> int:
    """Until a signal, or until the worker ends, other than for `qd restart`. Returns the exit code."""
    begun, programs["work"] = time.time(), start(*words)
    while signal.sigwait(WATCHED) == signal.SIGCHLD:
        for name in [name for name, program in programs.items() if program.poll() is not None]:
            code = programs.pop(name).returncode
            if name == "work" and code == 0 and restart_since(begun):
                output.note("qd dev: `qd work` ended for `qd restart`; starting it again")
                begun, programs[name] = time.time(), start(*words)
                continue
            output.note(f"qd dev: `qd {name}` ended with exit code {code}")
            if name == "work":
                return code if code >= 0 else 1
    return 0


def restart_since(begun: float) -> bool:
    """Whether a restart was requested after `begun`, of all masters or of some."""
    try:
        found = context.settings()
        store = context.store(found, found.control)
        stamps = [controls.last_restart(store), *fleet.read(store).restarts.values()]
    except QdError:
        return False
    return any(stamp is not None and stamp.at > begun for stamp in stamps)


def end(programs: Programs) -> None:
    """End both. The worker finishes its running jobs; a further Ctrl-C is passed on to it, and it then kills them."""
    for name, program in programs.items():
        program.kill() if name == "dashboard" else program.terminate()
    while any(program.poll() is None for program in programs.values()):
        if signal.sigwait(WATCHED) != signal.SIGCHLD:
            for program in programs.values():
                program.terminate()
