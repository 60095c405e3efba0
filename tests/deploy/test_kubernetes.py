"""The Helm chart and `qd init k8s`: every object against its schema, and both against each other.

The chart is rendered by Helm's own engine; the schemas of Kubernetes' own objects are those of a release of it, those of
ServiceMonitor and ScaledObject are excerpts of their CRDs with the fields used here.
"""

from __future__ import annotations

import importlib.util
import json
import os
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from qd import __version__
from qd.cli.init import patience
from qd.config.settings import WORKER
from tests.cli.conftest import Run
from tests.deploy.conftest import Printed
from tests.support import helm
from tests.support.helm import CHART, Refused, render
from tests.support.pages import ROOT
from tests.support.programs import missing

GIVEN: dict[str, Any] = {
    "image": {"repository": "registry.example.com/shop", "tag": "1.4.2"},
    "url": {"secret": "shop"},
}
FULL: dict[str, Any] = {
    **GIVEN,
    "config": '[qd]\napp = "jobs:app"\n\n[pools.mail]\ntimeout = "2m"\n',
    "pools": {
        "mail": {"queues": ["high=5", "mail"], "replicas": 3, "stopTimeout": 300, "keda": {"enabled": True}},
        "Slow_Jobs": {"queues": ["slow"], "workers": 4, "concurrency": 50, "keda": {"enabled": True, "jobsPerPod": 5}},
        "web": {"stopTimeout": 0, "args": ["--no-schedule"], "podDisruptionBudget": {"enabled": False}},
    },
    "metrics": {"serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
    "dashboard": {"enabled": True, "usersSecret": "people", "hosts": ["qd.example.com", "b"], "prefix": "/qd"},
    "imagePullSecrets": [{"name": "registry"}],
    "env": [{"name": "QD_TRIES", "value": "3"}],
    "envFrom": [{"secretRef": {"name": "more"}}],
    "volumes": [{"name": "files", "emptyDir": {}}],
    "volumeMounts": [{"name": "files", "mountPath": "/files"}],
    "podAnnotations": {"team": "shop"},
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"key": "spot", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "serviceAccountName": "shop",
}  # fmt: skip
VERSIONS = ["1.25", "1.34"]


def check(found: dict[str, Any], version: str) -> None:
    """Raises if it does not fit its schema, or has a field that the schema does not know."""
    own = Path(__file__).parent / "schemas" / f"{found['kind']}.json"
    if own.exists():
        jsonschema.validate(found, json.loads(own.read_text()))
    else:
        if importlib.util.find_spec("kubernetes_validate") is None:
            missing("kubernetes-validate")
        import kubernetes_validate

        kubernetes_validate.validate(found, version, strict=True)


def pod(found: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return spec


def container(found: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod(found)["containers"]
    assert isinstance(only, dict)
    return only


def worker(objects: dict[tuple[str, str], dict[str, Any]], pool: str) -> dict[str, Any]:
    return objects["Deployment", f"shop-qd-worker-{pool}"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", [GIVEN, FULL], ids=["least", "full"])
def test_each_object_of_the_chart_fits_its_schema(values: dict[str, Any], version: str) -> None:
    objects, _ = render(**values)
    kinds = {kind for kind, _ in objects}
    expected = {"Deployment", "Service", "PodDisruptionBudget"}
    assert kinds == (expected | {"ConfigMap", "ServiceMonitor", "ScaledObject"} if values is FULL else expected)
    for found in objects.values():
        check(found, version)


def test_a_wrong_field_does_not_fit() -> None:
    objects, _ = render(**FULL)
    for found in {kind: found for (kind, _), found in objects.items()}.values():
        found.get("spec", found)["unheard"] = 1
        with pytest.raises(Exception, match="unheard"):
            check(found, VERSIONS[-1])


def test_the_linters_find_nothing() -> None:
    assert helm.lint() == []


def test_the_chart_has_the_version_of_qd() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"url": {"secret": "s"}}, "image.repository is required"),
        ({"image": {"repository": "r"}}, "image.tag is required"),
        ({**GIVEN, "dashboard": {"enabled": True}}, "dashboard.usersSecret is required"),
        ({**GIVEN, "pools": {"mail": {"keda": {"enabled": True}}}}, "pools.mail.keda needs pools.mail.queues"),
        (
            {**GIVEN, "pools": {"m": {"queues": ["m"], "keda": {"enabled": True}}}, "metrics": {"enabled": False}},
            "pools.m.keda needs metrics.enabled",
        ),
        ({**GIVEN, "pools": {"mail": {"replica": 3}}}, "replica"),
        ({**GIVEN, "pools": {"mail": {"stopTimeout": "5m"}}}, "stopTimeout"),
        ({**GIVEN, "dashbord": {}}, "dashbord"),
    ],
)
def test_values_that_cannot_work_are_refused(values: dict[str, Any], why: str) -> None:
    with pytest.raises(Refused, match=why):
        render(**values)


def test_a_pod_gets_ten_seconds_more_than_its_running_jobs() -> None:
    objects, _ = render(**FULL)
    for name, stop_timeout in {"mail": 300, "slow-jobs": 25, "web": 0}.items():
        found = worker(objects, name)
        command = container(found)["command"]
        assert command[command.index("--stop-timeout") + 1] == str(stop_timeout)
        assert pod(found)["terminationGracePeriodSeconds"] == patience(stop_timeout)
    default = WORKER["stop_timeout"].default
    least, _ = render(**GIVEN)
    assert container(worker(least, "default"))["command"] == ["qd", "work", "--stop-timeout", f"{default:g}"]


def test_a_pool_has_its_queues_its_flags_and_its_section_of_the_file() -> None:
    objects, _ = render(**FULL)
    command = container(worker(objects, "slow-jobs"))["command"]
    assert command[:5] == ["qd", "work", "slow", "--pool", "Slow_Jobs"]
    assert command[5:] == ["--workers", "4", "--concurrency", "50", "--stop-timeout", "25"]
    assert container(worker(objects, "web"))["command"][-1] == "--no-schedule"
    config = tomllib.loads(objects["ConfigMap", "shop-qd"]["data"]["qd.toml"])
    assert config["pools"] == {"mail": {"timeout": "2m"}, "Slow_Jobs": {}, "web": {}}
    for name in ("mail", "slow-jobs", "web"):
        found = worker(objects, name)
        assert (
            found["spec"]["selector"]["matchLabels"].items() <= found["spec"]["template"]["metadata"]["labels"].items()
        )
    assert len({json.dumps(worker(objects, n)["spec"]["selector"]) for n in ("mail", "slow-jobs", "web")}) == 3


def test_the_commands_of_the_chart_are_commands_of_qd(folder: Path, qd: Run) -> None:
    objects, _ = render(**FULL)
    (folder / "qd.toml").write_text(objects["ConfigMap", "shop-qd"]["data"]["qd.toml"])
    for (kind, name), found in objects.items():
        if kind == "Deployment":
            done = qd(*container(found)["command"][1:], "--help")
            assert (done.exit_code, done.stderr) == (0, ""), name
    assert qd("config", "show", "--pool", "Slow_Jobs").exit_code == 0


def test_keda_counts_the_jobs_of_all_queues_of_a_pool() -> None:
    objects, _ = render(**FULL)
    assert "replicas" not in worker(objects, "mail")["spec"]  # an upgrade must not undo what KEDA did
    assert worker(objects, "web")["spec"]["replicas"] == 1
    spec = objects["ScaledObject", "shop-qd-worker-mail"]["spec"]
    base = "http://shop-qd-metrics.prod.svc:9600/keda"
    assert [each["metadata"]["url"] for each in spec["triggers"]] == [f"{base}/high", f"{base}/mail"]
    names = [each["name"] for each in spec["triggers"]]
    assert spec["advanced"]["scalingModifiers"]["formula"].split(" + ") == names
    service = objects["Service", "shop-qd-metrics"]
    metrics = objects["Deployment", "shop-qd-metrics"]
    assert service["spec"]["selector"] == metrics["spec"]["selector"]["matchLabels"]
    assert container(metrics)["command"] == ["qd", "metrics", "--listen", "0.0.0.0:9600"]
    assert (service["spec"]["ports"][0]["port"], container(metrics)["ports"][0]["containerPort"]) == (9600, 9600)
    slow = objects["ScaledObject", "shop-qd-worker-slow-jobs"]["spec"]
    assert ("advanced" in slow, slow["triggers"][0]["metadata"]["targetValue"]) == (False, "5")


def test_prometheus_scrapes_the_job_that_the_alert_rules_name() -> None:
    objects, _ = render(**FULL)
    monitor = objects["ServiceMonitor", "shop-qd-metrics"]
    service = objects["Service", "shop-qd-metrics"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    job = service["metadata"]["labels"][monitor["spec"]["jobLabel"]]
    assert f'up{{job="{job}"}}' in (ROOT / "conf" / "prometheus-rules.yml").read_text()
    assert [port["name"] for port in service["spec"]["ports"]] == [monitor["spec"]["endpoints"][0]["port"]]


def test_the_dashboard_is_checked_below_its_prefix_under_a_host_that_it_knows() -> None:
    objects, notes = render(**FULL)
    found = container(objects["Deployment", "shop-qd-dashboard"])
    probe = found["livenessProbe"]["httpGet"]
    assert (probe["path"], probe["httpHeaders"]) == ("/qd/login", [{"name": "Host", "value": "localhost"}])
    environ = {each["name"]: each["value"] for each in found["env"]}
    assert environ["QD_DASHBOARD_HOSTS"] == "qd.example.com,b"
    assert environ["QD_DASHBOARD_USERS_FILE"] == "/run/secrets/dashboard/users"
    assert "port-forward svc/shop-qd-dashboard 8640" in notes


def test_init_k8s_has_the_same_pods_as_the_chart(folder: Path, printed: Printed) -> None:
    shop = folder / "shop"
    shop.mkdir()
    os.chdir(shop)
    (shop / "qd.toml").write_text('[qd]\napp = "jobs:app"\n[pools.mail]\nstop_timeout = "5m"\n[pools.web]\n')
    ours = list(yaml.safe_load_all(printed("k8s")))
    values = {
        **GIVEN,
        "image": {"repository": "shop", "tag": "latest"},
        "pools": {"mail": {"stopTimeout": 300}, "web": {}},
    }
    objects, _ = render(**values)
    for mine, pool in zip(ours, ("mail", "web"), strict=True):
        check(mine, VERSIONS[-1])
        theirs = worker(objects, pool)
        assert {"minReadySeconds", "replicas"} <= mine["spec"].keys()
        assert [mine["spec"][key] for key in ("minReadySeconds", "replicas")] == [
            theirs["spec"][key] for key in ("minReadySeconds", "replicas")
        ]
        command = container(theirs)["command"]
        stop = command.index("--stop-timeout")  # there the file has it
        del command[stop : stop + 2]
        del container(theirs)["imagePullPolicy"]
        assert pod(mine) == pod(theirs)
