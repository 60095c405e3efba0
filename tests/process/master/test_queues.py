"""The queues that `qd work` serves: the named ones in order, else in turn all that the app declares on the connection."""

from __future__ import annotations

import signal

import pytest

from tests.support.payloads import push
from tests.support.project import MakeProject, Project, ready
from tests.support.redis import Client

pytestmark = pytest.mark.usefixtures("clean_redis")

JOBS = """
@app.job("shop.tidy")
def tidy(): ...

@app.job("orders.confirm", queue="mail")
def confirm(): ...

@app.job("orders.remind", queue="mail")
def remind(): ...

@app.job("films.cut", queue="media")
def cut(): ...

@app.job("else.where", queue="away", connection="other")
def where(): ...

app.schedule(tidy.using(queue="nightly").bind()).daily()
"""
DONE = r"job.done queue=(?P<queue>\S+) job=(?P<job>\S+) "
OTHER = '[connections.other]\nurl = "redis://127.0.0.1:1"\n'
POOLS = '[pools.mail]\nqueues = ["mail"]\n[pools.films]\nqueues = ["media"]\nconnection = "redis"\n'


@pytest.fixture
def shop(project: MakeProject) -> Project:
    return project(jobs=JOBS, config=OTHER)


def test_without_names_every_declared_queue_of_the_connection_is_served(shop: Project, redis: Client) -> None:
    push(redis, "orders.confirm", queue="mail")
    push(redis, "films.cut", queue="media")
    push(redis, "shop.tidy", queue="nightly")
    work = shop.work_off()
    assert work.matches("master.started .* queues=default,mail,media,nightly ")
    done = {(line["queue"], line["job"]) for line in work.matches(DONE)}
    assert done == {("mail", "orders.confirm"), ("media", "films.cut"), ("nightly", "shop.tidy")}
    assert not work.matches("queue.unserved")


def test_once_takes_a_job_of_any_declared_queue(shop: Project, redis: Client) -> None:
    push(redis, "films.cut", queue="media")
    work = shop.work("--once", "-w", "0")
    work.ends_clean()
    assert work.matches("queues=default,mail,media,nightly ")
    assert [line["job"] for line in work.matches(DONE)] == ["films.cut"]


def test_a_word_in_the_configuration_or_on_the_command_line_is_an_order(shop: Project) -> None:
    assert shop.work_off("media", "mail").matches("queues=media,mail ")
    assert shop.work_off(QD_QUEUES="mail").matches("queues=mail ")
    shop.config(OTHER + '[worker]\nqueues = ["media"]\n')
    assert shop.work_off().matches("queues=media ")


def test_with_names_the_start_warns_about_declared_queues_that_are_not_served(shop: Project) -> None:
    work = shop.work_off("default", "nightly")
    assert work.matches("WARNING .*queue.unserved queue=mail jobs=orders.confirm,orders.remind$")
    assert work.matches("WARNING .*queue.unserved queue=media jobs=films.cut$")
    assert len(work.matches("queue.unserved")) == 2


def test_a_pool_serves_its_queues_and_the_command_without_a_pool_all_others(shop: Project) -> None:
    shop.config(OTHER + POOLS)
    rest = shop.work_off()
    assert rest.matches("queues=default,nightly ")
    mail = shop.work_off("--pool", "mail")
    assert mail.matches("queues=mail ")
    assert not rest.matches("queue.unserved")
    assert [line["queue"] for line in mail.matches("queue.unserved queue=(?P<queue>\\S+)")] == ["default", "nightly"]


def test_where_pools_serve_every_queue_a_pool_has_to_be_named(shop: Project) -> None:
    shop.config(OTHER + POOLS + '[pools.rest]\nqueues = ["default", "nightly"]\n')
    work = shop.work("-w", "1")
    assert work.wait(60) == 78
    assert work.matches(
        "app.refused .*pools serve every queue .*'redis' \\(default, mail, media, nightly\\).*--pool NAME"
    )


def test_a_reload_serves_the_queues_that_new_code_declares(shop: Project, redis: Client) -> None:
    work = ready(shop, "--no-schedule")
    shop.jobs(JOBS + '\n@app.job("late.one", queue="late")\ndef late(): ...\n')
    work.signal(signal.SIGHUP)
    work.wait_line("master.reloaded")
    push(redis, "late.one", queue="late")
    work.wait_line("job.done queue=late job=late.one ")
    work.stop()


LIMITED = """
from qd.middleware import RateLimited

@app.job("shop.tidy")
def tidy(): ...

@app.job("films.cut", queue="media", middleware=[RateLimited("film")])
def cut(): ...

"""


def test_a_limit_that_is_not_declared_ends_the_start_where_its_job_would_run(shop: Project) -> None:
    shop.jobs(LIMITED + 'app.limit("films", 5, per=60)\n')
    refused = shop.work("-w", "1")
    assert refused.wait(60) == 3
    assert refused.matches(
        r"app.import_failed app=jobs:app error=\"job 'films.cut' can never run: no limit 'film' is declared \(known: films\)"
    )
    assert not refused.matches("Traceback|trace=")
    assert shop.work_off("default").matches("queue.unserved queue=media ")  # nothing of it runs here
    shop.jobs(LIMITED + 'app.limit("film", 5, per=60)\n')
    shop.work_off()


def test_a_reload_to_a_job_without_its_limit_keeps_the_old_code(shop: Project) -> None:
    work = ready(shop, "--no-schedule")
    shop.jobs(LIMITED)
    work.signal(signal.SIGHUP)
    work.wait_line("master.reload_refused")
    work.stop()
