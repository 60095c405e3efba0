"""The dashboard in a real Chromium: no errors in its console, no sideways scrolling, live updates, both themes.

With QD_SCREENSHOTS=docs/images the pictures of the docs are written there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from selenium import webdriver

from tests.dashboard.conftest import HOSTILE, Open, failed, payload
from tests.support.redis import Client
from tests.support.waiting import eventually as wait

CHROMIUM, DRIVER = shutil.which("chromium") or "", shutil.which("chromedriver") or ""
pytestmark = [
    pytest.mark.leaves("*"),
    pytest.mark.xdist_group("browser"),
]
PICTURES = os.environ.get("QD_SCREENSHOTS")  # tests run without variables of qd
PAGES = (
    "",
    "queues",
    "queues/redis/mail",
    "failed",
    "failed/redis/r1",
    "workers",
    "schedule",
    "metrics",
    "events",
    "do/pause?queue=mail",
)
FLAGS = "--headless=new --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS.split(), "--disable-sync", f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield found
    found.quit()


@pytest.fixture
def opened(browser: Any, served: str) -> Callable[..., None]:
    """opened("queues", width=390) shows a page, logged in."""
    browser.get(served)
    wait(lambda: "token=" not in browser.current_url, what="the login")
    root = served.partition("login")[0]

    def show(path: str = "", width: int = 1440, height: int = 900, theme: str = "light") -> None:
        viewport = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", viewport)
        scheme = [{"name": "prefers-color-scheme", "value": theme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
        browser.get(root + path)

    return show


def picture(browser: Any, name: str) -> None:
    if PICTURES:
        browser.save_screenshot(str(Path(PICTURES) / f"dashboard-{name}.png"))


@pytest.mark.usefixtures("incident")
def test_every_page_loads_without_errors_and_scrolls_only_down(browser: Any, opened: Callable[..., None]) -> None:
    browser.get_log("browser")
    for width, height, theme in ((1440, 900, "light"), (1440, 900, "dark"), (768, 1024, "light"), (390, 844, "light")):
        for path in PAGES:
            opened(path, width, height, theme)
            wide = browser.execute_script("return document.documentElement.scrollWidth")
            assert wide <= width, (path, width, wide)
            name = re.sub(r"\W+", "-", path.replace("/redis", "")) or "overview"
            picture(browser, f"{name}-{width}-{theme}")
    assert [entry["message"] for entry in browser.get_log("browser")] == []
    background = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    opened("", theme="dark")
    assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") != background


def test_hostile_names_do_not_run(browser: Any, opened: Callable[..., None], redis: Client, board: Open) -> None:
    redis.call("RPUSH", f"queues:{HOSTILE}", payload(HOSTILE, HOSTILE, tags=[HOSTILE], data={HOSTILE: HOSTILE}))
    pause = {"by": HOSTILE, "reason": HOSTILE, "at": 1, "until": None}
    redis.call("SET", f"queues:{HOSTILE}:paused", json.dumps(pause))
    failed(redis, HOSTILE, "x1", 1e9, HOSTILE, error=HOSTILE, reason=HOSTILE, trace=HOSTILE)
    board.read_again()
    browser.get_log("browser")
    for path in ("", "failed", "failed/redis/x1", f"queues/redis/{quote(HOSTILE, safe='')}"):
        opened(path)
        assert browser.execute_script("return document.querySelectorAll('main img, body script').length") == 0
    assert [entry["message"] for entry in browser.get_log("browser")] == []


@pytest.mark.usefixtures("incident")
def test_a_phone_shows_four_pages_and_the_others_below_more(browser: Any, opened: Callable[..., None]) -> None:
    def seen() -> list[str]:
        links = browser.find_elements("css selector", ".side a, .side summary")
        return [link.text for link in links if link.is_displayed()]

    opened("", 390, 844)
    assert seen() == ["Overview", "Queues", "Failed", "Workers", "More"]
    browser.find_element("css selector", ".side summary").click()
    assert {"Schedule", "Metrics", "Events"} <= set(seen())


def test_a_new_job_appears_without_a_reload(browser: Any, opened: Callable[..., None], redis: Client) -> None:
    redis.call("RPUSH", "queues:mail", payload("mail.welcome"))
    opened()
    browser.execute_script("window.same = true")
    redis.call("RPUSH", "queues:mail", payload("mail.welcome"), payload("mail.welcome"))
    ready = "return document.querySelector('.tile b').textContent.trim()"
    wait(lambda: browser.execute_script(ready) == "3")
    assert browser.execute_script("return window.same")


def test_a_button_pauses_a_queue(browser: Any, opened: Callable[..., None], redis: Client, board: Open) -> None:
    redis.call("RPUSH", "queues:mail", payload("mail.welcome"))
    board.read_again()
    opened("queues")
    browser.find_element("css selector", "a.button[href*='do/pause'][href*='queue=mail']").click()
    browser.find_element("name", "reason").send_keys("db upgrade")
    browser.find_element("css selector", "form button").click()
    wait(lambda: "✓ Done" in browser.page_source)
    assert json.loads(redis.call("GET", "queues:mail:paused"))["reason"] == "db upgrade"
    browser.find_element("link text", "Back").click()
    wait(lambda: "Paused" in browser.page_source)
