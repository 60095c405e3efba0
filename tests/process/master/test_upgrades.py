"""Another qd on disk than the one that runs: reloads are refused and change nothing until `qd restart`."""

from __future__ import annotations

import re
import shutil
import signal
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from qd import __version__
from tests.support.deployment import push
from tests.support.processes import Procs, waiting
from tests.support.project import SOURCE, START, Project
from tests.support.redis import Client
from tests.support.witness import Witness

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.leaves("qd:restart")]


def install(folder: Path, version: str = __version__) -> Path:
    """Put the qd of this checkout below `folder`, in place of what is there, with that version."""
    qd = folder / "qd"
    shutil.rmtree(qd, ignore_errors=True)
    shutil.copytree(SOURCE / "qd", qd, ignore=shutil.ignore_patterns("__pycache__"))
    text = (qd / "__init__.py").read_text()
    (qd / "__init__.py").write_text(text.replace(f'__version__ = "{__version__}"', f'__version__ = "{version}"'))
    return qd


def begun(shop: Project, *command: str | Path, path: str = "") -> Procs:
    """Two workers of `command work`, which are ready."""
    work = Procs([*map(str, command), "work", "-w", "2"], cwd=shop.root, env=shop.env(PYTHONPATH=path))
    shop.started.append(work)
    work.wait_line("master.ready", START)
    waiting(work, 2)
    return work


def reload(shop: Project, work: Procs, how: str) -> int:
    """Ask for new code. Returns the number of the next line of the log."""
    start = len(work.lines)
    if how == "HUP":
        work.signal(signal.SIGHUP)
    else:
        assert shop.qd("restart", "--rolling").returncode == 0
    return start


def runs(redis: Client, witness: Witness, n: int) -> None:
    push(redis, "quick", {"n": n})
    witness.wait(f"quick {n} ")


HOW = pytest.mark.parametrize("how", ["HUP", "rolling"])


@HOW
@pytest.mark.parametrize("version", [__version__, "9.9.9"], ids=["same version", "another version"])
def test_an_upgrade_in_place_is_refused_until_a_restart(
    shop: Project, witness: Witness, redis: Client, tmp_path: Path, how: str, version: str
) -> None:
    """As pip does it in a wheel, and git in a checkout."""
    qd = install(tmp_path / "site")
    work = begun(shop, shop.program[0], "-m", "qd", path=str(qd.parent))
    before = {worker.pid for worker in waiting(work, 2)}
    install(qd.parent, version)
    (qd / "worker" / "boot.py").write_text("raise RuntimeError('code of the new qd')\n")

    start = reload(shop, work, how)
    line = work.wait_line("master.reload_refused.*", start=start)[0]
    digest = r" \([0-9a-f]{8}\)" if version == __version__ else ""
    expected = rf'reason="qd changed from {__version__}{digest} to {version}{digest}" hint="qd restart" path={qd}$'
    assert re.search(expected, line), line
    runs(redis, witness, 1)
    assert {worker.pid for worker in waiting(work, 2)} == before
    waiting(work, 2)[0].kill()
    work.wait_line("worker.died")
    waiting(work, 2)
    runs(redis, witness, 2)
    assert not work.matches("master.reload(ing|ed)|code of the new qd")

    install(qd.parent, version)
    assert shop.qd("restart").returncode == 0
    work.ends_clean()
    work = begun(shop, shop.program[0], "-m", "qd", path=str(qd.parent))
    assert work.matches(f"master.started version={version} ")
    runs(redis, witness, 3)
    work.stop()


@HOW
def test_a_qd_that_is_installed_anew_without_a_change_is_reloaded(
    shop: Project, witness: Witness, redis: Client, tmp_path: Path, how: str
) -> None:
    qd = install(tmp_path / "site")
    work = begun(shop, shop.program[0], "-m", "qd", path=str(qd.parent))
    install(qd.parent)
    work.wait_line("master.reloaded", start=reload(shop, work, how))
    runs(redis, witness, 1)
    work.stop()
    assert not work.matches("reload_refused")


# -- a release folder with its own virtual environment, behind `current`


@pytest.fixture
def release(tmp_path: Path) -> Callable[[str, str], Path]:
    """release("2", version): releases/2/.venv with its own qd, and `current` points to it. Returns `current`."""

    def make(name: str, version: str) -> Path:
        folder = tmp_path / "releases" / name / ".venv"
        venv.create(folder, symlinks=True)
        (site,) = folder.glob("lib/python*/site-packages")
        libraries = {sysconfig.get_path(kind) for kind in ("purelib", "platlib")}
        (site / "libraries.pth").write_text("\n".join(libraries) + "\n")
        install(site, version)
        (folder / "bin" / "qd").write_text("from qd.cli.main import main\n\nmain()\n")
        (tmp_path / "next").symlink_to(f"releases/{name}")
        return (tmp_path / "next").replace(tmp_path / "current")

    return make


@pytest.mark.parametrize("by", ["the first line of its script", "current"])
@pytest.mark.parametrize("deleted", [False, True], ids=["still there", "deleted"])
def test_a_new_release_with_another_qd_is_refused_until_a_restart(
    shop: Project,
    witness: Witness,
    redis: Client,
    tmp_path: Path,
    release: Callable[[str, str], Path],
    by: str,
    deleted: bool,
) -> None:
    """The first line of current/.venv/bin/qd names the interpreter in releases/1, where it was installed."""
    current = release("1", "1.0.0")
    first, second = (tmp_path / "releases" / name / ".venv" for name in "12")
    tied = first if by != "current" else current / ".venv"
    work = begun(shop, tied / "bin" / "python", current / ".venv" / "bin" / "qd")
    assert work.matches("master.started version=1.0.0 ")
    before = {worker.pid for worker in waiting(work, 2)}
    release("2", "2.0.0")
    if deleted:
        shutil.rmtree(first.parent)

    work.signal(signal.SIGHUP)
    line = work.wait_line("master.reload_refused.*")[0]
    (site,) = first.glob("lib/python*/site-packages") if not deleted else second.glob("lib/python*/site-packages")
    place = site.relative_to(second if deleted else first) / "qd"
    assert 'reason="qd changed from 1.0.0 to 2.0.0" hint="qd restart"' in line
    assert f" path={current / '.venv' / place} " in line
    assert f'running="{first / place}, {"deleted" if deleted else "still there"}"' in line
    runs(redis, witness, 1)
    assert {worker.pid for worker in waiting(work, 2)} == before

    assert shop.qd("restart").returncode == 0
    work.ends_clean()
    tied = second if by != "current" else current / ".venv"
    work = begun(shop, tied / "bin" / "python", current / ".venv" / "bin" / "qd")
    assert work.matches("master.started version=2.0.0 ")
    runs(redis, witness, 2)
    work.stop()
