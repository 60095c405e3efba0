"""Whether something grows: memory and file descriptors of qd's own processes, and what Redis holds, over time."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import psutil

from tests.support.procs import Procs, titled
from tests.support.resp import Client

ROLES = ("master", "keeper", "template")
LEAVE_OUT = 60.0  # seconds of a process's life that count as its start
LONG = 240.0  # seconds of life beyond that, from which on a slope says something


def processes(work: Procs) -> Iterable[tuple[str, psutil.Process]]:
    """Master, keeper and template, with their roles."""
    for process in work.session():
        title = titled(process)
        yield from ((role, process) for role in ROLES if title.startswith(f"qd: {role}"))


def look(work: Procs) -> list[dict[str, Any]]:
    """One sample a process: role, pid, age in seconds, resident bytes, open descriptors."""
    found = []
    for role, process in processes(work):
        try:
            age, rss, fds = time.time() - process.create_time(), process.memory_info().rss, process.num_fds()
        except psutil.Error:
            continue  # it has just been killed
        found.append({"role": role, "pid": process.pid, "age": round(age, 2), "rss": rss, "fds": fds})
    return found


def sizes(client: Client) -> dict[str, int]:
    """Each key and how much it holds."""
    count = {"list": "LLEN", "hash": "HLEN", "zset": "ZCARD", "string": "STRLEN", "set": "SCARD", "stream": "XLEN"}
    found = {}
    for key in client.text("KEYS", "*"):
        kind = client.text("TYPE", key)
        if kind != "none":  # gone since
            found[key] = int(client.call(count[kind], key))
    return found


def slope(points: list[tuple[float, float]]) -> float:
    """Of the straight line nearest to these points: y for each x."""
    middle_x, middle_y = (sum(axis) / len(points) for axis in zip(*points, strict=True))
    across = sum((x - middle_x) ** 2 for x, _ in points)
    return sum((x - middle_x) * (y - middle_y) for x, y in points) / across if across else 0.0


def by_role(samples: Iterable[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Most memory (MB) and descriptors seen, and growth in MB and descriptors an hour of the one that lived longest."""
    lives: dict[str, dict[int, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        lives[sample["role"]][sample["pid"]].append(sample)
    found = {}
    for role, of_pid in lives.items():
        every = [sample for life in of_pid.values() for sample in life]
        longest = max(of_pid.values(), key=lambda life: float(life[-1]["age"]))
        steady = [sample for sample in longest if sample["age"] > LEAVE_OUT]
        told = {
            "processes": float(len(of_pid)),
            "rss": max(sample["rss"] for sample in every) / 1e6,
            "fds": float(max(sample["fds"] for sample in every)),
            "life": float(longest[-1]["age"]),
        }
        if steady and steady[-1]["age"] - steady[0]["age"] > LONG:
            told["rss_hour"] = slope([(s["age"] / 3600, s["rss"] / 1e6) for s in steady])
            told["fds_hour"] = slope([(s["age"] / 3600, float(s["fds"])) for s in steady])
        found[role] = told
    return found
