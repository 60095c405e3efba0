"""Packs docs/ into the wheel as qd/docs, for `qd help TOPIC`, and conf/ as qd/conf, for `qd init`. A clone has both."""

from __future__ import annotations

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
SAMPLES = ("qd.toml", "prometheus-rules.yml", "grafana-dashboard.json")


class WithPages(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        pages = {page.relative_to(ROOT / "docs"): page for page in (ROOT / "docs").rglob("*.md")}
        del pages[Path("index.md")]
        pages.setdefault(Path("reference/security.md"), ROOT / "SECURITY.md")
        packed = {Path("docs") / name: page for name, page in pages.items()}
        packed |= {Path("conf") / name: ROOT / "conf" / name for name in SAMPLES}
        for name, page in packed.items():
            target = Path(self.build_lib, "qd", name)
            target.parent.mkdir(parents=True, exist_ok=True)
            self.copy_file(str(page), str(target))


setup(cmdclass={"build_py": WithPages})
