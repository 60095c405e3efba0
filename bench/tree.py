"""CPU and memory of the process tree of one peer, read from /proc."""

from collections.abc import Iterable
from pathlib import Path

import psutil


def family(roots: Iterable[int]) -> list[psutil.Process]:
    """The roots and all their descendants, without processes that have just exited."""
    found: dict[int, psutil.Process] = {}
    for root in roots:
        try:
            process = psutil.Process(root)
            found |= {each.pid: each for each in (process, *process.children(recursive=True))}
        except psutil.NoSuchProcess:
            continue
    return list(found.values())


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """CPU time used so far in seconds (schedstat: the ticks of `stat` are too coarse for an idle process)."""
    threads = (path for process in processes for path in Path(f"/proc/{process.pid}/task").glob("*/schedstat"))
    return sum(int(path.read_text().split()[0]) for path in threads) / 1e9


def pss_bytes(processes: Iterable[psutil.Process]) -> int:
    """Proportional memory: each shared page is split among the processes that share it."""
    return sum(_pss(process.pid) for process in processes)


def _pss(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def ports(processes: Iterable[psutil.Process]) -> dict[int, psutil.Process]:
    """Local TCP port -> the process that holds the connection."""
    owned = ((process, process.net_connections("tcp")) for process in processes)
    return {connection.laddr.port: process for process, all_of_it in owned for connection in all_of_it}
