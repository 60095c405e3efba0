"""`manage.py qd ...` and `flask qd ...`: the process becomes `qd ...`, told where the framework's app is.

It is an exec and no call, because the master of `qd work` knows no user code, and a framework's command has imported all
of it. So the pid, the terminal, the signals and the exit code are qd's own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from qd import config
from qd.cli import output
from qd.errors import ConfigError


def become_qd(words: Sequence[str], app: str) -> NoReturn:
    """Go on as `qd WORDS...`, with `app` (MODULE:ATTRIBUTE) where neither --app, QD_APP nor the file names one."""
    if not named():
        os.environ["QD_APP"] = app
    os.environ["PYTHONPATH"] = os.pathsep.join(own_folders())
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as Django's own reloader does
    output.flush((sys.stdout, sys.stderr))
    os.execv(sys.executable, [sys.executable, *flags, "-m", "qd", *words])


def named() -> bool:
    """Whether the environment or the file names an app. What is wrong with them is told by qd itself."""
    try:
        return bool(config.load().app)
    except ConfigError:
        return True


def own_folders() -> list[str]:
    """The folders of sys.path that belong to the project: the next interpreter finds Python's own by itself."""
    ours = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    zipped = f"python{sys.version_info.major}{sys.version_info.minor}.zip"
    found = [Path(entry or os.curdir).absolute() for entry in sys.path if not entry.endswith(zipped)]
    return [str(path) for path in dict.fromkeys(found) if not any(path.is_relative_to(home) for home in ours)]
