"""A tick is taken by one scheduler, not before its time, and its job is sent in the same step or not at all."""

from __future__ import annotations

import time

import pytest
from msgspec.structs import replace

from qd.drivers.redis.queue import RedisQueue
from qd.drivers.types import Claim, Claimed, Outgoing
from qd.errors import QdError, ServerBusy
from tests.contract.conftest import ONE
from tests.contract.keyspace.test_queue import job
from tests.support.redis import Client, Seen

one_place = pytest.mark.parametrize("place", ONE, indirect=True)
pytestmark = pytest.mark.leaves("qd:ticks", "qd:unique:*")
LOCK = "schedule:report"
KINDS = {
    "at once": Outgoing("a", job(1)),
    "later": Outgoing("a", job(1), 60.0),
    "unique": Outgoing("a", job(1), 0.0, LOCK, "id1", 60.0),
    "unique and later": Outgoing("a", job(1), 60.0, LOCK, "id1", 60.0),
    "keyed": Outgoing("a", job(1, qd={"key": "00000.id1 report"}), 60.0, key="00000.id1 report"),
}
kinds = pytest.mark.parametrize("sent", KINDS.values(), ids=KINDS)


def now_ms() -> int:
    return int(time.time() * 1000)


def claim(after: bytes = b"1 x m", before: bytes = b"", *, at: int = 0, sent: Outgoing | None = None, field="report"):
    return Claim(sent.queue if sent else "", field, before, after, at, sent)


def take(queue: RedisQueue, *claims: Claim) -> list[Claimed]:
    return queue.ticks.begin(claims)()


def jobs_of(seen: Seen) -> int:
    return len(seen.ready("a")) + len(seen.delayed("a"))


@kinds
def test_the_first_claim_takes_the_tick_and_later_ones_get_the_new_field(queue, seen, sent):
    (first,) = take(queue, claim(b"1 x m", sent=sent))
    elsewhere = replace(sent, queue="b")  # a deploy moved it to another queue
    for second in take(queue, claim(b"1 y m", sent=sent)) + take(queue, claim(b"1 y m", sent=elsewhere)):
        assert (second.taken, second.found) == (False, b"1 x m")
    assert (first.taken, first.holder) == (True, "")
    assert jobs_of(seen) == 1
    assert queue.ticks.read(["report", "other"]) == [b"1 x m", b""]


@kinds
def test_a_future_tick_is_not_taken(queue, seen, sent):
    (answer,) = take(queue, claim(at=now_ms() + 3_600_000, sent=sent))
    assert (answer.taken, answer.early) == (False, True)
    assert abs(answer.now - time.time()) < 60
    assert jobs_of(seen) == 0
    assert queue.ticks.page(0) == (0, {})


def test_a_thousand_claims_in_one_call_each_have_an_answer(queue, seen):
    take(queue, claim(b"5 other m", field="f7", sent=KINDS["at once"]))
    claims = [claim(field=f"f{n}", sent=KINDS["at once"]) for n in range(1001)]
    answers = take(queue, *claims, claim(field="mine"), claim(field="later", sent=KINDS["later"]))
    assert [n for n, each in enumerate(answers) if not each.taken] == [7]
    assert answers[7].found == b"5 other m"
    assert (len(seen.ready("a")), seen.tokens("a"), len(seen.delayed("a"))) == (1001, 1001, 1)
    found, at = dict[str, bytes](), 0
    while (paged := queue.ticks.page(at))[0]:
        at = paged[0]
        found.update(paged[1])
    found.update(paged[1])
    assert (len(found), found["mine"], found["f7"]) == (1003, b"1 x m", b"5 other m")
    queue.ticks.forget([name for name in found if name != "mine"])
    assert queue.ticks.page(0) == (0, {"mine": b"1 x m"})


def test_claims_are_processed_in_the_order_in_which_they_were_begun(queue, seen):
    sent = KINDS["at once"]
    take(queue, claim(field="before", sent=sent))  # the first call of a script may need a second one to load it
    first = queue.ticks.begin([claim(b"1 x m", sent=sent)])
    second = queue.ticks.begin([claim(b"1 y m", sent=sent), claim(field="other", sent=sent)])
    assert queue.ticks.read(["report", "other"]) == [b"1 x m", b"1 x m"], "other calls are allowed in between"
    third = queue.ticks.begin([claim(b"2 x m", b"1 x m", sent=sent)])
    assert [(answer.taken, answer.found) for answer in second()] == [(False, b"1 x m"), (True, None)]
    assert [answer.taken for each in (third, first) for answer in each()] == [True, True]
    assert jobs_of(seen) == 4


@one_place
def test_a_tick_whose_unique_job_waits_is_taken_and_sends_nothing(queue, seen):
    take(queue, claim(b"1 x m", sent=KINDS["unique"]))
    other = replace(KINDS["unique"], owner="id2")
    (answer,) = take(queue, claim(b"2 x m", b"1 x m", sent=other))
    assert (answer.taken, answer.holder) == (True, "id1")
    assert jobs_of(seen) == 1
    assert queue.ticks.read(["report"]) == [b"2 x m"]


@one_place
def test_each_of_many_unique_jobs_acquires_its_own_lock(queue, seen):
    single = KINDS["unique"]
    several = [claim(field=f"f{n}", sent=replace(single, lock=f"{LOCK}{n // 2}", owner=f"id{n}")) for n in range(4)]
    answers = take(queue, several[0], claim(field="g", sent=KINDS["at once"]), *several[1:])
    assert [each.holder for each in answers] == ["", "", "id0", "", "id2"]
    assert seen.client.text("GET", f"qd:unique:{LOCK}1") == "id2"


@one_place
def test_a_keyed_job_of_a_tick_replaces_the_waiting_one(queue, seen):
    take(queue, claim(b"1 x m", sent=KINDS["keyed"]))
    other = Outgoing("a", job(2, qd={"key": "00000.id2 report"}), 60.0, key="00000.id2 report")
    take(queue, claim(b"2 x m", b"1 x m", sent=other))
    assert list(seen.delayed("a")) == [other.payload]


# -- a server that rejects


def contents(queue: RedisQueue, admin: Client) -> dict[str, str]:
    found = {}
    for key in admin.text("KEYS", "*"):
        kind = admin.text("TYPE", key)
        how = {"hash": ("HGETALL",), "list": ("LRANGE", 0, -1), "zset": ("ZRANGE", 0, -1), "string": ("GET",)}[kind]
        found[key] = repr(admin.text(how[0], key, *how[1:]))
    found.pop("queues:a:notify", None)  # a surplus token is harmless
    return found


@one_place
@kinds
@pytest.mark.parametrize("kind", ["", "delayed", "keyed", "notify", "ticks"])
def test_a_key_of_the_wrong_type_leaves_no_partial_changes(queue, seen, sent, kind):
    before = claim(b"1 x m", sent=sent)
    wrong = "qd:ticks" if kind == "ticks" else seen.key("a", kind)
    seen.client.call("SET", wrong, "strange")
    was = contents(queue, seen.client)
    (answer,) = take(queue, before)
    used = answer.taken
    seen.client.call("DEL", wrong)
    if used:
        return  # that kind of job does not use this key
    assert isinstance(answer.refused, QdError)
    was.pop(wrong, None)
    assert contents(queue, seen.client) == was
    assert take(queue, before)[0].taken, "the same claim with the unchanged field succeeds"


@one_place
@kinds
@pytest.mark.parametrize("lacks", ["rpush", "zadd", "hset", "set", "hmget"])
def test_a_claim_without_a_needed_right_changes_nothing(server, queue, seen, sent, lacks):
    take(queue, claim(b"0 x m", sent=KINDS["at once"], field="report"))
    seen.client.call("DEL", seen.key("a"), seen.key("a", "notify"))
    was = contents(queue, seen.client)
    seen.client.call("ACL", "SETUSER", "default", f"-{lacks}")
    try:
        (answer,) = take(queue, claim(b"1 x m", b"0 x m", sent=sent))
    finally:
        seen.client.call("ACL", "SETUSER", "default", "+@all")
    if not answer.taken:
        assert answer.refused is not None
        assert contents(queue, seen.client) == was


@one_place
@kinds
def test_a_full_server_takes_no_tick(queue, seen, sent):
    seen.client.call("CONFIG", "SET", "maxmemory", 1)
    try:
        (answer,) = take(queue, claim(sent=sent))
    finally:
        seen.client.call("CONFIG", "SET", "maxmemory", 0)
    assert isinstance(answer.refused, ServerBusy)
    assert contents(queue, seen.client) == {}
