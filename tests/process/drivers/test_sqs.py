"""`qd work` on SQS (moto), with Redis for what SQS cannot store."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.support.processes import Procs
from tests.support.project import MakeProject, Project, ready
from tests.support.servers.redis import Server
from tests.support.servers.sqs import Sqs
from tests.support.waiting import eventually
from tests.support.witness import NOTE, JobsOnlyProject

JOBS = f"""{NOTE}
@app.job("step")
def step(name: str, seconds: float = 0.0) -> None:
    note(name)
    time.sleep(seconds)

@app.job("sometimes", queue="orders.fifo", tries=3, backoff=1)
def sometimes(name: str, fails: int = 0) -> None:
    note(name, current_job().attempt)
    if current_job().attempt <= fails:
        raise ValueError("not yet")

@app.job("dies", queue="orders.fifo")
def dies(name: str) -> None:
    note(name)
    if not Path("died").exists():
        Path("died").touch()
        os.kill(os.getpid(), 9)
"""


class Shop(JobsOnlyProject):
    """On SQS, with its control connection on Redis."""

    connection = "sqs"

    def __init__(self, project: Project, sqs: Sqs, server: Server) -> None:
        super().__init__(project)
        self.sqs, self.server = sqs, server
        project.allowed |= {"died"}
        self.write()

    def write(self, *, control: str = "redis", queue: str = "mail", options: str = "", lease: int = 30) -> None:
        (self.project.root / "qd.toml").write_text(
            f'[qd]\napp = "jobs:app"\ndefault = "sqs"\ncontrol = "{control}"\n'
            f'[connections.redis]\nurl = "{self.server.url}"\n'
            f'[connections.file]\nurl = "sqlite:///{self.project.root}/control.sqlite"\n'
            f'[connections.sqs]\nurl = "{self.sqs.url}{options}"\nqueue = "{queue}"\nretry_after = {lease}\n'
        )


@pytest.fixture
def shop(project: MakeProject, sqs: Sqs, server: Server, monkeypatch: pytest.MonkeyPatch) -> Shop:
    for name, value in sqs.credentials.items():
        monkeypatch.setenv(name, value)
    client = sqs.client()
    client.create_queue(QueueName="mail")
    client.create_queue(QueueName="orders.fifo", Attributes={"FifoQueue": "true"})
    client.close()
    return Shop(project(jobs=JOBS), sqs, server)


@pytest.mark.parametrize("control", ["redis", "file"])
def test_chains_batches_unique_keyed_and_delayed_jobs_go_through_the_control_connection(
    shop: Shop, control: str
) -> None:
    shop.write(options="&longest_delay=0", control=control)
    if control == "file":
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
        """
    )
    work = ready(shop.project)
    wanted = {"first", "second", "one", "two", "all", "unique", "in its place", "late"}
    eventually(lambda: set(shop.notes()) >= wanted, 40)
    eventually(shop.empty)
    work.stop()
    assert sorted(shop.notes()) == sorted(wanted)
    assert shop.notes().index("first") < shop.notes().index("second")


def test_a_fifo_group_keeps_its_order_while_a_job_is_tried_again_dies_and_fails(shop: Shop) -> None:
    shop.python(
        """
        group = {"tags": ["group:a"]}
        sometimes.using(**group).dispatch("a1", fails=1)
        dies.using(**group).dispatch("a2")
        sometimes.using(**group).dispatch("a3", fails=9)
        sometimes.using(**group).dispatch("a4")
        """
    )
    work = ready(shop.project, "orders.fifo", workers=2)
    eventually(lambda: "a4 1" in shop.notes(), 60)
    eventually(shop.empty)
    assert shop.notes() == ["a1 1", "a1 2", "a2", "a2", "a3 1", "a3 2", "a3 3", "a4 1"]
    assert work.matches(r"worker.died .*how=\"signal 9")
    (failed,) = json.loads(shop.project.quick("failed", "list", "--json").stdout)
    assert (failed["job"], failed["queue"], failed["attempts"]) == ("sometimes", "orders.fifo", 3)
    assert shop.project.quick("failed", "retry", failed["id"]).exit_code == 0
    eventually(lambda: shop.notes().count("a3 1") == 2, 40)
    work.stop()


def test_a_job_over_its_timeout_is_ended_and_tried_again(shop: Shop) -> None:
    shop.python('stuck.dispatch("s")')
    work = ready(shop.project)
    eventually(lambda: shop.notes() == ["s 1", "s 2"], 40)
    (failed,) = eventually(lambda: json.loads(shop.project.quick("failed", "list", "--json").stdout), 20)
    assert failed["error"] == "JobTimeout"
    work.stop()


def test_gaps_of_a_connection_are_logged_at_the_start_and_an_outage_once(shop: Shop) -> None:
    shop.write(lease=3)
    work = ready(shop.project)
    assert work.matches("standard queues keep no order")
    shop.sqs.kill()
    work.wait_line("sqs.away", 40)
    assert shop.project.quick("restart", "--rolling").exit_code == 0
    work.wait_line("master.reloaded", 40)  # the master still reads orders from the control connection
    shop.sqs.start()
    client = shop.sqs.client()
    client.create_queue(QueueName="mail")
    client.close()
    work.wait_line("sqs.back", 40)
    shop.python('step.dispatch("after it")')
    eventually(lambda: shop.notes() == ["after it"], 40)
    work.stop()
    assert len(work.matches("sqs.away error=")) == 1  # a queue that does not exist yet may be logged as well


def test_ticks_of_the_schedule_send_their_jobs_to_sqs(shop: Shop) -> None:
    shop.project.jobs(JOBS + 'app.schedule(step.bind("tick")).every(1)\n')
    work = ready(shop.project)
    eventually(lambda: shop.notes().count("tick") > 1, 40)
    work.stop()
    assert work.matches("job=step")


# -- what is wrong at the start


def refused(shop: Shop, **env: str) -> Procs:
    work = shop.project.work("-w", "1", **env)
    work.ends_clean(code=78, seconds=40)
    return work


def no_queue(shop: Shop) -> dict[str, str]:
    shop.write(queue="nope")
    return {}


def no_control(shop: Shop) -> dict[str, str]:
    shop.write(control="sqs")
    return {}


def no_credentials(shop: Shop) -> dict[str, str]:
    return {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "HOME": str(shop.project.root)}


def wrong_url(shop: Shop) -> dict[str, str]:
    shop.write(options="&suffux=x")
    return {}


WRONG: dict[str, tuple[Callable[[Shop], dict[str, str]], str]] = {
    "no such queue": (no_queue, r"queue 'nope' does not exist: .*create-queue --queue-name nope"),
    "no control": (no_control, r"connection 'sqs' \(sqs\) keeps jobs and nothing else: name a connection with driver"),
    "no credentials": (no_credentials, r"no credentials for SQS at .*: give them by AWS_ACCESS_KEY_ID"),
    "a wrong url": (wrong_url, r"unknown option 'suffux' in an SQS url .*did you mean 'suffix'"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_one_line_at_the_start(shop: Shop, what: str) -> None:
    make, message = WRONG[what]
    work = refused(shop, **make(shop))
    assert work.matches(message)
    assert not work.matches("testing-secret")


def test_a_dead_letter_queue_that_takes_jobs_too_soon_is_logged(shop: Shop) -> None:
    client = shop.sqs.client()
    dead = client.create_queue(QueueName="dead")["QueueUrl"]
    arn = client.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 2})
    mail = client.get_queue_url(QueueName="mail")["QueueUrl"]
    client.set_queue_attributes(QueueUrl=mail, Attributes={"RedrivePolicy": policy})
    client.close()
    work = shop.project.work_off()
    assert work.matches(r"connection.warning .*after 2 receives \(maxReceiveCount\)")
    assert "after 2 receives" in shop.project.qd("doctor").stdout
