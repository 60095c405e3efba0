"""Dockerfiles without a container engine: parsed, and built into a folder that holds a Debian in place of the base image.

steps()    the instructions, with continued lines joined
Ignored    .dockerignore
Image      runs RUN, COPY, ENV, WORKDIR, USER, HEALTHCHECK, STOPSIGNAL and CMD; any other instruction is an error
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

# $1 the folder, $2 USER, $3 "ro" or "", then the command. It becomes PID 1 of its own namespace, with its own /proc.
ENTER = """
if [ "$3" ]; then
    mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && mount -t tmpfs -o mode=1777 tmpfs "$1/tmp" || exit
fi
mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" && root=$1 user=$2 && shift 3 &&
exec chroot ${user:+--userspec="$user"} "$root" "$@"
"""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Step(NamedTuple):
    word: str
    rest: str

    @property
    def words(self) -> list[str]:
        """Of an instruction in exec form."""
        found: list[str] = json.loads(self.rest)
        return found


def steps(text: str) -> list[Step]:
    lines = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)
    joined = re.sub(r"\\\n", "", lines).splitlines()
    return [Step(*line.split(maxsplit=1)) for line in joined if line.strip()]


class Ignored:
    def __init__(self, text: str) -> None:
        self.patterns = [line for line in text.splitlines() if line and not line.startswith("#")]

    def __contains__(self, path: Path) -> bool:
        """Whether this path in the context, or a folder above it, is ignored."""
        parts = [path, *path.parents][:-1]
        return any(self._fits(str(part), pattern) for part in parts for pattern in self.patterns)

    @staticmethod
    def _fits(path: str, pattern: str) -> bool:
        if pattern.startswith("**/"):
            return fnmatch(path.rpartition("/")[2], pattern.removeprefix("**/"))
        return path.count("/") == pattern.count("/") and fnmatch(path, pattern)


def copied(context: Path, ignored: Ignored, rest: str) -> Iterator[tuple[Path, str]]:
    """The files of a COPY into a folder, and their places in it."""
    *sources, _ = rest.split()
    for source in sources:
        for top in [context] if source == "." else sorted(context.glob(source)):
            base = top if top.is_dir() else top.parent
            for file in sorted(top.rglob("*")) if top.is_dir() else [top]:
                if file.is_file() and file.relative_to(context) not in ignored:
                    yield file, str(file.relative_to(base))


class Image:
    """root: a Debian with Python, which build() changes. host: variables of RUN that replace the network of a build."""

    def __init__(self, root: Path, host: Mapping[str, str]) -> None:
        self.root, self.host = root, host
        self.environ = {"PATH": PATH}
        self.user, self.folder = "", "/"
        self.command: list[str] = []
        self.health: list[str] = []
        self.stop_signal = signal.SIGTERM

    def build(self, context: Path) -> None:
        ignored = Ignored((context / ".dockerignore").read_text())
        for step in steps((context / "Dockerfile").read_text()):
            match step.word:
                case "FROM":  # the folder
                    pass
                case "ENV":
                    self.environ |= dict(word.split("=", 1) for word in shlex.split(step.rest))
                case "WORKDIR":
                    self.folder = step.rest
                    self.inside(step.rest).mkdir(parents=True, exist_ok=True)
                case "COPY":
                    for file, place in copied(context, ignored, step.rest):
                        target = self.inside(self.folder) / step.rest.split()[-1] / place
                        target.parent.mkdir(parents=True, exist_ok=True)
                        shutil.copy(file, target)
                case "RUN":
                    done = self.run(["/bin/sh", "-c", step.rest], **self.host)
                    assert done.returncode == 0, f"{step.rest}\n{done.stdout}"
                case "USER":
                    self.user = step.rest
                case "HEALTHCHECK":
                    self.health = json.loads(step.rest[step.rest.index("CMD ") + 4 :])
                case "STOPSIGNAL":
                    self.stop_signal = signal.Signals[step.rest]
                case "CMD":
                    self.command = step.words
                case _:
                    raise AssertionError(f"{step.word}: not known to this test")

    def inside(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def words(self, command: Sequence[str], environ: Mapping[str, str], *, read_only: bool = False) -> list[str]:
        """The command on this host: PID 1 of its own namespace in the image, as its user, in its folder."""
        home = next((line.split(":")[5] for line in self._passwd() if line.split(":")[0] == (self.user or "root")), "/")
        given = {"HOME": home, **self.environ, **environ}
        settings = [f"{name}={value}" for name, value in given.items()]
        inside = ["/usr/bin/env", "-i", f"--chdir={self.folder}", *settings, *command]
        unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]
        return [*unshare, "sh", "-c", ENTER, "sh", str(self.root), self.user, "ro" if read_only else "", *inside]

    def run(self, command: Sequence[str], **environ: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end; stdout has both outputs."""
        words = self.words(command, environ)
        return subprocess.run(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=600
        )

    def beside(self, pid: int, command: Sequence[str], **environ: str) -> subprocess.CompletedProcess[str]:
        """Run it in the container whose PID 1 is `pid` here, as a healthcheck does."""
        at = self.words(command, environ)
        inside = at[at.index("/usr/bin/env") :]
        user = [f"--userspec={self.user}"] if self.user else []
        enter = ["nsenter", f"--target={pid}", "--mount", "--pid", "--net", "chroot", *user, str(self.root)]
        return subprocess.run([*enter, *inside], capture_output=True, text=True, check=False, timeout=60)

    def _passwd(self) -> list[str]:
        return self.inside("/etc/passwd").read_text().splitlines()
