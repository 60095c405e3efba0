"""Where a project's app and configuration are, as its tests see them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from qd import config
from qd.errors import ConfigError
from qd.worker.template import load_app

if TYPE_CHECKING:
    from qd.app import Qd
    from qd.config import Settings


def found_app(said: str, root: Path) -> Qd:
    """said: `qd_app` of pytest's configuration, MODULE:ATTRIBUTE or "". root: pytest's rootdir. Raises ConfigError."""
    settings = settings_of(root, said)
    if not settings.app:
        raise ConfigError(
            'no app is named for the fixtures of qd: write qd_app = "shop.queue:app" into [tool.pytest.ini_options], or '
            "a fixture qd_app that returns your app into conftest.py"
        )
    return load_app(settings)


def settings_of(root: Path, app: str = "", code: dict[str, object] | None = None) -> Settings:
    """The configuration of the project whose folder is `root`, wherever pytest was started. code: what Qd(...) says."""
    settings = config.load(file_of(root), flags={"app": app or None}, code=code)
    return settings if settings.file else replace(settings, root=root)


def file_of(root: Path) -> Path | None:
    """None: there is none in that folder, or the environment names another."""
    if os.environ.get("QD_CONFIG"):
        return None
    if (root / "qd.toml").is_file():
        return root / "qd.toml"
    project = root / "pyproject.toml"
    return project if project.is_file() and "[tool.qd" in project.read_text(encoding="utf-8") else None
