"""The Python of the pages of docs/: each page is one program."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
STANDINS = ROOT / "tests" / "support" / "standins"  # for packages that the pages use and that are not installed
PAGES = [page for page in sorted((ROOT / "docs").glob("*.md")) if SAMPLE.search(page.read_text())]


def program(text: str) -> str:
    """The samples, each on the line where it stands in the page; everything else is an empty line."""
    lines, at = [""] * text.count("\n"), 0
    for sample in SAMPLE.finditer(text):
        at = text.count("\n", 0, sample.start(1))
        code = sample[1].splitlines()
        lines[at : at + len(code)] = code
    return "\n".join(lines)
