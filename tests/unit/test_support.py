"""The tests' own tools: each must find the faults it looks for."""

from __future__ import annotations

import importlib
import os
import resource
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from tests.support import warm
from tests.support.fleet import code_of
from tests.support.modes import MODES, chosen
from tests.support.processes import Procs
from tests.support.programs import missing
from tests.support.reliability import HEAD, line_of, share, with_lines
from tests.support.servers.redis import Server
from tests.support.tally import Ended, Tally
from tests.support.waiting import eventually

ORPHAN = "import os, sys, time\nif os.fork() == 0:\n    time.sleep(60)\nprint('forked', file=sys.stderr, flush=True)\n"


def started(tmp_path, code: str) -> Procs:
    return Procs([sys.executable, "-c", code], cwd=tmp_path, env=dict(os.environ))


def test_a_child_that_outlives_its_parent_is_found_and_killed(tmp_path):
    procs = started(tmp_path, ORPHAN)
    procs.wait_line("forked")
    with pytest.raises(AssertionError, match="no process left of"):
        procs.ends_clean(orphans=0.1)
    assert len(procs.sweep()) == 1
    assert procs.session() == []


def test_a_wrong_exit_code_is_not_a_clean_end(tmp_path):
    procs = started(tmp_path, "raise SystemExit(3)")
    with pytest.raises(AssertionError, match="exit code 3, expected 0"):
        procs.ends_clean()


def test_waiting_for_a_line_fails_at_once_if_the_program_has_ended(tmp_path):
    procs = started(tmp_path, "import sys; print('only this', file=sys.stderr)")
    with pytest.raises(RuntimeError, match="only this"):
        procs.wait_line("something else", 60)


def test_lines_are_counted_and_signals_arrive(tmp_path):
    code = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit('term 2'))\n"
    procs = started(tmp_path, code + "print('term 1', file=sys.stderr, flush=True)\nsignal.pause()\n")
    assert procs.wait_line(r"term (\d)")[1] == "1"
    procs.stop(signal.SIGTERM, code=1)
    assert procs.wait_line(r"term (\d)", count=2)[1] == "2"


def test_eventually_reports_what_it_waited_for():
    with pytest.raises(AssertionError, match="not within 0 s: the moon"):
        eventually(lambda: False, 0, what="the moon")


def test_a_missing_program_fails_in_ci_and_skips_elsewhere(monkeypatch):
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="beanstalkd is missing"):
        missing("beanstalkd")
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="beanstalkd is not installed"):
        missing("beanstalkd")


def test_a_server_keeps_its_port_across_a_restart():
    with Server() as server:
        url = server.tcp_url
        server.kill()
        server.start()
        assert server.tcp_url == url
        with server.client() as client:
            assert client.keys() == []


def test_project_runs_in_its_own_folder_with_its_own_server(project, server):
    one = project()
    assert one.python("import os; print(os.getcwd())").stdout.strip() == str(one.root)
    assert server.url in (one.root / "qd.toml").read_text()


# -- forks of the warm process (support/warm.py)

SAME = {
    "arguments": "import sys; print(sys.argv, sys.orig_argv, sys.path, sys.stdin, sys.stdout, sys.stderr)",
    "main": "print(sorted(map(str, globals().items())))",
    "environment": "import os; print(sorted(os.environ.items()), os.getcwd(), os.umask(0))",
    "descriptors": "import os; print(sorted(os.listdir('/proc/self/fd')))",
    "family": "import os; p = os.getpid(); print(os.getppid(), os.getpgid(0) == p, os.getsid(0) == p)",
    "signals": "from signal import *; print([getsignal(s) for s in valid_signals()], pthread_sigmask(SIG_BLOCK, []))",
    "title": "import setproctitle as s; s.setproctitle('x' * 200); print(open('/proc/self/cmdline').read().rstrip('\\0'))",
    "threads": "import os, threading; print(threading.get_native_id() == threading.main_thread().native_id == os.getpid())",
    "end": "import atexit, threading, time; atexit.register(print, 'end'); threading.Thread(target=print, args='t').start()",
    "error": "def f(): raise KeyError(1)\nf()",
    "message": "raise SystemExit('over')",
    "code": "raise SystemExit(3)",
    "interrupt": "raise KeyboardInterrupt",
    "stdout": "import os; os.close(1); print('lost')",
    "syntax": "syntax error(",
    "open file": "import atexit; file = open('written', 'w'); atexit.register(file.write, 'text')",
    "child": "import os; pid = os.fork() or exit(4); print(os.waitpid(pid, 0)[1])",
    "full": "import os, sys; os.dup2(os.open('/dev/full', os.O_WRONLY), 1); print('lost'); sys.exit(5)",
}


@pytest.mark.parametrize("code", SAME.values(), ids=SAME)
def test_forked_program_behaves_like_an_executed_one(tmp_path, code: str):
    words = [sys.executable, "-c", code, "word"]
    ends = []
    for fresh in (False, True):
        done = warm.run(
            words, fresh=fresh, cwd=tmp_path, env=os.environ, capture_output=True, text=True, start_new_session=True
        )
        written = {file.name: file.read_text() for file in tmp_path.iterdir()}
        ends.append((done.returncode, done.stdout, done.stderr, written))
    assert ends[0] == ends[1]


@pytest.mark.parametrize(
    "more", [{"fresh": True}, {"env": {**os.environ, "PYTHONHASHSEED": "1"}}, {"env": None}, {"pass_fds": [2]}],
    ids=["fresh", "hash seed", "no environment", "descriptors"],
)  # fmt: skip
def test_program_is_executed_where_a_fork_would_differ(tmp_path, monkeypatch, more: dict[str, Any]):
    monkeypatch.delenv("QD_TESTS_EXEC", raising=False)
    assert preloaded(tmp_path) == f"{warm.POSSIBLE}\n"
    assert preloaded(tmp_path, **more) == "False\n"


def test_a_variable_disables_the_forking_of_programs(tmp_path, monkeypatch):
    monkeypatch.setenv("QD_TESTS_EXEC", "1")
    assert preloaded(tmp_path) == "False\n"


@pytest.mark.parametrize(
    ("text", "env", "module"),
    [
        ('url = "sqlite:///x"', {}, "qd.drivers.database.queue"),
        ('url = "postgresql+psycopg://localhost/x"', {}, "psycopg"),
        ('url = "sqs://sqs"', {}, "qd.drivers.sqs.client"),
        ("", {"DJANGO_SETTINGS_MODULE": "x"}, "django.db.models"),
    ],
    ids=["sqlite", "postgres", "sqs", "django"],
)  # fmt: skip
def test_program_of_a_project_with_a_driver_has_its_library_and_others_have_not(
    tmp_path, monkeypatch, text: str, env: dict[str, str], module: str
):
    monkeypatch.delenv("QD_TESTS_EXEC", raising=False)
    assert preloaded(tmp_path, module=module) == "False\n"
    (tmp_path / "qd.toml").write_text(text)
    assert preloaded(tmp_path, module=module, env={**os.environ, **env}) == f"{warm.POSSIBLE}\n"
    assert preloaded(tmp_path, module=module, env={**os.environ, **env}, fresh=True) == "False\n"


def preloaded(folder: Path, module: str = "qd.cli.work", **more: Any) -> str:
    words = [sys.executable, "-c", f"import sys; print({module!r} in sys.modules)"]
    found: str = warm.run(words, cwd=folder, capture_output=True, text=True, **{"env": os.environ, **more}).stdout
    return found


def test_a_forked_program_has_its_own_limits_mask_and_random_numbers(tmp_path, monkeypatch):
    code = "import os, random, resource, uuid\nprint(resource.getrlimit(resource.RLIMIT_CORE), os.umask(0))\n"
    code += "print(random.random(), uuid.uuid4())"
    limit, mask = resource.getrlimit(resource.RLIMIT_CORE), os.umask(0o27)
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, limit[1]))
        words = [sys.executable, "-c", code]
        one, two = (
            warm.run(words, cwd=tmp_path, env=os.environ, capture_output=True, text=True).stdout.splitlines()
            for _ in range(2)
        )
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, limit)
        os.umask(mask)
    assert one[0] == two[0] == f"{(0, limit[1])} {0o27}"
    assert one[1] != two[1]


def test_warm_process_ends_with_its_pytest_process(tmp_path):
    code = "import os, sys\nfrom tests.support import warm\n"
    code += "warm.run([sys.executable, '-c', ''], env=os.environ)\n"
    code += "print(warm.WARM._process and warm.WARM._process.pid, flush=True)\n"
    code += "os.kill(os.getpid(), 9)"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(warm.ROOT), str(warm.SOURCE)])}
    done = warm.run([sys.executable, "-c", code], fresh=True, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    if done.stdout != "None\n":
        eventually(lambda: not psutil.pid_exists(int(done.stdout)), 20, what="the end of the warm process")


PAGE = "before\n<!-- quick rows -->\n<!-- end of quick rows -->\nafter\n"
Tests = dict[str, dict[str, Any]]


def seen(name: str, **more: object) -> dict[str, Any]:
    return {"what": f"kill -9 of {name}", "holds": "all of it", "slow": False, "outcome": "passed", "mode": "", **more}


def one(name: str, **more: object) -> Tests:
    return {f"tests/faults/test_{name}.py::test_{name}": seen(name, **more)}


def rows(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("| ") and line not in HEAD.splitlines()]


def test_a_row_counts_all_of_its_tests() -> None:
    tests = one("one", lost=0, doubles=1, back=[0.1, 0.3]) | one("two", lost=2, doubles=0, back=[1.5])
    line = line_of("2", tests)
    assert line.startswith("| 2 | kill -9 of one | all of it | 2 |  | 2 | 1 | 300 ms | 1.5 s | 1.5 s | holds |")
    assert "| faults/test_one.py, faults/test_two.py |" in line


def test_a_row_names_its_modes_and_how_long_each_took() -> None:
    ran = one("one", mode="1", lost=0, doubles=0, back=[0.1]) | one("two", mode="prefetch", outcome="failed")
    assert "| 2 | 1: 100 ms, prefetch **broken** | 0 | 0 | 100 ms |" in line_of("2", ran)


def test_a_fault_test_runs_in_each_of_its_modes_in_as_many_days() -> None:
    monday = date(2026, 11, 23)
    for modes in (tuple(MODES), ("1", "prefetch")):
        days = [chosen("tests/test_some.py::test_one", modes, monday + timedelta(days)) for days in range(len(modes))]
        assert sorted(days) == sorted(modes)
    names = [f"tests/test_some.py::test_{number}" for number in range(100)]
    assert {chosen(name, tuple(MODES), monday) for name in names} == set(MODES)


def test_one_failed_test_breaks_its_row() -> None:
    assert "| **broken** |" in line_of("2", one("one") | one("two", outcome="failed"))


def test_a_complete_run_rewrites_the_table_and_a_partial_run_keeps_the_other_rows() -> None:
    first = {"10 more": line_of("10 more", one("ten")), "2": line_of("2", one("two"))}
    whole = with_lines(PAGE, "quick", first, partial=False)
    assert rows(whole) == [first["2"], first["10 more"]]
    assert whole.startswith("before\n")
    assert whole.endswith("after\n")

    again = {"10 more": line_of("10 more", one("ten", outcome="failed")), "4a": line_of("4a", one("four"))}
    assert rows(with_lines(whole, "quick", again, partial=True)) == [first["2"], again["4a"], again["10 more"]]
    assert rows(with_lines(whole, "quick", again, partial=False)) == [again["4a"], again["10 more"]]


def test_a_part_of_a_row_does_not_replace_all_of_it() -> None:
    all_of_it = {"2": line_of("2", one("one") | one("two"))}
    page = with_lines(PAGE, "quick", all_of_it, partial=False)
    part = {"2": line_of("2", one("one"))}
    assert with_lines(page, "quick", part, partial=True) == page
    assert rows(with_lines(page, "quick", part, partial=False)) == [part["2"]]


def test_a_percentile_is_one_of_the_values() -> None:
    assert share([3.0, 1.0, 2.0], 0.5) == 2.0
    assert share([3.0, 1.0, 2.0], 0.99) == 3.0


def tally_of(root: Path, *lines: str, jobs: int = 1) -> Tally:
    """Lines of the ledger: kind, number, pid, seconds; the master is pid 1."""
    (root / "pushed.0").write_text("".join(f"P {n} plain id{n}\n" for n in range(jobs)))
    words = [line.split() for line in lines]
    (root / "ledger").write_text("".join(f"{k} {n} 1 {pid} 1 {int(float(at) * 1e9)}\n" for k, n, pid, at in words))
    found = Tally(root)
    found.read()
    return found


def test_a_job_in_no_place_is_lost(tmp_path: Path):
    found = tally_of(tmp_path, "S 0 50 1.0", "S 1 51 1.0", "E 1 51 1.5", jobs=3)
    assert found.open(Counter({2: 1})) == [0]


def test_a_second_end_needs_a_reason(tmp_path: Path):
    found = tally_of(tmp_path, "S 0 50 1.0", "E 0 50 2.0", "S 0 51 3.0", "E 0 51 4.0")
    assert [double.reason for double in found.doubles()] == [""]
    found.ended.append(Ended(50, 2.1, "kill of its process"))
    assert [double.reason for double in found.doubles()] == ["kill of its process"]


def test_a_worker_that_outlives_its_killed_master_for_a_moment_may_end_a_job(tmp_path: Path):
    found = tally_of(tmp_path, "S 0 50 1.0", "E 0 50 2.0", "S 0 51 3.0", "E 0 51 4.0")
    found.ended.append(Ended(1, 1.95, "kill of its master"))
    assert [double.reason for double in found.doubles()] == [""]
    found.ended[0].until = 2.05
    assert [double.reason for double in found.doubles()] == ["kill of its master"]


def test_a_kill_in_the_next_job_is_no_reason(tmp_path: Path):
    found = tally_of(tmp_path, "S 0 50 1.0", "E 0 50 2.0", "S 1 50 2.05", "S 0 51 3.0", "E 0 51 4.0", jobs=2)
    found.ended.append(Ended(50, 2.1, "kill of its process"))
    assert [double.reason for double in found.doubles()] == [""]


def test_an_answer_may_wait_for_the_next_turn_as_long_as_allowed(tmp_path: Path):
    found = tally_of(tmp_path, "S 0 50 1.0", "E 0 50 2.0", "S 1 50 2.05", "S 0 51 3.0", "E 0 51 4.0", jobs=2)
    found.late = 0.1
    found.ended.append(Ended(50, 2.1, "kill of its process"))
    assert [double.reason for double in found.doubles()] == ["kill of its process"]


def test_several_jobs_of_one_process_are_told_apart(tmp_path: Path):
    """A kill explains those that were not answered: all that ended since the process last began one."""
    lines = ["S 0 50 1.0", "S 1 50 1.1", "S 2 50 1.2", "E 1 50 2.0", "E 0 50 2.1"]
    again = ["S 0 51 3.0", "E 0 51 3.1", "S 1 51 3.2", "E 1 51 3.3"]
    found = tally_of(tmp_path, *lines, *again, jobs=3)
    assert [run.n for run in found.running()] == [2]
    assert [run.next for run in (found.runs[0][0], found.runs[1][0])] == [float("inf")] * 2
    found.ended.append(Ended(50, 2.2, "kill of its process"))
    assert [double.reason for double in found.doubles()] == ["kill of its process"] * 2


def test_a_run_that_failed_neither_runs_nor_has_finished(tmp_path: Path):
    found = tally_of(tmp_path, "S 0 50 1.0", "X 0 50 1.1", "S 0 50 2.0", "E 0 50 2.1")
    assert (found.running(), found.finished(0)) == ([], 1)


def test_overlapping_runs_are_reported(tmp_path: Path):
    found = tally_of(tmp_path, "S 0 50 1.0", "S 0 51 1.5", "E 0 50 2.0", "E 0 51 2.5")
    assert found.overlaps == [0]


def test_new_whole_lines_are_read_and_partial_ones_are_not(tmp_path: Path):
    found = tally_of(tmp_path, "S 0 50 1.0")
    with (tmp_path / "ledger").open("a") as ledger:
        for text in ("E 0 1 50 1 20", "00000000\n"):
            ledger.write(text)
            ledger.flush()
            found.read()
    assert [run.ended for run in found.runs[0]] == [2.0]


def test_a_missing_commit_fails_with_what_to_do(tmp_path: Path):
    with pytest.raises(pytest.fail.Exception, match=r"commit 1234abcd is missing here; .*clone the whole history"):
        code_of("1234abcd", tmp_path)


BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """bench("report"): a module of the benchmark, which is not a package."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCH))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield load
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(BENCH)):
            del sys.modules[name]


def test_the_drain_table_shows_the_round_trip_time_of_each_row(bench: Any, server: Server, tmp_path: Path) -> None:
    module = bench("server")
    redis = module.Server(tmp_path)
    redis.client = module.Client(server.port)
    try:
        trip = redis.round_trip(50)
    finally:
        redis.client.close()
    assert 0 < trip < 1e6
    samples = {"drain": {"qd": [{"drain": 9000.0, "round_trip_us": 21.5}], "Laravel": [{"drain": 4000.0}]}}
    lines = bench("report").render({}, samples).splitlines()
    assert "|  | drain, 1 worker, jobs/s ↑ | a round trip to Redis (PING) before that drain, µs ↓ |" in lines
    assert "| **qd** | **9,000** | **21.5** |" in lines
    assert "| Laravel | 4,000 (2.2 x) | - |" in lines


def test_a_peer_that_is_too_slow_to_draw_is_named_in_the_chart(bench: Any) -> None:
    speeds = {"qd auto": 9000.0, "Sidekiq": 5000.0, "rq": 200.0}
    samples = {"drain": {name: [{"drain": speed}] for name, speed in speeds.items()}}
    facts = {"date": "2026-11-27 21:14 UTC", "machine": "2 CPUs, x", "qd": "abc1234"}
    (chart,) = bench("charts").charts(facts, samples).values()
    assert [bar.name for bar in chart.bars] == ["qd auto", "Sidekiq"]
    assert "Not drawn: rq 200." in bench("charts").drawn(chart)


def test_goals_compare_with_the_named_row(bench: Any) -> None:
    speeds = {"qd auto": 9000.0, "qd prefetch=1": 6000.0, "Sidekiq": 5000.0}
    samples = {"drain": {name: [{"drain": speed}] for name, speed in speeds.items()}}
    lines = bench("report").render({}, samples).splitlines()
    assert "| drain, 1 worker, jobs/s | qd prefetch=1 | ≥ 1 x Sidekiq | 1.20 x | yes |" in lines
    assert "| drain, 1 worker, jobs/s | qd auto | ≥ 1.7 x Sidekiq | 1.80 x | yes |" in lines
