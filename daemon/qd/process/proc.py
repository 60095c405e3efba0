"""Facts the kernel has about processes: identity, start time, memory, CPUs, threads, sockets.

On Linux they are read from /proc. On macOS psutil answers; the rest is reported as unknown.
"""

from __future__ import annotations

import functools
import math
import os
import signal
import socket
import stat
import sys
import threading
from collections.abc import Mapping
from getpass import getuser
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LINUX = sys.platform == "linux"
PAGE = os.sysconf("SC_PAGE_SIZE")


# --- identity --------------------------------------------------------------------------------------------------------


def user_name() -> str:
    try:
        return getuser()
    except (KeyError, OSError):  # a container's user without a name
        return str(os.getuid())


@functools.cache
def boot_id() -> str:
    """An identifier of this boot of this host; "" if unknown, which must not be compared with another ""."""
    if LINUX:
        return text("/proc/sys/kernel/random/boot_id").strip()
    import psutil  # Linux does without it

    return str(psutil.boot_time())


def pid_namespace() -> str:
    """The pid namespace of this process, `pid:[4026531836]`; "" if unknown."""
    if not LINUX:
        return "pid:host"
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def start_time(pid: int) -> int | None:
    """When process `pid` started, in clock ticks since the boot (microseconds on macOS). None if unknown."""
    if not LINUX:
        process = _start_and_memory(pid)
        return process and round(process[0] * 1_000_000)
    fields = _stat(pid)
    return int(fields[19]) if len(fields) > 19 else None


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; empty if it cannot be read."""
    # The program's name is in parentheses and may itself contain parentheses: split at the last one.
    return text(f"/proc/{pid}/stat").rpartition(")")[2].split()


def is_zombie(pid: int) -> bool:
    """Whether every thread of the process has ended and only its parent has not reaped it (process 1 may be slow)."""
    fields = _stat(pid) if LINUX else []
    return len(fields) > 17 and fields[0] in "ZX" and int(fields[17]) <= 1


def alive(pid: int, start: int | None) -> bool | None:
    """Whether the process with `pid` that started at `start` still exists. None: unknown, so treat it as alive.

    False only on proof: no such pid, another start time, or a zombie. If the pid may not be queried (EPERM) or is hidden
    in /proc (ProtectProc=, hidepid), or if `start` is unknown, the answer is None.
    """
    if pid <= 0:
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it exists; its start time may still show whether it is the same process
    except (OSError, OverflowError):  # a number from another host that is no valid pid here
        return None
    now = start_time(pid)
    if now is None or start is None:
        return None
    return now == start and not is_zombie(pid)


# --- memory ----------------------------------------------------------------------------------------------------------

_statm = (-1, -1)  # (pid, fd): /proc/self is resolved at open(), so a fork must open its own


def own_anon_bytes() -> int:
    """Anonymous memory of this process in bytes, without files and shared pages. 0 if it cannot be read.

    A worker calls it between jobs: it takes about 2 us.
    """
    global _statm
    if not LINUX:
        return rss_of(os.getpid()) or 0
    pid, fd = _statm
    try:
        if pid != os.getpid():
            fd = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
            _statm = (os.getpid(), fd)
        fields = os.pread(fd, 100, 0).split(b" ", 3)
        return (int(fields[1]) - int(fields[2])) * PAGE
    except (OSError, ValueError, IndexError):
        # A job closed it, or the number refers to another file now: do not close that one, and open it again next time.
        _statm = (-1, -1)
        words = text("/proc/self/statm").split()
        return (int(words[1]) - int(words[2])) * PAGE if len(words) > 2 else 0


def rss_of(pid: int) -> int | None:
    """Resident memory of process `pid` in bytes, with shared pages. None: ended or unknown."""
    if not LINUX:
        process = _start_and_memory(pid)
        return process and process[1]
    fields = text(f"/proc/{pid}/statm").split()
    return int(fields[1]) * PAGE if len(fields) > 1 else None


def _start_and_memory(pid: int) -> tuple[float, int] | None:
    """Start (unix seconds) and resident memory (bytes) of a process without /proc. None: ended or unknown."""
    import psutil  # Linux does without it

    try:
        process = psutil.Process(pid)
        return process.create_time(), process.memory_info().rss
    except (psutil.Error, OSError):
        return None


# --- CPUs ------------------------------------------------------------------------------------------------------------


def cpus_granted() -> int:
    """The CPUs this process may use, by affinity and cgroup quota (v1, v2), rounded up; at least 1."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity else os.cpu_count() or 1
    quota = _cpu_quota(text("/proc/self/cgroup"), Path("/sys/fs/cgroup")) if LINUX else None
    return max(1, min(count, math.ceil(quota)) if quota else count)


def in_container(root: Path = Path("/"), variables: Mapping[str, str] = os.environ) -> bool:
    """Whether this process runs in a container, as Docker, podman, systemd-nspawn and Kubernetes mark theirs."""
    if "container" in variables or "KUBERNETES_SERVICE_HOST" in variables:
        return True
    return any((root / name).exists() for name in (".dockerenv", "run/.containerenv"))


def _cpu_quota(membership: str, mount: Path) -> float | None:
    """The smallest quota between this process's group and the root, in CPUs. None: no quota."""
    quotas = (_quota_in(group) for group in groups(membership, mount, "cpu"))
    return min((quota for quota in quotas if quota is not None), default=None)


def groups(membership: str, mount: Path, controller: str) -> list[Path]:
    """The folders of this process's cgroups (v1, v2) and of those above them, which may limit it, too. membership: the text
    of /proc/self/cgroup."""
    tops = list[tuple[Path, Path]]()
    for line in membership.splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            tops += [(mount / each, Path(path.lstrip("/"))) for each in ("", "unified")]
        elif controller in controllers.split(","):
            tops += [(mount / each, Path(path.lstrip("/"))) for each in (controllers, controller)]
    # In a container the path may be the host's and not exist here: its parents and the root count as well.
    return [top / group for top, path in tops for group in (path, *path.parents) if ".." not in group.parts]


def _quota_in(group: Path) -> float | None:
    v2, v1 = text(group / "cpu.max"), [text(group / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    try:
        quota, period = (int(word) for word in v2.split() or " ".join(v1).split())
    except ValueError:  # "max 100000", or no such file
        return None
    return quota / period if quota > 0 and period > 0 else None


# --- what a fork would share -----------------------------------------------------------------------------------------


def thread_names() -> list[str]:
    """The threads of this process without the main one: Python's by their names, others by the kernel's."""
    known = {thread.native_id: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().native_id
    if not LINUX:
        return sorted(name for native, name in known.items() if native != main)
    try:
        ids = [int(entry) for entry in os.listdir("/proc/self/task")]
    except OSError:
        ids = [native for native in known if native is not None]
    others = [native for native in ids if native not in (main, os.getpid())]
    names = [known.get(native) or text(f"/proc/self/task/{native}/comm").strip() for native in others]
    return sorted(name for name in names if name)  # "": the thread has ended meanwhile


def connected_sockets() -> list[str]:
    """The stream sockets above fd 2 that have a named peer, `fd 7: 127.0.0.1:40022 -> 127.0.0.1:6379`.

    After a fork two processes would write into one such stream. Datagram sockets, unnamed pairs (this process's own
    pipes) and copies of stdin, stdout and stderr (systemd's journal is a socket) are left out.
    """
    try:
        fds = sorted(int(entry) for entry in os.listdir("/proc/self/fd" if LINUX else "/dev/fd"))
    except OSError:
        return []
    known = {_socket_of(fd) for fd in (0, 1, 2)}
    return [line for fd in fds if (found := _socket_of(fd)) and found not in known and (line := _peer(fd))]


def _socket_of(fd: int) -> tuple[int, int] | None:
    """The identity of a socket, equal for every copy of it. None: not a socket."""
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISSOCK(found.st_mode) else None


def _peer(fd: int) -> str:
    try:
        blocking = os.get_blocking(fd)
        with socket.socket(fileno=os.dup(fd)) as peer:
            # socket.setdefaulttimeout() made the copy non-blocking, and the original shares the flag.
            os.set_blocking(fd, blocking)
            there: Any = "" if peer.type == socket.SOCK_DGRAM else peer.getpeername()
            if peer.family == socket.AF_UNIX:
                name = there if isinstance(there, str) else there.decode(errors="replace").replace("\0", "@")
                return f"fd {fd}: unix {name}" if name else ""
            if peer.family not in (socket.AF_INET, socket.AF_INET6) or not there:
                return ""
            here: Any = peer.getsockname()
            return f"fd {fd}: {here[0]}:{here[1]} -> {there[0]}:{there[1]}"
    except OSError:
        return ""


# --- requests to the kernel ------------------------------------------------------------------------------------------


def set_pdeathsig(sig: int = signal.SIGKILL) -> bool:
    """Send `sig` to this process when its parent (strictly: the thread that forked it) ends. False: not supported.

    It applies to the current parent. After a change of the parent, call it again, then compare getppid().
    """
    return _prctl(PR_SET_PDEATHSIG, sig)


def set_subreaper() -> bool:
    """Become the parent of orphaned descendants, as PID 1 would. False: not supported."""
    return _prctl(PR_SET_CHILD_SUBREAPER, 1)


def oom_score_adj(value: int) -> bool:
    """Set which process the OOM killer takes: -1000 (never) to 1000 (first). False: refused (lowering needs root)."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(str(value))
    except OSError:
        return False
    return True


def die_before_parent(by: int) -> bool:
    """Make the OOM killer take this process before its parent, whatever the parent's score is."""
    return oom_score_adj(min(1000, int(text("/proc/self/oom_score_adj") or 0) + by))


def _prctl(option: int, value: int) -> bool:
    return LINUX and bool(_libc().prctl(option, value, 0, 0, 0) == 0)


@functools.cache
def _libc() -> Any:
    import ctypes  # takes a few ms; forks inherit it

    return ctypes.CDLL(None)


def text(path: str | Path) -> str:
    """The file's text; "" if it cannot be read for any reason, which means unknown, never gone."""
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""
