"""New code under a running `qd work`: HUP, `qd restart --rolling`, --reload, and bad new code."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.deployment import push
from tests.support.processes import QD, Procs, waiting
from tests.support.project import PRELUDE, START, MakeProject, Project
from tests.support.redis import Client
from tests.support.servers.redis import Server
from tests.support.waiting import eventually
from tests.support.witness import JOBS, Witness

pytestmark = pytest.mark.usefixtures("clean_redis")
RESTARTED = pytest.mark.leaves("qd:restart")
BAD_CODE = pytest.mark.fault(
    "38",
    "new code that does not import, dies or hangs at import, or whose workers do not boot; at a reload and at the start",
    "a reload is refused and the old workers continue; a start ends with exit code 3 and no fork loop",
)
PRELOADS = pytest.mark.parametrize("flags", [(), ("--no-preload",)], ids=["preload", "no-preload"])


def version(name: str, more: str = "") -> str:
    """jobs.py whose job `say` notes the version it is of."""
    return JOBS + f'\n@app.job("say")\ndef say(n: int = 0) -> None:\n    note("say", {name!r}, n)\n{more}'


@pytest.fixture
def shop(project: MakeProject) -> Project:
    return project(jobs=version("one"))


def ready(shop: Project, *arguments: str, **env: str) -> Procs:
    work = shop.work(*arguments, **env)
    work.wait_line("master.ready", START)
    return work


def runs_version(redis: Client, witness: Witness, name: str) -> None:
    """Check that the version of that name runs the next job."""
    before = len(witness.starting("say"))
    push(redis, "say", {"n": before})
    witness.wait("say", before + 1)
    assert witness.starting("say")[before:] == [f"say {name} {before}"]


def replaced(work: Procs) -> None:
    """One of two workers that wait is killed, and another one has come."""
    killed = waiting(work, 2)[0]
    killed.kill()
    work.wait_line(f"worker.died .*pid={killed.pid} ")
    waiting(work, 2)


# -- the way in


@PRELOADS
def test_hup_runs_the_new_code(shop: Project, witness: Witness, redis: Client, flags: tuple[str, ...]) -> None:
    work = ready(shop, "-w", "2", *flags)
    runs_version(redis, witness, "one")
    for name in ("two", "three"):
        shop.jobs(version(name))
        start = len(work.lines)
        work.signal(signal.SIGHUP)
        work.wait_line("master.reloaded workers=2", start=start)
        runs_version(redis, witness, name)
    work.stop()
    assert not work.matches("ERROR|WARN")


@RESTARTED
def test_restart_rolling_runs_the_new_code_in_the_same_master(shop: Project, witness: Witness, redis: Client) -> None:
    work = ready(shop, "-w", "2")
    runs_version(redis, witness, "one")
    shop.jobs(version("two"))
    assert shop.qd("restart", "--rolling").returncode == 0
    work.wait_line("master.reloading why=.*rolling")
    work.wait_line("master.reloaded workers=2")
    runs_version(redis, witness, "two")
    work.stop()
    assert len(work.matches("master.reloading")) == 1


COUNTED = """
from qd.events import WorkerStarting, WorkerStopping

@app.on(WorkerStarting)
def come(event: WorkerStarting) -> None:
    note("worker +")

@app.on(WorkerStopping)
def go(event: WorkerStopping) -> None:
    note("worker -")

@app.job("step")
def step(n: int) -> None:
    note("step", n)
    time.sleep(0.005)
"""


@pytest.mark.parametrize("workers", [1, 3])
def test_under_load_no_job_is_lost_and_there_are_never_fewer_workers(
    shop: Project, witness: Witness, redis: Client, workers: int
) -> None:
    shop.jobs(version("one", COUNTED))
    work = shop.work("-w", str(workers))
    witness.wait("worker +", workers)
    shop.qd("dispatch", "step", "n=1", "--count", "300")
    witness.wait("step", 20)
    for name in ("two", "three"):
        shop.jobs(version(name, COUNTED))
        start = len(work.lines)
        work.signal(signal.SIGHUP)
        work.wait_line(f"master.reloaded workers={workers}", start=start)
    runs_version(redis, witness, "three")
    work.stop()
    serving = 0
    for number, line in enumerate(witness.starting("worker")[:-workers]):
        serving += 1 if line == "worker +" else -1
        assert number < workers or serving >= workers, "fewer workers than before"
    assert len(witness.starting("step")) == 300
    assert not work.matches("ERROR|WARN")


# -- where it lies


def releases(shop: Project) -> Callable[[str], None]:
    """release("two") makes releases/two and points `current` at it, as deploy tools do."""
    shop.allowed |= {"releases", "current"}
    config = (shop.root / "qd.toml").read_text()

    def release(name: str) -> None:
        folder = shop.root / "releases" / name
        folder.mkdir(parents=True)
        (folder / "qd.toml").write_text(config)
        at = str(shop.root / "witness")
        (folder / "jobs.py").write_text(PRELUDE + version(name).replace('"witness"', repr(at)))
        link = shop.root / "next"
        link.symlink_to(f"releases/{name}")
        link.replace(shop.root / "current")

    return release


@pytest.mark.parametrize("how", ["--config, absolute", "--config, relative", "QD_CONFIG", "PWD"])
def test_a_current_link_that_points_elsewhere_is_followed(
    shop: Project, witness: Witness, redis: Client, how: str
) -> None:
    release, link = releases(shop), shop.root / "current"
    release("one")
    file = str(link / "qd.toml") if how != "--config, relative" else "current/qd.toml"
    arguments = ["--config", file] if how.startswith("--config") else []
    env = {"QD_CONFIG": file} if how == "QD_CONFIG" else {"PWD": str(link)} if how == "PWD" else {}
    command = [*QD, "work", "-w", "1", *arguments]
    work = Procs(command, cwd=link if how == "PWD" else shop.root, env=shop.env(**env))
    shop.started.append(work)
    work.wait_line("master.ready")
    runs_version(redis, witness, "one")
    for number, name in enumerate(("two", "three"), 1):
        release(name)
        work.signal(signal.SIGHUP)
        work.wait_line("master.reloaded", count=number)
        runs_version(redis, witness, name)
        shutil.rmtree(shop.root / "releases" / "one", ignore_errors=True)  # old releases are thrown away
    work.stop()
    assert not work.matches("ERROR|WARN")


# -- code that is no good


BAD = {
    "does not import": "import nothing_of_that_name\n",
    "is not Python": "def broken(:\n",
    "has no app": "app = None\n",
    "leaves at import": "import sys; app = sys.exit(0)\n",
    "dies at import": "import os; app = os.kill(os.getpid(), 11)\n",
    "workers die at boot": version("bad", "\nimport qd.worker.boot as boot\nboot.own_stdin = lambda: os._exit(9)\n"),
}


@BAD_CODE
@PRELOADS
@pytest.mark.parametrize("bad", BAD)
def test_the_old_code_stays_when_the_new(
    shop: Project, witness: Witness, redis: Client, bad: str, flags: tuple[str, ...]
) -> None:
    work = ready(shop, "-w", "2", *flags)
    before = {worker.pid for worker in work.children("qd: worker")}
    shop.jobs(BAD[bad])
    work.signal(signal.SIGHUP)
    work.wait_line("master.reload_refused.*the old code continues")
    runs_version(redis, witness, "one")
    assert before <= {worker.pid for worker in work.children("qd: worker")}
    if not flags:  # without preload there is no old code to start a worker with
        replaced(work)
        runs_version(redis, witness, "one")
    shop.jobs(version("two"))
    work.signal(signal.SIGHUP)
    work.wait_line("master.reloaded")
    runs_version(redis, witness, "two")
    work.stop()


@RESTARTED
def test_refused_code_is_reported_until_a_reload_succeeds(shop: Project, redis: Client) -> None:
    """With the error and an event, also by a new keeper."""
    work = ready(shop)

    def report() -> dict[str, Any]:
        (text,) = redis.hash("qd:masters").values() or ["{}"]
        return dict(json.loads(text))

    eventually(lambda: report().get("refused") == "", what="a report")
    shop.jobs(BAD["does not import"])
    line = (shop.root / "jobs.py").read_text().splitlines().index("import nothing_of_that_name") + 1
    result = shop.qd("restart", "--rolling", "--wait", "1h")
    error = f"ModuleNotFoundError: No module named 'nothing_of_that_name' ({shop.root}/jobs.py:{line})"
    way = "fix it and restart again: a restart by its supervisor would end with exit 3"
    assert (result.returncode, result.stdout.partition(" runs the old: ")[2]) == (1, f"{error}; {way}\n")
    work.child("qd: keeper").kill()
    eventually(lambda: report()["keeper_restarts"] == 1)
    assert report()["refused"] == f"{error}; {way}"  # in its first report, too
    shop.jobs(version("two"))
    assert shop.qd("restart", "--rolling", "--wait", "1h").returncode == 0
    assert (report()["refused"], report()["refused_at"]) == ("", None)
    shop.config("[worker]\nwokers = 3")
    work.signal(signal.SIGHUP)
    eventually(lambda: "wokers" in report()["refused"])
    work.stop()
    shop.config()
    events = [json.loads(line) for line in shop.qd("events", "--json").stdout.splitlines()]
    told = [event["reason"] for event in events if event["what"] == "refused new code"]
    assert told[0] == f"{error}; {way}"
    assert "wokers" in told[1]


IMPATIENT = """
import os
import qd.master.code, qd.master.reload
from qd.cli.main import main
qd.master.code.PATIENCE = qd.master.reload.PATIENCE = 3.0
hangs = qd.master.code.AppImports.hangs
qd.master.code.AppImports.hangs = lambda codes: os.path.exists("over") and hangs(codes)
main()
"""


@BAD_CODE
@PRELOADS
def test_code_that_hangs_at_import_is_given_up(
    shop: Project, witness: Witness, redis: Client, flags: tuple[str, ...]
) -> None:
    """The time does not run out before the test allows it: another worker starts first, however long that takes."""
    shop.allowed.add("over")
    work = Procs([sys.executable, "-c", IMPATIENT, "work", "-w", "2", *flags], cwd=shop.root, env=shop.env())
    shop.started.append(work)
    work.wait_line("master.ready")
    shop.jobs("print('hangs', flush=True)\nimport time\napp = time.sleep(1000)\n")
    work.signal(signal.SIGHUP)
    eventually(lambda: "hangs" in work.output, 20)
    runs_version(redis, witness, "one")
    if not flags:
        replaced(work)
        assert not work.matches("reload_refused")
    (shop.root / "over").touch()
    work.wait_line(r"master.reload_refused.*longer than \d+ s.*the old code continues", 60)  # or five times the first
    eventually(lambda: len(work.children()) == (3 if flags else 4), what="nothing left of the new code")
    runs_version(redis, witness, "one")
    work.stop()


# -- configuration


@PRELOADS
def test_a_changed_configuration_counts_after_hup(
    shop: Project, witness: Witness, redis: Client, flags: tuple[str, ...]
) -> None:
    shop.config('[worker]\nworkers = 1\nqueues = ["a"]\nsleep = "60s"')
    work = ready(shop, *flags)
    eventually(lambda: len(work.children("waiting on a")) == 1)
    shop.config('[worker]\nworkers = 3\nqueues = ["b", "a"]\nsleep = "60s"')
    work.signal(signal.SIGHUP)
    eventually(lambda: len(work.children("waiting on b,a")) == 3)
    work.wait_line("master.reloaded workers=3")
    redis.call("RPUSH", "queues:b", '{"job":"say","data":{"n":1}}')  # without a token: only a keeper of b sees it
    witness.wait("say", seconds=20)
    shop.config('[worker]\nworkers = 2\nqueues = ["c"]\nsleep = "60s"')
    work.signal(signal.SIGHUP)
    eventually(lambda: len(work.children("waiting on c")) == 2)
    eventually(lambda: len(work.children("qd: worker")) == 2)
    work.stop()


@pytest.mark.parametrize(
    "bad", ["[worker]\nworkers = 'many'", "[worker]\nwokers = 3", "[worker", "[worker]\nworkers = 0"]
)
def test_an_invalid_configuration_changes_nothing(shop: Project, witness: Witness, redis: Client, bad: str) -> None:
    shop.config("[worker]\nworkers = 2")
    work = ready(shop)
    eventually(lambda: len(work.children()) == 4, what="template, keeper, two workers; who forked them may be ending")
    before = {child.pid for child in work.children()}
    shop.config(bad)
    work.signal(signal.SIGHUP)
    work.wait_line("master.reload_refused.*(qd.toml|start it again)")
    runs_version(redis, witness, "one")
    assert {child.pid for child in work.children()} == before
    shop.config()
    work.signal(signal.SIGHUP)
    work.wait_line("master.reloaded")
    work.stop()


def test_the_configuration_of_a_refused_version_does_not_count(shop: Project, witness: Witness, redis: Client) -> None:
    shop.config("[worker]\nworkers = 2")
    work = ready(shop)
    shop.config("[worker]\nworkers = 4\ntimeout = '1ms'")
    shop.jobs(BAD["does not import"])
    work.signal(signal.SIGHUP)
    work.wait_line("master.reload_refused")
    replaced(work)
    push(redis, "slow", {"seconds": 0.1})
    witness.wait("end")
    work.signal(signal.SIGUSR1)
    work.wait_line("master.state workers=2 wanted=2")
    work.stop()


def test_a_secret_in_a_file_of_its_own_is_read_again(shop: Project, witness: Witness, redis: Client) -> None:
    """The url moves to another database; a file that is empty then changes nothing."""
    shop.allowed.add("secret")
    secret = shop.root / "secret"
    secret.write_text(f"{shop.url}\n")
    work = ready(shop, "-w", "1", QD_REDIS_URL_FILE="secret")
    runs_version(redis, witness, "one")
    other = f"{shop.url}?db=9"
    secret.write_text(f"{other}\n")
    work.signal(signal.SIGHUP)
    work.wait_line("master.reloaded workers=1")
    redis.call("SELECT", "9")
    try:
        runs_version(redis, witness, "one")
    finally:
        redis.call("FLUSHDB")
    secret.write_text("\n")
    work.signal(signal.SIGHUP)
    work.wait_line(
        f"master.reload_refused reason=.*QD_REDIS_URL_FILE: {secret} is empty, write the value of QD_REDIS_URL "
    )
    work.stop()


MODE = """
AT_IMPORT = os.environ.get("MODE")

@app.job("say")
def say(n: int = 0) -> None:
    note("say", AT_IMPORT + os.environ["MODE"], n)
"""


@PRELOADS
def test_the_file_of_variables_is_read_again(
    shop: Project, witness: Witness, redis: Client, flags: tuple[str, ...]
) -> None:
    """qd's own and those of the app. What is in it no more is what it was at the start; with a bad line nothing changes."""
    shop.allowed.add("shop.env")
    file = shop.root / "shop.env"
    shop.jobs(JOBS + MODE)
    file.write_text("# one\nMODE='one'\nQD_WORKERS=1\nQD_SLEEP=60\n")
    work = ready(shop, *flags, QD_ENV_FILE="shop.env", MODE="zero")
    runs_version(redis, witness, "oneone")

    file.write_text("MODE=two\nQD_WORKERS=3\n")
    work.signal(signal.SIGHUP)
    work.wait_line("master.reloaded workers=3")
    runs_version(redis, witness, "twotwo")

    file.write_text("MODE=three\nsecret\n")
    work.signal(signal.SIGHUP)
    work.wait_line('master.reload_refused reason="shop.env:2 is not a variable')
    assert not work.matches("secret")
    file.write_text("MODE=three\n")
    shop.jobs(BAD["does not import"])
    work.signal(signal.SIGHUP)
    work.wait_line("master.reload_refused", count=2)
    shop.jobs(JOBS + MODE)
    for worker in waiting(work, 3):
        worker.kill()
        work.wait_line(f"worker.died .*pid={worker.pid} ")
    runs_version(redis, witness, "twotwo")

    file.write_text("QD_WORKERS=1\n")
    work.signal(signal.SIGHUP)
    work.wait_line("master.reloaded workers=1")
    runs_version(redis, witness, "zerozero")
    work.stop()


@pytest.mark.parametrize("words", [("work",), ("status",), ("config", "show")], ids=" ".join)
def test_each_command_reports_a_missing_file_of_variables(shop: Project, words: tuple[str, ...]) -> None:
    done = shop.qd(*words, QD_ENV_FILE="nowhere.env")
    assert done.returncode == 78
    assert done.stderr.startswith("qd: QD_ENV_FILE names nowhere.env, which cannot be read: No such file or directory")


def test_a_job_of_a_queue_that_is_left_keeps_its_lease(shop: Project, witness: Witness, redis: Client) -> None:
    lease = 'retry_after = "3s"\n[worker]\nworkers = 1\n'
    shop.config(lease + 'queues = ["a"]')
    work = ready(shop)
    push(redis, "slow", {"seconds": 7}, "a")
    witness.wait("start")
    shop.config(lease + 'queues = ["b"]')
    work.signal(signal.SIGHUP)
    work.wait_line("master.reloaded")
    other = shop.work("a", "-w", "1")  # its keeper takes what is expired
    witness.wait("end")
    other.stop()
    work.stop()
    assert len(witness.starting("start")) == 1
    assert not work.matches("lease")


def test_another_server_is_worked_on_once_the_last_job_of_the_old_has_ended(
    shop: Project, witness: Witness, redis: Client
) -> None:
    """Its lease is renewed until then: a keeper serves one server."""
    with Server() as other:
        client = other.client()
        text = (shop.root / "qd.toml").read_text() + 'retry_after = "1s"\n'
        (shop.root / "qd.toml").write_text(text)
        work = ready(shop, "-w", "2")
        push(redis, "slow", {"seconds": 3})
        witness.wait("start")
        (shop.root / "qd.toml").write_text(text.replace(shop.url, other.url))
        shop.jobs(version("two"))
        work.signal(signal.SIGHUP)
        work.wait_line("master.reloading")
        push(client, "say", {"n": 0})
        witness.wait("say")
        assert [line.split()[0] for line in witness.lines] == ["start", "end", "say"]
        work.wait_line("master.reloaded workers=2")
        work.stop()
        assert not work.matches("lease|ERROR")
        assert client.leftovers() == []
        client.close()


@pytest.mark.leaves("queues:default:failed", "queues:default:failed_at")
def test_the_log_and_the_limits_of_the_new_configuration_count(shop: Project, witness: Witness, redis: Client) -> None:
    work = ready(shop, "-w", "1")
    shop.config('[worker]\nlog_format = "json"\ntimeout = "100ms"')
    work.signal(signal.SIGHUP)
    work.wait_line('"event": "master.reloaded"|master.reloaded')
    push(redis, "slow", {"seconds": 60})
    work.wait_line('^{.*"event": "job.failed".*JobTimeout')
    work.signal(signal.SIGUSR1)
    work.wait_line(f'^{{.*"pid": {work.pid}, "event": "worker.state", "slot": [01], "child": ')
    work.stop()


# -- development


@PRELOADS
def test_reload_runs_new_code_when_a_file_changes(
    shop: Project, witness: Witness, redis: Client, flags: tuple[str, ...]
) -> None:
    shop.allowed.add("more.py")
    work = ready(shop, "-w", "1", "--reload", *flags)
    runs_version(redis, witness, "one")
    shop.jobs(version("two"))
    work.wait_line("master.reloaded")
    assert work.matches("master.reloading why=.*changed.*jobs.py")
    runs_version(redis, witness, "two")
    start = len(work.lines)
    shop.jobs(version("bad", "import more\n"))
    (shop.root / "more.py").write_text("def broken(:\n")
    work.wait_line("master.reload_refused", start=start)
    runs_version(redis, witness, "two")
    start = len(work.lines)
    (shop.root / "more.py").write_text("")
    work.wait_line("master.reloaded", start=start)
    runs_version(redis, witness, "bad")
    work.stop()


# -- what a fork would break

THREAD = """
import threading
threading.Thread(target=time.sleep, args=(1000,), name="left-over", daemon=True).start()
"""
SOCKET = """
import socket
left = socket.socket(socket.AF_UNIX)
left.connect({path!r})
"""


@pytest.mark.parametrize("what", ["thread", "socket"])
def test_an_import_that_leaves_something_running_is_warned_of_and_not_preloaded(
    shop: Project, witness: Witness, redis: Client, what: str
) -> None:
    path = shop.url.removeprefix("unix://")
    more, named = (THREAD, "thread 'left-over'") if what == "thread" else (SOCKET.format(path=path), f"unix {path}")
    shop.jobs(version("one", more))
    work = ready(shop, "-w", "2")
    (line,) = work.matches("app.imported")
    assert named in line.string
    runs_version(redis, witness, "one")
    eventually(lambda: not work.children("template"), what="no template of such code")
    shop.jobs(version("two", more))
    work.signal(signal.SIGHUP)
    work.wait_line("master.reloaded")
    runs_version(redis, witness, "two")
    shop.jobs(version("three"))
    work.signal(signal.SIGHUP)
    work.wait_line("master.reloaded", count=2)
    runs_version(redis, witness, "three")
    assert work.children("template")
    shop.jobs(version("four", more))
    work.signal(signal.SIGHUP)
    work.wait_line("master.reloaded", count=3)
    runs_version(redis, witness, "four")
    eventually(lambda: not work.children("template"), what="an end of the template of the code before")
    replaced(work)
    runs_version(redis, witness, "four")
    assert not work.matches("template.died")
    work.stop()


# -- the template


def test_a_killed_template_is_replaced(shop: Project, witness: Witness, redis: Client) -> None:
    work = ready(shop, "-w", "2")
    template = work.child("template")
    template.kill()
    work.wait_line("template.died.*signal 9")
    work.wait_line("master.reloaded")
    assert work.child("template").pid != template.pid
    replaced(work)
    runs_version(redis, witness, "one")
    work.stop()


@pytest.mark.parametrize("bad", ["code", "configuration"])
def test_a_killed_template_is_replaced_once_the_project_is_good_again(
    shop: Project, witness: Witness, redis: Client, bad: str
) -> None:
    work = ready(shop, "-w", "2")
    if bad == "code":
        shop.jobs(BAD["does not import"])
    else:
        shop.config("[worker")
    work.child("template").kill()
    work.wait_line("template.died")
    work.wait_line("master.reload_refused")
    runs_version(redis, witness, "one")
    shop.jobs(version("two"))
    shop.config()
    work.wait_line("master.reloaded", 20)
    runs_version(redis, witness, "two")
    work.stop()


def test_workers_draw_different_random_numbers(shop: Project, witness: Witness) -> None:
    more = (
        '@app.job("draw")\ndef draw() -> None:\n    note("drawn", random.random(), os.getpid())\n'
        '    while Path("witness").read_text().count("drawn") < 3:\n        time.sleep(0.01)\n'  # one for each worker
    )
    shop.jobs(version("one", "import random\nrandom.seed(7)\n" + more))
    work = ready(shop, "-w", "3")
    shop.qd("dispatch", "draw", "--count", "6")
    drawn = [line.split() for line in witness.wait("drawn", 6)]
    assert len({pid for _, _, pid in drawn}) == 3
    assert len({number for _, number, _ in drawn}) == 6
    work.stop()


def test_the_first_import_prefers_modules_next_to_the_file(shop: Project, witness: Witness, redis: Client) -> None:
    """A module of the project wins over one of the same name elsewhere."""
    elsewhere = Path(shop.run) / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "jobs.py").write_text("raise RuntimeError('the wrong one')\n")
    work = ready(shop, "-w", "1", PYTHONPATH=f"{shop.env()['PYTHONPATH']}{os.pathsep}{elsewhere}")
    runs_version(redis, witness, "one")
    work.stop()
    shutil.rmtree(elsewhere)
