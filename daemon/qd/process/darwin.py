"""macOS's answers to what Linux keeps in /proc, from libproc and sysctl. Only vitals.py asks, and only on macOS."""

from __future__ import annotations

import functools
import struct
from typing import Any

PROC_PIDTBSDINFO, PROC_PIDTBSDINFO_SIZE = 3, 136  # <sys/proc_info.h>: struct proc_bsdinfo
PROC_PIDTASKINFO, PROC_PIDTASKINFO_SIZE = 4, 96  # struct proc_taskinfo


def boot_id() -> str:
    """The UUID of this boot; "" = unknown."""
    import ctypes

    text, size = ctypes.create_string_buffer(64), ctypes.c_size_t(64)
    try:
        failed = _system().sysctlbyname(b"kern.bootsessionuuid", text, ctypes.byref(size), None, 0)
    except (OSError, AttributeError):
        return ""
    return "" if failed else text.value.decode("ascii", "replace")


def start_time(pid: int) -> int | None:
    """When `pid` started, in microseconds since 1970. None: unknown."""
    return started_in(_pidinfo(pid, PROC_PIDTBSDINFO, PROC_PIDTBSDINFO_SIZE))


def rss(pid: int) -> int | None:
    """Resident memory of `pid` in bytes. None: unknown."""
    return resident_in(_pidinfo(pid, PROC_PIDTASKINFO, PROC_PIDTASKINFO_SIZE))


def started_in(bsdinfo: bytes) -> int | None:
    """Seconds and microseconds are the last two fields of proc_bsdinfo."""
    if len(bsdinfo) < PROC_PIDTBSDINFO_SIZE:
        return None
    seconds, microseconds = struct.unpack_from("=QQ", bsdinfo, 120)
    return int(seconds) * 1_000_000 + int(microseconds)


def resident_in(taskinfo: bytes) -> int | None:
    """The resident size follows the virtual size, which comes first."""
    if len(taskinfo) < PROC_PIDTASKINFO_SIZE:
        return None
    (resident,) = struct.unpack_from("=Q", taskinfo, 8)
    return int(resident)


def _pidinfo(pid: int, flavor: int, size: int) -> bytes:
    import ctypes

    answer = ctypes.create_string_buffer(size)
    try:
        filled = _system().proc_pidinfo(pid, flavor, ctypes.c_uint64(0), answer, size)
    except (OSError, AttributeError):
        return b""
    return answer.raw if filled == size else b""


@functools.cache
def _system() -> Any:
    import ctypes

    return ctypes.CDLL("/usr/lib/libSystem.dylib", use_errno=True)
