"""docs/django.md is a complete project: its files are written as shown, and work."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.contrib.conftest import FrameworkProject
from tests.contrib.test_django import MANAGE, manage
from tests.support.servers.redis import Server

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.leaves("qd:job:*")]

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "django.md").read_text()
FILES = re.findall(r"^```py\n# (\S+)\.py\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def shop(framed: Callable[..., FrameworkProject], server: Server) -> FrameworkProject:
    files: dict[str, str] = {}
    for name, text in FILES:  # a file that is named again is continued
        path = name.replace("/", "__")
        files[path] = files.get(path, "") + text.replace("redis://localhost:6379/0", server.url)
    found = framed(manage=MANAGE, shop____init__="", **files)
    found.allowed.add("shop.sqlite3")
    done = manage(found, "migrate", "--run-syncdb", "-v", "0")
    assert done.returncode == 0, done.stderr
    return found


def test_the_django_project_of_the_page_works(shop: FrameworkProject):
    shop.python(
        """
        import asyncio, django
        django.setup()
        from django.test import RequestFactory
        from shop import tasks, views
        request = RequestFactory().get("/")
        assert views.buy(request).status_code == 201
        asyncio.run(views.counted(request))
        assert tasks.remind.enqueue(7).id
        """,
        DJANGO_SETTINGS_MODULE="shop.settings",
    )
    work = shop.start("manage.py", "qd", "work", "default", "mail", "-w", "1", "--stop-when-empty")
    work.ends_clean()
    assert work.output == ["order 1 of ada@example.org is confirmed"]
    assert len(work.matches("job.done")) == 3
