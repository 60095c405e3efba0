"""The tutorial and the console blocks of how-to pages, typed by a reader with a real server and worker."""

from __future__ import annotations

import re
import signal
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import pytest

from tests.support.pages import ROOT
from tests.support.payloads import failed
from tests.support.project import MakeProject
from tests.support.reader import Reader, blocks, edited
from tests.support.redis import FAILED, Client
from tests.support.waiting import eventually

FOLDER = ROOT / "docs" / "tutorial"
STORY = ["first-job", "retries-and-failures", "schedule-it", "test-it", "deploy-it"]


def text_of(page: str) -> str:
    return (FOLDER / f"{page}.md").read_text()


@pytest.fixture
def reader(project: MakeProject) -> Reader:
    """In an empty folder."""
    one = project(url="embedded:")
    one.allowed |= {".qd", "qd.schema.json"}
    for name in ("qd.toml", "jobs.py"):
        (one.root / name).unlink()
    return Reader(one)


@pytest.mark.parametrize("page", STORY)
def test_every_command_of_the_tutorial_prints_what_the_page_shows(page: str, reader: Reader) -> None:
    earlier = STORY[: STORY.index(page)]
    if earlier:
        assert reader.project.qd("init").returncode == 0
    for before in earlier:
        for kind, text in blocks(text_of(before)):
            if kind == "py":
                reader.edit(text)
    for block in blocks(text_of(page)):
        reader.read(block)
    assert reader.commands > 0
    if reader.work:
        reader.work.stop(signal.SIGINT)


def test_each_page_leads_to_the_next_one() -> None:
    assert sorted(STORY) == sorted(path.stem for path in FOLDER.glob("*.md"))
    for page, following in pairwise(STORY):
        *_, last = text_of(page).strip().splitlines()
        assert re.fullmatch(rf"Next: \[.*\]\({following}\.md\)", last), last
    for page in STORY:
        assert "\n## What you learned\n" in text_of(page)


def test_an_edit_replaces_the_function_of_the_same_name() -> None:
    old = "import a\n\n\n@a.b\ndef f():\n    return 1\n\n\ndef g(): ...\n"
    new = "@a.c\ndef f():\n    return 2\n\n\na.d(f)\n"
    assert edited(old, new) == "import a\n\n\n@a.c\ndef f():\n    return 2\n\n\ndef g(): ...\n\n\na.d(f)\n"


# --- backlog-after-an-outage.md

MAILS = """
def deliver() -> None:
    if Path("outage").exists():
        raise ConnectionError("the mail provider does not answer")

@app.job("mail.welcome", queue="mail")
def welcome(n: int) -> None:
    deliver()

@app.job("mail.invoice", queue="mail")
def invoice(n: int) -> None:
    deliver()

@app.job("mail.newsletter", queue="mail")
def newsletter(n: int) -> None:
    deliver()
"""


@pytest.mark.usefixtures("clean_redis")
@FAILED
@pytest.mark.leaves("qd:fleet")
def test_the_commands_of_the_page_clear_a_backlog(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=MAILS)
    outage = shop.root / "outage"
    outage.touch()
    shop.python(
        "from jobs import *; app.dispatch(*[welcome.bind(n) for n in range(9)], *[invoice.bind(n) for n in range(2)])"
    )
    shop.work_off()
    assert len(failed(redis, "mail")) == 11
    outage.unlink()  # the provider is back
    reader = Reader(shop, numbers=True)
    reader.start("mail", "-w", "2")
    first, *others = blocks((ROOT / "docs" / "how-to" / "backlog-after-an-outage.md").read_text())
    reader.read(first)  # the queue is paused, and jobs are sent
    shop.python(
        "from jobs import *; app.dispatch(*[newsletter.bind(n) for n in range(5)], *[welcome.bind(n) for n in range(3)])"
    )
    reader.names["ID"] = shop.python("from jobs import *; print(welcome.dispatch(0).id)").stdout.strip()
    done = shop.qd("failed", "list", "--job", "mail.welcome", "--json")
    reader.names["FAILED"] = re.findall(r'"id": "(\w+)"', done.stdout)[0]
    for block in others:
        reader.read(block)
    assert reader.work
    reader.work.wait_line(r"job\.done .*job=mail\.newsletter", 60, count=5)
    reader.work.stop()
    assert len(failed(redis, "mail")) == 2
    assert not reader.work.matches("job.failed")


# --- troubleshooting.md

SHOP = """
@app.job("mail.welcome", queue="mail")
def welcome(n: int = 0) -> None: ...
"""
NEW = """
@app.job("mail.new", queue="mail")
def new(n: int = 0) -> None: ...
"""
SEND = "from jobs import *; print(welcome.dispatch().id)"
SEND_LATER = "from jobs import *; print(welcome.using(delay=3600).dispatch().id)"
SEND_NEW = "from jobs import *; print(app.queue('mail').push('mail.new', {}).id)"


class Case(NamedTuple):
    cause: str
    before: str  # a command
    send: str
    fix: str  # a command


CASES = [
    Case("paused", "qd pause mail", SEND, "qd resume mail"),
    Case("down", "qd down", SEND, "qd up"),
    Case("delayed", "", SEND_LATER, "qd promote ID"),
    Case("unknown-job", "", SEND_NEW, "qd restart --rolling"),
]


@pytest.mark.usefixtures("clean_redis")
@pytest.mark.leaves("qd:restart")
def test_a_job_runs_after_the_fix_that_the_page_has_for_its_cause(project: MakeProject) -> None:
    shop = project(jobs=SHOP)
    page = (ROOT / "docs" / "troubleshooting.md").read_text()

    def has_cause(id: str, cause: str) -> bool:
        return shop.qd("why", id).stdout.split()[0] == cause

    id = shop.python(SEND).stdout.strip()
    assert has_cause(id, "no-worker")
    work = shop.work("mail", "-w", "1")
    work.wait_line(f"job.done .*id={id}")
    for case in CASES:
        assert re.search(rf"^\| .*`{case.cause}`.* \|$", page, re.MULTILINE), case
        if case.before:
            assert shop.qd(*case.before.split()[1:]).returncode == 0
        if case.cause == "down":  # workers notice it within two seconds
            work.child("worker 0 down")
        id = shop.python(case.send).stdout.strip()
        eventually(partial(has_cause, id, case.cause), 30, what=str(case))
        if case.send == SEND_NEW:
            shop.jobs(SHOP + NEW)
        assert shop.qd(*[id if word == "ID" else word for word in case.fix.split()[1:]]).returncode == 0
        work.wait_line(f"job.done .*id={id}", 60)
    work.stop()
