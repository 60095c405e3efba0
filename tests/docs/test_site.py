"""The documentation site: its nav, the links, boxes and diagrams of the built pages, what they load, llms.txt."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import pytest
from selenium import webdriver

import qd
from scripts.api import FOLDER, write
from scripts.docs import ABOVE, ASSETS, DOCS, build, heading, nav, read_config, strictly, with_boxes
from tests.support.waiting import eventually

pytestmark = pytest.mark.xdist_group("site")
HOST = "https://qd.invalid"
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-background-networking --disable-sync"
)
NOT_DESCRIBED = {"Duration", "Middleware", "__version__"}  # aliases of types
NAV = [name for _, name in nav(read_config())]


class Page(HTMLParser):
    """What a page links to, what it loads, and the anchors that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links, self.loads, self.anchors, self.classes = list[str](), list[str](), set[str](), Counter[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        has = dict(attrs)
        self.classes.update((has.get("class") or "").split())
        self.anchors |= {value for name in ("id", "name") if (value := has.get(name))}
        if tag in ("a", "area") and has.get("href"):
            self.links.append(has["href"] or "")
        if tag == "link" and has.get("rel") != "canonical":
            self.loads.append(has.get("href") or "")
        self.loads += [value for name in ("src", "poster", "data") if (value := has.get(name))]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("build")
    build(into)
    return into / "site"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Page]:
    """Address below the root of the site -> the page."""
    found = {
        str(path.relative_to(site)).removesuffix("index.html"): Page(path.read_text())
        for path in site.rglob("index.html")
    }
    assert len(found) >= len(NAV)
    return found


def address(name: str) -> str:
    """Where the site has a page: how-to/jobs.md is how-to/jobs/."""
    stem = name.removesuffix(".md")
    return stem.removesuffix("index") if stem.endswith("index") else stem + "/"


# --- nav


def test_the_nav_has_each_page_exactly_once() -> None:
    files = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    listed = Counter(NAV)
    wrong = [f"missing in the nav of zensical.toml: {name}" for name in sorted(files - listed.keys())]
    wrong += [f"in the nav, but there is no such page: {name}" for name in listed if name not in files | staged_above()]
    wrong += [f"{count} times in the nav: {name}" for name, count in listed.items() if count > 1]
    assert wrong == []


def staged_above() -> set[str]:
    return {"project/" + (f"{name.removesuffix('README.md')}index.md" if "README" in name else name) for name in ABOVE}


def test_the_pages_of_the_python_api_equal_the_docstrings(tmp_path: Path) -> None:
    """`make reference` writes them."""
    write(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in FOLDER.iterdir())
    for page in tmp_path.iterdir():
        assert (FOLDER / page.name).read_text() == page.read_text(), f"{page.name}: run `make reference`"


def test_the_python_api_describes_every_public_name() -> None:
    described = re.findall(r"^## (\w+)$", "".join(page.read_text() for page in FOLDER.iterdir()), re.MULTILINE)
    assert sorted(set(dir(qd)) - set(described) - NOT_DESCRIBED) == []


def test_each_page_name_is_unique() -> None:
    stems = Counter(path.stem for path in DOCS.rglob("*.md") if path.stem != "index")
    assert [stem for stem, count in stems.items() if count > 1] == []


# --- built pages


def test_the_site_has_each_page_of_the_nav_with_its_title(site: Path, pages: dict[str, Page]) -> None:
    for name in NAV:
        assert address(name) in pages, name
        title = heading((site / name).read_text())
        assert title, name


def test_every_link_of_the_site_leads_to_a_page_and_an_anchor(site: Path, pages: dict[str, Page]) -> None:
    broken = []
    for at, page in pages.items():
        for link in page.links:
            target, anchor = urldefrag(urljoin(f"{HOST}/{at}", link))
            if not target.startswith(HOST):
                assert urlsplit(target).scheme in ("https", "mailto"), (at, link)
                continue
            path = unquote(urlsplit(target).path).lstrip("/")
            if path not in pages and not (site / path).is_file():
                broken.append(f"{at}: {link}")
            elif anchor and path in pages and unquote(anchor) not in pages[path].anchors:
                broken.append(f"{at}: {link}: no such anchor")
    assert broken == []


def test_pages_and_stylesheets_load_nothing_from_another_host(site: Path, pages: dict[str, Page]) -> None:
    for at, page in pages.items():
        for load in page.loads:
            whole = urljoin(f"{HOST}/{at}", load)
            assert whole.startswith((HOST, "data:")), (at, load)
            assert whole.startswith("data:") or (site / unquote(urlsplit(whole).path)[1:]).exists(), (at, load)
    for style in site.rglob("*.css"):
        assert re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//[^)\"']+", style.read_text()) == [], style
    assert "http" not in (ASSETS / "diagrams.js").read_text()


def test_the_search_index_has_each_page_of_the_nav(site: Path) -> None:
    items = json.loads((site / "search.json").read_text())["items"]
    assert {address(name) for name in NAV} - {urldefrag(item["location"])[0] for item in items} == set()


def test_the_search_finds_benchmarks_by_their_title_only(site: Path) -> None:
    items = json.loads((site / "search.json").read_text())["items"]
    found = [item["location"] for item in items if item["location"].startswith("project/bench/")]
    assert sorted(found) == ["project/bench/", "project/bench/RESULTS/"]


def test_alerts_of_github_are_boxes_on_the_site(site: Path, pages: dict[str, Page]) -> None:
    for name in NAV:
        path = DOCS / name
        if path.exists():
            boxes = len(re.findall(r"^\s*> ?\[!\w+\]", path.read_text(), re.MULTILINE))
            assert pages[address(name)].classes["admonition"] == boxes, name


@pytest.mark.parametrize(
    ("github", "box"),
    [
        ("> [!WARNING]\n> One.\n> Two.\n\nafter\n", "!!! warning\n\n    One.\n    Two.\n\nafter\n"),
        ("> [!NOTE]\n> A\n>\n> ```sh\n> ls\n> ```\n", "!!! note\n\n    A\n\n    ```sh\n    ls\n    ```\n"),
        ("- x\n\n  > [!TIP]\n  > A\n", "- x\n\n  !!! tip\n\n      A\n"),
        ("> a quote\n", "> a quote\n"),
    ],
    ids=["two lines", "with code", "in a list", "a quote"],
)
def test_an_alert_becomes_a_box(github: str, box: str) -> None:
    assert with_boxes(github) == box


def test_a_broken_link_fails_the_build(site: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(site.parent, tmp_path / "build")
    index = tmp_path / "build" / "docs" / "index.md"
    index.write_text("# Home\n\n[a](nofile.md)\n\n[b](how-to/jobs.md#noheading)\n")
    with pytest.raises(subprocess.CalledProcessError):
        strictly(tmp_path / "build")
    printed = re.sub(r"\x1b\[[\d;]*m", "", "".join(capfd.readouterr()))
    assert "nofile.md" in printed
    assert "noheading" in printed


# --- for programs that read Markdown


def test_llms_txt_lists_each_page_of_the_nav_and_its_markdown_exists(site: Path) -> None:
    listed = re.findall(r"^- \[[^]]+\]\(([^)]+)\)", (site / "llms.txt").read_text(), re.MULTILINE)
    assert listed == NAV
    assert [name for name in listed if not (site / name).is_file()] == []


def test_llms_full_txt_has_the_text_of_each_page(site: Path) -> None:
    whole = (site / "llms-full.txt").read_text()
    assert [name for name in NAV if (site / name).read_text() not in whole] == []


# --- in a browser


@pytest.fixture(scope="module")
def root(site: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in (*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver") or ""))
    yield found
    found.quit()


def test_every_diagram_is_drawn_and_nothing_comes_from_another_host(
    site: Path, pages: dict[str, Page], root: str, browser: Any
) -> None:
    drawn = {at: page.classes["diagram"] for at, page in pages.items() if page.classes["diagram"]}
    source = sum(path.read_text().count("\n```mermaid\n") for path in DOCS.rglob("*.md"))
    assert sum(drawn.values()) >= source > 0
    for at, count in {**drawn, "how-to/jobs/": 0}.items():
        browser.get(root + at)
        script = "return document.documentElement.dataset.diagrams"
        eventually(lambda: browser.execute_script(script) == str(count), what=f"diagrams of {at}")  # noqa: B023
        errors = browser.execute_script(
            "return [...document.querySelectorAll('pre.diagram')].filter(one => !one.matches(':has(+ div svg)'))"
            ".map(one => one.dataset.error + one.textContent)"
        )
        assert errors == [], at
    assert [line["message"] for line in browser.get_log("browser") if line["level"] == "SEVERE"] == []
    sent = [json.loads(line["message"])["message"] for line in browser.get_log("performance")]
    urls = [one["params"]["request"]["url"] for one in sent if one["method"] == "Network.requestWillBeSent"]
    assert [url for url in urls if not url.startswith((root, "data:", "blob:", "chrome"))] == []
    assert any("mermaid.tiny.js" in url for url in urls)


def test_a_page_without_diagrams_does_not_load_mermaid(root: str, browser: Any) -> None:
    browser.get(root + "how-to/jobs/")
    eventually(
        lambda: browser.execute_script("return document.documentElement.dataset.diagrams") == "0", what="the page"
    )
    assert browser.execute_script("return typeof mermaid") == "undefined"
