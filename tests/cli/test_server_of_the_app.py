"""Commands find the server that only the app names, Qd("sqlite:..."), whatever -c and the environment say of others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.project import MakeProject, Project

JOBS = """
from qd import Qd

app = Qd("sqlite:///{file}")


@app.job("note")
def note() -> None: ...
"""
CACHE = "redis://127.0.0.1:1/0"  # nothing listens there


@pytest.fixture
def shop(project: MakeProject, tmp_path: Path) -> Project:
    found = project()
    (found.root / "jobs.py").write_text(JOBS.format(file=tmp_path / "jobs.sqlite"))
    (found.root / "qd.toml").write_text('[qd]\napp = "jobs:app"\n')
    assert found.qd("migrate").returncode == 0
    assert found.qd("dispatch", "note").returncode == 0
    return found


def ready(shop: Project, *words: str, **env: str) -> int:
    done = shop.qd("status", "--json", *words, seconds=60.0, **env)
    assert done.returncode == 0, done.stderr
    (queue,) = json.loads(done.stdout)["queues"]
    return int(queue["ready"])


def test_its_connection_can_be_named(shop: Project) -> None:
    assert ready(shop, "-c", "database") == 1
    assert shop.qd("failed", "list", "-c", "database").returncode == 0
    work = shop.qd("work", "-c", "database", "-w", "1", "--stop-when-empty")
    assert work.returncode == 0, work.stderr
    assert "job.done queue=default job=note" in work.stderr


def test_an_unknown_connection_is_refused_in_one_line(shop: Project) -> None:
    for words in (("status",), ("work", "-w", "1"), ("dispatch", "note")):
        for name in ("sqs", "nope"):
            done = shop.qd(*words, "-c", name)
            assert done.returncode == 78
            assert f"unknown connection '{name}' (flag --connection)" in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


def test_the_redis_url_of_a_cache_is_not_taken_for_the_server(shop: Project) -> None:
    assert ready(shop, REDIS_URL=CACHE) == 1


@pytest.mark.parametrize("place", ["file", "code", "REDIS_URL"])
def test_commands_workers_and_producers_agree_on_the_server_whatever_redis_url_says(shop: Project, place: str) -> None:
    code, file, cache = (shop.url if place == each else "" for each in ("code", "file", "REDIS_URL"))
    named = f'Qd("{code}")' if code else "Qd()"
    (shop.root / "jobs.py").write_text(f'from qd import Qd\napp = {named}\n@app.job("note")\ndef note() -> None: ...\n')
    text = f'[connections.redis]\nurl = "{file}"\n' if file else ""
    (shop.root / "qd.toml").write_text(f'[qd]\napp = "jobs:app"\n{text}')
    url = cache or CACHE
    assert shop.python("import jobs; jobs.note.dispatch()", REDIS_URL=url).returncode == 0
    assert ready(shop, REDIS_URL=url) == 1
    work = shop.qd("work", "-w", "1", "--stop-when-empty", REDIS_URL=url)
    assert "job.done queue=default job=note" in work.stderr
    assert ready(shop, REDIS_URL=url) == 0


def test_qd_redis_url_overrides_it_for_commands_workers_and_producers(shop: Project) -> None:
    url = shop.url
    assert ready(shop, QD_REDIS_URL=url) == 0
    assert shop.qd("dispatch", "note", QD_REDIS_URL=url).returncode == 0
    assert ready(shop, QD_REDIS_URL=url) == 1
    work = shop.qd("work", "-w", "1", "--stop-when-empty", QD_REDIS_URL=url)
    assert "master.started" in work.stderr
    assert "connection=redis" in work.stderr
    assert ready(shop, QD_REDIS_URL=url) == 0
    assert ready(shop) == 1  # the one in SQLite
    done = shop.qd("status", "-c", "database", QD_REDIS_URL=url)
    assert (done.returncode, "unknown connection 'database'" in done.stderr) == (78, True)


def test_the_redis_url_is_used_with_a_note_if_the_app_does_not_import(shop: Project) -> None:
    (shop.root / "jobs.py").write_text("1 / 0")
    done = shop.qd("status", REDIS_URL=CACHE)
    assert done.returncode == 69
    assert "does not import: ZeroDivisionError" in done.stderr
    assert "using the url of environment REDIS_URL" in done.stderr
