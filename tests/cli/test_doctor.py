"""qd doctor: broken set-ups, each a real one where that can be; its line, and that the fix which it names mends it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from qd.cli.checks import access, host, server, supervisord, systemd
from qd.cli.checks.finding import Finding
from qd.cli.checks.project import Project as Looked
from qd.connectors.redis.wire import Wire
from qd.process import live
from tests.cli.conftest import report
from tests.support.certificates import Certificates
from tests.support.clock import eventually
from tests.support.procs import QD
from tests.support.project import Project
from tests.support.pushing import push, push_raw
from tests.support.resp import Client
from tests.support.server import Server, free_port

ROOT = Path(__file__).resolve().parents[2]
JOBS = """
@app.job("mail.welcome")
def welcome() -> None: ...
"""
ALL = ("redis.answers", "redis.version", "redis.eviction", "redis.role", "redis.rights")
Make = Callable[..., Project]


class Line(NamedTuple):
    sign: str
    what: str
    value: str
    fix: str


class Found(NamedTuple):
    code: int
    lines: list[Line]

    def line(self, what: str) -> Line:
        (found,) = [line for line in self.lines if line.what == what]
        return found

    def bad(self) -> list[tuple[str, str]]:
        """(sign, what) of all that is not well, but for what every test here has: root, and a server without a disk."""
        ours = ("root", "redis.persistence", "redis.latency", "huge pages")
        return [(line.sign, line.what) for line in self.lines if line.sign != "ok" and line.what not in ours]


@pytest.fixture
def shop(project: Make) -> Project:
    return project(jobs=JOBS)


def doctor(shop: Project, *words: str, **env: str) -> Found:
    done = shop.qd("doctor", "--json", *words, seconds=60.0, **env)
    found = json.loads(done.stdout)
    assert (found["exit"], found["ok"]) == (done.returncode, done.returncode == 0), done.stderr
    lines = [Line(**check) for check in found["checks"]]
    assert all(line.fix for line in lines if line.sign != "ok"), "a line without its fix"
    return Found(done.returncode, lines)


# -- well, and how it is told


def test_a_good_set_up_is_well(shop: Project) -> None:
    found = doctor(shop)
    assert (found.code, found.bad()) == (0, [])
    assert {line.what for line in found.lines if line.sign == "ok"} >= {*ALL, "configuration", "app", "import", "files"}
    assert found.line("app").value == "jobs:app declares 1 jobs"


def test_people_read_a_line_for_each_and_the_count(shop: Project) -> None:
    done = shop.qd("doctor")
    assert done.stderr == ""
    *lines, last = done.stdout.splitlines()
    assert all(re.match(r"(ok  |warn|fail)  [^:]+: ", line) for line in lines)
    assert all((" -> " in line) is not line.startswith("ok") for line in lines)
    assert re.fullmatch(r"\d+ ok, \d+ warnings, 0 failures", last)
    assert "\x1b" not in done.stdout


def test_strict_makes_a_warning_a_no(shop: Project) -> None:
    assert "redis.persistence" in [line.what for line in doctor(shop).lines if line.sign == "warn"]
    assert doctor(shop, "--strict").code == 1


def test_it_writes_nothing_into_the_server(shop: Project, redis: Client) -> None:
    doctor(shop)
    assert redis.keys() == []


# -- the project


def test_an_old_key_in_the_file(shop: Project) -> None:
    text = (shop.root / "qd.toml").read_text()
    (shop.root / "qd.toml").write_text(f"{text}[worker]\nshutdown_timeout = 5\n")
    found = doctor(shop)
    assert found.code == 78
    assert "unknown key 'shutdown_timeout' in qd.toml" in found.line("configuration").value
    assert found.line("files").sign == "ok"  # what does not need it is looked at all the same
    (shop.root / "qd.toml").write_text(f"{text}[worker]\nstop_timeout = 5\n")
    assert doctor(shop).code == 0


def test_an_app_that_does_not_import(shop: Project) -> None:
    shop.jobs("app = 1 / 0")
    found = doctor(shop)
    assert found.code == 78
    assert "ZeroDivisionError" in found.line("app").value
    assert f"{shop.root / 'jobs.py'}:1" in found.line("app").value
    assert found.line("redis.answers").sign == "ok"


def test_an_app_that_prints_and_leaves(shop: Project) -> None:
    shop.jobs("import sys\nprint('hello')\napp = sys.exit(3)")
    assert "SystemExit: 3" in doctor(shop).line("app").value


def test_no_app(shop: Project) -> None:
    (shop.root / "qd.toml").write_text(f'[connections.redis]\nurl = "{shop.url}"\n')
    found = doctor(shop)
    assert (found.code, found.line("app").value) == (78, "none is named: `qd work` does not start")
    assert doctor(shop, "--app", "jobs:app").code == 0


def test_an_app_without_jobs(shop: Project) -> None:
    shop.jobs("")
    (shop.root / "more.py").write_text("from jobs import app\n\n@app.job('late')\ndef late() -> None: ...\n")
    shop.allowed.add("more.py")
    found = doctor(shop)
    assert (found.code, found.line("app").sign) == (1, "fail")
    assert "declares no jobs" in found.line("app").value
    assert "imports = of [qd]" in found.line("app").fix
    assert doctor(shop, QD_IMPORTS="more").line("app").sign == "ok"


def test_a_thread_and_a_connection_that_the_import_leaves(shop: Project, server: Server) -> None:
    code = "import socket, threading, time\n"
    code += "threading.Thread(target=time.sleep, args=(60,), name='poller', daemon=True).start()\n"
    code += f"sock = socket.create_connection(('127.0.0.1', {server.port}))\n"
    shop.jobs(f"{code}from qd import Qd\napp = Qd()\n{JOBS}")
    found = [line.value for line in doctor(shop).lines if line.what == "import" and line.sign == "warn"]
    assert found[0] == "left the thread 'poller' running"
    assert found[1].startswith("left a connection open: fd ")


def test_a_variable_that_nothing_reads(shop: Project) -> None:
    assert "QD_TIMOUT in the environment is read by nothing" in doctor(shop, QD_TIMOUT="3").line("environment").value


def test_a_job_for_a_queue_on_which_nobody_works(shop: Project) -> None:
    shop.jobs('@app.job("r", queue="reports")\ndef r() -> None: ...\n')
    line = doctor(shop).line("job r")
    assert "goes to the queue 'reports' of redis, on which nobody here works" in line.value
    shop.config('[worker]\nqueues = ["default", "reports"]\n')
    assert doctor(shop).bad() == []


# -- the server


@pytest.fixture
def own() -> Iterator[Server]:
    """A server of this test's own, for what would harm the others."""
    with Server() as one:
        yield one


def at(shop: Project, url: str) -> None:
    text = (shop.root / "qd.toml").read_text()
    (shop.root / "qd.toml").write_text(re.sub(r'url = ".*"', f'url = "{url}"', text))


def run_fix(fix: str, client: Client) -> None:
    """The Redis commands in a fix, as an operator types them."""
    for found in re.findall(r"(?:CONFIG SET|ACL SETUSER) [^,;]+", fix):
        client.call(*shlex.split(found))


def test_a_server_that_is_away(shop: Project) -> None:
    at(shop, f"redis://127.0.0.1:{free_port()}/0")
    found = doctor(shop)
    assert (found.code, found.line("redis.answers").sign) == (69, "fail")
    assert found.line("files").sign == "ok"


def test_a_wrong_configuration_comes_before_a_server_that_is_away(shop: Project) -> None:
    at(shop, f"redis://127.0.0.1:{free_port()}/0")
    shop.jobs("app = 1 / 0")
    assert doctor(shop).code == 78


def test_a_url_that_cannot_be_used(shop: Project) -> None:
    at(shop, "redis://127.0.0.1:99999/0")
    found = doctor(shop)
    assert (
        found.code,
        "99999" in found.line("redis.url").value or "Port out of range" in found.line("redis.url").value,
    ) == (
        78,
        True,
    )


def test_a_password_that_is_missing(shop: Project, own: Server) -> None:
    with own.client() as client:
        client.call("CONFIG", "SET", "requirepass", "s3cret")
    at(shop, own.tcp_url)
    found = doctor(shop)
    assert found.code == 69
    assert "NOAUTH" in found.line("redis.answers").value
    assert found.line("redis.answers").fix == "write the right user and password into the url"
    at(shop, own.tcp_url.replace("//", "//:s3cret@"))
    assert doctor(shop).bad() == []


def test_a_server_that_throws_jobs_away_when_it_is_full(shop: Project, own: Server) -> None:
    at(shop, own.url)
    with own.client() as client:
        client.call("CONFIG", "SET", "maxmemory", "100mb")
        client.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        found = doctor(shop)
        assert (found.code, found.bad()) == (1, [("fail", "redis.eviction")])
        line = found.line("redis.eviction")
        assert line.value == "allkeys-lru: when it is full, jobs are thrown away"
        run_fix(line.fix, client)
    assert doctor(shop).line("redis.eviction").value == "noeviction"


def test_a_server_that_is_nearly_full(shop: Project, own: Server) -> None:
    at(shop, own.url)
    with own.client() as client:
        used = int(re.findall(r"used_memory:(\d+)", client.text("INFO", "memory"))[0])
        client.call("CONFIG", "SET", "maxmemory", used * 10 // 9)
        assert re.match(
            r"(8|9)\d% of .* used: when it is full no job can be sent", doctor(shop).line("redis.memory").value
        )
        client.call("CONFIG", "SET", "maxmemory", "500mb")
    assert doctor(shop).line("redis.memory").sign == "ok"


def test_a_server_that_keeps_nothing(shop: Project, own: Server) -> None:
    at(shop, own.url)
    line = doctor(shop).line("redis.persistence")
    assert (line.sign, "every job is lost when it restarts" in line.value) == ("warn", True)
    with own.client() as client:
        client.call("CONFIG", "SET", "save", "3600 1")
        assert "snapshots only (save 3600 1)" in doctor(shop).line("redis.persistence").value
        run_fix(line.fix, client)
    assert doctor(shop).line("redis.persistence") == (
        "ok",
        "redis.persistence",
        "append-only file, appendfsync everysec",
        "",
    )


def test_a_replica(shop: Project, own: Server) -> None:
    with Server() as master, own.client() as client:
        client.call("REPLICAOF", "127.0.0.1", str(master.port))
        at(shop, own.url)
        found = doctor(shop)
        line = found.line("redis.role")
        assert (found.code, line.sign, "READONLY" in line.value) == (1, "fail", True)
        url = re.findall(r"redis://\S+", line.fix)[0]
        at(shop, url)
        assert doctor(shop).line("redis.role").value == "master"


def test_a_user_who_may_not_do_all(shop: Project, own: Server) -> None:
    with own.client() as client:
        client.call("ACL", "SETUSER", "narrow", "on", ">pw", "~queues:*", "~qd:*", "+@all", "-zadd", "-lrem", "-info")
        at(shop, own.tcp_url.replace("//", "//narrow:pw@"))
        found = doctor(shop)
        line = found.line("redis.rights")
        assert (found.code, line.value) == (1, "user narrow may not LREM, ZADD: workers cannot work")
        assert (found.line("redis.info").sign, "INFO" in found.line("redis.info").value) == ("warn", True)
        run_fix(line.fix, client)
        assert doctor(shop).line("redis.rights").sign == "ok"


def test_a_user_who_may_not_touch_the_keys(shop: Project, own: Server) -> None:
    with own.client() as client:
        client.call("ACL", "SETUSER", "narrow", "on", ">pw", "~queues:other*", "~qd:*", "+@all")
        at(shop, own.tcp_url.replace("//", "//narrow:pw@"))
        line = doctor(shop).line("redis.rights")
        assert "may not touch queues:default" in line.value
        run_fix(line.fix, client)
        assert doctor(shop).line("redis.rights").sign == "ok"


def test_rights_are_tried_for_each_command_that_the_scripts_call() -> None:
    folder = ROOT / "daemon" / "qd" / "connectors" / "redis"
    texts = [path.read_text() for path in folder.glob("*.lua") if path.name != "clear.lua"]
    called = {word for text in texts for word in re.findall(r"redis\.p?call\('(\w+)'", text)}
    assert called - {str(one[0]) for one in access.work_tries("", "q")} == set()


def test_a_certificate_that_is_not_checked(shop: Project, tmp_path: Path) -> None:
    certificates, port = Certificates(tmp_path / "certificates"), free_port()
    options = ["--tls-port", str(port), "--tls-auth-clients", "no"]
    for option, name in (("ca-cert", "ca.crt"), ("cert", "server.crt"), ("key", "server.key")):
        options += [f"--tls-{option}-file", certificates.path(name)]
    with Server(*options):
        at(shop, f"rediss://127.0.0.1:{port}/0?ssl_cert_reqs=none")
        line = doctor(shop).line("redis.tls")
        assert (line.sign, "ssl_ca_certs=PATH" in line.fix) == ("warn", True)
        at(shop, f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificates.path('ca.crt')}")
        assert doctor(shop).bad() == []


def test_a_clock_that_is_wrong(own: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    real = server.clock
    wire = Wire(own.url)
    assert server.skew(wire, "redis").sign == "ok"
    monkeypatch.setattr(server, "clock", lambda: real() + 7)
    line = server.skew(wire, "redis")
    assert (line.sign, line.value) == ("warn", "this clock is 7.0 s ahead of the server's")
    monkeypatch.setattr(server, "clock", lambda: real() - 90)
    line = server.skew(wire, "redis")
    assert (line.sign, line.value) == ("fail", "this clock is 90.0 s behind the server's")
    wire.close()


def test_a_server_that_is_far_away(own: Server) -> None:
    wire = Wire(own.url)
    times = iter([0.02] * 50)
    line = server.latency(wire, "redis", lambda _: next(times))
    assert (line.sign, "20.00 ms p50" in line.value, "at most 50 jobs a second" in line.value) == ("warn", True, True)


@pytest.mark.parametrize(
    ("facts", "sign"),
    [({"redis_version": "6.0.16"}, "fail"), ({"redis_version": "6.2.0"}, "ok"), ({"valkey_version": "8.1.1"}, "ok")],
)
def test_versions(facts: dict[str, str], sign: str) -> None:
    assert server.version("redis", facts).sign == sign


def test_an_embedded_server_is_not_started(shop: Project) -> None:
    at(shop, "embedded:")
    line = doctor(shop).line("redis.answers")
    assert (line.sign, line.fix) == ("warn", "`qd work` starts it")
    assert not (shop.root / ".qd" / "embedded" / "address").exists()
    shutil.rmtree(shop.root / ".qd", ignore_errors=True)


# -- the queues


def test_an_unknown_name_at_the_head(shop: Project, redis: Client) -> None:
    push(redis, "mail.welcom")
    found = doctor(shop)
    line = found.line("queue default")
    assert (found.code, line.sign) == (1, "fail")
    assert "'mail.welcom' at its head is no job of this app (did you mean 'mail.welcome'?)" in line.value
    shop.jobs(JOBS.replace("mail.welcome", "mail.welcom"))  # the code that declares it
    assert doctor(shop).bad() == []


def test_payloads_that_are_none_and_a_key_that_is_no_list(shop: Project, redis: Client) -> None:
    push_raw(redis, b"nonsense")
    assert "1 of the first 1 are no payloads" in doctor(shop).line("queue default").value
    redis.call("DEL", "queues:default")
    redis.call("SET", "queues:default", "1")
    assert "WRONGTYPE" in doctor(shop).line("queue default").value


def test_jobs_for_php_and_a_php_worker_on_the_same_queue(shop: Project, redis: Client) -> None:
    payload = json.dumps(
        {"job": r"Illuminate\Queue\CallQueuedHandler@call", "attempts": 0}, separators=(",", ":")
    ).encode()
    push_raw(redis, payload)
    line = doctor(shop).line("queue default")
    assert (line.sign, "which only a PHP worker takes" in line.value) == ("warn", True)
    assert "queue:work --queue=default" in line.fix
    redis.call("ZADD", "queues:default:reserved", 2_000_000_000, payload)
    line = doctor(shop).line("queue default")
    assert "a PHP worker works on it too: it fails and deletes string jobs that it does not know" in line.value


def test_a_job_in_the_hands_of_a_dead_master_is_given_back_by_the_next(project: Make, redis: Client) -> None:
    shop = project(
        jobs='@app.job("wait")\ndef wait() -> None:\n    while not Path("go").exists():\n        time.sleep(0.01)\n'
    )
    shop.allowed.add("go")
    work = shop.work("-w", "1")
    push(redis, "wait")
    eventually(lambda: redis.call("HLEN", "queues:default:owners") == 1, 10, what="a running job")
    eventually(lambda: redis.call("HLEN", "qd:masters") == 1, 10, what="a report")
    assert doctor(shop).line("queue default").sign == "ok"
    for process in work.session():
        process.kill()
    work.process.wait(10)
    line = doctor(shop).line("queue default")
    assert (line.sign, line.value) == ("warn", "1 jobs are in the hands of masters that are gone")
    (shop.root / "go").touch()
    shop.work_off()  # the way out
    assert doctor(shop).bad() == []


# -- masters


def test_laravels_cache_that_is_away(shop: Project) -> None:
    shop.config(f'[laravel]\ncache_url = "redis://127.0.0.1:{free_port()}/1"\n')
    assert (doctor(shop).code, doctor(shop).line("laravel.cache.answers").sign) == (69, "fail")
    shop.config(f'[laravel]\ncache_url = "{shop.url}"\n')
    assert doctor(shop).bad() == []


def test_other_versions_old_code_root_and_silence(shop: Project, redis: Client) -> None:
    now = float(redis.text("TIME")[0])
    redis.call("SET", "qd:restart", f"{now - 300:.6f}")
    report(redis, "T1", version="0.0.1", root=True, booted_at=now - 400, queues=["default"])
    report(redis, "T2", version="0.0.1", host="app-2", seen_at=now - 200, queues=["default"])
    lines = doctor(shop).lines
    one = [line.value for line in lines if line.what == "master mail@app-1"]
    assert one[0].startswith("pid 411 is qd 0.0.1, this is ")
    assert re.fullmatch(r"pid 411 runs code from before the `qd restart` of 5m( \ds)? ago", one[1])
    assert one[2] == "pid 411 runs as root, and so do its jobs"
    (silent,) = [line for line in lines if line.what == "master mail@app-2"]
    assert silent.value.startswith("pid 411 has not reported for 3m 2")
    redis.call("HDEL", "qd:masters", silent.fix.rpartition(" ")[2], "T1")
    assert doctor(shop).bad() == []


# -- supervisord and systemd


def edited(text: str, key: str, value: str | None) -> str:
    """`key=value` in the place of what stands there, or not at all."""
    return re.sub(rf"^{key}=.*$", "" if value is None else f"{key}={value}", text, flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("stopwaitsecs", "10", "stopwaitsecs=10, but running jobs may go on for 25 s"),
        ("stopwaitsecs", None, "stopwaitsecs=10, but running jobs may go on for 25 s"),
        ("autorestart", None, "autorestart=unexpected: after `qd restart`, which ends it with 0, it stays down"),
        ("startsecs", "10", "startsecs=10, but qd may end by itself after 1.5 s"),
        ("killasgroup", "false", "killasgroup=false: when supervisord has to kill"),
        ("stopsignal", "KILL", "stopsignal=KILL does not stop qd in good order"),
        ("user", None, "no user=: where supervisord is root, jobs run as root"),
    ],
)
def test_a_program_of_supervisord(key: str, value: str | None, says: str, folder: Path) -> None:
    file, good = folder / "my.conf", (ROOT / "supervisor" / "qd.conf").read_text()

    def judged(text: str) -> Finding:
        file.write_text(text)
        (found,) = supervisord.check(Looked(), file)
        return found

    assert judged(good).sign == "ok"
    line = judged(edited(good, key, value))
    assert says in line.value
    setting = re.match(r"\w+=\w+", line.fix)
    assert setting
    assert judged(edited(good, key, None) + f"{setting[0]}\n").sign == "ok"


def test_a_program_is_judged_by_its_pool_and_flags(shop: Project) -> None:
    shop.config('[pools.slow]\nstop_timeout = "5m"\n[pools.web]\nmin_uptime = 11\n')
    shop.allowed.add("supervisor")
    (shop.root / "supervisor").mkdir()
    text = (
        "[program:%s]\ncommand=/x/qd work %s ; the pool\nautorestart=true\nkillasgroup=true\nuser=a\nstopwaitsecs=35\n"
    )
    programs = {"a": "--pool slow", "b": "--pool=web", "c": "--stop-timeout 2m", "d": "--config /another/qd.toml"}
    text = "".join(text % each for each in programs.items()) + "[program:nginx]\ncommand=nginx\n"
    (shop.root / "supervisor" / "all.conf").write_text(text.replace("user=a", "user=a\nstartsecs=10"))
    found = {
        line.what[-2:-1]: line for line in doctor(shop).lines if "all.conf" in line.what and "stopwait" in line.value
    }
    assert {name: line.fix for name, line in found.items()} == {
        "a": "stopwaitsecs=310",
        "b": "",
        "c": "stopwaitsecs=130",
    }
    shutil.rmtree(shop.root / "supervisor")


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("KillMode", "control-group", "KillMode=control-group: at a stop every process gets TERM"),
        ("KillMode", None, "KillMode=control-group"),
        ("KillMode", "process", "KillMode=process: what jobs have started stays behind"),
        ("Restart", "on-failure", "Restart=on-failure: after `qd restart`, which ends it with 0, it stays down"),
        ("StartLimitIntervalSec", None, "a start limit"),
        ("Type", "simple", "Type=simple: systemd does not know when workers have booted"),
        ("User", None, "no User=: jobs run as root"),
    ],
)
def test_a_unit_of_systemd(key: str, value: str | None, says: str, folder: Path) -> None:
    file, good = folder / "my.service", (ROOT / "supervisor" / "qd@.service").read_text()

    def judged(text: str) -> Finding:
        file.write_text(text)
        (found,) = systemd.check(Looked(), file)
        return found

    assert judged(good).sign == "ok"
    line = judged(edited(good, key, value))
    assert says in line.value
    setting = re.match(r"\w+=\w+", line.fix)
    assert setting
    section = "[Unit]" if "[Unit]" in line.fix else "[Service]"
    assert judged(edited(good, key, None).replace(section, f"{section}\n{setting[0]}", 1)).sign == "ok"


def test_a_unit_that_does_not_wait_long_enough(shop: Project) -> None:
    shop.allowed.add("my.service")
    unit = "[Unit]\nStartLimitIntervalSec=0\n[Service]\nExecStart=/x/python -m qd work\nUser=a\nKillMode=mixed\n"
    unit += "Restart=always\nTimeoutStopSec="
    (shop.root / "my.service").write_text(f"{unit}10s\n")
    found = [line for line in doctor(shop, "--unit", "my.service").lines if line.what == "my.service"]
    assert "TimeoutStopSec=10, but running jobs may go on for 25 s: systemd kills qd before" in found[1].value
    (shop.root / "my.service").write_text(f"{unit}{found[1].fix.partition('=')[2]}\nType=notify\n")
    assert doctor(shop, "--unit", "my.service").line("my.service").sign == "ok"


def test_a_start_limit_in_the_wrong_section_and_files_that_are_none(shop: Project) -> None:
    shop.allowed.update(("my.service", "my.conf"))
    (shop.root / "my.service").write_text("[Service]\nExecStart=qd \\\n  work\nStartLimitIntervalSec=0\n")
    found = [line.value for line in doctor(shop, "--unit", "my.service").lines if line.what == "my.service"]
    assert found[0] == "StartLimitIntervalSec stands in [Service], where it counts for nothing"
    (shop.root / "my.conf").write_text("[program:web]\ncommand=nginx\n")
    assert doctor(shop, "--supervisord", "my.conf").line("my.conf").sign == "warn"
    (shop.root / "my.conf").write_text("what is this\n")
    assert doctor(shop, "--supervisord", "my.conf").line("my.conf").sign == "fail"
    assert "No such file" in doctor(shop, "--unit", "gone.service").line("gone.service").value


SHOWN = """Type=notify
Restart=always
TimeoutStopUSec=1min 30s
ExecStart={ path=/srv/qd ; argv[]=/srv/qd work --pool mail ; ignore_errors=no ; start_time=[n/a] ; pid=0 }
Environment=PWD=/srv
User=shop
KillMode=%s
Id=qd@mail.service
StartLimitIntervalUSec=0

Type=simple
Restart=no
ExecStart={ path=/usr/bin/nginx ; argv[]=/usr/bin/nginx ; ignore_errors=no ; start_time=[n/a] ; pid=0 }
Id=qdx.service
"""


def test_loaded_units_are_judged_as_systemctl_shows_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another program stands for systemctl: it says what that of systemd 252 does."""
    program = tmp_path / "systemctl"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(systemd, "BOOTED", tmp_path)
    for kill, sign in (("mixed", "ok"), ("control-group", "fail")):
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{SHOWN % kill}END\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        (found,) = systemd.check(Looked(), None)
        assert (found.what, found.sign) == ("qd@mail.service", sign)


def test_lengths_of_time_as_systemd_writes_them() -> None:
    said = {"90": 90, "1min 30s": 90, "infinity": float("inf"), "500ms": 0.5, "0": 0, "": 0, "2h": 7200}
    assert {text: systemd.seconds(text) for text in said} == said


# -- this host


def test_too_few_open_files(shop: Project) -> None:
    words = ["sh", "-c", f"ulimit -n $1; exec {shlex.join([*QD, 'doctor', '--json'])}", "sh"]

    def limited(most: int) -> Line:
        done = subprocess.run([*words, str(most)], cwd=shop.root, env=shop.env(), capture_output=True, check=False)
        return next(Line(**one) for one in json.loads(done.stdout)["checks"] if one["what"] == "files")

    assert (limited(128).sign, limited(128).value) == ("fail", "128 at once: master and workers run out of them")
    assert limited(512).sign == "warn"
    assert limited(4096).sign == "ok"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """machine({"proc/meminfo": "..."}): the host's files, as far as a test cannot have them real."""
    root = tmp_path / "machine"
    monkeypatch.setattr(host, "ROOT", root)

    def write(files: dict[str, str]) -> None:
        for name, text in {"proc/meminfo": "MemTotal: 16000000 kB\n", **files}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)

    return write


V1 = {
    "proc/self/cgroup": "9:name=systemd:/\n4:memory:/docker/x\n",
    "sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes": "%s",
}
V2 = {"proc/self/cgroup": "0::/system.slice/qd\n", "sys/fs/cgroup/system.slice/qd/memory.max": "%s\n"}
ABOVE = {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max", "sys/fs/cgroup/a/memory.max": "%s"}
INSIDE = {"proc/self/cgroup": "0::/not/here\n", "sys/fs/cgroup/memory.max": "%s"}


@pytest.mark.parametrize("files", [V1, V2, ABOVE, INSIDE], ids=["v1", "v2", "of a parent", "in a container"])
def test_more_workers_than_the_memory_of_the_container(
    files: dict[str, str], machine: Callable[..., None], folder: Path
) -> None:
    from qd import config

    (folder / "qd.toml").write_text("[worker]\nworkers = 8\n")
    looked = Looked(pools={"": config.load()})

    def memory(limit: str) -> tuple[str, str]:
        machine({name: text.replace("%s", limit) for name, text in files.items()})
        (found,) = host.memory(looked)
        return found.sign, found.value

    sign, said = memory(str(512 << 20))
    assert (sign, said.startswith("8 workers x 128M + app ")) == ("fail", True)
    assert said.endswith("over the 512M of this container or unit")
    assert memory(str(4 << 30))[0] == "ok"
    assert memory("9223372036854771712")[0] == "ok"  # how v1 writes that there is no limit
    (folder / "qd.toml").write_text("[worker]\nworkers = 2\n")  # the way out: fewer workers
    looked.pools[""] = config.load()
    assert memory(str(512 << 20))[0] == "ok"


def test_more_workers_than_the_machine_has_memory(machine: Callable[..., None], folder: Path) -> None:
    from qd import config

    machine({"proc/meminfo": "MemTotal:  512000 kB\n"})
    (folder / "qd.toml").write_text("[worker]\nworkers = 8\n")
    (found,) = host.memory(Looked(pools={"": config.load()}))
    assert (found.sign, found.value.endswith("over the 500M of this machine")) == ("warn", True)


def test_huge_pages_for_everybody(machine: Callable[..., None]) -> None:
    machine({"sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never\n"})
    (found,) = host.huge_pages()
    assert (found.sign, found.fix) == ("warn", "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled")
    machine({"sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n"})
    assert [found.sign for found in host.huge_pages()] == ["ok"]


def test_a_folder_for_signs_of_life_that_others_may_write_to(shop: Project) -> None:
    where = live.folder(shop.env())
    where.mkdir()
    where.chmod(0o777)
    line = doctor(shop).line("health --live")
    assert (line.sign, str(where) in line.value) == ("warn", True)
    where.chmod(0o700)
    assert doctor(shop).line("health --live").sign == "ok"


def test_it_is_ended_by_ctrl_c_as_every_command(shop: Project) -> None:
    shop.jobs("import time\ntime.sleep(60)\napp = 1")
    process = subprocess.Popen([*QD, "doctor"], cwd=shop.root, env=shop.env(), stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"ok    configuration: ")  # a line comes as soon as it is known
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    process.stdout.close()


# -- docs/commands.md


def test_the_page_shows_what_it_says(project: Make, own: Server) -> None:
    page = (ROOT / "docs" / "commands.md").read_text()
    shown = re.search(r"^    \$ qd doctor\n(.*?)\n    \.\.\.$", page, re.MULTILINE | re.DOTALL)
    assert shown
    names = "".join(f"@app.job('job{number}')\ndef job{number}() -> None: ...\n" for number in range(11))
    shop = project(jobs=JOBS + names, url=own.url, config='[pools.a]\n[pools.b]\nqueues = ["mail"]\n')
    shop.allowed.add("qd.conf")
    text = edited((ROOT / "supervisor" / "qd.conf").read_text(), "stopwaitsecs", "10")
    (shop.root / "qd.conf").write_text(text)
    with own.client() as client:
        push(client, "mail.welcom", queue="mail")
    said = shop.qd("doctor", "--supervisord", "qd.conf").stdout.replace(str(shop.root), "/srv/shop")
    said = said.replace(" qd.conf [", " /etc/supervisor/conf.d/qd.conf [")
    assert [line for line in shown[1].splitlines() if line[4:] not in said.splitlines()] == []
