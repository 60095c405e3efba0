"""The peers: how each one's worker and producer are started, how many jobs it gets, and its versions."""

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
APPS = BENCH / "peers"
VENV = ROOT / ".venv-bench"
PEER_PYTHON = str(VENV / "bin" / "python")

PYTHON_PEERS = {"celery", "rq"}  # installed in a separate environment, which needs network

Argv = list[str]


@dataclass(frozen=True)
class Peer:
    """`one`: a worker that keeps running. `drain`: a worker that exits when the queue is empty, if the peer supports it
    (`leaves`). `many`: eight workers, as the peer's users run them. `later`: a worker that also runs delayed jobs.

    Job counts are chosen so that one sample takes a few seconds; `bulk` 0 means that the peer has no bulk call.
    """

    name: str
    producer: Argv
    one: Argv
    drain: Argv
    many: list[Argv]
    later: Argv
    leaves: bool
    jobs: int
    single: int
    bulk: int
    path: list[Path] = field(default_factory=lambda: [APPS])


def _qd() -> Peer:
    def work(*flags: str) -> Argv:
        return [sys.executable, "-m", "qd", "work", "--app", "qd_app:app", "--log-level", "warning", *flags]

    one = work("-w", "1")
    return Peer(
        name="qd",
        producer=[sys.executable, str(APPS / "qd_app.py")],
        one=one,
        drain=work("-w", "1", "--stop-when-empty"),
        many=[work("-w", "8")],
        later=one,
        leaves=True,
        jobs=40_000,
        single=20_000,
        bulk=200_000,
        path=[APPS, ROOT / "daemon"],
    )


def _laravel() -> Peer:
    php = ["php", str(APPS / "laravel.php")]
    one = [*php, "work"]
    return Peer(
        name="Laravel",
        producer=[*php, "produce"],
        one=one,
        drain=[*one, "stop-when-empty"],
        many=[one] * 8,
        later=[*one, "poll"],
        leaves=True,
        jobs=15_000,
        single=20_000,
        bulk=100_000,
    )


def _celery() -> Peer:
    def work(*flags: str) -> Argv:
        return [PEER_PYTHON, "-m", "celery", "-A", "celery_app", "worker", "-l", "WARNING", *flags]

    one = work("-P", "solo")
    return Peer(
        name="celery",
        producer=[PEER_PYTHON, str(APPS / "celery_app.py")],
        one=one,
        drain=one,
        many=[work("-c", "8")],
        later=one,
        leaves=False,
        jobs=4_000,
        single=5_000,
        bulk=0,
    )


def _rq() -> Peer:
    def run(command: str, *flags: str) -> Argv:
        kind = ["-w", "rq.SimpleWorker"]
        url = ["--logging_level", "WARNING"] if command == "worker" else ["--logging-level", "WARNING"]
        return [str(VENV / "bin" / "rq"), command, *kind, *url, *flags, "default"]

    one = run("worker")
    return Peer(
        name="rq",
        producer=[PEER_PYTHON, str(APPS / "rq_app.py")],
        one=one,
        drain=run("worker", "--burst"),
        many=[run("worker-pool", "-n", "8")],
        later=run("worker", "--with-scheduler"),
        leaves=True,
        jobs=1_500,
        single=3_000,
        bulk=10_000,
    )


def peers() -> dict[str, Peer]:
    """In the order of the tables, keyed by the name that --peers accepts."""
    return {peer.name.lower(): peer for peer in (_qd(), _laravel(), _celery(), _rq())}


def install() -> None:
    """Install the Python peers into their environment, once. The stamp is a copy of the installed requirements file."""
    wanted = (APPS / "requirements.txt").read_text()
    stamp = VENV / ".installed"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"installing the peers into {VENV.name} ...", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)
    pip = [PEER_PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-r", str(APPS / "requirements.txt")], check=True)
    stamp.write_text(wanted)


def absent(peer: Peer) -> str | None:
    """Why this peer cannot run here, or None."""
    if peer.name != "Laravel":
        return None
    check = "require 'Illuminate/Queue/autoload.php'; echo extension_loaded('redis') ? 'yes' : 'no';"
    if _output_words(["php", "-r", check]) == ["yes"]:
        return None
    return "no PHP with phpredis and illuminate/queue (Debian: apt install php-redis php-illuminate-queue)"


def versions() -> dict[str, str]:
    """Program -> version, as each program reports it."""
    python = "from importlib.metadata import version; print(*map(version, ('rq', 'celery', 'kombu', 'redis')))"
    of_python = zip(("rq", "celery", "kombu", "redis-py"), _output_words([PEER_PYTHON, "-c", python]), strict=False)
    of_php = zip(
        ("php", "phpredis"), _output_words(["php", "-r", "echo PHP_VERSION.' '.phpversion('redis');"]), strict=False
    )
    debian = zip(
        ("illuminate/queue",),
        _output_words(["dpkg-query", "-W", "-f", "${Version}", "php-illuminate-queue"]),
        strict=False,
    )
    commit = zip(("qd",), _output_words(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]), strict=False)
    return {**dict(commit), "python": sys.version.split()[0], **dict(of_python), **dict(of_php), **dict(debian)}


def _output_words(argv: Argv) -> list[str]:
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.split()
    except FileNotFoundError:
        return []
