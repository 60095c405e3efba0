"""What `make demo` copies."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"
RESULTS = ("pictures/alps.pgm", "thumbs/alps.pgm", "outbox/mail.eml", "index.html", ".qd/embedded/address")


def test_the_demo_copies_no_results_of_a_run_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gallery, copy = tmp_path / "gallery", tmp_path / "copy"
    for name in ("gallery.py", *RESULTS):
        (gallery / name).parent.mkdir(parents=True, exist_ok=True)
        (gallery / name).touch()
    copy.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(os, "environ", {})
    move_in = runpy.run_path(str(DEMO))["move_in"]
    monkeypatch.setitem(move_in.__globals__, "GALLERY", gallery)
    move_in(copy)
    assert [path.name for path in copy.rglob("*")] == ["gallery.py"]
