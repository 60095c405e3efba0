"""Compares qd with Laravel's database driver on the same servers, in turn, round after round: "Databases" in RESULTS.md.

    python bench/database.py [--rounds 3] [--jobs 3000] [--write]

PostgreSQL and MariaDB fsync each commit; SQLite runs as qd opens it. Each side has one worker process. The drain rate is
measured in the table: from a tenth of the rows gone until no row is left.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
sys.path[:0] = [str(ROOT), str(ROOT / "daemon")]

import sqlalchemy as sql  # noqa: E402

from tests.support.servers.mariadb import MariaDb  # noqa: E402
from tests.support.servers.postgres import Postgres  # noqa: E402

NOOP = {
    "qd": '{"displayName":"bench.noop","job":"bench.noop","data":{},"createdAt":1,"id":"%032d","attempts":0,"delay":null}',
    "laravel": '{"uuid":"%d","displayName":"Noop","job":"Noop","maxTries":null,"maxExceptions":null,"failOnTimeout":false,'
    '"backoff":null,"timeout":null,"data":""}',
}
SAMPLES = 150  # pickups per round


class Target:
    """A database with its tables, and the workers that use it."""

    def __init__(self, kind: str, url: str, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        self.engine = sql.create_engine(url, poolclass=sql.NullPool)
        folder.mkdir()
        (folder / "qd.toml").write_text(
            f'[qd]\napp = "qd_app:app"\ndefault = "db"\ncontrol = "db"\n\n[connections.db]\nurl = "{url}"\n'
        )
        self.env = {key: value for key, value in os.environ.items() if not key.startswith(("QD_", "REDIS"))}
        self.env |= {"PYTHONPATH": f"{ROOT / 'daemon'}:{BENCH / 'peers'}", "BENCH_TMP": str(folder)}
        self.env |= {"BENCH_FIFO": str(folder / "fifo"), "BENCH_DATABASE": json.dumps(php_config(self.engine.url))}
        subprocess.run([*QD, "migrate"], cwd=folder, env=self.env, check=True, stdout=subprocess.DEVNULL)
        os.mkfifo(folder / "fifo")

    @contextmanager
    def worker(self, peer: str) -> Iterator[None]:
        argv = [*QD, "work", "-w", "1", "--log-level", "warning"]
        if peer == "laravel":
            argv = ["php", str(BENCH / "peers" / "laravel.php"), "work"]
        with (self.folder / f"{peer}.log").open("ab") as log:
            process = subprocess.Popen(argv, cwd=self.folder, env=self.env, stdout=log, stderr=log)
            try:
                yield
            finally:
                process.terminate()
                process.wait(30)

    def drain(self, peer: str, jobs: int) -> float:
        """Jobs per second."""
        with self.engine.begin() as connection:
            rows = [{"payload": NOOP[peer] % number} for number in range(jobs)]
            connection.execute(sql.text(INSERT), rows)
            if self.kind == "PostgreSQL":
                connection.execute(sql.text("ANALYZE jobs"))
        with self.worker(peer), self.engine.connect() as connection:
            began = self.wait(connection, jobs * 9 // 10)
            return jobs * 0.9 / (self.wait(connection, 0) - began)

    def wait(self, connection: sql.Connection, left: int) -> float:
        """Wait until at most `left` rows remain. Returns the monotonic time."""
        until = time.monotonic() + 300
        while time.monotonic() < until:
            found = connection.execute(sql.text("SELECT count(*) FROM jobs")).scalar_one()
            connection.rollback()
            if found <= left:
                return time.monotonic()
            time.sleep(0.02)
        raise TimeoutError(f"{self.kind}: jobs remain: {(self.folder / 'qd.log').read_text()[-500:]}")

    def pickup(self) -> list[float]:
        """Milliseconds from just before the push to the first line of the job, the worker idle at each push."""
        producer = [sys.executable, str(BENCH / "peers" / "qd_app.py")]
        with self.worker("qd"), subprocess.Popen(
            producer, cwd=self.folder, env=self.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as dispatcher, os.fdopen(os.open(self.folder / "fifo", os.O_RDWR)) as stamps:  # fmt: skip
            waits = []
            for number in range(-10, SAMPLES):
                self.send(dispatcher, do="stamp", label=str(number))
                _, at, started, *_ = stamps.readline().split()
                if number >= 0:
                    waits.append((int(started) - int(at)) / 1e6)
                time.sleep(0.04)
            assert dispatcher.stdin is not None
            dispatcher.stdin.close()
        return waits

    def send(self, dispatcher: Any, **order: object) -> None:
        dispatcher.stdin.write(json.dumps(order) + "\n")
        dispatcher.stdin.flush()
        dispatcher.stdout.readline()


QD = [sys.executable, "-m", "qd"]
INSERT = (
    "INSERT INTO jobs (queue, payload, attempts, reserved_at, available_at, created_at)"
    " VALUES ('default', :payload, 0, NULL, 1, 1)"
)


def php_config(url: sql.URL) -> dict[str, object]:
    driver = {"postgresql": "pgsql", "mysql": "mysql", "sqlite": "sqlite"}[url.get_backend_name()]
    if driver == "sqlite":
        return {"driver": driver, "database": url.database}
    found: dict[str, object] = {"host": url.host, "port": url.port, "username": url.username, "password": ""}
    return {"driver": driver, "database": url.database, "charset": "utf8" if driver == "pgsql" else "utf8mb4", **found}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=3000)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    rates: dict[tuple[str, str], list[float]] = {}
    waits: dict[str, list[float]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="qd-bench-") as folder,
        Postgres(durable=True) as postgres,
        MariaDb(durable=True) as maria,
    ):
        home = Path(folder)
        targets = [
            Target("PostgreSQL", postgres.fresh_database(), home / "postgres"),
            Target("MariaDB", maria.fresh_database(), home / "mariadb"),
            Target("SQLite", f"sqlite:///{home / 'jobs.sqlite'}", home / "sqlite"),
        ]
        for number in range(args.rounds):
            for target in targets:
                for peer in ("qd", "laravel") if number % 2 else ("laravel", "qd"):
                    rate = target.drain(peer, args.jobs)
                    rates.setdefault((target.kind, peer), []).append(rate)
                    print(f"round {number + 1}: {target.kind} {peer} {rate:,.0f} jobs/s", file=sys.stderr, flush=True)
                waits.setdefault(target.kind, []).extend(target.pickup())
        text = table(targets, rates, waits, args.rounds, args.jobs)
    print(text)
    if args.write:
        page = BENCH / "RESULTS.md"
        before, _, rest = page.read_text().partition("## Databases\n")
        _, head, behind = rest.partition("\n## ")
        page.write_text(before.rstrip() + "\n\n" + text + ("\n## " + behind if head else "\n"))
    return 0


def table(
    targets: list[Target],
    rates: dict[tuple[str, str], list[float]],
    waits: dict[str, list[float]],
    rounds: int,
    jobs: int,
) -> str:
    lines = [
        "## Databases", "",
        f"Made by `python bench/database.py --write` on {time.strftime('%Y-%m-%d', time.gmtime())}: {rounds} rounds in",
        f"turn, {jobs} jobs each, load {os.getloadavg()[0]:.1f} at the end. One worker process on each side; PostgreSQL and",
        "MariaDB wait for the disk at each commit.",
        "",
        "|  | qd, jobs/s ↑ | Laravel's database driver | pickup on an idle queue, p50, ms ↓ | p99 |",
        "| --- | --: | --: | --: | --: |",
    ]  # fmt: skip
    for target in targets:
        ours, theirs = median(rates[target.kind, "qd"]), median(rates[target.kind, "laravel"])
        found = sorted(waits[target.kind])
        quick, slow = found[len(found) // 2], found[len(found) * 99 // 100]
        lines.append(
            f"| {target.kind} | **{ours:,.0f}** | {theirs:,.0f} ({ours / theirs:.1f} x) | {quick:.1f} | {slow:.1f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
