"""qd.process.proc about this process, a child of it, and fake cgroup trees."""

from __future__ import annotations

import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from qd.process import proc
from tests.support.waiting import eventually

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.mark.parametrize(
    ("file", "variables", "inside"),
    [
        ("", {}, False),
        (".dockerenv", {}, True),
        ("run/.containerenv", {}, True),
        ("", {"container": "podman"}, True),
        ("", {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, True),
    ],
)
def test_a_container_is_detected(tmp_path: Path, file: str, variables: dict[str, str], inside: bool):
    (tmp_path / "run").mkdir()
    if file:
        (tmp_path / file).touch()
    assert proc.in_container(tmp_path, variables) is inside


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def test_boot_and_namespace_ids_are_stable() -> None:
    assert proc.boot_id()
    assert proc.boot_id() == proc.boot_id()
    assert proc.pid_namespace().startswith("pid:")


def test_the_start_time_distinguishes_processes(child: subprocess.Popen[bytes]) -> None:
    mine, childs = proc.start_time(os.getpid()), proc.start_time(child.pid)
    assert mine is not None
    assert childs is not None
    assert mine <= childs
    assert proc.start_time(child.pid) == childs


@linux_only
def test_start_time_survives_a_hostile_program_name() -> None:
    script = "import ctypes,time; ctypes.CDLL(None).prctl(15, b'x) R 1 2 (y', 0, 0, 0); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        before = proc.start_time(process.pid)
        assert process.stdout is not None
        process.stdout.readline()
        assert "x) R" in Path(f"/proc/{process.pid}/stat").read_text()
        assert proc.start_time(process.pid) == before


def test_alive_needs_the_same_start() -> None:
    start = proc.start_time(os.getpid())
    assert start is not None
    assert proc.alive(os.getpid(), start) is True
    assert proc.alive(os.getpid(), start - 1) is False
    assert proc.alive(os.getpid(), None) is None


def test_a_reaped_process_is_dead(child: subprocess.Popen[bytes]) -> None:
    start = proc.start_time(child.pid)
    assert proc.alive(child.pid, start) is True
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert proc.alive(child.pid, start) is False, "a zombie was taken for alive"
    child.wait()
    assert proc.alive(child.pid, start) is False
    assert proc.alive(child.pid, None) is False
    assert proc.start_time(child.pid) is None


def test_a_process_without_permission_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, sig: int) -> None:
        raise PermissionError(pid, sig)

    monkeypatch.setattr(os, "kill", refuse)
    monkeypatch.setattr(proc, "start_time", lambda pid: None)
    assert proc.alive(4711, 1) is None


def test_a_process_hidden_in_proc_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc, "start_time", lambda pid: None)
    assert proc.alive(os.getpid(), 1) is None


@pytest.mark.parametrize("pid", [0, -1, -4711])
def test_a_pid_that_means_a_group_is_never_signaled(pid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("kill(pid <= 0) would reach a group"))
    assert proc.alive(pid, 1) is None


def test_a_pid_beyond_all_limits_is_unknown() -> None:
    assert proc.alive(2**70, 1) in (None, False)


def test_own_memory_grows_with_allocations() -> None:
    before = proc.own_anon_bytes()
    with mmap.mmap(
        -1, 64_000_000, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    ) as block:  # not from a heap with free room
        for at in range(0, len(block), mmap.PAGESIZE):
            block[at] = 1
        grown = proc.own_anon_bytes() - before
    assert before > 1_000_000
    assert grown > 60_000_000


@linux_only
def test_own_memory_is_the_childs_own_after_a_fork() -> None:
    proc.own_anon_bytes()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        block = bytearray(b"x") * 64_000_000  # more than malloc reuses of the memory freed by earlier tests
        os.write(write, str(proc.own_anon_bytes() if block else 0).encode())
        os._exit(0)
    os.close(write)
    childs = int(os.read(read, 100))
    os.waitpid(pid, 0)
    os.close(read)
    assert childs - proc.own_anon_bytes() > 20_000_000


@linux_only
def test_own_memory_survives_a_job_that_closes_every_file() -> None:
    assert proc.own_anon_bytes() > 0
    os.close(proc._statm[1])
    assert proc.own_anon_bytes() > 0
    assert proc.own_anon_bytes() > 0


@linux_only
def test_own_memory_survives_a_file_put_in_its_place(tmp_path: Path) -> None:
    assert proc.own_anon_bytes() > 0
    (tmp_path / "other").write_text("not a statm")
    with open(tmp_path / "other") as other:
        os.dup2(other.fileno(), proc._statm[1])
    fd = proc._statm[1]
    assert proc.own_anon_bytes() > 0
    os.close(fd)


def test_the_memory_of_another_process_is_read(child: subprocess.Popen[bytes]) -> None:
    eventually(lambda: (proc.rss_of(child.pid) or 0) > 1_000_000)
    child.kill()
    child.wait()
    assert proc.rss_of(child.pid) is None


def test_at_least_one_cpu_is_granted() -> None:
    assert 1 <= proc.cpus_granted() <= (os.cpu_count() or 1)


@linux_only
def test_affinity_limits_the_cpus() -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert proc.cpus_granted() == 1
    finally:
        os.sched_setaffinity(0, allowed)


def _group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


def test_the_smallest_quota_of_all_parent_groups_counts_under_v2(tmp_path: Path) -> None:
    _group(tmp_path / "a" / "b", cpu__max="max 100000")
    _group(tmp_path / "a", cpu__max="150000 100000")
    assert proc._cpu_quota("0::/a/b", tmp_path) == 1.5
    _group(tmp_path / "a" / "b", cpu__max="50000 100000")
    assert proc._cpu_quota("0::/a/b", tmp_path) == 0.5


def test_a_quota_is_found_under_v1(tmp_path: Path) -> None:
    _group(tmp_path / "cpu,cpuacct" / "x", cpu__cfs_quota_us="250000", cpu__cfs_period_us="100000")
    membership = "4:memory:/x\n3:cpu,cpuacct:/x\n1:name=systemd:/x"
    assert proc._cpu_quota(membership, tmp_path) == 2.5


def test_minus_one_means_no_quota_under_v1(tmp_path: Path) -> None:
    _group(tmp_path / "cpu", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    assert proc._cpu_quota("3:cpu:/", tmp_path) is None


def test_a_container_that_sees_the_hosts_path_reads_the_root_group(tmp_path: Path) -> None:
    _group(tmp_path, cpu__max="200000 100000")
    assert proc._cpu_quota("0::/system.slice/docker-12ab.scope", tmp_path) == 2.0
    assert proc._cpu_quota("0::/../../other", tmp_path) == 2.0


@pytest.mark.parametrize("membership", ["", "garbage", "0::", "1:cpu:/nowhere"])
def test_an_unreadable_quota_is_no_quota(membership: str, tmp_path: Path) -> None:
    assert proc._cpu_quota(membership, tmp_path) is None


def test_a_thread_gets_its_name() -> None:
    leave = threading.Event()
    thread = threading.Thread(target=leave.wait, name="metrics-flusher")
    thread.start()
    try:
        assert "metrics-flusher" in proc.thread_names()
    finally:
        leave.set()
        thread.join()
    assert "metrics-flusher" not in proc.thread_names()


def test_a_connected_stream_is_described_without_changing_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            socket.setdefaulttimeout(3)
            try:
                found = [line for line in proc.connected_sockets() if line.startswith(f"fd {client.fileno()}:")]
            finally:
                socket.setdefaulttimeout(None)
            assert found == [f"fd {client.fileno()}: 127.0.0.1:{client.getsockname()[1]} -> 127.0.0.1:{port}"]
            assert os.get_blocking(client.fileno())


def test_a_unix_stream_is_described_by_its_peer(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(tmp_path / "s"))
        server.listen()
        client.connect(str(tmp_path / "s"))
        assert f"fd {client.fileno()}: unix {tmp_path / 's'}" in proc.connected_sockets()


def test_sockets_that_a_fork_can_share_are_not_described() -> None:
    left, right = socket.socketpair()
    with left, right, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as statsd, socket.socket() as lonely:
        statsd.connect(("127.0.0.1", 9))
        ours = tuple(f"fd {each.fileno()}:" for each in (left, right, statsd, lonely))
        assert not [line for line in proc.connected_sockets() if line.startswith(ours)]


def test_a_copy_of_the_journal_socket_on_stderr_is_not_described(tmp_path: Path) -> None:
    script = "import os; from qd.process import proc as vitals; os.dup(2); print(vitals.connected_sockets())"
    with socket.socket(socket.AF_UNIX) as journal, socket.socket(socket.AF_UNIX) as stderr:
        journal.bind(str(tmp_path / "j"))
        journal.listen()
        stderr.connect(str(tmp_path / "j"))
        done = subprocess.run(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=stderr.fileno(), check=True, text=True
        )
    assert done.stdout == "[]\n"


@linux_only
def test_a_child_with_pdeathsig_dies_with_its_parent() -> None:
    read, write = os.pipe()
    parent = os.fork()
    if parent == 0:
        ready, signal_end = os.pipe()
        if os.fork() == 0:
            assert proc.set_pdeathsig(signal.SIGKILL)
            os.write(signal_end, b"x")
            time.sleep(60)  # holds the pipe's end open until it is killed
            os._exit(0)
        os.read(ready, 1)
        os._exit(0)
    os.close(write)
    os.waitpid(parent, 0)
    assert os.read(read, 1) == b""  # every writer is gone
    os.close(read)


@linux_only
def test_a_subreaper_becomes_the_parent_of_orphans() -> None:
    script = """
import os, sys
from qd.process import proc as vitals
assert vitals.set_subreaper()
if (child := os.fork()) == 0:
    if (grandchild := os.fork()) == 0:
        sys.stdin.read()
        os._exit(7)
    os._exit(0)
os.waitpid(child, 0)
os.close(0)
_, status = os.wait()
sys.exit(os.waitstatus_to_exitcode(status))
"""
    assert subprocess.run([sys.executable, "-c", script], stdin=subprocess.DEVNULL, check=False).returncode == 7


@linux_only
def test_oom_score_can_be_raised_for_a_child() -> None:
    script = """
from qd.process import proc as vitals
assert vitals.oom_score_adj(500)
print(open("/proc/self/oom_score_adj").read())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "500"


@linux_only
@pytest.mark.parametrize(("given", "own"), [(0, 500), (300, 800), (900, 1000)])
def test_the_oom_killer_chooses_a_child_before_its_parent(given: int, own: int) -> None:
    script = f"""
from qd.process import proc as vitals
assert vitals.oom_score_adj({given}) and vitals.die_before_parent(500)
print(open("/proc/self/oom_score_adj").read())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(own)


def test_a_score_out_of_range_is_refused() -> None:
    assert proc.oom_score_adj(100_000) is False


def test_without_proc_psutil_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc, "LINUX", False)
    start = proc.start_time(os.getpid())
    assert start == round(psutil.Process().create_time() * 1_000_000)
    assert proc.alive(os.getpid(), start) is True
    assert (proc.rss_of(os.getpid()) or 0) > 1_000_000
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert (proc.start_time(gone.pid), proc.rss_of(gone.pid), proc.alive(gone.pid, start)) == (None, None, False)
