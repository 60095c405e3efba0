"""The picture of the README is what `scripts/recording.py` records: a killed worker, and its job done by another one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from tests.support.pages import ROOT

STORY = (
    "master.ready",
    "qd dispatch report.build",
    "kill -9",
    "worker.died",
    "job.requeued",
    "job.done",
    "report-11.pdf",
)
SPACE = "{http://www.w3.org/2000/svg}"


def lines_of(picture: Path) -> list[str]:
    return ["".join(each.itertext()) for each in ElementTree.parse(picture).iter(f"{SPACE}text")]


def tells_the_story(picture: Path) -> None:
    text = "\n".join(lines_of(picture))
    assert [part for part in STORY if part not in text] == []
    killed = set(re.findall(r"kill -9 (\d+)", text))
    assert killed & set(re.findall(r"worker\.died slot=\d pid=(\d+)", text))
    assert re.search(r"A real run: \d+ ms", text)


def test_the_picture_shows_a_kill_and_the_job_done_by_another_worker() -> None:
    tells_the_story(ROOT / "docs" / "images" / "demo.svg")


def test_the_script_records_the_same_story_again(tmp_path: Path) -> None:
    picture = tmp_path / "demo.svg"
    subprocess.run([sys.executable, "scripts/recording.py", str(picture)], cwd=ROOT, check=True, timeout=120)
    tells_the_story(picture)
