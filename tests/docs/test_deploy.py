"""docs/how-to/deploy-docker.md and deploy-kubernetes.md against the files that they describe."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import pytest
import yaml

from tests.deploy.test_docker import EXAMPLE
from tests.deploy.test_kubernetes import GIVEN, container, pod, worker
from tests.support.helm import CHART, render
from tests.support.pages import ROOT

DOCKER = (ROOT / "docs" / "how-to" / "deploy-docker.md").read_text()
KUBERNETES = (ROOT / "docs" / "how-to" / "deploy-kubernetes.md").read_text()
CHART_VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
WHOLE = {
    "resources",
    "podSecurityContext",
    "securityContext",
    "pools",
}  # values with keys of Kubernetes, or of the user


def values(table: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict) and value and name not in WHOLE:
            yield from values(value, f"{before}{name}.")
        else:
            yield before + name, value


def documented() -> Iterator[tuple[str, str]]:
    """The values of the table, and their defaults if the cell is one. `.port` after `metrics.enabled`: metrics.port."""
    table = KUBERNETES[KUBERNETES.index("| value |") :]
    for row in table.splitlines()[2:]:
        names, default, _ = (cell.strip("| ") for cell in row.split(" | "))
        last = ""
        for name, shown in zip_longest(re.findall(r"`([^`]+)`", names), default.split(", ")):
            if name:
                last = last.rpartition(".")[0] + name if name.startswith(".") else name
                yield last, shown.strip("`") if re.fullmatch(r"\d+|`[^`]+`", shown or "") else ""


def test_the_table_has_all_values_of_the_chart_with_their_defaults() -> None:
    chart, page = dict(values(CHART_VALUES)), dict(documented())
    assert sorted(page) == sorted(chart)
    shown = {name: default for name, default in page.items() if default and name != "pools"}
    assert {name: str(chart[name]).replace("True", "true").replace("False", "false") for name in shown} == shown
    assert len(shown) >= 18


@pytest.mark.parametrize("sample", re.findall(r"```yaml\n(# values.yaml.*?)```", KUBERNETES, re.DOTALL))
def test_the_samples_of_values_are_values_of_the_chart(sample: str) -> None:
    objects, _ = render(**(GIVEN | yaml.safe_load(sample)))
    mail = worker(objects, "mail")
    command = container(mail)["command"]
    assert command[: command.index("--pool") + 2] in (
        ["qd", "work", "mail", "--pool", "mail"],
        ["qd", "work", "mail", "high", "--pool", "mail"],
    )
    assert ("Deployment", "shop-qd-metrics") in objects  # of `kubectl exec`
    assert pod(mail)["terminationGracePeriodSeconds"] in (70, 35)


def test_the_page_on_docker_quotes_the_files() -> None:
    files = "".join((EXAMPLE / name).read_text().replace('", "', " ") for name in ("Dockerfile", "compose.yaml"))
    quoted = re.findall(r"^\| (`.*?) \| ", DOCKER, re.MULTILINE)
    parts = [part.strip() for cell in quoted for code in re.findall("`([^`]+)`", cell) for part in code.split("...")]
    assert len(parts) >= 14
    assert [part for part in parts if part.replace('", "', " ") not in files] == []
