"""A note of how a worker died may be anybody's: its job is failed for what it is, and the worker that reads it goes on."""

from __future__ import annotations

import pytest

from tests.support.payloads import failed, push, push_raw
from tests.support.project import MakeProject
from tests.support.redis import FAILED, Client
from tests.support.witness import JOBS, Witness

pytestmark = pytest.mark.usefixtures("clean_redis")
NOTE = '{"death":{"verdict":"crash","more":'
DEEP = "[" * 700 + "]" * 700  # can be read, and not written again some frames deeper


@FAILED
@pytest.mark.parametrize(
    "note",
    ["[" * 100_000, NOTE + "[" * 100_000, NOTE + DEEP + "}}"],
    ids=["brackets", "brackets inside", "as deep as can be read"],
)
def test_a_note_that_is_nested_too_deep_ends_no_worker(project: MakeProject, redis: Client, note: str) -> None:
    shop = project(jobs=JOBS)
    witness = Witness(shop)
    payload = b'{"job":"quick","data":{"n":1},"id":"i1","attempts":1,"crashes":9,"rsv":"Tok3nTok3n.1.5.-"}'
    redis.call("HSET", "queues:default:deaths", "Tok3nTok3n.1.5", note)
    push_raw(redis, payload)
    push(redis, "quick", n=2)
    work = shop.work_off()
    assert [line.split()[1] for line in witness.starting("quick")] == ["2"]
    ((record, _),) = failed(redis)
    assert (record["crashes"], "more" in record.get("death", {})) == (9, False)
    assert not redis.call("EXISTS", "queues:default:deaths"), "it was read"
    assert not work.matches(r"worker\.died ")
