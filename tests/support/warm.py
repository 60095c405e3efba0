"""Start the Python programs of tests without the cost of their imports: fork them from a process that has imported qd.

    test --(words, environment, folder, descriptors)--> warm process --clone(CLONE_PARENT)--> program
      ^                                                                                         |
      +------------------------------- its pid, once it is set up ------------------------------+

Each pytest process starts one warm process, on first use; it ends when pytest does. CLONE_PARENT makes the program a child
of pytest instead of the warm process, so `Popen` waits for it and kills it like any other child. The program sets up what
a new interpreter would: session, signals, limits, environment, sys.path, standard streams, `__main__`.

A program that needs more than qd's commands (a database driver, Django) is forked from a process that has imported that,
too: a fork of the warm process, started on first use (see `KINDS`).

Where a fork would behave differently, the program is executed: see `forkable`. `fresh=True` forces an exec for one program,
QD_TESTS_EXEC=1 for all. Linux on x86_64 only; elsewhere all programs are executed.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import inspect
import io
import os
import pickle
import pkgutil
import re
import resource
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "daemon"
LENGTH = struct.Struct("!Q")
ANSWER = 60.0  # seconds that a fork may take on a machine that is busy with others
ORPHANED = 5.0  # seconds after which the warm process checks again that its parent lives

# Prefixes of variables that Python or the C library reads at its start. A fork needs the values of the warm process.
AT_START = ("PYTHON", "LC_", "LANG", "LD_", "GLIBC_", "MALLOC_", "COVERAGE", "OPENSSL_", "SSL_", "ASAN_")
OWN = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")  # the program applies these itself
PATHS = {str(SOURCE), str(ROOT)}  # on PYTHONPATH: they have no sitecustomize.py
LIMITS = [getattr(resource, name) for name in sorted(dir(resource)) if name.startswith("RLIMIT_")]

# Not preloaded: they need optional packages, or only frameworks import them.
LEFT_OUT = (
    "qd.__main__",
    "qd.contrib",
    "qd.pytest_plugin",
    "qd.testing",
    "qd.drivers.database",
    "qd.drivers.beanstalkd",
    "qd.drivers.sqs",
)

# What programs of a project import as well, by the kind of the project (see `kind_of`). A dot at the end: all modules in it.
KINDS = {
    "database": (
        "sqlalchemy.dialects.mysql.pymysql",
        "sqlalchemy.dialects.postgresql.psycopg",
        "sqlalchemy.dialects.sqlite.pysqlite",
        "sqlalchemy.ext.asyncio",
        "psycopg",
        "pymysql",
        "greenstalk",
        "qd.drivers.database.",
        "qd.drivers.beanstalkd.",
    ),
    "sqs": ("qd.drivers.sqs.",),
}
KINDS["django"] = (
    *KINDS["database"],
    "django.core.mail",
    "django.core.management.commands.migrate",
    "django.core.paginator",
    "django.core.serializers.json",
    "django.core.signing",
    "django.db.backends.postgresql.base",
    "django.db.backends.sqlite3.base",
    "django.template.defaulttags",
    "django.templatetags.i18n",
    "django.utils.translation.reloader",
    "django.views.debug",
    "django.views.generic",
    "qd.contrib.django",
    "qd.contrib.django.database",
)
DATABASES = re.compile(r"\b(postgres|mysql|mariadb|sqlite|beanstalk)\w*(\+\w+)?:/")

CLONE_PARENT, CLONE_CHILD_CLEARTID, CLONE_CHILD_SETTID = 0x8000, 0x200000, 0x1000000
SYS_CLONE = 56  # x86_64
PR_GET_TID_ADDRESS = 40


class Request(NamedTuple):
    """Everything the program needs to know about its start."""

    words: list[str]  # after the interpreter: -m MODULE ..., -c CODE ... or FILE ...
    env: dict[str, str]
    folder: str
    session: bool
    group: int  # -1: the group of pytest
    umask: int
    ignored: list[int]  # signals
    blocked: list[int]
    limits: list[tuple[int, int]]
    kind: str = ""  # instead of a program: a warm process of this kind, for the requests that the one descriptor brings


class Popen(subprocess.Popen[Any]):
    """subprocess.Popen that forks Python programs from the warm process where that is equivalent."""

    def __init__(self, args: Sequence[Any], *, fresh: bool = False, **more: Any) -> None:
        self._fresh = fresh
        super().__init__(args, **more)

    def _execute_child(self, *values: Any) -> None:
        whole: Any = super()
        given = CHILD.bind(self, *values).arguments
        if self._fresh or not forkable(given):
            whole._execute_child(*values)
            return
        fds = [
            fd if fd >= 0 else own
            for own, fd in enumerate((given["p2cread"], given["c2pwrite"], given["errwrite"]))
        ]  # fmt: skip
        pid = warm_for(kind_of(given)).fork(request(given), fds)
        if pid is None:
            whole._execute_child(*values)
            return
        self.pid = pid
        setattr(self, "_child_created", True)  # noqa: B010
        ends: Any = self
        ends._close_pipe_fds(*(given[name] for name in ENDS))


CHILD = inspect.signature(getattr(subprocess.Popen, "_execute_child"))  # noqa: B009
ENDS = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")


def run(
    args: Sequence[Any],
    *,
    input: str | bytes | None = None,
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **more: Any,
) -> subprocess.CompletedProcess[Any]:
    """subprocess.run with this module's Popen."""
    if input is not None:
        more["stdin"] = subprocess.PIPE
    if capture_output:
        more["stdout"] = more["stderr"] = subprocess.PIPE
    with Popen(args, **more) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            process.wait()
            raise
    done = subprocess.CompletedProcess(args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def forkable(given: Mapping[str, Any]) -> bool:
    """Whether a fork is equivalent to an exec: same interpreter, no variable that takes effect before the first line of the
    program, no argument of Popen that needs an exec."""
    if not POSSIBLE or os.environ.get("QD_TESTS_EXEC") == "1" or os.getpid() != WARM.owner or "coverage" in sys.modules:
        return False
    words, env = given["args"], given["env"]
    if env is None:  # the environment of C, where readline has set COLUMNS
        return False
    if isinstance(words, str | bytes | os.PathLike) or len(words) < 2 or words[0] != sys.executable:
        return False
    if not all(isinstance(word, str) for word in words):
        return False
    if words[1].startswith("-") and not (words[1] in ("-m", "-c") and len(words) > 2):
        return False
    asked = ("executable", "preexec_fn", "pass_fds", "shell", "gid", "gids", "uid")
    if any(given[name] not in (None, False, ()) for name in asked) or not given["close_fds"]:
        return False
    if given["umask"] >= 0 or not given["restore_signals"]:
        return False
    if not os.access(given["cwd"] or ".", os.X_OK) or not os.path.isdir(given["cwd"] or "."):
        return False
    if not {path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path} <= PATHS:
        return False
    return at_start(env) == WARM.at_start and control_groups() == WARM.groups


def control_groups() -> str:
    """Those of this process: a test may enter one for the programs that it starts."""
    return Path("/proc/self/cgroup").read_text()


def at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in env.items() if key.startswith(AT_START) and key not in OWN}


def request(given: Mapping[str, Any]) -> Request:
    return Request(
        words=list(given["args"][1:]),
        env=dict(given["env"]),
        folder=os.path.abspath(os.fspath(given["cwd"] or ".")),
        session=given["start_new_session"],
        group=given["process_group"],
        umask=present_umask(),
        ignored=[number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN],
        blocked=sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        limits=[resource.getrlimit(limit) for limit in LIMITS],
    )


def present_umask() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("Umask:")[2].split()[0], 8)


def kind_of(given: Mapping[str, Any]) -> str:
    """The kind of the project in the folder of the program: what it certainly imports."""
    folder, env = Path(given["cwd"] or "."), given["env"]
    if "DJANGO_SETTINGS_MODULE" in env or (folder / "manage.py").exists():
        return "django"
    with contextlib.suppress(OSError):
        text = (folder / "qd.toml").read_text()
        if DATABASES.search(text):
            return "database"
        if "sqs:" in text:
            return "sqs"
    return ""


def warm_for(kind: str) -> Warm:
    if kind and kind not in OTHERS:
        OTHERS[kind] = Warm(kind)
    return OTHERS[kind] if kind else WARM


class Warm:
    """In pytest: the connection to a warm process."""

    def __init__(self, kind: str = "") -> None:
        self.kind = kind
        self.owner = os.getpid()
        self.at_start = at_start(os.environ)
        self.groups = control_groups() if POSSIBLE else ""
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0  # of the fork, if there is a kind
        self._socket: socket.socket | None = None

    def fork(self, request: Request, fds: Sequence[int]) -> int | None:
        """Start a program. Returns its pid once its session, descriptors and signals are set up, or None if the warm process
        cannot be reached."""
        text = pickle.dumps(tuple(request))
        with self._lock:
            try:
                sock = self._opened()
                socket.send_fds(sock, [LENGTH.pack(len(text))], list(fds))
                sock.sendall(text)
            except OSError:
                self._end()
                return None
            answer = sock.recv(4096)
        pid, _, error = answer.decode().partition(" ")
        if not pid or error:
            raise RuntimeError(f"the warm process did not start {request.words}: {error or 'it has ended'}")
        return int(pid)

    def _opened(self) -> socket.socket:
        if self._socket is None:
            ours, its = socket.socketpair()
            ours.settimeout(ANSWER)
            if self.kind:
                with its:
                    self._pid = WARM.fork(request(OF_KIND)._replace(kind=self.kind), [its.fileno()]) or 0
                if not self._pid:
                    raise OSError("there is no warm process to fork")
                self._socket = ours
                atexit.register(self._end)
                return ours
            env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
            # The blanks reserve memory for the titles of programs, which overwrite this command line.
            words = [sys.executable, str(Path(__file__).resolve()), str(its.fileno()), " " * 1000]
            self._process = subprocess.Popen(words, env=env, cwd="/", pass_fds=[its.fileno()], stdin=subprocess.DEVNULL)
            its.close()
            self._socket = ours
            atexit.register(self._end)
        return self._socket

    def _end(self) -> None:
        if os.getpid() != self.owner:
            return
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._pid:
            select.select([os.pidfd_open(self._pid)], [], [], 10)
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
            self._process.kill()
            self._process.wait()
            self._process = None


# ---- in the warm process


class Program:
    """In the fork: sets up what a new interpreter would have set up."""

    def __init__(self, request: Request, fds: Sequence[int]) -> None:
        self.request, self.fds = request, fds

    def set_up(self) -> None:
        """Do everything that must be done before pytest learns the pid."""
        request = self.request
        if request.session:
            os.setsid()
        elif request.group >= 0:
            os.setpgid(0, request.group)
        for own, fd in enumerate(self.fds):
            os.dup2(fd, own)
        for number in request.ignored:
            if number not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_IGN)
        if signal.SIGINT not in request.ignored:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, request.blocked)
        for limit, value in zip(LIMITS, request.limits, strict=True):
            if resource.getrlimit(limit) != value:
                resource.setrlimit(limit, value)
        os.umask(request.umask)
        os.chdir(request.folder)
        os.environ.clear()
        os.environ.update(request.env)
        time.tzset()
        main_thread: Any = threading.main_thread()
        main_thread._set_native_id()
        self._streams()
        self._path()

    def _streams(self) -> None:
        old = sys.stdin, sys.stdout, sys.stderr
        for own, (name, stream) in enumerate(zip(("stdin", "stdout", "stderr"), old, strict=True)):
            made = standard(own, name, stream)
            setattr(sys, name, made)
            setattr(sys, f"__{name}__", made)

    def _path(self) -> None:
        first, *rest = self.request.words
        env = self.request.env
        place = (
            {"-m": self.request.folder, "-c": ""}.get(first) if first in ("-m", "-c") else os.path.dirname(real(first))
        )
        more = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
        sys.path[:] = [place or "", *more, *(path for path in BASE if path not in more)]
        sys.argv = [first, *rest[1:]] if first in ("-m", "-c") else [first, *rest]
        sys.orig_argv[:] = [sys.executable, *self.request.words]
        sys.dont_write_bytecode = bool(env.get("PYTHONDONTWRITEBYTECODE"))

    def code(self) -> tuple[CodeType, dict[str, Any]] | None:
        """The code to run and a new `__main__` namespace for it. None for -m: runpy finds the code."""
        first, *rest = self.request.words
        main = ModuleType("__main__")
        sys.modules["__main__"] = main
        space = vars(main)
        space["__builtins__"] = sys.modules["builtins"]
        space["__annotations__"] = {}
        if first == "-m":
            return None
        if first == "-c":
            from importlib.machinery import BuiltinImporter

            space["__loader__"] = BuiltinImporter
            return compile(rest[0], "<string>", "exec", dont_inherit=True), space
        from importlib.machinery import SourceFileLoader

        file = os.path.abspath(first)
        space.update(__file__=file, __cached__=None, __loader__=SourceFileLoader("__main__", file))
        with io.open_code(file) as source:
            return compile(source.read(), file, "exec", dont_inherit=True), space


def real(path: str) -> str:
    return os.path.realpath(path)


def standard(fd: int, name: str, like: Any) -> io.TextIOWrapper:
    """A standard stream as create_stdio() in CPython's pylifecycle.c makes it, with the encoding of `like`."""
    writes, unbuffered = name != "stdin", bool(like.write_through)
    binary: Any = open(fd, "wb" if writes else "rb", 0 if unbuffered else -1, closefd=False)  # noqa: SIM115
    raw = binary if unbuffered else binary.raw
    raw.name = f"<{name}>"
    by_line = not unbuffered and (raw.isatty() or name == "stderr")
    stream = io.TextIOWrapper(
        binary, like.encoding, like.errors, "\n", line_buffering=by_line, write_through=unbuffered
    )
    setattr(stream, "mode", "w" if writes else "r")  # noqa: B010
    return stream


def preload() -> None:
    """Import the modules that qd's commands import."""
    sys.path.insert(0, str(SOURCE))
    import msgspec
    from setproctitle import getproctitle

    import qd
    from qd.config.settings import Settings

    importlib.import_module("tomllib")  # which reads qd.toml
    for found in pkgutil.walk_packages(qd.__path__, "qd.", onerror=lambda _name: None):
        if not found.name.startswith(LEFT_OUT):
            importlib.import_module(found.name)
    with contextlib.suppress(msgspec.ValidationError):
        msgspec.convert({}, Settings)  # every master needs what msgspec finds out about the types
    getproctitle()  # it locates the title in memory, which fails once os.environ has changed


def frozen() -> None:
    """Collections in forks leave the objects that exist now alone, and with them the pages that forks share."""
    gc.collect()
    gc.freeze()


def import_for(kind: str) -> None:
    """Import what programs of this kind import. A package that is not installed is left out."""
    for name in KINDS[kind]:
        with contextlib.suppress(ImportError):
            module = importlib.import_module(name.rstrip("."))
            if name.endswith("."):
                for found in pkgutil.walk_packages(module.__path__, name):
                    importlib.import_module(found.name)


def serve(sock: socket.socket) -> Program | None:
    """Fork a program for each request. Returns the program in each fork, and None in the warm process when pytest ends."""
    parent = os.getppid()
    sock.settimeout(ORPHANED)
    while True:
        try:
            head, fds, _, _ = socket.recv_fds(sock, LENGTH.size, 3)
        except TimeoutError:
            if os.getppid() != parent:
                return None
            continue
        if not head:
            return None
        text = b""
        while len(text) < LENGTH.unpack(head)[0]:
            text += sock.recv(LENGTH.unpack(head)[0] - len(text))
        request = Request(*pickle.loads(text))
        if fork_beside() == 0:
            if request.kind:
                sock.sendall(str(os.getpid()).encode())
                sock.close()
                sock = socket.socket(fileno=fds[0])
                sock.settimeout(ORPHANED)
                import_for(request.kind)
                frozen()
                continue
            program = Program(request, fds)
            try:
                program.set_up()
                titled(program)
            except BaseException as error:
                sock.sendall(f"{os.getpid()} {error!r}".encode())
                os._exit(127)
            sock.sendall(str(os.getpid()).encode())
            sock.detach()
            os.closerange(3, 256)
            return program
        for fd in fds:
            os.close(fd)


def titled(program: Program) -> None:
    """Set what ps(1) shows until the program sets its own title."""
    from setproctitle import setproctitle, setthreadtitle

    setproctitle(" ".join([sys.executable, *program.request.words]))
    setthreadtitle("python")


def fork_beside() -> int:
    """os.fork(), but the parent of the child is the parent of this process: the system call of glibc's fork() with one more
    flag, between the calls that os.fork() makes around it."""
    python = ctypes.pythonapi
    python.PyOS_BeforeFork()
    flags = CLONE_PARENT | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID | signal.SIGCHLD
    pid = int(LIBC.syscall(ctypes.c_long(SYS_CLONE), ctypes.c_ulong(flags), None, None, TID, None))
    if pid == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(ctypes.get_errno(), "clone")
    return pid


def exit_code(error: BaseException | None) -> int | None:
    """The exit code of a program that raised this. None: a signal ends it."""
    if isinstance(error, SystemExit):
        return 0 if error.code is None else error.code & 0xFF if isinstance(error.code, int) else 1
    return None if isinstance(error, KeyboardInterrupt) else int(error is not None)


def leave() -> None:
    """End a program without the teardown of its modules, which copies most pages that it shares with the warm process: that
    costs more CPU time than a short command. This is the last atexit function, and only daemon threads are left. If output
    cannot be written, the interpreter ends the program and reports the error."""
    if _code is None:
        return
    with contextlib.suppress(Exception):
        for file in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__, *vars(sys.modules["__main__"]).values()):
            if isinstance(file, io.IOBase) and not file.closed:
                file.flush()
        os._exit(_code)


def without_ours(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """sys.excepthook that leaves the frames of this file out of the traceback."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    sys.excepthook = sys.__excepthook__
    sys.excepthook(kind, error.with_traceback(traceback), traceback)


LIBC = ctypes.PyDLL(None, use_errno=True)
TID = ctypes.c_void_p()  # where glibc keeps the thread id; the kernel writes that of the child there
POSSIBLE = sys.platform == "linux" and os.uname().machine == "x86_64"
POSSIBLE = POSSIBLE and LIBC.prctl(PR_GET_TID_ADDRESS, ctypes.byref(TID), 0, 0, 0) == 0
WARM = Warm()
OTHERS: dict[str, Warm] = {}
OF_KIND = {"args": [sys.executable], "env": {}, "cwd": "/", "start_new_session": False, "process_group": -1}

_code: int | None = None  # exit code of this program, once it has ended

if __name__ == "__main__":
    atexit.register(leave)  # first registered, last called
    del sys.path[0]  # this file's folder
    BASE = [*sys.path]
    with socket.socket(fileno=int(sys.argv[1])) as _sock:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends pytest, and with it this process
        preload()
        frozen()
        _program = serve(_sock)
    if _program is not None:
        try:
            _found = _program.code()
            if _found is None:
                runpy._run_module_as_main(_program.request.words[1])  # type: ignore[attr-defined]
            else:
                exec(*_found)
            _code = exit_code(None)
        except BaseException as _error:
            _code = exit_code(_error)
            if not isinstance(_error, SystemExit) and sys.excepthook is sys.__excepthook__:
                sys.excepthook = without_ours
            raise
