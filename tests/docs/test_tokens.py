"""examples/tokens.py: a client drops its stream and resumes it, a job is cancelled, and everything ends clean."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.support.pages import ROOT
from tests.support.waiting import eventually


class Site:
    """The command, in its own session and with its own folder for temporary files."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, list[str]()
        env = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(ROOT / "daemon")}
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "examples" / "tokens.py"), "0"],
            stderr=subprocess.PIPE,
            text=True,
            env=env,
            start_new_session=True,
        )
        self.reader = threading.Thread(target=self._read)
        self.reader.start()
        self.url, self.children = "", list[psutil.Process]()

    def wait(self) -> None:
        self.url = self.logged("running on ").split("running on ")[1].split()[0]
        self.logged("master.ready")
        self.children = psutil.Process(self.process.pid).children(recursive=True)

    def logged(self, words: str) -> str:
        return eventually(lambda: next((line for line in [*self.log] if words in line), ""), 60, what=words)

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                self.log.append(line)

    def close(self) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            assert self.process.wait(30) == 0, "".join(self.log)
        finally:
            self.process.kill()
            self.process.wait()
            self.reader.join(10)
        eventually(lambda: not [each for each in self.children if each.is_running()], what="no process left")
        assert not [path for path in self.folder.rglob("*") if not path.is_dir()]
        assert not [line for line in self.log if " ERROR " in line or "Traceback" in line], "".join(self.log)

    def ask(self) -> str:
        id: str = httpx.post(f"{self.url}/answers", params={"prompt": "Why?"}).json()["id"]
        return id

    def read(self, id: str, last: int = 0, most: int = 0) -> tuple[list[tuple[int, Any]], str]:
        """The events of a connection, which is dropped after `most` of them; and the status at the end, or ""."""
        seen, lines = list[tuple[int, Any]](), {"id": "", "event": ""}
        url, headers = f"{self.url}/answers/{id}/events", {"Last-Event-ID": str(last)}
        with httpx.stream("GET", url, headers=headers, timeout=60) as response:
            for line in response.iter_lines():
                name, _, value = line.partition(": ")
                if name == "data" and lines["event"] == "end":
                    return seen, json.loads(value)["status"]
                if name == "data":
                    seen.append((int(lines["id"]), json.loads(value)))
                    if len(seen) == most:
                        return seen, ""
                lines[name] = value
        return seen, ""


@pytest.fixture
def site() -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="qdt") as folder:  # short: it has the path of a unix socket
        found = Site(Path(folder))
        try:
            found.wait()
            yield found
        finally:
            found.close()


def test_a_dropped_stream_resumes_and_a_cancelled_one_ends(site: Site) -> None:
    assert "EventSource" in httpx.get(site.url).text
    first, second = site.ask(), site.ask()
    seen, status = site.read(first, most=20)
    rest, status = site.read(first, last=seen[-1][0])
    assert [number for number, _ in seen + rest] == list(range(1, len(seen + rest) + 1))
    assert status == "done"
    assert seen[0][1] == {"attempt": 1}
    text = "".join(data["token"] for _, data in (seen + rest)[1:])
    assert text.startswith("You asked: Why?.")
    assert text.endswith("the answer goes on where it is by now. ")

    begun, _ = site.read(second, most=5)
    assert len(begun) == 5
    third = site.ask()
    site.read(third, most=5)
    assert httpx.delete(f"{site.url}/answers/{third}").json() == {"cancelled": True}
    some, status = site.read(third)
    assert status == "failed"
    assert len(some) < len(seen + rest)
    assert httpx.delete(f"{site.url}/answers/{third}").json() == {"cancelled": False}
