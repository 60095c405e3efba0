"""The qd app that is measured: imported by `qd work`, and run as a program its producer."""

from datetime import UTC, datetime

from common import serve, write_stamp

from qd import Qd

app = Qd()


@app.job("bench.noop")
def noop() -> None:
    pass


@app.job("bench.stamp")
def stamp(label: str, at: int) -> None:
    write_stamp(label, at)


def bulk(jobs: int) -> None:
    for first in range(0, jobs, 1000):
        app.dispatch(*[noop.bind() for _ in range(min(1000, jobs - first))])


def later(label: str, due: int) -> None:
    stamp.using(delay=datetime.fromtimestamp(due / 1e9, UTC)).dispatch(label, due)


if __name__ == "__main__":
    serve(single=noop.dispatch, bulk=bulk, stamp=stamp.dispatch, later=later, size=app.queue("default").size)
