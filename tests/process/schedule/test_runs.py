"""Runs of functions and commands: whatever they do, the scheduler lives and reports how they ended."""

from __future__ import annotations

import os
import select
import signal

import pytest

from tests.support.processes import titled
from tests.support.redis import Client
from tests.support.schedule import Drive, gone, last_reports, lease, pids_in
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("clean_redis")


# -- outcomes, hooks, output


WELL = """
def body(): note("a body"); print("said by the function")
add("a", body)

async def later():
    await asyncio.sleep(0)
    note("b body")
add("b", later, background=True)

def leaves(): note("c body"); sys.exit(0)
add("c", leaves, background=True)

add("d", "echo d body >> witness; echo said by the shell")

class Object:
    async def __call__(self): note("e body")
async def earlier(): note("e before")
add("e", Object(), before=(earlier,))
"""


def test_what_ends_well_has_hooks_and_events_in_their_order(drive: Drive):
    driven = drive(WELL)
    work = driven.run("a", "b", "c", "d", "e")
    steps = ["Starting 1700000000.0", "before", "body", "after", "on_success", "Finished True"]
    assert [driven.lines(name) for name in "ade"] == [steps] * 3
    assert driven.lines("b") == [*steps, "Background None"]
    assert driven.lines("c") == [*steps, "Background 0"]
    codes = {name: (each["code"], each["error"]) for name, each in last_reports(work).items()}
    assert codes == {"a": (None, ""), "b": (None, ""), "c": (0, ""), "d": (0, ""), "e": (None, "")}
    assert {"said by the function", "said by the shell"} <= set(work.output)
    at = "2023-11-14T22:13:20Z"
    started = work.wait_line(rf"INFO  scheduler\[\d+\] schedule.started entry=a at={at} pid=(\d+)$")
    work.wait_line(rf"INFO  scheduler\[\d+\] schedule.done entry=a at={at} took=[\d.]+ pid={started[1]}$")


FAILURES = {
    "raises": ("async def raises(): raise ValueError('no paper') from OSError('jam')", None, "ValueError: no paper"),
    "odd": ("def odd(): raise ValueError(os.fsdecode(b'caf\\xe9'))", None, "ValueError: caf\\udce9"),
    "base": ("class Odd(BaseException): pass\ndef base(): raise Odd('odd')", None, "Odd: odd"),
    "leaves": ("def leaves(): sys.exit(3)", 3, "left with sys.exit(3)"),
    "says": ("def says(): sys.exit('no ink')", 1, "left with sys.exit('no ink')"),
    "vanishes": ("def vanishes(): os._exit(3)", 3, "left with exit code 3 before it returned (os._exit)"),
    "nought": ("def nought(): os._exit(0)", 0, "left with exit code 0 before it returned (os._exit)"),
    "killed": ("def killed(): os.kill(os.getpid(), 9)", -9, "signal 9 (SIGKILL)"),
    "ended": ("def ended(): os.kill(os.getpid(), 15)", -15, "signal 15 (SIGTERM)"),
    "faulty": ("def faulty(): ctypes.string_at(0)", -11, "signal 11 (SIGSEGV)"),
    "closes": ("def closes():\n  os.closerange(0, 4096); raise OSError('closed')", None, "OSError: closed"),
    "copies": ("def copies():\n  if os.fork(): os.wait(); raise OSError('mine')", None, "OSError: mine"),
    "three": ("three = 'echo one >&2; echo the reason >&2; exit 3'", 3, "exit code 3: the reason"),
    "shot": ("shot = 'kill -9 $$'", -9, "signal 9 (SIGKILL)"),
    "nosuch": ("nosuch = 'nosuchcommand now'", 127, "exit code 127: /bin/sh: 1: nosuchcommand: not found"),
    "command": ("command = ('nosuch',)", 2, "exit code 2: "),
}


def test_however_a_run_fails_it_is_reported_once_and_the_scheduler_lives(drive: Drive):
    driven = drive("".join(f"{source}\nadd('{name}', {name})\n" for name, (source, _, _) in FAILURES.items()))
    work = driven.run(*FAILURES)
    for name, (_, code, error) in FAILURES.items():
        reported = last_reports(work)[name]
        assert reported["code"] == code, reported
        assert reported["error"].startswith(error), reported
        *steps, last = driven.lines(name)
        assert steps == ["Starting 1700000000.0", "before", "after", "on_failure"]
        assert last.encode("utf-8", "backslashreplace").decode().startswith(f"Failed {code} {error}")
        assert len(work.matches(rf"ERROR scheduler\[\d+\] schedule.failed entry={name} ")) == 1
    assert len([line for line in work.lines if line.strip() == "ValueError: no paper"]) == 1  # one traceback
    assert "OSError: jam" in [line.strip() for line in work.lines]
    assert not [line for line in work.lines if "asyncio" in line or "daemon/qd/" in line]


OUTPUT = """
def prints(): print("from python"); os.system("echo from its child; echo and its stderr >&2")
def hook(): print("from a hook")
add("new", prints, output=Path("new.txt"), before=(hook,))
add("more", "echo why >&2; echo more; exit 4", output=Path("more.txt"), append=True)
add("folder", prints, output=Path("nowhere/at/all.txt"))
add("full", prints, output=Path("/dev/full"))
"""


def test_what_a_run_prints_goes_into_its_file(drive: Drive):
    driven = drive(OUTPUT)
    driven.project.allowed |= {"new.txt", "more.txt"}
    for name in ("new", "more"):
        (driven.root / f"{name}.txt").write_text("yesterday\n")
    work = driven.run("new", "more", "folder", "full")
    text = "from a hook\nfrom python\nfrom its child\nand its stderr\n"
    assert (driven.root / "new.txt").read_text() == text
    assert (driven.root / "more.txt").read_text() == "yesterday\nwhy\nmore\n"
    assert last_reports(work)["more"]["error"] == "exit code 4: more"  # the file does not show which of them was stderr
    refused = f"its output cannot be written to {driven.root}/nowhere/at/all.txt: No such file or directory"
    assert last_reports(work)["folder"]["error"] == refused
    assert driven.lines("folder")[1:] == ["before", "after", "on_failure", f"Failed None {refused}"]
    assert "OSError: [Errno 28] No space left on device" in last_reports(work)["full"]["error"]
    assert not work.output[4:]


PIPES = """
add("unread", lambda: note("unread body"), output=Path("unread"))
add("read", "head -c 300000 /dev/zero; echo; echo over", output=Path("read"))
"""


def test_a_run_writes_to_a_pipe_as_fast_as_it_is_read_and_a_pipe_without_a_reader_is_refused(drive: Drive):
    driven = drive(PIPES)
    driven.project.allowed |= {"unread", "read"}
    for name in ("unread", "read"):
        os.mkfifo(driven.root / name)
    reader = os.open(driven.root / "read", os.O_RDONLY | os.O_NONBLOCK)
    try:
        work = driven.start("unread", "read")
        work.wait_line("schedule.failed entry=unread")
        os.set_blocking(reader, True)
        assert select.select([reader], [], [], 20)[0], (
            "no run writes"
        )  # before a run writes, a read returns the end of the file
        assert b"".join(iter(lambda: os.read(reader, 65536), b"")) == bytes(300000) + b"\nover\n"
    finally:
        os.close(reader)
    work.ends_clean()
    assert last_reports(work)["read"]["error"] == ""
    assert (
        last_reports(work)["unread"]["error"]
        == f"its output cannot be written to {driven.root}/unread: no process reads this pipe"
    )
    assert "unread body" not in driven.witness.lines


HOOKS = """
def bad(): raise RuntimeError("a bad hook")
def gone(): sys.exit(1)
def hangs(): note("hangs"); time.sleep(300)
def copy():
    if os.fork(): os.wait()

@app.on(events.ScheduledTaskFinished)
def angry(event): raise KeyboardInterrupt("a bad listener")

@app.on(events.ScheduledTaskFinished)
def hanging(event):
    if event.task == "deaf": hangs()

body = lambda: note("body")
add("raising", body, before=(bad, gone, copy), after=(bad,), on_success=(copy,))
add("before", body, before=(hangs,))
add("after", body, after=(hangs,))
add("deaf", body)
add("both", lambda: os._exit(1), after=(hangs,))
"""


def test_a_hook_or_listener_that_fails_or_hangs_changes_nothing(drive: Drive):
    driven = drive(HOOKS)
    work = driven.run("raising", "before", "after", "deaf", "both", HOOKS="2")
    ends = {name: each["error"] for name, each in last_reports(work).items()}
    assert ends == {
        "raising": "",
        "before": "its hooks or listeners took more than 2s",
        "after": "",
        "deaf": "",
        "both": "left with exit code 1 before it returned (os._exit)",
    }
    assert len(driven.witness.starting("body")) == 3
    assert driven.lines("raising") == ["Starting 1700000000.0", "Finished True"]
    assert driven.lines("before")[-2:] == ["on_failure", f"Failed -9 {ends['before']}"]
    assert len(work.matches('schedule.hook_failed entry=raising hook=before error="RuntimeError: a bad hook"')) == 1
    assert len(work.matches('schedule.hook_failed entry=raising hook=before error="SystemExit: 1"')) == 1
    assert len(work.matches('schedule.hook_failed entry=raising hook=after error="RuntimeError: a bad hook"')) == 1
    for name in ("after", "deaf", "both"):
        reason = 'reason="its hooks or listeners took more than 2s"'
        assert len(work.matches(rf"schedule.hooks_cut entry={name} at=\S+ pid=\d+ {reason}")) == 1
    assert len(work.matches("the listener angry of ScheduledTaskFinished raised")) == 2


def test_a_function_may_send_jobs_and_a_command_of_qds_reads_the_same_configuration(drive: Drive, redis: Client):
    driven = drive(
        """
        @app.job("mail")
        def mail(n: int) -> None: ...
        add("send", lambda: mail.dispatch(7))
        add("list", ("declared", "--json"), output=Path("list.json"))
        """
    )
    driven.project.allowed.add("list.json")
    driven.run("send")
    assert len(redis.text("LRANGE", "queues:default", "0", "-1")) == 1
    driven.run("list")
    assert "mail" in (driven.root / "list.json").read_text()
    redis.call("DEL", "queues:default", "queues:default:notify")


def test_a_process_that_cannot_be_had_is_a_failed_run(drive: Drive):
    driven = drive(
        """
        from qd.process import fork as child
        def refused(*given, **more): raise BlockingIOError(11, "Resource temporarily unavailable")
        child.fork = refused
        add("a", lambda: None, alone=True)
        """
    )
    work = driven.run("a")
    assert last_reports(work)["a"]["code"] is None
    work.wait_line(
        'schedule.failed entry=a .*error="no process could be started for it: Resource temporarily unavailable"'
    )


# -- entries without overlapping


# -- without_overlapping

LONG = "[schedule]\nlease = 6\n"  # seconds; renewed after two of them
ALONE = """
add("long", lambda: time.sleep(300), alone=True)
add("quick", lambda: None, alone=True)
add("local", lambda: time.sleep(300), alone=True, every_host=True)
"""


def test_an_entry_without_overlapping_runs_once_and_again_as_soon_as_its_run_was_killed(drive: Drive, redis: Client):
    driven = drive(ALONE, LONG)
    work = driven.start("long")
    eventually(lambda: lease(redis, "long").get("pid") not in (None, work.pid), 20)
    held = lease(redis, "long")
    assert int(work.wait_line(r"started entry=long at=\S+ pid=(\d+)")[1]) == held["pid"]
    assert redis.call("PTTL", "qd:overlap:long") <= 6000
    second = driven.run("long")
    assert last_reports(second)["long"]["waits"].startswith(
        f"still running on {held['host']} (pid {held['pid']}) since "
    )
    eventually(lambda: redis.call("PTTL", "qd:overlap:long") < 5000, what="a second of it gone")
    eventually(lambda: redis.call("PTTL", "qd:overlap:long") > 5000, what="a renewal")
    assert lease(redis, "long") == held
    os.kill(held["pid"], signal.SIGKILL)
    work.ends_clean()
    assert not lease(redis, "long")
    assert last_reports(driven.run("quick"))["quick"]["error"] == ""
    assert not lease(redis, "quick")


def test_a_lease_ends_by_itself_when_its_scheduler_was_killed(drive: Drive, redis: Client):
    driven = drive(ALONE, LONG)
    work = driven.start("long", "local")
    host = eventually(lambda: lease(redis, "long").get("host"), 20)
    assert eventually(lambda: lease(redis, f"{host}\x1flocal"), 20)
    work.kill()
    left = redis.text("KEYS", "qd:overlap:*")
    assert all(0 < redis.call("PTTL", key) <= 6000 for key in left)
    eventually(lambda: not redis.text("KEYS", "qd:overlap:*"), 20)


def test_a_lease_that_was_cleared_is_logged_and_the_run_continues(drive: Drive, redis: Client):
    driven = drive(ALONE, LONG)
    work = driven.start("long")
    eventually(lambda: lease(redis, "long").get("pid") not in (None, work.pid), 20)
    redis.call("DEL", "qd:overlap:long")
    work.wait_line('schedule.lease_lost entry=long reason="it was cleared by an operator"')
    assert not lease(redis, "long")
    assert work.process.poll() is None
    work.stop()


# -- processes that runs start


TREES = """
def function():
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    subprocess.Popen(["sh", "-c", "echo $$ >> pids; setsid sh -c 'echo $$ >> pids; sleep 300; true' & sleep 300"])
    if os.fork() == 0:
        note("pid", os.getpid())
        time.sleep(300)
    time.sleep(300)

SHELL = "echo $$ >> pids; setsid sh -c 'echo $$ >> pids; sleep 300; true' & sleep 300; true"
add("function", function, timeout=3)
add("shell", SHELL, timeout=3)
add("quick", lambda: note("quick body"), timeout=3)
"""


def test_a_run_over_its_timeout_is_killed_with_all_that_it_has_started(drive: Drive):
    driven = drive(TREES)
    driven.project.allowed.add("pids")
    work = driven.start("function", "shell", "quick")
    pids = pids_in(driven.root / "pids", 4)
    work.ends_clean()
    error = "ran longer than its timeout (3s)"
    for name in ("function", "shell"):
        assert {"code": -9, "error": error}.items() <= last_reports(work)[name].items()
        assert 3 <= last_reports(work)[name]["runtime"] < 300
        assert driven.lines(name)[2:] == ["after", "on_failure", f"Failed -9 {error}"]
    assert last_reports(work)["quick"]["error"] == ""
    assert eventually(lambda: all(gone(pid) for pid in pids))


def test_what_a_killed_run_has_started_goes_with_it_and_what_a_finished_one_left_stays(drive: Drive):
    driven = drive(
        """
        SHELL = "echo $$ > pids; setsid sh -c 'echo $$ >> pids; sleep 300; true' & echo $PPID > runner; sleep 300; true"
        add("killed", SHELL)
        add("finished", "(while ! test -f go; do sleep 0.01; done; echo late >&2; echo > late; sleep 300; true) & true")
        """
    )
    driven.project.allowed |= {"pids", "runner", "late", "go"}
    work = driven.start("killed", "finished")
    pids = pids_in(driven.root / "pids", 2)
    work.wait_line("schedule.done entry=finished")
    (driven.root / "go").touch()
    eventually((driven.root / "late").exists, 20)  # its stderr was no broken pipe
    work.wait_line("^late$")
    (runner,) = pids_in(driven.root / "runner", 1)
    os.kill(runner, signal.SIGKILL)
    assert work.process.wait(10) == 0
    assert eventually(lambda: last_reports(work)["killed"]["error"] == "signal 9 (SIGKILL)")
    eventually(lambda: all(gone(pid) for pid in pids), what="an end of what was killed")
    left = [process for process in work.session() if "sleep 300" in titled(process)]
    assert left
    work.sweep()


def test_runs_die_with_their_scheduler(drive: Drive):
    driven = drive("add('function', lambda: time.sleep(300))\nadd('shell', 'exec sleep 300')")
    work = driven.start("function", "shell")
    eventually(lambda: work.children("sleep 300") and driven.lines("function")[1:], 20)
    work.kill()
    eventually(lambda: not work.session(), 20, what="no run left")


def test_a_scheduler_that_ends_its_runs_reports_each_and_calls_no_hooks(drive: Drive):
    driven = drive("add('function', lambda: time.sleep(300))\nadd('shell', 'sleep 300; true')")
    work = driven.start("function", "shell")
    eventually(lambda: len(work.children("sleep 300")) >= 1 and driven.lines("function")[1:], 20)
    work.stop()
    assert {each["error"] for each in last_reports(work).values()} == {"ended: its scheduler stops"}
    assert driven.lines("function") == ["Starting 1700000000.0", "before"]
