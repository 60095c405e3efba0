"""Encrypted jobs in a real `qd work`: keys, changed payloads, and that no log line, record or command shows a value."""

from __future__ import annotations

import json
import signal

import pytest

from qd.payload.build import make
from qd.payload.encryption import sealed
from tests.support.payloads import failed, push, push_raw
from tests.support.project import MakeProject, Project, ready
from tests.support.redis import FAILED, Client
from tests.support.waiting import eventually
from tests.support.witness import JOBS, Witness

pytestmark = pytest.mark.usefixtures("clean_redis")
OLD = "2026a:MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
NEW = "2026b:YW5vdGhlciBrZXkgb2YgZXhhY3RseSAzMiBieXRlcyE="
CONFIG = '\n[encryption]\nkeys = ["{}"]\n'
CARD = "4111-1111"

SHOP = (
    JOBS
    + """
from qd import Fail, Job
from qd.events import JobFailed

@app.job("pay", encrypted=True, tries=2, backoff=0)
def pay(card: str, how: str = "") -> None:
    note("pay", card, current_job().arguments["card"], current_job().attempt)
    if how == "raises":
        try:
            raise KeyError(card)
        except KeyError as error:
            error.add_note(card)
            raise ValueError(card) from error
    if how == "fails":
        current_job().fail(card)
    if how == "gives up":
        raise Fail(card)
    if how == "hangs":
        time.sleep(30)
    if how == "dies" and Path("witness").read_text().count("pay dies") == 1:
        os._exit(9)
    if how == "forks" and os.fork() == 0:
        raise ValueError(card)

@app.job("apay", encrypted=True)
async def apay(card: str) -> None:
    raise ValueError(card)

@app.job("hooked", encrypted=True, result_ttl=60)
class Hooked(Job[None]):
    card: str

    def handle(self) -> None:
        raise ValueError(self.card)

    def failed(self, error: BaseException) -> None:
        note("failed", self.card, error)
        raise OSError(self.card)

@app.job("typed", encrypted=True)
def typed(card: int) -> None: ...
"""
)


@pytest.fixture
def shop(project: MakeProject) -> Project:
    return project(jobs=SHOP, config=CONFIG.format(NEW))


def encrypted(key: str, card: str = CARD) -> bytes:
    return make("pay", sealed(b'{"card":"%b"}' % card.encode(), [key], "pay"), created_at=1795225685)


def shown(shop: Project, *words: str) -> str:
    done = shop.quick(*words)
    assert done.exit_code == 0, done.output
    return done.output


# -- keys


def test_a_job_waits_for_its_key_and_runs_once_the_key_is_added(shop: Project, witness: Witness, redis: Client) -> None:
    push_raw(redis, encrypted(OLD))
    work = ready(shop)
    fix = "add it to keys = of \\[encryption\\], then `qd restart`"
    work.wait_line(f"job.released .* reason=.*encrypted with the key '2026a' that this program does not have: {fix}")
    push_raw(redis, encrypted(NEW, "new"))
    witness.wait("pay new")
    assert "or had its key" in shown(shop, "why", json.loads(encrypted_id(redis))["id"])
    shop.config(CONFIG.format(f'{NEW}", "{OLD}'))
    work.signal(signal.SIGHUP)
    witness.wait(f"pay {CARD} {CARD} 1")
    eventually(lambda: not redis.call("ZCARD", "queues:default:reserved"))
    work.stop()
    assert not failed(redis)


def encrypted_id(redis: Client) -> bytes:
    (member,) = redis.call("ZRANGE", "queues:default:delayed", 0, -1)
    return bytes(member)


@FAILED
def test_a_job_whose_key_never_comes_fails_and_its_retry_runs_with_the_key(
    shop: Project, witness: Witness, redis: Client
) -> None:
    push_raw(redis, encrypted(OLD))
    work = ready(shop, "--unroutable-ttl", "1s")
    work.wait_line("job.failed .*ConfigError: its arguments are encrypted with the key '2026a'", 40)
    work.stop()
    ((record, payload),) = failed(redis)
    assert b'"encrypted":"eyJ' in payload
    shop.config(CONFIG.format(OLD))
    assert shop.qd("failed", "retry", str(record["id"])).returncode == 0
    shop.work_off()
    assert witness.lines == [f"pay {CARD} {CARD} 1"]


def test_keys_are_rotated_without_losing_a_job(shop: Project, witness: Witness) -> None:
    shop.config(CONFIG.format(OLD))
    work = ready(shop)
    for n, keys in enumerate([(OLD,), (OLD, NEW), (NEW, OLD), (NEW,)]):
        shop.config(CONFIG.format('", "'.join(keys)))
        work.signal(signal.SIGHUP)
        work.wait_line("master.reloaded", count=n + 1)
        shop.python(f"from jobs import pay\npay.dispatch('{n}')")
        witness.wait(f"pay {n}")
    work.stop()


@FAILED
def test_changed_arguments_fail_and_no_code_of_the_job_runs(shop: Project, witness: Witness, redis: Client) -> None:
    push_raw(redis, encrypted(NEW.replace("YW5v", "AW5v")), make("pay", b'{"encrypted":"x"}', created_at=1795225685))
    work = shop.work_off()
    assert not witness.lines
    assert {record["error"] for record, _ in failed(redis)} == {"DecryptionRefused"}
    assert len(work.matches("job.failed .*DecryptionRefused: its ")) == 2


def test_jobs_that_were_sent_before_the_option_run(shop: Project, witness: Witness, redis: Client) -> None:
    push(redis, "pay", card="plain")
    shop.work_off()
    assert witness.lines == ["pay plain plain 1"]


def test_signed_jobs_are_encrypted_first(shop: Project, witness: Witness, redis: Client) -> None:
    shop.config(CONFIG.format(NEW) + '[signing]\nkeys = ["a:a-secret-of-this-shop"]\n')
    shop.python(f"from jobs import pay\npay.dispatch('{CARD}')")
    shop.work_off()
    assert witness.lines == [f"pay {CARD} {CARD} 1"]


# -- what follows a job


@pytest.mark.leaves("qd:batch:*", "qd:batches")
def test_chains_batches_schedules_and_crashes_keep_jobs_encrypted(
    shop: Project, witness: Witness, redis: Client
) -> None:
    shop.python(
        "from jobs import app, pay\n"
        "app.chain(pay.bind('chain1'), pay.bind('chain2')).dispatch()\n"
        "app.batch(pay.bind('batch1'), pay.bind('batch2'), then=pay.bind('then')).dispatch()\n"
        "pay.dispatch('dies', how='dies')\n"
    )
    everything = redis.everything()
    assert "then" in everything
    assert not [word for word in ("chain1", "chain2", "batch1", '"dies"') if word in everything]
    shop.config(CONFIG.format(NEW) + '[schedule.entries.e]\njob = "pay"\nevery = 1\nargs = {card = "tick"}\n')
    work = ready(shop)
    for card in ("chain1", "chain2", "batch1", "batch2", "then", "tick"):
        witness.wait(f"pay {card}")
    witness.wait("pay dies", 2)
    assert "<encrypted>" in shown(shop, "schedule", "list")
    work.stop()
    redis.call("DEL", *redis.keys())


# -- messages


@FAILED
@pytest.mark.parametrize("options", [(), ("--concurrency", "4"), ("--log-level", "debug")])
def test_no_message_of_an_encrypted_job_is_logged_or_kept(
    shop: Project, witness: Witness, redis: Client, options: tuple[str, ...]
) -> None:
    shop.python(
        "from jobs import *\n"
        f"for how in ('raises', 'fails', 'forks', 'gives up'): pay.dispatch('{CARD}', how)\n"
        f"pay.using(timeout=1).dispatch('{CARD}', 'hangs')\n"
        f"apay.dispatch('{CARD}')\nHooked(card='{CARD}').dispatch()\n\n"
        f"for data in ({{'card': '{CARD}'}}, {{'{CARD}': 1}}):\n"
        "    app.queue('default').push('typed', data, encrypted=True)\n"
    )
    work = shop.work_off(*options, "--unroutable-ttl", "1")
    assert witness.starting("failed") == [f"failed {CARD} {CARD}"]
    records = {(record["job"], record["error"]): record for record, _ in failed(redis)}
    assert records.keys() == {
        ("pay", "ValueError"),
        ("pay", "JobFailure"),
        ("pay", "JobTimeout"),
        ("typed", "WrongType"),
        ("typed", "UnknownParameters"),
        ("apay", "ValueError"),
        ("hooked", "ValueError"),
    }
    own = ("JobTimeout", "UnknownParameters")
    assert {record["reason"] for (_, error), record in records.items() if error not in own} == {""}
    assert "its encrypted arguments do not fit" in str(records["typed", "UnknownParameters"]["reason"])
    assert "timeout" in str(records["pay", "JobTimeout"]["reason"])
    trace = str(records["pay", "ValueError"]["trace"])
    assert ", in pay\n" in trace
    assert "KeyError\n\nThe above exception" in trace
    everything = redis.everything()
    assert '"error": "ValueError"' in everything.replace('":"', '": "')  # the result of `hooked`, and records
    assert CARD not in f"{everything}{work.tail(1000)}"
    assert work.matches("job.failed .* error=ValueError")
    assert len(work.matches("job.failed .* job=pay .* error=JobFailure")) == 2
    for record, _ in failed(redis):
        assert CARD not in shown(shop, "failed", "show", str(record["id"]))
    mine = redis.text("KEYS", "qd:*")
    redis.call("DEL", *mine)


@FAILED
def test_messages_are_kept_on_request(shop: Project, witness: Witness, redis: Client) -> None:
    shop.config(CONFIG.format(NEW) + "keep_messages = true\n")
    shop.python(f"from jobs import pay\npay.using(tries=1).dispatch('{CARD}', 'raises')")
    work = shop.work_off()
    assert witness.lines
    ((record, _),) = failed(redis)
    assert (record["reason"], CARD in str(record["trace"])) == (CARD, True)
    assert work.matches(f'job.failed .* error="ValueError: {CARD}')


# -- commands


@FAILED
@pytest.mark.leaves("queues:*")
def test_commands_show_no_arguments_and_the_configuration_no_keys(shop: Project, redis: Client) -> None:
    push_raw(redis, encrypted(NEW))
    assert "<encrypted>" in shown(shop, "peek", "default")
    (job,) = json.loads(shown(shop, "peek", "default", "--json"))["jobs"]
    assert job["arguments"] == "<encrypted>"
    redis.call("DEL", "queues:default", "queues:default:notify")
    assert shown(shop, "config", "check").endswith("checks the entries of its schedule\n")
    text = shown(shop, "config", "show")
    assert "2026b:***" in text
    assert NEW.partition(":")[2] not in text
    shop.config(CONFIG.format("a:c2hvcnQ="))
    done = shop.quick("config", "check")
    assert (done.exit_code, "c2hvcnQ" in done.output) == (78, False)
    assert "qd.toml:9: the encryption key a is not 32 bytes as base64 (`openssl rand -base64 32`" in done.output
