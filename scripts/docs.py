"""The documentation site: `make docs` builds it into build/site, `make docs-serve` serves it and follows changes.

    docs/*.md, and what they link to elsewhere   -> staged copy in build/docs       (links, alerts, assets)
    build/docs + zensical.toml                   -> build/site                      (Zensical, strict)
    build/docs                                   -> build/site/llms.txt, *.md       (for programs that read Markdown)

The pages are written for GitHub and for a clone. A staged copy is needed for three things that a site does differently:
links that leave docs/ (SECURITY.md, examples), boxes (`> [!WARNING]`), and diagrams (our script loads mermaid from this
site, Zensical's own would load it from another host).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
BUILD = ROOT / "build"
ASSETS = ROOT / "scripts" / "assets"

# Pages of the repository that have a place in the nav; others are staged when a page links to them.
ABOVE = ("CHANGELOG.md", "SECURITY.md", "bench/README.md", "bench/RESULTS.md", "examples/README.md")
# Measurements repeat ordinary words. The search finds these pages by their title and first lines only.
FOUND_BY_TITLE = ("bench/README.md", "bench/RESULTS.md")
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".yml": "yaml", ".yaml": "yaml", ".conf": "ini"}
LANGUAGES |= {".service": "ini", ".php": "php", ".sh": "bash", ".html": "html", ".mjs": "javascript"}
PICTURES = {".svg", ".png"}

LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)#\s]+)((?:#[^)\s]*)?\))")
SECTION = re.compile(r"^##+ .+$", re.MULTILINE)
FENCE = re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2[`~]*$", re.DOTALL | re.MULTILINE)
ALERT = re.compile(r"^( *)> ?\[!(NOTE|TIP|IMPORTANT|WARNING|CAUTION)\][ ]*\n((?:\1>.*(?:\n|\Z))*)", re.MULTILINE)
BOXES = {"NOTE": "note", "TIP": "tip", "IMPORTANT": "info", "WARNING": "warning", "CAUTION": "danger"}


def outside_code(text: str, change: Any) -> str:
    """Apply a change to what is between fenced blocks."""
    parts, at = [], 0
    for fence in FENCE.finditer(text):
        parts += [change(text[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*parts, change(text[at:])])


def with_boxes(text: str) -> str:
    """GitHub's alerts as admonitions. A box may contain a fenced block: this looks at the whole page."""

    def box(found: re.Match[str]) -> str:
        indent, kind, body = found[1], found[2], found[3]
        lines = [re.sub(rf"^{indent}> ?", "", line) for line in body.splitlines()]
        return f"{indent}!!! {BOXES[kind]}\n\n" + "".join(f"{indent}    {line}\n" if line else "\n" for line in lines)

    return ALERT.sub(box, text)


class Stage:
    """The copy of the documentation that Zensical builds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pages: dict[Path, Path] = {}  # file of the repository -> its place in the copy
        self.waiting: list[Path] = []

    def write(self) -> None:
        """Stage all pages, and all files of the repository that they link to. Unchanged files keep their time."""
        for path in [*sorted(DOCS.rglob("*.md")), *(ROOT / name for name in ABOVE)]:
            self.place(path)
        while self.waiting:
            path = self.waiting.pop()
            put(self.folder / self.pages[path], self.text(path))
        for folder, name in ((DOCS / "images", "images"), (ASSETS, "assets")):
            for path in folder.iterdir():
                put(self.folder / name / path.name, path.read_bytes())
        known = {str(place) for place in self.pages.values()}
        for stale in [*self.folder.rglob("*.md")]:
            if str(stale.relative_to(self.folder)) not in known:
                stale.unlink()

    def place(self, path: Path) -> Path:
        """Where a file of the repository is in the copy."""
        if path.suffix in PICTURES and path.is_relative_to(DOCS):
            return path.relative_to(DOCS)
        if path not in self.pages:
            self.pages[path] = self._name(path)
            self.waiting.append(path)
        return self.pages[path]

    def _name(self, path: Path) -> Path:
        if path.is_relative_to(DOCS):
            return path.relative_to(DOCS)
        name = path.relative_to(ROOT)
        if path.is_dir():
            return "project" / name / "index.md"
        if path.name == "README.md":
            return "project" / name.parent / "index.md" if name.parent.name else Path("project/readme.md")
        return "project" / (name if path.suffix == ".md" else name.with_name(name.name + ".md"))

    def text(self, path: Path) -> str:
        """The page of a file: Markdown with its links, a folder's list of files, or code."""
        name = path.relative_to(ROOT)
        if path.is_dir():
            inside = [each for each in sorted(path.iterdir()) if not each.name.startswith((".", "__"))]
            rows = (f"- [{each.name}]({self.link(path / 'x', each)})\n" for each in inside if each.is_file())
            return f"# {name}\n\n" + "".join(rows)
        if path.suffix != ".md":
            language = LANGUAGES.get(path.suffix, "text")
            return (
                f"---\nsearch:\n  exclude: true\n---\n\n# {name}\n\n````{language}\n{path.read_text().rstrip()}\n````\n"
            )

        def relinked(text: str) -> str:
            if str(name) in FOUND_BY_TITLE:
                text = SECTION.sub(r"\g<0> {data-search-exclude}", text)
            return LINK.sub(lambda link: link[1] + self.link(path, path.parent / link[2]) + link[3], text)

        return outside_code(with_boxes(path.read_text()), relinked)

    def link(self, page: Path, target: Path) -> str:
        target = Path(os.path.normpath(target))
        if not target.exists() or not target.is_relative_to(ROOT):
            return os.path.relpath(target, page.parent)  # Zensical reports it
        return os.path.relpath(self.place(target), self._name(page).parent)


def put(path: Path, content: str | bytes) -> None:
    raw = content.encode() if isinstance(content, str) else content
    if path.exists() and path.read_bytes() == raw:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)


# --- the nav


def configured(text: str) -> str:
    """zensical.toml with `"reference/cli/*.md"` replaced by the pages of that folder, first the one named as it."""

    def pages(found: re.Match[str]) -> str:
        names = sorted(DOCS.glob(found[1]), key=lambda path: (path.stem != path.parent.name, path.stem))
        return "".join(f'"{path.relative_to(DOCS)}", ' for path in names)

    return re.sub(r'"([\w/-]+\*\.md)",? ?', pages, text)


def nav(config: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Each page of the nav: the sections it is in, and its file."""

    def walk(entries: list[Any], above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
        for entry in entries:
            if isinstance(entry, str):
                yield above, entry
                continue
            for title, value in entry.items():
                yield from walk(value, (*above, title)) if isinstance(value, list) else [(above, value)]

    yield from walk(config["project"]["nav"], ())


def read_config() -> dict[str, Any]:
    return tomllib.loads(configured((ROOT / "zensical.toml").read_text()))


# --- the steps


def stage(into: Path = BUILD) -> None:
    Stage(into / "docs").write()
    put(into / "zensical.toml", configured((ROOT / "zensical.toml").read_text()))


def build(into: Path = BUILD) -> None:
    """Build the site. A broken link, or any other warning of Zensical, raises CalledProcessError."""
    shutil.rmtree(into / "site", ignore_errors=True)
    stage(into)
    strictly(into)
    write_llms(into)
    print(f"{into / 'site'}: {sum(1 for _ in (into / 'site').rglob('index.html'))} pages")


def strictly(into: Path) -> None:
    subprocess.run([zensical(), "build", "--strict", "--clean", "-f", str(into / "zensical.toml")], check=True)


def serve(address: str = "127.0.0.1:8000") -> None:
    """Serve the site until Ctrl-C. Changed pages are staged again, and Zensical reloads them."""
    stage()
    server = subprocess.Popen([zensical(), "serve", "-f", str(BUILD / "zensical.toml"), "-a", address])
    try:
        while server.poll() is None:
            time.sleep(1)
            stage()
    except KeyboardInterrupt:
        pass
    finally:
        server.terminate()
        server.wait()


def zensical() -> str:
    return str(Path(sys.executable).parent / "zensical")


# --- for programs that read Markdown: https://llmstxt.org


def write_llms(into: Path) -> None:
    """Write the Markdown of each page beside its HTML, the list of pages, and all pages in one file."""
    staged, site = into / "docs", into / "site"
    config = read_config()
    project = config["project"]
    for page in staged.rglob("*.md"):
        put(site / page.relative_to(staged), page.read_text())
    short = [f"# {project['site_name']}\n\n> {project['site_description']}\n"]
    full = list(short)
    section = ""
    for above, name in nav(config):
        text = (staged / name).read_text()
        title, summary = heading(text), first_sentence(text)
        if above and above[0] != section:
            section = above[0]
            short.append(f"\n## {section}\n\n")
        short.append(f"- [{title}]({name})" + (f": {summary}" if summary else "") + "\n")
        full.append(f"\n---\n\n<!-- {name} -->\n\n{text}")
    put(site / "llms.txt", "".join(short))
    put(site / "llms-full.txt", "".join(full))


def heading(text: str) -> str:
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    return found[1] if found else ""


def first_sentence(text: str) -> str:
    """The first sentence below the title, without links; "" if the page begins with something else."""
    body = re.split(r"^# .+\n+", text, maxsplit=1, flags=re.MULTILINE)[-1]
    paragraph = re.sub(r"\s+", " ", body.partition("\n\n")[0])
    if paragraph.startswith(("#", "|", "-", "!", "<", "`", ">", "1.")):
        return ""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", paragraph)
    return re.split(r"(?<=[.!?]) (?=[A-Z`])", plain)[0].rstrip(":")


if __name__ == "__main__":
    try:
        serve(*sys.argv[2:]) if sys.argv[1] == "serve" else build()
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
