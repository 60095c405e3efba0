"""What runs in the soak: jobs that end in every way there is, and producers that send them at a steady rate.

Each attempt writes `S n attempt pid master moment` and, when it came to its end, `E ...`; a producer writes
`P n kind id` for what the server has taken and `U n kind error` for what it may have taken. Numbers are steps of ten.
"""

from __future__ import annotations

JOBS = """
import ctypes, signal

def mark(kind, n):
    line = f"{kind} {n} {current_job().attempt} {os.getpid()} {os.getppid()} {time.monotonic_ns()}\\n"
    fd = os.open("ledger", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, line.encode())
    os.close(fd)

@app.job("plain", tries=5)
def plain(n: int, seconds: float) -> None:
    mark("S", n)
    time.sleep(seconds)
    mark("E", n)

@app.job("fails", tries=2, backoff=0.2)
def fails(n: int) -> None:
    mark("S", n)
    raise ValueError("this one never works")

@app.job("shaky", tries=10, backoff=0.2)
def shaky(n: int) -> None:
    mark("S", n)
    if current_job().attempt < 3:
        raise ValueError("this one works the third time")
    mark("E", n)

@app.job("released", tries=10)
def released(n: int) -> None:
    mark("S", n)
    if current_job().attempt == 1:
        current_job().release(0.5)
    mark("E", n)

@app.job("stuck", tries=10, timeout=1)
def stuck(n: int, in_c: bool) -> None:
    mark("S", n)
    if current_job().attempt == 1 and in_c:
        ctypes.PyDLL(None).sleep(30)
    elif current_job().attempt == 1:
        time.sleep(30)
    mark("E", n)

@app.job("saves", tries=10)
def saves(n: int) -> None:
    mark("S", n)
    job = current_job()
    if hasattr(job, "checkpoint"):
        for step in range((job.saved or {"step": 0})["step"], 5):
            time.sleep(0.1)
            job.checkpoint({"step": step + 1})
    mark("E", n)

@app.job("poison")
def poison(n: int) -> None:
    mark("S", n)
    os.kill(os.getpid(), signal.SIGKILL)
"""

# sys.argv: the first number, the seed, jobs a second. Leaves when a file `enough` is there.
PRODUCER = """
import os, random, sys, time
import jobs
from qd import QdError

first, seed, rate = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
draw = random.Random(seed)
told = open(f"pushed.{first}", "w", buffering=1)
began, sent = time.monotonic(), 0

def send(n):
    kind = draw.choices(["plain", "long", "fails", "shaky", "released", "stuck", "saves", "delayed"],
                        [60, 4, 4, 6, 8, 2, 4, 12])[0]
    if kind in ("plain", "long", "delayed"):
        seconds = draw.uniform(1, 3) if kind == "long" else draw.uniform(0, 0.1)
        job = jobs.plain.using(delay=draw.uniform(0.05, 5)) if kind == "delayed" else jobs.plain
        call = job.bind(n, round(seconds, 3))
    elif kind == "stuck":
        call = jobs.stuck.bind(n, draw.random() < 0.5)
    else:
        call = getattr(jobs, kind).bind(n)
    try:
        (handle,) = jobs.app.dispatch(call)
        told.write(f"P {n} {kind} {handle.id}\\n")
    except QdError as error:
        told.write(f"U {n} {kind} {type(error).__name__}\\n")

while not os.path.exists("enough"):
    while sent < (time.monotonic() - began) * rate:
        send(first + 10 * sent)
        sent += 1
    time.sleep(0.02)
"""
