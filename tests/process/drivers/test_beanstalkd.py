"""`qd work` on beanstalkd: what the control connection stores, and workers killed between any two calls."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator

import greenstalk
import pytest

from tests.support.project import MakeProject, Project, ready
from tests.support.redis import Client
from tests.support.servers.beanstalkd import Beanstalkd
from tests.support.servers.redis import Server
from tests.support.waiting import eventually
from tests.support.witness import NOTE, JobsOnlyProject

pytestmark = pytest.mark.leaves("qd:at:tubes:*", "qd:restart", "qd:schedule:last")

JOBS = f"""{NOTE}
@app.job("step")
def step(name: str, seconds: float = 0.0, size: int = 0) -> None:
    time.sleep(seconds)
    note(name)

@app.job("held")
def held(name: str) -> None:
    while not Path("go").exists():
        time.sleep(0.01)
    note(name)

@app.job("again", tries=3)
def again(name: str, times: int = 1) -> None:
    note(name, current_job().attempt)
    if current_job().attempt <= times:
        current_job().release(0)
"""

KILLED = """
from qd.drivers.beanstalkd.broker import Beanstalkd
from qd.drivers.broker.queue import BrokerQueue

def once_killed(owner, name, before, always=False):
    whole = getattr(owner, name)
    def body(self, *words, **more):
        result = None if before else whole(self, *words, **more)
        try:
            if "qd: worker" in open(f"/proc/{os.getpid()}/cmdline").read() and (before or result or always):
                os.unlink("kill")
                os.kill(os.getpid(), 9)
        except FileNotFoundError:
            pass
        return whole(self, *words, **more) if before else result
    setattr(owner, name, body)
"""
POINTS = {
    "reserved, not leased": "once_killed(Beanstalkd, 'reserve', before=False)",
    "leased, not begun": "once_killed(Beanstalkd, 'keep_reserved', before=True)",
    "answered, not deleted": "once_killed(Beanstalkd, 'delete', before=True)",
    "deleted, and not known": "once_killed(Beanstalkd, 'delete', before=False, always=True)",
    "put back, not sent on": "once_killed(Beanstalkd, 'send', before=True)",
    "sent on, not taken out": "once_killed(Beanstalkd, 'send', before=False)",
}


class Shop(JobsOnlyProject):
    connection = "tubes"

    def __init__(self, project: Project, url: str, control: str) -> None:
        super().__init__(project)
        self.url, self.control = url, control
        project.allowed |= {"kill", "go"}
        self.write()

    def write(self, *, control: str = "control", lease: int = 30, more: str = "") -> None:
        (self.project.root / "qd.toml").write_text(
            f'[qd]\napp = "jobs:app"\ndefault = "tubes"\ncontrol = "{control}"\n{more}\n'
            f'[connections.control]\nurl = "{self.control}"\n'
            f'[connections.tubes]\nurl = "{self.url}"\nretry_after = {lease}\n'
        )

    def wait_noted(self, wanted: Iterable[str]) -> None:
        eventually(lambda: set(self.notes()) >= set(wanted), 40, what=f"all of {wanted}")


@pytest.fixture
def shop(project: MakeProject, beanstalkd: Beanstalkd, server: Server, clean_redis: object) -> Shop:
    return Shop(project(jobs=JOBS), beanstalkd.url, server.url)


@pytest.mark.parametrize("control", ["redis", "sqlite"])
def test_chains_batches_unique_keyed_and_late_jobs_go_through_the_outbox(shop: Shop, control: str) -> None:
    if control == "sqlite":
        shop.control = f"sqlite:///{shop.project.root}/control.sqlite"
        shop.write()
        assert shop.project.quick("migrate").exit_code == 0
    shop.python(
        """
        app.chain(step.bind("first"), step.bind("second")).dispatch()
        app.batch(step.bind("one"), step.bind("two"), then=step.bind("all")).dispatch()
        single.dispatch("unique"); single.dispatch("again")
        step.using(key="k", delay=600).dispatch("moved")
        step.using(key="k", delay=1).dispatch("in its place")
        step.using(delay=1).dispatch("late")
        step.using(key="gone", delay=1).dispatch("never")
        app.keyed(step, "gone").cancel()
        again.dispatch("twice")
        """
    )
    work = ready(shop.project)
    wanted = {"first", "second", "one", "two", "all", "unique", "in its place", "late", "twice 1", "twice 2"}
    shop.wait_noted(wanted)
    eventually(shop.empty)
    work.stop()
    assert sorted(shop.notes()) == sorted(wanted)
    assert shop.notes().index("first") < shop.notes().index("second")


def last_number(beanstalkd: Beanstalkd) -> int:
    """The server's count of jobs, whatever it has seen before."""
    with beanstalkd.client() as client:
        number: int = client.put(b"")
        client.delete(number)
        return number


def done_twice(numbers: range) -> list[str]:
    return [f"job{n} {attempt}" for n in numbers for attempt in (1, 2)]


@pytest.mark.parametrize("point", POINTS)
def test_a_worker_that_is_killed_between_two_calls_loses_nothing_and_repeats_nothing(
    project: MakeProject, beanstalkd: Beanstalkd, server: Server, clean_redis: object, point: str
) -> None:
    shop = Shop(project(jobs=f"{JOBS}\n{KILLED}\n{POINTS[point]}\n"), beanstalkd.url, server.url)
    shop.python("for n in range(6): again.dispatch(f'job{n}')")
    wanted, kill = done_twice(range(6)), shop.project.root / "kill"
    kill.touch()
    work = ready(shop.project, workers=2)
    shop.wait_noted(wanted)
    for more in range(6, 60, 6):
        if not kill.exists():
            break  # else no worker has come to that point: its keeper was just sending, and has sent on all of them
        shop.python(f"for n in range({more}, {more + 6}): again.dispatch(f'job{{n}}')")
        wanted += done_twice(range(more, more + 6))
        shop.wait_noted(wanted)
    eventually(shop.empty)
    work.wait_line("worker.died")
    work.stop()
    assert Counter(shop.notes()) == Counter(wanted)


def test_a_job_whose_connection_broke_runs_on_and_no_second_time(shop: Shop, beanstalkd: Beanstalkd) -> None:
    number = last_number(beanstalkd) + 1
    shop.python("held.dispatch('long')")
    work = ready(shop.project, workers=2)
    eventually(lambda: work.children("held since"), 20)
    beanstalkd.kill()
    beanstalkd.start()
    with beanstalkd.client() as client:
        eventually(lambda: client.stats_job(number)["releases"], 30, what="another worker that has put it back")
    (shop.project.root / "go").touch()
    eventually(lambda: shop.notes() == ["long"], 30)
    eventually(shop.empty, 30)
    work.stop()
    assert shop.notes() == ["long"]


def test_a_job_that_has_ended_while_beanstalkd_is_away_is_acked_and_does_not_come_again(
    shop: Shop, beanstalkd: Beanstalkd, redis: Client
) -> None:
    """Though its worker is killed before beanstalkd is back."""
    shop.python("held.dispatch('long')")
    work = ready(shop.project)
    eventually(lambda: work.children("held since"), 20)
    beanstalkd.kill()
    (shop.project.root / "go").touch()
    eventually(lambda: shop.notes() == ["long"], 30)
    eventually(lambda: redis.call("HLEN", "qd:at:tubes:queues:default:owners") == 0, 20)
    work.children("qd: worker")[0].kill()
    work.wait_line("worker.died")
    beanstalkd.start()
    shop.python("step.dispatch('next')")
    eventually(lambda: "next" in shop.notes(), 30)
    eventually(shop.empty, 30)
    work.stop()
    assert shop.notes() == ["long", "next"]
    assert not work.matches("job.requeued|lease_lost")


def test_the_current_job_is_touched(shop: Shop, beanstalkd: Beanstalkd) -> None:
    """For PHP's workers, who know nothing of leases."""
    shop.write(lease=2)
    before = last_number(beanstalkd)
    shop.python("step.dispatch('long', seconds=5.0)")
    work = ready(shop.project)
    left = list[int]()

    def looked() -> bool:
        with beanstalkd.client() as client:
            for number in range(before + 1, before + 9):
                try:
                    found = client.stats_job(number)
                except greenstalk.NotFoundError:
                    continue
                if found["state"] == "reserved":
                    left.append(int(found["time-left"]))
                break
        return bool(shop.notes())

    eventually(looked, 30, every=0.3)
    work.stop()
    assert left
    assert min(left) >= 0


def test_a_job_over_its_timeout_is_ended_and_tried_again(shop: Shop) -> None:
    shop.python("stuck.dispatch('stuck')")
    work = ready(shop.project)
    eventually(lambda: shop.project.quick("failed", "list", "--json").stdout.count("JobTimeout") == 1, 30)
    eventually(shop.empty)
    work.stop()
    assert shop.notes() == ["stuck 1", "stuck 2"]


def test_the_schedule_sends_its_jobs(
    project: MakeProject, beanstalkd: Beanstalkd, server: Server, clean_redis: object
) -> None:
    entry = '\napp.schedule(step.bind("tick")).every_second().name("tick")\n'
    shop = Shop(project(jobs=JOBS + entry), beanstalkd.url, server.url)
    work = ready(shop.project)
    eventually(lambda: shop.notes().count("tick") >= 2, 30)
    assert shop.project.quick("health").exit_code == 0
    shop.project.quick("pause")
    eventually(lambda: work.matches("schedule.sent") and not work.children("step since"))
    shop.project.quick("resume")
    assert shop.project.quick("restart").exit_code == 0
    work.ends_clean()


@pytest.fixture
def small(tmp_path: object) -> Iterator[Beanstalkd]:
    with Beanstalkd("-z", "2000") as server:
        yield server


def test_a_job_that_the_server_finds_too_large_is_one_line(
    project: MakeProject, small: Beanstalkd, server: Server, clean_redis: object
) -> None:
    shop = Shop(project(jobs=JOBS), small.url, server.url)
    done = shop.project.qd("dispatch", "step", "--data", json.dumps({"name": "x" * 3000}))
    assert done.returncode != 0
    assert "-z" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    shop.python("app.batch(step.bind('small'), then=step.bind('y' * 3000)).dispatch()")
    work = ready(shop.project)
    eventually(lambda: shop.notes() == ["small"], 20)
    eventually(lambda: shop.project.quick("failed", "list", "--json").stdout.count('"TooLarge"') == 1)
    eventually(shop.empty)
    work.stop()


def test_a_forgetful_server_and_buried_jobs_are_logged_at_the_start(
    project: MakeProject, server: Server, clean_redis: object
) -> None:
    """A server without a binlog, and buried jobs that no worker will run."""
    with Beanstalkd(binlog=False) as forgetful:
        shop = Shop(project(jobs=JOBS), forgetful.url, server.url)
        with forgetful.client() as client:
            client.put(b"{}")
            client.bury(client.reserve())
        work = shop.project.work_off()
        assert work.matches("connection.warning .*has no binlog: jobs are lost when it stops")
        assert work.matches("connection.warning .*tube 'default' has a job that another program has buried")
        output = " ".join(shop.project.qd("doctor").stdout.split())
        assert "has no binlog" in output
        assert "has buried" in output


def wrong(shop: Shop, server: Server, what: str) -> list[str]:
    if what == "no memory":
        shop.write(control="tubes")
    elif what == "option":
        shop.url += "?prio=1"
        shop.write()
    elif what == "path":
        shop.url += "/mail"
        shop.write()
    return ["a,b c"] if what == "tube" else ["default"]


WRONG: dict[str, str] = {
    "no memory": "keeps jobs and nothing else: name a connection with driver redis or database as control",
    "option": "unknown option 'prio' in a beanstalkd url",
    "path": "a beanstalkd url is written beanstalkd://host:11300",
    "tube": "'b c' cannot be a tube of beanstalkd",
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_one_line_at_the_start(shop: Shop, server: Server, what: str) -> None:
    queues = wrong(shop, server, what)
    work = shop.project.work("-w", "1", *queues)
    work.ends_clean(code=78)
    lines = [line for line in work.lines if WRONG[what] in line]
    assert len(lines) == 1, work.tail()


def test_a_server_that_is_not_beanstalkd_is_reported(shop: Shop, server: Server) -> None:
    shop.url = f"beanstalkd://127.0.0.1:{server.port}"
    shop.write()
    done = shop.project.qd("dispatch", "step", "name=a")
    assert done.returncode != 0
    assert "does not answer like beanstalkd" in done.stderr
