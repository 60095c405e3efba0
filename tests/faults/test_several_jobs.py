"""Faults that hit a worker with many jobs in its hands, and a long storm of them: rows 49, 53 and 56 to 59.

The rows between them are in tests/process/worker/test_concurrency.py.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.support import processes
from tests.support.faults import work_on_another_host
from tests.support.fleet import MIXED, Fleet, Seat, judge, storm
from tests.support.ledger import JOBS, Ledger, number_in
from tests.support.network import Proxy
from tests.support.payloads import failed
from tests.support.processes import Procs, control_group
from tests.support.project import SOURCE, MakeProject, Project, ready
from tests.support.redis import Client
from tests.support.reliability import Figures
from tests.support.servers.redis import Server
from tests.support.waiting import eventually

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.leaves("queues:*:deaths")]

# Jobs last until the file `go` exists, except on another host. Each notes in `crashed` if a crash was counted against it.
MANY = (
    JOBS
    + """
import asyncio, multiprocessing, socket

def begin(n):
    mark("S", n)
    if crashes := json.loads(current_job().payload).get("crashes"):
        with open("crashed", "a") as file:
            file.write(f"{n} {crashes}\\n")

def waits():
    return socket.gethostname() != "elsewhere" and not os.path.exists("go")

@app.job("task", tries=1, timeout=0)
async def task(n: int) -> None:
    begin(n)
    while waits():
        await asyncio.sleep(0.05)
    mark("E", n)

@app.job("thread", tries=1, timeout=0)
def thread(n: int) -> None:
    begin(n)
    while waits():
        time.sleep(0.05)
    mark("E", n)

@app.job("hog", tries=1, timeout=0)
def hog(n: int) -> None:
    begin(n)
    kept = []
    while True:
        kept.append(bytearray(os.urandom(1000) * 2000))

def lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False

@app.job("family", tries=1, timeout=0)
def family(n: int) -> None:
    "Starts threads and processes, one of them in a session of its own; checks that those of its last attempt have ended."
    begin(n)
    pids = Path(f"pids.{n}")
    left = [pid for pid in pids.read_text().split() if lives(pid)] if pids.exists() else []
    if left:
        Path("left").write_text(" ".join(left))
    threading.Thread(target=time.sleep, args=(0.5,)).start()
    children = [subprocess.Popen(["sleep", "300"], start_new_session=own) for own in (False, True)]
    pids.write_text(" ".join(str(child.pid) for child in children))
    mark("F", n)
    while waits():
        time.sleep(0.05)
    for child in children:
        child.kill()
        child.wait()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(abs, (-n,)) == n
    mark("E", n)
"""
)


@pytest.fixture
def shop(project: MakeProject) -> Project:
    made = project(jobs=MANY, config='retry_after = "3s"\n')
    made.allowed |= {"go"}
    return made


def go(shop: Project) -> None:
    (shop.root / "go").touch()


def all_start(ledger: Ledger, count: int) -> None:
    eventually(lambda: len({note.n for note in ledger.starts()}) == count, 60, what=f"the start of {count} jobs")


def unspent(shop: Project, ledger: Ledger, *, guilty: int | None = None) -> None:
    """No attempt and no crash was counted against a job that is not to blame."""
    assert {note.attempt for note in ledger.starts()} == {1}
    crashed = shop.root / "crashed"
    shop.allowed.add("crashed")
    counted = {int(line.split()[0]) for line in crashed.read_text().splitlines()} if crashed.exists() else set()
    assert counted <= {guilty}, f"crashes were counted against {sorted(counted)}"


# -- the host


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.socket) as made:
        yield made


def holds_64(ledger: Ledger, work: Procs, contained: bool) -> list[int]:
    """One job runs and 64 are held. The keeper is stopped, because it would take them back."""
    master = psutil.Process(processes.namespace_init(work) if contained else work.pid)
    master.send_signal(signal.SIGUSR2)
    work.child("qd: worker 0 paused")
    work.child("qd: keeper").suspend()
    ledger.push(1, job="thread")
    ledger.push(1100)  # a worker takes up to 1/16 of what waits
    master.send_signal(signal.SIGCONT)
    all_start(ledger, 1)
    eventually(lambda: len(ledger.leases()) == 65, what="65 reserved jobs")
    return [0]


def runs_100(ledger: Ledger, work: Procs, contained: bool) -> list[int]:
    ledger.push(50, job="task")
    ledger.push(50, job="thread")
    all_start(ledger, 100)
    return ledger.pushed[:]


LOST = {"held": (holds_64, ("--prefetch", "65")), "running": (runs_100, ("--concurrency", "100"))}


@pytest.mark.fault(
    "49",
    "a host is lost with 64 jobs held, or 100 running: its network cut, all its processes stopped, or its container killed",
    "another host takes them over at the end of their leases (times: from there to the start of the last that ran); no "
    "attempt and no crash is counted; nothing that was held runs twice",
)
@pytest.mark.modes("1", why="its options name the mode: one case holds 64 jobs, the other runs 100")
@pytest.mark.leaves("qd:masters", "queues:*:owners")  # of the lost host, for an hour
@pytest.mark.parametrize("what", LOST)
@pytest.mark.parametrize("how", ["network", "stopped", "container"])
def test_jobs_of_a_lost_host_go_on_elsewhere(
    how: str,
    what: str,
    shop: Project,
    ledger: Ledger,
    server: Server,
    proxy: Proxy,
    figures: Figures,
    redis: Client,
) -> None:
    fill, options = LOST[what]
    shop.url = proxy.url
    shop.config('retry_after = "3s"\n')
    within = processes.new_namespace() if how == "container" else ()
    work = ready_within(shop, within, *options)
    running = fill(ledger, work, how == "container")
    until, gone = lost(work, how, proxy, redis)
    shop.url = server.url
    shop.config('retry_after = "3s"\n')
    other = work_on_another_host(shop, "-w", "1", *options)
    ledger.wait_all(60)
    last = max(ledger.starts(n)[-1].at for n in running) - time.monotonic() + time.time() - until
    if how == "stopped":
        for process in gone:
            process.resume()
    elif how == "network":
        proxy.heal()
    go(shop)
    if how != "container":
        eventually(lambda: len({note.n for note in ledger.ends() if note.n in running}) == len(running), 20)
        work.stop(seconds=40)
    else:
        (shop.run / "qd/default.1.live").unlink()  # nobody was left to remove it
    other.stop()
    assert not ledger.lost()
    assert set(ledger.doubles()) | set(ledger.overlaps()) <= set(running), "what was held ran twice"
    unspent(shop, ledger)
    figures.add(lost=0, doubles=len(ledger.doubles()), back=[last], p99=5.0)


def ready_within(shop: Project, within: list[str] | tuple[str, ...], *options: str) -> Procs:
    work = shop.work("-w", "1", *options, within=within)
    work.wait_line("master.ready", 60)
    return work


def lost(work: Procs, how: str, proxy: Proxy, redis: Client) -> tuple[float, list[psutil.Process]]:
    """Lose the host. Returns when the last of its leases ends (unix time), and its processes if they are stopped."""
    stopped = []
    if how == "network":
        proxy.silence()
        work.child("qd: keeper").resume()
    elif how == "stopped":
        stopped = work.session()
        for process in stopped:
            process.suspend()
    else:
        os.kill(processes.namespace_init(work), signal.SIGKILL)
        work.process.wait(20)
    reserved = redis.text("ZRANGE", "queues:default:reserved", "-1", "-1", "WITHSCORES")
    return float(reserved[1]), stopped


# -- one worker


SEVERAL = pytest.mark.modes("concurrency", why="the row is about jobs that run at the same time")


@SEVERAL
@pytest.mark.leaves("queues:*:failed", "queues:*:failed_at", "queues:*:owners")
@pytest.mark.fault(
    "53",
    "one of 50 jobs of a worker uses all the memory of its cgroup, repeatedly",
    "the kernel kills the worker; the 49 others are done with nothing spent; the one fails as out of memory (time: until "
    "the others are done)",
)
def test_one_of_fifty_jobs_uses_all_memory(shop: Project, ledger: Ledger, figures: Figures, redis: Client) -> None:
    with control_group("memory", f"qd-test-{os.getpid()}") as small:
        work = ready_within(shop, small.words, "--concurrency", "50", "--memory", "0")
        ledger.push(25, job="task")
        ledger.push(24, job="thread")
        all_start(ledger, 49)
        own = int(small.read("memory.current" if small.v2 else "memory.usage_in_bytes"))
        small.limit("memory.limit_in_bytes", "memory.max", own + 60_000_000)
        (hog,) = ledger.push(job="hog")
        work.wait_line("jobs.requeued .*suspects=50", 40)
        at = time.monotonic()
        go(shop)
        work.wait_line("job.failed .*job=hog", 60)
        eventually(lambda: len({note.n for note in ledger.ends()}) == 49, 60, what="the end of the others")
        back = max(note.at for note in ledger.ends()) - at
        assert not work.matches("(keeper|template).died")
        work.stop()
    ((record, _),) = failed(redis)
    assert "out of memory" in record["reason"]
    ledger.conserve()
    unspent(shop, ledger, guilty=hog)
    figures.add(lost=len(ledger.lost()), doubles=0, back=[max(0.0, back)])


@SEVERAL
@pytest.mark.leaves("queues:*:owners")
@pytest.mark.fault(
    "56",
    "another program takes over one of 50 running jobs: its lease is lost",
    "that job gets LeaseLost, which is logged; it runs again, and the others once",
)
def test_one_of_fifty_jobs_loses_its_lease(shop: Project, ledger: Ledger, figures: Figures, redis: Client) -> None:
    work = ready(shop, "--concurrency", "50")
    ledger.push(25, job="task")
    ledger.push(25, job="thread")
    all_start(ledger, 50)
    (member,) = [text for text in redis.call("ZRANGE", "queues:default:reserved", 0, -1) if number_in(text) == 7]
    redis.call("ZREM", "queues:default:reserved", member)
    work.wait_line("job.lease_lost .*job=task")
    redis.call("RPUSH", "queues:default", member)
    redis.call("RPUSH", "queues:default:notify", "1")
    go(shop)
    ledger.wait_all()
    work.stop()
    assert len(work.matches("lease_lost")) == 1
    assert sorted(note.n for note in ledger.starts()) == sorted([*ledger.pushed, 7])
    unspent(shop, ledger)
    ledger.conserve()
    figures.tell(ledger)


@pytest.mark.leaves("queues:*:owners")
@pytest.mark.fault(
    "58",
    "a job that starts threads and processes of its own, one in another session, among others; kill -9 of the worker",
    "before it runs again, they have ended; in the end it and the others are done",
)
def test_what_one_of_several_jobs_has_started_ends_with_the_worker(
    shop: Project, ledger: Ledger, figures: Figures
) -> None:
    shop.allowed |= {"pids.0", "pids.1", "left", "crashed"}
    work = ready(shop, "--max-crashes", "1000")
    ledger.push(2, job="family")
    ledger.push(4, job="thread")
    families = lambda: [note for note in ledger.notes if note.kind == "F"]  # noqa: E731
    ledger.kill(eventually(families, 40, what="a job with processes of its own")[0].pid)
    go(shop)
    ledger.wait_all()
    work.stop()
    assert not (shop.root / "left").exists(), "a process of the killed attempt was alive"
    assert {note.attempt for note in ledger.starts()} == {1}
    ledger.conserve(doubles=ledger.in_flight())
    figures.tell(ledger)


# -- jobs with effects among them

EFFECTS = """
import json

def note(*words):
    fd = os.open("witness", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, (" ".join(map(str, words)) + "\\n").encode())
    os.close(fd)

def rest():
    end = time.monotonic() + 60
    while not Path("go").exists() and time.monotonic() < end:
        time.sleep(0.02)

@app.job("step", tries=1)
def step(name: str) -> None:
    note("S", name, os.getpid(), current_job().attempt)
    rest()
    note("E", name, os.getpid(), current_job().attempt)

@app.job("single", tries=1, unique="{name}")
def single(name: str) -> None:
    note("S", name, os.getpid(), current_job().attempt)
    rest()
    note("E", name, os.getpid(), current_job().attempt)
"""

SEND = """
import jobs
from jobs import app, single, step
app.batch(*(step.bind(f"batch{n}") for n in range(6)), then=step.bind("then"), finally_=step.bind("finally")).dispatch()
for n in range(3):
    app.chain(*(step.bind(f"chain{n}.{link}") for link in range(3))).dispatch()
for n in range(4):
    single.dispatch(f"single{n}")
app.dispatch(*(step.bind(f"plain{n}") for n in range(20)))
app.connections.close_all()
"""
NAMES = [
    *(f"batch{n}" for n in range(6)),
    *("then", "finally"),
    *(f"chain{n}.{link}" for n in range(3) for link in range(3)),
    *(f"single{n}" for n in range(4)),
    *(f"plain{n}" for n in range(20)),
]


@pytest.mark.leaves("qd:batch:*", "queues:*:owners")
@pytest.mark.fault(
    "57",
    "kill -9 of a worker with jobs of a batch, steps of chains, unique and plain jobs, five times",
    "callbacks and steps are sent once, each job ends once with its first attempt, and the locks are free again",
)
def test_jobs_with_effects_among_others_keep_them(project: MakeProject, figures: Figures, redis: Client) -> None:
    shop = project(jobs=EFFECTS, config='retry_after = "10s"\n')
    shop.allowed |= {"witness", "go"}
    work = ready(shop, "--max-crashes", "1000", "--timeout", "0")
    shop.python(SEND)
    witness, killed = shop.root / "witness", set[int]()

    def running() -> int:
        lines = witness.read_text().splitlines() if witness.exists() else []
        pids = {int(line.split()[2]) for line in lines if line.startswith("S")} - killed
        return pids.pop() if pids else 0

    for _ in range(5):
        pid = eventually(running, 40, what="a job in another worker")
        killed.add(pid)
        os.kill(pid, signal.SIGKILL)
    again = "from jobs import app, single\nprint(single.dispatch('single0'))\napp.connections.close_all()"
    shop.python(again)  # it waits: this one is refused
    (shop.root / "go").touch()

    def ends() -> list[list[str]]:
        return [line.split()[1:] for line in witness.read_text().splitlines() if line.startswith("E")]

    eventually(lambda: {name for name, _, _ in ends()} == set(NAMES), 60, what="the end of every job")
    eventually(lambda: not redis.call("ZCARD", "queues:default:reserved"), what="every answer")
    assert sorted(name for name, _, _ in ends()) == sorted(NAMES)
    assert {attempt for _, _, attempt in ends()} == {"1"}
    shop.python(again)
    eventually(lambda: len(ends()) == len(NAMES) + 1, what="the unique job once more")
    work.stop()
    figures.add(lost=0, doubles=0)


# -- all of it


@pytest.mark.fault(
    "59",
    "thousands of jobs of ten kinds, also in bursts, while workers, keepers and masters of two programs are killed",
    "nothing lost or failed, no attempt spent by an innocent job; only jobs held at a kill run twice",
)
@pytest.mark.leaves("queues:*:deaths", "qd:batch:*")
@pytest.mark.parametrize(
    "count", [pytest.param(2_000, id="2,000"), pytest.param(100_000, id="100,000", marks=pytest.mark.slow)]
)
def test_jobs_of_all_kinds_are_conserved(
    count: int, project: MakeProject, figures: Figures, redis: Client, mode: str
) -> None:
    shop = project(jobs=MIXED, config='retry_after = "10s"\n')
    seats = [Seat("one", SOURCE), Seat("other", SOURCE)]
    # A worker with several jobs answers 10 ms late, or one job late; a busy machine makes more of it.
    late = 0.0 if mode == "1" else 0.5
    fleet = Fleet(shop, seats, seed=count, late=late, rate=100, burst=1.0, ahead=200)
    try:
        fleet.begin()
        storm(fleet, 2, count)
        judge(fleet, figures)
    finally:
        fleet.close()
