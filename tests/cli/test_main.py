"""The command line as a whole: shared options, one-line errors, exit codes, lazy imports, and broken output streams."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from qd import __version__
from qd.cli import main, output
from qd.config.settings import ConnectionSettings
from qd.drivers.base import ClientIdentity
from qd.drivers.redis.queue import RedisQueue
from qd.errors import ConfigError, ConnectionLost, QdError
from qd.process.fork import flush_output
from tests.cli.conftest import Run, done
from tests.support import warm
from tests.support.network import TIME, FakeServer, always
from tests.support.payloads import push_many
from tests.support.processes import QD, Procs
from tests.support.project import SOURCE, MakeProject, Project
from tests.support.redis import Client
from tests.support.waiting import eventually
from tests.support.witness import JOBS

Projects = Callable[..., Project]
FAMILIES = sorted({row.module for row in main.COMMANDS.values()})


def test_version(qd: Run) -> None:
    assert done(qd("--version")) == f"qd {__version__}\n"


def test_help_names_every_command(qd: Run) -> None:
    output = done(qd("--help"))
    assert [name for name in main.COMMANDS if f"\n  {name} " not in output] == []


def test_an_unknown_command_prints_one_line_with_the_nearest_name(qd: Run) -> None:
    result = qd("wrok")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "qd: unknown command 'wrok' (did you mean 'work'?); see `qd --help`\n"


def test_an_unknown_option_prints_one_line_with_the_nearest_name(qd: Run) -> None:
    result = qd("pause", "--reasn", "x")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith("qd pause: no such option")
    assert "--reason" in result.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [(ConfigError("no"), 78), (ConnectionLost("no"), 69), (QdError("no"), 1), (KeyboardInterrupt(), 130)],
    ids=["configuration", "away", "other", "interrupted"],
)
def test_an_exception_prints_one_line_and_sets_the_exit_code(error: BaseException, code: int) -> None:
    @click.group(cls=main.Family)
    def group() -> None:
        raise error

    result = CliRunner().invoke(group, ["status"], prog_name="qd")
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr == ("\n" if code == 130 else "qd: no\n")


def test_an_error_message_contains_no_escape_sequences(qd: Run, folder: Path) -> None:
    (folder / "qd.toml").write_text('[qd]\n"\\u001b[31m" = 1\n')
    result = qd("status")
    assert result.exit_code == 78
    assert "\x1b" not in result.stderr


@pytest.mark.parametrize("words", [("status", "-c", "nope"), ("-c", "nope", "status")], ids=["after", "before"])
def test_shared_options_are_accepted_before_and_after_the_command(qd: Run, words: tuple[str, ...]) -> None:
    result = qd(*words)
    assert result.exit_code == 78
    assert "unknown connection 'nope'" in result.stderr


def test_every_command_accepts_the_shared_options() -> None:
    shared = {"--app", "--config", "-c", "--connection", "--json"}
    for path, one in leaves():
        flags = {flag for param in one.params for flag in param.opts}
        assert shared <= flags, f"qd {path} lacks {sorted(shared - flags)}"


def test_every_command_and_option_has_a_help_text() -> None:
    for path, one in leaves():
        assert one.help, path
        options = [param for param in one.params if isinstance(param, click.Option) and not param.hidden]
        silent = [option.opts[0] for option in options if not option.help]
        assert not silent, f"qd {path}: no help for {silent}"


def test_no_summary_in_a_list_of_commands_is_cut_off_in_80_columns() -> None:
    for group in ([], *([name] for name, one in named() if isinstance(one, click.Group))):
        output = CliRunner().invoke(main.command, [*group, "--help"], terminal_width=78).stdout
        start = "Commands:\n" if group else "Run:\n"
        commands = output.partition(start)[2].partition("\n\n" if group else "Exit codes")[0]
        assert commands, group
        assert "..." not in commands.replace("QUEUE...", ""), commands


def test_summaries_are_shorter_than_60_characters() -> None:
    assert [name for name, row in main.COMMANDS.items() if len(row.summary) >= 60] == []


def test_the_sections_of_help_name_each_command_once() -> None:
    placed = [name for names in main.HELP.values() for name in names]
    assert sorted(placed) == sorted(set(placed) & main.COMMANDS.keys())


@pytest.mark.parametrize(
    ("words", "code", "command"),
    [(["peek"], 2, "qd peek"), (["wrok"], 2, "qd"), (["peek", "mail", "-c", "nobody"], 78, "qd")],
)
def test_errors_are_one_document_with_json(qd: Run, words: list[str], code: int, command: str) -> None:
    plain, result = qd(*words), qd(*words, "--json")
    assert (result.exit_code, result.stdout) == (plain.exit_code, "")
    found = json.loads(result.stderr)
    assert (found["exit"], found["command"], found["schema"]) == (code, command, 1)
    assert f"{command}: {found['error']}" + (f"; {found['hint']}" if found["hint"] else "") == plain.stderr.strip()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_that_qd_answers(qd: Run, shell: str) -> None:
    assert f"_QD_COMPLETE={shell}_complete" in done(qd("completion", shell))
    env = {**os.environ, "PYTHONPATH": str(SOURCE), "_QD_COMPLETE": "bash_complete"}
    env |= {"COMP_WORDS": "qd st", "COMP_CWORD": "1"}
    found = subprocess.run([sys.executable, "-c", RUN], env=env, capture_output=True, text=True, check=True)
    assert found.stdout == "plain,status\n"


RUN = "import sys; sys.argv = ['qd']; from qd.cli.main import command; command(prog_name='qd')"


def named() -> list[tuple[str, click.Command]]:
    context = click.Context(main.command, info_name="qd")
    found = [(name, main.command.get_command(context, name)) for name in main.COMMANDS]
    return [(name, one) for name, one in found if one is not None]


def leaves() -> list[tuple[str, click.Command]]:
    """Every command that is not a group, with its full name."""
    found, context = [], click.Context(main.command, info_name="qd")
    todo = [(name, main.command.get_command(context, name)) for name in main.COMMANDS]
    for path, one in todo:
        assert one is not None
        if isinstance(one, click.Group):
            todo += [(f"{path} {name}", sub) for name, sub in one.commands.items()]
        else:
            found.append((path, one))
    return found


@pytest.mark.parametrize("name", ["status", "pause"])
def test_a_command_imports_only_its_module(name: str) -> None:
    module = main.COMMANDS[name].module
    strange = [f"qd.cli.{family}" for family in FAMILIES if family not in (module, "main")] + [
        "rich",
        "qd.worker",
        "qd.master",
    ]
    code = f"import sys, qd.cli.main as m; m.Family.get_command(m.command, None, {name!r})\n"
    code += f"print(*[name for name in {strange!r} if name in sys.modules])"
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    found = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


def test_every_command_of_the_table_exists_in_its_module() -> None:
    for name, row in main.COMMANDS.items():
        found = getattr(main.imported(row.module), row.attribute)
        assert isinstance(found, click.Command), name
        assert found.name == name
        assert row.summary == found.get_short_help_str(1000)


def test_help_imports_no_command_configuration_driver_or_library() -> None:
    strange = (
        "qd.config",
        "qd.drivers",
        "qd.store",
        "qd.app",
        "qd.master",
        "msgspec",
        "hiredis",
        "redis",
        "rich",
        "ssl",
    )
    code = "import sys, qd.cli.main as m\ntry:\n    m.command(['--help'])\n"
    code += f"finally:\n    print('loaded', *[name for name in {strange!r} if name in sys.modules])\n"
    code += "    print('commands', *[name for name in m.COMMANDS if f'qd.cli.{name}' in sys.modules])"
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    found = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert "Take jobs from these queues again." in found.stdout
    assert found.stdout.splitlines()[-2:] == ["loaded", "commands"]


# -- the real program


def test_exit_codes_of_the_real_program(project: Projects) -> None:
    shop = project()
    assert shop.qd("status").returncode == 0
    assert shop.qd("wrok").returncode == 2
    assert shop.qd("status", "--config", "nowhere.toml").returncode == 78
    away = shop.qd("status", QD_REDIS_URL=f"unix://{shop.root}/nobody.sock")
    assert (away.returncode, away.stdout, away.stderr.count("\n")) == (69, "", 1)


def test_ctrl_c_ends_a_command_with_130(project: Projects) -> None:
    shop = project("@app.job('hang')\ndef hang() -> None:\n    print('here', flush=True)\n    time.sleep(60)\n")
    running = Procs([*QD, "run", "hang"], cwd=shop.root, env=shop.env())
    try:
        eventually(lambda: "here" in running.output, 20)
        running.signal(signal.SIGINT)
        assert running.wait() == 130
        assert running.lines in ([], [""])
    finally:
        running.sweep()


def test_a_closed_pipe_prints_no_traceback(project: Projects) -> None:
    shop = project()
    head = subprocess.run(
        f"{sys.executable} -m qd status --json | true", shell=True, cwd=shop.root, env=shop.env(),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "Traceback" not in head.stderr


# -- output


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"), (0, "0s"), (0.412, "0.4s"), (9.96, "10.0s"), (12, "12s"), (60, "1m"), (192, "3m 12s"),
        (3600, "1h"), (3605, "1h"), (7260, "2h 1m"), (266400, "3d 2h"), (-3, "0s"),
    ],
)  # fmt: skip
def test_durations(seconds: float | None, text: str) -> None:
    assert output.duration(seconds) == text


def test_control_characters_are_escaped() -> None:
    assert output.clean("a\x1b[31mb\nc\u202ed\udcff é 漢") == "a\\x1b[31mb\\nc\\u202ed\\udcff é 漢"


def test_a_table_is_aligned_by_display_width(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(("name", "n"), [("漢字", 1), ("ab\n", 100)], right=("n",))
    assert capsys.readouterr().out == "name    n\n漢字    1\nab\\n  100\n"


# --- servers that are not Redis


NONSENSE = {"nil": b"$-1\r\n", "empty": b"*0\r\n", "ok": b"+OK\r\n", "zero": b":0\r\n"}
COMMANDS = (
    ["health"],
    ["status"],
    ["dispatch", "quick"],
    ["restart"],
    ["pause", "default"],
    ["down"],
)


@pytest.mark.parametrize("reply", NONSENSE)
def test_a_server_that_is_not_redis_is_reported_in_one_line(project: MakeProject, reply: str) -> None:
    with FakeServer(always(NONSENSE[reply])) as liar:
        shop = project(jobs=JOBS, url=liar.url)
        for command in COMMANDS:
            done = shop.qd(*command)
            output = done.stdout + done.stderr
            assert (done.returncode, "does not reply as Redis does" in output) == (69, True), f"{command}: {output}"
            assert "Traceback" not in output
            assert len(done.stderr.splitlines()) <= 1, done.stderr
        done = shop.qd("doctor", "--json")
        assert (done.returncode, "Traceback" in done.stderr) == (69, False), done.stderr
        assert "does not reply as Redis does" in json.dumps(json.loads(done.stdout))


def test_a_push_without_a_numeric_reply_raises() -> None:
    def greets(client: socket.socket) -> None:
        """Reply to TIME as Redis does, and with +OK to everything else."""
        while data := client.recv(1 << 16):
            client.sendall(TIME if b"TIME" in data else b"+OK\r\n")

    with FakeServer(greets) as liar:
        queue = RedisQueue(ConnectionSettings(name="redis", url=liar.url), ClientIdentity("Tok3nTok3n", 1))
        for send in (
            lambda: queue.push("a", b"{}"),
            lambda: queue.later("a", b"{}", 1.0),
            lambda: push_many(queue, [("a", b"{}", None), ("a", b"{}", None)]),
            lambda: push_many(queue, [("a", b"{}", 1.0)]),
        ):
            with pytest.raises(ConnectionLost, match="does not reply as Redis does"):
                send()


# --- closed and full streams


JOBS_STREAM = """
@app.job("mail.welcome")
def welcome(to: str) -> str:
    print("to", to, flush=True)
    return to

app.schedule(welcome.bind("a@b.c"), name="daily").daily()
"""
# Commands with arguments that give the same exit code each time.
WORDS = {
    "dev": "--config no.toml",  # refused: else it would run
    "dashboard": "--listen 0.0.0.0:1",  # refused: else it would serve
    "work": "-w 1 --stop-when-empty",
    "dispatch": "mail.welcome to=a@b.c",
    "run": "mail.welcome to=a@b.c",
    "job": "nowhere",
    "peek": "mail",
    "wait": "mail --empty --timeout 9s",
    "clear": "old --yes",
    "cancel": "nowhere",
    "pause": "mail",
    "resume": "mail",
    "init": "supervisord",
    "failed retry": "--all --dry-run",
    "failed forget": "--all --dry-run",
    "failed show": "nowhere",
    "schedule work": "--pool nowhere",
    "schedule test": "daily",
    **{f"batch {name}": "nowhere" for name in ("show", "cancel", "retry")},
    "locks release": "nowhere --yes",
}
# Runs every command in a fork: importing qd for each of them would take a second.
DRIVER = """
import gc, json, os, sys, traceback
import qd.app, qd.dispatch.dispatcher, qd.drivers.redis.queue, qd.daemon
from qd.cli import main

modes = {"plain": os.devnull, "full": "/dev/full", "closed": None}

def run(words, path, stderr):
    sys.argv = ["qd", *words]
    os.dup2(stderr, 2)
    if path is None:
        os.close(1)
        sys.stdout = None
    else:
        os.dup2(os.open(path, os.O_WRONLY), 1)
    main.main()

def ended(words, path):
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            run(words, path, writer)
        except SystemExit as leaving:
            code = leaving.code or 0
        except BaseException:
            traceback.print_exc()
        try:
            if sys.stdout:
                sys.stdout.flush()
        except OSError as error:
            code = 120  # as Python itself
        os._exit(code)
    os.close(writer)
    text = b"".join(iter(lambda: os.read(reader, 4096), b""))
    os.close(reader)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text.decode()

for name in main.COMMANDS:
    main.Family.get_command(main.command, None, name)
gc.collect()
gc.freeze()  # else a collection in a fork would copy every page
for line in sys.stdin:
    words = json.loads(line)
    print(json.dumps({mode: ended(words, path) for mode, path in modes.items()}), flush=True)
"""
LOST = "qd: stdout: No space left on device; the rest of the output is lost"


def test_every_command_keeps_its_exit_code_if_stdout_is_closed_or_full(project: Projects, redis: Client) -> None:
    shop = project(JOBS_STREAM)
    commands = [[*name.split(), *WORDS.get(name, "").split()] for name, _ in leaves()] + [["--version"], ["--help"]]
    done = warm.run(
        [sys.executable, "-c", DRIVER], cwd=shop.root, env=shop.env(), input="\n".join(map(json.dumps, commands)),
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    ends = dict(zip(map(" ".join, commands), map(json.loads, done.stdout.splitlines()), strict=True))
    for name, end in ends.items():
        assert {code for code, _ in end.values()} == {end["plain"][0]}, (name, end)
        assert "Traceback" not in "".join(text for _, text in end.values()), (name, end)
    printed = [name for name, end in ends.items() if LOST in end["full"][1]]
    assert len(printed) > 25, printed
    assert not [name for name, end in ends.items() if end["full"][1].count(LOST) > 1 or LOST in end["closed"][1]]


@pytest.mark.parametrize("where", [">&-", "> /dev/full", ">&- 2>&-", "> /dev/full 2> /dev/full", "<&- >&- 2>&-"])
def test_dispatch_sends_its_job_once_and_exits_with_0(where: str, project: Projects, redis: Client) -> None:
    shop = project(JOBS_STREAM)
    command = f"exec {' '.join(QD)} dispatch mail.welcome to=a@b.c {where}"
    done = subprocess.run(["sh", "-c", command], cwd=shop.root, env=shop.env(), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == (f"{LOST}\n" if where == "> /dev/full" else "")
    assert redis.call("LLEN", "queues:default") == 1


def test_a_job_that_prints_to_a_full_stdout_fails(project: Projects, redis: Client) -> None:
    """Only the output of the command itself is dropped: print() in a job raises."""
    shop = project(JOBS_STREAM)
    assert shop.qd("dispatch", "mail.welcome", "to=a@b.c").returncode == 0
    command = f"exec {' '.join(QD)} work -w 1 --stop-when-empty > /dev/full"
    done = subprocess.run(["sh", "-c", command], cwd=shop.root, env=shop.env(), capture_output=True, text=True)
    assert done.returncode == 0
    assert "job.failed" in done.stderr
    assert redis.call("HLEN", "queues:default:failed") == 1


def test_output_is_flushed_even_without_a_usable_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    """`manage.py qd ... >&-`: Python started without stdout, or with one that cannot be written to."""
    full = open("/dev/full", "w")  # noqa: SIM115  # its close() would fail too
    full.write("x")
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", full)
    flush_output()
    monkeypatch.undo()
    with contextlib.suppress(OSError):
        full.close()


# -- a deleted folder

DELETED = "qd: the current folder has been deleted; cd into one that exists\n"


@pytest.mark.parametrize("words", ["status", "work", "config show", "doctor", "init", "dispatch mail.welcome"])
def test_a_deleted_current_folder_prints_one_line_and_exits_with_78(
    words: str, project: Projects, tmp_path: Path
) -> None:
    shop, folder = project(), tmp_path / "release-7"
    folder.mkdir()
    env = shop.env(QD_REDIS_URL=shop.url)
    gone = ["sh", "-c", f"rmdir {folder} && exec {' '.join(QD)} {words}"]
    done = subprocess.run(gone, cwd=folder, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout, done.stderr) == (78, "", DELETED)


def test_live_works_in_a_deleted_folder(project: Projects, tmp_path: Path) -> None:
    """A release folder may be deleted while the container's probe still runs in it."""
    shop, folder = project(), tmp_path / "release-7"
    folder.mkdir()
    gone = ["sh", "-c", f"rmdir {folder} && exec {' '.join(QD)} health --live"]
    done = subprocess.run(gone, cwd=folder, env=shop.env(), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")
    assert "no master runs here" in done.stdout
