"""Packs the pages of docs/ into the wheel as qd/docs, where `qd help TOPIC` reads them. In a clone it reads docs/ itself."""

from __future__ import annotations

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent


class WithPages(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        pages = {page.relative_to(ROOT / "docs"): page for page in (ROOT / "docs").rglob("*.md")}
        del pages[Path("index.md")]
        pages.setdefault(Path("reference/security.md"), ROOT / "SECURITY.md")
        for name, page in pages.items():
            target = Path(self.build_lib, "qd/docs", name)
            target.parent.mkdir(parents=True, exist_ok=True)
            self.copy_file(str(page), str(target))


setup(cmdclass={"build_py": WithPages})
