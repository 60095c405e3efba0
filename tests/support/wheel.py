"""qd as a user has it: wheel and sdist, built from the files of this checkout, and an environment with nothing but the wheel
and what it requires."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement

from tests.support.pages import ROOT

OF_THE_CHECKOUT = ("PYTHON", "QD_", "REDIS_URL", "VIRTUAL_ENV", "COLUMNS")  # variables with these beginnings


class Built(NamedTuple):
    source: Path  # the files of which both were built: those that git would commit
    wheel: Path
    sdist: Path


def run(*words: object, cwd: Path, seconds: float = 120, env: Mapping[str, str] = {}) -> str:
    """Run a program without the variables of the checkout. Returns its stdout; it must succeed."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(OF_THE_CHECKOUT)}
    done = subprocess.run(
        [*map(str, words)], cwd=cwd, env={**kept, "NO_COLOR": "1", **env}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{words}: exit {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def build(folder: Path) -> Built:
    """Wheel and sdist, the wheel from the sdist. Built from a copy, so that the checkout stays as it is."""
    source = folder / "source"
    for name in run("git", "ls-files", "-co", "--exclude-standard", cwd=ROOT).splitlines():
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, source / name)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", source, cwd=folder)
    (wheel,), (sdist,) = (folder / "dist").glob("*.whl"), (folder / "dist").glob("*.tar.gz")
    return Built(source, wheel, sdist)


def installed(wheel: Path, folder: Path) -> Path:
    """The bin/ of a new environment with the wheel. The packages that qd-worker requires without an extra are links to
    those of this environment, so that no network is needed; nothing else of it can be imported."""
    venv.create(folder, symlinks=True)
    python = folder / "bin/python"
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "-q")
    run(*pip, "install", "--no-deps", "--no-index", "--no-compile", wheel, cwd=folder)
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    for own in {own.name: own for own in required(distribution("qd-worker"))}.values():
        for top in {file.parts[0] for file in own.files or ()} - {"..", "__pycache__"}:
            (site / top).symlink_to(Path(str(own.locate_file(top))))
    return folder / "bin"


def required(of: Distribution) -> Iterator[Distribution]:
    """The distributions that this one requires without an extra, and what those require."""
    for line in of.requires or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            found = distribution(requirement.name)
            yield found
            yield from required(found)
