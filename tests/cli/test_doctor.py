"""qd doctor: broken set-ups, real ones where possible. Each test checks the reported line and that its fix works."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from qd import __version__
from qd.cli.checks import servers
from qd.drivers.database.connection import DatabaseConnection
from qd.drivers.database.keyspace import DatabaseKeyspace
from qd.drivers.redis import acl
from qd.drivers.redis.connection import RedisConnection
from qd.payload.build import make
from qd.store import failed_jobs_table
from tests.cli.conftest import report
from tests.cli.test_status import on_a_terminal
from tests.support import warm
from tests.support.network import Certificates
from tests.support.payloads import push, push_raw
from tests.support.processes import QD
from tests.support.project import Project, doctor, with_setting
from tests.support.redis import Client
from tests.support.servers.redis import Server, free_port
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
JOBS = """
@app.job("mail.welcome")
def welcome() -> None: ...
"""
ALL = ("redis.answers", "redis.version", "redis.eviction", "redis.role", "redis.rights")
Make = Callable[..., Project]


@pytest.fixture
def shop(project: Make) -> Project:
    return project(jobs=JOBS)


# -- a healthy set-up, and the output


def test_a_good_set_up_passes(shop: Project) -> None:
    found = doctor(shop)
    assert (found.code, found.bad()) == (0, [])
    assert {line.what for line in found.lines if line.sign == "ok"} >= {
        *ALL,
        "configuration",
        "app",
        "import",
        "health --live",
    }
    assert found.line("app").value == "jobs:app declares 1 job"


def test_text_output_has_one_line_per_check_and_a_count(shop: Project) -> None:
    done = shop.qd("doctor")
    assert done.stderr == ""
    *lines, last = done.stdout.splitlines()
    assert all(re.match(r"(ok  |warn|fail)  [^:]+: ", line) for line in lines)
    assert all((" -> " in line) is not line.startswith("ok") for line in lines)
    assert re.fullmatch(r"\d+ ok, \d+ warnings?, 0 failures", last)
    assert "\x1b" not in done.stdout


def test_problems_are_listed_last(shop: Project, redis: Client) -> None:
    push(redis, "mail.welcom")
    *lines, last = shop.qd("doctor", QD_TIMOUT="3").stdout.splitlines()
    signs = [line[:4] for line in lines]
    assert signs == sorted(signs, key=["ok  ", "warn", "fail"].index)
    assert ("warn" in signs, signs.count("fail"), last.endswith(" 1 failure")) == (True, 1, True)


def test_signs_are_coloured_on_a_terminal(shop: Project) -> None:
    code, text = on_a_terminal(["env", "-u", "NO_COLOR", "TERM=xterm", *QD, "doctor"], 200, shop)
    assert (code, "\x1b[32mok  \x1b[0m  configuration: " in text) == (0, True)


def test_strict_turns_warnings_into_failure(shop: Project) -> None:
    assert "redis.persistence" in [line.what for line in doctor(shop).lines if line.sign == "warn"]
    assert doctor(shop, "--strict").code == 1


def test_it_writes_nothing_to_the_server(shop: Project, redis: Client) -> None:
    doctor(shop)
    assert redis.keys() == []


def test_ctrl_c_ends_it(shop: Project) -> None:
    shop.jobs("import time\ntime.sleep(60)\napp = 1")
    process = warm.Popen([*QD, "doctor"], cwd=shop.root, env=shop.env(), stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"ok    configuration: ")  # each line is printed as soon as it is known
    process.send_signal(signal.SIGINT)
    assert process.wait(40) == 130
    process.stdout.close()


# -- the project


def test_an_old_key_in_the_file(shop: Project) -> None:
    text = (shop.root / "qd.toml").read_text()
    (shop.root / "qd.toml").write_text(f"{text}[worker]\nshutdown_timeout = 5\n")
    found = doctor(shop)
    assert found.code == 78
    assert "unknown key 'shutdown_timeout' in qd.toml" in found.line("configuration").value
    assert found.line("health --live").sign == "ok"  # what does not need it is checked anyway
    (shop.root / "qd.toml").write_text(f"{text}[worker]\nstop_timeout = 5\n")
    assert doctor(shop).code == 0


def test_an_app_that_does_not_import(shop: Project) -> None:
    shop.jobs("app = 1 / 0")
    found = doctor(shop)
    assert found.code == 78
    assert "ZeroDivisionError" in found.line("app").value
    assert f"{shop.root / 'jobs.py'}:1" in found.line("app").value
    assert found.line("app").fix == "fix it; `python -c 'import jobs'` shows the same error"
    assert found.line("redis.answers").sign == "ok"


def test_a_module_of_jobs_that_does_not_import(shop: Project) -> None:
    shop.jobs(f"from qd import Qd\n\napp = Qd({shop.url!r}, imports=['mail'])")
    (shop.root / "qd.toml").write_text('[qd]\napp = "jobs:app"\n')
    (shop.root / "mail.py").write_text("1 / 0\n")
    shop.allowed.add("mail.py")
    found = doctor(shop)
    assert found.line("app").fix == "fix it; `python -c 'import mail'` shows the same error"
    assert found.line("redis.answers").sign == "ok"  # the url of Qd(...), as for the other commands


def test_an_app_that_prints_and_exits(shop: Project) -> None:
    shop.jobs("import sys\nprint('hello')\napp = sys.exit(3)")
    assert "SystemExit: 3" in doctor(shop).line("app").value


def test_an_app_that_imports_and_is_no_qd(shop: Project) -> None:
    shop.jobs("web = object()")
    (shop.root / "qd.toml").write_text(f'[qd]\napp = "jobs:web"\n[connections.redis]\nurl = "{shop.url}"\n')
    found = doctor(shop).line("app")
    assert found.value == "'web' in module jobs is an object, not a qd.Qd; the module has 'app'"
    assert found.fix == "set app of [qd] to MODULE:NAME of your Qd (qd.toml:2 names jobs:web)"


def test_a_variable_that_names_another_server_than_the_file(shop: Project) -> None:
    (shop.root / "qd.toml").write_text('[qd]\napp = "jobs:app"\n[connections.redis]\nurl = "sqlite:///jobs.sqlite"\n')
    found, line = doctor(shop, QD_REDIS_URL=shop.url), "QD_REDIS_URL overrides url (qd.toml:4: sqlite:///jobs.sqlite)"
    assert (found.code, found.line("url").sign, found.line("url").value) == (0, "warn", line)
    checked = shop.qd("config", "check", QD_REDIS_URL=shop.url)
    assert (checked.returncode, checked.stderr) == (0, f"qd config check: {line}\n")


def test_no_app(shop: Project) -> None:
    (shop.root / "qd.toml").write_text(f'[connections.redis]\nurl = "{shop.url}"\n')
    found = doctor(shop)
    assert (found.code, found.line("app").value) == (78, "no app is named: `qd work` does not start")
    assert doctor(shop, "--app", "jobs:app").code == 0


def test_a_connection_without_a_url_has_no_origin_to_look_up(shop: Project) -> None:
    (shop.root / "qd.toml").write_text('[qd]\napp = "jobs:app"\n')
    found = doctor(shop)
    assert found.code == 78
    assert found.line("redis.url").value.startswith("connection 'redis' has no url: set QD_REDIS_URL")
    assert found.line("redis.url").fix == "set the url"


def test_a_url_in_the_file_that_the_app_overrides(shop: Project) -> None:
    shop.jobs("from qd import Qd\napp = Qd('redis://127.0.0.1:1/0')\n")
    fact = "workers and producers use the url of Qd(...), and commands that of qd.toml:5"
    assert (doctor(shop).line("url").sign, doctor(shop).line("url").value) == ("warn", fact)
    shop.jobs(f"from qd import Qd\napp = Qd('{shop.url}')\n")
    assert not [line for line in doctor(shop).lines if line.what == "url"]


def test_an_app_without_jobs(shop: Project) -> None:
    shop.jobs("")
    (shop.root / "more.py").write_text("from jobs import app\n\n@app.job('late')\ndef late() -> None: ...\n")
    shop.allowed.add("more.py")
    found = doctor(shop)
    assert (found.code, found.line("app").sign) == (1, "fail")
    assert "declares no jobs" in found.line("app").value
    assert "imports = of [qd]" in found.line("app").fix
    assert doctor(shop, QD_IMPORTS="more").line("app").sign == "ok"


def test_an_app_with_only_a_schedule_passes(shop: Project) -> None:
    shop.jobs("app.schedule.shell('true').daily()")
    line = doctor(shop).line("app")
    assert (line.sign, line.value) == ("ok", "jobs:app declares no jobs, and entries of the schedule")


def test_a_thread_and_a_connection_left_open_by_the_import(shop: Project, server: Server) -> None:
    code = "import socket, threading, time\n"
    code += "threading.Thread(target=time.sleep, args=(60,), name='poller', daemon=True).start()\n"
    code += f"sock = socket.create_connection(('127.0.0.1', {server.port}))\n"
    shop.jobs(f"{code}from qd import Qd\napp = Qd()\n{JOBS}")
    found = [line.value for line in doctor(shop).lines if line.what == "import" and line.sign == "warn"]
    assert found[0] == "left the thread 'poller' running"
    assert found[1].startswith("left a connection open: fd ")


def test_an_unknown_environment_variable(shop: Project) -> None:
    assert "QD_TIMOUT in the environment is not used by qd" in doctor(shop, QD_TIMOUT="3").line("environment").value


@pytest.mark.parametrize(("mode", "readers"), [(0o640, "its group"), (0o644, "every user")])
@pytest.mark.parametrize("section", ["signing", "encryption"])
def test_a_key_that_others_can_read(mode: int, readers: str, section: str, shop: Project) -> None:
    key = shop.root / "key"
    shop.allowed.add("key")
    key.write_text("MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\n")
    key.chmod(mode)
    shop.config(f'[{section}]\nkeys = ["2026:file:key"]\n')
    line = doctor(shop).line("secrets")
    assert (line.sign, line.value) == ("warn", f"{key} can be read by {readers} (mode {mode:04o})")
    subprocess.run(shlex.split(line.fix.partition(",")[0]), check=True)
    assert doctor(shop).bad() == []


def test_a_job_for_an_unserved_queue(shop: Project) -> None:
    shop.jobs('@app.job("r", queue="reports")\ndef r() -> None: ...\n')
    assert doctor(shop).bad() == []  # without a name `qd work` serves every declared queue
    shop.config('[worker]\nqueues = ["default"]\n')
    line = doctor(shop).line("job r")
    assert "goes to the queue 'reports' of redis, which no worker here serves" in line.value
    shop.config('[worker]\nqueues = ["default", "reports"]\n')
    assert doctor(shop).bad() == []


def test_a_pool_without_queues_has_none_left_if_pools_serve_every_queue(shop: Project) -> None:
    shop.config('[pools.all]\nqueues = ["default"]\n[pools.more]\nworkers = 2\n')
    line = doctor(shop).line("pool more")
    assert line.value.startswith("pools serve every queue that the app declares on connection 'redis' (default)")


def test_a_job_whose_limit_is_not_declared(shop: Project) -> None:
    shop.jobs('from qd.middleware import RateLimited\n@app.job("r", middleware=[RateLimited("crm")])\ndef r(): ...\n')
    line = doctor(shop).line("job r")
    assert (line.sign, line.value[:56]) == ("fail", "can never run: no limit 'crm' is declared (known: none):")


def test_an_encrypted_job_without_a_key(shop: Project) -> None:
    shop.jobs('@app.job("shop.pay", encrypted=True)\ndef pay(): ...\n')
    line = doctor(shop).line("encryption")
    assert (line.sign, line.value) == ("fail", "shop.pay: encrypted, but [encryption] has no key")


# -- the server


@pytest.fixture
def own() -> Iterator[Server]:
    """A separate server, for settings that would affect other tests."""
    with Server() as one:
        yield one


def use_url(shop: Project, url: str) -> None:
    text = (shop.root / "qd.toml").read_text()
    (shop.root / "qd.toml").write_text(re.sub(r'url = ".*"', f'url = "{url}"', text))


def run_fix(fix: str, client: Client) -> None:
    """The Redis commands in a fix, as an operator types them."""
    for found in re.findall(r"(?:CONFIG SET|ACL SETUSER) [^,;]+", fix):
        client.call(*shlex.split(found))


def test_an_unreachable_server(shop: Project) -> None:
    use_url(shop, f"redis://127.0.0.1:{free_port()}/0")
    found = doctor(shop)
    assert (found.code, found.line("redis.answers").sign) == (69, "fail")
    assert found.line("health --live").sign == "ok"


def test_a_server_that_hangs_is_not_to_be_started(project: Make) -> None:
    with Server() as own:
        assert own.process is not None
        own.process.send_signal(signal.SIGSTOP)  # it is killed at the end
        found = doctor(project(url=own.tcp_url))
    line = found.line("redis.answers")
    assert (found.code, line.sign) == (69, "fail")
    assert line.value.endswith("broke: no answer in time (2 s)")
    assert line.fix.startswith("it accepts connections and does not answer: it hangs, swaps, or runs a slow command; ")
    assert "slowlog" in line.fix


def test_a_configuration_error_takes_precedence_over_an_unreachable_server(shop: Project) -> None:
    use_url(shop, f"redis://127.0.0.1:{free_port()}/0")
    shop.jobs("app = 1 / 0")
    assert doctor(shop).code == 78


def test_an_invalid_url(shop: Project) -> None:
    use_url(shop, "redis://127.0.0.1:99999/0")
    found = doctor(shop)
    assert (found.code, found.bad()) == (78, [("fail", "redis.url")])
    assert "Port out of range" in found.line("redis.url").value


def test_a_missing_password(shop: Project, own: Server) -> None:
    with own.client() as client:
        client.call("CONFIG", "SET", "requirepass", "s3cret")
    use_url(shop, own.tcp_url)
    found = doctor(shop)
    assert found.code == 69
    assert "NOAUTH" in found.line("redis.answers").value
    assert found.line("redis.answers").fix == "write the right user and password into the url"
    use_url(shop, own.tcp_url.replace("//", "//:s3cret@"))
    assert doctor(shop).bad() == []


def test_a_server_that_evicts_jobs(shop: Project, own: Server) -> None:
    use_url(shop, own.url)
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
    use_url(shop, own.url)
    with own.client() as client:
        client.call("SETRANGE", "ballast", 20_000_000, "x")  # else the doctor's own connections are a tenth of it
        used = int(re.findall(r"used_memory:(\d+)", client.text("INFO", "memory"))[0])
        client.call("CONFIG", "SET", "maxmemory", used * 10 // 9)
        assert re.match(
            r"(8|9)\d% of .* used: when it is full no job can be sent", doctor(shop).line("redis.memory").value
        )
        client.call("CONFIG", "SET", "maxmemory", "500mb")
    assert doctor(shop).line("redis.memory").sign == "ok"


def test_a_server_without_persistence(shop: Project, own: Server) -> None:
    use_url(shop, own.url)
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
    with Server("--repl-diskless-sync-delay", "0") as master, own.client() as client:
        client.call("REPLICAOF", "127.0.0.1", str(master.port))
        eventually(lambda: "master_link_status:up" in client.text("INFO", "replication"), what="a copy of all it has")
        use_url(shop, own.url)
        found = doctor(shop)
        line = found.line("redis.role")
        assert (found.code, line.sign, "READONLY" in line.value) == (1, "fail", True)
        url = re.findall(r"redis://\S+", line.fix)[0]
        use_url(shop, url)
        assert doctor(shop).line("redis.role").value == "master"


def test_a_user_with_missing_command_rights(shop: Project, own: Server) -> None:
    with own.client() as client:
        client.call("ACL", "SETUSER", "narrow", "on", ">pw", "~queues:*", "~qd:*", "+@all", "-zadd", "-lrem", "-info")
        use_url(shop, own.tcp_url.replace("//", "//narrow:pw@"))
        found = doctor(shop)
        line = found.line("redis.rights")
        fact = "user narrow may not LREM, ZADD: if workers use this user, they cannot work"
        assert (found.code, line.value) == (1, fact)
        assert line.fix.startswith("run qd doctor as the user of the workers; if this is it: ACL SETUSER narrow")
        assert (found.line("redis.info").sign, "INFO" in found.line("redis.info").value) == ("warn", True)
        run_fix(line.fix, client)
        assert doctor(shop).line("redis.rights").sign == "ok"


def test_a_user_with_missing_key_rights(shop: Project, own: Server) -> None:
    with own.client() as client:
        client.call("ACL", "SETUSER", "narrow", "on", ">pw", "~queues:other*", "~qd:*", "+@all")
        use_url(shop, own.tcp_url.replace("//", "//narrow:pw@"))
        line = doctor(shop).line("redis.rights")
        assert "may not touch queues:default" in line.value
        run_fix(line.fix, client)
        assert doctor(shop).line("redis.rights").sign == "ok"


def test_a_user_with_exactly_the_keys_of_its_queue_passes(shop: Project, own: Server) -> None:
    with own.client() as client:
        kinds = ("delayed", "reserved", "notify", "owners", "paused", "failed", "failed_at", "deaths", "suspects")
        names = ["queues:default", *(f"queues:default:{kind}" for kind in kinds), "qd:masters", "qd:restart", "qd:down"]
        client.call("ACL", "SETUSER", "narrow", "on", ">pw", "+@all", *(f"~{name}" for name in names))
        use_url(shop, own.tcp_url.replace("//", "//narrow:pw@"))
        assert doctor(shop).line("redis.rights").sign == "ok"


def sampled(user: str) -> list[str]:
    """The arguments of ACL for this user in docs/how-to/acl.md."""
    found = re.search(rf"^ACL (SETUSER {user} .*)$", (ROOT / "docs/how-to/acl.md").read_text(), re.MULTILINE)
    assert found
    return found[1].split()


def test_the_users_of_the_security_page(shop: Project, own: Server) -> None:
    with own.client() as client:
        for user, rights in (("qd-worker", "ok"), ("qd-operator", "fail"), ("qd-producer", "fail")):
            words = sampled(user)
            client.call("ACL", *words)
            (password,) = [word[1:] for word in words if word.startswith(">")]
            use_url(shop, own.tcp_url.replace("//", f"//{user}:{password}@"))
            found = doctor(shop)
            signs = {line.sign for line in found.lines if line.what == "redis.rights"} - {"warn"}
            assert (user, found.line("redis.answers").sign, signs) == (user, "ok", {rights})
            assert found.code == {"ok": 0, "fail": 1}[rights]
            assert ("redis.info" in {line.what for line in found.lines}) is (user != "qd-operator")
        push(client, "mail.welcom")
    use_url(shop, own.tcp_url.replace("//", "//qd-worker:WORKER-PASSWORD@"))
    assert "'mail.welcom' at its head" in doctor(shop).line("queue default").value


def test_rights_are_checked_for_each_command_that_the_scripts_call() -> None:
    folder = ROOT / "daemon" / "qd" / "drivers" / "keyspace" / "scripts"
    others = {
        "adopt",
        "clear",
        "find",
        "forget",
        "retry",
        "take_value",
        "unique",
    }  # called by commands and by producers of unique jobs
    others |= {
        "ends_left",
        "outbox",
        "delivery_turn",
    }  # on a cluster, and on the control connection of beanstalkd and SQS
    texts = [path.read_text() for path in folder.glob("*.lua") if path.stem not in others]
    called = {word for text in texts for word in re.findall(r"redis\.p?call\('(\w+)'", text)}
    called.remove("SET")  # of unique jobs and locks: not each worker needs it
    tried = [*acl.quiet_tries("", "q"), *acl.writing_tries("", "q")]
    assert called - {str(one[0]) for one in tried} == set()


def test_an_unverified_certificate(shop: Project, tmp_path: Path) -> None:
    certificates, port = Certificates(tmp_path / "certificates"), free_port()
    options = ["--tls-port", str(port), "--tls-auth-clients", "no"]
    for option, name in (("ca-cert", "ca.crt"), ("cert", "server.crt"), ("key", "server.key")):
        options += [f"--tls-{option}-file", certificates.path(name)]
    with Server(*options):
        use_url(shop, f"rediss://127.0.0.1:{port}/0?ssl_cert_reqs=none")
        line = doctor(shop).line("redis.tls")
        assert (line.sign, "ssl_ca_certs=PATH" in line.fix) == ("warn", True)
        use_url(shop, f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificates.path('ca.crt')}")
        assert doctor(shop).bad() == []


def test_a_clock_that_is_wrong(own: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    real = servers.clock
    wire = RedisConnection(own.url)
    assert servers.skew(wire, "redis").sign == "ok"
    monkeypatch.setattr(servers, "clock", lambda: real() + 30)
    line = servers.skew(wire, "redis")
    assert line.sign == "warn"
    assert re.fullmatch(
        r"this clock is (2[5-9]|3[0-5])\.\d s ahead of the server's", line.value
    )  # the delay of the reply adds to it
    monkeypatch.setattr(servers, "clock", lambda: real() - 90)
    line = servers.skew(wire, "redis")
    assert line.sign == "fail"
    assert re.fullmatch(r"this clock is (8[5-9]|9[0-5])\.\d s behind the server's", line.value)
    wire.close()


def test_a_server_with_a_long_round_trip(own: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    wire = RedisConnection(own.url)
    monkeypatch.setattr(servers, "ping", lambda _: 0.02)
    line = servers.latency(wire, "redis")
    assert (line.sign, "20.00 ms p50" in line.value, "at most 50 jobs a second" in line.value) == ("warn", True, True)


@pytest.mark.parametrize(
    ("facts", "sign"),
    [({"redis_version": "6.0.16"}, "fail"), ({"redis_version": "6.2.0"}, "ok"), ({"valkey_version": "8.1.1"}, "ok")],
)
def test_versions(facts: dict[str, str], sign: str) -> None:
    assert servers.version("redis", facts).sign == sign


def test_an_embedded_server_is_not_started(shop: Project) -> None:
    use_url(shop, "embedded:")
    line = doctor(shop).line("redis.answers")
    assert (line.sign, line.fix) == ("warn", "`qd work` starts it")
    assert not (shop.root / ".qd" / "embedded" / "address").exists()
    shutil.rmtree(shop.root / ".qd", ignore_errors=True)


# -- the queues


def just_now() -> int:
    """A time that stays recent for the whole test: a queue is reported as unserved once a job has waited for ten seconds."""
    return int(time.time()) + 600


def test_an_unknown_name_at_the_head(shop: Project, redis: Client) -> None:
    push_raw(redis, make("mail.welcom", b"{}", created_at=just_now()))
    found = doctor(shop)
    line = found.line("queue default")
    assert (found.code, line.sign) == (1, "fail")
    assert "'mail.welcom' at its head is not a job of this app (did you mean 'mail.welcome'?)" in line.value
    shop.jobs(JOBS.replace("mail.welcome", "mail.welcom"))  # the code that declares it
    assert doctor(shop).bad() == []


def test_a_newer_version_than_the_app_declares(shop: Project, redis: Client) -> None:
    push_raw(redis, make("mail.welcome", b"{}", version=2, created_at=just_now()))
    line = doctor(shop).line("queue default")
    assert (line.sign, line.fix) == ("fail", "deploy the newer code")
    fact = "'mail.welcome' at its head has version 2, and this app declares version 1"
    assert line.value == f"{fact}: it fails after 6 times unroutable_ttl"


def test_an_unknown_php_class_is_left_to_php(shop: Project, redis: Client) -> None:
    push_raw(redis, make(r"App\Jobs\Report@fire", b"{}", created_at=just_now()))
    line = doctor(shop).line("queue default")
    way = r"it is a PHP class: if PHP workers serve this queue, stop serving it with qd; else move the job to one of theirs"
    way += r": `qd move default --to PHP-QUEUE --job 'App\Jobs\Report'`, or cancel it"
    assert (line.sign, line.fix) == ("fail", way)


def test_a_php_class_that_is_almost_a_declared_name_is_still_called_one(shop: Project, redis: Client) -> None:
    shop.jobs(JOBS.replace('"mail.welcome"', r'"App\\Jobs\\Both@fire"'))
    push_raw(redis, make(r"App\Jobs\Bath@fire", b"{}", created_at=just_now()))
    line = doctor(shop).line("queue default")
    assert r"did you mean 'App\Jobs\Both@fire'?" in line.value.replace("\\\\", "\\")
    assert "deploy the code that declares it" in line.fix
    assert r"; or it is a PHP class: " in line.fix


def test_an_unknown_name_that_is_very_long_is_cut(shop: Project, redis: Client) -> None:
    push_raw(redis, make("x" * 100_000, b"{}", created_at=just_now()))
    assert "xxx... (100000 characters)' at its head is not a job" in doctor(shop).line("queue default").value


def test_an_unknown_name_among_the_delayed(shop: Project, redis: Client) -> None:
    redis.call("ZADD", "queues:default:delayed", 2_000_000_000, make("mail.welcom", b"{}", created_at=1))
    found = doctor(shop)
    assert (found.code, found.line("queue default").sign) == (1, "fail")
    assert "'mail.welcom' among its delayed jobs is not a job of this app" in found.line("queue default").value
    shop.jobs(JOBS.replace("mail.welcome", "mail.welcom"))
    assert doctor(shop).line("queue default").value == "1 delayed job checked"


def test_parameters_that_do_not_fit_the_declaration(shop: Project, redis: Client) -> None:
    wrong = make("mail.welcome", b'{"nobody":1}', created_at=1)
    redis.call("ZADD", "queues:default:delayed", 2_000_000_000, wrong, 2_000_000_000, wrong.replace(b":1}", b":2}"))
    found = doctor(shop)
    line = found.line("queue default")
    assert (found.code, line.sign) == (1, "fail")
    fact = "job 'mail.welcome' has no parameter 'nobody' (a job among its delayed jobs): it fails after unroutable_ttl"
    assert line.value == fact
    assert line.fix == "deploy the code that has this parameter, or correct the program that sends the job"


def test_an_object_job_that_was_put_back_is_never_called_an_unknown_job(shop: Project, redis: Client) -> None:
    body = (
        b'{"uuid":"u%s","displayName":"App\\\\Jobs\\\\Report",'
        b' "job": "Illuminate\\\\Queue\\\\CallQueuedHandler@call","attempts":0%s}'
    )
    redis.call("ZADD", "queues:default:delayed", 2_000_000_000, body % (b"1", b',"held":1700000000'))
    found = doctor(shop)
    line = found.line("queue default")
    assert (found.code, line.sign) == (0, "warn")
    fact = "1 object job of Laravel was put back: qd never runs or fails such a job, only a PHP worker takes it"
    assert line.value == fact
    assert line.fix.endswith(r"`qd move default --to PHP-QUEUE --job 'App\Jobs\Report'`")
    redis.call("DEL", "queues:default:delayed")
    redis.call("ZADD", "queues:default:delayed", 2_000_000_000, body % (b"2", b""))  # PHP's own delayed job
    assert doctor(shop).line("queue default").value == "1 delayed job checked"


def test_jobs_that_no_known_key_has_signed(shop: Project, redis: Client) -> None:
    shop.config('[signing]\nkeys = ["a:a-secret-of-this-shop"]\n')
    shop.python("from jobs import welcome\nwelcome.dispatch()\n")
    assert doctor(shop).line("queue default").value == "1 job at its head checked"
    push(redis, "mail.welcome", count=2)
    shop.python("from jobs import welcome\nwelcome.dispatch()\n", QD_SIGNING_KEYS="b:a-secret-of-another-shop")
    redis.call("ZADD", "queues:default:delayed", 2_000_000_000, make("mail.welcome", b"{}", created_at=1))
    found = doctor(shop)
    line = found.line("queue default")
    why = "unsigned (3), signed with an unknown key: b (1)"
    assert (found.code, line.sign) == (0, "warn")
    assert line.value == f"4 of the 5 checked will be refused and never run: {why}"
    shop.config('[signing]\nkeys = ["a:a-secret-of-this-shop", "b:a-secret-of-another-shop"]\nrequire = false\n')
    assert {what for _, what in doctor(shop).bad()} <= {
        "work on default"
    }  # reported once a job has waited for ten seconds


def test_invalid_payloads_and_a_key_of_the_wrong_type(shop: Project, redis: Client) -> None:
    push_raw(redis, b"nonsense")
    assert "1 of the 1 checked is not a valid payload" in doctor(shop).line("queue default").value
    redis.call("DEL", "queues:default")
    redis.call("SET", "queues:default:owners", "1")
    line = doctor(shop).line("queue default")
    assert (line.sign, line.value) == ("fail", "queues:default:owners is a string and not a hash")
    assert line.fix == "delete or rename it, or change `prefix`"


def test_jobs_for_php_and_a_php_worker_on_the_same_queue(shop: Project, redis: Client) -> None:
    payload = json.dumps(
        {"job": r"Illuminate\Queue\CallQueuedHandler@call", "attempts": 0}, separators=(",", ":")
    ).encode()
    push_raw(redis, payload)
    line = doctor(shop).line("queue default")
    assert (line.sign, "which only a PHP worker takes" in line.value) == ("warn", True)
    assert line.fix.startswith(
        "give each language its own queue; to move these: `qd move default --to PHP-QUEUE --job "
    )
    redis.call("ZADD", "queues:default:reserved", 2_000_000_000, payload)
    line = doctor(shop).line("queue default")
    assert "a PHP worker works on it too: it fails and deletes string jobs that it does not know" in line.value


def test_a_job_reserved_by_a_dead_master_is_requeued_by_the_next(project: Make, redis: Client) -> None:
    shop = project(
        jobs='@app.job("wait")\ndef wait() -> None:\n    while not Path("go").exists():\n        time.sleep(0.01)\n'
    )
    shop.allowed.add("go")
    work = shop.work("-w", "1")
    push(redis, "wait")
    eventually(lambda: redis.call("ZCARD", "queues:default:reserved") == 1, 20, what="a running job")
    eventually(lambda: redis.call("HLEN", "qd:masters") == 1, 20, what="a report")
    assert doctor(shop).line("queue default").sign == "ok"
    work.sweep()
    line = doctor(shop).line("queue default")
    assert (line.sign, line.value) == ("warn", "1 job reserved by masters that are gone")
    (shop.root / "go").touch()
    work = shop.work("-w", "1")  # the fix
    work.wait_line("job.done")
    work.stop()
    assert doctor(shop).bad() == []


def test_a_paused_queue_and_maintenance_mode(shop: Project, redis: Client) -> None:
    push_raw(redis, make("mail.welcome", b"{}", created_at=just_now()))
    for command, undo, what, expected in (
        (
            ("pause", "default", "--reason", "db"),
            "qd resume default",
            "work on default",
            r"paused by .*: \"db\"; 1 job ready",
        ),
        (
            ("down", "--reason", "db"),
            "qd up",
            "maintenance mode",
            r"switched on by .*: \"db\"; nothing is taken from any queue",
        ),
    ):
        assert doctor(shop).bad() == []
        assert shop.qd(*command).returncode == 0
        line = doctor(shop).line(what)
        assert (line.sign, line.fix) == ("warn", undo)
        assert re.fullmatch(expected, line.value)
        assert shop.qd(*line.fix.split()[1:]).returncode == 0
    assert doctor(shop).bad() == []


def test_jobs_that_wait_without_a_worker(shop: Project, redis: Client) -> None:
    push_raw(redis, make("mail.welcome", b"{}", created_at=1))
    line = doctor(shop).line("work on default")
    expected = ("warn", "1 ready and no master runs", "start `qd work default`")
    assert (line.sign, line.value, line.fix) == expected
    now = float(redis.text("TIME")[0])
    report(redis, queues=["default"], version=__version__, seen_at=now + 600)  # fresh for the duration of the test
    assert doctor(shop).bad() == []
    redis.call(
        "RPUSH", "queues:bluk", make("mail.welcome", b"{}", created_at=1)
    )  # a wrong name: no code knows this queue
    wrong = doctor(shop).line("work on bluk")
    assert (wrong.sign, wrong.value) == ("warn", "1 ready and no worker serves it")
    redis.call("DEL", "queues:bluk")
    report(
        redis,
        queues=["default"],
        version=__version__,
        workers=[{"slot": 0}],
        stuck={"default": now - 60},
        seen_at=now + 600,
    )
    assert "nothing taken for 1m" in doctor(shop).line("work on default").value


def test_failed_jobs_are_counted(shop: Project, redis: Client) -> None:
    redis.call("HSET", "queues:default:failed", "1", "{}", "2", "{}")
    line = doctor(shop).line("failed default")
    assert (line.sign, doctor(shop).bad()) == ("ok", [])
    assert line.value == "2 failed jobs kept; qd failed list -q default"


def test_dropped_failed_jobs_are_a_warning(shop: Project, redis: Client) -> None:
    at = float(redis.text("TIME")[0])
    redis.call("ZADD", "queues:default:failed_at", -2000, "dropped", -at + 90, "dropped_at")
    line = doctor(shop).line("failed default")
    assert line.sign == "warn"
    assert line.value.startswith(
        "2000 failed jobs of queue 'default' dropped to make room for newer ones, the last 1m 3"
    )
    assert line.fix.startswith("raise [failed] max_bytes")


@pytest.mark.parametrize("key", ["queues:default", "queues:other"])
def test_queues_with_another_prefix_are_found(shop: Project, redis: Client, key: str) -> None:
    redis.call("RPUSH", f"laravel_database_{key}", "{}")
    line = doctor(shop).line("redis.prefix")
    fact = f"there are queues with the prefix 'laravel_database_' ({key[7:]}), and qd reads those with ''"
    assert (line.sign, line.value) == ("warn", fact)
    assert line.fix.endswith('write prefix = "laravel_database_" below [connections.redis]')
    found = doctor(shop, QD_REDIS_PREFIX="laravel_database_")
    assert "redis.prefix" not in {line.what for line in found.lines}
    redis.call("HSET", "laravel_database_qd:masters", "T1", "{}")  # of another app that uses qd
    push(redis, "mail.welcome")
    assert "redis.prefix" not in {line.what for line in doctor(shop).lines}


@pytest.mark.parametrize("prefix", ["laravel_database_", "xyz_", "shop_", ""])
def test_if_nothing_has_the_prefix_those_that_others_have_are_named(shop: Project, redis: Client, prefix: str) -> None:
    redis.call("HSET", "shop_database_qd:masters", "T1", "{}")
    redis.call("RPUSH", "shop_database_queues:mail", "{}")
    line = doctor(shop, QD_REDIS_PREFIX=prefix).line("redis.prefix")
    fact = f"no queue and no master has the prefix '{prefix}', and others have 'shop_database_'"
    assert (line.sign, line.value) == ("warn", fact)
    for other in "abc":
        redis.call("RPUSH", f"{other}_queues:mail", "{}")
    assert doctor(shop, QD_REDIS_PREFIX=prefix).line("redis.prefix").value == f"{fact}, 'a_', 'b_', ..."
    redis.call("HSET", f"{prefix}qd:masters", "T2", "{}")
    redis.call("RPUSH", f"{prefix}queues:default", "{}")
    assert "redis.prefix" not in {line.what for line in doctor(shop, QD_REDIS_PREFIX=prefix).lines}


def test_a_misspelled_prefix_names_the_one_of_the_masters_and_not_a_leftover(shop: Project, redis: Client) -> None:
    redis.call("RPUSH", "leftover:queues:default", "{}")
    redis.call("HSET", "shop:qd:masters", "T1", "{}")
    redis.call("ZADD", "shop:queues:default:delayed", 2_000_000_000, "{}")
    line = doctor(shop, QD_REDIS_PREFIX="shpo:").line("redis.prefix")
    assert (line.sign, line.value) == ("warn", "no queue has the prefix 'shpo:', and there are keys of qd with 'shop:'")
    assert line.fix == 'if it is misspelled, write prefix = "shop:" below [connections.redis]'


@pytest.mark.parametrize("key", ["queues:default", "queues:default:delayed", "qd:masters"])
def test_a_url_with_the_wrong_database_number_names_the_right_one(shop: Project, redis: Client, key: str) -> None:
    redis.call("SELECT", 9)
    redis.call("HSET", key, "T1", "{}")
    redis.call("SELECT", 8)
    redis.call("SET", "laravel_cache", "1")  # not a key of qd
    redis.call("SELECT", 0)
    try:
        line = doctor(shop).line("redis.database")
        fact = "database 0 has neither masters nor jobs of these queues, and database 9 of this server has"
        assert (line.sign, line.value) == ("warn", fact)
        assert line.fix == "if the number is wrong, end the url of [connections.redis] in /9"
        push(redis, "mail.welcome")
        assert "redis.database" not in {line.what for line in doctor(shop).lines}
    finally:
        for number in (9, 8, 0):
            redis.call("SELECT", number)
            redis.call("FLUSHDB")


def test_queues_of_another_app_beside_those_of_this_one_are_none_of_its_business(shop: Project, redis: Client) -> None:
    redis.call("RPUSH", "laravel_database_queues:other", "{}")
    push(redis, "mail.welcome")
    assert "redis.prefix" not in {line.what for line in doctor(shop).lines}


# -- Laravel


def test_a_wrong_prefix_of_laravels_cache(shop: Project, redis: Client) -> None:
    shop.config(f'[laravel]\ncache_url = "{shop.url}"\n')
    line = doctor(shop).line("laravel.cache_prefix")
    assert (line.sign, line.value) == ("ok", "no key of Laravel is there yet; `php artisan queue:restart` writes one")
    redis.call("SET", "laravel_database_laravel_cache_:illuminate:queue:restart", "i:1;")
    line = doctor(shop).line("laravel.cache_prefix")
    assert (line.sign, "'laravel_database_laravel_cache_:'" in line.value) == ("warn", True)
    assert line.fix == 'write cache_prefix = "laravel_database_laravel_cache_:" below [laravel]'
    shop.config(
        f'[laravel]\ncache_url = "{shop.url}"\ncache_prefix = "laravel_database_laravel_cache_:"\n',
    )
    assert doctor(shop).line("laravel.cache_prefix").sign == "ok"


def test_the_table_of_failed_jobs_is_checked(shop: Project, tmp_path: Path) -> None:
    file = tmp_path / "laravel.sqlite"

    fix = ""

    def line(url: str) -> tuple[str, str]:
        nonlocal fix
        shop.config(f'[failed]\ndatabase = "{url}"\n')
        found = doctor(shop).line("failed.database")
        fix = found.fix
        return found.sign, found.value

    assert line(f"sqlite:///{file}") == (
        "fail",
        f"failed jobs are not copied: the database of [failed], sqlite:///{file}: no file {file}",
    )
    assert not file.exists()
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE users (id int)")
    assert line(f"sqlite:///{file}")[1].endswith("no such table: failed_jobs")
    assert fix.startswith("`php artisan migrate` creates it")
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE failed_jobs (uuid, connection, queue, payload, exception, failed_at)")
    assert line(f"sqlite:///{file}") == ("ok", f"the table failed_jobs is there: sqlite:///{file}")
    with sqlite3.connect(file) as database:  # a table that can be read and not written
        database.execute("ALTER TABLE failed_jobs RENAME TO jobs_that_failed")
        database.execute("CREATE VIEW failed_jobs AS SELECT * FROM jobs_that_failed")
    assert line(f"sqlite:///{file}")[1].endswith("cannot modify failed_jobs because it is a view")
    sign, value = line("postgresql://shop:s3cret@127.0.0.1:1/laravel")
    where = "the database of [failed], postgresql://shop:***@127.0.0.1:1/laravel: "
    assert (sign, value.startswith(f"failed jobs are not copied: {where}")) == ("fail", True)
    assert fix == "start it, or correct database below [failed]"


def test_a_missing_library_of_the_table_of_failed_jobs_is_named_with_the_client_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(failed_jobs_table, "find_spec", lambda name: None)
    for url, library in {"mysql://h/d": "PyMySQL", "postgresql://h/d": "psycopg", "sqlite:///d": "sqlalchemy"}.items():
        found = servers.check_failed_jobs(url)
        assert (found.sign, found.value) == ("fail", "[failed] database needs SQLAlchemy")
        assert found.fix is not None
        assert found.fix.startswith("pip install 'sqlalchemy")
        assert f"'{library}" in found.fix
        assert "correct" not in found.fix


# -- masters


def test_an_unreachable_laravel_cache(shop: Project) -> None:
    shop.config(f'[laravel]\ncache_url = "redis://127.0.0.1:{free_port()}/1"\n')
    assert (doctor(shop).code, doctor(shop).line("laravel.cache.answers").sign) == (69, "fail")
    shop.config(f'[laravel]\ncache_url = "{shop.url}"\n')
    assert doctor(shop).bad() == []


def test_other_versions_old_code_root_and_silence(shop: Project, redis: Client) -> None:
    now = float(redis.text("TIME")[0])
    redis.call("SET", "qd:restart", f"{now - 300:.6f}")
    expected = {"version": "0.0.1", "queues": ["default"]}
    report(
        redis, "T1", **expected, root=True, booted_at=now - 400, seen_at=now + 600
    )  # fresh for the duration of the test
    report(redis, "T2", **expected, host="app-2", seen_at=now - 200)
    starting = {"version": __version__, "queues": ["default"], "booted_at": 0.0}  # as in the first report of a master
    report(redis, "T3", **starting, host="app-3", seen_at=now + 600)
    lines = doctor(shop).lines
    one = [line.value for line in lines if line.what == "master mail@app-1"]
    assert one[0].startswith("pid 411 is qd 0.0.1, this is ")
    assert re.fullmatch(r"pid 411 runs code from before the `qd restart` of 5m( \d+s)? ago", one[1])
    why = {"refused": "ImportError: no x; fix it", "refused_at": now - 299}
    report(redis, "T1", **expected | {"version": __version__}, **why, booted_at=now - 400, seen_at=now + 600)
    (refused,) = [line for line in doctor(shop).lines if line.what == "master mail@app-1"]  # not to be restarted
    assert re.fullmatch(
        r"pid 411 refused new code [45]m( \d+s)? ago and runs the old: ImportError: no x", refused.value
    )
    assert refused.fix == "fix it"
    (root,) = [line for line in lines if line.what == "root"]  # once, whether or not the tests run as root
    assert root.value == "these masters run as root, and so do their jobs: mail@app-1 (pid 411)"
    (silent,) = [line for line in lines if line.what == "master mail@app-2"]
    assert re.match(r"pid 411 has not reported for 3m [2-5]\ds", silent.value)
    redis.call("HDEL", "qd:masters", silent.fix.rpartition(" ")[2], "T1")
    assert doctor(shop).bad() == []


# -- docs/reference/cli/qd-doctor.md


def test_the_fix_for_a_silent_master_in_a_database_names_no_command_of_redis(project: Make) -> None:
    shop = project(jobs=JOBS, url="sqlite:///jobs.sqlite")
    shop.allowed |= {"jobs.sqlite", "jobs.sqlite-wal", "jobs.sqlite-shm"}
    assert shop.qd("migrate").returncode == 0
    with closing(DatabaseKeyspace(DatabaseConnection(f"sqlite:///{shop.root}/jobs.sqlite"))) as space:
        facts = {"token": "T1", "host": "app-1", "pid": 411, "pool": "mail", "booted_at": 1, "seen_at": 2}
        space.call("HSET", "qd:masters", "T1", json.dumps(facts))
    line = doctor(shop).line("master mail@app-1")
    assert "has not reported" in line.value
    assert line.fix.endswith("other masters do both, the report within 1h")


def test_the_page_shows_what_it_says(project: Make, own: Server) -> None:
    page = (ROOT / "docs" / "reference" / "cli" / "qd-doctor.md").read_text()
    shown = re.search(r"^    \$ qd doctor\n(.*?)\n    \.\.\.$", page, re.MULTILINE | re.DOTALL)
    assert shown
    names = "".join(f"@app.job('job{number}')\ndef job{number}() -> None: ...\n" for number in range(11))
    shop = project(jobs=JOBS + names, url=own.url, config='[pools.a]\n[pools.b]\nqueues = ["mail"]\n')
    shop.allowed.add("qd.conf")
    text = with_setting((ROOT / "supervisor" / "qd.conf").read_text(), "stopwaitsecs", "10")
    (shop.root / "qd.conf").write_text(text)
    with own.client() as client:
        push(client, "mail.welcom", queue="mail")
    output = shop.qd("doctor", "--supervisord", "qd.conf").stdout.replace(str(shop.root), "/srv/shop")
    output = output.replace(" qd.conf [", " /etc/supervisor/conf.d/qd.conf [")
    assert [line for line in shown[1].splitlines() if line[4:] not in output.splitlines()] == []
