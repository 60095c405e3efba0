"""`manage.py qd ...` and `flask qd ...`: replace the process by `qd ...` with the framework's app.

An exec, not a call: the master of `qd work` must not load user code, and a framework's command has already imported all of
it. So pid, terminal, signals and exit code are those of qd.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from qd import config
from qd.errors import ConfigError
from qd.options.kinds import did_you_mean
from qd.process.fork import flush_output


def become_qd(words: Sequence[str], app: str, name: str) -> NoReturn:
    """Replace this process by `qd WORDS...`, with `app` (MODULE:ATTRIBUTE) if neither QD_APP nor the file names one."""
    try:
        named = bool(config.load().app)
    except ConfigError:
        named = True  # qd reports it
    if not named:
        os.environ["QD_APP"] = app
    os.environ["_QD_COMMAND"] = name  # for hints
    os.environ["PYTHONPATH"] = os.pathsep.join(own_folders())
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as Django's own reloader does
    flush_output()
    os.execv(sys.executable, [sys.executable, *flags, "-m", "qd", *words])


def check_keys(options: object, known: Sequence[str], place: str) -> None:
    """Raises ConfigError if the framework's own configuration of qd is not a dict, or has an unknown key."""
    if not isinstance(options, Mapping):
        raise ConfigError(f'QD of {place} is not a dict: write QD = {{"url": "..."}}')
    for key in options:
        if key not in known:
            near = did_you_mean(key, known) or f" (known: {', '.join(known)})"
            raise ConfigError(f"unknown key '{key}' in QD of {place}{near}; all else is for qd.toml")


def own_folders() -> list[str]:
    """The folders of sys.path without those of Python itself, which the next interpreter finds anyway."""
    ours = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    zipped = f"python{sys.version_info.major}{sys.version_info.minor}.zip"
    found = [Path(entry or os.curdir).absolute() for entry in sys.path if not entry.endswith(zipped)]
    return [str(path) for path in dict.fromkeys(found) if not any(path.is_relative_to(home) for home in ours)]
