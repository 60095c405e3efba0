"""What earlier releases of qd have left on their servers (recorded.py): this version reads, shows, retries and runs it."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import msgspec
import pytest
import sqlalchemy as sql

from qd.drivers.database.schema import VERSION
from qd.payload.format import read
from tests.compat import recorded
from tests.compat.recorded import CONFIG, DONE, JOBS, KEYS, KINDS, LEFT, RELEASES, WITH, facts, golden, witnessed
from tests.support.programs import program
from tests.support.project import MakeProject, Project, ready
from tests.support.waiting import eventually


def payloads(release: str) -> dict[str, bytes]:
    folder = recorded.GOLDEN / f"qd-{release}" / "payloads"
    return {path.stem: path.read_bytes().removesuffix(b"\n") for path in sorted(folder.glob("*.json"))}


class Shop:
    """A project on the servers that a release has left."""

    def __init__(self, project: Project, release: str, store: str) -> None:
        self.project, self.release, self.store = project, release, store
        self.facts = facts(release)
        self.ids: dict[str, str] = self.facts[store]["ids"]
        project.allowed |= {
            "witness",
            *(name + more for name in ("failed.sqlite", "jobs.sqlite") for more in ("", "-shm", "-wal")),
        }

    def json(self, *words: str) -> Any:
        done = self.project.qd(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def python(self, code: str) -> str:
        return self.project.python(f"from jobs import *\n{code}").stdout.strip()

    def notes(self) -> Counter[str]:
        return Counter(witnessed(self.project.root))

    def counts(self, queue: str = "default") -> dict[str, int]:
        (found,) = [each for each in self.json("queues")["queues"] if each["name"] == queue]
        waiting = found["ready"] + found["delayed"]  # in a database a job that is due is ready
        return {"waiting": waiting, "reserved": found["reserved"], "failed": found["failed"]}

    def failed(self) -> dict[str, dict[str, Any]]:
        return {each["job"]: each for each in self.json("failed", "list")}


def stores(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "shop", [(release, name) for release in RELEASES for name in names], ids="-".join, indirect=True
    )


@pytest.fixture
def shop(request: pytest.FixtureRequest, project: MakeProject) -> Shop:
    release, store = request.param
    recorded_at = facts(release)[store]["recorded_at"]
    if store == "redis":
        made = project(jobs=JOBS, config=CONFIG)
        recorded.restore_redis(request.getfixturevalue("redis"), json.loads(golden(release, "redis.json")), recorded_at)
    elif store == "sqlite":
        made = project(jobs=JOBS, config=CONFIG, url="sqlite:///jobs.sqlite")
        recorded.restore_sqlite(made.root / "jobs.sqlite", golden(release, "sqlite.sql"), recorded_at)
    else:
        url = request.getfixturevalue("postgres_url")
        made = project(jobs=JOBS, config=CONFIG, url=url)
        recorded.restore_postgres(program("psql"), url, golden(release, "postgres.sql"), recorded_at)
    recorded.restore_sqlite(made.root / "failed.sqlite", golden(release, f"failed-{store}.sql"), recorded_at)
    return Shop(made, release, store)


def test_something_is_recorded_of_each_release():
    assert RELEASES
    for release in RELEASES:
        assert set(payloads(release)) <= set(KINDS)


@pytest.mark.parametrize("release", RELEASES)
def test_each_key_of_a_payload_is_read(release):
    for kind, raw in payloads(release).items():
        payload, written = read(raw), json.loads(raw)
        for key in written.keys() - {"data", "qd", "tags"}:
            assert getattr(payload, key) == written[key], (kind, key)
        assert json.loads(msgspec.json.encode(payload.qd)) == written.get("qd"), kind
    jobs = payloads(release)
    assert read(jobs["versioned"]).job_version == 2
    first = read(jobs["chain-results"]).qd
    assert first is not None
    assert first.chain[0].payload.count('"takes":') == 1
    assert read(jobs["own-options"]).backoffs == (2.0, 6.0, 18.0, 54.0, 162.0, 486.0, 600.0, 600.0)


@pytest.mark.parametrize("release", RELEASES)
def test_a_payload_of_each_kind_runs(release, project, redis):
    shop = project(jobs=JOBS)
    shop.allowed |= {"witness"}
    jobs = payloads(release)
    for kind, raw in jobs.items():
        redis.call("RPUSH", f"queues:{kind}", raw)
    shop.work_off(*jobs, **KEYS)
    assert Counter(witnessed(shop.root)) == Counter(line for kind in jobs for line in DONE[kind])
    assert not [key for key in redis.leftovers() if key.startswith("queues:")]


def shape(value: Any) -> Any:
    """The keys of a payload in their order, with the types of their values."""
    if isinstance(value, str) and value.startswith("{"):
        return shape(json.loads(value))
    if isinstance(value, dict):
        return [(key, shape(part)) for key, part in value.items()]
    return [shape(part) for part in value] if isinstance(value, list) else type(value).__name__


@pytest.mark.parametrize("kind", KINDS)
def test_today_s_payloads_have_the_keys_that_the_last_release_reads(kind, project, redis):
    shop = project(jobs=JOBS)
    shop.python(f"from jobs import *\n{KINDS[kind]}", **WITH.get(kind, {}))
    (raw,) = redis.call("LRANGE", f"queues:{kind}", 0, -1)
    assert shape(json.loads(raw)) == shape(json.loads(payloads(RELEASES[-1])[kind]))


@stores("redis", "sqlite", "postgres")
def test_failed_jobs_are_listed_shown_and_retried(shop):
    listed = shop.failed()
    assert {
        job: (each["error"], each["reason"], each["attempts"], each["crashes"]) for job, each in listed.items()
    } == {
        "boom": ("ValueError", "no such order", 2, 0),
        "dies": ("AttemptsExceeded", listed["dies"]["reason"], 1, 2),
        "part": ("ValueError", "not this part", 1, 0),
    }
    assert listed["dies"]["reason"].startswith("its worker died 2 times while running it (max_crashes 2)")
    assert json.loads(listed["boom"]["payload"])["id"] == shop.ids["boom"]
    assert json.loads(listed["part"]["payload"])["qd"]["batch"] == shop.ids["bad"]
    for job, each in listed.items():
        shown = shop.project.qd("failed", "show", each["id"])
        assert (shown.returncode, f'"job":"{job}"' in shown.stdout.replace('": ', '":')) == (0, True), shown.stdout
        assert each["reason"] in shown.stdout
    assert shop.project.qd("failed", "retry", *[each["id"] for each in listed.values()]).returncode == 0
    assert shop.failed() == {}
    shop.project.work_off()
    assert shop.notes() >= Counter({"boom b": 1, "dies d": 1, "part c": 1})


@stores("redis", "sqlite", "postgres")
def test_a_retry_removes_its_row_from_laravel_s_table(shop):
    assert shop.project.qd("failed", "retry", shop.failed()["boom"]["id"]).returncode == 0
    left = recorded.dump_sqlite(shop.project.root / "failed.sqlite")
    assert (left.count("INSERT INTO"), '"job":"boom"' in left) == (3, False)  # two rows, and the sequence


@stores("redis", "sqlite", "postgres")
def test_a_worker_finishes_what_was_ready_delayed_and_reserved(shop):
    assert shop.counts() == {"waiting": 13, "reserved": 1, "failed": 3}
    work = ready(shop.project, "default", "paused", workers=2)
    eventually(lambda: set(shop.notes()) >= LEFT, 40, what=f"{LEFT}")
    eventually(lambda: shop.counts() == {"waiting": 0, "reserved": 0, "failed": 3})
    assert shop.notes() == Counter(LEFT)  # each of them once, and nothing of the paused queue
    assert shop.project.qd("resume", "paused").returncode == 0
    eventually(lambda: "plain paused" in shop.notes())
    work.stop()


@stores("redis", "sqlite", "postgres")
def test_results_locks_batches_and_counts_are_read(shop):
    found = shop.python(
        f"""
ids = {shop.ids!r}
kept = app.handle(ids["kept"])
print(kept.result(), kept.progress_details(), [event.data for event in kept.events()])
good, bad = app.batch_of(ids["good"]).look(), app.batch_of(ids["bad"]).look()
print(good.name, good.total, good.pending, good.failed, bad.name, bad.total, bad.pending, bad.failed)
print(charge.dispatch(42).id == ids["charge"], app.keyed(remind, "order:42").due() is not None)
print(app.keyed(remind, "order:43").cancel(), app.lock("deploy", ttl=1).acquire(blocking=False))
print(app.limiter("api", 2, per=YEARS).left())
"""
    )
    assert found.splitlines() == [
        "42 {'message': 'scaling', 'of': 3} [{'token': 21}]",
        "good 2 1 0 bad 2 1 1",
        "True True",
        "True False",
        "1",
    ]
    assert "the provider is down" in json.dumps(shop.json("status"))
    assert "the provider is down" in shop.project.qd("events").stdout
    counted = shop.project.qd("metrics").stdout
    assert 'job="boom"' in counted
    (deploy,) = [each for each in shop.json("locks")["locks"] if "deploy" in json.dumps(each)]
    assert deploy
    shop.project.work_off()
    assert (shop.notes()["remind 42"], shop.notes()["remind 43"]) == (1, 0)


def tables(url: str) -> dict[str, Any]:
    """The columns and indexes of each table."""
    engine = sql.create_engine(url)
    try:
        found = sql.inspect(engine)
        return {
            name: (
                [(each["name"], str(each["type"]), each["nullable"]) for each in found.get_columns(name)],
                sorted((str(each["name"]), *each["column_names"]) for each in found.get_indexes(name)),
            )
            for name in found.get_table_names()
        }
    finally:
        engine.dispose()


@pytest.mark.parametrize("migrated", ["before", "now"])
@stores("sqlite", "postgres")
def test_tables_of_a_release_become_those_of_today_by_qd_migrate(shop, migrated, project, request):
    """The version in `VERSION` decides whether a migration is needed: tables of the same version are equal without it."""
    new = project(url="sqlite:///new.sqlite")
    new.allowed.add("new.sqlite")
    url = f"sqlite:///{new.root}/new.sqlite"
    if shop.store == "postgres":
        url = request.getfixturevalue("postgres").fresh_database()
        new.url = url
        new.config()
    assert new.qd("migrate").returncode == 0
    if migrated == "now" or shop.facts["tables"] != VERSION:
        assert shop.project.qd("migrate").returncode == 0
    assert shop.counts() == {"waiting": 13, "reserved": 1, "failed": 3}
    old = shop.project.url.replace("sqlite:///", f"sqlite:///{shop.project.root}/")
    there, today = tables(old), tables(url)
    assert {name: there[name] for name in today} == today
    assert there.keys() - today.keys() <= {"failed_jobs", "job_batches"}  # 0.9.0 made them for PHP, and they stay
    if shop.store == "postgres":
        request.getfixturevalue("postgres").drop(url)


@pytest.mark.parametrize("release", RELEASES)
def test_bodies_in_beanstalkd_run(release, project, beanstalkd):
    shop = project(jobs=JOBS, config=f'[connections.beanstalkd]\nurl = "{beanstalkd.url}"\n')
    shop.allowed |= {"witness"}
    with beanstalkd.client() as tubes:
        tubes.use("default")
        for body in json.loads(golden(release, "beanstalkd.json"))["bodies"]:
            tubes.put(body.encode())
    runs_both(shop, "beanstalkd")


@pytest.mark.parametrize("release", RELEASES)
def test_bodies_in_sqs_run(release, project, sqs):
    shop = project(jobs=JOBS, config=f'[connections.sqs]\nurl = "{sqs.url}"\n')
    shop.allowed |= {"witness"}
    client = sqs.client()
    queue = client.create_queue(QueueName="default")["QueueUrl"]
    for body in json.loads(golden(release, "sqs.json"))["bodies"]:
        client.send_message(QueueUrl=queue, MessageBody=body)
    client.close()
    runs_both(shop, "sqs", **sqs.credentials)


def runs_both(shop: Project, connection: str, **env: str) -> None:
    work = ready(shop, "-c", connection, workers=1, **env)
    wanted = {"tuned x 77 a b/c": 1, "report 7": 1}
    eventually(lambda: Counter(witnessed(shop.root)) == Counter(wanted), 40)
    work.stop()
