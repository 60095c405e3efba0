"""This machine or container: open files, memory, huge pages, root, the folder of the signs of life."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path

from qd.cli.checks.finding import Finding, fail, ok, warn
from qd.cli.checks.project import Project
from qd.cli.output import count
from qd.process import live, vitals
from qd.units import size_text

ROOT = Path("/")  # below it /proc and /sys are read
FEW, ENOUGH = 256, 1024  # file descriptors: master and template hold a handful a worker, jobs open their own
NO_LIMIT = 1 << 60  # cgroup v1 writes a huge number for none


def check(project: Project) -> Iterator[Finding]:
    yield files()
    yield from memory(project)
    yield from huge_pages()
    if os.geteuid() == 0:
        if vitals.in_container():
            yield ok("root", "this is root, in a container", topic="root")
        else:
            way = "run it as a user of its own: user= for supervisord, User= for systemd, USER in a Dockerfile"
            yield warn("root", "this is root; a `qd work` started so runs jobs as root", way, topic="root")
    yield sign_of_life()


def files() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    said = "no limit" if soft == resource.RLIM_INFINITY else f"{soft} at once"
    way = "raise it: LimitNOFILE=65536 (systemd), minfds=65536 (supervisord), `ulimit -n 65536` (shell)"
    if 0 <= soft < FEW:
        return fail("files", f"{said}: master and workers run out of them", way)
    if 0 <= soft < ENOUGH:
        return warn("files", f"{said}: few for jobs that open their own", way)
    return ok("files", said)


def memory(project: Project) -> Iterator[Finding]:
    """app + workers x --memory, for each pool, against what this container or unit may use."""
    limit = memory_limit(text("proc/self/cgroup"), ROOT / "sys/fs/cgroup")
    whole = total()
    app = vitals.rss_of(os.getpid()) or 0
    for pool, found in project.pools.items():
        work, what = found.work, f"memory {pool}".strip()
        need = app + work.workers * work.memory
        said = f"{count(work.workers, 'worker')} x {size_text(work.memory)} + app {app >> 20}M = {need >> 20}M"
        way = "fewer workers, a smaller --memory, or more for the container; --memory-hard bounds a single job"
        if limit is not None and not work.memory:
            yield warn(what, f"--memory is off, the limit here is {limit >> 20}M: the kernel ends what grows", way)
        elif limit is not None and need > limit:
            yield fail(what, f"{said}, over the {limit >> 20}M of this container or unit", way)
        elif whole and need > whole:
            yield warn(what, f"{said}, over the {whole >> 20}M of this machine", way)
        else:
            yield ok(what, f"{said} of {(limit or whole) >> 20}M")


def memory_limit(membership: str, mount: Path) -> int | None:
    """The smallest memory limit on the way from this process's group up to the root (v1, v2), in bytes. None: none."""
    found: list[int] = []
    for line in membership.splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            found += limits(mount, path, "memory.max") + limits(mount / "unified", path, "memory.max")
        elif "memory" in controllers.split(","):
            found += limits(mount / "memory", path, "memory.limit_in_bytes")
    return min(found, default=None)


def limits(top: Path, path: str, name: str) -> list[int]:
    # In a container the path may be the host's and not be here: the upper ones, and the root, are asked as well.
    relative = Path(path.lstrip("/"))
    groups = [top / group for group in (relative, *relative.parents) if ".." not in group.parts]
    said = [read(group / name).strip() for group in groups]
    return [int(one) for one in said if one.isdigit() and int(one) < NO_LIMIT]


def total() -> int:
    """The memory of the machine in bytes, 0: unknown."""
    match = re.search(r"^MemTotal:\s+(\d+) kB", text("proc/meminfo"), re.MULTILINE)
    return int(match[1]) << 10 if match else 0


def huge_pages() -> Iterator[Finding]:
    said = text("sys/kernel/mm/transparent_hugepage/enabled")
    if "[always]" in said:
        way = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
        yield warn("huge pages", "always: forked workers, and a Redis that saves here, copy 2M for a changed byte", way)
    elif said:
        yield ok("huge pages", said[said.find("[") + 1 : said.find("]")])


def sign_of_life() -> Finding:
    """Can a master of this user write its sign of life where `qd health --live` looks?"""
    where = live.folder(os.environ)
    try:
        live.claim(where)
    except OSError as error:
        way = "set XDG_RUNTIME_DIR (or RUNTIME_DIRECTORY) to a folder of this user, for qd work and the probe alike"
        return warn("health --live", f"no sign of life can be written: {error}", way)
    return ok("health --live", where)


def text(name: str) -> str:
    return read(ROOT / name)


def read(path: Path) -> str:
    """ "" where it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
