"""A deploy that changes a job's arguments while workers of both codes are killed."""

from __future__ import annotations

import random
from functools import partial

import pytest

from qd.payload.build import make
from tests.support.payloads import push_raw
from tests.support.project import MakeProject
from tests.support.redis import Client
from tests.support.reliability import Figures
from tests.support.waiting import eventually

# The parameter keeps its name: version 1 has euros, version 2 cents.
FIRST = """
def note(*words):
    fd = os.open(os.environ["NOTES"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, (" ".join(map(str, words)) + "\\n").encode())
    os.close(fd)

@app.job("priced", tries=1)
def priced(n: int, price: int) -> None:
    time.sleep(0.02)
    note(n, 1, 100 * price)
"""
SECOND = (
    FIRST[: FIRST.index("@app.job")]
    + """
def from_v1(data):
    return {"n": data["n"], "price": 100 * data["price"]}

@app.job("priced", version=2, upgrade={1: from_v1}, tries=1)
def priced(n: int, price: int) -> None:
    time.sleep(0.02)
    note(n, 2, price)
"""
)
COUNT = 120


@pytest.mark.fault(
    "66",
    "kill -9 of workers with older and newer code, while payloads of both versions arrive",
    "each job runs with the arguments that were meant; older code runs no newer payload; none fails",
)
@pytest.mark.leaves("queues:*:deaths")
def test_each_code_runs_what_it_understands(
    project: MakeProject, clean_redis: Client, figures: Figures, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, newer = project(jobs=FIRST), project(jobs=SECOND)
    notes, draw, kills = older.root.parent / "notes", random.Random(7), 0
    monkeypatch.setenv("NOTES", str(notes))
    works = [shop.work("-w", "2", "--max-crashes", "1000") for shop in (older, newer)]
    for work in works:
        work.wait_line("master.ready", 30)
    for n in range(COUNT):
        data = f'{{"n":{n},"price":7}}' if n % 2 else f'{{"n":{n},"price":9}}'
        push_raw(clean_redis, make("priced", data.encode(), version=2 - n % 2, created_at=1))

    def ended() -> list[list[int]]:
        return (
            [[int(word) for word in line.split()] for line in notes.read_text().splitlines()] if notes.exists() else []
        )

    def reached(count: int) -> bool:
        return len({n for n, *_ in ended()}) >= count

    for share in (10, 25, 40, 55):  # older code can run half of the jobs
        eventually(partial(reached, share), 60, what=f"{share} jobs")
        for work in works:
            draw.choice(work.children("qd: worker")).kill()
            kills += 1
    works[0].stop()  # the deploy is complete
    eventually(partial(reached, COUNT), 90, what="all jobs")
    eventually(lambda: not clean_redis.call("EXISTS", "queues:default", "queues:default:reserved"), 30)
    works[1].stop()
    for n, code, cents in ended():
        assert cents == (700 if n % 2 else 9), (n, code, cents)
        assert n % 2 or code == 2, "older code has run a newer payload"
    assert clean_redis.call("EXISTS", "queues:default:failed") == 0
    assert len(ended()) - COUNT <= 8 * kills  # up to eight jobs run in a worker
    figures.add(doubles=len(ended()) - COUNT)
