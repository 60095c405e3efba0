"""The Helm chart, read by Helm's own engine in another process (it brings the runtime of Go, with threads and signals)."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from typing import Any

import yaml

from tests.support.pages import ROOT
from tests.support.programs import missing

CHART = ROOT / "deploy" / "helm" / "qd"
PROGRAM = """
import json, sys
import helm_python as helm
chart, values = sys.argv[1], json.loads(sys.argv[2])
if values is None:
    print(json.dumps(helm.lint(chart)))
else:
    try:
        with helm.Chart.load(chart) as loaded:
            loaded.validate_schema(values)
            print(json.dumps(loaded.render(values, name="shop", namespace="prod")))
    except helm.HelmError as error:
        sys.exit(str(error))
"""


class Refused(Exception):
    pass


def run(values: dict[str, Any] | None) -> Any:
    if importlib.util.find_spec("helm_python") is None:
        missing("helm-python-sdk")
    command = [sys.executable, "-c", PROGRAM, str(CHART), json.dumps(values)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise Refused(done.stderr)
    return json.loads(done.stdout)


def render(**values: Any) -> tuple[dict[tuple[str, str], dict[str, Any]], str]:
    """(kind, name) -> object of a release `shop` in namespace `prod`, and the notes. Raises Refused."""
    files: dict[str, str] = run(values)
    notes = files.pop("qd/templates/NOTES.txt")
    objects = [found for text in files.values() for found in yaml.safe_load_all(text) if found]
    by_name = {(found["kind"], found["metadata"]["name"]): found for found in objects}
    assert len(by_name) == len(objects)
    return by_name, notes


def lint() -> list[str]:
    """Warnings and errors of the linter, and of `helm lint --strict` where helm is installed."""
    found = run(None)
    problems = [f"{each['path']}: {each['error']}" for each in found["messages"] if each["severity"] > 1]
    problems += found["errors"]
    if helm := shutil.which("helm"):
        done = subprocess.run([helm, "lint", "--strict", str(CHART)], capture_output=True, text=True, check=False)
        problems += [done.stdout + done.stderr] if done.returncode else []
    return problems
