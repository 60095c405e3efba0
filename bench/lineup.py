"""The peers: how each one is installed and started, which measures it takes part in, and its versions.

Each peer has an environment of its own below .venv-bench, because their requirements contradict each other.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
APPS = BENCH / "peers"
VENV = ROOT / ".venv-bench"

PYTHON_PEERS = {
    "celery": ["celery[redis]==5.7.0"],
    "rq": ["rq==3.0.0"],
    "arq": ["arq==0.28.0"],
    "saq": ["saq[redis]==0.26.4", "typing_extensions"],  # it imports the second one without requiring it
    "taskiq": ["taskiq==0.13.0", "taskiq-redis==1.2.4"],
    "streaq": ["streaq==7.2.0"],
}
NODE_PEERS = {"bullmq": ["bullmq@6.7.0", "ioredis@5"]}

Argv = list[str]


@dataclass(frozen=True)
class Setup:
    """How a peer's workers are started for a measure. note: what differs from the peer's defaults, for the table."""

    argvs: list[Argv]
    note: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Peer:
    """setups: name -> how its workers are started.

        one      a worker that keeps running                     many     eight workers
        drain    exits when the queue is empty, if `leaves`      later    also runs delayed jobs
        two      two workers                                     ranked   takes from `high` before `default`
        io       many jobs at once                               sleep    1,000 at once
        kill     500 at once

    measures: those in which it takes part. jobs: no-op jobs of a drain, chosen so that a sample takes a few seconds; `io`
    the same with many jobs at once. bulk 0: the peer has no bulk call. leaves: see above. gathers: has awaited calls.
    killed: at the end of a sample, since some of them take ten seconds to obey TERM.
    """

    name: str
    producer: Argv
    setups: Mapping[str, Setup]
    measures: tuple[str, ...]
    jobs: int
    io: int = 0
    single: int = 0
    bulk: int = 0
    leaves: bool = False
    gathers: bool = False
    killed: bool = True
    path: list[Path] = field(default_factory=lambda: [APPS])
    absent: Callable[[], str | None] = lambda: None


ONE_BY_ONE = ("drain", "two", "commands", "enqueue", "pickup", "late", "idle", "memory", "start")


# --- qd


@cache
def supports(flag: str) -> bool:
    """Whether `qd work` of this checkout has the flag."""
    argv = [sys.executable, "-m", "qd", "work", "--help"]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "daemon"), "COLUMNS": "200"}
    return flag in subprocess.run(argv, capture_output=True, text=True, check=True, env=env).stdout


def lacks(flag: str) -> Callable[[], str | None]:
    return lambda: None if supports(flag) else f"qd work of this checkout has no {flag}"


def _qd_work(*flags: str) -> Argv:
    return [sys.executable, "-m", "qd", "work", "--app", "qd_app:app", "--log-level", "warning", *flags]


def _qd_one_by_one(*flags: str) -> dict[str, Setup]:
    return {
        "one": Setup([_qd_work("-w", "1", *flags)]),
        "drain": Setup([_qd_work("-w", "1", "--stop-when-empty", *flags)]),
        "two": Setup([_qd_work("-w", "2", "--stop-when-empty", *flags)]),
        "many": Setup([_qd_work("-w", "8", *flags)]),
        "later": Setup([_qd_work("-w", "1", *flags)]),
        "ranked": Setup([_qd_work("high", "default", "-w", "1", *flags)]),
    }


def _qd(
    name: str, setups: dict[str, Setup], measures: tuple[str, ...], *, source: Path = ROOT, flag: str | None = None
) -> Peer:
    return Peer(
        name=name,
        producer=[sys.executable, str(APPS / "qd_app.py")],
        setups=setups,
        measures=measures,
        leaves=True,
        killed=False,
        jobs=30_000,
        io=30_000,
        single=20_000,
        bulk=200_000,
        gathers=source == ROOT,
        path=[APPS, source / "daemon"],
        absent=lacks(flag) if flag else lambda: None,
    )


def _qds() -> list[Peer]:
    """qd with its defaults, with prefetch switched off, and with concurrency."""

    def concurrent(number: int) -> Setup:
        return Setup([_qd_work("-w", "1", "--concurrency", str(number))], note=f"concurrency={number}")

    ordinary = (*ONE_BY_ONE, "naps", "urgent")
    one_at_a_time = ("drain", "two", "commands", "pickup", "naps", "urgent")
    at_once = ("io", "sleep", "pickup", "idle", "start", "kill", "kill_tree", "blocked")
    setups = {"one": concurrent(100), "io": concurrent(100), "sleep": concurrent(1000), "kill": concurrent(500)}
    return [
        _qd("qd auto" if supports("--prefetch") else "qd", _qd_one_by_one(), ordinary),
        _qd("qd prefetch=1", _qd_one_by_one("--prefetch", "1"), one_at_a_time, flag="--prefetch"),
        _qd("qd", setups, at_once, flag="--concurrency"),
    ]


def earlier_qd(commit: str, source: Path) -> Peer:
    """qd of another commit, checked out at `source`."""
    return _qd(f"qd {commit}", _qd_one_by_one(), (*ONE_BY_ONE, "naps", "urgent"), source=source)


# --- one job at a time


def _laravel() -> Peer:
    php = ["php", str(APPS / "laravel.php")]
    one = [*php, "work"]
    return Peer(
        name="Laravel",
        producer=[*php, "produce"],
        setups={
            "one": Setup([one]),
            "drain": Setup([[*one, "stop-when-empty"]]),
            "two": Setup([[*one, "stop-when-empty"]] * 2),
            "many": Setup([one] * 8),
            "later": Setup([[*one, "poll"]]),
        },
        measures=ONE_BY_ONE,
        leaves=True,
        jobs=10_000,
        single=20_000,
        bulk=100_000,
        absent=_php_missing,
    )


def _sidekiq() -> Peer:
    app = str(APPS / "sidekiq.rb")
    one = ["sidekiq", "-r", app, "-c", "1", "-q", "default"]
    return Peer(
        name="Sidekiq",
        producer=["ruby", app, "produce"],
        setups={
            "one": Setup([one]),
            "drain": Setup([one]),
            "two": Setup([one] * 2),
            "many": Setup([one] * 8),
            "ranked": Setup([["sidekiq", "-r", app, "-c", "1", "-q", "high", "-q", "default"]]),
        },
        measures=("drain", "two", "commands", "enqueue", "pickup", "idle", "memory", "start", "urgent"),
        jobs=30_000,
        single=10_000,
        bulk=100_000,
        absent=lambda: None if shutil.which("sidekiq") else "no sidekiq on PATH (Debian: apt install ruby-sidekiq)",
    )


def _celery() -> Peer:
    def work(*flags: str) -> Argv:
        return [python_of("celery"), "-m", "celery", "-A", "celery_app", "worker", "-l", "WARNING", *flags]

    one = Setup([work("-P", "solo")])
    return Peer(
        name="celery",
        producer=[python_of("celery"), str(APPS / "celery_app.py")],
        setups={"one": one, "drain": one, "many": Setup([work("-c", "8")]), "later": one},
        measures=("drain", "commands", "enqueue", "pickup", "late", "idle", "memory", "start"),
        jobs=3_000,
        single=5_000,
        absent=lambda: _not_installed("celery"),
    )


def _rq() -> Peer:
    def run(command: str, *flags: str) -> Setup:
        kind = ["-w", "rq.SimpleWorker"]
        url = ["--logging_level", "WARNING"] if command == "worker" else ["--logging-level", "WARNING"]
        return Setup([[str(VENV / "rq" / "bin" / "rq"), command, *kind, *url, *flags, "default"]])

    return Peer(
        name="rq",
        producer=[python_of("rq"), str(APPS / "rq_app.py")],
        setups={
            "one": run("worker"),
            "drain": run("worker", "--burst"),
            "many": run("worker-pool", "-n", "8"),
            "later": run("worker", "--with-scheduler"),
        },
        measures=("drain", "commands", "enqueue", "pickup", "late", "idle", "memory", "start"),
        leaves=True,
        jobs=1_000,
        single=3_000,
        bulk=10_000,
        absent=lambda: _not_installed("rq"),
    )


# --- many jobs at once


def _async(name: str, work: Callable[[int], Argv], said: str, *, jobs: int, io: int) -> Peer:
    """A peer whose workers run many coroutines; `said` is what it calls their number. The number is in work's arguments or,
    for an app that sets it itself, in the environment. jobs 0: it looks for jobs every half second, so that
    one at a time, and pickup, make no sense."""

    def setup(number: int) -> Setup:
        return Setup([work(number)], note=f"{said}={number}", env={"BENCH_CONCURRENCY": str(number)})

    key = name.lower()
    return Peer(
        name=name,
        producer=[python_of(key), str(APPS / f"{key}_app.py")],
        setups={
            "one": setup(100),
            "drain": setup(1),
            "io": setup(100),
            "sleep": setup(1000),
        },
        measures=("drain", "io", "sleep", "pickup") if jobs else ("io", "sleep"),
        jobs=jobs,
        io=io,
        absent=lambda: _not_installed(key),
    )


def _program(key: str, name: str) -> str:
    return str(VENV / key / "bin" / name)


def _bullmq() -> Peer:
    def setup(number: int) -> Setup:
        return Setup([["node", str(APPS / "bullmq.mjs"), "work", str(number)]], note=f"concurrency={number}")

    return Peer(
        name="BullMQ",
        producer=["node", str(APPS / "bullmq.mjs"), "produce"],
        setups={
            "one": setup(50),
            "drain": Setup(setup(1).argvs),
            "two": Setup(setup(1).argvs * 2),
            "io": setup(50),
            "sleep": setup(1000),
        },
        measures=("drain", "two", "commands", "io", "sleep", "pickup"),
        jobs=12_000,
        io=20_000,
        absent=lambda: _not_installed("bullmq"),
    )


def _taskiq_work(number: int) -> Argv:
    flags = ["--workers", "1", "--max-async-tasks", str(number), "--log-level", "WARNING", "--shutdown-timeout", "1"]
    return [_program("taskiq", "taskiq"), "worker", "taskiq_app:broker", *flags]


def peers(before: Peer | None = None) -> dict[str, Peer]:
    """In the order of the tables, keyed by the name that --peers accepts. before: an earlier qd."""
    quiet = [_program("saq", "saq"), "saq_app.settings", "--quiet"]
    default, alone, concurrent = _qds()
    everyone = {"qd": default, "prefetch=1": alone, "concurrency": concurrent}
    if before is not None:
        everyone["before"] = before
    others = (
        _laravel(),
        _sidekiq(),
        _bullmq(),
        _celery(),
        _rq(),
        _async("arq", lambda _: [_program("arq", "arq"), "arq_app.Worker"], "max_jobs", jobs=0, io=3_000),
        _async("SAQ", lambda _: quiet, "concurrency", jobs=4_000, io=6_000),
        _async("taskiq", _taskiq_work, "max_async_tasks", jobs=8_000, io=12_000),
        _async(
            "streaq",
            lambda _: [_program("streaq", "streaq"), "run", "streaq_app:worker"],
            "concurrency",
            jobs=2_500,
            io=4_000,
        ),
    )
    return everyone | {peer.name.lower(): peer for peer in others}


# --- installation


def python_of(key: str) -> str:
    return _program(key, "python")


def install(keys: set[str]) -> None:
    """Install these peers, each in its folder, once. The stamp of a folder lists what it holds. A peer that cannot be
    installed is left out of the run."""
    for key in sorted(keys & {*PYTHON_PEERS, *NODE_PEERS}):
        wanted = PYTHON_PEERS.get(key) or NODE_PEERS[key]
        stamp = VENV / key / ".installed"
        if stamp.exists() and stamp.read_text().split() == wanted:
            continue
        print(f"installing {' '.join(wanted)} into {VENV.name}/{key} ...", file=sys.stderr)
        shutil.rmtree(VENV / key, ignore_errors=True)
        with suppress(subprocess.CalledProcessError, FileNotFoundError):
            (_install_node if key in NODE_PEERS else _install_python)(key, wanted)
            stamp.write_text("\n".join(wanted))


def _install_python(key: str, wanted: list[str]) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(VENV / key)], check=True)
    pip = [python_of(key), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *wanted], check=True)


def _install_node(key: str, wanted: list[str]) -> None:
    (VENV / key).mkdir(parents=True)
    npm = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"]
    subprocess.run([*npm, *wanted], check=True, cwd=VENV / key, stdout=subprocess.DEVNULL)


def _not_installed(key: str) -> str | None:
    return None if (VENV / key / ".installed").exists() else f"it could not be installed into {VENV.name}/{key}"


def _php_missing() -> str | None:
    check = "require 'Illuminate/Queue/autoload.php'; echo extension_loaded('redis') ? 'yes' : 'no';"
    if _output_words(["php", "-r", check]) == ["yes"]:
        return None
    return "no PHP with phpredis and illuminate/queue (Debian: apt install php-redis php-illuminate-queue)"


def versions() -> dict[str, str]:
    """Program -> version, as each program reports it."""
    found = {"qd": _output_words(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"])}
    found["python"] = [sys.version.split()[0]]
    for key in PYTHON_PEERS:
        code = f"from importlib.metadata import version; print(version({key!r}))"
        found[key] = _output_words([python_of(key), "-c", code])
    found["redis-py (celery, rq)"] = _output_words(
        [python_of("rq"), "-c", "from importlib.metadata import version; print(version('redis'))"]
    )
    of_php = _output_words(["php", "-r", "echo PHP_VERSION.' '.phpversion('redis');"])
    found |= {"php": of_php[:1], "phpredis": of_php[1:]}
    found["illuminate/queue"] = _output_words(["dpkg-query", "-W", "-f", "${Version}", "php-illuminate-queue"])
    found["ruby"] = _output_words(["ruby", "-e", "print RUBY_VERSION"])
    found["sidekiq"] = _output_words(["sidekiq", "--version"])[1:]
    found["node"] = _output_words(["node", "--version"])
    package = VENV / "bullmq" / "node_modules" / "bullmq" / "package.json"
    found["bullmq"] = _output_words(["node", "-p", f"require({str(package)!r}).version"])
    return {name: words[0] for name, words in found.items() if words}


def _output_words(argv: Argv) -> list[str]:
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.split()
    except FileNotFoundError:
        return []
