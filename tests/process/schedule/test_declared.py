"""Entries of every kind, of the code and of qd.toml, as the real `qd work` runs them."""

from __future__ import annotations

import pytest

from tests.support.project import MakeProject
from tests.support.witness import JOBS, Witness

pytestmark = [
    pytest.mark.usefixtures("clean_redis"),
    pytest.mark.leaves("qd:ticks", "qd:schedule:*", "queues:*"),
]

SCHEDULE = (
    JOBS
    + """
@app.job("keyed")
def keyed() -> None:
    note("keyed")

def touch() -> None:
    note("function")

async def atouch() -> None:
    note("async")

app.schedule(quick.bind(1)).every_second()
app.schedule(quick, every=0.5)
app.schedule(app.chain(quick.bind(2), quick.bind(3))).every(0.5)
app.schedule(keyed.using(key="one", delay=0.1)).every(0.5)
app.schedule(atouch).every(0.5).environments("production")
app.schedule(touch).every(0.5).environments("staging").name("not here")
app.schedule(touch).every(0.5).when(lambda: False).name("never")
app.schedule.shell("echo line >> witness;echo", "a 'b'", {"c": "$HOME"}).every(0.5).output_to("output")
"""
)

FILE = """
[schedule.entries.job]
job = "quick"
args = {n = 7}
every = "500ms"

[schedule.entries.function]
call = "jobs:touch"
cron = "* * * * * *"

[schedule.entries.command]
qd = "declared"
in_background = true
without_overlapping = true
every = "500ms"
output_to = "jobs"
"""


def test_entries_of_every_kind_run_where_they_are_meant_to(project: MakeProject):
    shop = project(SCHEDULE, FILE)
    shop.allowed |= {"output", "jobs"}
    witness, work = Witness(shop), shop.work("-w", "1", QD_ENV="production")
    for word in ("quick 0", "quick 1", "quick 2", "quick 3", "quick 7", "keyed", "async", "function", "line"):
        witness.wait(word)
    work.wait_line("schedule.done entry=command")
    work.stop()
    assert not work.matches('entry="not here"')
    assert not work.matches("schedule.(started|sent) entry=never")
    assert (shop.root / "output").read_text() == "a 'b' --c=$HOME\n"
    assert "quick" in (shop.root / "jobs").read_text()


def test_a_wrong_entry_ends_the_start_with_its_line(project: MakeProject):
    shop = project("app.schedule(print).weekdays()", "[schedule.entries.a]\nshell = 'true'\nevery = 1")
    work = shop.work("-w", "1")
    assert work.wait() == 3
    work.wait_line(r"jobs.py:\d+ is wrong: it has days but no time")
