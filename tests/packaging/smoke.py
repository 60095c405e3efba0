"""Run by another Python with the installed wheel, in an empty folder: `python smoke.py`. Starts a redis-server, runs jobs of
every kind with the `qd` beside this Python, and prints what became of them as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

JOBS = """
import asyncio, os, signal, sys, threading, time
from pathlib import Path
from qd import Qd, current_job

app = Qd()


def done(kind):
    with open("done.txt", "a") as file:
        file.write(f"{kind} {'main' if threading.current_thread() is threading.main_thread() else 'thread'}\\n")


@app.job("smoke.sync", tries=2)
def sync(number: int) -> None:
    if number == 0 and current_job().attempt == 1:
        raise ValueError("the first attempt fails")
    done("sync")


@app.job("smoke.async")
async def asynchronous(number: int) -> None:
    await asyncio.sleep(0.01)
    done("async")


@app.job("smoke.killed")
def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@app.job("smoke.slow", timeout=1)
def slow() -> None:
    time.sleep(60)


@app.job("smoke.any")
def anything(value: list) -> None:
    done("anything")


def nightly() -> None:
    print("the entry ran")


app.schedule(nightly, cron="0 3 * * *")
"""
TOML = '[qd]\napp = "jobs:app"\n\n[connections.redis]\nurl = "unix://{socket}"\n'
SEND = """
from jobs import asynchronous, killed, slow, sync

for number in range(5):
    sync.dispatch(number)
    asynchronous.dispatch(number)
"""
ONCE = "killed.dispatch()\nslow.dispatch()\n"
DEEP = b'{"job":"smoke.any","data":{"value":' + b"[" * 100_000 + b"]" * 100_000 + b'},"attempts":0}'


def qd(*words: str) -> str:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("qd")), *words], text=True, capture_output=True, timeout=120, check=False
    )
    if done.returncode != 0:
        sys.exit(f"qd {' '.join(words)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def ends() -> list[str]:
    """The jobs that were done since the last call, in order of their names."""
    file = Path("done.txt")
    lines = sorted(file.read_text().splitlines())
    file.unlink()
    return lines


def main() -> None:
    import redis

    Path("jobs.py").write_text(JOBS)
    socket = Path("r.sock").resolve()
    Path("qd.toml").write_text(TOML.format(socket=socket))
    server = subprocess.Popen(
        ["redis-server", "--port", "0", "--unixsocket", socket, "--save", ""], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    try:
        for line in server.stdout:
            if "ready to accept connections" in line.lower():
                break
        subprocess.run([sys.executable, "-c", SEND + ONCE], check=True, timeout=60)
        with redis.Redis(unix_socket_path=str(socket)) as client:
            client.rpush("queues:default", DEEP)
        qd("work", "-w", "2", "--stop-when-empty")
        found: dict[str, object] = {"processes": ends()}
        subprocess.run([sys.executable, "-c", SEND], check=True, timeout=60)
        qd("work", "-w", "1", "--concurrency", "4", "--stop-when-empty")
        found["concurrent"] = ends()
        found["failed"] = sorted(
            failure["job"] or "unreadable" for failure in json.loads(qd("failed", "list", "--json"))
        )
        found["schedule"] = "the entry ran" in qd("schedule", "test", "jobs.nightly")
        found["version"] = qd("--version").strip()
    finally:
        server.kill()
        server.wait()
    print(json.dumps({"python": ".".join(map(str, sys.version_info[:2])), **found}))


if __name__ == "__main__":
    os.environ["XDG_RUNTIME_DIR"] = os.getcwd()
    main()
