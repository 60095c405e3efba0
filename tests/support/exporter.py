"""`qd metrics --listen` as a process, and the text that it serves."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from tests.support.processes import QD, Procs
from tests.support.project import Project


def numbers(text: str) -> dict[str, float]:
    """Metric with labels -> its value."""
    rows = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in rows}


class Exporter:
    def __init__(self, shop: Project, *words: str) -> None:
        self.procs = Procs([*QD, "metrics", "--listen", "127.0.0.1:0", *words], cwd=shop.root, env=shop.env())
        shop.started.append(self.procs)
        self.address = self.procs.wait_line(r"exporter\.listening address=(\S+)")[1]

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://{self.address}{path}", timeout=30) as reply:
            return str(reply.read().decode())

    def document(self, path: str) -> tuple[int, Any]:
        try:
            return 200, json.loads(self.get(path))
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def up(self) -> float | None:
        return numbers(self.get("/metrics")).get('qd_server_up{connection="redis"}')
