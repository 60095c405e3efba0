"""app.chain(..., pass_results=True): each job gets the result of the one before it, also if payloads are signed."""

from __future__ import annotations

from tests.contract.features.conftest import Cell, add_jobs
from tests.contract.kinds import Tried, ready
from tests.support.waiting import eventually

FEATURE = "Results passed along a chain"
JOBS = """
from dataclasses import dataclass

@dataclass
class Film:
    title: str
    minutes: int

@app.job("film.fetch")
async def fetch(title: str) -> Film:
    return Film(title, 90)

@app.job("film.cut", tries=2, backoff=0)
def cut(film: Film, minutes: int) -> Film:
    if current_job().attempt == 1:
        raise ValueError("the first attempt fails")
    return Film(film.title, film.minutes - minutes)

@app.job("film.publish")
def publish(film: Film) -> None:
    note("P", film.title.replace(" ", "_"), film.minutes, current_job().attempt)
"""
SENDER = """
from jobs import app, cut, fetch, publish

app.chain(fetch.bind("Vertigo / Ä"), cut.link(minutes=7), publish.link(), pass_results=True).dispatch()
"""


def test_each_job_of_a_chain_gets_the_result_of_the_one_before_it(tried: Tried, cell: Cell) -> None:
    add_jobs(tried, JOBS)
    tried.shop.config('[signing]\nkeys = ["2026a:a-secret-that-is-long-enough"]')
    work = ready(tried.shop)
    tried.shop.python(SENDER)
    (note,) = eventually(lambda: tried.shop.notes, 40, what="the last job of the chain")
    assert (note[:4], cell) == (["P", "Vertigo_/_Ä", "83", "1"], "works")
    eventually(tried.empty)
    assert tried.failed() == []
    work.stop()
