"""A Prometheus that scrapes one exporter each second, with the alert rules of conf/."""

from __future__ import annotations

import json
import shutil
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from tests.support.programs import missing
from tests.support.servers.running import Running

CONF = Path(__file__).resolve().parents[3] / "conf"


class Prometheus(Running):
    name = "Prometheus"

    def __init__(self, target: str) -> None:
        """target: HOST:PORT of the exporter."""
        super().__init__()
        self.target = target

    def prepare(self) -> None:
        shutil.copy(CONF / "prometheus-rules.yml", self.folder)
        scraped = {"job_name": "qd", "static_configs": [{"targets": [self.target]}]}
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["prometheus-rules.yml"],
            "scrape_configs": [scraped],
        }
        (self.folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML

    def command(self) -> list[str]:
        listen = f"--web.listen-address=127.0.0.1:{self.port}"
        files = [f"--config.file={self.folder}/prometheus.yml", f"--storage.tsdb.path={self.folder}/store"]
        return ["prometheus", *files, listen, "--log.level=warn"]

    def answers(self) -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=5) as reply:
            return bool(reply.status == 200)

    def api(self, path: str, **query: str) -> Any:
        """The `data` of an answer of its HTTP API."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=30) as reply:
            found = json.loads(reply.read())
        assert found["status"] == "success", found
        return found["data"]

    def query(self, expression: str) -> list[Any]:
        found: list[Any] = self.api("query", query=expression)["result"]
        return found


def installed() -> None:
    """Skip the test if Prometheus is missing."""
    for program in ("prometheus", "promtool"):
        if shutil.which(program) is None:
            missing(program)
