"""`qd restart` on a running `qd work`, and the connection that stores the stamp."""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.support.deployment import push
from tests.support.keeper import wait_for_reports
from tests.support.network import Proxy
from tests.support.processes import Procs
from tests.support.project import MakeProject, Project, idle
from tests.support.redis import Client
from tests.support.servers.redis import Server
from tests.support.waiting import eventually
from tests.support.witness import JOBS, Witness

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.leaves("qd:restart")]


def masters(shop: Project) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(shop.qd("status", "--json").stdout)["masters"]
    return found


# -- restart


@pytest.mark.parametrize("state", ["idle", "busy", "paused by a signal", "paused by command", "down"])
def test_restart_is_seen_soon_whatever_it_does(shop: Project, witness: Witness, redis: Client, state: str) -> None:
    work = idle(shop, "--sleep", "60", workers=2)
    if state == "busy":
        push(redis, "slow", {"seconds": 2.5})
        witness.wait("start")
    elif state == "paused by a signal":
        work.signal(signal.SIGUSR2)
        eventually(lambda: len(work.children(" paused")) == 2)
    elif state != "idle":
        assert shop.qd(*(["down"] if state == "down" else ["pause", "default"])).returncode == 0
    assert shop.qd("restart").returncode == 0
    work.wait_line("master.stopping reason=.qd restart", 20)  # 2 on a machine that is not busy
    work.ends_clean(code=0)
    assert witness.starting("end") if state == "busy" else not witness.lines
    redis.call("DEL", "qd:down", "queues:default:paused")


def test_a_stamp_of_before_the_start_is_no_restart_and_nor_is_one_that_vanishes(
    shop: Project, witness: Witness, redis: Client
) -> None:
    shop.qd("restart")
    work = idle(shop)
    stamp = redis.text("GET", "qd:restart")
    for change in (("DEL", "qd:restart"), ("SET", "qd:restart", stamp), ("SET", "qd:restart", "soon")):
        redis.call(*change)
        before = len(witness.lines)
        push(redis, "quick", {})
        witness.wait("quick", before + 1)
        wait_for_reports(redis, 1.5)
    assert work.process.poll() is None
    shop.qd("restart")
    work.ends_clean()


def test_a_restart_during_the_import_counts(project: MakeProject, redis: Client) -> None:
    wait = "while not Path('go').exists():\n    time.sleep(0.01)\n"
    shop = project(jobs="print('importing', flush=True)\n" + wait + JOBS)
    shop.allowed.add("go")
    work = shop.work("-w", "1")
    eventually(lambda: "importing" in work.output, 20)
    shop.qd("restart")
    (shop.root / "go").touch()
    work.wait_line("master.stopping reason=.qd restart")
    work.ends_clean()


def test_a_rolling_restart_keeps_the_master_and_moves_its_boot_time(
    shop: Project, witness: Witness, redis: Client
) -> None:
    work = idle(shop, workers=2)
    # A report may be a second old: wait until it has both workers.
    (before,) = eventually(lambda: [each for each in masters(shop) if str(each["workers"]).count("'pid'") == 2])
    old = {child.pid for child in work.children("qd: worker")}
    done = shop.qd("restart", "--rolling", "--wait", "40s")
    assert done.returncode == 0, done.stdout
    assert re.fullmatch(rf"\S+: 2 workers replaced after \S+, pid {work.pid} stays\n", done.stdout)
    (after,) = masters(shop)
    assert (after["token"], after["pid"]) == (before["token"], before["pid"])
    assert float(str(after["booted_at"])) > float(redis.text("GET", "qd:restart").split()[0])
    eventually(lambda: len({child.pid for child in work.children("qd: worker")} - old) == 2)
    work.stop()
    assert len(work.matches("master.reloading")) == 1


def test_a_rolling_restart_with_another_configuration_is_one_restart(shop: Project, witness: Witness) -> None:
    """A new keeper reads the same stamp again, while the new workers boot."""
    shop.jobs(JOBS + "\nfrom qd.events import WorkerStarting\napp.on(WorkerStarting)(lambda event: time.sleep(0.5))\n")
    work = idle(shop)
    shop.config('[worker]\nqueues = ["other", "default"]')
    shop.qd("restart", "--rolling")
    work.wait_line("master.reloaded")
    eventually(lambda: len(work.children("waiting on other,default")) == 1)
    shop.qd("restart")  # the keeper of the new settings listens too
    work.ends_clean()
    assert len(work.matches("master.reloading")) == 1


class Supervisor:
    """Starts `qd work` again whenever it has ended, as supervisord does."""

    def __init__(self, shop: Project, *arguments: str, respawn: bool = True) -> None:
        self.shop, self.arguments, self.respawn = shop, arguments, respawn
        self.starts: list[Procs] = [shop.work(*arguments)]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            if self.starts[-1].process.poll() is not None and self.respawn:
                self.starts.append(self.shop.work(*self.arguments))

    def stop(self) -> None:
        self._over.set()
        self._thread.join(10)
        if self.starts[-1].process.poll() is None:
            self.starts[-1].stop()


@pytest.fixture
def supervised(shop: Project) -> Iterator[Callable[..., Supervisor]]:
    made: list[Supervisor] = []

    def start(*arguments: str, respawn: bool = True) -> Supervisor:
        made.append(Supervisor(shop, *arguments, respawn=respawn))
        made[-1].starts[0].wait_line("master.ready")
        return made[-1]

    yield start
    for one in made:
        one.stop()


def test_wait_ends_when_the_supervisor_has_restarted_every_master(
    shop: Project, witness: Witness, redis: Client, supervised: Callable[..., Supervisor]
) -> None:
    shop.config('[pools.mail]\nqueues = ["mail"]')
    one, other = supervised("-w", "1"), supervised("--pool", "mail", "-w", "1")
    eventually(lambda: len(redis.hash("qd:masters")) == 2)
    push(redis, "slow", {"seconds": 1})
    witness.wait("start")
    done = shop.qd("restart", "--wait", "40s")
    assert (done.returncode, done.stdout.count("back after")) == (0, 2), done.stdout
    assert witness.starting("end"), "a master was back before its job was done"
    assert len(one.starts) == len(other.starts) == 2
    assert one.starts[0].process.poll() == other.starts[0].process.poll() == 0


def test_wait_names_the_master_that_was_not_restarted(
    shop: Project, redis: Client, supervised: Callable[..., Supervisor]
) -> None:
    shop.config('[pools.mail]\nqueues = ["mail"]')
    supervised("-w", "1")
    supervised("--pool", "mail", "-w", "1", respawn=False)
    eventually(lambda: len(redis.hash("qd:masters")) == 2)
    done = shop.qd("restart", "--wait", "8s")
    assert done.returncode == 1
    assert [line.split("@")[0] for line in done.stdout.splitlines() if "not back" in line] == ["mail"]


# -- where notes live


def test_notes_on_a_control_connection_of_its_own(project: MakeProject, witness: Witness, redis: Client) -> None:
    with Server() as control:
        shop = project(jobs=JOBS)
        text = (shop.root / "qd.toml").read_text().replace("[qd]\n", '[qd]\ndefault = "redis"\ncontrol = "steer"\n')
        (shop.root / "qd.toml").write_text(text + f'[connections.steer]\nurl = "{control.url}"\n')
        seen = Witness(shop)
        work = idle(shop)
        client = control.client()
        eventually(lambda: client.call("HLEN", "qd:masters") == 1)
        shop.qd("down")
        eventually(lambda: work.children(" down"), 20)
        push(redis, "quick", {})
        shop.qd("up")
        seen.wait("quick")
        shop.qd("restart")
        work.ends_clean()
        assert redis.keys() == []
        client.close()


def test_restart_asks_masters_that_wait_for_redis_once_it_is_back(project: MakeProject) -> None:
    with Server() as own:
        shop = project(jobs=JOBS, url=own.url)
        work = idle(shop)
        own.kill()
        work.wait_line("redis.away")
        assert shop.qd("restart").returncode == 69
        own.start()
        work.wait_line("redis.back")
        assert shop.qd("restart").returncode == 0
        work.ends_clean()


def test_a_master_that_is_cut_off_is_named_and_restarts_once_it_is_back(project: MakeProject, server: Server) -> None:
    with Proxy(server.socket) as proxy:
        shop = project(jobs=JOBS, url=proxy.url)
        work = idle(shop)
        proxy.silence()
        work.wait_line("redis.away")

        def silent() -> str:
            done = shop.qd("restart", QD_REDIS_URL=server.url)
            assert done.returncode == 0
            return done.stdout if "no master reports" in done.stdout else ""

        said = eventually(silent, 60, what="a silent master")
        assert f"pid {work.pid}, has not reported for " in said
        assert "if it runs, it restarts once it reaches this server" in said
        assert not work.matches("master.stopping")
        proxy.heal()
        work.ends_clean()


# -- a stamp of another clock


@pytest.mark.parametrize("rolling", ["", " rolling"])
def test_a_stamp_ahead_of_the_servers_clock_restarts_no_new_master(
    shop: Project, witness: Witness, redis: Client, rolling: str
) -> None:
    ahead = int(redis.call("TIME")[0]) + 3600
    redis.call("SET", "qd:restart", f"{ahead}.000000{rolling}")
    work = idle(shop)
    work.child("qd: keeper").kill()  # the next one finds it, too
    work.wait_line("keeper.died")
    eventually(lambda: len(work.matches("restart.ahead")) == 2)
    push(redis, "quick", {})
    witness.wait("quick")
    wait_for_reports(redis, 1.5)
    assert work.process.poll() is None
    assert len(work.matches("restart.ahead")) == 2, "each keeper logs it once"
    assert not work.matches("master.reloading")
    redis.call(
        "SET", "qd:restart", f"{ahead + 1}.000000"
    )  # a changed value is a new order, whatever clock it came from
    work.wait_line("master.stopping reason=.qd restart")
    work.ends_clean(code=0)
