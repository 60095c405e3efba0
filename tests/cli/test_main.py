"""The command line as a whole: shared options, one-line errors, exit codes and lazy imports."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from qd import __version__
from qd.cli import main, output
from qd.errors import ConfigError, ConnectionLost, QdError
from tests.cli.conftest import Run, done
from tests.support.processes import QD, Procs
from tests.support.project import SOURCE, Project
from tests.support.waiting import eventually

Projects = Callable[..., Project]
FAMILIES = sorted({row.module for row in main.COMMANDS.values()})


def test_version(qd: Run) -> None:
    assert done(qd("--version")) == f"qd {__version__}\n"


def test_help_names_every_command(qd: Run) -> None:
    said = done(qd("--help"))
    assert [name for name in main.COMMANDS if f"\n  {name} " not in said] == []


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
        silent = [param.opts[0] for param in one.params if isinstance(param, click.Option) and not param.help]
        assert not silent, f"qd {path}: no help for {silent}"


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
    strange = [f"qd.cli.{family}" for family in FAMILIES if family != module] + ["rich", "qd.worker", "qd.master"]
    code = f"import sys, qd.cli.main as m; m.Family.get_command(m.command, None, {name!r})\n"
    code += f"print(*[name for name in {strange!r} if name in sys.modules])"
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    found = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


def test_every_command_of_the_table_exists_in_its_module() -> None:
    for name, row in main.COMMANDS.items():
        found = getattr(importlib.import_module(f"qd.cli.{row.module}"), row.attribute)
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
